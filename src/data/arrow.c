/* arrow.c - walks the columns of Arrow's C data interface, a row at a time. */
#include "data/arrow.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/text.h"

enum {
    DEEPEST = 64,
    COLUMN_TEXT = 200
};

/* ---- types ---- */

typedef enum kind {
    NOTHING, /* every value is null */
    BITS,
    SIGNED,
    UNSIGNED,
    FLOAT,
    TEXT,
    VIEW,
    LIST,
    FIXED_LIST,
    STRUCT,
    MAP
} kind;

typedef struct type {
    kind kind;
    int width;             /* in bytes, of a value or an offset */
    int64_t times, over;   /* what makes milliseconds of a point of time; 1: it is a number */
    int64_t size;          /* of a list of fixed size */
    int64_t least_buffers; /* what an array has at least */
    int64_t children;      /* -1: any number */
} type;

/* Formats of the interface; those that end with a colon go on. */
static const struct {
    const char *format;
    type type;
} known[] = {
    {"n", {NOTHING, 0, 1, 1, 0, 0, 0}},
    {"b", {BITS, 0, 1, 1, 0, 2, 0}},
    {"c", {SIGNED, 1, 1, 1, 0, 2, 0}},
    {"C", {UNSIGNED, 1, 1, 1, 0, 2, 0}},
    {"s", {SIGNED, 2, 1, 1, 0, 2, 0}},
    {"S", {UNSIGNED, 2, 1, 1, 0, 2, 0}},
    {"i", {SIGNED, 4, 1, 1, 0, 2, 0}},
    {"I", {UNSIGNED, 4, 1, 1, 0, 2, 0}},
    {"l", {SIGNED, 8, 1, 1, 0, 2, 0}},
    {"L", {UNSIGNED, 8, 1, 1, 0, 2, 0}},
    {"f", {FLOAT, 4, 1, 1, 0, 2, 0}},
    {"g", {FLOAT, 8, 1, 1, 0, 2, 0}},
    {"u", {TEXT, 4, 1, 1, 0, 3, 0}},
    {"U", {TEXT, 8, 1, 1, 0, 3, 0}},
    {"z", {TEXT, 4, 1, 1, 0, 3, 0}},
    {"Z", {TEXT, 8, 1, 1, 0, 3, 0}},
    {"vu", {VIEW, 16, 1, 1, 0, 3, 0}},
    {"vz", {VIEW, 16, 1, 1, 0, 3, 0}},
    {"tdD", {SIGNED, 4, 86400000, 1, 0, 2, 0}},
    {"tdm", {SIGNED, 8, 1, 1, 0, 2, 0}},
    {"tss:", {SIGNED, 8, 1000, 1, 0, 2, 0}},
    {"tsm:", {SIGNED, 8, 1, 1, 0, 2, 0}},
    {"tsu:", {SIGNED, 8, 1, 1000, 0, 2, 0}},
    {"tsn:", {SIGNED, 8, 1, 1000000, 0, 2, 0}},
    {"+l", {LIST, 4, 1, 1, 0, 2, 1}},
    {"+L", {LIST, 8, 1, 1, 0, 2, 1}},
    {"+w:", {FIXED_LIST, 0, 1, 1, 0, 1, 1}},
    {"+s", {STRUCT, 0, 1, 1, 0, 1, -1}},
    {"+m", {MAP, 4, 1, 1, 0, 2, 1}},
};

static bool find_type(const char *format, type *out)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(known); i++) {
        const char *name = known[i].format;
        size_t length = strlen(name);

        if (name[length - 1] == ':' ? strncmp(format, name, length) != 0 : strcmp(format, name) != 0)
            continue;
        *out = known[i].type;
        if (out->kind == FIXED_LIST)
            out->size = strtoll(format + length, NULL, 10);
        return out->size >= 0;
    }
    return false;
}

/* ---- where a value stands, for messages ---- */

