/* test_machines_stalls.c - a connection between two ranks of different machines that carries nothing for a while, as
 * one that loses packets: all that goes on is waited for, and what is wrong is told. */
#include <stdatomic.h>
#include <string.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/group_calls.h"
#include "comm/transport/network/network_group.h"
#include "comm/world.h"
#include "support/ranks.h"

enum {
    LONG_MS = 60000,
    TICK_MS = 20,
    STALL_US = 6000000, /* more than the ticks after which a rank is gone */
    STUCK_MS = 8000,    /* comm.timeout where it ends a wait after that */
    WARN_MS = 5000      /* comm.timeout where a warning comes in a fifth of it */
};

typedef struct stalls {
    test_machines machines;
    int from, to;
    int calls; /* that follow */
    _Atomic int warnings;
} stalls;

static void play(stalls *s, int machines, int ranks, bool one_level, test_rank_body body)
{
    char text[4096];

    s->machines = (test_machines){.machines = machines, .machine_ranks = ranks, .one_level = one_level};
    if (test_try_machines(&s->machines, body, s, text, sizeof text) > 0)
        TEST_FAIL("%s", text);
}

static void *go_on_later(void *network)
{
    (void)usleep(STALL_US);
    thread_network_go_on(network);
    return NULL;
}

/* ---- what is right goes on ---- */

/* The one that sends goes on to the next call, or leaves. */
static void call_over_a_stall(fsdp_context *context, void *arg)
{
    stalls *s = arg;
    fsdp_process_group *world = fsdp_world(context);
    bool lets_go = fsdp_context_rank(context) == s->to;
    pthread_t thread;

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(world));
    test_meet();
    if (lets_go) {
        thread_network_stall(s->machines.network, s->from, s->to);
        CHECK_EQ(pthread_create(&thread, NULL, go_on_later, s->machines.network), 0);
    }
    test_meet();
    for (int i = 0; i < s->calls; i++)
        CHECK_OK(fsdp_barrier(world));
    if (lets_go)
        pthread_join(thread, NULL);
}

TEST(who_is_late_to_be_heard_is_waited_for)
{
    static const struct {
        int machines, ranks;
        bool one_level;
        int from, to;
    } shapes[] = {
        {2, 1, false, 1, 0}, {3, 1, false, 2, 1}, {2, 2, false, 3, 1}, {3, 2, true, 5, 0}, {2, 2, true, 2, 0}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int calls = 1; calls <= 3; calls += 2) {
            stalls s = {.from = shapes[i].from, .to = shapes[i].to, .calls = calls};

            if (!test_long() && (calls == 1) != (i % 2 == 0)) /* one of the two: each takes as long as the stall */
                continue;
            play(&s, shapes[i].machines, shapes[i].ranks, shapes[i].one_level, call_over_a_stall);
        }
}

/* ---- what is told ---- */

/* They begin to wait for each other while nothing is heard, and all that was said then is heard at once. Two on one
 * machine are found at once; on two machines they are stuck. */
static void wait_in_a_circle(fsdp_context *context, void *arg)
{
    static const int all[] = {0, 1, 2, 3};
    stalls *s = arg;
    int rank = fsdp_context_rank(context);
    bool lets_go = rank == s->to, alone = s->machines.machine_ranks == 1;
    fsdp_process_group *other;
    pthread_t thread;

    CHECK_OK(fsdp__context_set_comm_ticks(context, alone ? STUCK_MS : LONG_MS, TICK_MS));
    CHECK_OK(fsdp_process_group_create(context, all, fsdp_context_world_size(context), "other", &other));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    test_meet();
    if (lets_go) {
        thread_network_stall(s->machines.network, s->from, s->to);
        CHECK_EQ(pthread_create(&thread, NULL, go_on_later, s->machines.network), 0);
    }
    test_meet();
    CHECK_STATUS(fsdp_barrier(rank == 0 ? other : fsdp_world(context)), alone ? FSDP_COMM : FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "in call 1 of group 'other' (barrier)");
    CHECK_CONTAINS(fsdp_last_error(), alone ? " has stood still for " : "all ranks must make the same calls");
    if (lets_go)
        pthread_join(thread, NULL);
    fsdp_process_group_free(other);
}

