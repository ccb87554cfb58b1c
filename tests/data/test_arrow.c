/* Columns of Arrow's C data interface as lines of JSON. */
#include "data/arrow.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "support/test.h"

#define ARRAY_OF(type, ...) ((type[]){__VA_ARGS__})

/* ---- batches of one column "c" ---- */

typedef struct batch {
    fsdp__arrow_schema schema, *schemas[1];
    fsdp__arrow_array array, *arrays[1];
    fsdp__arrow_rows rows;
} batch;

static void batch_make(batch *b, fsdp__arrow_schema *schema, fsdp__arrow_array *array)
{
    static const void *none[1];

    *b = (batch){.schemas = {schema}, .arrays = {array}};
    schema->name = "c";
    b->schema = (fsdp__arrow_schema){.format = "+s", .n_children = 1, .children = b->schemas};
    b->array = (fsdp__arrow_array){
        .length = array->length, .n_buffers = 1, .buffers = none, .n_children = 1, .children = b->arrays};
    b->rows = (fsdp__arrow_rows){.path = "p", .schema = &b->schema, .array = &b->array, .before = 10};
}

/* All rows, one after the other. */
static void check_rows(fsdp__arrow_schema schema, fsdp__arrow_array array, const char *expected)
{
    batch b;
    fsdp__arrow_text text = {0};

    batch_make(&b, &schema, &array);
    CHECK_OK(fsdp__arrow_check(&b.rows));
    for (int64_t i = 0; i < array.length; i++)
        CHECK_OK(fsdp__arrow_row(&b.rows, i, &text));
    CHECK_EQ(text.count, (int64_t)strlen(expected));
    CHECK_BYTES(text.bytes, expected, strlen(expected));
    fsdp__free(text.bytes);
}

static void check_refused(fsdp__arrow_schema schema, fsdp__arrow_array array, fsdp_status status, const char *part)
{
    batch b;
    fsdp__arrow_text text = {0};
    fsdp_status found;

    batch_make(&b, &schema, &array);
    found = fsdp__arrow_check(&b.rows);
    for (int64_t i = 0; found == FSDP_OK && i < array.length; i++)
        found = fsdp__arrow_row(&b.rows, i, &text);
    CHECK_EQ(found, status);
    CHECK_CONTAINS(fsdp_last_error(), part);
    fsdp__free(text.bytes);
}

static fsdp__arrow_array plain(int64_t length, int64_t buffers, const void **all)
{
    return (fsdp__arrow_array){.length = length, .n_buffers = buffers, .buffers = all};
}

static void check_numbers(const char *format, const void *data, int64_t count, const char *expected)
{
    check_rows((fsdp__arrow_schema){.format = format}, plain(count, 2, ARRAY_OF(const void *, NULL, data)), expected);
}

/* ---- values ---- */

TEST(numbers_are_written_as_python_writes_them)
{
    check_numbers("c", ARRAY_OF(int8_t, -128, 7), 2, "{\"c\":-128}\n{\"c\":7}\n");
    check_numbers("C", ARRAY_OF(uint8_t, 255), 1, "{\"c\":255}\n");
    check_numbers("s", ARRAY_OF(int16_t, -300), 1, "{\"c\":-300}\n");
    check_numbers("S", ARRAY_OF(uint16_t, 65535), 1, "{\"c\":65535}\n");
    check_numbers("i", ARRAY_OF(int32_t, INT32_MIN), 1, "{\"c\":-2147483648}\n");
    check_numbers("I", ARRAY_OF(uint32_t, UINT32_MAX), 1, "{\"c\":4294967295}\n");
    check_numbers("l", ARRAY_OF(int64_t, INT64_MIN), 1, "{\"c\":-9223372036854775808}\n");
    check_numbers("L", ARRAY_OF(uint64_t, UINT64_MAX), 1, "{\"c\":18446744073709551615}\n");
    check_numbers("f", ARRAY_OF(float, 0.5F), 1, "{\"c\":0.5}\n");
    check_numbers("g", ARRAY_OF(double, 0.1, 1, 1e300, 1.0 / 3), 4,
                  "{\"c\":0.1}\n{\"c\":1.0}\n{\"c\":1e+300}\n{\"c\":0.3333333333333333}\n");
    check_numbers("g", ARRAY_OF(double, 1 / 0.0, -1 / 0.0, 0 / 0.0), 3,
                  "{\"c\":Infinity}\n{\"c\":-Infinity}\n{\"c\":NaN}\n");
    check_numbers("b", "\x05", 4, "{\"c\":true}\n{\"c\":false}\n{\"c\":true}\n{\"c\":false}\n");
}

