/* key_value.c - reads the value of a key from text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "config/keys.h"
#include "config/size.h"

static bool in_range(const fsdp__key *key, double value)
{
    if (key->range & FSDP__OR_MINUS && value == -1)
        return true;
    if (key->range & FSDP__ABOVE ? value <= key->least : value < key->least)
        return false;
    return key->range & FSDP__BELOW ? value < key->most : value <= key->most;
}

/* Compares integers as such: a double has no place for each of the largest. */
static bool has_integer(const fsdp__key *key, int64_t value)
{
    if (key->range & FSDP__OR_MINUS && value == -1)
        return true;
    return value >= (int64_t)key->least && value <= (int64_t)key->most;
}

static bool set_integer(const fsdp__key *key, const char *text, int64_t *field)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || strchr(" \t\n\v\f\r", text[0]) || !has_integer(key, value))
        return false;
    *field = value;
    return true;
}

static bool set_number(const fsdp__key *key, const char *text, double *field)
{
    char *end;
    double value;

    if (text[strspn(text, "+-.0123456789eE")])
        return false; /* neither hexadecimal, "nan" nor "infinity" */
    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || !in_range(key, value))
        return false;
    *field = value;
    return true;
}

static bool set_size(const fsdp__key *key, const char *text, int64_t *field)
{
    int64_t bytes;

    if (!fsdp__size_parse(text, &bytes) || !has_integer(key, bytes))
        return false;
    *field = bytes;
    return true;
}

static bool find_choice(const fsdp__key *key, const char *text, int *value)
{
    for (const fsdp__choice *c = key->choices; c->text; c++)
        if (strcmp(c->text, text) == 0) {
            *value = c->value;
            return true;
        }
    return false;
}

static bool find_choice_or_integer(const fsdp__key *key, const char *text, int *value)
{
    int64_t integer;

    if (find_choice(key, text, value))
        return true;
    if (!(key->range & FSDP__OR_INTEGER) || !set_integer(key, text, &integer))
        return false;
    *value = (int)integer;
    return true;
}

static void unset(void *field, fsdp__key_type type)
{
    switch (type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_SIZE:
        *(int64_t *)field = 0;
        break;
    case FSDP__KEY_NUMBER:
        *(double *)field = NAN;
        break;
    case FSDP__KEY_CHOICE:
        *(int *)field = -1;
        break;
    case FSDP__KEY_BOOL:
        *(bool *)field = false;
        break;
    case FSDP__KEY_TEXT:
    case FSDP__KEY_PATHS:
    case FSDP__KEY_PATTERNS:
    case FSDP__KEY_NAMES:
    case FSDP__KEY_MAPS:
        break; /* fsdp__key_release does it */
    }
}

/* Refuses a text that could not be printed as YAML and read again, because ranks get their config in this way. */
static fsdp_status check_text(const fsdp__key *key, const char *text)
{
    uint32_t character;
    int bytes;

    for (const char *at = text; *at; at += bytes) {
        bytes = fsdp__utf8_next(at, &character);
        if (!bytes)
            return FSDP_FAIL(FSDP_INVALID, "%s.%s is not text in UTF-8: byte %td is 0x%02x", key->section, key->name,
                             at - text, (unsigned)(unsigned char)*at);
    }
    return FSDP_OK;
}

static fsdp_status set_text(const fsdp__key *key, char **field, const char *text)
{
    char *copy, name[80];

    FSDP_TRY(check_text(key, text));
    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    if (key->check)
        FSDP_TRY(key->check(name, text));
    FSDP__TRY_NEW(copy = fsdp__strdup(text));
    fsdp__free(*field);
    *field = copy;
    return FSDP_OK;
}

