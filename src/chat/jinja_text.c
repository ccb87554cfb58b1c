/* jinja_text.c - writes values as Python does. */
#include "chat/jinja_text.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "tokenizer/unicode.h"

enum {
    MAX_TEXT = 64 << 20,
    REAL_TEXT = 40 /* bytes of a float as text */
};

/* ---- a text that grows ---- */

fsdp_status fsdp__builder_add(fsdp__render *r, fsdp__builder *builder, const char *text, size_t bytes)
{
    if (bytes > MAX_TEXT || builder->bytes + (int64_t)bytes > MAX_TEXT)
        return FSDP__RENDER_FAIL(r, "the template writes over %d MiB", MAX_TEXT >> 20);
    FSDP_TRY(fsdp__render_work(r, bytes / 64));
    FSDP_TRY(fsdp__grow(&builder->text, builder->bytes + (int64_t)bytes, &builder->capacity, 1));
    if (bytes)
        memcpy(builder->text + builder->bytes, text, bytes);
    builder->bytes += (int64_t)bytes;
    builder->text[builder->bytes] = 0;
    return FSDP_OK;
}

static fsdp_status add(fsdp__render *r, fsdp__builder *builder, const char *text)
{
    return fsdp__builder_add(r, builder, text, strlen(text));
}

void fsdp__builder_release(fsdp__builder *builder)
{
    fsdp__free(builder->text);
    *builder = (fsdp__builder){0};
}

fsdp_status fsdp__builder_value(fsdp__render *r, const fsdp__builder *builder, fsdp__jinja_value *out)
{
    return fsdp__jinja_value_copy_text(r, builder->text, (size_t)builder->bytes, out);
}

/* ---- numbers ---- */

