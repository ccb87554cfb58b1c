/* JSON that would take more memory than any model's is refused before it takes any; what Python writes is taken. */
#include "format/json.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "format/json_scan.h"
#include "support/test.h"

static fsdp_status parse(const char *text)
{
    json_t *object = NULL;
    fsdp_status status = fsdp__json_parse("x.json", text, strlen(text), &object);

    json_decref(object);
    return status;
}

/* `count` times `part` between `begin` and `end`; free it. */
static char *repeated(const char *begin, const char *part, int count, const char *end)
{
    size_t length = strlen(part);
    char *text = malloc(strlen(begin) + (size_t)count * length + strlen(end) + 1), *at;

    at = text + sprintf(text, "%s", begin);
    for (int i = 0; i < count; i++, at += length)
        memcpy(at, part, length);
    sprintf(at, "%s", end);
    return text;
}

static void check_refused(char *text, const char *part)
{
    CHECK_ERROR(parse(text), FSDP_FORMAT, part);
    CHECK_CONTAINS(fsdp_last_error(), "cannot read 'x.json': ");
    free(text);
}

TEST(depth_count_and_strings_are_bounded)
{
    char *end = repeated("0", "}]", 400, "}"), *text;

    CHECK_OK(parse("{\"a\":[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]}"));
    text = repeated("{\"a\":", "[{\"b\":", 400, end);
    CHECK_OK(parse(text));
    free(text);
    free(end);
    check_refused(repeated("{\"a\":", "[", 100000, ""), "JSON nested over 900 deep at offset 904");
    check_refused(repeated("{\"a\":[", "{},", 1000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":[", "[],", 1000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":[", "0,", 5000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":\"", "x", 1100000, "\"}"), "a string of over a million bytes at offset 5");
}

TEST(what_a_string_holds_is_no_structure)
{
    char *text = repeated("{\"a\\\"\":\"", "[{\\\"", 1000, "\"}");

    CHECK_OK(parse(text));
    free(text);
    CHECK_ERROR(parse("{\"a\\"), FSDP_FORMAT, "line 1");
    CHECK_ERROR(parse("{\"a"), FSDP_FORMAT, "line 1");
    CHECK_ERROR(parse("]]]]{"), FSDP_FORMAT, "line 1");
}

