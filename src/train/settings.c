/* settings.c - writes which keys of a config are not the default, and what the default is. */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "config/yaml.h"
#include "train/metrics.h"
#include "train/run_config.h"

/* Returns the key's value as YAML, "" where it is not set; NULL when out of memory. fsdp__free it. */
static char *value_of(const fsdp_train_config *config, const fsdp__key *key)
{
    FSDP__FREED char *text = NULL;
    size_t bytes;
    FILE *out = fsdp__begin_text(&text, &bytes);

    if (out && fsdp__key_is_set(config, key))
        fsdp__key_print(config, key, out);
    return fsdp__end_text(out) == FSDP_OK ? fsdp__take(&text) : NULL;
}

static fsdp_status write_key(const fsdp_train_config *config, const fsdp_train_config *defaults, const fsdp__key *key,
                             bool *first, FILE *out)
{
    FSDP__FREED char *value = value_of(config, key);
    FSDP__FREED char *usual = value_of(defaults, key);

    FSDP__TRY_NEW(value);
    FSDP__TRY_NEW(usual);
    if (strcmp(value, usual) != 0) {
        fprintf(out, "%s\"%s.%s\": ", *first ? "" : ", ", key->section, key->name);
        fsdp__print_json_string(value, out);
        *first = false;
    }
    return FSDP_OK;
}

fsdp_status fsdp__train_write_settings(const fsdp_train_config *config, FILE *out)
{
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *defaults = NULL;
    bool first = true;

    FSDP_TRY(fsdp_train_config_create(&defaults));
    fputc('{', out);
    for (int i = 0; i < fsdp__train_keys.count; i++)
        FSDP_TRY(write_key(config, defaults, &fsdp__train_keys.keys[i], &first, out));
    fputc('}', out);
    return FSDP_OK;
}

fsdp_status fsdp__train_read_setting(fsdp_train_config *config, const char *name, const char *value)
{
    const char *dot = strchr(name, '.'), *within = dot ? strchr(dot + 1, '.') : NULL;
    FSDP__FREED char *text = NULL;

    if (!dot)
        return FSDP_FAIL(FSDP_INVALID, "'%s' is no key of a run", name);
    text = within ? fsdp__sprintf("%.*s:\n  %.*s:\n    %s: %s\n", (int)(dot - name), name, (int)(within - dot - 1),
                                  dot + 1, within + 1, value)
                  : fsdp__sprintf("%.*s:\n  %s: %s\n", (int)(dot - name), name, dot + 1, value);
    FSDP__TRY_NEW(text);
    return fsdp__yaml_apply(&fsdp__train_keys, config, "the settings of a run", text, strlen(text));
}

bool fsdp__train_usual_setting(const char *name, char *text, size_t text_bytes)
{
    const fsdp__key *key = fsdp__key_named(&fsdp__train_keys, name);
    FSDP__SCOPED(fsdp_train_config_free_at) fsdp_train_config *defaults = NULL;
    FSDP__FREED char *value = NULL;
    bool held = fsdp_hold_error(true);

    if (key && fsdp_train_config_create(&defaults) == FSDP_OK)
        value = value_of(defaults, key);
    fsdp_release_error(held);
    snprintf(text, text_bytes, "%s", !value ? "" : *value ? value : "not set");
    return value != NULL;
}

/* Returns whether the list, up to NULL, has the key; without a list (NULL) any key is meant. */
static bool is_listed(const fsdp__key *key, const char *const *list)
{
    if (!list)
        return true;
    for (; *list; list++)
        if (fsdp__key_named(&fsdp__train_keys, *list) == key)
            return true;
    return false;
}

fsdp_status fsdp__train_config_difference(const fsdp_train_config *there, const fsdp_train_config *here,
                                          const char *const *keys, char *text, size_t text_bytes)
{
    *text = '\0';
    for (int i = 0; i < fsdp__train_keys.count && !*text; i++) {
        const fsdp__key *key = &fsdp__train_keys.keys[i];
        FSDP__FREED char *a = value_of(there, key);
        FSDP__FREED char *b = value_of(here, key);

        FSDP__TRY_NEW(a);
        FSDP__TRY_NEW(b);
        if (strcmp(a, b) != 0 && is_listed(key, keys))
            snprintf(text, text_bytes, "%s.%s is %s there, and %s here", key->section, key->name, *a ? a : "not set",
                     *b ? b : "not set");
    }
    return FSDP_OK;
}

fsdp_status fsdp__train_print_lines(const fsdp_train_config *before, const fsdp_train_config *after,
                                    const char *const *also, FILE *out)
{
    const char *section = "";

    for (int i = 0; i < fsdp__train_keys.count; i++) {
        const fsdp__key *key = &fsdp__train_keys.keys[i];
        FSDP__FREED char *was = value_of(before, key);
        FSDP__FREED char *is = value_of(after, key);

        FSDP__TRY_NEW(was && is);
        if (strcmp(was, is) == 0 && !is_listed(key, also))
            continue;
        if (strcmp(section, key->section) != 0)
            fprintf(out, "  %s:\n", key->section);
        section = key->section;
        fprintf(out, "    %s: %s\n", key->name, *is ? is : fsdp__key_is_list(key) ? "[]" : "null");
    }
    return FSDP_OK;
}
