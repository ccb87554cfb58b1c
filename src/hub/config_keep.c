/* config_keep.c - the config.json of a model that came from a folder. The text itself is edited, value by value:
 * whatever else it holds belongs to somebody else, and stays as it was written, even where no parser could represent it
 * (NaN). */
#include "hub/config_keep.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/file.h"
#include "base/text.h"
#include "format/json.h"
#include "format/json_scan.h"
#include "hub/hub.h"

enum {
    MOST_EDITS = 64 /* more keys than are ever written */
};

/* A value of the text that is replaced; `at` is the end of the text if the key is not there yet. */
typedef struct edit {
    const char *key, *at;
    size_t bytes;
    char *value;
} edit;

typedef struct change {
    const char *text;
    size_t bytes;
    edit edits[MOST_EDITS];
    int count;
} change;

/* ---- edits ---- */

static fsdp_status find(const change *c, const char *key, fsdp__json_member *out)
{
    fsdp__json_fault fault;
    fsdp_status status = fsdp__json_find(c->text, c->bytes, key, out, &fault);

    if (status == FSDP_FORMAT)
        return FSDP_FAIL(status, "not an object: %s", fault.what);
    if (out->text && out->is_string) { /* include its quotes */
        out->text--;
        out->bytes += 2;
    }
    return status;
}

/* Adds an edit. `value` NULL means null. Without `insert` a key that is not there stays absent. */
static fsdp_status add_edit(change *c, const char *key, const json_t *value, bool insert)
{
    fsdp__json_member member;
    edit *e = &c->edits[c->count];

    FSDP_TRY(find(c, key, &member));
    if (!member.text && !insert)
        return FSDP_OK;
    if (c->count == MOST_EDITS)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "too much would change");
    *e = (edit){.key = key, .at = member.text ? member.text : c->text + c->bytes, .bytes = member.bytes};
    e->value = json_dumps(value ? value : json_null(), JSON_ENCODE_ANY | JSON_REAL_PRECISION(9));
    if (!e->value)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write config.json");
    c->count++;
    return FSDP_OK;
}

/* ---- what has changed ---- */

/* Lists keys that some version of transformers reads for the rotary positions. They are changed together. */
static const char *const rope_keys[] = {
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "rope_local_base_freq", NULL};

static bool differs(const json_t *before, const json_t *now, const char *key)
{
    const json_t *a = json_object_get(before, key), *b = json_object_get(now, key);

    return a ? !b || !json_equal(a, b) : b != NULL;
}

/* Returns whether "architectures" names a class with a head. The class that loads the file has one, even if the file
 * says that it is a body alone. */
static bool has_class(json_t *object)
{
    const json_t *list = json_object_get(object, "architectures");

    for (size_t i = 0; i < json_array_size(list); i++) {
        const char *name = json_string_value(json_array_get(list, i));

        if (name && (fsdp__ends_with(name, "ForCausalLM") || fsdp__ends_with(name, "LMHeadModel")))
            return true;
    }
    return false;
}

static fsdp_status add_dtype(change *c, const json_t *now)
{
    static const char *const keys[] = {"torch_dtype", "dtype"}; /* older, newer */
    fsdp__json_member member;
    bool any = false;

    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++) {
        FSDP_TRY(find(c, keys[i], &member));
        any = any || member.text;
    }
    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
        FSDP_TRY(add_edit(c, keys[i], json_object_get(now, keys[i]), !any));
    return FSDP_OK;
}

/* Lists the edits. `before` and `now` are what would be written for the model that the text describes, and for the one
 * that it is to describe. */
static fsdp_status add_edits(change *c, json_t *source, json_t *before, json_t *now)
{
    bool rope = false;
    const char *key;
    json_t *value;

    for (size_t i = 0; rope_keys[i]; i++)
        rope = rope || differs(before, now, rope_keys[i]);
    for (size_t i = 0; rope && rope_keys[i]; i++)
        FSDP_TRY(add_edit(c, rope_keys[i], json_object_get(now, rope_keys[i]), json_object_get(now, rope_keys[i])));
    json_object_foreach(now, key, value) if (differs(before, now, key) && !fsdp__is_one_of(key, rope_keys))
        FSDP_TRY(add_edit(c, key, value, true));
    json_object_foreach(before, key, value) if (!json_object_get(now, key) && !fsdp__is_one_of(key, rope_keys))
        FSDP_TRY(add_edit(c, key, NULL, false));
    if (!has_class(source))
        FSDP_TRY(add_edit(c, "architectures", json_object_get(now, "architectures"), true));
    return add_dtype(c, now);
}

/* ---- the new text ---- */

static int by_place(const void *a, const void *b)
{
    const edit *x = a, *y = b;

    if (x->at != y->at)
        return x->at < y->at ? -1 : 1;
    return strcmp(x->key, y->key);
}

