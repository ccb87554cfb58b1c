/* generation_config.c - copies what a model folder says about generating text along with its weights. */
#include "base/alloc.h"
#include "base/file.h"
#include "hub/hub.h"

/* Returns whether the vocabulary has all tokens that end a text. */
static bool fits(const fsdp_hub_stop_tokens *stops, const fsdp_model_config *config)
{
    for (int64_t i = 0; i < stops->count; i++)
        if (stops->ids[i] >= config->vocab_size)
            return false;
    return true;
}

static fsdp_status read_generation_config(const char *folder, const fsdp_model_config *config, char **out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, "generation_config.json"), *text = NULL;
    fsdp_hub_stop_tokens stops = {.count = 0};
    size_t bytes = 0;

    if (!path)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", folder);
    if (!fsdp__path_exists(path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    FSDP_TRY(fsdp__stop_tokens_parse(path, text, bytes, &stops));
    if (fits(&stops, config))
        *out = fsdp__take(&text);
    return FSDP_OK;
}

fsdp_status fsdp__hub_keep_generation_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                             char **out)
{
    fsdp_status status;

    *out = NULL;
    if (!folder)
        return FSDP_OK;
    status = read_generation_config(folder, config, out);
    if (status == FSDP_OK || status == FSDP_NO_MEMORY)
        return status;
    fsdp_log(context, FSDP_LOG_WARNING, "generation_config.json is not copied: %s", fsdp_last_error());
    return FSDP_OK;
}
