/* generation_config.c - copies what a model folder says about generating text along with its weights. */
#include <string.h>

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

static fsdp_status keep(fsdp_context *context, const char *folder, const fsdp_model_config *config, char **out)
{
    fsdp_status status = read_generation_config(folder, config, out);

    if (status == FSDP_OK || status == FSDP_NO_MEMORY)
        return status;
    fsdp_log(context, FSDP_LOG_WARNING, "generation_config.json is not copied: %s", fsdp_last_error());
    return FSDP_OK;
}

/* Gives the tokens that end a text, as transformers writes them: one, or a list. */
static json_t *list_stops(const fsdp_hub_stop_tokens *stops)
{
    json_t *list = stops->count == 1 ? json_integer(stops->ids[0]) : json_array();

    for (int i = 0; list && stops->count > 1 && i < stops->count; i++)
        if (json_array_append_new(list, json_integer(stops->ids[i])) != 0) {
            json_decref(list);
            return NULL;
        }
    return list;
}

/* Adds the end of turn to the tokens that end a text, unless it is one of them. Where the text names none, those of the
 * config count, which a reader would not ask any more. */
static fsdp_status add_end_of_turn(const fsdp_model_config *config, int32_t end_of_turn, char **text)
{
    fsdp_hub_stop_tokens stops;
    FSDP__FREED char *changed = NULL;
    json_auto_t *list = NULL;

    FSDP_TRY(fsdp__stop_tokens_parse("generation_config.json", *text, strlen(*text), &stops));
    for (int i = 0; stops.count == 0 && i < config->eos_token_count; i++)
        stops.ids[i] = config->eos_tokens[i];
    stops.count = stops.count == 0 ? config->eos_token_count : stops.count;
    for (int i = 0; i < stops.count; i++)
        if (stops.ids[i] == end_of_turn)
            return FSDP_OK;
    if (stops.count == FSDP_HUB_MAX_STOP_TOKENS)
        return FSDP_OK;
    stops.ids[stops.count++] = end_of_turn;
    FSDP__TRY_NEW(list = list_stops(&stops));
    FSDP_TRY(fsdp__hub_set_key(*text, "eos_token_id", list, &changed));
    fsdp__free(*text);
    *text = fsdp__take(&changed);
    return FSDP_OK;
}

fsdp_status fsdp__hub_generation_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                        const fsdp__hub_talk *talk, char **out)
{
    FSDP__FREED char *text = NULL;

    *out = NULL;
    if (folder)
        FSDP_TRY(keep(context, folder, config, &text));
    if (!text)
        FSDP_TRY(fsdp__generation_config_text(config, &text));
    if (talk && talk->end_of_turn >= 0 && talk->end_of_turn < config->vocab_size)
        FSDP_TRY(add_end_of_turn(config, talk->end_of_turn, &text));
    *out = fsdp__take(&text);
    return FSDP_OK;
}
