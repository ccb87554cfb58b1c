/* stop_tokens.c - finds which tokens end a text, as a model folder says. */
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/json.h"
#include "hub/hub.h"

static fsdp_status add(const fsdp__json_object *from, const json_t *value, fsdp_hub_stop_tokens *out)
{
    if (json_is_integer(value) && json_integer_value(value) < 0) /* -1 means none: no text ends with it */
        return FSDP_OK;
    if (!json_is_integer(value) || json_integer_value(value) > INT32_MAX)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': key 'eos_token_id' is neither a token id nor a list of them",
                         from->path);
    if (out->count == FSDP_HUB_MAX_STOP_TOKENS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot use '%s': key 'eos_token_id' has more than %d token ids", from->path,
                         FSDP_HUB_MAX_STOP_TOKENS);
    out->ids[out->count++] = (int32_t)json_integer_value(value);
    return FSDP_OK;
}

static fsdp_status read_ids(const fsdp__json_object *from, fsdp_hub_stop_tokens *out)
{
    const json_t *value = json_object_get(from->object, "eos_token_id");

    if (!value || json_is_null(value))
        return FSDP_OK;
    if (!json_is_array(value))
        return add(from, value, out);
    for (size_t i = 0; i < json_array_size(value); i++)
        FSDP_TRY(add(from, json_array_get(value, i), out));
    return FSDP_OK;
}

fsdp_status fsdp__stop_tokens_parse(const char *path, const void *text, size_t bytes, fsdp_hub_stop_tokens *out)
{
    json_auto_t *value = NULL;

    memset(out, 0, sizeof *out);
    FSDP_TRY(fsdp__json_parse_foreign(path, text, bytes, &value));
    return read_ids(&(fsdp__json_object){.path = path, .object = value}, out);
}

static fsdp_status read_file(const char *folder, const char *name, fsdp_hub_stop_tokens *out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name), *text = NULL;
    size_t bytes;

    FSDP__TRY_NEW(path);
    if (!fsdp__path_exists(path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    return fsdp__stop_tokens_parse(path, text, bytes, out);
}

fsdp_status fsdp_hub_read_stop_tokens(const char *folder, fsdp_hub_stop_tokens *out)
{
    if (!folder || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot read stop tokens: a folder and a place for them are required");
    memset(out, 0, sizeof *out);
    FSDP_TRY(read_file(folder, "generation_config.json", out));
    return out->count > 0 ? FSDP_OK : read_file(folder, "config.json", out);
}