/* Takes the next entry off a list, without quotes or the spaces around it. */
static char *next_entry(char **rest)
{
    char *entry = *rest ? *rest + strspn(*rest, " \t") : NULL;
    char *quote = entry && *entry && strchr("'\"", *entry) ? strchr(entry + 1, *entry) : NULL;
    char *after = quote ? quote + 1 + strspn(quote + 1, " \t") : NULL;
    size_t length;

    if (after && (!*after || *after == ',')) { /* quoted: it may hold commas */
        *quote = '\0';
        *rest = *after ? after + 1 : NULL;
        return entry + 1;
    }
    strsep(rest, ",");
    length = entry ? strlen(entry) : 0;
    while (length && strchr(" \t", entry[length - 1]))
        entry[--length] = '\0';
    return entry;
}

/* Sets a list from "[a, 'b c']", YAML's flow style, or from one path. The first `kept` of the existing entries stay in
 * front. */
static fsdp_status set_path_list(void *config, const fsdp__key *key, const char *text, int64_t kept)
{
    char **there = *(char ***)((char *)config + key->offset);
    bool list = text[0] == '[' && text[strlen(text) - 1] == ']';
    FSDP__FREED char *copy = fsdp__strdup(list ? text + 1 : text);
    FSDP__FREED const char **paths = NULL;
    char *rest = copy, *entry = copy;
    int64_t count = 0, capacity = 0;

    FSDP__TRY_NEW(copy);
    if (list) {
        copy[strlen(copy) - 1] = '\0';
        entry = next_entry(&rest);
    }
    while (count < kept || entry) {
        FSDP_TRY(fsdp__grow(&paths, count, &capacity, sizeof *paths));
        if (count < kept) {
            paths[count] = there[count];
        } else {
            paths[count] = entry;
            entry = list ? next_entry(&rest) : NULL;
        }
        count++;
    }
    return fsdp__key_set_paths(config, key, paths, count);
}

fsdp_status fsdp__key_add_paths(void *config, const fsdp__key *key, const char *text)
{
    int64_t count = *(int64_t *)((char ***)((char *)config + key->offset) + 1);

    return fsdp__key_is_nothing(text) ? FSDP_OK : set_path_list(config, key, text, count);
}

fsdp_status fsdp__key_set(void *config, const fsdp__key *key, const char *text)
{
    void *field = (char *)config + key->offset;
    char allowed[256];
    bool good = false;
    int value;

    if (!key->initial && !fsdp__key_is_list(key) && fsdp__key_is_nothing(text)) {
        fsdp__key_release(config, key);
        return FSDP_OK;
    }
    switch (key->type) {
    case FSDP__KEY_INTEGER:
        good = key->choices && find_choice(key, text, &value);
        if (good)
            *(int64_t *)field = value;
        else
            good = set_integer(key, text, field);
        break;
    case FSDP__KEY_NUMBER:
        good = set_number(key, text, field);
        break;
    case FSDP__KEY_SIZE:
        good = set_size(key, text, field);
        break;
    case FSDP__KEY_BOOL:
        good = find_choice(key, text, &value);
        if (good)
            *(bool *)field = value != 0;
        break;
    case FSDP__KEY_CHOICE:
        good = find_choice_or_integer(key, text, &value);
        if (good)
            *(int *)field = value;
        break;
    case FSDP__KEY_TEXT:
        return set_text(key, field, text);
    case FSDP__KEY_PATHS:
    case FSDP__KEY_PATTERNS:
    case FSDP__KEY_NAMES:
        return fsdp__key_is_nothing(text) ? fsdp__key_set_paths(config, key, NULL, 0)
                                          : set_path_list(config, key, text, 0);
    case FSDP__KEY_MAPS:
        break; /* YAML alone has them */
    }
    if (good)
        return FSDP_OK;
    fsdp__key_allowed(key, allowed, sizeof allowed);
    return FSDP_FAIL(FSDP_INVALID, "%s.%s is '%.80s%s': expected %s", key->section, key->name, text,
                     strlen(text) > 80 ? "..." : "", allowed);
}

