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
    FSDP__FREED char *tokenizer = NULL;

    if (config->data.cache || config->usual_cache)
        return FSDP_OK;
    FSDP_TRY(fsdp__inputs_tokenizer(config, &tokenizer));
    return tokenizer ? fsdp__cache_folder(&config->usual_cache) : FSDP_OK;
}