TEST(a_circle_behind_a_stall_is_named)
{
    static const struct {
        int machines, ranks, from, to;
    } shapes[] = {{2, 1, 0, 1}, {2, 2, 0, 2}};

    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        stalls s = {.from = shapes[i].from, .to = shapes[i].to};

        play(&s, shapes[i].machines, shapes[i].ranks, false, wait_in_a_circle);
    }
}

/* One of the ranks of each machine waits for the network first, and the other one for it. */
RUN_TEST(ranks_of_a_machine_that_disagree_in_a_group_are_named, test_run_machines, 2, 2, false)
{
    static const int all[] = {0, 1, 2, 3};
    int rank = fsdp_context_rank(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    float values[16] = {0}, gathered[64];
    fsdp_process_group *other;

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_process_group_create(context, all, 4, "other", &other));
    CHECK_STATUS(rank % 3 == 0 ? fsdp_all_gather(other, values, gathered, 10, FSDP_F32, stream)
                               : fsdp_all_reduce(other, values, values, 10, FSDP_F32, FSDP_SUM, stream),
                 FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), "ranks disagree in group 'other': call 1 is all_");
    fsdp_process_group_free(other);
}

static void hear(void *arg, fsdp_log_level level, const char *line)
{
    stalls *s = arg;

    if (level == FSDP_LOG_WARNING && strstr(line, "rank 0 waits ") && strstr(line, " for rank 1 (machine 'b'), which "))
        atomic_fetch_add(&s->warnings, 1);
}

static void wait_for_one(fsdp_context *context, void *arg)
{
    stalls *s = arg;
    int rank = fsdp_context_rank(context);

    fsdp_context_set_log(context, FSDP_LOG_WARNING, hear, s);
    CHECK_OK(fsdp__context_set_comm_ticks(context, WARN_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    for (int i = 0; rank == 1 && atomic_load(&s->warnings) == 0; i++)
        (void)usleep(10000); /* and lives */
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

TEST(who_waits_for_another_machine_says_so)
{
    stalls s = {0};

    play(&s, 2, 1, false, wait_for_one);
    CHECK(atomic_load(&s.warnings) > 0);
}

/* The shortest there is, while nobody waits for anybody. */
RUN_TEST(any_timeout_will_do, test_run_machines, 2, 2, false)
{
    fsdp_process_group *world = fsdp_world(context);

    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(world));
    CHECK_OK(fsdp__context_set_comm_ticks(context, 1, TICK_MS));
    (void)usleep(10 * TICK_MS * 1000);
    CHECK_OK(fsdp__context_set_comm_ticks(context, LONG_MS, TICK_MS));
    CHECK_OK(fsdp_barrier(world));
}

/* Who leaves is nobody's counterpart among those that wait, and there is no comm.timeout. */
RUN_TEST(who_left_without_a_timeout_was_in_all_calls, test_run_machines, 2, 2, false)
{
    static const int corners[] = {0, 3};
    int rank = fsdp_context_rank(context);
    fsdp_process_group *group = NULL;

    CHECK_OK(fsdp__context_set_comm_ticks(context, 0, TICK_MS));
    CHECK_OK(fsdp_process_group_create(context, corners, 2, "corners", &group));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (rank == 0) {
        (void)usleep(10 * TICK_MS * 1000);
        CHECK_OK(fsdp_barrier(group)); /* which was in it before it left */
    } else if (rank == 3) {
        CHECK_OK(fsdp_barrier(group));
    }
    fsdp_process_group_free(group);
}

/* ---- a rank that dies while it reports a failure ---- */

RUN_TEST(a_report_that_is_not_there_is_a_failure, test_run_machines, 2, 1, false)
{
    fsdp_process_group *world = fsdp_world(context);
    const fsdp__network_group *group = world->transport_group;
    fsdp_status status = FSDP_OK;

    CHECK_OK(fsdp_barrier(world));
    test_meet();
    if (fsdp_context_rank(context) == 1) /* all that it has done by then */
        atomic_store(&group->world->link.board->abort_state, FSDP__ABORT_WRITING);
    while (status == FSDP_OK)
        status = fsdp_barrier(world);
    CHECK_STATUS(status, FSDP_COMM);
    CHECK_CONTAINS(fsdp_last_error(), "a rank ended while it reported a failure");
}
