/* key_text.c - writes the value of a key as text: as YAML that reads back as the same value. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/keys.h"
#include "config/size.h"

/* Returns whether YAML reads the character only as an escape, or as the end of a line. A text without quotes has none
 * of these. */
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

/* Prints a text, in quotes where YAML could read something else. */
static void print_text(const char *text, FILE *out)
{
    uint32_t c = 0;
    bool plain =
        text[0] && !strpbrk(text, " :#,[]{}&*!|>'\"%@`\\") && !fsdp__key_is_nothing(text) && !strchr("-?", text[0]);

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

/* Prints the shortest text that reads back as the same number; whole numbers as people write them ("300", not
 * "3e+02"). */
static void print_number(double value, FILE *out)
{
    char text[40];

    if (fabs(value) < 1e6 && value == trunc(value)) {
        fprintf(out, "%.0f", value);
        return;
    }
    for (int digits = 1; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    fputs(text, out);
}

/* Prints a choice. An integer may have no words. */
static void print_choice(const fsdp__key *key, int64_t value, FILE *out)
{
    const fsdp__choice *c = key->choices;

    while (c && c->text && c->value != value)
        c++;
    if (c && c->text)
        fputs(c->text, out);
    else
        fprintf(out, "%lld", (long long)value);
}

static void print_map(const void *map, const fsdp__key_table *table, FILE *out)
{
    const char *before = "{";

    for (int k = 0; k < table->count; k++) {
        if (!fsdp__key_is_set(map, &table->keys[k]))
            continue;
        fprintf(out, "%s%s: ", before, table->keys[k].name);
        fsdp__key_print(map, &table->keys[k], out);
        before = ", ";
    }
    fputc('}', out);
}

/* Prints "[{pattern: a, weight_decay: 0}, {pattern: b}]". Every map has a key that must be given. */
static void print_maps(const void *config, const fsdp__key *key, FILE *out)
{
    int64_t count;
    void *maps = fsdp__key_maps(config, key, &count);

    fputc('[', out);
    for (int64_t i = 0; i < count; i++) {
        fputs(i ? ", " : "", out);
        print_map(fsdp__key_map(key, maps, i), &key->items->table, out);
    }
    fputc(']', out);
}

void fsdp__key_print(const void *config, const fsdp__key *key, FILE *out)
{
    const void *field = (const char *)config + key->offset;
    char size[FSDP__SIZE_TEXT];

    switch (key->type) {
    case FSDP__KEY_INTEGER:
        print_choice(key, *(const int64_t *)field, out);
        break;
    case FSDP__KEY_NUMBER:
        print_number(*(const double *)field, out);
        break;
    case FSDP__KEY_SIZE:
        fputs(fsdp__size_write(*(const int64_t *)field, size), out);
        break;
    case FSDP__KEY_BOOL:
        fputs(*(const bool *)field ? "true" : "false", out);
        break;
    case FSDP__KEY_CHOICE:
        print_choice(key, *(const int *)field, out);
        break;
    case FSDP__KEY_TEXT:
        print_text(*(char *const *)field, out);
        break;
    case FSDP__KEY_PATHS:
    case FSDP__KEY_PATTERNS:
    case FSDP__KEY_NAMES:
        print_paths(*(char **const *)field, *(const int64_t *)((char **const *)field + 1), out);
        break;
    case FSDP__KEY_MAPS:
        print_maps(config, key, out);
        break;
    }
}
