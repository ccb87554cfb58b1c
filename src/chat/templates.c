/* templates.c - finds the chat templates of a folder. */
#include "chat/templates.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "format/json.h"

static void release(fsdp__template *one)
{
    FSDP__FREE_ALL(one->name, one->text);
    *one = (fsdp__template){0};
}

void fsdp__templates_release(fsdp__templates *all)
{
    release(&all->usual);
    release(&all->tool_use);
}

fsdp_status fsdp__template_read(const char *path, fsdp__template *out)
{
    release(out);
    FSDP__TRY_NEW(out->name = fsdp__strdup(path));
    FSDP_TRY(fsdp__file_read(path, FSDP__TEMPLATE_BYTES, &out->text, &out->bytes));
    return out->bytes > 0 ? FSDP_OK : FSDP_FAIL(FSDP_FORMAT, "'%s' is empty: it makes no text of a conversation", path);
}

/* Reads a file of the folder, if it is there. */
static fsdp_status read_if_there(const char *folder, const char *name, fsdp__template *out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);

    FSDP__TRY_NEW(path);
    return fsdp__path_exists(path) ? fsdp__template_read(path, out) : FSDP_OK;
}

static fsdp_status take(const char *path, const json_t *text, fsdp__template *out)
{
    release(out);
    out->bytes = json_string_length(text);
    FSDP__TRY_NEW(out->name = fsdp__sprintf("%s (chat_template)", path));
    FSDP__TRY_NEW(out->text = fsdp__malloc(out->bytes + 1));
    memcpy(out->text, json_string_value(text), out->bytes + 1);
    return FSDP_OK;
}

/* Takes `chat_template` of a config: a text, or a list of texts with names. */
static fsdp_status take_of_config(const char *path, const json_t *config, fsdp__templates *out)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    size_t i;

    if (json_is_string(value))
        return take(path, value, &out->usual);
    json_array_foreach(value, i, item)
    {
        const json_t *text = json_object_get(item, "template");
        const char *which = json_string_value(json_object_get(item, "name"));

        if (!which || !json_is_string(text))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': chat_template has an item without name and template",
                             path);
        if (strcmp(which, "default") == 0)
            FSDP_TRY(take(path, text, &out->usual));
        if (strcmp(which, "tool_use") == 0)
            FSDP_TRY(take(path, text, &out->tool_use));
    }
    return FSDP_OK;
}

fsdp_status fsdp__chat_config_read(const char *folder, const char *name, char **path, json_t **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP__TRY_NEW(*path = fsdp__path_join(folder, name));
    if (!fsdp__path_exists(*path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(*path, FSDP__CHAT_CONFIG_BYTES, &text, &bytes));
    return fsdp__json_parse_as_reals(*path, text, bytes, out);
}

static fsdp_status read_config(const char *folder, const char *name, fsdp__templates *out)
{
    FSDP__FREED char *path = NULL;
    json_auto_t *config = NULL;

    FSDP_TRY(fsdp__chat_config_read(folder, name, &path, &config));
    return config ? take_of_config(path, config, out) : FSDP_OK;
}

fsdp_status fsdp__templates_read(const char *folder, fsdp__templates *out)
{
    *out = (fsdp__templates){0};
    FSDP_TRY(read_config(folder, "tokenizer_config.json", out));
    if (!out->usual.text)
        FSDP_TRY(read_config(folder, "chat_template.json", out));
    FSDP_TRY(read_if_there(folder, "chat_template.jinja", &out->usual));
    return read_if_there(folder, "additional_chat_templates/tool_use.jinja", &out->tool_use);
}