/* Prints the text with the new values in their places, and new keys before the closing brace. */
static void print(const change *c, FILE *out)
{
    const char *at = c->text, *end = c->text + c->bytes, *brace = end, *last;

    while (*--brace != '}')
        continue;
    for (last = brace; strchr(" \t\r\n", last[-1]);)
        last--;
    for (int i = 0; i < c->count; i++) {
        const edit *e = &c->edits[i];

        if (e->at < end) {
            fwrite(at, 1, (size_t)(e->at - at), out);
            fputs(e->value, out);
            at = e->at + e->bytes;
        } else {
            fwrite(at, 1, (size_t)(last - at), out);
            fprintf(out, ",\n  \"%s\": %s", e->key, e->value);
            at = last;
        }
    }
    fwrite(at, 1, (size_t)(end - at), out);
}

static fsdp_status make_text(change *c, char **out)
{
    size_t bytes;
    FILE *file = open_memstream(out, &bytes);

    qsort(c->edits, (size_t)c->count, sizeof *c->edits, by_place);
    if (file)
        print(c, file);
    if (file && fclose(file) == 0)
        return FSDP_OK;
    return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write config.json");
}

/* Reads the new text again, because what stays of it may contradict the new model, such as a window of fewer
 * positions. */
static fsdp_status check(const char *path, const char *text, const json_t *now, fsdp_dtype dtype)
{
    fsdp_model_config config;
    json_auto_t *read = NULL;

    FSDP_TRY(fsdp__config_parse(path, text, strlen(text), &config));
    read = fsdp__config_object(&config, dtype);
    if (!read)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write config.json");
    if (!json_equal(read, now))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s' has keys that do not fit the model as it is now", path);
    return FSDP_OK;
}

/* ---- all of it ---- */

static fsdp_status change_to(change *c, const char *path, json_t *now, fsdp_dtype dtype, char **out)
{
    fsdp_model_config config;
    json_auto_t *source = NULL, *before = NULL;

    FSDP_TRY(fsdp__config_parse(path, c->text, c->bytes, &config));
    FSDP_TRY(fsdp__json_parse_foreign(path, c->text, c->bytes, &source));
    before = fsdp__config_object(&config, dtype);
    if (!before)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write config.json");
    if (!json_equal(json_object_get(before, "model_type"), json_object_get(now, "model_type")))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "'%s' belongs to another kind of model", path);
    FSDP_TRY(add_edits(c, source, before, now));
    FSDP_TRY(make_text(c, out));
    return check(path, *out, now, dtype);
}

fsdp_status fsdp__config_change(const char *path, const char *text, size_t bytes, const fsdp_model_config *config,
                                fsdp_dtype dtype, char **out)
{
    size_t mark = fsdp__utf8_mark(text, bytes); /* transformers does not accept a byte order mark */
    change c = {.text = text + mark, .bytes = bytes - mark};
    json_auto_t *now = fsdp__config_object(config, dtype);
    FSDP__FREED char *changed = NULL;
    fsdp_status status;

    *out = NULL;
    if (!now)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot write config.json");
    status = change_to(&c, path, now, dtype, &changed);
    for (int i = 0; i < c.count; i++)
        fsdp__free(c.edits[i].value);
    if (status == FSDP_OK)
        *out = fsdp__take(&changed);
    return status;
}

fsdp_status fsdp__hub_set_key(const char *text, const char *key, const json_t *value, char **out)
{
    size_t bytes = strlen(text), mark = fsdp__utf8_mark(text, bytes);
    change c = {.text = text + mark, .bytes = bytes - mark};

    *out = NULL;
    FSDP_TRY(add_edit(&c, key, value, true));
    (void)make_text(&c, out);
    fsdp__free(c.edits[0].value);
    return *out ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status change_file(const char *path, const fsdp_model_config *config, fsdp_dtype dtype, char **out)
{
    FSDP__FREED char *text = NULL;
    size_t bytes = 0;

    FSDP_TRY(fsdp__file_read(path, FSDP__CONFIG_LIMIT_BYTES, &text, &bytes));
    return fsdp__config_change(path, text, bytes, config, dtype, out);
}

fsdp_status fsdp__hub_keep_config(fsdp_context *context, const char *folder, const fsdp_model_config *config,
                                  fsdp_dtype dtype, char **out)
{
    FSDP__FREED char *path = folder ? fsdp__path_join(folder, "config.json") : NULL;
    fsdp_status status = path || !folder ? FSDP_OK : fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot look into '%s'", folder);

    *out = NULL;
    if (path && fsdp__path_exists(path))
        status = change_file(path, config, dtype, out);
    if (status == FSDP_NO_MEMORY || *out)
        return status;
    if (status != FSDP_OK)
        fsdp_log(context, FSDP_LOG_WARNING, "keys of config.json that fsdp does not know are not copied: %s",
                 fsdp_last_error());
    return fsdp__config_text(config, dtype, out);
}