fsdp_status fsdp__key_set_paths(void *config, const fsdp__key *key, const char *const *paths, int64_t count)
{
    char ***list = (char ***)((char *)config + key->offset);
    int64_t *length = (int64_t *)(list + 1);
    char **copy = NULL;
    int64_t copied = 0;
    bool complete;

    for (int64_t i = 0; i < count; i++) {
        if (!paths[i][0])
            return FSDP_FAIL(FSDP_INVALID, "%s.%s has an empty entry: expected a %s or a list of %ss", key->section,
                             key->name, fsdp__key_entry(key), fsdp__key_entry(key));
        FSDP_TRY(check_text(key, paths[i]));
    }
    if (count)
        FSDP__TRY_NEW(copy = fsdp__calloc((size_t)count, sizeof *copy));
    while (copied < count) {
        copy[copied] = fsdp__strdup(paths[copied]);
        if (!copy[copied])
            break;
        copied++;
    }
    complete = copied == count;
    if (complete) { /* commit: what is freed below is then the old list */
        char **old = *list;
        int64_t old_count = *length;

        *list = copy;
        *length = count;
        copy = old;
        copied = old_count;
    }
    for (int64_t i = 0; i < copied; i++)
        fsdp__free(copy[i]);
    fsdp__free(copy);
    return complete ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- maps ---- */

bool fsdp__key_is_set(const void *config, const fsdp__key *key)
{
    const void *field = (const char *)config + key->offset;

    switch (key->type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_SIZE:
        return key->initial || *(const int64_t *)field != 0;
    case FSDP__KEY_NUMBER:
        return !isnan(*(const double *)field);
    case FSDP__KEY_BOOL:
        return true;
    case FSDP__KEY_CHOICE:
        return key->initial || *(const int *)field != -1;
    case FSDP__KEY_TEXT:
        return *(char *const *)field != NULL;
    case FSDP__KEY_PATHS:
    case FSDP__KEY_PATTERNS:
    case FSDP__KEY_NAMES:
    case FSDP__KEY_MAPS:
        return *(const int64_t *)((char **const *)field + 1) != 0;
    }
    return false;
}

void *fsdp__key_maps(const void *config, const fsdp__key *key, int64_t *count)
{
    void *const *field = (void *const *)((const char *)config + key->offset);

    *count = *(const int64_t *)(field + 1);
    return *field;
}

void *fsdp__key_map(const fsdp__key *key, void *maps, int64_t index)
{
    return (char *)maps + (size_t)index * key->items->bytes;
}

void fsdp__key_free_maps(const fsdp__key *key, void *maps, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < key->items->table.count; k++)
            fsdp__key_release(fsdp__key_map(key, maps, i), &key->items->table.keys[k]);
    fsdp__free(maps);
}

void fsdp__key_take_maps(void *config, const fsdp__key *key, void *maps, int64_t count)
{
    void **field = (void **)((char *)config + key->offset);
    int64_t old_count;
    void *old = fsdp__key_maps(config, key, &old_count);

    *field = maps;
    *(int64_t *)(field + 1) = count;
    fsdp__key_free_maps(key, old, old_count);
}

void fsdp__key_release(void *config, const fsdp__key *key)
{
    void *field = (char *)config + key->offset;

    if (key->type == FSDP__KEY_TEXT) {
        fsdp__free(*(char **)field);
        *(char **)field = NULL;
    } else if (fsdp__key_is_list(key)) {
        (void)fsdp__key_set_paths(config, key, NULL, 0);
    } else if (key->type == FSDP__KEY_MAPS) {
        fsdp__key_take_maps(config, key, NULL, 0);
    } else {
        unset(field, key->type);
    }
}

/* ---- values that were not set by text ---- */

static bool is_choice(const fsdp__key *key, int64_t value)
{
    for (const fsdp__choice *c = key->choices; c && c->text; c++)
        if (c->value == value)
            return true;
    return false;
}

