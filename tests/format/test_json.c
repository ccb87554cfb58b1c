/* JSON that would take more memory than any model's is refused before it takes any. */
#include "format/json.h"

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

static void depth_count_and_strings_are_bounded(void **state)
{
    (void)state;
    CHECK_OK(parse("{\"a\":[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]]}"));
    check_refused(repeated("{\"a\":", "[", 100000, ""), "JSON nested over 32 deep at offset 36");
    check_refused(repeated("{\"a\":[", "{},", 1000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":[", "[],", 1000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":[", "0,", 5000000, "0]}"), "over a million JSON values");
    check_refused(repeated("{\"a\":\"", "x", 1100000, "\"}"), "a string of over a million bytes at offset 5");
}

static void what_a_string_holds_is_no_structure(void **state)
{
    char *text = repeated("{\"a\\\"\":\"", "[{\\\"", 1000, "\"}");

    (void)state;
    CHECK_OK(parse(text));
    free(text);
    CHECK_ERROR(parse("{\"a\\"), FSDP_FORMAT, "line 1");
    CHECK_ERROR(parse("{\"a"), FSDP_FORMAT, "line 1");
    CHECK_ERROR(parse("]]]]{"), FSDP_FORMAT, "line 1");
}

static void a_pointer_of_git_lfs_is_told_by_name(void **state)
{
    (void)state;
    CHECK_ERROR(parse("version https://git-lfs.github.com/spec/v1\noid sha256:1\n"), FSDP_FORMAT,
                "cannot read 'x.json': it is a pointer of Git LFS: fetch the file with 'git lfs pull'");
}

TEST_MAIN(cmocka_unit_test(depth_count_and_strings_are_bounded), cmocka_unit_test(what_a_string_holds_is_no_structure),
          cmocka_unit_test(a_pointer_of_git_lfs_is_told_by_name))
