/* test_shared_memory.c - gathers into shared memory: where in it the buffers lie is the same on all ranks, or all are
 * told.
 */
#include <string.h>

#include "support/ranks.h"

enum {
    NUMEL = 700,
    BYTES = 2 * NUMEL * (int)sizeof(float)
};

/* Of which two regions the two buffers' places are taken, in floats, on the odd one of the ranks. */
typedef struct where {
    int region, places[2];
    const char *expected; /* NULL: all is well */
} where;

static fsdp_sharded_buffer buffer_at(const fsdp_process_group *group, float *unsharded, float *shard)
{
    int size = fsdp_process_group_size(group);

    return (fsdp_sharded_buffer){.unsharded = unsharded,
                                 .shard = shard,
                                 .numel = NUMEL,
                                 .chunk = (NUMEL + size - 1) / size,
                                 .unsharded_dtype = FSDP_F32,
                                 .shard_dtype = FSDP_F32};
}

static void gather_at(fsdp_context *context, void *arg)
{
    const where *w = arg;
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world), size = fsdp_process_group_size(world);
    bool odd = rank == size - 1;
    float *regions[2], shards[2][NUMEL], *base;
    fsdp_sharded_buffer buffers[2];
    fsdp_status status;

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&regions[i]));
    base = regions[odd ? w->region : 0];
    for (int i = 0; i < 2; i++) {
        for (int k = 0; k < NUMEL; k++)
            shards[i][k] = (float)(1000 * i + rank);
        buffers[i] = buffer_at(world, base + (odd ? w->places[i] : i * NUMEL), shards[i]);
    }
    test_meet(); /* who is still in a call would fail in it */
    status = fsdp_all_gather_coalesced(world, buffers, 2, stream);
    CHECK_EQ(status, w->expected ? FSDP_MISMATCH : FSDP_OK);
    if (w->expected)
        CHECK_CONTAINS(fsdp_last_error(), w->expected);
    for (int i = 0; i < 2 * NUMEL && !w->expected; i++)
        CHECK_EQ(regions[0][i], 1000 * (i / NUMEL) + (i % NUMEL) / (int)buffers[0].chunk);
    test_meet(); /* nobody reads any more */
    for (int i = 0; i < 2; i++)
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, regions[i], BYTES);
}

TEST(ranks_that_gather_to_other_places_are_told)
{
    static const char elsewhere[] = "all_gather_coalesced of 2 buffers";
    where all[] = {{0, {0, NUMEL}, NULL},
                   {0, {NUMEL, 0}, elsewhere}, /* the other way round */
                   {1, {0, NUMEL}, elsewhere}, /* the same places of the other region */
                   {0, {0, 0}, elsewhere}};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        for (int size = 2; size <= 4; size++)
            test_run_ranks(size, gather_at, &all[i]);
        test_run_machines(2, 1, false, gather_at, &all[i]);
        test_run_machines(2, 2, false, gather_at, &all[i]);
        test_run_machines(3, 2, false, gather_at, &all[i]);
    }
}

/* Two groups of one name, and each gathers into what the other has, too. */
static void gather_among_namesakes(fsdp_context *context, void *arg)
{
    static const int all[] = {0, 1, 2, 3};
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_context_rank(context), size = fsdp_context_world_size(context);
    fsdp_process_group *groups[2];
    float *regions[2], shard[NUMEL] = {0};
    fsdp_sharded_buffer buffer;

    (void)arg;
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp_process_group_create(context, all, size, "dp", &groups[i]));
        CHECK_OK(fsdp_process_group_alloc(groups[i], FSDP_MEMORY_SHARED, BYTES, (void **)&regions[i]));
    }
    test_meet();
    buffer = buffer_at(groups[0], regions[rank == size - 1], shard);
    CHECK_ERROR(fsdp_all_gather_coalesced(groups[0], &buffer, 1, stream), FSDP_MISMATCH, " elsewhere in shared memory");
    test_meet();
    for (int i = 0; i < 2; i++) {
        fsdp_process_group_free_memory(groups[i], FSDP_MEMORY_SHARED, regions[i], BYTES);
        fsdp_process_group_free(groups[i]);
    }
}

TEST(memory_of_a_namesake_is_another)
{
    test_run_ranks(2, gather_among_namesakes, NULL);
    test_run_machines(2, 2, false, gather_among_namesakes, NULL);
}

/* One rank alone gathers to memory of its own. */
static void gather_to_own(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world), size = fsdp_process_group_size(world);
    float *region, own[NUMEL], shard[NUMEL] = {0};
    fsdp_sharded_buffer buffer;

    (void)arg;
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
    test_meet();
    buffer = buffer_at(world, rank == size - 1 ? own : region, shard);
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &buffer, 1, stream), FSDP_MISMATCH, " into memory that is not shared");
    test_meet();
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
}

TEST(memory_that_is_shared_on_some_ranks_is_told)
{
    test_run_ranks(3, gather_to_own, NULL);
    test_run_machines(2, 1, false, gather_to_own, NULL);
    test_run_machines(2, 2, false, gather_to_own, NULL);
}

RANKS_TEST(what_differs_is_said, 2)
{
    const where swapped = {0, {NUMEL, 0}, "shared memory"};

    gather_at(context, (void *)&swapped);
    CHECK_CONTAINS(fsdp_last_error(), " with 2800 bytes float32 on rank 0 but all_gather_coalesced of 2 buffers with "
                                      "2800 bytes float32 on rank 1 elsewhere in shared memory");
}

