/* test_watchdog.c - who waits for a rank that will not come is told why, and who waits for one that will is left alone.
 *
 * Ranks are threads, and ticks a millisecond. What goes wrong goes on until the test has seen the error, so how long a
 * tick really takes does not matter. */
#include <stdatomic.h>
#include <unistd.h>

#include "base/rng.h"
#include "comm/group_calls.h"
#include "comm/transport/arena/arena_group.h"
#include "comm/world.h"
#include "support/ranks.h"

enum {
    WORLD = 8,
    TICK_MS = 1,
    TIMEOUT_MS = 100,
    LONG_MS = 1000000, /* no test takes as long */
    BYTES = 640
};

/* What the ranks of a test share. */
typedef struct shared {
    int64_t timeout_ms;
    int length;           /* of a circle */
    bool computes;        /* between its two calls */
    atomic_int lines;     /* of the log */
    atomic_int failed;    /* ranks that have seen their error */
    char log[WORLD][512]; /* last line of each rank */
    char messages[WORLD][1024];
    fsdp_status statuses[WORLD];
} shared;

typedef struct listener {
    shared *s;
    int rank;
} listener;

static void listen(void *arg, fsdp_log_level level, const char *line)
{
    listener *l = arg;

    if (level != FSDP_LOG_WARNING)
        return;
    snprintf(l->s->log[l->rank], sizeof l->s->log[0], "%s", line);
    atomic_fetch_add(&l->s->lines, 1);
}

static void begin(fsdp_context *context, shared *s, listener *l)
{
    *l = (listener){s, fsdp_context_rank(context)};
    fsdp_context_set_log(context, FSDP_LOG_WARNING, listen, l);
    /* Of a thread that has not begun yet nobody can know that it would run. */
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    CHECK_OK(fsdp__context_set_comm_ticks(context, s->timeout_ms, TICK_MS));
}

/* A rank that has failed a check has ended the world; nobody is to wait for it. */
static bool has_ended(fsdp_context *context)
{
    const fsdp__arena_view *view = fsdp__comm_get(context)->transport;

    return fsdp__board_aborted(view->arena->board);
}

/* Sleeps, without a sign of life. */
static void stand_still_until(atomic_int *what, int value)
{
    while (atomic_load(what) < value)
        usleep(20000); /* to look takes time of a processor, too */
}

static void compute_until(fsdp_context *context, atomic_int *what, int value)
{
    while (atomic_load(what) < value && !has_ended(context))
        continue;
}

static void keep_error(fsdp_context *context, shared *s, fsdp_status status)
{
    int rank = fsdp_context_rank(context);

    CHECK(status != FSDP_OK);
    s->statuses[rank] = status;
    snprintf(s->messages[rank], sizeof s->messages[0], "%s", fsdp_last_error());
    atomic_fetch_add(&s->failed, 1);
}

static fsdp_process_group *group_of(fsdp_context *context, int a, int b, const char *name)
{
    int ranks[2] = {a < b ? a : b, a < b ? b : a};
    fsdp_process_group *group;

    CHECK_OK(fsdp_process_group_create(context, ranks, 2, name, &group));
    return group;
}

/* ---- ranks that stand still ---- */

static void one_stands_still(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *world = fsdp_world(context);
    float x[4] = {0};
    listener l;

    begin(context, s, &l);
    CHECK_OK(fsdp_barrier(world));
    if (l.rank == 1)
        stand_still_until(&s->failed, 2);
    keep_error(context, s, fsdp_all_reduce(world, x, x, 4, FSDP_F32, FSDP_SUM, fsdp_device_stream(fsdp_cpu(context))));
    CHECK_ERROR(fsdp_barrier(world), FSDP_COMM, "group 'world' is broken: ");
    CHECK_CONTAINS(fsdp_last_error(), "for rank 1, which has stood still for");
}

TEST(a_rank_that_stands_still_ends_the_run)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(3, one_stands_still, &s);
    for (int r = 0; r < 3; r++) {
        CHECK_EQ(s.statuses[r], FSDP_COMM);
        CHECK_CONTAINS(s.messages[r], "(comm.timeout is 0.1 s) in call 3 of group 'world' (all_reduce) for rank 1, "
                                      "which has stood still for ");
        CHECK_CONTAINS(s.messages[r], ", last in call 2 of group 'world' (barrier); rank ");
        CHECK_CONTAINS(s.messages[r], " waits in call 3 of group 'world' (all_reduce)");
    }
}

