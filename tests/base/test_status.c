/* The last error: message, code, hops, prefix, one per thread. */
#include <pthread.h>

#include "base/status.h"
#include "support/test.h"

TEST(codes_have_texts)
{
    CHECK_STRING(fsdp_status_text(FSDP_OK), "ok");
    CHECK_STRING(fsdp_status_text(FSDP_INTERRUPTED), "interrupted");
    CHECK_STRING(fsdp_status_text((fsdp_status)-999), "unknown status");
}

TEST(an_error_has_code_message_and_place)
{
    CHECK_STATUS(FSDP_FAIL(FSDP_IO, "cannot read '%s': %d bytes short", "x.bin", 12), FSDP_IO);
    CHECK_EQ(fsdp_last_status(), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "cannot read 'x.bin': 12 bytes short");
    CHECK_CONTAINS(fsdp_last_error_trace(), "test_status.c:");
    fsdp_clear_error();
    CHECK_EQ(fsdp_last_status(), FSDP_OK);
    CHECK_STRING(fsdp_last_error(), "");
    CHECK_STRING(fsdp_last_error_trace(), "");
}

/* An argument that is NULL is told first; an error before it, which may have to do with it, stands behind, once. */
TEST(an_argument_that_is_null_is_told_with_the_error_before)
{
    fsdp_clear_error();
    CHECK_STATUS(FSDP__FAIL_NULL("cannot step: no optimizer"), FSDP_INVALID);
    CHECK_STRING(fsdp_last_error(), "cannot step: no optimizer");
    CHECK_STATUS(FSDP_FAIL(FSDP_IO, "cannot read 'x'"), FSDP_IO);
    CHECK_STATUS(FSDP__FAIL_NULL("cannot %s: no optimizer", "step"), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "cannot step: no optimizer; the last error before that: cannot read 'x'");
    CHECK_STATUS(FSDP__FAIL_NULL("backward: no loss"), FSDP_IO); /* it has gone on as NULL */
    CHECK_STRING(fsdp_last_error(), "cannot step: no optimizer; the last error before that: cannot read 'x'");
    CHECK_CONTAINS(fsdp_last_error_trace(), " < ");
    fsdp_clear_error();
}

static fsdp_status fail_at_depth(int depth)
{
    if (depth == 0)
        return FSDP_FAIL(FSDP_FORMAT, "deep down");
    FSDP_TRY(fail_at_depth(depth - 1));
    return FSDP_OK;
}

static int count_hops(void)
{
    int hops = *fsdp_last_error_trace() != '\0';

    for (const char *at = fsdp_last_error_trace(); (at = strstr(at, " < ")); at++)
        hops++;
    return hops;
}

TEST(every_try_adds_a_hop_up_to_eight)
{
    for (int depth = 0; depth < 12; depth++) {
        CHECK_STATUS(fail_at_depth(depth), FSDP_FORMAT);
        CHECK_EQ(count_hops(), depth < 8 ? depth + 1 : 8);
    }
}

TEST(a_very_long_path_keeps_its_end)
{
    char path[600];

    memset(path, 'd', sizeof path);
    memcpy(path + sizeof path - 8, "/file.c", 8);
    for (int i = 0; i < 9; i++)
        i == 0 ? fsdp_fail(FSDP_IO, path, 7, "x") : fsdp_fail_hop(FSDP_IO, path, i);
    CHECK_EQ(count_hops(), 8);
    CHECK_CONTAINS(fsdp_last_error_trace(), "/file.c:7 < ");
}

TEST(what_went_well_gets_no_prefix)
{
    CHECK_STATUS(FSDP_FAIL(FSDP_IO, "x"), FSDP_IO);
    CHECK_OK(fsdp_fail_prefix(FSDP_OK, "before"));
    CHECK_STRING(fsdp_last_error(), "x");
    CHECK_STATUS(fsdp_fail_prefix(FSDP_IO, "before"), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "before: x");
}

/* Checks the last message, of as many bytes as there may be: how it begins and how it ends. */
static void check_cut(const char *begin, const char *end)
{
    const char *message = fsdp_last_error();

    CHECK_EQ(strlen(message), 1023);
    CHECK(strncmp(message, begin, strlen(begin)) == 0);
    CHECK_CONTAINS(message, "xxx...xxx");
    CHECK_STRING(message + 1023 - strlen(end), end);
}

/* What it names may be of any length, and the reason stands behind it. */
TEST(a_long_message_loses_its_middle)
{
    static const int lengths[] = {1100, 3000, 140000};
    char *text = malloc(150000);

    for (int i = 0; i < 3; i++) {
        memset(text, 'x', 150000);
        text[lengths[i]] = '\0';
        FSDP_FAIL(FSDP_INVALID, "cannot open '%s': disk full", text);
        check_cut("cannot open 'xxx", "xxx': disk full");
        fsdp_fail_prefix(FSDP_INVALID, "front");
        check_cut("front: cannot open 'xxx", "xxx': disk full");
        fsdp_fail_prefix(FSDP_INVALID, "cannot write to '%s'", text);
        check_cut("cannot write to 'xxx", "xxx': disk full");
        FSDP_FAIL(FSDP_INVALID, "rank 3: %s", fsdp_last_error());
        check_cut("rank 3: cannot write to 'xxx", "xxx': disk full");
    }
    free(text);
}

