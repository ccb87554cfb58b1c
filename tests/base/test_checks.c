/* The checks of the tests themselves: each one fails when it should, and says what is wrong. */
#include <math.h>

#include "support/test.h"

/* Runs `body` as a rank thread would; returns what its failed check said, "" when none failed. */
static const char *outcome(void (*body)(void))
{
    static test_thread thread;

    thread.message[0] = '\0';
    test_enter_thread(&thread);
    if (setjmp(thread.escape) == 0)
        body();
    test_leave_thread();
    return thread.message;
}

static const float ones[3] = {1, 1, 1}, nearly[3] = {1, 1.0001f, 1}, nans[3] = {1, NAN, 1};

static void everything_right(void)
{
    int object = 0;

    CHECK(true);
    CHECK_EQ(2 + 2, 4);
    CHECK_EQ(SIZE_MAX, -1); /* compared as int64_t */
    CHECK_STRING("a", "a");
    CHECK_CONTAINS("abc", "b");
    CHECK_BYTES("abc", "abd", 2);
    CHECK_NEAR(1.0, 1.05, 0.1);
    CHECK_CLOSE(nearly, ones, 3, 1e-3, 0);
    CHECK_CLOSE(nearly, ones, 3, 0, 1e-3);
    CHECK_CLOSE(nans, nans, 3, 0, 0);
    CHECK_CLOSE(nans, ones, 0, 0, 0);
    CHECK_OK(FSDP_OK);
    CHECK_STATUS(FSDP_IO, FSDP_IO);
    CHECK_ERROR(FSDP_FAIL(FSDP_IO, "disk full"), FSDP_IO, "full");
    CHECK_PTR(&object);
    CHECK_NULL(NULL);
}

static void wrong_condition(void)
{
    CHECK(1 > 2);
}

static void wrong_number(void)
{
    CHECK_EQ(2 + 2, 5);
}

static void wrong_string(void)
{
    CHECK_STRING("a", "b");
}

static void null_string(void)
{
    CHECK_STRING(NULL, "b");
}

static void wrong_part(void)
{
    CHECK_CONTAINS("abc", "x");
}

static void wrong_bytes(void)
{
    CHECK_BYTES("abc", "abd", 3);
}

static void too_far(void)
{
    CHECK_NEAR(1.0, 1.2, 0.1);
}

static void nan_is_not_near(void)
{
    CHECK_NEAR(NAN, 1.0, 0.1);
}

static void not_close(void)
{
    CHECK_CLOSE(nearly, ones, 3, 1e-5, 1e-5);
}

static void nan_is_not_close(void)
{
    CHECK_CLOSE(nans, ones, 3, 1e9, 1e9);
}

static void failed_call(void)
{
    CHECK_OK(FSDP_FAIL(FSDP_COMM, "peer gone"));
}

static void other_failure(void)
{
    CHECK_STATUS(FSDP_FAIL(FSDP_COMM, "peer gone"), FSDP_IO);
}

static void other_message(void)
{
    CHECK_ERROR(FSDP_FAIL(FSDP_IO, "disk full"), FSDP_IO, "network");
}

static void null_pointer(void)
{
    void *nothing = NULL;

    FSDP_FAIL(FSDP_NO_MEMORY, "no room");
    CHECK_PTR(nothing);
}

static void pointer_for_null(void)
{
    int object = 0;

    CHECK_NULL(&object);
}

static void fault_that_nobody_saw(void)
{
    fsdp__fault_arm(FSDP__FAULT_WRITE, 1);
    (void)fsdp__file_is_refused(FSDP__POINT_WRITE, NULL);
    CHECK_FAULT(FSDP__FAULT_WRITE, FSDP_OK);
}

static void failure_without_a_fault(void)
{
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK_FAULT(FSDP__FAULT_WRITE, FSDP_FAIL(FSDP_IO, "its own"));
}

TEST(checks_pass_when_right)
{
    CHECK_STRING(outcome(everything_right), "");
}

TEST(checks_fail_when_wrong)
{
    static const struct {
        void (*body)(void);
        const char *says;
    } cases[] = {
        {wrong_condition, "not true: 1 > 2"},
        {wrong_number, "2 + 2 is 4, expected 5"},
        {wrong_string, "is 'a', expected 'b'"},
        {null_string, "is '(NULL)'"},
        {wrong_part, "'abc' does not contain 'x'"},
        {wrong_bytes, "byte 2 of 3 is 0x63, expected 0x64"},
        {too_far, "within 0.1"},
        {nan_is_not_near, "nan"},
        {not_close, "1 of 3 elements differ, most [1]"},
        {nan_is_not_close, "most [1]: nan"},
        {failed_call, "peer gone"},
        {other_failure, "expected input or output failed"},
        {other_message, "'disk full' does not contain 'network'"},
        {null_pointer, "no room"},
        {pointer_for_null, "not NULL"},
        {fault_that_nobody_saw, "succeeded although a use failed"},
        {failure_without_a_fault, "its own"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *message = outcome(cases[i].body);

        CHECK_CONTAINS(message, cases[i].says);
        CHECK_CONTAINS(message, "test_checks.c:");
    }
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
}

/* Two cases, of which the second runs in the environment that the first one found. */
TEST(a_case_may_change_the_environment)
{
    CHECK_EQ(setenv("FSDP_TEST_CHECKS", "1", 1), 0);
    CHECK_EQ(unsetenv("PATH"), 0);
}

TEST(the_next_case_has_it_as_it_was)
{
    CHECK_NULL(getenv("FSDP_TEST_CHECKS"));
    CHECK_PTR(getenv("PATH"));
}