static void a_short_timeout_ends(fsdp_context *context, void *arg)
{
    const fsdp__arena_view *view = fsdp__comm_get(context)->transport;
    shared *s = arg;
    listener l;

    begin(context, s, &l);
    CHECK_OK(fsdp_context_set_comm_timeout(context, 1e-6));
    CHECK(atomic_load(&view->health.timeout_ticks) > 0);
    CHECK_OK(fsdp__context_set_comm_ticks(context, s->timeout_ms, TICK_MS));
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    if (l.rank == 1)
        stand_still_until(&s->failed, 1);
    keep_error(context, s, fsdp_barrier(fsdp_world(context)));
}

TEST(the_shortest_timeout_is_not_for_ever)
{
    shared s = {.timeout_ms = 1};

    test_run_ranks(2, a_short_timeout_ends, &s);
    CHECK_EQ(s.statuses[0], FSDP_COMM);
    CHECK_CONTAINS(s.messages[0],
                   "(comm.timeout is 0.001 s) in call 3 of group 'world' (barrier) for rank 1, which has "
                   "stood still for ");
}

static void two_of_three(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *group;
    listener l;

    begin(context, s, &l);
    group = group_of(context, 0, 1, "two");
    if (l.rank > 0)
        stand_still_until(&s->failed, 1);
    else
        keep_error(context, s, fsdp_barrier(group));
    fsdp_process_group_free(group);
}

TEST(of_a_rank_that_nobody_waits_for_nothing_is_said)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(3, two_of_three, &s);
    CHECK_CONTAINS(s.messages[0], "for rank 1, which has stood still for ");
    CHECK_CONTAINS(s.messages[0], "; rank 2 is elsewhere, last in call ");
}

static void a_reader_stands_still(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    listener l;
    void *region;

    begin(context, s, &l);
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, &region));
    fsdp__process_group_begin_read(world, region);
    if (l.rank == 1) {
        stand_still_until(&s->failed, 1);
        return;
    }
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    keep_error(context, s, fsdp__process_group_await_readers(world, region, stream));
}

TEST(a_reader_that_stands_still_ends_the_run)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(2, a_reader_stands_still, &s);
    CHECK_EQ(s.statuses[0], FSDP_COMM);
    CHECK_CONTAINS(s.messages[0], "before a write (others still read there) for rank 1, which has stood still for ");
    CHECK_CONTAINS(s.messages[0], "last in call 2 of group 'world' (process_group_alloc)");
}

/* Rank 0 waits for 1, which waits for 2 in another group. */
static void behind_another(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *first = group_of(context, 0, 1, "first"), *second = group_of(context, 1, 2, "second");
    listener l;

    begin(context, s, &l);
    if (l.rank == 2)
        stand_still_until(&s->failed, 2);
    else
        keep_error(context, s, fsdp_barrier(l.rank == 0 ? first : second));
    fsdp_process_group_free(first);
    fsdp_process_group_free(second);
}

TEST(the_rank_that_all_wait_for_is_named)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(3, behind_another, &s);
    for (int r = 0; r < 2; r++)
        CHECK_CONTAINS(s.messages[r], "for rank 2, which has stood still for ");
}

/* Workers that come to two groups in another order: no program waits in comm's sight, and nothing moves. */
static void cross_on_workers(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *groups[2] = {group_of(context, 0, 1, "a"), group_of(context, 0, 1, "b")};
    int rank = fsdp_context_rank(context);
    float x[2][4] = {{0}};
    fsdp_stream *worker;
    listener l;

    begin(context, s, &l);
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &worker));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_all_reduce(groups[i != rank], x[i], x[i], 4, FSDP_F32, FSDP_SUM, worker));
    keep_error(context, s, fsdp_stream_synchronize(worker));
    fsdp_stream_free(worker);
    fsdp_process_group_free(groups[0]);
    fsdp_process_group_free(groups[1]);
}

TEST(workers_that_wait_for_each_other_end_with_the_timeout)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(2, cross_on_workers, &s);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(s.statuses[r], FSDP_COMM);
        CHECK_CONTAINS(s.messages[r], "call 1 of group 'a' (all_reduce)");
        CHECK_CONTAINS(s.messages[r], "call 1 of group 'b' (all_reduce)");
    }
}

/* ---- ranks that are slow ---- */

static void one_computes(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *world = fsdp_world(context);
    listener l;

    begin(context, s, &l);
    CHECK_OK(fsdp_barrier(world));
    if (l.rank == 1)
        compute_until(context, &s->lines, 5); /* after 1/5, 2/5, 4/5, 8/5 and 16/5 of the timeout */
    if (l.rank == 2)
        compute_until(context, &s->lines, 1); /* then rank 0 has come before */
    CHECK_OK(fsdp_barrier(world));
}