TEST(a_pointer_of_git_lfs_is_told_by_name)
{
    CHECK_ERROR(parse("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), FSDP_FORMAT,
                "cannot read 'x.json': it is a pointer of Git LFS: fetch the file with 'git lfs pull'");
}

TEST(a_nul_in_a_string_is_said_so)
{
    CHECK_ERROR(parse("{\n \"a\": \"x\\u0000y\"}"), FSDP_FORMAT,
                "cannot read 'x.json': line 2 column 16: a NUL (\\u0000) in a string near '\"x\\u0000y\"': fsdp reads");
    CHECK_CONTAINS(fsdp_last_error(), "that contain one: remove it");
    CHECK_ERROR(parse("{\n \"a\\u0000\": 1}"), FSDP_FORMAT,
                "cannot read 'x.json': line 2 column 10: a NUL (\\u0000) in a string near '\"a\\u0000\"': fsdp reads");
    CHECK_ERROR(parse("{\"a\": \"the string goes on and on\\u0000\"}"), FSDP_FORMAT,
                "cannot read 'x.json': line 1 column 39: a NUL (\\u0000) in a string: fsdp reads");
}

/* ---- JSON as Python has it ---- */

static fsdp__json_fault find(const char *text, const char *key, fsdp__json_member *out)
{
    size_t bytes = strlen(text);
    char *own = malloc(bytes + 1); /* without an end, so that a sanitizer sees what is read behind it */
    fsdp__json_fault fault;
    fsdp_status status;

    memcpy(own, text, bytes);
    own = realloc(own, bytes ? bytes : 1);
    status = fsdp__json_find(own, bytes, key, out, &fault);
    CHECK_EQ(status == FSDP_OK, fault.what == NULL);
    if (out->text) /* in the text that lives on */
        out->text = text + (out->text - own);
    free(own);
    return fault;
}

/* The member `a` as a string, unescaped; NULL: none. */
static void check_found(const char *text, const char *expected)
{
    fsdp__json_member m;
    fsdp__json_fault fault = find(text, "a", &m);
    char plain[64];
    int64_t halves;
    size_t bytes;

    if (fault.what)
        TEST_FAIL("%s: %s at %zu", text, fault.what, fault.offset);
    CHECK_EQ(m.text && m.is_string, expected != NULL);
    if (!expected)
        return;
    bytes = fsdp__json_unescape(m.text, m.bytes, plain, &halves);
    CHECK_EQ(bytes, strlen(expected));
    CHECK_BYTES(plain, expected, bytes);
}

TEST(what_python_writes_stands_in_no_ones_way)
{
    char *deep = repeated("{\"b\": ", "[{\"a\":", 50000, "1"), *text = malloc(500000);
    size_t used = strlen(deep);

    check_found("{\"x\": NaN, \"y\": [Infinity, -Infinity], \"a\": \"b\"}", "b");
    check_found("{\"x\": 1e400, \"y\": 12345678901234567890123456789012345678901234567890, \"a\": \"b\"}", "b");
    check_found("{\"x\": \"\\ud83d\", \"\\udc00\": 0, \"n\\u0000l\": 1, \"a\": \"b\"}", "b");
    check_found("{\"a\": \"first\", \"a\": \"last\"}", "last");
    check_found("{\"a\": \"first\", \"a\": null}", NULL);
    check_found(" {\"\\u0061\" : \"\\u0041\\ud83d\\ude00\\n\\\\\\/\" }\r\n", "A\xf0\x9f\x98\x80\n\\/");
    check_found("{\"b\": {\"a\": \"inner\"}, \"aa\": \"x\"}", NULL);
    check_found("{}", NULL);
    memcpy(text, deep, used);
    for (int i = 0; i < 50000; i++) {
        memcpy(text + used, "}]", 2);
        used += 2;
    }
    strcpy(text + used, ", \"a\": \"b\"}");
    check_found(text, "b");
    free(text);
    free(deep);
}

TEST(what_is_no_json_is_placed)
{
    static const struct {
        const char *text, *what;
        size_t offset;
    } bad[] = {{"", "not a JSON object", 0},
               {"[1]", "not a JSON object", 0},
               {"{\"a\": 01}", "no comma or '}' after a member", 7},
               {"{\"a\": 1.}", "no comma or '}' after a member", 7},
               {"{\"a\": }", "no value", 6},
               {"{\"a\": -", "no value", 6},
               {"{\"a\": +1}", "no value", 6},
               {"{\"a\": nan}", "no value", 6},
               {"{\"a\": [1, 2}", "no comma or ']' after an element", 11},
               {"{\"a\": 1,}", "no key in quotes", 8},
               {"{\"a\" 1}", "no colon after a key", 5},
               {"{\"a\": 1} {}", "text after its end", 9},
               {"{\"a\": \"b", "a string does not end", 8},
               {"{\"a\": \"b\\", "a string does not end", 9},
               {"{\"a\": \"\\u12g4\"}", "\\u without four hexadecimal digits", 8},
               {"{\"a\": \"\\x\"}", "a backslash before a character that it does not escape", 8},
               {"{\"a\": \"\t\"}", "a control character in a string", 7}};
    fsdp__json_member m;

    for (size_t i = 0; i < FSDP__COUNT_OF(bad); i++) {
        fsdp__json_fault fault = find(bad[i].text, "a", &m);

        CHECK_STRING(CHECK_PTR(fault.what), bad[i].what);
        CHECK_EQ(fault.offset, bad[i].offset);
    }
}

TEST(escapes_that_stand_for_no_text_are_found_in_the_members_that_count)
{
    static const char text[] = "{\"id\": \"\\ud83d\", \"b\": [{\"c\": \"\\ud83d\\ude00\"}, \"x\\u0000\\udc00\"]}";
    static const char *const both[] = {"b", "id", NULL}, *const one[] = {"b", NULL}, *const none[] = {"c", NULL};
    fsdp__json_no_text found;

    CHECK_OK(fsdp__json_find_no_text(text, sizeof text - 1, both, &found));
    CHECK_STRING(found.key, "id");
    CHECK_EQ(found.offset, 8);
    CHECK(!found.nul);
    CHECK_OK(fsdp__json_find_no_text(text, sizeof text - 1, one, &found));
    CHECK_STRING(found.key, "b");
    CHECK(found.nul && strncmp(text + found.offset, "\\u0000", 6) == 0);
    CHECK_OK(fsdp__json_find_no_text(text, sizeof text - 1, none, &found));
    CHECK_NULL(found.key);
    CHECK_OK(fsdp__json_find_no_text("{}", 2, both, &found));
    CHECK_NULL(found.key);
}

TEST(half_a_pair_is_counted)
{
    static const char text[] = "\\ud83d\\ud83d\\ude00\\udc00x\\ud800\\u0041";
    char plain[64];
    int64_t halves = 0;
    size_t bytes = fsdp__json_unescape(text, sizeof text - 1, plain, &halves);

    CHECK_EQ(halves, 3);
    CHECK_EQ(bytes, 15);
    CHECK_BYTES(plain,
                "\xef\xbf\xbd\xf0\x9f\x98\x80\xef\xbf\xbdx\xef\xbf\xbd"
                "A",
                15);
}

static void check_strict(const char *text, const char *expected)
{
    json_t *value = NULL;
    char *strict = NULL;
    size_t bytes = 0;

    CHECK_OK(fsdp__json_to_strict("x.json", text, strlen(text), false, &strict, &bytes));
    CHECK_STRING(strict, expected);
    CHECK_EQ(bytes, strlen(expected));
    CHECK_OK(fsdp__json_parse("x.json", strict, bytes, &value));
    json_decref(value);
    fsdp__free(strict);
}

TEST(a_strict_text_has_what_jansson_takes)
{
    static const char number[] = "{\"\\u0061\": 1e999}";
    char *strict = NULL;
    size_t bytes = 0;

    check_strict("\xef\xbb\xbf{\"a\": [1, -2.5e3, \"x\\n\"]} ", "{\"a\": [1, -2.5e3, \"x\\n\"]} ");
    check_strict("{\"a\":NaN,\"b\":[-Infinity,Infinity]}", "{\"a\":\"NaN\",\"b\":[\"-Infinity\",\"Infinity\"]}");
    check_strict("{\"a\": 9223372036854775807, \"b\": 9223372036854775808, \"c\": 1e400, \"d\": 1e-400}",
                 "{\"a\": 9223372036854775807, \"b\": 9223372036854775808e0, \"c\": \"1e400\", \"d\": 1e-400}");
    check_strict("{\"a\": \"\\ud800\\u0000\\ud83d\\ude00\"}", "{\"a\": \"\\ufffd\\ufffd\\ud83d\\ude00\"}");
    CHECK_ERROR(fsdp__json_to_strict("x.json", "{\n \"a\": nan}", 12, false, &strict, &bytes), FSDP_FORMAT,
                "cannot read 'x.json': line 2 column 7: no value");
    CHECK_NULL(strict);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp__json_to_strict("x.json", number, sizeof number - 1, false, &strict, &bytes);
        fsdp__json_member m;
        fsdp__json_fault fault;

        if (status == FSDP_OK)
            status = fsdp__json_find(number, sizeof number - 1, "a", &m, &fault);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        fsdp__free(strict);
        strict = NULL;
    }
}

