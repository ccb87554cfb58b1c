/* jinja_values.c - makes values, in the memory of a rendering, and compares them. */
#include "chat/jinja_values.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "format/json.h"

/* Returns the failure of an allocation of the pool: the limit's, or that there is no memory. */
#define TRY_POOL(pointer)                                        \
    do {                                                         \
        if (!(pointer))                                          \
            return fsdp_fail_hop(r->failed, __FILE__, __LINE__); \
    } while (0)

/* ---- making ---- */

fsdp__jinja_value fsdp__jinja_value_of_bool(bool truth)
{
    return (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_BOOL, .truth = truth};
}

fsdp__jinja_value fsdp__jinja_value_of_integer(int64_t integer)
{
    return (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_INTEGER, .integer = integer};
}

fsdp__jinja_value fsdp__jinja_value_of_real(double real)
{
    return (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_REAL, .real = real};
}

fsdp__jinja_value fsdp__jinja_value_of_text(const char *text, size_t bytes)
{
    return (fsdp__jinja_value){.kind = FSDP__JINJA_VALUE_STRING, .string = {text, bytes}};
}

fsdp_status fsdp__jinja_value_copy_text(fsdp__render *r, const char *text, size_t bytes, fsdp__jinja_value *out)
{
    char *copy = fsdp__render_alloc(r, bytes + 1);

    TRY_POOL(copy);
    if (bytes)
        memcpy(copy, text, bytes);
    *out = fsdp__jinja_value_of_text(copy, bytes);
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_undefined(fsdp__render *r, fsdp__jinja_value *out, const char *format, ...)
{
    char message[256];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    FSDP_TRY(fsdp__jinja_value_copy_text(r, message, strlen(message) + 1, out));
    out->string.bytes--; /* a NUL follows it */
    out->kind = FSDP__JINJA_VALUE_UNDEFINED;
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_new_list(fsdp__render *r, fsdp__jinja_kind kind, int64_t count, fsdp__jinja_value *out)
{
    fsdp__jinja_list *list = fsdp__render_alloc(r, sizeof *list);

    TRY_POOL(list);
    if (count > FSDP__JINJA_POOL / (int64_t)sizeof *list->items)
        count = FSDP__JINJA_POOL; /* is refused */
    list->items = fsdp__render_alloc(r, (size_t)count * sizeof *list->items);
    TRY_POOL(list->items);
    memset(list->items, 0, (size_t)count * sizeof *list->items);
    list->count = count;
    *out = (fsdp__jinja_value){.kind = kind, .list = list};
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_new_map(fsdp__render *r, fsdp__jinja_kind kind, fsdp__jinja_value *out)
{
    fsdp__jinja_map *map = fsdp__render_alloc(r, sizeof *map);

    TRY_POOL(map);
    *map = (fsdp__jinja_map){0};
    *out = (fsdp__jinja_value){.kind = kind, .map = map};
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_pair(fsdp__render *r, fsdp__jinja_value first, fsdp__jinja_value second,
                                   fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_TUPLE, 2, out));
    out->list->items[0] = first;
    out->list->items[1] = second;
    return FSDP_OK;
}

static fsdp_status add_entry(fsdp__render *r, fsdp__jinja_map *map, fsdp__jinja_value key, fsdp__jinja_value value)
{
    if (map->count == map->capacity) {
        int64_t capacity = map->capacity ? 2 * map->capacity : 4;
        fsdp__jinja_entry *entries = fsdp__render_alloc(r, (size_t)capacity * sizeof *entries);

        TRY_POOL(entries);
        if (map->count)
            memcpy(entries, map->entries, (size_t)map->count * sizeof *entries);
        map->entries = entries;
        map->capacity = capacity;
    }
    map->entries[map->count++] = (fsdp__jinja_entry){key, value};
    return FSDP_OK;
}

fsdp_status fsdp__jinja_map_set(fsdp__render *r, fsdp__jinja_map *map, fsdp__jinja_value key, fsdp__jinja_value value)
{
    if (fsdp__jinja_value_is_list(&key) || key.kind == FSDP__JINJA_VALUE_MAP)
        return FSDP__RENDER_FAIL(r, "unhashable type: '%s'", fsdp__jinja_value_type(&key));
    for (int64_t i = 0; i < map->count; i++) {
        bool equal;

        FSDP_TRY(fsdp__jinja_value_equal(r, &map->entries[i].key, &key, &equal));
        if (equal) {
            map->entries[i].value = value;
            return FSDP_OK;
        }
    }
    return add_entry(r, map, key, value);
}

const fsdp__jinja_value *fsdp__jinja_map_get(const fsdp__jinja_map *map, fsdp__jinja_string key)
{
    for (int64_t i = 0; i < map->count; i++)
        if (map->entries[i].key.kind == FSDP__JINJA_VALUE_STRING &&
            fsdp__jinja_strings_equal(map->entries[i].key.string, key))
            return &map->entries[i].value;
    return NULL;
}

static fsdp_status list_of_json(fsdp__render *r, const json_t *json, fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, (int64_t)json_array_size(json), out));
    for (size_t i = 0; i < json_array_size(json); i++)
        FSDP_TRY(fsdp__jinja_value_of_json(r, json_array_get(json, i), &out->list->items[i]));
    return FSDP_OK;
}