TEST(points_of_time_are_milliseconds)
{
    check_numbers("tdD", ARRAY_OF(int32_t, 1, -1), 2, "{\"c\":86400000}\n{\"c\":-86400000}\n");
    check_numbers("tdm", ARRAY_OF(int64_t, 5), 1, "{\"c\":5}\n");
    check_numbers("tss:", ARRAY_OF(int64_t, 5), 1, "{\"c\":5000}\n");
    check_numbers("tsm:UTC", ARRAY_OF(int64_t, 5), 1, "{\"c\":5}\n");
    check_numbers("tsu:", ARRAY_OF(int64_t, 5001), 1, "{\"c\":5}\n");
    check_numbers("tsn:Europe/Berlin", ARRAY_OF(int64_t, 5000001), 1, "{\"c\":5}\n");
    check_refused((fsdp__arrow_schema){.format = "tss:"},
                  plain(1, 2, ARRAY_OF(const void *, NULL, ARRAY_OF(int64_t, INT64_MAX))), FSDP_FORMAT,
                  "cannot read 'p': row 11, column 'c' is a point of time beyond all years");
}

TEST(texts_are_escaped_and_otherwise_as_they_are)
{
    static const char all[] = "a\"b\\\n\x01gr\xc3\xbc\xff";
    const void **small = ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 3, 3, 11), all);
    const void **large = ARRAY_OF(const void *, NULL, ARRAY_OF(int64_t, 0, 3, 3, 11), all);
    const char *expected = "{\"c\":\"a\\\"b\"}\n{\"c\":\"\"}\n{\"c\":\"\\\\\\u000a\\u0001gr\xc3\xbc\xff\"}\n";

    for (const char *format = "uz"; *format; format++)
        check_rows((fsdp__arrow_schema){.format = (char[]){*format, '\0'}}, plain(3, 3, small), expected);
    for (const char *format = "UZ"; *format; format++)
        check_rows((fsdp__arrow_schema){.format = (char[]){*format, '\0'}}, plain(3, 3, large), expected);
    check_rows((fsdp__arrow_schema){.format = "u"},
               plain(1, 3, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 0), NULL)), "{\"c\":\"\"}\n");
}

TEST(views_are_inside_or_elsewhere)
{
    unsigned char views[32] = {3,  0, 0, 0, 'a', 'b', 'c', 0,   0, 0, 0, 0, 0, 0, 0, 0,
                               13, 0, 0, 0, 'x', 'x', 'x', 'x', 1, 0, 0, 0, 2, 0, 0, 0};
    int64_t sizes[2] = {1, 15};
    const void **all = ARRAY_OF(const void *, NULL, views, "?", "--0123456789abc", sizes);

    check_rows((fsdp__arrow_schema){.format = "vu"}, plain(2, 5, all), "{\"c\":\"abc\"}\n{\"c\":\"0123456789abc\"}\n");
    sizes[1] = 14;
    check_refused((fsdp__arrow_schema){.format = "vz"}, plain(2, 5, all), FSDP_FORMAT, "row 12, column 'c' is not");
    views[24] = 2;
    check_refused((fsdp__arrow_schema){.format = "vz"}, plain(2, 5, all), FSDP_FORMAT, "row 12, column 'c' is not");
}

TEST(nulls_are_where_the_bits_are_not)
{
    const void **all = ARRAY_OF(const void *, "\x0a", ARRAY_OF(int8_t, 1, 2, 3, 4));
    fsdp__arrow_array array = plain(3, 2, all);

    array.offset = 1;
    array.null_count = -1; /* not counted */
    check_rows((fsdp__arrow_schema){.format = "c"}, array, "{\"c\":2}\n{\"c\":null}\n{\"c\":4}\n");
    array.null_count = 0;
    check_rows((fsdp__arrow_schema){.format = "c"}, array, "{\"c\":2}\n{\"c\":3}\n{\"c\":4}\n");
    check_rows((fsdp__arrow_schema){.format = "n"}, plain(2, 0, NULL), "{\"c\":null}\n{\"c\":null}\n");
}

