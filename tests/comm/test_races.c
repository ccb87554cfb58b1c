/* Ranks that use each other's memory are ordered by meetings, by readers that are awaited, and by the calls after which
 * memory is handed out again; and where they are not, the race check says so.
 *
 * Ranks that are not ordered on purpose are kept apart in time by a flag that the check does not know. */
#include "device/kernels.h"

#include <stdatomic.h>
#include <unistd.h>

#include "comm/group_calls.h"
#include "device/device.h"
#include "support/ranks.h"

enum {
    COUNT = 96,
    BYTES = COUNT * (int)sizeof(float)
};

typedef struct plan {
    bool right;         /* no race */
    atomic_bool passed; /* ranks wait for it */
} plan;

typedef struct seat {
    plan *plan;
    fsdp_process_group *world;
    fsdp_stream *stream; /* with a thread */
    int rank;
} seat;

static seat take_seat(fsdp_context *context, void *arg)
{
    seat s = {.plan = arg, .world = fsdp_world(context), .rank = fsdp_context_rank(context)};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &s.stream));
    return s;
}

static void leave_seat(seat *s)
{
    (void)fsdp_stream_synchronize(s->stream);
    fsdp_stream_free(s->stream);
}

/* The others go on when `rank` has come here, in secret. */
static void let_first(const seat *s, int rank)
{
    if (s->rank == rank)
        atomic_store(&s->plan->passed, true);
    while (!atomic_load(&s->plan->passed))
        usleep(100);
}

static void fill(fsdp_stream *stream, void *memory, int64_t count)
{
    (void)fsdp__launch_fill(stream, &(fsdp__fill_args){memory, FSDP_F32, count, 1.0});
    (void)fsdp_stream_synchronize(stream);
}

static void look(fsdp_stream *stream, const void *memory, int64_t count)
{
    float values[COUNT];

    (void)fsdp__copy_to_host(stream, values, memory, (size_t)count * sizeof *values);
    (void)fsdp_stream_synchronize(stream);
}

/* Both ways of `body`: the right one is silent, the other is found, with these parts in its message. */
static void check(test_rank_body body, const char *first, const char *second)
{
    char race[1024];
    plan p = {.right = true};

    test_run_racing_ranks(2, body, &p, race, sizeof race);
    CHECK_STRING(race, "");
    p = (plan){.right = false};
    test_run_racing_ranks(2, body, &p, race, sizeof race);
    CHECK_CONTAINS(race, first);
    CHECK_CONTAINS(race, second);
}

/* ---- meetings ---- */

static void use_in_turns(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    void *shared = NULL;

    CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SHARED, BYTES, &shared));
    if (s.rank == 0)
        fill(s.stream, shared, COUNT);
    if (s.plan->right)
        CHECK_OK(fsdp_barrier(s.world));
    let_first(&s, 0);
    if (s.rank == 1)
        look(s.stream, shared, COUNT);
    leave_seat(&s);
    fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SHARED, shared, BYTES);
}

TEST(a_barrier_orders_ranks)
{
    check(use_in_turns, "stream 0 of rank 0 writes them in kernel 'fill' ('dst')", "stream 0 of rank 1 reads them");
}

/* A gather in shared memory is a meeting: who writes on after it has not been waited for. */
static void gather_in_place(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    void *shared = NULL;
    float *own;
    fsdp_sharded_buffer buffer = {
        .numel = COUNT, .chunk = COUNT / 2, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};

    CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SHARED, BYTES, &shared));
    own = (float *)shared + s.rank * COUNT / 2;
    fill(s.stream, own, COUNT / 2);
    buffer.unsharded = shared;
    buffer.shard = own;
    CHECK_OK(fsdp_all_gather_coalesced(s.world, &buffer, 1, s.stream));
    CHECK_OK(fsdp_stream_synchronize(s.stream));
    if (s.rank == 0)
        look(s.stream, shared, COUNT);
    if (s.plan->right)
        CHECK_OK(fsdp_barrier(s.world));
    let_first(&s, 0);
    if (s.rank == 1)
        fill(s.stream, own, COUNT / 2);
    leave_seat(&s);
    fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SHARED, shared, BYTES);
}

TEST(a_gather_orders_what_comes_before_it_alone)
{
    check(gather_in_place, "stream 0 of rank 0 reads them", "stream 0 of rank 1 writes them in kernel 'fill' ('dst')");
}

/* ---- symmetric memory ---- */

static void reduce_and_write_on(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    float shard[COUNT / 2];
    void *gradient = NULL;
    fsdp_sharded_buffer buffer = {
        .shard = shard, .numel = COUNT, .chunk = COUNT / 2, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};
    const fsdp_reduce_options options = {.op = FSDP_SUM};

    CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SYMMETRIC, BYTES, &gradient));
    fill(s.stream, gradient, COUNT);
    buffer.unsharded = gradient;
    CHECK_OK(fsdp_reduce_scatter_coalesced(s.world, &buffer, 1, &options, s.stream));
    CHECK_OK(fsdp_stream_synchronize(s.stream));
    if (s.plan->right)
        CHECK_OK(fsdp_barrier(s.world));
    let_first(&s, 1);
    if (s.rank == 0)
        fill(s.stream, gradient, COUNT);
    leave_seat(&s);
    fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SYMMETRIC, gradient, BYTES);
}

TEST(peers_may_read_until_a_later_call)
{
    check(
        reduce_and_write_on,
        "stream 0 of rank 1 reads them in kernel 'reduce_ranks' ('srcs') of call 1, reduce_scatter_coalesced in group",
        "stream 0 of rank 0 writes them in kernel 'fill' ('dst')");
}

