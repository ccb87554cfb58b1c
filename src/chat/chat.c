/* chat.c - opens a folder's chat: its templates, and the special tokens that they name. */
#include "chat/chat.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/text.h"
#include "format/json.h"

enum {
    MAX_TEMPLATE = 4 << 20,
    MAX_CONFIG = 64 << 20
};

/* ---- templates ---- */

static fsdp_status add_template(fsdp_chat *chat, const char *name, const char *text, size_t bytes, fsdp__jinja **out)
{
    fsdp__jinja_free(*out);
    *out = NULL;
    chat->hash = fsdp__hash_bytes(chat->hash, text, bytes);
    if (memmem(text, bytes, "strftime_now", strlen("strftime_now"))) {
        int64_t day = (int64_t)time(NULL) / 86400;

        chat->hash = fsdp__hash_bytes(chat->hash, &day, sizeof day);
    }
    return fsdp__jinja_parse(name, text, bytes, out);
}

static fsdp_status add_file(fsdp_chat *chat, const char *path, fsdp__jinja **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read(path, MAX_TEMPLATE, &text, &bytes));
    return add_template(chat, path, text, bytes, out);
}

/* Reads a template of a folder's file, if it is there. */
static fsdp_status add_if_there(fsdp_chat *chat, const char *folder, const char *name, fsdp__jinja **out)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);

    FSDP__TRY_NEW(path);
    return fsdp__path_exists(path) ? add_file(chat, path, out) : FSDP_OK;
}

/* Reads `chat_template` of a config: a text, or a list of texts with names. */
static fsdp_status add_of_config(fsdp_chat *chat, const char *path, const json_t *config)
{
    const json_t *value = json_object_get(config, "chat_template"), *item;
    FSDP__FREED char *name = fsdp__sprintf("%s (chat_template)", path);
    size_t i;

    FSDP__TRY_NEW(name);
    if (json_is_string(value))
        return add_template(chat, name, json_string_value(value), json_string_length(value), &chat->usual);
    json_array_foreach(value, i, item)
    {
        const json_t *text = json_object_get(item, "template");
        const char *which = json_string_value(json_object_get(item, "name"));

        if (!which || !json_is_string(text))
            return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': chat_template has an item without name and template",
                             path);
        if (strcmp(which, "default") == 0)
            FSDP_TRY(add_template(chat, name, json_string_value(text), json_string_length(text), &chat->usual));
        if (strcmp(which, "tool_use") == 0)
            FSDP_TRY(add_template(chat, name, json_string_value(text), json_string_length(text), &chat->tool_use));
    }
    return FSDP_OK;
}

/* ---- special tokens ---- */

/* Notes the special tokens of a config by their names, unless they are known. */
static fsdp_status add_tokens(fsdp_chat *chat, const json_t *config)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)config, key, value)
    {
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        size_t length = strlen(key);

        if (length < 7 || strcmp(key + length - 6, "_token") != 0 || !json_is_string(text) ||
            json_object_get(chat->tokens, key))
            continue;
        if (json_object_set(chat->tokens, key, (json_t *)text) != 0)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hold the special tokens");
        chat->hash = fsdp__hash_bytes(chat->hash, key, length);
        chat->hash = fsdp__hash_bytes(chat->hash, json_string_value(text), json_string_length(text));
    }
    return FSDP_OK;
}

static fsdp_status read_config(fsdp_chat *chat, const char *folder, const char *name, bool has_template)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name), *text = NULL;
    json_auto_t *config = NULL;
    size_t bytes = 0;

    FSDP__TRY_NEW(path);
    if (!fsdp__path_exists(path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(path, MAX_CONFIG, &text, &bytes));
    FSDP_TRY(fsdp__json_parse_as_reals(path, text, bytes, &config));
    FSDP_TRY(add_tokens(chat, config));
    return has_template ? add_of_config(chat, path, config) : FSDP_OK;
}

fsdp_status fsdp__chat_read(fsdp_chat *chat, const char *folder, const char *file)
{
    FSDP__TRY_NEW(chat->tokens = json_object());
    chat->hash = FSDP__HASH_OF_NOTHING;
    if (folder) {
        FSDP__TRY_NEW(chat->folder = fsdp__strdup(folder));
        FSDP_TRY(read_config(chat, folder, "tokenizer_config.json", true));
        FSDP_TRY(read_config(chat, folder, "special_tokens_map.json", false));
        FSDP_TRY(read_config(chat, folder, "chat_template.json", !chat->usual));
        FSDP_TRY(add_if_there(chat, folder, "chat_template.jinja", &chat->usual));
        FSDP_TRY(add_if_there(chat, folder, "additional_chat_templates/tool_use.jinja", &chat->tool_use));
    }
    if (!file)
        return FSDP_OK;
    fsdp__jinja_free(chat->tool_use);
    chat->tool_use = NULL;
    return add_file(chat, file, &chat->usual);
}

/* ---- life ---- */

fsdp_status fsdp_chat_open(const char *folder, const fsdp_tokenizer *tokenizer, const char *file, fsdp_chat **out)
{
    FSDP__SCOPED(fsdp_chat_close_at) fsdp_chat *chat = NULL;

    if (!tokenizer || !out)
        return FSDP_FAIL(FSDP_INVALID, "cannot open a chat: tokenizer and out are required");
    *out = NULL;
    FSDP__TRY_NEW(chat = fsdp__calloc(1, sizeof *chat));
    chat->tokenizer = tokenizer;
    FSDP_TRY(fsdp__chat_read(chat, folder, file));
    *out = fsdp__take(&chat);
    return FSDP_OK;
}

void fsdp_chat_close(fsdp_chat *chat)
{
    if (!chat)
        return;
    fsdp__jinja_free(chat->usual);
    fsdp__jinja_free(chat->tool_use);
    json_decref(chat->tokens);
    fsdp__free(chat->folder);
    fsdp__free(chat);
}

bool fsdp_chat_has_template(const fsdp_chat *chat)
{
    return chat && (chat->usual || chat->tool_use);
}

uint64_t fsdp__chat_hash(const fsdp_chat *chat)
{
    return chat->hash;
}