TEST(dictionaries_give_their_values)
{
    fsdp__arrow_schema values = {.format = "u"};
    fsdp__arrow_array words = plain(2, 3, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 1, 3), "abb"));
    fsdp__arrow_schema schema = {.format = "C", .dictionary = &values};
    uint8_t indices[] = {1, 0, 1};
    fsdp__arrow_array array = plain(3, 2, ARRAY_OF(const void *, NULL, indices));

    array.dictionary = &words;
    check_rows(schema, array, "{\"c\":\"bb\"}\n{\"c\":\"a\"}\n{\"c\":\"bb\"}\n");
    indices[2] = 2;
    check_refused(schema, array, FSDP_FORMAT, "row 13, column 'c' is not laid out");
    array.dictionary = NULL;
    check_refused(schema, array, FSDP_FORMAT, "': column 'c' is not laid out as its type says");
}

/* ---- values in values ---- */

TEST(lists_begin_where_the_offsets_say)
{
    fsdp__arrow_schema element = {.format = "c", .name = "element"};
    fsdp__arrow_array elements = plain(5, 2, ARRAY_OF(const void *, NULL, ARRAY_OF(int8_t, 9, 1, 2, 3, 4, 5)));
    fsdp__arrow_schema schema = {.n_children = 1, .children = ARRAY_OF(fsdp__arrow_schema *, &element)};
    fsdp__arrow_array array = plain(2, 2, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 9, 1, 1, 4)));

    elements.offset = 1;
    array.offset = 1;
    array.n_children = 1;
    array.children = ARRAY_OF(fsdp__arrow_array *, &elements);
    schema.format = "+l";
    check_rows(schema, array, "{\"c\":[]}\n{\"c\":[2,3,4]}\n");
    array.buffers = ARRAY_OF(const void *, NULL, ARRAY_OF(int64_t, 9, 0, 2, 5));
    schema.format = "+L";
    check_rows(schema, array, "{\"c\":[1,2]}\n{\"c\":[3,4,5]}\n");
    array.buffers = ARRAY_OF(const void *, NULL, ARRAY_OF(int64_t, 9, 0, 2, 6));
    check_refused(schema, array, FSDP_FORMAT, "row 12, column 'c' is not laid out");
    array.n_buffers = 1;
    array.offset = 0;
    schema.format = "+w:2";
    check_rows(schema, array, "{\"c\":[1,2]}\n{\"c\":[3,4]}\n");
    schema.format = "+w:3";
    check_refused(schema, array, FSDP_FORMAT, "': column 'c' is not laid out");
}

TEST(structs_have_their_offset_and_their_childrens)
{
    fsdp__arrow_schema role = {.format = "c", .name = "a\"b"}, nothing = {.format = "n", .name = "n"};
    fsdp__arrow_array roles = plain(4, 2, ARRAY_OF(const void *, NULL, ARRAY_OF(int8_t, 9, 8, 1, 2, 3)));
    fsdp__arrow_array nothings = plain(4, 0, NULL);
    fsdp__arrow_schema schema = {
        .format = "+s", .n_children = 2, .children = ARRAY_OF(fsdp__arrow_schema *, &role, &nothing)};
    fsdp__arrow_array array = plain(3, 1, ARRAY_OF(const void *, "\x0c"));

    roles.offset = 1;
    array.offset = 1;
    array.null_count = 1;
    array.n_children = 2;
    array.children = ARRAY_OF(fsdp__arrow_array *, &roles, &nothings);
    check_rows(schema, array, "{\"c\":null}\n{\"c\":{\"a\\\"b\":2,\"n\":null}}\n{\"c\":{\"a\\\"b\":3,\"n\":null}}\n");
    nothings.length = 3;
    check_refused(schema, array, FSDP_FORMAT, "': column 'c' is not laid out");
    array.n_children = 1;
    check_refused(schema, array, FSDP_FORMAT, "': column 'c' is not laid out");
}

