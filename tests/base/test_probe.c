/* Subscribers hear of the points that they name, and may refuse. */
#include "base/context.h"
#include "support/test.h"

static fsdp__probe_event heard;
static int count, count_of_second;
static fsdp_status answer;
static size_t most;

static fsdp_status hear(void *arg, fsdp__probe_event *event)
{
    (void)arg;
    heard = *event;
    count++;
    if (event->bytes > most)
        event->bytes = most;
    return answer;
}

static fsdp_status count_only(void *arg, fsdp__probe_event *event)
{
    (void)arg;
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

/* ---- the subscribers of a context ---- */

typedef struct hearer {
    int heard;
    fsdp__subscriber *leaves; /* at the next event; NULL: stays */
    fsdp_status answer;
} hearer;

static fsdp_status hear_more(void *arg, fsdp__probe_event *event)
{
    hearer *h = arg;

    h->heard += (int)event->number;
    if (h->leaves)
        fsdp__unsubscribe(h->leaves);
    h->leaves = NULL;
    return h->answer;
}

static void who_listens_to_a_context_hears_of_no_other(void **state)
{
    const uint64_t points = FSDP__POINT_BIT(FSDP__POINT_ITEM_DONE);
    fsdp_context *one, *other;
    hearer a = {0}, b = {0};
    fsdp__subscriber *first, *second;

    (void)state;
    CHECK_OK(fsdp_context_create(NULL, &one));
    CHECK_OK(fsdp_context_create(NULL, &other));
    first = CHECK_PTR(fsdp__context_subscribe(one, points, hear_more, &a));
    second = CHECK_PTR(fsdp__context_subscribe(one, points, hear_more, &b));
    FSDP__TELL(ITEM_DONE, .context = one, .number = 1);
    FSDP__TELL(ITEM_DONE, .context = other, .number = 10);
    FSDP__TELL(ITEM_DONE, .number = 100);
    FSDP__TELL(ITEM_BEGUN, .context = one, .number = 1000);
    CHECK_EQ(a.heard, 1);
    CHECK_EQ(b.heard, 1);
    fsdp__unsubscribe(first);
    FSDP__TELL(ITEM_DONE, .context = one, .number = 2);
    CHECK_EQ(a.heard, 1);
    CHECK_EQ(b.heard, 3);
    CHECK(fsdp__context_subscribe(other, points, hear_more, &a) != first);
    CHECK(fsdp__context_subscribe(one, points, hear_more, &a) == first);
    FSDP__TELL(ITEM_DONE, .context = one, .number = 4);
    CHECK_EQ(a.heard, 5);
    CHECK_EQ(b.heard, 7);
    fsdp__unsubscribe(second);
    CHECK(fsdp__is_probed(FSDP__POINT_ITEM_DONE));
    fsdp_context_free(other);
    CHECK(fsdp__is_probed(FSDP__POINT_ITEM_DONE));
    fsdp_context_free(one);
    CHECK(!fsdp__is_probed(FSDP__POINT_ITEM_DONE)); /* with the context its subscribers have gone */
}

static void a_subscriber_may_leave_while_it_is_told(void **state)
{
    fsdp_context *context;
    hearer a = {.answer = FSDP_STATE}, b = {0};

    (void)state;
    CHECK_OK(fsdp_context_create(NULL, &context));
    a.leaves = CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_ITEM_QUEUED), hear_more, &a));
    CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_ITEM_QUEUED), hear_more, &b));
    CHECK_STATUS(FSDP__ASK(ITEM_QUEUED, .context = context, .number = 1), FSDP_STATE);
    CHECK_OK(FSDP__ASK(ITEM_QUEUED, .context = context, .number = 1));
    CHECK_EQ(a.heard, 1);
    CHECK_EQ(b.heard, 1); /* nothing of what was refused */
    fsdp__unsubscribe(NULL);
    fsdp_context_free(context);
}

static void a_subscriber_without_memory_is_none(void **state)
{
    fsdp_context *context;
    hearer a = {0};

    (void)state;
    CHECK_OK(fsdp_context_create(NULL, &context));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION,
                    fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_ITEM_DONE), hear_more, &a)
                        ? FSDP_OK
                        : fsdp_last_status());
    fsdp_context_free(context);
    CHECK(!fsdp__is_probed(FSDP__POINT_ITEM_DONE));
}

/* What the log says of its own context, and of what it is silent. */
static void keep_lines(void *arg, fsdp_log_level level, const char *line)
{
    char *text = arg;

    CHECK_EQ(level, FSDP_LOG_DEBUG);
    snprintf(text + strlen(text), 500 - strlen(text), "%s; ", line);
}

static void the_log_at_level_debug_is_a_subscriber(void **state)
{
    fsdp_context *context;
    char text[500] = "";

    (void)state;
    CHECK_OK(fsdp_context_create(NULL, &context));
    CHECK(!fsdp__is_probed(FSDP__POINT_SHARD_CHANGED));
    fsdp_context_set_log(context, FSDP_LOG_DEBUG, keep_lines, text);
    FSDP__TELL(SHARD_CHANGED, .context = context, .name = "layers.0", .word = "unshard", .phase = "forward",
               .number = 1);
    FSDP__TELL(SHARD_CHANGED, .context = context, .name = "empty", .word = "unshard", .phase = "forward");
    FSDP__TELL(SHARD_CHANGED, .context = context, .word = "reshard", .phase = "idle", .number = 2);
    FSDP__TELL(COLLECTIVE_ISSUED, .context = context, .word = "all_gather", .bytes = 168, .dtype = FSDP_F32, .ranks = 2,
               .group = "dp");
    FSDP__TELL(COLLECTIVE_ISSUED, .context = context, .word = "all_gather", .bytes = 168, .dtype = FSDP_F32, .ranks = 1,
               .group = "alone");
    FSDP__TELL(COLLECTIVE_ISSUED, .context = context, .word = "barrier", .ranks = 2, .group = "dp");
    CHECK_STRING(text, "unshard 'layers.0' (forward); reshard '?' (idle); "
                       "all_gather: 42 float32 over 2 ranks of group 'dp'; ");
    fsdp_context_set_log(context, FSDP_LOG_INFO, keep_lines, text);
    CHECK(!fsdp__is_probed(FSDP__POINT_SHARD_CHANGED));
    fsdp_context_set_log(context, FSDP_LOG_DEBUG, NULL, NULL);
    fsdp_context_free(context);
    CHECK(!fsdp__is_probed(FSDP__POINT_SHARD_CHANGED));
}

static int test_main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup(a_point_that_nobody_hears_is_passed, reset),
        cmocka_unit_test_setup(who_listens_is_told_what_happens, reset),
        cmocka_unit_test_setup(the_first_refusal_is_the_answer, reset),
        cmocka_unit_test_setup(a_write_is_refused_or_made_shorter, reset),
        cmocka_unit_test_setup(who_listens_to_a_context_hears_of_no_other, reset),
        cmocka_unit_test_setup(a_subscriber_may_leave_while_it_is_told, reset),
        cmocka_unit_test_setup(a_subscriber_without_memory_is_none, reset),
        cmocka_unit_test_setup(the_log_at_level_debug_is_a_subscriber, reset),
    };

    return cmocka_run_group_tests(tests, subscribe, NULL);
}
TEST_FILE(test_main)
