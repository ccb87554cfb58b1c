/* cache.c - the folder where this program keeps what it can make again. */
#include <stdlib.h>

#include "base/alloc.h"
#include "cli/cli.h"
#include "train/inputs.h"

fsdp_status fsdp__cache_folder(char **out)
{
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    bool named = cache && cache[0] == '/'; /* any other value is to be ignored */

    *out = NULL;
    if (!named && (!home || !*home))
        return FSDP_OK;
    *out = named ? fsdp__sprintf("%s/fsdp", cache) : fsdp__sprintf("%s/.cache/fsdp", home);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

fsdp_status fsdp__default_cache(fsdp_train_config *config)
{
    FSDP__FREED char *folder = NULL, *tokenizer = NULL;

    if (config->data.cache)
        return FSDP_OK;
    FSDP_TRY(fsdp__inputs_tokenizer(config, &tokenizer));
    if (tokenizer)
        FSDP_TRY(fsdp__cache_folder(&folder));
    return folder ? fsdp_train_config_set(config, "data.cache", folder) : FSDP_OK;
}