typedef struct place {
    const fsdp__arrow_rows *rows;
    const struct place *up; /* NULL: a column */
    const fsdp__arrow_schema *schema;
    int64_t row; /* of the batch; -1: all of them */
    int depth;
} place;

static place within(const place *up, const fsdp__arrow_schema *schema)
{
    return (place){.rows = up->rows, .up = up, .schema = schema, .row = up->row, .depth = up->depth + 1};
}

/* Appends "messages.element.role", without what encloses all columns. */
static void name_place(const place *p, char *out, size_t room)
{
    if (!p->up)
        return;
    name_place(p->up, out, room);
    snprintf(out + strlen(out), room - strlen(out), "%s%s", *out ? "." : "", p->schema->name ? p->schema->name : "?");
}

static fsdp_status refuse(const place *p, fsdp_status status, const char *why)
{
    char column[COLUMN_TEXT] = "", row[40] = "";

    name_place(p, column, sizeof column);
    if (p->row >= 0)
        snprintf(row, sizeof row, "row %lld, ", (long long)(p->rows->before + p->row + 1));
    return FSDP_FAIL(status, "cannot read '%s': %scolumn '%s' %s", p->rows->path, row,
                     fsdp__shown(column, FSDP__ROOM(COLUMN_TEXT)), why);
}

static fsdp_status refuse_type(const place *p)
{
    char why[160];

    snprintf(why, sizeof why,
             "is of Arrow's type '%s', which has no place in JSON (decimals, times of day, unions and others): write "
             "the file without the column",
             fsdp__shown(p->schema->format, FSDP__ROOM(40)));
    return refuse(p, FSDP_UNSUPPORTED, why);
}

static fsdp_status broken(const place *p)
{
    return refuse(p, FSDP_FORMAT, "is not laid out as its type says");
}

/* ---- checks of a batch ---- */

static fsdp_status check_array(const place *p, const fsdp__arrow_array *array);

/* Returns how many values a child must have at least, so that its parent's can be read. */
static bool child_suffices(const type *t, const fsdp__arrow_array *array, const fsdp__arrow_array *child)
{
    int64_t all, wanted;

    if (__builtin_add_overflow(array->offset, array->length, &all))
        return false;
    if (t->kind == STRUCT)
        return child->length >= all;
    return t->kind != FIXED_LIST || (!__builtin_mul_overflow(all, t->size, &wanted) && child->length >= wanted);
}

static fsdp_status check_children(const place *p, const type *t, const fsdp__arrow_array *array)
{
    const fsdp__arrow_schema *schema = p->schema;

    if (schema->n_children != array->n_children || (t->children >= 0 && schema->n_children != t->children) ||
        (schema->n_children > 0 && (!schema->children || !array->children)))
        return broken(p);
    for (int64_t i = 0; i < schema->n_children; i++) {
        place child = within(p, schema->children[i]);

        if (!schema->children[i] || !array->children[i])
            return broken(p);
        FSDP_TRY(check_array(&child, array->children[i]));
        if (!child_suffices(t, array, array->children[i]))
            return broken(p);
    }
    return FSDP_OK;
}

/* Checks that a map's values are pairs whose first is text. */
static fsdp_status check_map(const place *p)
{
    const fsdp__arrow_schema *pair = p->schema->children[0];
    type key;

    if (strcmp(pair->format, "+s") != 0 || pair->n_children != 2)
        return broken(p);
    if (!find_type(pair->children[0]->format, &key) || pair->children[0]->dictionary ||
        (key.kind != TEXT && key.kind != VIEW))
        return refuse(p, FSDP_UNSUPPORTED, "is a map whose keys are not texts, which has no place in JSON");
    return FSDP_OK;
}

static fsdp_status check_dictionary(const place *p, const type *t, const fsdp__arrow_array *array)
{
    place values = *p;

    values.schema = p->schema->dictionary;
    values.depth++;
    if (!array->dictionary || (t->kind != SIGNED && t->kind != UNSIGNED))
        return broken(p);
    return check_array(&values, array->dictionary);
}

