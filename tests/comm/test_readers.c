/* test_readers.c - who writes to shared memory waits for the peers that still read it, for no others, and not for ever.
 */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <unistd.h>

#include "base/compiler.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "support/ranks.h"

enum {
    WORLDS = 5,
    BYTES = 640,
    SLOW_US = 4000,
    ROUNDS = 3
};

/* One rank reads late, each in its turn; the reads end on a stream of this mode. */
typedef struct reads {
    fsdp_stream_mode mode;
    int late;
    atomic_int read[WORLDS];  /* reads that the rank has really ended */
    atomic_int waited, write; /* ranks that have waited; whether the late one may go on */
    char messages[WORLDS][1024];
} reads;

static void pause_until(atomic_int *what, int value)
{
    while (atomic_load(what) < value)
        usleep(200);
}

/* A group of one has none, and is given the rank's own. */
static void *shared(fsdp_process_group *group)
{
    void *region = NULL;

    if (fsdp_process_group_size(group) == 1)
        return calloc(1, BYTES);
    CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SHARED, BYTES, &region));
    return region;
}

static void let_go(fsdp_process_group *group, void *region)
{
    if (fsdp_process_group_size(group) == 1)
        free(region);
    else
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, region, BYTES);
}

static fsdp_stream *open_stream(fsdp_context *context, fsdp_stream_mode mode)
{
    fsdp_stream *stream;

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), mode, &stream));
    return stream;
}

/* ---- waiting ---- */

typedef struct reading {
    reads *r;
    int rank, round;
} reading;

static fsdp_status read_on_stream(fsdp_stream *stream, const void *arg)
{
    const reading *now = arg;

    (void)stream;
    if (now->rank == now->r->late)
        usleep(SLOW_US);
    atomic_store(&now->r->read[now->rank], now->round + 1);
    return FSDP_OK;
}

static fsdp_status look_on_stream(fsdp_stream *stream, const void *arg)
{
    const reading *now = arg;

    (void)stream;
    for (int r = 0; r < WORLDS; r++)
        if (atomic_load(&now->r->read[r]) < now->round + 1)
            return FSDP_FAIL(FSDP_INVALID, "rank %d writes while rank %d reads", now->rank, r);
    return FSDP_OK;
}

static void everybody_waits(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = open_stream(context, r->mode);
    void *region = shared(world);

    for (int round = 0; round < ROUNDS; round++) {
        const reading now = {r, fsdp_context_rank(context), round};

        fsdp__process_group_begin_read(world, region);
        CHECK_OK(fsdp__stream_enqueue(stream, read_on_stream, &now, sizeof now));
        CHECK_OK(fsdp__process_group_end_read(world, region, stream));
        CHECK_OK(fsdp__process_group_await_readers(world, region, stream));
        CHECK_OK(fsdp__stream_enqueue(stream, look_on_stream, &now, sizeof now));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_OK(fsdp_barrier(world)); /* writing is done */
    }
    let_go(world, region);
    fsdp_stream_free(stream);
}

TEST(a_writer_waits_for_the_peers_that_lag)
{
    for (int world = 1; world <= WORLDS; world++)
        for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++)
            for (int late = 0; late < world; late++) {
                reads r = {.mode = (fsdp_stream_mode)mode, .late = late};

                for (int absent = world; absent < WORLDS; absent++)
                    r.read[absent] = ROUNDS;
                test_run_ranks(world, everybody_waits, &r);
            }
}

/* The late rank is in its next read already, or away, until all the others have waited. */
static void others_wait(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = open_stream(context, r->mode);
    void *region = shared(world);

    fsdp__process_group_begin_read(world, region);
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    if (fsdp_context_rank(context) == r->late) {
        fsdp__process_group_begin_read(world, region);
        pause_until(&r->waited, fsdp_process_group_size(world) - 1);
    } else {
        CHECK_OK(fsdp__process_group_await_readers(world, region, stream));
        CHECK_OK(fsdp_stream_synchronize(stream));
        atomic_fetch_add(&r->waited, 1);
        fsdp__process_group_begin_read(world, region);
    }
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    CHECK_OK(fsdp__process_group_await_readers(world, region, stream));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_OK(fsdp_barrier(world));
    let_go(world, region);
    fsdp_stream_free(stream);
}

TEST(a_writer_does_not_wait_for_peers_that_have_ended)
{
    for (int world = 1; world <= WORLDS; world++)
        for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
            reads r = {.mode = (fsdp_stream_mode)mode, .late = world / 2};

            test_run_ranks(world, others_wait, &r);
        }
}