TEST(a_rank_that_computes_may_take_longer)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(3, one_computes, &s);
    CHECK_CONTAINS(s.log[0], "[rank 0] waiting "); /* for longer where rank 1 gets no processor meanwhile */
    CHECK_CONTAINS(s.log[0],
                   " in call 3 of group 'world' (barrier) for rank 1, which computes, last in call 2 of group 'world'");
    CHECK_STRING(s.log[2], ""); /* one rank speaks for all */
}

static void one_sleeps(fsdp_context *context, void *arg)
{
    shared *s = arg;
    listener l;

    begin(context, s, &l);
    if (l.rank == 1)
        stand_still_until(&s->lines, 2);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

TEST(without_a_timeout_a_rank_may_stand_still)
{
    shared s = {.timeout_ms = 0};

    test_run_ranks(2, one_sleeps, &s);
    CHECK_CONTAINS(s.log[0], " in call 2 of group 'world' (barrier) for rank 1, which ");
    CHECK_CONTAINS(s.log[0], ", last in call 1 of group 'world' (barrier)");
}

/* ---- circles ---- */

/* Ranks 0 to length - 1 wait each for the next; the others for rank 0 in the world. */
static void wait_in_a_circle(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *own = NULL, *groups[WORLD];
    int rank = fsdp_context_rank(context);
    float x[4] = {0};
    listener l;

    begin(context, s, &l);
    for (int r = 0; r < s->length; r++) {
        char name[24];

        snprintf(name, sizeof name, "%d and next", r);
        groups[r] = group_of(context, r, (r + 1) % s->length, name);
        if (r == rank)
            own = groups[r];
    }
    if (rank == 1)
        keep_error(context, s,
                   fsdp_all_reduce(own, x, x, 4, FSDP_F32, FSDP_SUM, fsdp_device_stream(fsdp_cpu(context))));
    else
        keep_error(context, s, fsdp_barrier(own ? own : fsdp_world(context)));
    for (int r = 0; r < s->length; r++)
        fsdp_process_group_free(groups[r]);
}

TEST(ranks_that_wait_in_a_circle_are_all_named)
{
    for (int length = 2; length <= 4; length++)
        for (int world = length; world <= length + 2; world += 2) {
            shared s = {.timeout_ms = 0, .length = length};

            test_run_ranks(world, wait_in_a_circle, &s);
            for (int r = 0; r < world; r++) {
                CHECK_EQ(s.statuses[r], FSDP_MISMATCH);
                CHECK_CONTAINS(s.messages[r], "rank 0 waits for rank 1 in call 1 of group '0 and next' (barrier)");
                CHECK_CONTAINS(s.messages[r], "rank 1 waits for rank ");
                CHECK_CONTAINS(s.messages[r], " in call 1 of group '1 and next' (all_reduce)");
                CHECK_CONTAINS(s.messages[r], ": all ranks must make the same calls in the same order");
            }
        }
}

/* Rank 1's worker waits for rank 0 in one group, and its program is yet to come to the other. */
static void wait_on_a_worker(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *a = group_of(context, 0, 1, "a"), *b = group_of(context, 0, 1, "b");
    fsdp_stream *worker;
    float x[4] = {0};
    listener l;

    begin(context, s, &l);
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &worker));
    if (l.rank == 1) {
        CHECK_OK(fsdp_all_reduce(b, x, x, 4, FSDP_F32, FSDP_SUM, worker));
        if (s->computes)
            compute_until(context, &s->lines, 5);
    }
    CHECK_OK(fsdp_barrier(a));
    if (l.rank == 0)
        CHECK_OK(fsdp_all_reduce(b, x, x, 4, FSDP_F32, FSDP_SUM, worker));
    CHECK_OK(fsdp_stream_synchronize(worker));
    fsdp_stream_free(worker);
    fsdp_process_group_free(a);
    fsdp_process_group_free(b);
}

TEST(a_worker_that_waits_makes_no_circle)
{
    for (int computes = 0; computes < 2; computes++) {
        shared s = {.timeout_ms = TIMEOUT_MS, .computes = computes};

        test_run_ranks(2, wait_on_a_worker, &s);
    }
}

/* Rank 0's worker waits for rank 1 to end a read, which waits for rank 0 in a meeting; but it is rank 2 that rank 0's
 * program waits for. */