static void check_row_numbers(void)
{
    static const char text[] = "{\"a\": [123456789012345678901, -1e400, NaN, Infinity, 9223372036854775807, 2.5, "
                               "\"\\u0000x\", {\"\": \"\\u00007\"}, {}]}";
    static const char *const numbers[] = {"123456789012345678901", "-1e400", "NaN", "Infinity"};
    json_auto_t *row = NULL;
    const json_t *all;

    CHECK_OK(fsdp__json_parse_row(text, sizeof text - 1, &row));
    all = json_object_get(row, "a");
    for (size_t i = 0; i < json_array_size(all); i++)
        if (i < FSDP__COUNT_OF(numbers))
            CHECK_STRING(fsdp__json_number_text(json_array_get(all, i)), numbers[i]);
        else
            CHECK_NULL(fsdp__json_number_text(json_array_get(all, i)));
    CHECK(json_integer_value(json_array_get(all, 4)) == INT64_MAX);
}

TEST(numbers_of_rows_stay_numbers_whatever_their_size)
{
    static const struct {
        const char *text;
        bool is_json;
    } texts[] = {{"-98765432109876543210", true}, {"{\"a\": NaN}", true}, {"[1, ]", false}, {"", false}};

    check_row_numbers();
    for (size_t i = 0; i < FSDP__COUNT_OF(texts); i++) {
        json_auto_t *text = json_string(texts[i].text), *value = NULL;

        CHECK_OK(fsdp__json_parse_text(text, &value));
        CHECK(!value == !texts[i].is_json);
        if (i == 0)
            CHECK_STRING(fsdp__json_number_text(value), texts[i].text);
    }
}

TEST(of_a_key_given_twice_the_last_counts_in_what_python_reads)
{
    static const char text[] = "{\"a\": 1, \"b\": {\"c\": 2, \"\\u0063\": 3}, \"a\": 4.0}";
    fsdp_status (*const foreign[])(const char *, const void *, size_t, json_t **) = {fsdp__json_parse_foreign,
                                                                                     fsdp__json_parse_as_reals};
    json_t *value = NULL;

    for (size_t i = 0; i < FSDP__COUNT_OF(foreign); i++) {
        CHECK_OK(foreign[i]("x.json", text, sizeof text - 1, &value));
        CHECK_EQ((int64_t)json_number_value(json_object_get(value, "a")), 4);
        CHECK_EQ((int64_t)json_number_value(json_object_get(json_object_get(value, "b"), "c")), 3);
        json_decref(value);
    }
    CHECK_ERROR(fsdp__json_parse("x.json", text, sizeof text - 1, &value), FSDP_FORMAT, "duplicate object key");
    CHECK_ERROR(fsdp__json_parse_large("x.json", text, sizeof text - 1, &value), FSDP_FORMAT, "duplicate object key");
}

TEST(the_outermost_keys_are_listed_as_far_as_they_fit)
{
    static const char text[] = "{\"id\": {\"in\": [{\"deep\": 1}]}, \"body\": \"x\"}";
    char keys[13];

    fsdp__json_list_keys(text, sizeof text - 1, keys, sizeof keys);
    CHECK_STRING(keys, "'id', 'body'");
    fsdp__json_list_keys(text, sizeof text - 1, keys, 12);
    CHECK_STRING(keys, "'id'");
    fsdp__json_list_keys("{}", 2, keys, sizeof keys);
    CHECK_STRING(keys, "");
}
