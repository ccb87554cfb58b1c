/* One use of a kind fails, on one thread. */
#include <pthread.h>

#include "base/alloc.h"
#include "support/test.h"

static void off_by_default(void **state)
{
    (void)state;
    for (int kind = 0; kind < FSDP__FAULT_KINDS; kind++) {
        CHECK(!fsdp__fault((fsdp__fault_kind)kind));
        CHECK(!fsdp__fault_hit((fsdp__fault_kind)kind));
    }
}

static void only_the_nth_use_of_its_kind_fails(void **state)
{
    (void)state;
    fsdp__fault_arm(FSDP__FAULT_WRITE, 3);
    CHECK(!fsdp__fault(FSDP__FAULT_ALLOCATION));
    CHECK(!fsdp__fault(FSDP__FAULT_WRITE));
    CHECK(!fsdp__fault(FSDP__FAULT_WRITE));
    CHECK(!fsdp__fault_hit(FSDP__FAULT_WRITE));
    CHECK(fsdp__fault(FSDP__FAULT_WRITE));
    CHECK(fsdp__fault_hit(FSDP__FAULT_WRITE));
    CHECK(!fsdp__fault(FSDP__FAULT_WRITE));
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK(!fsdp__fault_hit(FSDP__FAULT_WRITE));
}

static void *use_in_a_thread(void *arg)
{
    *(bool *)arg = fsdp__fault(FSDP__FAULT_COLLECTIVE);
    return NULL;
}

static void the_switch_belongs_to_its_thread(void **state)
{
    pthread_t thread;
    bool failed = true;

    (void)state;
    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 1);
    CHECK_EQ(pthread_create(&thread, NULL, use_in_a_thread, &failed), 0);
    pthread_join(thread, NULL);
    CHECK(!failed);
    CHECK(fsdp__fault(FSDP__FAULT_COLLECTIVE));
    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 0);
}

static fsdp_status two_allocations(void)
{
    void *first = fsdp__malloc(3), *second = first ? fsdp__malloc(5) : NULL;

    fsdp__free(first);
    fsdp__free(second);
    return second ? FSDP_OK : fsdp_last_status();
}

static void the_loop_fails_every_use_once(void **state)
{
    int rounds = 0;

    (void)state;
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n); rounds++)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, two_allocations());
    CHECK_EQ(rounds, 3); /* the first fails, the second fails, nothing fails */
    CHECK_OK(two_allocations());
}

TEST_MAIN(cmocka_unit_test(off_by_default), cmocka_unit_test(only_the_nth_use_of_its_kind_fails),
          cmocka_unit_test(the_switch_belongs_to_its_thread), cmocka_unit_test(the_loop_fails_every_use_once))
