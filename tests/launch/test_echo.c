/* test_echo.c - how long an echo of a signal is waited for. */
#include "launch/echo.h"
#include "support/test.h"

/* The last question before the end is the one that time passes under. */
TEST(what_is_left_is_never_below_zero)
{
    for (int i = 0; i < 200; i++) {
        int64_t first_ns = fsdp__clock_ns() - FSDP__ECHO_NS + 2000, left;

        do {
            left = fsdp__echo_left_ns(first_ns);
            CHECK(left >= 0 && left <= FSDP__ECHO_NS);
        } while (left > 0);
    }
}