/* Lays out digits as repr() does: with an exponent below 1e-4 and from 1e16 on. */
static void lay_out(bool minus, const char *digits, int count, int exponent, char *out)
{
    size_t n = 0;

    if (minus)
        out[n++] = '-';
    if (exponent < -4 || exponent >= 16) {
        n += (size_t)snprintf(out + n, REAL_TEXT - n, "%c%s%.*se%c%02d", digits[0], count > 1 ? "." : "", count - 1,
                              digits + 1, exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        snprintf(out + n, REAL_TEXT - n, "0.%.*s%.*s", -exponent - 1, "0000", count, digits);
    } else {
        for (int i = 0; i <= exponent || i < count; i++) {
            if (i == exponent + 1)
                out[n++] = '.';
            out[n++] = i < count ? digits[i] : '0';
        }
        snprintf(out + n, REAL_TEXT - n, "%s", count <= exponent + 1 ? ".0" : "");
    }
}

/* Writes what Python's repr() gives of a float. */
static void put_real(double real, char out[REAL_TEXT])
{
    char text[REAL_TEXT], digits[REAL_TEXT];
    int count = 0;

    if (!isfinite(real)) {
        snprintf(out, REAL_TEXT, "%s", isnan(real) ? "nan" : real < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof text, "%.*e", precision, real);
        if (strtod(text, NULL) == real)
            break;
    }
    for (const char *p = text; *p != 'e'; p++)
        if (*p >= '0' && *p <= '9')
            digits[count++] = *p;
    while (count > 1 && digits[count - 1] == '0')
        count--;
    lay_out(signbit(real), digits, count, atoi(strchr(text, 'e') + 1), out);
}

static fsdp_status print_number(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out)
{
    char text[REAL_TEXT];

    if (value->kind == FSDP__JINJA_VALUE_BIG)
        return fsdp__builder_add(r, out, value->string.at, value->string.bytes);
    if (value->kind == FSDP__JINJA_VALUE_REAL)
        put_real(value->real, text);
    else
        snprintf(text, sizeof text, "%lld", (long long)value->integer);
    return add(r, out, text);
}

/* ---- repr ---- */

static bool is_printable(uint32_t character)
{
    unsigned category = fsdp__category_of(character);

    return character == ' ' || !(category <= FSDP__CS || category >= FSDP__ZL);
}

static fsdp_status repr_character(fsdp__render *r, const char *at, int length, uint32_t character, char quote,
                                  fsdp__builder *out)
{
    char text[16];

    if (character == (uint32_t)quote || character == '\\')
        snprintf(text, sizeof text, "\\%c", (char)character);
    else if (character == '\n' || character == '\r' || character == '\t')
        snprintf(text, sizeof text, "\\%c", character == '\n' ? 'n' : character == '\r' ? 'r' : 't');
    else if (is_printable(character))
        return fsdp__builder_add(r, out, at, (size_t)length);
    else
        snprintf(text, sizeof text,
                 character < 0x100     ? "\\x%02x"
                 : character < 0x10000 ? "\\u%04x"
                                       : "\\U%08x",
                 (unsigned)character);
    return add(r, out, text);
}

static fsdp_status repr_string(fsdp__render *r, fsdp__jinja_string string, fsdp__builder *out)
{
    bool has_single = string.bytes && memchr(string.at, '\'', string.bytes);
    char quote = has_single && !memchr(string.at, '"', string.bytes) ? '"' : '\'';

    FSDP_TRY(fsdp__builder_add(r, out, &quote, 1));
    for (size_t i = 0; i < string.bytes;) {
        uint32_t character = 0;
        int length = fsdp__utf8_next(string.at + i, &character);

        if (length <= 0)
            return FSDP__RENDER_FAIL(r, "a string that is not UTF-8");
        FSDP_TRY(repr_character(r, string.at + i, length, character, quote, out));
        i += (size_t)length;
    }
    return fsdp__builder_add(r, out, &quote, 1);
}

static fsdp_status repr_list(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out)
{
    bool tuple = value->kind == FSDP__JINJA_VALUE_TUPLE;

    FSDP_TRY(add(r, out, tuple ? "(" : "["));
    for (int64_t i = 0; i < value->list->count; i++) {
        if (i > 0)
            FSDP_TRY(add(r, out, ", "));
        FSDP_TRY(fsdp__jinja_value_repr(r, &value->list->items[i], out));
    }
    return add(r, out, !tuple ? "]" : value->list->count == 1 ? ",)" : ")");
}

static fsdp_status repr_map(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out)
{
    FSDP_TRY(add(r, out, value->kind == FSDP__JINJA_VALUE_NAMESPACE ? "<Namespace {" : "{"));
    for (int64_t i = 0; i < value->map->count; i++) {
        if (i > 0)
            FSDP_TRY(add(r, out, ", "));
        FSDP_TRY(fsdp__jinja_value_repr(r, &value->map->entries[i].key, out));
        FSDP_TRY(add(r, out, ": "));
        FSDP_TRY(fsdp__jinja_value_repr(r, &value->map->entries[i].value, out));
    }
    return add(r, out, value->kind == FSDP__JINJA_VALUE_NAMESPACE ? "}>" : "}");
}

static fsdp_status print(fsdp__render *r, const fsdp__jinja_value *value, bool quoted, fsdp__builder *out)
{
    switch (value->kind) {
    case FSDP__JINJA_VALUE_UNDEFINED:
        return quoted ? add(r, out, "Undefined") : FSDP_OK;
    case FSDP__JINJA_VALUE_NONE:
        return add(r, out, "None");
    case FSDP__JINJA_VALUE_BOOL:
        return add(r, out, value->truth ? "True" : "False");
    case FSDP__JINJA_VALUE_INTEGER:
    case FSDP__JINJA_VALUE_BIG:
    case FSDP__JINJA_VALUE_REAL:
        return print_number(r, value, out);
    case FSDP__JINJA_VALUE_STRING:
        return quoted ? repr_string(r, value->string, out)
                      : fsdp__builder_add(r, out, value->string.at, value->string.bytes);
    case FSDP__JINJA_VALUE_LIST:
    case FSDP__JINJA_VALUE_TUPLE:
        return repr_list(r, value, out);
    case FSDP__JINJA_VALUE_MAP:
    case FSDP__JINJA_VALUE_NAMESPACE:
        return repr_map(r, value, out);
    default:
        return FSDP__RENDER_FAIL(r, "a %s is printed; call it", fsdp__jinja_value_type(value));
    }
}

fsdp_status fsdp__jinja_value_print(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out)
{
    return print(r, value, false, out);
}

fsdp_status fsdp__jinja_value_repr(fsdp__render *r, const fsdp__jinja_value *value, fsdp__builder *out)
{
    FSDP_TRY(fsdp__render_deeper(r));
    FSDP_TRY(print(r, value, true, out));
    r->depth--;
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_str(fsdp__render *r, const fsdp__jinja_value *value, fsdp__jinja_string *out)
{
    FSDP__BUILDER text = {0};
    fsdp__jinja_value made;

    *out = value->string;
    if (value->kind == FSDP__JINJA_VALUE_STRING || value->kind == FSDP__JINJA_VALUE_BIG)
        return FSDP_OK;
    FSDP_TRY(fsdp__jinja_value_print(r, value, &text));
    FSDP_TRY(fsdp__builder_value(r, &text, &made));
    *out = made.string;
    return FSDP_OK;
}

/* ---- JSON ---- */

static fsdp_status json_character(fsdp__render *r, const char *at, int length, uint32_t character, bool ascii,
                                  fsdp__builder *out)
{
    static const char named[] = "\"\\\n\r\t\b\f", names[] = "\"\\nrtbf";
    const char *found = character && character < 0x80 ? strchr(named, (int)character) : NULL;
    char text[16];

    if (found)
        snprintf(text, sizeof text, "\\%c", names[found - named]);
    else if (character < 0x20 || (ascii && character > 0x7e && character < 0x10000))
        snprintf(text, sizeof text, character == 0x7f ? "\x7f" : "\\u%04x", (unsigned)character);
    else if (ascii && character >= 0x10000)
        snprintf(text, sizeof text, "\\u%04x\\u%04x", (unsigned)(0xd800 + ((character - 0x10000) >> 10)),
                 (unsigned)(0xdc00 + ((character - 0x10000) & 0x3ff)));
    else
        return fsdp__builder_add(r, out, at, (size_t)length);
    return add(r, out, text);
}

static fsdp_status json_string_of(fsdp__render *r, fsdp__jinja_string string, bool ascii, fsdp__builder *out)
{
    FSDP_TRY(add(r, out, "\""));
    for (size_t i = 0; i < string.bytes;) {
        uint32_t character = 0;
        int length = fsdp__utf8_next(string.at + i, &character);

        if (length <= 0)
            return FSDP__RENDER_FAIL(r, "a string that is not UTF-8");
        FSDP_TRY(json_character(r, string.at + i, length, character, ascii, out));
        i += (size_t)length;
    }
    return add(r, out, "\"");
}

/* Begins the line of an item: the first one of its list, or a later one, or the bracket behind the last. */
static fsdp_status json_line(fsdp__render *r, const fsdp__json_style *style, int level, fsdp__builder *out)
{
    if (!style->indent)
        return FSDP_OK;
    FSDP_TRY(add(r, out, "\n"));
    for (int i = 0; i < level; i++)
        FSDP_TRY(add(r, out, style->indent));
    return FSDP_OK;
}

static fsdp_status json_value(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__json_style *style, int level,
                              fsdp__builder *out);

static fsdp_status json_separator(fsdp__render *r, const fsdp__json_style *style, int64_t i, fsdp__builder *out)
{
    return i > 0 ? fsdp__builder_add(r, out, style->item.at, style->item.bytes) : FSDP_OK;
}

static fsdp_status json_list(fsdp__render *r, const fsdp__jinja_list *list, const fsdp__json_style *style, int level,
                             fsdp__builder *out)
{
    FSDP_TRY(add(r, out, "["));
    for (int64_t i = 0; i < list->count; i++) {
        FSDP_TRY(json_separator(r, style, i, out));
        FSDP_TRY(json_line(r, style, level + 1, out));
        FSDP_TRY(json_value(r, &list->items[i], style, level + 1, out));
    }
    if (list->count > 0)
        FSDP_TRY(json_line(r, style, level, out));
    return add(r, out, "]");
}

static fsdp_status json_key(fsdp__render *r, const fsdp__jinja_value *key, const fsdp__json_style *style,
                            fsdp__builder *out)
{
    if (key->kind == FSDP__JINJA_VALUE_STRING)
        return json_string_of(r, key->string, style->ascii, out);
    if (!fsdp__jinja_value_is_number(key) && key->kind != FSDP__JINJA_VALUE_BIG && key->kind != FSDP__JINJA_VALUE_NONE)
        return FSDP__RENDER_FAIL(r, "keys must be str, int, float, bool or None, not %s", fsdp__jinja_value_type(key));
    FSDP_TRY(add(r, out, "\""));
    FSDP_TRY(json_value(r, key, style, 0, out));
    return add(r, out, "\"");
}

static int by_key(const void *a, const void *b)
{
    const fsdp__jinja_string x = ((const fsdp__jinja_entry *)a)->key.string,
                             y = ((const fsdp__jinja_entry *)b)->key.string;
    int order = memcmp(x.at, y.at, FSDP__MIN(x.bytes, y.bytes));

    return order ? order : (x.bytes > y.bytes) - (x.bytes < y.bytes);
}

static fsdp_status sorted_entries(fsdp__render *r, const fsdp__jinja_map *map, fsdp__jinja_map *out)
{
    fsdp__jinja_value copy;

    FSDP_TRY(fsdp__jinja_value_new_map(r, FSDP__JINJA_VALUE_MAP, &copy));
    for (int64_t i = 0; i < map->count; i++) {
        if (map->entries[i].key.kind != FSDP__JINJA_VALUE_STRING)
            return FSDP__RENDER_FAIL(r, "sort_keys with keys that are not strings");
        FSDP_TRY(fsdp__jinja_map_set(r, copy.map, map->entries[i].key, map->entries[i].value));
    }
    if (map->count)
        qsort(copy.map->entries, (size_t)copy.map->count, sizeof *copy.map->entries, by_key);
    *out = *copy.map;
    return FSDP_OK;
}

static fsdp_status json_map(fsdp__render *r, const fsdp__jinja_map *map, const fsdp__json_style *style, int level,
                            fsdp__builder *out)
{
    fsdp__jinja_map sorted = *map;

    if (style->sorted)
        FSDP_TRY(sorted_entries(r, map, &sorted));
    FSDP_TRY(add(r, out, "{"));
    for (int64_t i = 0; i < sorted.count; i++) {
        FSDP_TRY(json_separator(r, style, i, out));
        FSDP_TRY(json_line(r, style, level + 1, out));
        FSDP_TRY(json_key(r, &sorted.entries[i].key, style, out));
        FSDP_TRY(fsdp__builder_add(r, out, style->key.at, style->key.bytes));
        FSDP_TRY(json_value(r, &sorted.entries[i].value, style, level + 1, out));
    }
    if (sorted.count > 0)
        FSDP_TRY(json_line(r, style, level, out));
    return add(r, out, "}");
}

static fsdp_status json_value(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__json_style *style, int level,
                              fsdp__builder *out)
{
    fsdp_status status = FSDP_OK;

    FSDP_TRY(fsdp__render_deeper(r));
    if (value->kind == FSDP__JINJA_VALUE_STRING)
        status = json_string_of(r, value->string, style->ascii, out);
    else if (fsdp__jinja_value_is_list(value))
        status = json_list(r, value->list, style, level, out);
    else if (value->kind == FSDP__JINJA_VALUE_MAP)
        status = json_map(r, value->map, style, level, out);
    else if (value->kind == FSDP__JINJA_VALUE_NONE)
        status = add(r, out, "null");
    else if (value->kind == FSDP__JINJA_VALUE_BOOL)
        status = add(r, out, value->truth ? "true" : "false");
    else if (value->kind == FSDP__JINJA_VALUE_REAL && !isfinite(value->real))
        status = add(r, out, isnan(value->real) ? "NaN" : value->real < 0 ? "-Infinity" : "Infinity");
    else if (fsdp__jinja_value_is_number(value) || value->kind == FSDP__JINJA_VALUE_BIG)
        status = print_number(r, value, out);
    else
        status = FSDP__RENDER_FAIL(r, "Object of type %s is not JSON serializable", fsdp__jinja_value_type(value));
    r->depth--;
    return status;
}

fsdp_status fsdp__jinja_value_json(fsdp__render *r, const fsdp__jinja_value *value, const fsdp__json_style *style,
                                   fsdp__builder *out)
{
    return json_value(r, value, style, 0, out);
}
