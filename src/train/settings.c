/* settings.c - writes which keys of a config are not the default, and what the default is. */
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "train/metrics.h"
#include "train/run_config.h"

/* Returns the key's value as YAML, "" where it is not set; NULL when out of memory. free it. */
static char *value_of(const fsdp_train_config *config, const fsdp__key *key)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *out = open_memstream(&text, &bytes);

    if (!out)
        return NULL;
    if (fsdp__key_is_set(config, key))
        fsdp__key_print(config, key, out);
    return fclose(out) == 0 ? text : NULL;
}

static fsdp_status write_key(const fsdp_train_config *config, const fsdp_train_config *defaults, const fsdp__key *key,
                             bool *first, FILE *out)
{
    char *value = value_of(config, key), *usual = value_of(defaults, key);
    bool known = value && usual;

    if (known && strcmp(value, usual) != 0) {
        fprintf(out, "%s\"%s.%s\": ", *first ? "" : ", ", key->section, key->name);
        fsdp__print_json_string(value, out);
        *first = false;
    }
    free(value);
    free(usual);
    return known ? FSDP_OK : FSDP_FAIL(FSDP_NO_MEMORY, "no memory for the value of %s.%s", key->section, key->name);
}

fsdp_status fsdp__train_write_settings(const fsdp_train_config *config, FILE *out)
{
    fsdp_train_config *defaults = NULL;
    fsdp_status status;
    bool first = true;

    FSDP_TRY(fsdp_train_config_create(&defaults));
    fputc('{', out);
    status = FSDP_OK;
    for (int i = 0; i < fsdp__train_keys.count && status == FSDP_OK; i++)
        status = write_key(config, defaults, &fsdp__train_keys.keys[i], &first, out);
    fputc('}', out);
    fsdp_train_config_free(defaults);
    return status;
}

/* Returns the key "section.name"; NULL: there is none. */
static const fsdp__key *key_named(const char *name)
{
    for (int i = 0; i < fsdp__train_keys.count; i++) {
        const fsdp__key *key = &fsdp__train_keys.keys[i];
        size_t length = strlen(key->section);

        if (strncmp(name, key->section, length) == 0 && name[length] == '.' &&
            strcmp(name + length + 1, key->name) == 0)
            return key;
    }
    return NULL;
}

bool fsdp__train_usual_setting(const char *name, char *text, size_t text_bytes)
{
    const fsdp__key *key = key_named(name);
    fsdp_train_config *defaults = NULL;
    bool held = fsdp_hold_error(true);
    char *value = NULL;

    if (key && fsdp_train_config_create(&defaults) == FSDP_OK)
        value = value_of(defaults, key);
    fsdp_release_error(held);
    snprintf(text, text_bytes, "%s", value ? value : "");
    fsdp_train_config_free(defaults);
    free(value);
    return *text != '\0';
}
