/* test_machines_faults.c - ranks of several machines when one fails, leaves or stops, and when the network does. Nobody
 * hangs, and everybody is told who and why. */
#include <malloc.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check/fault.h"
#include "comm/group_calls.h"
#include "comm/transport/network/network_group.h"
#include "comm/transport/network/tags.h"
#include "comm/world.h"
#include "device/device.h"
#include "support/ranks.h"

enum {
    AWAITED_MS = 2500, /* comm.timeout where a test waits for it: more than a busy processor keeps a thread waiting */
    LONG_MS = 60000,   /* where what happens is seen without waiting */
    TICK_MS = 20,
    HELD_MS = 6000 /* many beats */
};

typedef struct faults {
    test_machines machines;
    int rank;         /* who is to blame */
    _Atomic int told; /* ranks whose last error is the one that is expected */
    const char *expected, *also;
    fsdp_status status; /* where a test has several */
    bool one_level;
    int fails;   /* the allocation of `rank` that does */
    bool failed; /* it has */
} faults;

static void check_told(faults *f)
{
    CHECK_CONTAINS(fsdp_last_error(), f->expected);
    CHECK_CONTAINS(fsdp_last_error(), f->also ? f->also : "");
    atomic_fetch_add(&f->told, 1);
}

/* Calls until one fails: what ends the world may come at any of them. */
static fsdp_status call_until_it_fails(fsdp_context *context)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    fsdp_status status = FSDP_OK;
    float values[64] = {0};

    while (status == FSDP_OK)
        status = fsdp_all_reduce(world, values, values, 64, FSDP_F32, FSDP_SUM, stream);
    return status;
}

static void play_faults(faults *f, int machines, int ranks, test_rank_body body)
{
    char text[4096];

    f->machines = (test_machines){.machines = machines, .machine_ranks = ranks, .one_level = f->one_level};
    if (test_try_machines(&f->machines, body, f, text, sizeof text) > 0)
        TEST_FAIL("%s", text);
}

static void run_faults(faults *f, int machines, int ranks, test_rank_body body, int expect_told)
{
    play_faults(f, machines, ranks, body);
    CHECK_EQ(atomic_load(&f->told), expect_told);
}

/* ---- a rank gives up ---- */

static void abort_one(fsdp_context *context, void *arg)
{
    faults *f = arg;

    if (fsdp_context_rank(context) == f->rank) {
        fsdp_abort(context, "of its own will");
        return;
    }
    CHECK_STATUS(call_until_it_fails(context), FSDP_COMM);
    check_told(f);
}

TEST(who_aborts_is_named_on_every_machine)
{
    for (int rank = 0; rank < 4; rank += 3) {
        faults f = {.rank = rank, .expected = rank == 0 ? "rank 0 failed: of its own" : "rank 3 failed: of its own"};

        run_faults(&f, 2, 2, abort_one, 3);
    }
}

/* ---- memory that a call has taken ---- */

static void *abort_soon(void *context)
{
    static atomic_uint round;

    for (unsigned wait = atomic_fetch_add(&round, 1) % 60; wait > 0; wait--)
        usleep(700);
    fsdp_abort(context, "in the middle of a call");
    return NULL;
}

/* On a device whose memory the host may not read, so that what it holds goes through the host's, which the ranks of the
 * machine read and the call gives back when it fails. */
static void reduce_until_it_fails(fsdp_context *context, void *arg)
{
    enum {
        COUNT = 500000
    };
    fsdp_stream *stream = fsdp_device_stream(test_device(context));
    void *values = CHECK_PTR(fsdp__stream_workspace(stream, COUNT * 4));
    fsdp_status status = FSDP_OK;
    pthread_t aborter;

    (void)arg;
    CHECK_EQ(pthread_create(&aborter, NULL, abort_soon, context), 0);
    while (status == FSDP_OK) {
        status = fsdp_all_reduce(fsdp_world(context), values, values, COUNT, FSDP_F32, FSDP_SUM, stream);
        if (status == FSDP_OK)
            status = fsdp_stream_synchronize(stream);
    }
    CHECK_EQ(pthread_join(aborter, NULL), 0);
    CHECK_STATUS(status, FSDP_COMM);
    test_drop_workspace(context);
}

TEST(what_a_failed_call_gives_back_is_not_read)
{
    mallopt(M_MMAP_THRESHOLD, 64 << 10); /* freed, it is not there any more; a sanitizer has a malloc of its own */
    setenv("FSDP_TEST_DEVICE", "sim", 1);
    for (int i = 0; i < 20; i++)
        test_run_machines(2, 2, false, reduce_until_it_fails, NULL);
}

/* ---- a rank has no memory ---- */

