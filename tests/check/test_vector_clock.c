/* Clocks grow as actors come, and know what lies before what. */
#include "check/vector_clock.h"

#include "support/test.h"

TEST(what_was_never_set_is_zero)
{
    fsdp__vector_clock clock = {0};

    CHECK_EQ(fsdp__vector_clock_at(&clock, 7), 0);
    CHECK(fsdp__vector_clock_set(&clock, 20, 3));
    CHECK_EQ(fsdp__vector_clock_at(&clock, 20), 3);
    CHECK_EQ(fsdp__vector_clock_at(&clock, 19), 0);
    CHECK_EQ(fsdp__vector_clock_at(&clock, 21), 0);
    fsdp__vector_clock_release(&clock);
    CHECK_EQ(fsdp__vector_clock_at(&clock, 20), 0);
}

TEST(a_join_lies_after_both)
{
    fsdp__vector_clock a = {0}, b = {0};

    CHECK(fsdp__vector_clock_covers(&a, &b));
    CHECK(fsdp__vector_clock_set(&a, 0, 5));
    CHECK(fsdp__vector_clock_set(&a, 2, 1));
    CHECK(fsdp__vector_clock_set(&b, 0, 4));
    CHECK(fsdp__vector_clock_set(&b, 3, 9));
    CHECK(!fsdp__vector_clock_covers(&a, &b));
    CHECK(!fsdp__vector_clock_covers(&b, &a));
    CHECK(fsdp__vector_clock_join(&a, &b));
    CHECK(fsdp__vector_clock_covers(&a, &b));
    CHECK(!fsdp__vector_clock_covers(&b, &a));
    CHECK_EQ(fsdp__vector_clock_at(&a, 0), 5);
    CHECK_EQ(fsdp__vector_clock_at(&a, 2), 1);
    CHECK_EQ(fsdp__vector_clock_at(&a, 3), 9);
    fsdp__vector_clock_release(&a);
    fsdp__vector_clock_release(&b);
}

TEST(without_memory_nothing_changes)
{
    fsdp__vector_clock a = {0}, b = {0};

    CHECK(fsdp__vector_clock_set(&a, 0, 2));
    CHECK(fsdp__vector_clock_set(&b, 100, 1));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK(!fsdp__vector_clock_join(&a, &b));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK(!fsdp__vector_clock_set(&a, 50, 1));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_EQ(a.count, 1);
    CHECK_EQ(fsdp__vector_clock_at(&a, 0), 2);
    fsdp__vector_clock_release(&a);
    fsdp__vector_clock_release(&b);
}