static fsdp_status check_buffers(const place *p, const type *t, const fsdp__arrow_array *array)
{
    bool data = t->kind != NOTHING && t->kind != STRUCT && t->kind != FIXED_LIST;

    if (array->n_buffers < t->least_buffers || (array->n_buffers > 0 && !array->buffers))
        return broken(p);
    return array->length > 0 && data && !array->buffers[1] ? broken(p) : FSDP_OK;
}

static fsdp_status check_array(const place *p, const fsdp__arrow_array *array)
{
    type t;

    if (!p->schema->format || array->length < 0 || array->offset < 0)
        return broken(p);
    if (!find_type(p->schema->format, &t))
        return refuse_type(p);
    if (p->depth > DEEPEST)
        return refuse(p, FSDP_UNSUPPORTED, "is nested too deep");
    FSDP_TRY(check_buffers(p, &t, array));
    if (p->schema->dictionary)
        return check_dictionary(p, &t, array);
    FSDP_TRY(check_children(p, &t, array));
    return t.kind == MAP ? check_map(p) : FSDP_OK;
}

fsdp_status fsdp__arrow_check(const fsdp__arrow_rows *rows)
{
    place all = {.rows = rows, .schema = rows->schema, .row = -1};

    if (!rows->schema->format || strcmp(rows->schema->format, "+s") != 0)
        return FSDP_FAIL(FSDP_FORMAT, "cannot read '%s': its rows are not a struct of columns", rows->path);
    return check_array(&all, rows->array);
}

/* ---- text ---- */

static fsdp_status reserve(fsdp__arrow_text *out, int64_t more)
{
    return out->count + more < out->capacity
               ? FSDP_OK
               : fsdp__grow(&out->bytes, FSDP__MAX(out->count + more, 2 * out->capacity), &out->capacity, 1);
}

static fsdp_status add(fsdp__arrow_text *out, const char *bytes, int64_t count)
{
    FSDP_TRY(reserve(out, count));
    memcpy(out->bytes + out->count, bytes, (size_t)count);
    out->count += count;
    return FSDP_OK;
}

static fsdp_status add_word(fsdp__arrow_text *out, const char *word)
{
    return add(out, word, (int64_t)strlen(word));
}

static int64_t escape(unsigned char byte, char *at)
{
    if (byte == '"' || byte == '\\') {
        at[0] = '\\';
        at[1] = (char)byte;
        return 2;
    }
    if (byte < 0x20)
        return snprintf(at, 7, "\\u%04x", byte);
    *at = (char)byte;
    return 1;
}

static fsdp_status add_string(fsdp__arrow_text *out, const char *bytes, int64_t count)
{
    FSDP_TRY(reserve(out, 6 * count + 3)); /* and the NUL of the last escape */
    out->bytes[out->count++] = '"';
    for (int64_t i = 0; i < count; i++)
        out->count += escape((unsigned char)bytes[i], out->bytes + out->count);
    out->bytes[out->count++] = '"';
    return FSDP_OK;
}