/* Local, and before anybody is met. */
static void gather_half(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    float *region, shards[2][NUMEL] = {{0}}, own[NUMEL];
    fsdp_sharded_buffer buffers[2];

    (void)arg;
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
    buffers[0] = buffer_at(world, region, shards[0]);
    buffers[1] = buffer_at(world, own, shards[1]);
    CHECK_ERROR(
        fsdp_all_gather_coalesced(world, buffers, 2, stream), FSDP_INVALID,
        "cannot all_gather_coalesced in group 'world': some of its buffers lie in shared memory, others do not");
    buffers[1].unsharded = region + 2 * NUMEL - 1; /* not all of it */
    CHECK_ERROR(fsdp_all_gather_coalesced(world, buffers, 2, stream), FSDP_INVALID,
                "buffer 1: it reaches beyond the end of the shared memory that it begins in");
    buffers[1].unsharded = region + NUMEL;
    CHECK_OK(fsdp_all_gather_coalesced(world, buffers, 2, stream));
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
}

TEST(buffers_of_which_some_are_shared_are_refused)
{
    test_run_ranks(3, gather_half, NULL);
    test_run_machines(2, 2, false, gather_half, NULL);
}

/* Memory of the world, used by halves of it, and again after it was given back and taken anew. */
static void gather_in_pairs(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context), *pair;
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world), first = rank / 2 * 2, ranks[2] = {first, first + 1};

    (void)arg;
    CHECK_OK(fsdp_process_group_create(context, ranks, 2, "pair", &pair));
    for (int round = 0; round < 3; round++) {
        float *region, shard[NUMEL];
        fsdp_sharded_buffer buffer;

        CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
        for (int k = 0; k < NUMEL; k++)
            shard[k] = (float)(10 * round + rank);
        buffer = buffer_at(pair, region + first / 2 * NUMEL, shard); /* each pair has its half */
        CHECK_OK(fsdp_all_gather_coalesced(pair, &buffer, 1, stream));
        for (int k = 0; k < NUMEL; k++)
            CHECK_EQ(((float *)buffer.unsharded)[k], 10 * round + first + k / (int)buffer.chunk);
        CHECK_OK(fsdp_barrier(world));
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
    }
    fsdp_process_group_free(pair);
}

TEST(groups_gather_into_memory_of_a_larger_one)
{
    test_run_ranks(4, gather_in_pairs, NULL);
    test_run_machines(2, 2, false, gather_in_pairs, NULL);
}

/* Ranks 0, 1 and 3 of two machines: not in the same way on both. */
RUN_TEST(groups_that_lie_unlike_on_machines_are_refused, test_run_machines, 2, 2, false)
{
    static const int ranks[] = {0, 1, 3};
    fsdp_process_group *world = fsdp_world(context), *flat;
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    float *region, own[NUMEL], shard[NUMEL];
    fsdp_sharded_buffer buffer;

    CHECK_OK(fsdp_process_group_create(context, ranks, 3, "flat", &flat));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
    if (flat) {
        for (int k = 0; k < NUMEL; k++)
            shard[k] = (float)fsdp_context_rank(context);
        buffer = buffer_at(flat, region, shard);
        CHECK_ERROR(
            fsdp_all_gather_coalesced(flat, &buffer, 1, stream), FSDP_UNSUPPORTED,
            "cannot all_gather_coalesced in group 'flat' into shared memory: it does not have the same local ranks");
        buffer.unsharded = own;
        CHECK_OK(fsdp_all_gather_coalesced(flat, &buffer, 1, stream));
        for (int k = 0; k < NUMEL; k++)
            CHECK_EQ(own[k], ranks[k / (int)buffer.chunk]);
    }
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
    fsdp_process_group_free(flat);
}

/* The second time is nothing, and a group of one may have its buffers anywhere. */
static void free_twice(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context), *alone;
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_context_rank(context);
    float *region, *other, own[NUMEL], shards[2][NUMEL] = {{0}};
    fsdp_sharded_buffer buffers[2];

    (void)arg;
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES * 4, (void **)&region));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&other));
    CHECK_OK(fsdp_process_group_create(context, &rank, 1, "alone", &alone));
    buffers[0] = buffer_at(alone, region + rank * NUMEL, shards[0]);
    buffers[1] = buffer_at(alone, own, shards[1]);
    CHECK_OK(fsdp_all_gather_coalesced(alone, buffers, 2, stream));
    for (int i = 0; i < 2; i++)
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES * 4);
    for (int i = 0; i < 3; i++) {
        CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
        CHECK(region != other);
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
    }
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, other, BYTES);
    fsdp_process_group_free(alone);
}

TEST(what_is_freed_twice_is_freed_once)
{
    test_run_ranks(3, free_twice, NULL);
    test_run_machines(2, 2, false, free_twice, NULL);
}

/* All contributions are one and the same memory. */
WORLDS_TEST(a_reduction_reads_memory_that_all_contribute, 2, 4)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_process_group_rank(world), size = fsdp_process_group_size(world);
    fsdp_reduce_options options = {.op = FSDP_SUM};
    float *region, shard[NUMEL] = {0};
    fsdp_sharded_buffer buffer;

    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, BYTES, (void **)&region));
    if (rank % (size / test_machines_of(size)) == 0)
        for (int k = 0; k < NUMEL; k++)
            region[k] = (float)k;
    CHECK_OK(fsdp_barrier(world));
    buffer = buffer_at(world, region, shard);
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, &buffer, 1, &options, stream));
    for (int64_t k = 0; k < buffer.chunk && rank * buffer.chunk + k < NUMEL; k++)
        CHECK_EQ(shard[k], size * (rank * buffer.chunk + k));
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, region, BYTES);
}