/* One allocation of its first call of many elements: a meeting's, an exchange's, whoever asks for it. */
static void run_out(fsdp_context *context, void *arg)
{
    enum {
        COUNT = 20000 /* more than goes along with headers */
    };
    faults *f = arg;
    bool blamed = fsdp_context_rank(context) == f->rank;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    float *values = calloc(COUNT, sizeof *values);
    fsdp_status status;

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(world));
    test_meet();
    if (blamed)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->fails);
    status = fsdp_all_reduce(world, values, values, COUNT, FSDP_F32, FSDP_SUM, stream);
    if (blamed) {
        f->failed = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        CHECK_STATUS(status, f->failed ? FSDP_NO_MEMORY : FSDP_OK);
    }
    if (status == FSDP_OK)
        status = fsdp_barrier(world); /* of who was through before */
    if (!blamed && status != FSDP_OK) {
        CHECK_STATUS(status, FSDP_COMM);
        check_told(f);
    }
    free(values);
}

TEST(who_has_no_memory_is_named_on_every_machine)
{
    bool failed = true;

    for (int one_level = 0; one_level < 2; one_level++, failed = true)
        for (int n = 1; failed; n++) {
            faults f = {.rank = 1, .fails = n, .expected = "rank 1 failed: out of memory", .one_level = one_level};

            play_faults(&f, 2, 2, run_out);
            failed = f.failed;
            CHECK_EQ(atomic_load(&f.told), failed ? 3 : 0);
            CHECK(failed || n > 2); /* there are some */
        }
}

/* ---- a rank leaves ---- */

static void leave_early(fsdp_context *context, void *arg)
{
    faults *f = arg;

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    if (fsdp_context_rank(context) == f->rank)
        return;
    CHECK_STATUS(call_until_it_fails(context), FSDP_COMM);
    check_told(f);
}

TEST(who_leaves_is_named_on_every_machine)
{
    faults alone = {.rank = 1,
                    .expected = "rank 1 has left (machine 'b'): it was before its first call; rank 0, which waits for "
                                "it, is in call 1"},
           among = {.rank = 3, .expected = "rank 3 has left"};

    run_faults(&alone, 2, 1, leave_early, 1);
    run_faults(&among, 2, 2, leave_early, 3);
}

/* ---- a rank stops ---- */

static void stop_one(fsdp_context *context, void *arg)
{
    faults *f = arg;
    fsdp_process_group *world = fsdp_world(context);

    CHECK_OK(fsdp_barrier(world));
    test_meet();
    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    if (fsdp_context_rank(context) == f->rank) {
        thread_network_stop(f->machines.network, f->rank);
    } else if (fsdp_context_rank(context) == 0) {
        fsdp_status status = call_until_it_fails(context);

        thread_network_go_on(f->machines.network);
        CHECK_STATUS(status, FSDP_COMM);
        check_told(f);
        return;
    }
    CHECK_STATUS(call_until_it_fails(context), FSDP_COMM);
}

TEST(who_stops_is_named_with_machine_and_call)
{
    faults f = {.rank = 1,
                .expected = "rank 1 (machine 'b') has not been heard of for",
                .also =
                    " call 1 of group 'world' (barrier); rank 0, which waits for it, is in call 2 of group 'world'"},
           rounds = {.rank = 3, .one_level = true, .expected = "rank 3 (machine 'd') has not been heard of for"};

    run_faults(&f, 2, 1, stop_one, 1);
    run_faults(&rounds, 4, 1, stop_one, 1); /* rank 0 waits for rank 2, and that one for rank 3 */
}

/* Rank 0 and rank 3, which is on the other machine and no counterpart of rank 0, in a group of their own: rank 1 hears
 * of rank 3. */
static void await_another_column(fsdp_context *context, void *arg)
{
    static const int both[] = {0, 3};
    faults *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_process_group *group = NULL;

    CHECK_OK(fsdp_process_group_create(context, both, 2, "corners", &group));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    test_meet();
    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    if (rank == f->rank)
        thread_network_stop(f->machines.network, f->rank);
    if (rank == 0) {
        CHECK_STATUS(fsdp_barrier(group), FSDP_COMM);
        thread_network_go_on(f->machines.network);
        check_told(f);
    }
    test_meet(); /* the others wait for nobody */
    fsdp_process_group_free(group);
}

TEST(who_stops_is_named_in_another_column)
{
    faults f = {.rank = 3,
                .expected = "rank 3 (machine 'b') has not been heard of for",
                .also = "rank 0, which waits for it, is in call 1 of group 'corners' (barrier)"};

    run_faults(&f, 2, 2, await_another_column, 1);
}

/* Rank 3 lives, and nobody here hears it. */
TEST(who_does_not_listen_is_named)
{
    faults f = {.rank = 1,
                .expected = "rank 1 (machine 'a') has not been heard of for",
                .also = "rank 0, which waits for it, is in call 1 of group 'corners' (barrier)"};

    run_faults(&f, 2, 2, await_another_column, 1);
}

