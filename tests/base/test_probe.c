/* Subscribers hear of the points that they name, and may refuse. */
#include "base/probe.h"

#include "support/test.h"

static fsdp__probe_event heard;
static int count, count_of_second;
static fsdp_status answer;
static size_t most;

static fsdp_status hear(fsdp__probe_event *event)
{
    heard = *event;
    count++;
    if (event->bytes > most)
        event->bytes = most;
    return answer;
}

static fsdp_status count_only(fsdp__probe_event *event)
{
    (void)event;
    count_of_second++;
    return FSDP_OK;
}

static int subscribe(void **state)
{
    static fsdp__subscriber first = {.points = FSDP__POINT_BIT(FSDP__POINT_MEMORY_NAMED) |
                                               FSDP__POINT_BIT(FSDP__POINT_MEMORY_USED) |
                                               FSDP__POINT_BIT(FSDP__POINT_WRITE),
                                     .see = hear},
                            second = {.points = FSDP__POINT_BIT(FSDP__POINT_MEMORY_USED), .see = count_only};

    (void)state;
    CHECK(!fsdp__is_probed(FSDP__POINT_MEMORY_USED));
    fsdp__subscribe(&first);
    fsdp__subscribe(&second);
    return 0;
}

static int reset(void **state)
{
    (void)state;
    count = count_of_second = 0;
    answer = FSDP_OK;
    most = SIZE_MAX;
    return 0;
}

static void a_point_that_nobody_hears_is_passed(void **state)
{
    (void)state;
    CHECK(!fsdp__is_probed(FSDP__POINT_ITEM_QUEUED));
    CHECK_OK(FSDP__ASK(ITEM_QUEUED, .kind = 3));
    FSDP__TELL(ITEM_DONE, .kind = 3);
    CHECK_EQ(count, 0);
}

static void who_listens_is_told_what_happens(void **state)
{
    (void)state;
    FSDP__TELL(MEMORY_NAMED, .memory = state, .bytes = 7, .name = "weight");
    CHECK_EQ(count, 1);
    CHECK_EQ(count_of_second, 0);
    CHECK_EQ(heard.point, FSDP__POINT_MEMORY_NAMED);
    CHECK(heard.memory == state);
    CHECK_EQ(heard.bytes, 7);
    CHECK_STRING(heard.name, "weight");
    CHECK_EQ(heard.number, 0);
}

static void the_first_refusal_is_the_answer(void **state)
{
    (void)state;
    CHECK_OK(FSDP__ASK(MEMORY_USED, .bytes = 1));
    CHECK_EQ(count_of_second, 1);
    answer = FSDP_STATE;
    CHECK_STATUS(FSDP__ASK(MEMORY_USED, .bytes = 1), FSDP_STATE);
    CHECK_EQ(count, 2);
    CHECK_EQ(count_of_second, 1);
}

static void a_write_is_refused_or_made_shorter(void **state)
{
    size_t bytes = 9;

    (void)state;
    CHECK(!fsdp__file_is_refused(FSDP__POINT_WRITE, &bytes));
    CHECK_EQ(bytes, 9);
    most = 4;
    CHECK(!fsdp__file_is_refused(FSDP__POINT_WRITE, &bytes));
    CHECK_EQ(bytes, 4);
    answer = FSDP_IO;
    CHECK(fsdp__file_is_refused(FSDP__POINT_WRITE, NULL));
}

static int test_main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_point_that_nobody_hears_is_passed, reset),
        cmocka_unit_test_setup(who_listens_is_told_what_happens, reset),
        cmocka_unit_test_setup(the_first_refusal_is_the_answer, reset),
        cmocka_unit_test_setup(a_write_is_refused_or_made_shorter, reset),
    };

    return cmocka_run_group_tests(tests, subscribe, NULL);
}
TEST_FILE(test_main)