static void two_regions(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = open_stream(context, r->mode);
    void *one = shared(world), *other = shared(world);

    fsdp__process_group_begin_read(world, one);
    fsdp__process_group_begin_read(world, other);
    CHECK_OK(fsdp__process_group_end_read(world, other, stream));
    if (fsdp_context_rank(context) == r->late) {
        pause_until(&r->waited, fsdp_process_group_size(world) - 1);
        atomic_store(&r->read[r->late], 1);
        CHECK_OK(fsdp__process_group_end_read(world, one, stream));
    } else {
        CHECK_OK(fsdp__process_group_await_readers(world, other, stream)); /* of which the late rank is done */
        CHECK_OK(fsdp_stream_synchronize(stream));
        atomic_fetch_add(&r->waited, 1);
        CHECK_OK(fsdp__process_group_end_read(world, one, stream));
        CHECK_OK(fsdp__process_group_await_readers(world, one, stream));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_EQ(atomic_load(&r->read[r->late]), 1);
    }
    CHECK_OK(fsdp_barrier(world));
    let_go(world, other);
    let_go(world, one);
    fsdp_stream_free(stream);
}

TEST(regions_have_readers_of_their_own)
{
    for (int world = 2; world <= WORLDS; world++)
        for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++) {
            reads r = {.mode = (fsdp_stream_mode)mode, .late = world - 1};

            test_run_ranks(world, two_regions, &r);
        }
}

WORLDS_TEST(alone_there_is_nobody_to_wait_for, 1, 2)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    int own[1] = {fsdp_context_rank(context)};
    fsdp_process_group *group;
    void *region;

    CHECK_OK(fsdp_process_group_create(context, own, 1, "alone", &group));
    region = shared(group);
    fsdp__process_group_begin_read(group, region); /* a read that nobody ends */
    CHECK_OK(fsdp__process_group_await_readers(group, region, stream));
    CHECK_OK(fsdp__process_group_end_read(group, region, stream));
    CHECK_OK(fsdp__process_group_await_readers(group, region, stream));
    fsdp__process_group_begin_read(fsdp_world(context), NULL);
    CHECK_OK(fsdp__process_group_end_read(fsdp_world(context), NULL, stream));
    CHECK_OK(fsdp__process_group_await_readers(fsdp_world(context), NULL, stream));
    let_go(group, region);
    fsdp_process_group_free(group);
}

/* ---- peers that wait themselves, but not for the writer ---- */

/* Ranks 1 and 2 meet each other while 1 reads and 0 waits for it. */
static void meet_elsewhere(fsdp_context *context, void *arg)
{
    const reads *r = arg;
    fsdp_process_group *world = fsdp_world(context), *pair = NULL;
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    int rank = fsdp_context_rank(context), ranks[2] = {1, 2};
    void *region = shared(world);

    CHECK_OK(fsdp_process_group_create(context, ranks, 2, "pair", &pair));
    fsdp__process_group_begin_read(world, region);
    if (rank == r->late)
        usleep(SLOW_US);
    if (rank > 0)
        CHECK_OK(fsdp_barrier(pair));
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    CHECK_OK(fsdp__process_group_await_readers(world, region, stream));
    CHECK_OK(fsdp_barrier(world));
    let_go(world, region);
    fsdp_process_group_free(pair);
}

TEST(a_peer_may_wait_for_others)
{
    for (int late = 0; late < 3; late++) {
        reads r = {.late = late};

        test_run_ranks(3, meet_elsewhere, &r);
    }
}

/* A collective on a worker stream of the reader waits for the writer, but its program goes on. */
static void collective_on_a_worker(fsdp_context *context, void *arg)
{
    const reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *worker = open_stream(context, FSDP_STREAM_WORKER);
    int rank = fsdp_context_rank(context), size = fsdp_process_group_size(world);
    float x[3] = {(float)rank, 1, 2}, y[3 * WORLDS];
    void *region = shared(world);

    fsdp__process_group_begin_read(world, region);
    if (rank == r->late) {
        CHECK_OK(fsdp_all_gather(world, x, y, 3, FSDP_F32, worker));
        usleep(SLOW_US);
    }
    CHECK_OK(fsdp__process_group_end_read(world, region, fsdp_device_stream(fsdp_cpu(context))));
    CHECK_OK(fsdp__process_group_await_readers(world, region, fsdp_device_stream(fsdp_cpu(context))));
    if (rank != r->late)
        CHECK_OK(fsdp_all_gather(world, x, y, 3, FSDP_F32, worker));
    CHECK_OK(fsdp_stream_synchronize(worker));
    CHECK_EQ(y[3 * (size - 1)], size - 1);
    let_go(world, region);
    fsdp_stream_free(worker);
}