TEST(maps_are_objects)
{
    fsdp__arrow_schema key = {.format = "u", .name = "key"}, value = {.format = "c", .name = "value"};
    fsdp__arrow_schema pair = {
        .format = "+s", .name = "entries", .n_children = 2, .children = ARRAY_OF(fsdp__arrow_schema *, &key, &value)};
    fsdp__arrow_schema schema = {.format = "+m", .n_children = 1, .children = ARRAY_OF(fsdp__arrow_schema *, &pair)};
    fsdp__arrow_array keys = plain(3, 3, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 1, 2, 3), "xyz"));
    fsdp__arrow_array values = plain(3, 2, ARRAY_OF(const void *, "\x05", ARRAY_OF(int8_t, 1, 2, 3)));
    fsdp__arrow_array pairs = plain(2, 1, ARRAY_OF(const void *, NULL));
    fsdp__arrow_array array = plain(2, 2, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 2, 2)));

    values.null_count = 1;
    pairs.offset = 1;
    pairs.n_children = 2;
    pairs.children = ARRAY_OF(fsdp__arrow_array *, &keys, &values);
    array.n_children = 1;
    array.children = ARRAY_OF(fsdp__arrow_array *, &pairs);
    check_rows(schema, array, "{\"c\":{\"y\":null,\"z\":3}}\n{\"c\":{}}\n");
    keys.buffers[0] = "\x03";
    keys.null_count = -1;
    check_refused(schema, array, FSDP_FORMAT, "row 11, column 'c' is not laid out");
    key.format = "c";
    check_refused(schema, array, FSDP_UNSUPPORTED, "column 'c' is a map whose keys are not texts");
}

/* ---- what is refused ---- */

TEST(types_without_a_place_in_json_are_named)
{
    static const char *const formats[] = {"e", "d:9,2", "w:16", "ttm", "tDs", "tiM", "+ud:0,1", "+r", "+vl", "", "?"};

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        fsdp__arrow_schema inner = {.format = formats[i], .name = "price"};
        fsdp__arrow_array none = {.n_buffers = 0};
        fsdp__arrow_schema schema = {
            .format = "+s", .n_children = 1, .children = ARRAY_OF(fsdp__arrow_schema *, &inner)};
        fsdp__arrow_array array = plain(0, 1, ARRAY_OF(const void *, NULL));

        array.n_children = 1;
        array.children = ARRAY_OF(fsdp__arrow_array *, &none);
        check_refused(schema, array, FSDP_UNSUPPORTED, "cannot read 'p': column 'c.price' is of Arrow's type '");
        CHECK_CONTAINS(fsdp_last_error(), formats[i]);
    }
}

TEST(what_does_not_fit_its_type_is_refused)
{
    const void **two = ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 1));
    const char *part = "column 'c' is not laid out as its type says";
    fsdp__arrow_array negative = plain(1, 2, two);

    negative.offset = -1;
    check_refused((fsdp__arrow_schema){.format = "i"}, negative, FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = "i"}, plain(1, 1, two), FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = "i"}, plain(1, 2, ARRAY_OF(const void *, NULL, NULL)), FSDP_FORMAT,
                  part);
    check_refused((fsdp__arrow_schema){.format = "u"}, plain(1, 2, two), FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = "+l"}, plain(1, 2, two), FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = NULL}, plain(1, 2, two), FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = "u"},
                  plain(1, 3, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 2, 1), "abc")), FSDP_FORMAT, part);
    check_refused((fsdp__arrow_schema){.format = "u"},
                  plain(1, 3, ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 1), NULL)), FSDP_FORMAT, part);
}

TEST(each_failing_allocation_is_told)
{
    const void **all = ARRAY_OF(const void *, NULL, ARRAY_OF(int32_t, 0, 3), "abc");
    fsdp__arrow_schema schema = {.format = "u"};
    fsdp__arrow_array array = plain(1, 3, all);
    batch b;

    batch_make(&b, &schema, &array);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp__arrow_text text = {0};

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__arrow_row(&b.rows, 0, &text));
        fsdp__free(text.bytes);
    }
}