TEST(what_would_move_a_cursor_is_shown)
{
    char text[1200];

    FSDP_FAIL(FSDP_FORMAT, "key '%s'", "a\x1b[2J\n\x7f\xc2\x9b\xc3\xa9");
    CHECK_STRING(fsdp_last_error(), "key 'a\\x1b[2J\\x0a\\x7f\\xc2\\x9b\xc3\xa9'");
    fsdp_fail_prefix(FSDP_FORMAT, "b\tc");
    CHECK_STRING(fsdp_last_error(), "b\\x09c: key 'a\\x1b[2J\\x0a\\x7f\\xc2\\x9b\xc3\xa9'");
    for (int length = 1010; length < 1030; length++) { /* none is cut in two */
        memset(text, 'x', sizeof text);
        memcpy(text + length, "\n", 2);
        FSDP_FAIL(FSDP_FORMAT, "%s", text);
        CHECK_EQ(strlen(fsdp_last_error()), length <= 1019 ? length + 4 : 1023);
        CHECK_STRING(fsdp_last_error() + strlen(fsdp_last_error()) - 5, "x\\x0a");
    }
}

TEST(a_prefix_goes_in_front)
{
    FSDP_FAIL(FSDP_MISMATCH, "shape [2, 3] instead of [3, 2]");
    CHECK_STATUS(fsdp_fail_prefix(FSDP_MISMATCH, "tensor '%s'", "wte.weight"), FSDP_MISMATCH);
    CHECK_STRING(fsdp_last_error(), "tensor 'wte.weight': shape [2, 3] instead of [3, 2]");
    FSDP_FAIL(FSDP_IO, "rank 1: disk full");
    CHECK_STATUS(fsdp_fail_prefix(FSDP_IO, "export.path"), FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "rank 1: export.path: disk full"); /* so whoever names the rank finds it */
}

TEST(a_message_may_quote_the_last_one)
{
    FSDP_FAIL(FSDP_IO, "disk full");
    FSDP_FAIL(FSDP_COMM, "rank 3 failed: %s", fsdp_last_error());
    CHECK_STRING(fsdp_last_error(), "rank 3 failed: disk full");
}

TEST(a_bare_code_never_shows_an_old_message)
{
    FSDP_FAIL(FSDP_IO, "old");
    fsdp_fail_hop(FSDP_NO_MEMORY, "file.c", 3);
    CHECK_STRING(fsdp_last_error(), "out of memory");
    FSDP_FAIL(FSDP_IO, "old");
    fsdp_fail_prefix(FSDP_NOT_FOUND, "key 'a'");
    CHECK_STRING(fsdp_last_error(), "key 'a': not found");
}

TEST(clean_up_keeps_the_first_error)
{
    fsdp_status status = FSDP_OK;

    FSDP_KEEP_FIRST(status, FSDP_OK);
    CHECK_EQ(status, FSDP_OK);
    FSDP_KEEP_FIRST(status, FSDP_FAIL(FSDP_IO, "first"));
    FSDP_KEEP_FIRST(status, FSDP_FAIL(FSDP_COMM, "second"));
    CHECK_EQ(status, FSDP_IO);
    CHECK_STRING(fsdp_last_error(), "first");
    FSDP_FAIL(FSDP_COMM, "third");
    CHECK_STRING(fsdp_last_error(), "third");
}

static fsdp_status goes_through_its_exit(bool *out_cleaned)
{
    fsdp_status status;

    FSDP_TRY_GOTO(status, FSDP_OK, out);
    FSDP_TRY_GOTO(status, FSDP_FAIL(FSDP_STATE, "too early"), out);
    return FSDP_OK;
out:
    *out_cleaned = true;
    return status;
}

TEST(try_goto_takes_the_exit)
{
    bool cleaned = false;

    CHECK_ERROR(goes_through_its_exit(&cleaned), FSDP_STATE, "too early");
    CHECK(cleaned);
    CHECK_EQ(count_hops(), 2);
}

static void *fail_in_a_thread(void *arg)
{
    (void)arg;
    if (fsdp_last_status() != FSDP_OK)
        return NULL;
    FSDP_FAIL(FSDP_COMM, "the thread's own");
    return (void *)(uintptr_t)(strcmp(fsdp_last_error(), "the thread's own") == 0);
}

TEST(threads_have_their_own_errors)
{
    pthread_t thread;
    void *right = NULL;

    FSDP_FAIL(FSDP_IO, "main");
    CHECK_EQ(pthread_create(&thread, NULL, fail_in_a_thread, NULL), 0);
    pthread_join(thread, &right);
    CHECK(right != NULL);
    CHECK_STRING(fsdp_last_error(), "main");
}