TEST(what_waits_on_a_worker_stream_holds_nobody_up)
{
    for (int world = 2; world <= WORLDS; world++)
        for (int late = 0; late < world; late++) {
            reads r = {.late = late};

            test_run_ranks(world, collective_on_a_worker, &r);
        }
}

/* ---- peers that wait for the writer ---- */

static void keep_message(fsdp_context *context, reads *r, fsdp_status status)
{
    CHECK(status != FSDP_OK);
    snprintf(r->messages[fsdp_context_rank(context)], sizeof r->messages[0], "%s", fsdp_last_error());
    CHECK(fsdp_barrier(fsdp_world(context)) != FSDP_OK); /* the world has ended */
}

static void barrier_while_reading(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    void *region = shared(world);
    int rank = fsdp_context_rank(context);

    fsdp__process_group_begin_read(world, region);
    if (rank == r->late)
        usleep(SLOW_US);
    if (rank == 1) {
        keep_message(context, r, fsdp_barrier(world));
        return;
    }
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    keep_message(context, r,
                 rank == 0 ? fsdp__process_group_await_readers(world, region, stream) : fsdp_barrier(world));
}

TEST(a_collective_while_reading_is_an_error_that_names_both)
{
    for (int world = 2; world <= WORLDS; world++)
        for (int late = 0; late < 2; late++) {
            reads r = {.late = late};

            test_run_ranks(world, barrier_while_reading, &r);
            for (int rank = 0; rank < world; rank++) {
                CHECK_CONTAINS(r.messages[rank], "rank 0 cannot write to memory that rank 1 still reads");
                CHECK_CONTAINS(r.messages[rank], "rank 1 waits for rank 0 in call 2 of group 'world' (barrier)");
            }
        }
}

static void await_each_other(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    int rank = fsdp_context_rank(context);
    void *regions[2] = {shared(world), shared(world)};

    for (int i = 0; i < 2; i++)
        fsdp__process_group_begin_read(world, regions[i]);
    if (rank == r->late)
        usleep(SLOW_US);
    if (rank < 2) {
        CHECK_OK(fsdp__process_group_end_read(world, regions[rank], stream));
        keep_message(context, r, fsdp__process_group_await_readers(world, regions[rank], stream));
        return;
    }
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp__process_group_end_read(world, regions[i], stream));
    keep_message(context, r, fsdp_barrier(world));
}

TEST(writers_that_wait_for_each_other_are_an_error_that_names_both)
{
    for (int world = 2; world <= WORLDS; world++)
        for (int late = 0; late < 2; late++) {
            reads r = {.late = late};

            test_run_ranks(world, await_each_other, &r);
            for (int rank = 0; rank < world; rank++) {
                CHECK_CONTAINS(r.messages[rank], "cannot write to memory that rank");
                CHECK_CONTAINS(r.messages[rank], "rank 0");
                CHECK_CONTAINS(r.messages[rank], "rank 1");
                CHECK_CONTAINS(r.messages[rank], ", and rank ");
            }
        }
}

/* ---- peers that end ---- */

static void leave_while_reading(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = open_stream(context, r->mode);
    void *region = shared(world);
    int rank = fsdp_context_rank(context);
    fsdp_status status;

    fsdp__process_group_begin_read(world, region);
    if (rank == r->late)
        usleep(SLOW_US);
    if (rank == 1) {
        if (r->write)
            fsdp_abort(context, "no more");
        fsdp_stream_free(stream);
        return;
    }
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
    status = fsdp__process_group_await_readers(world, region, stream);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(stream);
    CHECK(status != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), r->write ? "no more" : "rank 1 has left");
    fsdp_stream_free(stream);
}

TEST(a_reader_that_ends_ends_the_waiting)
{
    for (int world = 2; world <= WORLDS; world += WORLDS - 2)
        for (int mode = FSDP_STREAM_INLINE; mode <= FSDP_STREAM_WORKER; mode++)
            for (int variant = 0; variant < 4; variant++) {
                reads r = {.mode = (fsdp_stream_mode)mode, .late = variant % 2, .write = variant / 2};

                test_run_ranks(world, leave_while_reading, &r);
            }
}

