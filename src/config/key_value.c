/* key_value.c - how the value of a key is read from text and written as text. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "config/keys.h"
#include "config/utf8.h"

/* ---- text to value ---- */

static bool is_unset(const char *text)
{
    return text[0] == '\0' || strcmp(text, "~") == 0 || strcmp(text, "null") == 0;
}

static bool in_range(const fsdp__key *key, double value)
{
    if (key->range & FSDP__OR_MINUS && value == -1)
        return true;
    if (key->range & FSDP__ABOVE ? value <= key->least : value < key->least)
        return false;
    return key->range & FSDP__BELOW ? value < key->most : value <= key->most;
}

static bool set_integer(const fsdp__key *key, const char *text, int64_t *field)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end || errno || text[0] == ' ' || !in_range(key, (double)value))
        return false;
    *field = value;
    return true;
}

static bool set_number(const fsdp__key *key, const char *text, double *field)
{
    char *end;
    double value;

    if (text[strspn(text, "+-.0123456789eE")])
        return false; /* no hexadecimal, "nan" or "infinity" */
    errno = 0;
    value = strtod(text, &end);
    if (end == text || *end || !isfinite(value) || !in_range(key, value))
        return false;
    *field = value;
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

static void unset(void *field, fsdp__key_type type)
{
    switch (type) {
    case FSDP__KEY_INTEGER:
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
        fsdp__free(*(char **)field);
        *(char **)field = NULL;
        break;
    case FSDP__KEY_PATHS:
        break; /* by fsdp__key_set_paths */
    }
}

/* What could not be printed as YAML and read again is refused: ranks get their config in this way. */
static fsdp_status check_text(const fsdp__key *key, const char *text)
{
    uint32_t character;
    int bytes;

    for (const char *at = text; *at; at += bytes) {
        bytes = fsdp__utf8_next(at, &character);
        if (!bytes)
            return FSDP_FAIL(FSDP_INVALID, "%s.%s is no text in UTF-8: byte %td is 0x%02x", key->section, key->name,
                             at - text, (unsigned)(unsigned char)*at);
    }
    return FSDP_OK;
}

static fsdp_status set_text(const fsdp__key *key, char **field, const char *text)
{
    char *copy;

    FSDP_TRY(check_text(key, text));
    copy = fsdp__strdup(text);
    if (!copy)
        return FSDP_NO_MEMORY;
    fsdp__free(*field);
    *field = copy;
    return FSDP_OK;
}

/* "[a, 'b c']": the flow style of YAML, for the command line. */
static fsdp_status set_path_list(void *config, const fsdp__key *key, const char *text)
{
    fsdp_status status = FSDP_OK;
    char *copy = NULL, *next, *item;
    const char **paths = NULL;
    int64_t count = 0, capacity = 0;

    if (text[0] != '[' || text[strlen(text) - 1] != ']')
        return fsdp__key_set_paths(config, key, &text, 1);
    copy = fsdp__strdup(text + 1);
    if (!copy)
        return FSDP_NO_MEMORY;
    copy[strlen(copy) - 1] = '\0';
    next = copy;
    while ((item = strsep(&next, ",")) != NULL) {
        size_t length;

        item += strspn(item, " \t");
        length = strlen(item);
        while (length && strchr(" \t", item[length - 1]))
            item[--length] = '\0';
        if (length > 1 && strchr("'\"", item[0]) && item[length - 1] == item[0]) {
            item[length - 1] = '\0';
            item++;
        }
        if (fsdp__grow(&paths, count, &capacity, sizeof *paths) != 0) {
            status = FSDP_NO_MEMORY;
            goto out;
        }
        paths[count++] = item;
    }
    FSDP_TRY_GOTO(status, fsdp__key_set_paths(config, key, paths, count), out);
out:
    fsdp__free(paths);
    fsdp__free(copy);
    return status;
}

fsdp_status fsdp__key_set(void *config, const fsdp__key *key, const char *text)
{
    void *field = (char *)config + key->offset;
    char allowed[256];
    bool good = false;
    int value;

    if (!key->initial && key->type != FSDP__KEY_PATHS && is_unset(text)) {
        unset(field, key->type);
        return FSDP_OK;
    }
    switch (key->type) {
    case FSDP__KEY_INTEGER:
        good = set_integer(key, text, field);
        break;
    case FSDP__KEY_NUMBER:
        good = set_number(key, text, field);
        break;
    case FSDP__KEY_BOOL:
        good = find_choice(key, text, &value);
        if (good)
            *(bool *)field = value != 0;
        break;
    case FSDP__KEY_CHOICE:
        good = find_choice(key, text, &value);
        if (good)
            *(int *)field = value;
        break;
    case FSDP__KEY_TEXT:
        return set_text(key, field, text);
    case FSDP__KEY_PATHS:
        return is_unset(text) ? fsdp__key_set_paths(config, key, NULL, 0) : set_path_list(config, key, text);
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
            return FSDP_FAIL(FSDP_INVALID, "%s.%s has an empty entry: expected a file or a list of files", key->section,
                             key->name);
        FSDP_TRY(check_text(key, paths[i]));
    }
    if (count) {
        copy = fsdp__calloc((size_t)count, sizeof *copy);
        if (!copy)
            return FSDP_NO_MEMORY;
    }
    while (copied < count) {
        copy[copied] = fsdp__strdup(paths[copied]);
        if (!copy[copied])
            break;
        copied++;
    }
    complete = copied == count;
    if (complete) { /* commit: what is freed below is the old list */
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

/* ---- value to text ---- */

/* Characters that YAML reads only as escapes, or that end a line: there are none in a text without quotes. */
static bool needs_escape(uint32_t c)
{
    return c < 0x20 || (c >= 0x7F && c < 0xA0) || c == 0x2028 || c == 0x2029 || c == 0xFEFF || c == 0xFFFE ||
           c == 0xFFFF;
}

static void print_escaped(const char *text, FILE *out)
{
    uint32_t c = 0;

    fputc('"', out);
    for (int bytes; *text && (bytes = fsdp__utf8_next(text, &c)) > 0; text += bytes) {
        if (needs_escape(c))
            fprintf(out, "\\u%04x", c);
        else
            fprintf(out, "%s%.*s", c == '"' || c == '\\' ? "\\" : "", bytes, text);
    }
    fputc('"', out);
}

/* Quoted where YAML could read something else. */
static void print_text(const char *text, FILE *out)
{
    uint32_t c = 0;
    bool plain = text[0] && !strpbrk(text, " :#,[]{}&*!|>'\"%@`\\") && !is_unset(text) && !strchr("-?", text[0]);

    for (const char *at = text; *at;) {
        int bytes = fsdp__utf8_next(at, &c);

        if (!bytes || needs_escape(c)) {
            print_escaped(text, out);
            return;
        }
        at += bytes;
    }
    if (plain) {
        fputs(text, out);
        return;
    }
    fputc('\'', out);
    for (; *text; text++) {
        if (*text == '\'')
            fputc('\'', out);
        fputc(*text, out);
    }
    fputc('\'', out);
}

static void print_paths(char *const *paths, int64_t count, FILE *out)
{
    if (count == 1) {
        print_text(paths[0], out);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        fputs(i ? ", " : "[", out);
        print_text(paths[i], out);
    }
    fputc(']', out);
}

/* The shortest text that reads back as the same number. */
static void print_number(double value, FILE *out)
{
    char text[40];

    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
}

bool fsdp__key_is_set(const void *config, const fsdp__key *key)
{
    const void *field = (const char *)config + key->offset;

    switch (key->type) {
    case FSDP__KEY_INTEGER:
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
        return *(const int64_t *)((char **const *)field + 1) != 0;
    }
    return false;
}

void fsdp__key_print(const void *config, const fsdp__key *key, FILE *out)
{
    const void *field = (const char *)config + key->offset;

    switch (key->type) {
    case FSDP__KEY_INTEGER:
        fprintf(out, "%lld", (long long)(*(const int64_t *)field));
        break;
    case FSDP__KEY_NUMBER:
        print_number(*(const double *)field, out);
        break;
    case FSDP__KEY_BOOL:
        fputs(*(const bool *)field ? "true" : "false", out);
        break;
    case FSDP__KEY_CHOICE:
        for (const fsdp__choice *c = key->choices; c->text; c++)
            if (c->value == *(const int *)field)
                fputs(c->text, out);
        break;
    case FSDP__KEY_TEXT:
        print_text(*(char *const *)field, out);
        break;
    case FSDP__KEY_PATHS:
        print_paths(*(char **const *)field, *(const int64_t *)((char **const *)field + 1), out);
        break;
    }
}
