/* chat.c - opens a folder's chat: its templates, and the special tokens that they name. */
#include "chat/chat.h"

#include <string.h>
#include <time.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "chat/templates.h"

/* ---- templates ---- */

static fsdp_status add_template(fsdp_chat *chat, const fsdp__template *from, fsdp__jinja **out)
{
    if (!from->text)
        return FSDP_OK;
    chat->hash = fsdp__hash_bytes(chat->hash, from->text, from->bytes);
    if (memmem(from->text, from->bytes, "strftime_now", strlen("strftime_now"))) {
        const time_t now = time(NULL);
        struct tm local = {0};

        (void)localtime_r(&now, &local);
        chat->hash = fsdp__hash_bytes(chat->hash, &local.tm_year, sizeof local.tm_year);
        chat->hash = fsdp__hash_bytes(chat->hash, &local.tm_yday, sizeof local.tm_yday);
    }
    return fsdp__jinja_parse(from->name, from->text, from->bytes, out);
}

static fsdp_status add_templates(fsdp_chat *chat, const char *folder, const char *file)
{
    FSDP__SCOPED(fsdp__templates_release) fsdp__templates all = {0};

    if (file)
        FSDP_TRY(fsdp__template_read(file, &all.usual));
    else if (folder)
        FSDP_TRY(fsdp__templates_read(folder, &all));
    FSDP_TRY(add_template(chat, &all.usual, &chat->usual));
    return add_template(chat, &all.tool_use, &chat->tool_use);
}

/* ---- special tokens ---- */

/* Notes the special tokens of a config by their names; `any`: their names need not end as those of others do. */
static fsdp_status add_tokens(fsdp_chat *chat, const json_t *config, bool any)
{
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)config, key, value)
    {
        const json_t *text = json_is_object(value) ? json_object_get(value, "content") : value;
        size_t length = strlen(key);

        if (!json_is_string(text) || (!any && (length < 7 || strcmp(key + length - 6, "_token") != 0)))
            continue;
        if (json_object_set(chat->tokens, key, (json_t *)text) != 0)
            return FSDP_FAIL(FSDP_NO_MEMORY, "cannot hold the special tokens");
        chat->hash = fsdp__hash_bytes(chat->hash, key, length);
        chat->hash = fsdp__hash_bytes(chat->hash, json_string_value(text), json_string_length(text));
    }
    return FSDP_OK;
}

/* Notes the tokens of a file. `*describes`: it says which tokens there are. */
static fsdp_status read_config(fsdp_chat *chat, const char *folder, const char *name, bool *describes)
{
    FSDP__FREED char *path = NULL;
    json_auto_t *config = NULL;
    const json_t *more;

    FSDP_TRY(fsdp__chat_config_read(folder, name, &path, &config));
    if (!config)
        return FSDP_OK;
    *describes = json_object_get(config, "added_tokens_decoder") != NULL;
    more = json_object_get(config, "extra_special_tokens"); /* a list has no names */
    FSDP_TRY(add_tokens(chat, config, false));
    return json_is_object(more) ? add_tokens(chat, more, true) : FSDP_OK;
}

/* Reads the special tokens as transformers does: of two files the older kind of file counts, but for a folder whose
 * config describes all tokens. */
static fsdp_status read_tokens(fsdp_chat *chat, const char *folder)
{
    bool describes = false;

    FSDP_TRY(read_config(chat, folder, "tokenizer_config.json", &describes));
    return describes ? FSDP_OK : read_config(chat, folder, "special_tokens_map.json", &describes);
}

/* Reads the templates and the special tokens of a folder. */
static fsdp_status read_all(fsdp_chat *chat, const char *folder, const char *file)
{
    FSDP__TRY_NEW(chat->tokens = json_object());
    chat->hash = FSDP__HASH_OF_NOTHING;
    if (folder) {
        FSDP__TRY_NEW(chat->folder = fsdp__strdup(folder));
        FSDP_TRY(read_tokens(chat, folder));
    }
    return add_templates(chat, folder, file);
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
    FSDP_TRY(read_all(chat, folder, file));
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
    FSDP__FREE_ALL(chat->folder, chat);
}

bool fsdp_chat_has_template(const fsdp_chat *chat)
{
    return chat && (chat->usual || chat->tool_use);
}

uint64_t fsdp__chat_hash(const fsdp_chat *chat)
{
    return chat->hash;
}
