/* needs.c - which keys have an effect only beside others, as the table of keys says. */
#include <fnmatch.h>
#include <stdio.h>
#include <string.h>

#include "config/config.h"

enum {
    VALUE_TEXT = 128
};

/* ---- values as text ---- */

/* Writes an integer, or its word if it has one. */
static void word_of(const fsdp__key *key, int64_t value, char text[VALUE_TEXT])
{
    const fsdp__choice *c = key->choices;

    while (c && c->text && c->value != value)
        c++;
    if (c && c->text)
        snprintf(text, VALUE_TEXT, "%s", c->text);
    else
        snprintf(text, VALUE_TEXT, "%lld", (long long)value);
}

/* Writes the value of a key as conditions name it: "" if it is not set, and of a list only that it is. */
static void value_of(const void *config, const fsdp__key *key, char text[VALUE_TEXT])
{
    const void *field = (const char *)config + key->offset;

    *text = '\0';
    if (!fsdp__key_is_set(config, key))
        return;
    switch (key->type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_SIZE:
        word_of(key, *(const int64_t *)field, text);
        break;
    case FSDP__KEY_NUMBER:
        snprintf(text, VALUE_TEXT, "%.17g", *(const double *)field);
        break;
    case FSDP__KEY_BOOL:
        word_of(key, *(const bool *)field, text);
        break;
    case FSDP__KEY_CHOICE:
        word_of(key, *(const int *)field, text);
        break;
    case FSDP__KEY_TEXT:
        snprintf(text, VALUE_TEXT, "%s", *(char *const *)field);
        break;
    default:
        snprintf(text, VALUE_TEXT, "a list");
    }
}

/* Writes what the key's value would be if `initial` were set. */
static void value_from(const fsdp__key *key, const char *initial, char text[VALUE_TEXT])
{
    union {
        int64_t integer;
        double number;
        void *list[2];
    } field = {.list = {NULL, NULL}};
    fsdp__key alone = *key;

    alone.offset = 0;
    (void)fsdp__key_set(&field, &alone, initial ? initial : "");
    value_of(&field, &alone, text);
    fsdp__key_release(&field, &alone);
}

/* Returns whether the key has the value that `initial` stands for. */
static bool has_value(const void *config, const fsdp__key *key, const char *initial)
{
    char value[VALUE_TEXT], other[VALUE_TEXT];

    value_of(config, key, value);
    value_from(key, initial, other);
    return strcmp(value, other) == 0;
}

/* ---- what is needed ---- */

/* Cuts the next part out of a list; false: none is left. */
static bool next_part(const char **list, const char *end, char part[VALUE_TEXT])
{
    size_t length = *list ? strcspn(*list, end) : 0;

    if (!*list || !**list)
        return false;
    snprintf(part, VALUE_TEXT, "%.*s", (int)length, *list);
    *list += length;
    *list += **list != '\0';
    return true;
}

static bool is_listed(const char *name, const char *list, const char *end)
{
    char part[VALUE_TEXT];

    while (next_part(&list, end, part))
        if (fnmatch(part, name, 0) == 0)
            return true;
    return false;
}

/* Returns whether the config meets one alternative, which loses its values here. */
static bool meets(const fsdp__key_table *table, const void *config, char *alternative)
{
    char *values = strchr(alternative, '='), value[VALUE_TEXT];
    const fsdp__key *key;

    if (values)
        *values++ = '\0';
    key = fsdp__key_named(table, alternative + (*alternative == '~'));
    if (!key || !values)
        return key && !has_value(config, key, key->initial);
    value_of(config, key, value);
    return *values == '!' ? !is_listed(value, values + 1, ",") : is_listed(value, values, ",");
}

static bool is_met(const fsdp__key_table *table, const void *config, const char *needs)
{
    char alternative[VALUE_TEXT];

    while (next_part(&needs, "|", alternative))
        if (meets(table, config, alternative))
            return true;
    return false;
}

const fsdp__key_need *fsdp__key_lacks(const fsdp__key_table *table, const void *config, const fsdp__key *key)
{
    if (!table->needs || has_value(config, key, key->initial))
        return NULL;
    for (const fsdp__key_need *n = table->needs; n->section; n++)
        if (strcmp(n->section, key->section) == 0 && is_listed(key->name, n->names, " ") &&
            !(n->usual && has_value(config, key, n->usual)) && !is_met(table, config, n->needs))
            return n;
    return NULL;
}

/* Appends "a, b or c". */
static size_t list_values(const char *values, char *text, size_t text_bytes)
{
    size_t used = 0;
    char value[VALUE_TEXT];

    for (int i = 0; used < text_bytes && next_part(&values, ",", value); i++)
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%.*s",
                                 i == 0    ? " "
                                 : *values ? ", "
                                           : " or ",
                                 (int)strcspn(value, "*"), value);
    return used;
}

void fsdp__key_needed(const fsdp__key_need *need, char *text, size_t text_bytes)
{
    const char *needs = need->needs;
    char part[VALUE_TEXT];
    size_t used = 0;

    *text = '\0';
    while (used < text_bytes && next_part(&needs, "|", part)) {
        char *values = strchr(part, '=');
        bool not = values && values[1] == '!';

        if (*part == '~')
            continue;
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%.*s%s", used ? " or " : "",
                                 (int)strcspn(part, "="), part, not ? " other than" : "");
        if (values && used < text_bytes)
            used += list_values(values + 1 + not, text + used, text_bytes - used);
    }
}

/* ---- a whole config ---- */

fsdp_status fsdp__config_check_needs(const fsdp__key_table *table, const void *config)
{
    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];
        const fsdp__key_need *lacks = fsdp__key_lacks(table, config, key);
        char needed[256];

        if (!lacks || lacks->idle)
            continue;
        fsdp__key_needed(lacks, needed, sizeof needed);
        return FSDP_FAIL(FSDP_INVALID, "%s.%s needs %s: set %s, or leave the key out", key->section, key->name, needed,
                         strstr(needed, " or ") ? "one of them" : "that");
    }
    return FSDP_OK;
}

void fsdp__config_idle(const fsdp__key_table *table, const void *config, char *text, size_t text_bytes)
{
    size_t used = 0;

    *text = '\0';
    for (int i = 0; i < table->count && used < text_bytes; i++) {
        const fsdp__key *key = &table->keys[i];
        const fsdp__key_need *lacks = fsdp__key_lacks(table, config, key);
        char needed[256];

        if (!lacks || !lacks->idle)
            continue;
        fsdp__key_needed(lacks, needed, sizeof needed);
        used += (size_t)snprintf(text + used, text_bytes - used, "%s%s.%s (needs %s)", used ? ", " : "", key->section,
                                 key->name, needed);
    }
}

void fsdp__config_drop_refused(const fsdp__key_table *table, void *config, const char *section)
{
    for (int i = 0; i < table->count; i++) {
        const fsdp__key *key = &table->keys[i];
        const fsdp__key_need *lacks = fsdp__key_lacks(table, config, key);

        if (lacks && !lacks->idle && (!section || strcmp(section, key->section) == 0))
            (void)fsdp__key_set(config, key, key->initial ? key->initial : "");
    }
}