/* The second ends its read and leaves at once: whoever sees that it has left must see the read ended, too. */
static void leave_behind_the_read(fsdp_context *context, void *arg)
{
    reads *r = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    void *region = shared(world);
    int rank = fsdp_context_rank(context);

    fsdp__process_group_begin_read(world, region);
    if (rank == 0) {
        CHECK_OK(fsdp__process_group_end_read(world, region, stream));
        atomic_store(&r->write, 1);
        CHECK_OK(fsdp__process_group_await_readers(world, region, stream));
        return;
    }
    while (!atomic_load(&r->write))
        sched_yield();
    for (int i = 0; i < r->late; i++) /* so that the writer is about to sleep, or asleep */
        sched_yield();
    CHECK_OK(fsdp__process_group_end_read(world, region, stream));
}

TEST(a_reader_that_ends_behind_its_read_is_not_missed)
{
    enum {
        TIMES = 150
    };

    for (int i = 0; i < TIMES; i++) {
        reads r = {.late = i % 30};

        test_run_ranks(2, leave_behind_the_read, &r);
    }
}

/* ---- a group that goes ---- */

static fsdp_status pass(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    pause_until(*(atomic_int *const *)argument, 1);
    return FSDP_OK;
}

/* Opens the gate a while after the program has begun to free its group, which waits for that. */
static void *open_late(void *gate)
{
    usleep(5 * SLOW_US);
    atomic_store((atomic_int *)gate, 1);
    return NULL;
}

/* Frees a group behind whose last call a stream has yet to end a read, and to wait for readers. */
static void free_behind(fsdp_context *context, void *arg)
{
    fsdp_stream *stream = open_stream(context, FSDP_STREAM_WORKER);
    fsdp_process_group *group = NULL;
    atomic_int open = 0, *gate = &open;
    int ranks[] = {0, 1};
    pthread_t opener;
    void *region;

    (void)arg;
    CHECK_OK(fsdp_process_group_create(context, ranks, 2, "pair", &group));
    region = shared(group);
    CHECK_OK(fsdp__stream_enqueue(stream, pass, &gate, sizeof gate));
    fsdp__process_group_begin_read(group, region);
    CHECK_OK(fsdp__process_group_end_read(group, region, stream));
    CHECK_OK(fsdp__process_group_await_readers(group, region, stream));
    let_go(group, region);
    CHECK_EQ(pthread_create(&opener, NULL, open_late, gate), 0);
    fsdp_process_group_free(group);
    CHECK_EQ(atomic_load(gate), 1);
    CHECK_EQ(pthread_join(opener, NULL), 0);
    CHECK_OK(fsdp_stream_synchronize(stream));
    fsdp_stream_free(stream);
}

TEST(a_group_is_freed_when_streams_are_through_with_its_readers)
{
    test_run_ranks(2, free_behind, NULL);
}

/* ---- who of all has a flag ---- */

static void flags(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_context_rank(context), size = fsdp_process_group_size(world);
    fsdp_comm_stats before, after;
    uint8_t any[300];

    (void)arg;
    fsdp_process_group_stats(world, &before);
    for (int64_t count = 0; count <= (int64_t)sizeof any; count += 1 + count * 5) {
        for (int64_t i = 0; i < count; i++)
            any[i] = i % 7 == rank; /* none at 5 and 6 */
        CHECK_OK(fsdp__process_group_any(world, &(fsdp__any){.flags = any, .count = count}));
        for (int64_t i = 0; i < count; i++)
            CHECK_EQ(any[i], i % 7 < size);
    }
    fsdp_process_group_stats(world, &after);
    CHECK_BYTES(&after, &before, sizeof before);
}

TEST(a_flag_of_any_rank_is_seen_by_all)
{
    for (int world = 1; world <= WORLDS; world++)
        test_run_ranks(world, flags, NULL);
}

RANKS_TEST(ranks_with_other_counts_of_flags_disagree, 3)
{
    uint8_t any[3] = {0};

    CHECK_ERROR(fsdp__process_group_any(fsdp_world(context),
                                        &(fsdp__any){.flags = any, .count = 2 + (fsdp_context_rank(context) == 1)}),
                FSDP_MISMATCH, "ranks disagree in group 'world'");
}