static fsdp_status map_of_json(fsdp__render *r, const json_t *json, fsdp__jinja_value *out)
{
    FSDP_TRY(fsdp__jinja_value_new_map(r, FSDP__JINJA_VALUE_MAP, out));
    for (void *at = json_object_iter((json_t *)json); at; at = json_object_iter_next((json_t *)json, at)) {
        const char *key = json_object_iter_key(at);
        fsdp__jinja_value value;

        FSDP_TRY(fsdp__jinja_value_of_json(r, json_object_iter_value(at), &value));
        FSDP_TRY(add_entry(r, out->map, fsdp__jinja_value_of_text(key, strlen(key)), value));
    }
    return FSDP_OK;
}

/* Makes a number of its text: digits alone are an integer, and 1e400 is infinity, as in Python. */
static fsdp_status number_of_text(fsdp__render *r, const char *text, fsdp__jinja_value *out)
{
    size_t bytes = strlen(text);

    if (strspn(text, "-0123456789") == bytes)
        return fsdp__jinja_integer_of_digits(r, (fsdp__jinja_string){text, bytes}, out);
    *out = fsdp__jinja_value_of_real(strtod(text, NULL));
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_of_json(fsdp__render *r, const json_t *json, fsdp__jinja_value *out)
{
    const char *number = fsdp__json_number_text(json);

    switch (json_typeof(json)) {
    case JSON_OBJECT:
        return number ? number_of_text(r, number, out) : map_of_json(r, json, out);
    case JSON_ARRAY:
        return list_of_json(r, json, out);
    case JSON_STRING:
        *out = fsdp__jinja_value_of_text(json_string_value(json), json_string_length(json));
        break;
    case JSON_INTEGER:
        *out = fsdp__jinja_value_of_integer(json_integer_value(json));
        break;
    case JSON_REAL:
        *out = fsdp__jinja_value_of_real(json_real_value(json));
        break;
    case JSON_NULL:
        *out = FSDP__NOTHING;
        break;
    default:
        *out = fsdp__jinja_value_of_bool(json_is_true(json));
    }
    return FSDP_OK;
}

/* ---- asking ---- */

bool fsdp__jinja_string_is(fsdp__jinja_string string, const char *text)
{
    return string.bytes == strlen(text) && memcmp(string.at, text, string.bytes) == 0;
}

bool fsdp__jinja_strings_equal(fsdp__jinja_string a, fsdp__jinja_string b)
{
    return a.bytes == b.bytes && (a.bytes == 0 || memcmp(a.at, b.at, a.bytes) == 0);
}

bool fsdp__jinja_value_is_list(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_LIST || value->kind == FSDP__JINJA_VALUE_TUPLE;
}

bool fsdp__jinja_value_is_number(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_BOOL || value->kind == FSDP__JINJA_VALUE_INTEGER ||
           value->kind == FSDP__JINJA_VALUE_REAL;
}

int64_t fsdp__jinja_value_integer(const fsdp__jinja_value *value)
{
    if (value->kind == FSDP__JINJA_VALUE_REAL)
        return fabs(value->real) < 9e18 ? (int64_t)value->real : 0;
    return value->kind == FSDP__JINJA_VALUE_BOOL ? value->truth : value->integer;
}

double fsdp__jinja_value_real(const fsdp__jinja_value *value)
{
    return value->kind == FSDP__JINJA_VALUE_REAL ? value->real : (double)fsdp__jinja_value_integer(value);
}

bool fsdp__jinja_value_truth(const fsdp__jinja_value *value)
{
    switch (value->kind) {
    case FSDP__JINJA_VALUE_UNDEFINED:
    case FSDP__JINJA_VALUE_NONE:
        return false;
    case FSDP__JINJA_VALUE_BOOL:
    case FSDP__JINJA_VALUE_INTEGER:
    case FSDP__JINJA_VALUE_REAL:
        return fsdp__jinja_value_real(value) != 0;
    case FSDP__JINJA_VALUE_STRING:
        return value->string.bytes > 0;
    case FSDP__JINJA_VALUE_LIST:
    case FSDP__JINJA_VALUE_TUPLE:
        return value->list->count > 0;
    case FSDP__JINJA_VALUE_MAP:
        return value->map->count > 0;
    default:
        return true;
    }
}

const char *fsdp__jinja_value_type(const fsdp__jinja_value *value)
{
    static const char *const names[] = {[FSDP__JINJA_VALUE_UNDEFINED] = "Undefined",
                                        [FSDP__JINJA_VALUE_NONE] = "NoneType",
                                        [FSDP__JINJA_VALUE_BOOL] = "bool",
                                        [FSDP__JINJA_VALUE_INTEGER] = "int",
                                        [FSDP__JINJA_VALUE_BIG] = "int",
                                        [FSDP__JINJA_VALUE_REAL] = "float",
                                        [FSDP__JINJA_VALUE_STRING] = "str",
                                        [FSDP__JINJA_VALUE_LIST] = "list",
                                        [FSDP__JINJA_VALUE_TUPLE] = "tuple",
                                        [FSDP__JINJA_VALUE_MAP] = "dict",
                                        [FSDP__JINJA_VALUE_NAMESPACE] = "Namespace",
                                        [FSDP__JINJA_VALUE_LOOP] = "LoopContext",
                                        [FSDP__JINJA_VALUE_CYCLER] = "Cycler",
                                        [FSDP__JINJA_VALUE_JOINER] = "Joiner",
                                        [FSDP__JINJA_VALUE_MACRO] = "Macro",
                                        [FSDP__JINJA_VALUE_FUNCTION] = "function",
                                        [FSDP__JINJA_VALUE_METHOD] = "method"};

    return names[value->kind];
}

static fsdp_status lists_equal(fsdp__render *r, const fsdp__jinja_list *a, const fsdp__jinja_list *b, bool *out)
{
    *out = a->count == b->count;
    for (int64_t i = 0; i < a->count && *out; i++)
        FSDP_TRY(fsdp__jinja_value_equal(r, &a->items[i], &b->items[i], out));
    return FSDP_OK;
}

static fsdp_status maps_equal(fsdp__render *r, const fsdp__jinja_map *a, const fsdp__jinja_map *b, bool *out)
{
    *out = a->count == b->count;
    for (int64_t i = 0; i < a->count && *out; i++) {
        bool found = false;

        for (int64_t j = 0; j < b->count && !found; j++) {
            FSDP_TRY(fsdp__jinja_value_equal(r, &a->entries[i].key, &b->entries[j].key, &found));
            if (found)
                FSDP_TRY(fsdp__jinja_value_equal(r, &a->entries[i].value, &b->entries[j].value, out));
        }
        *out = *out && found;
    }
    return FSDP_OK;
}

/* Returns whether a value is a number, a big one too. */
static bool is_number(const fsdp__jinja_value *value)
{
    return fsdp__jinja_value_is_number(value) || value->kind == FSDP__JINJA_VALUE_BIG;
}

fsdp_status fsdp__jinja_value_equal(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b, bool *out)
{
    *out = false;
    FSDP_TRY(fsdp__render_deeper(r));
    if (is_number(a) && is_number(b))
        *out = !fsdp__jinja_either_is_nan(a, b) && fsdp__jinja_numbers_compare(a, b) == 0;
    else if (a->kind != b->kind)
        *out = false;
    else if (a->kind == FSDP__JINJA_VALUE_STRING)
        *out = fsdp__jinja_strings_equal(a->string, b->string);
    else if (fsdp__jinja_value_is_list(a))
        FSDP_TRY(lists_equal(r, a->list, b->list, out));
    else if (a->kind == FSDP__JINJA_VALUE_MAP)
        FSDP_TRY(maps_equal(r, a->map, b->map, out));
    else
        *out = a->kind == FSDP__JINJA_VALUE_NONE || a->kind == FSDP__JINJA_VALUE_UNDEFINED || a->list == b->list;
    r->depth--;
    return FSDP_OK;
}

static int compare_strings(fsdp__jinja_string a, fsdp__jinja_string b)
{
    size_t both = FSDP__MIN(a.bytes, b.bytes);
    int order = both ? memcmp(a.at, b.at, both) : 0;

    return order ? order : (a.bytes > b.bytes) - (a.bytes < b.bytes);
}

static fsdp_status compare_lists(fsdp__render *r, const fsdp__jinja_list *a, const fsdp__jinja_list *b,
                                 const char *sign, int *out)
{
    for (int64_t i = 0; i < a->count && i < b->count; i++) {
        bool equal;

        FSDP_TRY(fsdp__jinja_value_equal(r, &a->items[i], &b->items[i], &equal));
        if (!equal)
            return fsdp__jinja_value_compare(r, &a->items[i], &b->items[i], sign, out);
    }
    *out = (a->count > b->count) - (a->count < b->count);
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_compare(fsdp__render *r, const fsdp__jinja_value *a, const fsdp__jinja_value *b,
                                      const char *sign, int *out)
{
    if (a->kind == FSDP__JINJA_VALUE_UNDEFINED || b->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "%s", (a->kind == FSDP__JINJA_VALUE_UNDEFINED ? a : b)->string.at);
    FSDP_TRY(fsdp__render_deeper(r));
    if (is_number(a) && is_number(b)) {
        *out = fsdp__jinja_numbers_compare(a, b);
    } else if (a->kind == FSDP__JINJA_VALUE_STRING && b->kind == FSDP__JINJA_VALUE_STRING) {
        *out = compare_strings(a->string, b->string);
    } else if (fsdp__jinja_value_is_list(a) && a->kind == b->kind) {
        FSDP_TRY(compare_lists(r, a->list, b->list, sign, out));
    } else {
        return FSDP__RENDER_FAIL(r, "'%s' not supported between instances of '%s' and '%s'", sign,
                                 fsdp__jinja_value_type(a), fsdp__jinja_value_type(b));
    }
    r->depth--;
    return FSDP_OK;
}

int64_t fsdp__jinja_string_length(fsdp__jinja_string string)
{
    int64_t length = 0;

    for (size_t i = 0; i < string.bytes; i++)
        length += ((unsigned char)string.at[i] & 0xc0) != 0x80;
    return length;
}

static fsdp_status characters_of(fsdp__render *r, fsdp__jinja_string string, fsdp__jinja_list *out)
{
    fsdp__jinja_value list;
    int64_t count = 0;

    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, fsdp__jinja_string_length(string), &list));
    for (size_t i = 0; i < string.bytes; i++)
        if (((unsigned char)string.at[i] & 0xc0) != 0x80)
            list.list->items[count++] = fsdp__jinja_value_of_text(string.at + i, 1);
        else if (count > 0)
            list.list->items[count - 1].string.bytes++;
    *out = *list.list;
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_items(fsdp__render *r, const fsdp__jinja_value *value, fsdp__jinja_list *out)
{
    fsdp__jinja_value keys;

    *out = (fsdp__jinja_list){0};
    if (fsdp__jinja_value_is_list(value)) {
        *out = *value->list;
        return FSDP_OK;
    }
    if (value->kind == FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP_OK;
    if (value->kind == FSDP__JINJA_VALUE_STRING)
        return characters_of(r, value->string, out);
    if (value->kind != FSDP__JINJA_VALUE_MAP)
        return FSDP__RENDER_FAIL(r, "'%s' object is not iterable", fsdp__jinja_value_type(value));
    FSDP_TRY(fsdp__jinja_value_new_list(r, FSDP__JINJA_VALUE_LIST, value->map->count, &keys));
    for (int64_t i = 0; i < value->map->count; i++)
        keys.list->items[i] = value->map->entries[i].key;
    *out = *keys.list;
    return FSDP_OK;
}

fsdp_status fsdp__jinja_value_length(fsdp__render *r, const fsdp__jinja_value *value, int64_t *out)
{
    *out = 0;
    if (value->kind == FSDP__JINJA_VALUE_STRING)
        *out = fsdp__jinja_string_length(value->string);
    else if (fsdp__jinja_value_is_list(value))
        *out = value->list->count;
    else if (value->kind == FSDP__JINJA_VALUE_MAP)
        *out = value->map->count;
    else if (value->kind != FSDP__JINJA_VALUE_UNDEFINED)
        return FSDP__RENDER_FAIL(r, "object of type '%s' has no len()", fsdp__jinja_value_type(value));
    return FSDP_OK;
}