/* ---- who tells whom ---- */

static void hear_of_all(fsdp_context *context, void *arg)
{
    faults *f = arg;
    fsdp__network_view *machines = fsdp__comm_get(context)->transport;
    int ranks = fsdp_context_world_size(context), own = fsdp_context_rank(context), heard_of = 0;

    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    while (heard_of < ranks) { /* without end where one is never heard of */
        heard_of = 0;
        for (int r = 0; r < ranks; r++) {
            fsdp__said heard = {0};

            heard_of += fsdp__board_said(machines->link.board, r, &heard) && heard.beats > 1;
        }
        (void)sched_yield();
    }
    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    for (int r = 0; r < ranks; r++) {
        int told = thread_network_messages(f->machines.network, own, r, FSDP__TAG_NEWS);

        CHECK_EQ(told > 0, r != own && r % f->machines.machine_ranks == own % f->machines.machine_ranks);
    }
}

TEST(each_tells_its_counterparts_and_all_hear_of_all)
{
    faults two = {.rank = 0}, three = {.rank = 0};

    run_faults(&two, 2, 3, hear_of_all, 0);
    run_faults(&three, 3, 2, hear_of_all, 0);
}

/* ---- the network ---- */

static void cut_link(fsdp_context *context, void *arg)
{
    faults *f = arg;

    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    test_meet();
    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    if (fsdp_context_rank(context) == 0)
        thread_network_cut(f->machines.network, 0, 1);
    CHECK_STATUS(call_until_it_fails(context), FSDP_COMM);
    check_told(f);
}

TEST(a_cut_link_ends_both_sides)
{
    faults f = {.expected = "has not been heard of for", .also = "of group 'world' ("};

    run_faults(&f, 2, 2, cut_link, 4);
}

static void call_and_fail(fsdp_context *context, faults *f)
{
    fsdp_process_group *world = fsdp_world(context);
    float values[64] = {0};
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    fsdp_status status = FSDP_OK;

    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    for (int i = 0; i < 100 && status == FSDP_OK; i++)
        status = fsdp_all_reduce(world, values, values, 64, FSDP_F32, FSDP_SUM, stream);
    CHECK_STATUS(status, FSDP_COMM);
    if (fsdp_context_rank(context) == f->rank)
        check_told(f);
}

typedef struct nth {
    faults faults; /* first */
    int nth;
} nth;

static void fail_nth_call(fsdp_context *context, void *arg)
{
    nth *n = arg;

    if (fsdp_context_rank(context) == n->faults.rank)
        thread_network_fail(n->faults.machines.network, n->faults.rank, n->nth);
    call_and_fail(context, &n->faults);
}

TEST(a_failure_of_the_network_is_everybodys)
{
    for (int i = 1; i <= (test_brief() ? 3 : 12); i++) {
        nth n = {.faults = {.rank = i % 2, .expected = "thread network: the call was made to fail"}, .nth = i};

        run_faults(&n.faults, 2, 1 + i % 2, fail_nth_call, 1);
    }
}

/* ---- ranks that wait for each other ---- */

/* Rank 0 in one group, the others in another: on two machines they are stuck, on one that is proven at once. */
static void cross(fsdp_context *context, void *arg)
{
    static const int all[] = {0, 1, 2, 3};
    faults *f = arg;
    fsdp_process_group *other;

    CHECK_OK(fsdp__context_set_comm_ticks(context, f->status == FSDP_COMM ? AWAITED_MS : LONG_MS, TICK_MS));
    CHECK_OK(fsdp_process_group_create(context, all, fsdp_context_world_size(context), "other", &other));
    CHECK_STATUS(fsdp_barrier(fsdp_context_rank(context) == 0 ? other : fsdp_world(context)), f->status);
    CHECK_CONTAINS(fsdp_last_error(), "in call 1 of group 'other' (barrier)");
    check_told(f);
    fsdp_process_group_free(other);
}

TEST(programs_that_wait_in_a_circle_are_named)
{
    faults two = {.status = FSDP_COMM, .expected = "has stood still for", .also = " of group 'world' (barrier)"},
           four = {.status = FSDP_MISMATCH, .expected = "rank 0 waits for rank 1 in call 1 of group 'other' (barrier)"};

    run_faults(&two, 2, 1, cross, 2);
    run_faults(&four, 2, 2, cross, 4);
}

/* Rank 3 is missing in a call of the world, whose ranks wait for each other in both of its phases, and waits for rank 0
 * in another group. */
