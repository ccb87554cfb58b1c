/* tokenizer_files.c - the files of a model folder that belong to its tokenizer. */
#include <string.h>
#include <sys/stat.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "format/json_scan.h"
#include "hub/held_folder.h"

#define LIMIT_BYTES ((size_t)1 << 30)

static const char *const files[] = {
    "tokenizer.json",          "tokenizer_config.json", "tokenizer.model",     "vocab.json",  "merges.txt",
    "special_tokens_map.json", "added_tokens.json",     "chat_template.jinja", "tekken.json", "chat_template.json",
};

const char *fsdp__hub_tokenizer_folder(const fsdp__hub_target *target)
{
    struct stat info;

    if (target->no_tokenizer)
        return NULL;
    return target->tokenizer && stat(target->tokenizer, &info) == 0 && S_ISDIR(info.st_mode) ? target->tokenizer
                                                                                             : target->source;
}

static bool has_file(const char *folder, const char *name)
{
    FSDP__FREED char *path = fsdp__path_join(folder, name);

    return path && fsdp__path_exists(path);
}

bool fsdp__hub_has_tokenizer(const char *folder)
{
    return has_file(folder, "tokenizer.json") || has_file(folder, "tokenizer.model") ||
           (has_file(folder, "vocab.json") && has_file(folder, "merges.txt"));
}

static fsdp_status copy_file(const char *from, const fsdp__directory *to, const char *name)
{
    size_t bytes = 0;
    FSDP__FREED char *data = NULL;

    if (!fsdp__path_exists(from))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_read(from, LIMIT_BYTES, &data, &bytes));
    return fsdp__directory_write_atomic(to, name, data, bytes);
}

fsdp_status fsdp__hub_copy_tokenizer(const char *from, const fsdp__directory *to)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(files); i++) {
        FSDP__FREED char *source = fsdp__path_join(from, files[i]);

        if (!source)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot copy the tokenizer of '%s'", from);
        FSDP_TRY(copy_file(source, to, files[i]));
    }
    return FSDP_OK;
}

/* Reads a file of a folder. `*out` stays NULL if there is none. */
static fsdp_status read_file(const fsdp__directory *folder, const char *name, char **out)
{
    FSDP__FREED char *path = fsdp__path_join(folder->path, name);
    size_t bytes;

    FSDP__TRY_NEW(path);
    return fsdp__path_exists(path) ? fsdp__file_read(path, LIMIT_BYTES, out, &bytes) : FSDP_OK;
}

/* Returns whether a member is this text. */
static bool is_text(const fsdp__json_member *member, const char *text)
{
    FSDP__FREED char *own = member->is_string ? fsdp__calloc(member->bytes + 1, 1) : NULL;
    int64_t halves;

    return own && fsdp__json_unescape(member->text, member->bytes, own, &halves) == strlen(text) &&
           memcmp(own, text, strlen(text)) == 0;
}

fsdp_status fsdp__hub_agree_on_template(const fsdp__directory *folder)
{
    static const char config_name[] = "tokenizer_config.json", key[] = "chat_template";
    FSDP__FREED char *template = NULL, *config = NULL, *changed = NULL;
    fsdp__json_member member = {.text = NULL};
    fsdp__json_fault fault;
    json_auto_t *value = NULL;

    FSDP_TRY(read_file(folder, FSDP__HUB_CHAT_TEMPLATE, &template));
    FSDP_TRY(read_file(folder, config_name, &config));
    if (!template || !config || fsdp__json_find(config, strlen(config), key, &member, &fault) != FSDP_OK ||
        !member.text || is_text(&member, template))
        return FSDP_OK;
    value = json_string(template);
    if (!value) /* no UTF-8: nobody reads it */
        return FSDP_OK;
    FSDP_TRY(fsdp__hub_set_key(config, key, value, &changed));
    return fsdp__directory_write_atomic(folder, config_name, changed, strlen(changed));
}

/* Adds a file to the list after opening it: what cannot be copied should be known before a run, not at its end. */
static fsdp_status list_file(const char *path, const char *name, fsdp__file_list *list)
{
    FSDP__SCOPED(fsdp__file_unmap) fsdp__mapping file = {0};

    if (!fsdp__path_exists(path))
        return FSDP_OK;
    FSDP_TRY(fsdp__file_map(path, &file));
    if (file.bytes > LIMIT_BYTES)
        return FSDP_FAIL(FSDP_FORMAT, "cannot copy '%s': it is larger than %zu bytes", path, LIMIT_BYTES);
    return fsdp__file_list_add(list, name, file.bytes);
}

fsdp_status fsdp__hub_list_tokenizer(const char *folder, fsdp__file_list *list)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(files); i++) {
        FSDP__FREED char *path = fsdp__path_join(folder, files[i]);

        if (!path)
            return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot list the tokenizer of '%s'", folder);
        FSDP_TRY(list_file(path, files[i], list));
    }
    return FSDP_OK;
}