/* Adds the shortest number that is this one, as Python writes it: 0.1, 1.0, NaN, -Infinity. */
static fsdp_status add_double(fsdp__arrow_text *out, double value)
{
    char text[40];

    if (!isfinite(value))
        return add_word(out, isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity");
    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    FSDP_TRY(add_word(out, text));
    return strpbrk(text, ".e") ? FSDP_OK : add_word(out, ".0");
}

/* ---- values ---- */

static fsdp_status add_value(const place *p, const fsdp__arrow_array *array, int64_t index, fsdp__arrow_text *out);

static bool bit_at(const void *bits, int64_t at)
{
    return ((const unsigned char *)bits)[at / 8] >> at % 8 & 1;
}

/* Returns whether the value at `at`, which counts from before the array's offset, is null. */
static bool is_null(const fsdp__arrow_array *array, int64_t at)
{
    return array->null_count != 0 && array->buffers[0] && !bit_at(array->buffers[0], at);
}

static int64_t signed_at(const void *data, int width, int64_t at)
{
    return width == 1   ? ((const int8_t *)data)[at]
           : width == 2 ? ((const int16_t *)data)[at]
           : width == 4 ? ((const int32_t *)data)[at]
                        : ((const int64_t *)data)[at];
}

static uint64_t unsigned_at(const void *data, int width, int64_t at)
{
    return width == 1   ? ((const uint8_t *)data)[at]
           : width == 2 ? ((const uint16_t *)data)[at]
           : width == 4 ? ((const uint32_t *)data)[at]
                        : ((const uint64_t *)data)[at];
}

static fsdp_status add_number(const place *p, const type *t, const void *data, int64_t at, fsdp__arrow_text *out)
{
    char text[32];
    int64_t value;

    if (t->kind == FLOAT)
        return add_double(out, t->width == 4 ? (double)((const float *)data)[at] : ((const double *)data)[at]);
    if (t->kind == UNSIGNED) {
        snprintf(text, sizeof text, "%llu", (unsigned long long)unsigned_at(data, t->width, at));
        return add_word(out, text);
    }
    if (__builtin_mul_overflow(signed_at(data, t->width, at), t->times, &value))
        return refuse(p, FSDP_FORMAT, "is a point of time beyond all years");
    snprintf(text, sizeof text, "%lld", (long long)(value / t->over));
    return add_word(out, text);
}

/* Gets offsets `at` and `at + 1`, which must be in order and not beyond `limit`. */
static fsdp_status get_ends(const place *p, const type *t, const void *data, int64_t at, int64_t limit,
                            int64_t out_ends[2])
{
    out_ends[0] = signed_at(data, t->width, at);
    out_ends[1] = signed_at(data, t->width, at + 1);
    return out_ends[0] >= 0 && out_ends[1] >= out_ends[0] && out_ends[1] <= limit ? FSDP_OK : broken(p);
}

static fsdp_status add_text(const place *p, const type *t, const fsdp__arrow_array *array, int64_t at,
                            fsdp__arrow_text *out)
{
    int64_t ends[2];

    FSDP_TRY(get_ends(p, t, array->buffers[1], at, INT64_MAX / 8, ends));
    if (ends[1] > ends[0] && !array->buffers[2])
        return broken(p);
    return ends[1] > ends[0] ? add_string(out, (const char *)array->buffers[2] + ends[0], ends[1] - ends[0])
                             : add_word(out, "\"\"");
}

/* A view is a length, then up to 12 bytes; or 4 bytes, the number of a buffer, and where in it. The last buffer has the
 * sizes of those between. */
static fsdp_status add_view(const place *p, const fsdp__arrow_array *array, int64_t at, fsdp__arrow_text *out)
{
    const char *view = (const char *)array->buffers[1] + 16 * at;
    int64_t buffers = array->n_buffers - 3;
    const int64_t *sizes = array->buffers[array->n_buffers - 1];
    int32_t words[4];

    memcpy(words, view, sizeof words);
    if (words[0] < 0)
        return broken(p);
    if (words[0] <= 12)
        return add_string(out, view + 4, words[0]);
    if (words[2] < 0 || words[2] >= buffers || words[3] < 0 || !sizes || (int64_t)words[3] + words[0] > sizes[words[2]])
        return broken(p);
    return add_string(out, (const char *)array->buffers[2 + words[2]] + words[3], words[0]);
}

static fsdp_status add_elements(const place *p, const fsdp__arrow_array *array, int64_t begin, int64_t end,
                                fsdp__arrow_text *out)
{
    place element = within(p, p->schema->children[0]);

    FSDP_TRY(add_word(out, "["));
    for (int64_t i = begin; i < end; i++) {
        if (i > begin)
            FSDP_TRY(add_word(out, ","));
        FSDP_TRY(add_value(&element, array->children[0], i, out));
    }
    return add_word(out, "]");
}

static fsdp_status add_list(const place *p, const type *t, const fsdp__arrow_array *array, int64_t at,
                            fsdp__arrow_text *out)
{
    int64_t ends[2];

    if (t->kind == FIXED_LIST)
        return add_elements(p, array, at * t->size, (at + 1) * t->size, out);
    FSDP_TRY(get_ends(p, t, array->buffers[1], at, array->children[0]->length, ends));
    return add_elements(p, array, ends[0], ends[1], out);
}

static fsdp_status add_struct(const place *p, const fsdp__arrow_array *array, int64_t at, fsdp__arrow_text *out)
{
    FSDP_TRY(add_word(out, "{"));
    for (int64_t i = 0; i < array->n_children; i++) {
        place member = within(p, p->schema->children[i]);
        const char *name = member.schema->name ? member.schema->name : "";

        if (i > 0)
            FSDP_TRY(add_word(out, ","));
        FSDP_TRY(add_string(out, name, (int64_t)strlen(name)));
        FSDP_TRY(add_word(out, ":"));
        FSDP_TRY(add_value(&member, array->children[i], at, out));
    }
    return add_word(out, "}");
}

static fsdp_status add_map(const place *p, const type *t, const fsdp__arrow_array *array, int64_t at,
                           fsdp__arrow_text *out)
{
    const fsdp__arrow_array *pairs = array->children[0], *keys = pairs->children[0];
    place pair = within(p, p->schema->children[0]);
    place key = within(&pair, pair.schema->children[0]), value = within(&pair, pair.schema->children[1]);
    int64_t ends[2];

    FSDP_TRY(get_ends(p, t, array->buffers[1], at, pairs->length, ends));
    FSDP_TRY(add_word(out, "{"));
    for (int64_t i = ends[0]; i < ends[1]; i++) {
        if (is_null(keys, keys->offset + pairs->offset + i)) /* never, says the interface */
            return broken(p);
        if (i > ends[0])
            FSDP_TRY(add_word(out, ","));
        FSDP_TRY(add_value(&key, keys, pairs->offset + i, out));
        FSDP_TRY(add_word(out, ":"));
        FSDP_TRY(add_value(&value, pairs->children[1], pairs->offset + i, out));
    }
    return add_word(out, "}");
}

static fsdp_status add_from_dictionary(const place *p, const type *t, const fsdp__arrow_array *array, int64_t at,
                                       fsdp__arrow_text *out)
{
    int64_t index = t->kind == SIGNED ? signed_at(array->buffers[1], t->width, at)
                                      : (int64_t)unsigned_at(array->buffers[1], t->width, at);
    place value = *p;

    if (index < 0 || index >= array->dictionary->length)
        return broken(p);
    value.schema = p->schema->dictionary;
    return add_value(&value, array->dictionary, index, out);
}

static fsdp_status add_value(const place *p, const fsdp__arrow_array *array, int64_t index, fsdp__arrow_text *out)
{
    int64_t at = array->offset + index;
    type t;

    if (!find_type(p->schema->format, &t) || index >= array->length)
        return broken(p);
    if (t.kind == NOTHING || is_null(array, at))
        return add_word(out, "null");
    if (p->schema->dictionary)
        return add_from_dictionary(p, &t, array, at, out);
    switch (t.kind) {
    case BITS:
        return add_word(out, bit_at(array->buffers[1], at) ? "true" : "false");
    case TEXT:
        return add_text(p, &t, array, at, out);
    case VIEW:
        return add_view(p, array, at, out);
    case LIST:
    case FIXED_LIST:
        return add_list(p, &t, array, at, out);
    case STRUCT:
        return add_struct(p, array, at, out);
    case MAP:
        return add_map(p, &t, array, at, out);
    default:
        return add_number(p, &t, array->buffers[1], at, out);
    }
}

fsdp_status fsdp__arrow_row(const fsdp__arrow_rows *rows, int64_t row, fsdp__arrow_text *out)
{
    place all = {.rows = rows, .schema = rows->schema, .row = row};

    FSDP_TRY(add_value(&all, rows->array, row, out));
    return add_word(out, "\n");
}