/* Fails with what a number is and what is allowed. */
static fsdp_status refuse_number(const fsdp__key *key, const char *value)
{
    char allowed[256];

    fsdp__key_allowed(key, allowed, sizeof allowed);
    return FSDP_FAIL(FSDP_INVALID, "%s.%s is %s: expected %s", key->section, key->name, value, allowed);
}

static fsdp_status check_number(const fsdp__key *key, double value)
{
    char text[40];

    if (isfinite(value) && in_range(key, value))
        return FSDP_OK;
    snprintf(text, sizeof text, "%.15g", value);
    return refuse_number(key, text);
}

static fsdp_status check_integer(const fsdp__key *key, int64_t value)
{
    bool may_be_any = key->type != FSDP__KEY_CHOICE || key->range & FSDP__OR_INTEGER;
    char text[40];

    if (is_choice(key, value) || (may_be_any && has_integer(key, value)))
        return FSDP_OK;
    snprintf(text, sizeof text, "%lld", (long long)value);
    return refuse_number(key, text);
}

static fsdp_status check_entries(const fsdp__key *key, char *const *entries, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (!entries[i] || !entries[i][0])
            return FSDP_FAIL(FSDP_INVALID, "%s.%s: entry %lld of %lld is %s", key->section, key->name, (long long)i,
                             (long long)count, entries[i] ? "empty" : "NULL");
        FSDP_TRY(check_text(key, entries[i]));
    }
    return FSDP_OK;
}

static fsdp_status check_maps(const fsdp__key *key, void *maps, int64_t count)
{
    const fsdp__key_table *table = &key->items->table;

    for (int64_t i = 0; i < count; i++)
        for (int k = 0; k < table->count; k++) {
            const fsdp__key *item = &table->keys[k];
            const void *map = fsdp__key_map(key, maps, i);

            if (item->range & FSDP__REQUIRED && !fsdp__key_is_set(map, item))
                return FSDP_FAIL(FSDP_INVALID, "%s.%s: entry %lld has no %s", key->section, key->name, (long long)i,
                                 item->name);
            FSDP_TRY(fsdp__key_check(map, item));
        }
    return FSDP_OK;
}

/* Checks a list, whose number of entries follows it. */
static fsdp_status check_list(const fsdp__key *key, void *list, int64_t count)
{
    if (count < 0 || (count > 0 && !list))
        return FSDP_FAIL(FSDP_INVALID, "%s.%s: its number of entries is %lld, but %s", key->section, key->name,
                         (long long)count, count < 0 ? "it must not be negative" : "there is no list");
    return key->type == FSDP__KEY_MAPS ? check_maps(key, list, count) : check_entries(key, list, count);
}

static fsdp_status check_word(const fsdp__key *key, const char *text)
{
    char name[80];

    if (!text)
        return FSDP_OK;
    FSDP_TRY(check_text(key, text));
    snprintf(name, sizeof name, "%s.%s", key->section, key->name);
    return key->check ? key->check(name, text) : FSDP_OK;
}

fsdp_status fsdp__key_check(const void *config, const fsdp__key *key)
{
    const void *field = (const char *)config + key->offset;
    bool unset = !key->initial && !fsdp__key_is_set(config, key);
    int64_t count;
    void *list;

    switch (key->type) {
    case FSDP__KEY_INTEGER:
    case FSDP__KEY_SIZE:
        return unset ? FSDP_OK : check_integer(key, *(const int64_t *)field);
    case FSDP__KEY_NUMBER:
        return unset ? FSDP_OK : check_number(key, *(const double *)field);
    case FSDP__KEY_CHOICE:
        return unset ? FSDP_OK : check_integer(key, *(const int *)field);
    case FSDP__KEY_BOOL:
        return FSDP_OK;
    case FSDP__KEY_TEXT:
        return check_word(key, *(char *const *)field);
    default:
        list = fsdp__key_maps(config, key, &count);
        return check_list(key, list, count);
    }
}
