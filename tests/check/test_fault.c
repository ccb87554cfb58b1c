/* One use of a kind fails, on one thread. */
#include <pthread.h>

#include "base/alloc.h"
#include "support/test.h"

/* Uses something as the product does. Returns whether it was refused. */
static bool use(fsdp__fault_kind kind)
{
    switch (kind) {
    case FSDP__FAULT_ALLOCATION:
        return FSDP__ASK(ALLOCATION, .bytes = 1) != FSDP_OK;
    case FSDP__FAULT_COLLECTIVE:
        return FSDP__ASK(COLLECTIVE_CALLED, .object = NULL) != FSDP_OK;
    default:
        return fsdp__file_is_refused(kind == FSDP__FAULT_WRITE ? FSDP__POINT_WRITE : FSDP__POINT_FOLDER, NULL);
    }
}

TEST(off_by_default)
{
    for (int kind = 0; kind < FSDP__FAULT_KINDS; kind++) {
        CHECK(!use((fsdp__fault_kind)kind));
        CHECK(!fsdp__fault_hit((fsdp__fault_kind)kind));
    }
}

TEST(only_the_nth_use_of_its_kind_fails)
{
    fsdp__fault_arm(FSDP__FAULT_WRITE, 3);
    CHECK(!use(FSDP__FAULT_ALLOCATION));
    CHECK(!use(FSDP__FAULT_WRITE));
    CHECK(!use(FSDP__FAULT_WRITE));
    CHECK(!fsdp__fault_hit(FSDP__FAULT_WRITE));
    CHECK(use(FSDP__FAULT_WRITE));
    CHECK(fsdp__fault_hit(FSDP__FAULT_WRITE));
    CHECK(!use(FSDP__FAULT_WRITE));
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK(!fsdp__fault_hit(FSDP__FAULT_WRITE));
}

static void *use_in_a_thread(void *arg)
{
    *(bool *)arg = use(FSDP__FAULT_COLLECTIVE);
    return NULL;
}

TEST(the_switch_belongs_to_its_thread)
{
    pthread_t thread;
    bool failed = true;

    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 1);
    CHECK_EQ(pthread_create(&thread, NULL, use_in_a_thread, &failed), 0);
    pthread_join(thread, NULL);
    CHECK(!failed);
    CHECK(use(FSDP__FAULT_COLLECTIVE));
    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 0);
}

TEST(uses_can_be_counted)
{
    fsdp__fault_arm(FSDP__FAULT_WRITE, 1000);
    for (int i = 0; i < 7; i++)
        CHECK(!use(FSDP__FAULT_WRITE));
    CHECK_EQ(fsdp__fault_uses(FSDP__FAULT_WRITE), 7);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
    CHECK_EQ(fsdp__fault_uses(FSDP__FAULT_WRITE), 0);
}

static void *use_for_another(void *arg)
{
    FSDP__TELL(WORK_BORROWED, .object = arg);
    for (int i = 0; i < 2; i++)
        (void)use(FSDP__FAULT_WRITE);
    FSDP__TELL(WORK_LENT, .object = arg);
    return NULL;
}

TEST(switches_move_to_a_thread_and_back)
{
    char moved;
    pthread_t thread;

    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 1);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 2);
    FSDP__TELL(WORK_LENT, .object = &moved);
    CHECK(!use(FSDP__FAULT_WRITE)); /* not counted */
    CHECK_EQ(pthread_create(&thread, NULL, use_for_another, &moved), 0);
    pthread_join(thread, NULL);
    FSDP__TELL(WORK_BORROWED, .object = &moved);
    CHECK(fsdp__fault_hit(FSDP__FAULT_WRITE));
    CHECK(use(FSDP__FAULT_COLLECTIVE)); /* has stayed */
    fsdp__fault_arm(FSDP__FAULT_COLLECTIVE, 0);
    fsdp__fault_arm(FSDP__FAULT_WRITE, 0);
}

static fsdp_status two_allocations(void)
{
    void *first = fsdp__malloc(3), *second = first ? fsdp__malloc(5) : NULL;

    fsdp__free(first);
    fsdp__free(second);
    return second ? FSDP_OK : fsdp_last_status();
}

TEST(the_loop_fails_every_use_once)
{
    int rounds = 0;

    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n); rounds++)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, two_allocations());
    CHECK_EQ(rounds, 3); /* the first fails, the second fails, nothing fails */
    CHECK_OK(two_allocations());
}