static void write_on_a_worker(fsdp_context *context, void *arg)
{
    shared *s = arg;
    fsdp_process_group *world = fsdp_world(context), *a = group_of(context, 0, 2, "a"),
                       *b = group_of(context, 0, 1, "b");
    fsdp_stream *worker;
    listener l;
    void *region;

    begin(context, s, &l);
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &worker));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, &region));
    fsdp__process_group_begin_read(world, region);
    if (l.rank == 1)
        CHECK_OK(fsdp_barrier(b));
    CHECK_OK(fsdp__process_group_end_read(world, region, worker));
    if (l.rank == 0)
        CHECK_OK(fsdp__process_group_await_readers(world, region, worker));
    if (l.rank == 2)
        compute_until(context, &s->lines, 5);
    if (l.rank != 1)
        CHECK_OK(fsdp_barrier(a));
    if (l.rank == 0)
        CHECK_OK(fsdp_barrier(b));
    CHECK_OK(fsdp_stream_synchronize(worker));
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
    fsdp_stream_free(worker);
    fsdp_process_group_free(a);
    fsdp_process_group_free(b);
}

TEST(a_worker_that_writes_makes_no_circle)
{
    shared s = {.timeout_ms = TIMEOUT_MS};

    test_run_ranks(3, write_on_a_worker, &s);
}

/* ---- no false alarm ---- */

enum {
    GROUPS = 7,
    CALLS = 400
};

/* The same on every rank. */
static int draw(int call, int what, int choices)
{
    uint32_t words[4];

    fsdp__philox(99, (uint64_t)call * 8 + (uint64_t)what, words);
    return (int)(words[0] % (uint32_t)choices);
}

static void make_groups(fsdp_context *context, fsdp_process_group **groups)
{
    int world = fsdp_context_world_size(context);

    groups[0] = fsdp_world(context);
    for (int g = 1; g < GROUPS; g++) {
        int ranks[WORLD], count = 0;
        char name[24];

        for (int r = 0; r < world; r++)
            if (draw(g, r, 2) || r == g % world || r == (g + 1) % world)
                ranks[count++] = r;
        snprintf(name, sizeof name, "group %d", g);
        CHECK_OK(fsdp_process_group_create(context, ranks, count, name, &groups[g]));
    }
}

static void mix_calls(fsdp_context *context, void *arg)
{
    fsdp_process_group *groups[GROUPS];
    fsdp_stream *streams[3] = {fsdp_device_stream(fsdp_cpu(context))};
    static _Thread_local float x[CALLS][16];
    listener l;

    begin(context, arg, &l);
    make_groups(context, groups);
    for (int i = 1; i < 3; i++)
        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &streams[i]));
    for (int i = 0; i < CALLS; i++) {
        fsdp_process_group *group = groups[draw(i, 0, GROUPS)];
        fsdp_stream *stream = streams[draw(i, 1, 3)];

        if (draw(i, 2 + l.rank % 4, 12) == 0)
            usleep((useconds_t)draw(i, 6, 6000)); /* some ranks are late */
        if (!group)
            continue;
        if (draw(i, 7, 5) == 0)
            CHECK_OK(fsdp_barrier(group));
        else
            CHECK_OK(fsdp_all_reduce(group, x[i], x[i], 16, FSDP_F32, FSDP_SUM, stream));
    }
    for (int i = 1; i < 3; i++) {
        CHECK_OK(fsdp_stream_synchronize(streams[i]));
        fsdp_stream_free(streams[i]);
    }
    for (int g = 1; g < GROUPS; g++)
        fsdp_process_group_free(groups[g]);
}

TEST(ranks_that_go_on_are_left_alone)
{
    for (int world = 4; world <= WORLD; world += 4) {
        shared s = {.timeout_ms = LONG_MS};

        test_run_ranks(world, mix_calls, &s);
    }
}

/* ---- what is refused ---- */

TEST(a_timeout_is_a_number_of_seconds)
{
    fsdp_context *context = test_context();

    CHECK_OK(fsdp_context_set_comm_timeout(context, 0));
    CHECK_OK(fsdp_context_set_comm_timeout(context, 0.5));
    CHECK_ERROR(fsdp_context_set_comm_timeout(context, -1), FSDP_INVALID,
                "cannot wait -1 seconds for a rank: expected 0 (for ever) to 1000000000");
    CHECK_ERROR(fsdp_context_set_comm_timeout(context, 2e9), FSDP_INVALID, "cannot wait 2e+09 seconds");
    CHECK_ERROR(fsdp_context_set_comm_timeout(context, 0.0 / 0.0), FSDP_INVALID, "nan seconds");
    CHECK_ERROR(fsdp_context_set_comm_timeout(NULL, 1), FSDP_INVALID, "the context is NULL");
    fsdp_context_free(context);
}