static void skip_a_call(fsdp_context *context, void *arg)
{
    static const int corners[] = {0, 3};
    faults *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    fsdp_process_group *group = NULL;
    float values[16] = {0};
    fsdp_status status = FSDP_OK;

    CHECK_OK(fsdp__context_set_comm_ticks(context, AWAITED_MS, TICK_MS));
    CHECK_OK(fsdp_process_group_create(context, corners, 2, "corners", &group));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (rank != 3)
        status = fsdp_all_reduce(fsdp_world(context), values, values, 10, FSDP_F32, FSDP_SUM, stream);
    if (status == FSDP_OK && group)
        status = fsdp_all_reduce(group, values, values, 10, FSDP_F32, FSDP_SUM, stream);
    CHECK_STATUS(status, FSDP_COMM);
    check_told(f);
    fsdp_process_group_free(group);
}

/* Ranks 0 and 3 make one call, 1 and 2 another: two machines that each disagree. */
static void make_two_calls(fsdp_context *context, void *arg)
{
    faults *f = arg;
    int rank = fsdp_context_rank(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    fsdp_process_group *world = fsdp_world(context);
    float values[16] = {0}, all[64];

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_STATUS(rank == 0 || rank == 3 ? fsdp_all_gather(world, values, all, 10, FSDP_F32, stream)
                                        : fsdp_all_reduce(world, values, values, 10, FSDP_F32, FSDP_SUM, stream),
                 FSDP_MISMATCH);
    check_told(f);
}

TEST(ranks_that_wait_in_phases_of_a_call_are_named)
{
    faults skipped = {.expected = " has stood still for ", .also = "in call 1 of group 'corners' (all_reduce)"},
           two = {.expected = "ranks disagree in group 'world': call 1 is ", .also = "all_reduce on rank"};

    run_faults(&skipped, 2, 2, skip_a_call, 4);
    run_faults(&two, 2, 2, make_two_calls, 4);
}

/* What is known of a rank is of one call: its group is not that of a call before. */
static void *let_go_on(void *network)
{
    (void)usleep(HELD_MS * 1000);
    thread_network_go_on(network);
    return NULL;
}

/* Rank 1 waits for rank 0 in a call, and does not come back from the network when that has come; rank 0 waits for it in
 * the next one. */
static void come_back_late(fsdp_context *context, void *arg)
{
    faults *f = arg;
    bool holds = fsdp_context_rank(context) == 0;
    pthread_t thread;

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    test_meet();
    if (holds) {
        (void)usleep(300000); /* it says that it waits */
        thread_network_hold(f->machines.network, 1);
        CHECK_EQ(pthread_create(&thread, NULL, let_go_on, f->machines.network), 0);
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (holds)
        pthread_join(thread, NULL);
}

TEST(who_is_in_the_network_is_waited_for)
{
    faults f = {.rank = 1};

    run_faults(&f, 2, 1, come_back_late, 0);
}

static void go_on_in_another_group(fsdp_context *context, void *arg)
{
    static const int both[] = {0, 1};
    fsdp__network_view *machines = fsdp__comm_get(context)->transport;
    fsdp_process_group *other;
    fsdp__doing mine;
    fsdp__said heard;

    (void)arg;
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp_process_group_create(context, both, 2, "other", &other));
    CHECK_OK(fsdp_barrier(other));
    CHECK(fsdp__board_said(machines->link.board, 1 - fsdp_context_rank(context), &heard));
    CHECK_STRING(heard.doing.group, "other");
    fsdp__call_last(machines->link.board, -1, 0, &mine);
    CHECK_EQ(heard.doing.tag, mine.tag);
    fsdp_process_group_free(other);
}

TEST(a_meeting_tells_in_which_group_a_rank_is)
{
    faults f = {.rank = 0};

    run_faults(&f, 2, 1, go_on_in_another_group, 0);
}

/* ---- late messages change nothing ---- */

static void sum_late(fsdp_context *context, void *arg)
{
    faults *f = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int64_t count = 300000;
    int32_t *values = calloc((size_t)count, sizeof *values);

    if (fsdp_context_rank(context) == 0)
        thread_network_delay(f->machines.network, 5);
    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)i;
    CHECK_OK(fsdp_all_reduce(world, values, values, count, FSDP_I32, FSDP_SUM, stream));
    for (int64_t i = 0; i < count; i++)
        CHECK_EQ(values[i], (int32_t)i * 4);
    free(values);
}

TEST(late_messages_arrive_all_the_same)
{
    faults f = {.rank = 0};

    run_faults(&f, 2, 2, sum_late, 0);
}

/* So late that a rank that went on talking would do so before all have heard that it leaves. */
static void leave_late(fsdp_context *context, void *arg)
{
    if (fsdp_context_rank(context) == 0)
        thread_network_delay(((faults *)arg)->machines.network, 60);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

/* test_run_ranks counts them. */
TEST(nothing_is_left_in_the_network)
{
    faults f = {.rank = 0};

    run_faults(&f, 2, 2, leave_late, 0);
}