/* Freed, and handed out again: that waits for the peers by itself. */
static void reduce_and_free(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    const fsdp_reduce_options options = {.op = FSDP_SUM};
    float shard[COUNT / 2];

    for (int i = 0; i < 30; i++) {
        fsdp_sharded_buffer buffer = {
            .shard = shard, .numel = COUNT, .chunk = COUNT / 2, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};

        CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SYMMETRIC, BYTES, &buffer.unsharded));
        (void)fsdp__launch_fill(s.stream, &(fsdp__fill_args){buffer.unsharded, FSDP_F32, COUNT, 1.0});
        CHECK_OK(fsdp_reduce_scatter_coalesced(s.world, &buffer, 1, &options, s.stream));
        fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SYMMETRIC, buffer.unsharded, BYTES);
    }
    leave_seat(&s);
}

TEST(memory_is_handed_out_again_when_peers_have_read_it)
{
    char race[1024];
    plan p = {.right = true};

    for (int world = 2; world <= 4; world++) {
        test_run_racing_ranks(world, reduce_and_free, &p, race, sizeof race);
        CHECK_STRING(race, "");
    }
}

/* ---- readers ---- */

static void read_and_write(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    void *shared = NULL;

    CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SHARED, BYTES, &shared));
    fsdp__process_group_begin_read(s.world, shared);
    if (s.rank == 0)
        look(s.stream, shared, COUNT);
    CHECK_OK(fsdp__process_group_end_read(s.world, shared, s.stream));
    CHECK_OK(fsdp_stream_synchronize(s.stream));
    let_first(&s, 0);
    if (s.plan->right)
        CHECK_OK(fsdp__process_group_await_readers(s.world, shared, s.stream));
    if (s.rank == 1)
        fill(s.stream, shared, COUNT);
    leave_seat(&s);
    fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SHARED, shared, BYTES);
}

TEST(a_writer_must_await_readers)
{
    check(read_and_write, "stream 0 of rank 0 reads them", "stream 0 of rank 1 writes them in kernel 'fill' ('dst')");
}

/* A read that had begun later is none that was awaited. */
static void read_again_and_write(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    void *shared = NULL;

    CHECK_OK(fsdp_process_group_alloc(s.world, FSDP_MEMORY_SHARED, BYTES, &shared));
    for (int i = 0; i < 1 + (s.rank == 0); i++) {
        fsdp__process_group_begin_read(s.world, shared);
        if (s.rank == 0 && (i == 0 || !s.plan->right))
            look(s.stream, shared, COUNT);
        CHECK_OK(fsdp__process_group_end_read(s.world, shared, s.stream));
        CHECK_OK(fsdp_stream_synchronize(s.stream));
    }
    let_first(&s, 0);
    if (s.rank == 1) {
        CHECK_OK(fsdp__process_group_await_readers(s.world, shared, s.stream));
        fill(s.stream, shared, COUNT);
    }
    leave_seat(&s);
    fsdp_process_group_free_memory(s.world, FSDP_MEMORY_SHARED, shared, BYTES);
}

TEST(a_writer_is_ordered_after_the_reads_that_it_awaits)
{
    check(read_again_and_write, "stream 0 of rank 0 reads them", "stream 0 of rank 1 writes them");
}

/* ---- every collective, right as it is ---- */

static void call_all(fsdp_context *context, void *arg)
{
    seat s = take_seat(context, arg);
    fsdp_stream *streams[] = {s.stream, fsdp_device_stream(fsdp_cpu(context))};
    int size = fsdp_process_group_size(s.world);
    int64_t counts[] = {7, 3000, 70000};

    for (size_t i = 0; i < 3; i++)
        for (int round = 0; round < 4; round++) {
            int64_t n = counts[i];
            fsdp_stream *stream = streams[round % 2];
            size_t bytes = (size_t)(n * size) * sizeof(float);
            void *from, *to;

            CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), bytes, FSDP_MEMORY_WORKSPACE, &from));
            CHECK_OK(fsdp__device_alloc(fsdp_cpu(context), bytes, FSDP_MEMORY_WORKSPACE, &to));
            CHECK_OK(fsdp__launch_fill(stream, &(fsdp__fill_args){from, FSDP_F32, n * size, 1.0}));
            CHECK_OK(fsdp_all_gather(s.world, from, to, n, FSDP_F32, stream));
            CHECK_OK(fsdp_reduce_scatter(s.world, from, to, n, FSDP_F32, FSDP_AVG, stream));
            CHECK_OK(fsdp_all_reduce(s.world, to, to, n, FSDP_F32, FSDP_SUM, stream));
            CHECK_OK(fsdp_broadcast(s.world, to, n, FSDP_F32, round % size, stream));
            CHECK_OK(fsdp_all_to_all(s.world, from, to, n, FSDP_F32, stream));
            CHECK_OK(fsdp_stream_synchronize(stream));
            CHECK_OK(fsdp_agree(s.world, FSDP_OK));
            fsdp__device_free(fsdp_cpu(context), from, bytes, FSDP_MEMORY_WORKSPACE);
            fsdp__device_free(fsdp_cpu(context), to, bytes, FSDP_MEMORY_WORKSPACE);
        }
    leave_seat(&s);
}

TEST(collectives_order_what_they_use)
{
    char race[1024];
    plan p = {.right = true};

    for (int world = 1; world <= 4; world++) {
        test_run_racing_ranks(world, call_all, &p, race, sizeof race);
        CHECK_STRING(race, "");
    }
}
