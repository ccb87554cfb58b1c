/* test_collectives.c - every collective on ranks that are threads, against naive results. */
#include "comm/suite_mixed.h"
#include "support/ranks.h"

typedef struct variant {
    fsdp_stream_mode mode;
    bool symmetric, force_copy;
} variant;

static void run_suite(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    suite s = {.group = fsdp_world(context), .symmetric = v->symmetric};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), v->mode, &s.stream));
    fsdp_process_group_force_copy(s.group, v->force_copy);
    suite_plain(&s);
    fsdp_process_group_force_copy(s.group, false);
    if (!v->symmetric)
        suite_blocks(&s);
    suite_objects(s.group);
    fsdp_stream_free(s.stream);
}

TEST(plain_memory_gives_naive_results)
{
    static const int worlds[] = {1, 3, 4, 2, 5, 8};
    variant v = {.mode = FSDP_STREAM_INLINE};

    for (size_t i = 0; i < (test_brief() ? 2 : sizeof worlds / sizeof *worlds); i++)
        test_run_ranks(worlds[i], run_suite, &v);
}

static void run_mixed(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    suite s = {.group = fsdp_world(context)};

    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), v->mode, &s.stream));
    suite_mixed(&s, 100 * (uint64_t)fsdp_process_group_size(s.group), 12);
    fsdp_stream_free(s.stream);
}

TEST(buffers_of_one_call_have_shapes_dtypes_and_contributors_of_their_own)
{
    for (int ranks = test_brief() ? 3 : 1; ranks <= (test_brief() ? 4 : 5); ranks++)
        test_run_ranks(ranks, run_mixed, &(variant){.mode = ranks == 3 ? FSDP_STREAM_WORKER : FSDP_STREAM_INLINE});
}

TEST(staging_gives_the_same_results)
{
    variant v = {.mode = FSDP_STREAM_INLINE, .force_copy = true};

    for (int ranks = test_brief() ? 3 : 2; ranks <= 3; ranks++)
        test_run_ranks(ranks, run_suite, &v);
}

TEST(visible_memory_gives_the_same_results)
{
    variant v = {.mode = FSDP_STREAM_INLINE, .symmetric = true};

    test_run_ranks(3, run_suite, &v);
}

TEST(worker_streams_give_the_same_results)
{
    variant v = {.mode = FSDP_STREAM_WORKER};

    for (int ranks = 2; ranks <= (test_brief() ? 2 : 4); ranks += 2)
        test_run_ranks(ranks, run_suite, &v);
}

enum {
    FLIGHT = 40
};

/* Calls on two workers and the host, all in one group: they run in the order they were issued. */
RANKS_TEST(calls_on_several_streams_keep_their_order, 3)
{
    fsdp_process_group *world = fsdp_world(context);
    int size = fsdp_process_group_size(world), rank = fsdp_process_group_rank(world);
    fsdp_stream *streams[2];
    int64_t sums[FLIGHT], *gathered = calloc((size_t)(FLIGHT * size), sizeof *gathered);

    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &streams[i]));
    for (int i = 0; i < FLIGHT; i++) {
        sums[i] = rank + i;
        gathered[i * size + rank] = 100 * i + rank;
        CHECK_OK(fsdp_all_reduce(world, &sums[i], &sums[i], 1, FSDP_I64, FSDP_SUM, streams[0]));
        CHECK_OK(fsdp_all_gather(world, &gathered[i * size + rank], &gathered[i * size], 1, FSDP_I64, streams[1]));
        if (i % 7 == 3)
            CHECK_OK(fsdp_barrier(world));
    }
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp_stream_synchronize(streams[i]));
        fsdp_stream_free(streams[i]);
    }
    for (int i = 0; i < FLIGHT; i++) {
        CHECK_EQ(sums[i], size * (size - 1) / 2 + i * size);
        for (int r = 0; r < size; r++)
            CHECK_EQ(gathered[i * size + r], 100 * i + r);
    }
    free(gathered);
}

RANKS_TEST(more_ranks_than_cores_make_progress, 32)
{
    for (int i = 0; i < 500; i++)
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

enum {
    AVERAGED = 200 /* on each rank */
};

/* Small integers, whose sums are exact and no multiple of the ranks. */
static float held(int rank, int64_t i)
{
    return (float)((rank + 1) * (i % 97 - 48) + (rank == 0));
}

static float held_sum(int size, int64_t i)
{
    return (float)(size * (size + 1) / 2 * (i % 97 - 48) + 1);
}

static void check_quotients(const float *actual, int size, int64_t first, float divisor)
{
    int differ = 0;

    for (int64_t i = 0; i < AVERAGED; i++) {
        float expected = held_sum(size, first + i) / divisor;

        CHECK_BYTES(&actual[i], &expected, sizeof expected);
        differ += held_sum(size, first + i) * (1.0f / divisor) != expected;
    }
    CHECK(differ > 0); /* the values tell a division from a product with the inverse */
}

static void check_averages(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int size = fsdp_process_group_size(world), rank = fsdp_process_group_rank(world);
    float send[8 * AVERAGED], recv[8 * AVERAGED];
    fsdp_sharded_buffer block = {.unsharded = send,
                                 .shard = recv,
                                 .numel = size * AVERAGED,
                                 .chunk = AVERAGED,
                                 .unsharded_dtype = FSDP_F32,
                                 .shard_dtype = FSDP_F32};
    fsdp_reduce_options o = {.op = FSDP_AVG};
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));

    (void)arg;
    for (int64_t i = 0; i < size * AVERAGED; i++)
        send[i] = held(rank, i);
    CHECK_OK(fsdp_all_reduce(world, send, recv, AVERAGED, FSDP_F32, FSDP_AVG, stream));
    check_quotients(recv, size, 0, (float)size);
    CHECK_OK(fsdp_reduce_scatter(world, send, recv, AVERAGED, FSDP_F32, FSDP_AVG, stream));
    check_quotients(recv, size, (int64_t)rank * AVERAGED, (float)size);
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, &block, 1, &o, stream));
    check_quotients(recv, size, (int64_t)rank * AVERAGED, (float)size);
    o.divisor = 7; /* 7 * size in all */
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, &block, 1, &o, stream));
    check_quotients(recv, size, (int64_t)rank * AVERAGED, 7.0f * (float)size);
    o.op = FSDP_SUM;
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, &block, 1, &o, stream));
    check_quotients(recv, size, (int64_t)rank * AVERAGED, 7);
}

/* Staging has room for less than a payload's worth of a part for each of so many ranks. */
RANKS_TEST(small_calls_of_many_ranks_are_right, 66)
{
    enum {
        MANY = 66,
        NUMEL = 900
    };
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = CHECK_PTR(fsdp_device_stream(fsdp_cpu(context)));
    int rank = fsdp_context_rank(context);
    float values[NUMEL], sums[NUMEL], sent[MANY], received[MANY];

    for (int i = 0; i < NUMEL; i++)
        values[i] = (float)(rank + i);
    CHECK_OK(fsdp_all_reduce(world, values, sums, NUMEL, FSDP_F32, FSDP_SUM, stream));
    for (int i = 0; i < NUMEL; i++)
        CHECK_EQ(sums[i], MANY * (MANY - 1) / 2 + MANY * i);
    for (int r = 0; r < MANY; r++)
        sent[r] = (float)(rank * MANY + r);
    CHECK_OK(fsdp_all_to_all(world, sent, received, 1, FSDP_F32, stream));
    for (int r = 0; r < MANY; r++)
        CHECK_EQ(received[r], r * MANY + rank);
    CHECK_OK(fsdp_reduce_scatter(world, sent, received, 1, FSDP_F32, FSDP_SUM, stream));
    CHECK_EQ(received[0], MANY * MANY * (MANY - 1) / 2 + MANY * rank);
}

TEST(an_average_is_a_division)
{
    test_run_ranks(3, check_averages, NULL);
    test_run_ranks(5, check_averages, NULL);
}

TEST(a_context_without_a_world_is_a_group_of_one)
{
    fsdp_context *context = test_context();
    suite s = {.group = CHECK_PTR(fsdp_world(context)), .stream = fsdp_device_stream(fsdp_cpu(context))};
    fsdp_comm_stats stats;

    CHECK_EQ(fsdp_process_group_size(s.group), 1);
    CHECK_EQ(fsdp_process_group_rank(s.group), 0);
    CHECK_STRING(fsdp_process_group_name(s.group), "world");
    suite_plain(&s);
    suite_blocks(&s);
    suite_objects(s.group);
    fsdp_context_comm_stats(context, &stats);
    for (int i = 0; i < FSDP_COLLECTIVES; i++) {
        CHECK_EQ(stats.calls[i], 0);
        CHECK_EQ(stats.bytes_sent[i], 0);
        CHECK_EQ(stats.bytes_moved[i], 0);
    }
    CHECK(!fsdp_process_group_can_share(s.group, FSDP_MEMORY_SHARED));
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(a_fake_world_has_one_real_rank)
{
    enum {
        WORLD = 1000,
        RANK = 17
    };
    fsdp_context *context = NULL;
    fsdp_process_group *world, *row = NULL;
    fsdp_stream *stream, *meta;
    float one[2] = {3, 4}, all[2 * WORLD] = {0};
    int ranks[4] = {16, 17, 18, 19};
    fsdp_comm_stats stats;
    char large[1500];
    void **objects;
    size_t *bytes;

    CHECK_OK(fsdp_context_create_fake(RANK, WORLD, &context));
    CHECK_EQ(fsdp_context_threads(context), 1);
    world = fsdp_world(context);
    stream = fsdp_device_stream(fsdp_cpu(context));
    meta = fsdp_device_stream(fsdp_meta(context));
    CHECK_EQ(fsdp_process_group_size(world), WORLD);
    CHECK_EQ(fsdp_process_group_rank(world), RANK);
    CHECK_OK(fsdp_all_gather(world, one, all, 2, FSDP_F32, stream));
    CHECK_EQ(all[2 * 999 + 1], 4);
    all[2 * RANK] = 11;
    CHECK_OK(fsdp_reduce_scatter(world, all, one, 2, FSDP_F32, FSDP_AVG, stream));
    CHECK_EQ(one[0], 11);
    /* pointers of a device without bytes are not followed */
    CHECK_OK(fsdp_all_reduce(world, (void *)64, (void *)64, 1000, FSDP_F32, FSDP_SUM, meta));
    CHECK_OK(fsdp_process_group_create(context, ranks, 4, "row", &row));
    CHECK_EQ(fsdp_process_group_size(row), 4);
    CHECK_EQ(fsdp_process_group_rank(row), 1);
    memset(large, 'x', sizeof large);
    CHECK_OK(fsdp_gather_objects(row, large, sizeof large, &objects, &bytes)); /* all have this one's */
    for (int r = 0; r < 4; r++) {
        CHECK_EQ(bytes[r], sizeof large);
        CHECK_BYTES(objects[r], large, sizeof large);
    }
    fsdp_objects_free(row, objects, bytes);
    fsdp_process_group_free(row);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], 999 * 8);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_REDUCE], 2 * 4000 * 999 / 1000);
    fsdp_context_free(context);
}

TEST(wrong_arguments_are_refused)
{
    fsdp_context *context = test_context();
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    float x[4] = {0};
    fsdp_sharded_buffer block = {
        .unsharded = x, .shard = x, .numel = 4, .chunk = 3, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};
    fsdp_reduce_options max = {.op = FSDP_MAX}, sum = {.op = FSDP_SUM};

    CHECK_ERROR(fsdp_all_gather(NULL, x, x, 1, FSDP_F32, stream), FSDP_INVALID, "group is NULL");
    CHECK_ERROR(fsdp_all_gather(world, x, x, 1, FSDP_F32, NULL), FSDP_INVALID, "stream is NULL");
    CHECK_ERROR(fsdp_all_gather(world, x, x, -1, FSDP_F32, stream), FSDP_INVALID, "bad count -1");
    CHECK_ERROR(fsdp_all_gather(world, x, x, INT64_MAX / 2, FSDP_F32, stream), FSDP_INVALID, "bad count");
    CHECK_ERROR(fsdp_all_gather(world, NULL, x, 1, FSDP_F32, stream), FSDP_INVALID, "a buffer is NULL");
    CHECK_ERROR(fsdp_all_gather(world, x, x, 1, FSDP_DTYPE_NONE, stream), FSDP_INVALID, "unknown dtype 0");
    CHECK_ERROR(fsdp_all_reduce(world, x, x, 1, FSDP_I32, FSDP_AVG, stream), FSDP_INVALID, "int32 has no average");
    CHECK_ERROR(fsdp_broadcast(world, x, 1, FSDP_F32, 1, stream), FSDP_INVALID, "root 1 is not one of its 1 ranks");
    CHECK_ERROR(fsdp_all_to_all(world, x, x, 1, FSDP_F32, stream), FSDP_INVALID, "not possible in place");
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID,
                "buffer 0: the ranks' chunks do not cover it");
    block.chunk = 4;
    block.shard = NULL;
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID, "its shard is NULL");
    CHECK_ERROR(fsdp_reduce_scatter_coalesced(world, &block, 0, &max, stream), FSDP_INVALID, "sum or average");
    block.shard = x;
    block.outer = -1;
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID, "do not cover it");
    block.outer = INT64_MAX / 4;
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID, "do not cover it");
    block.outer = 1;
    block.unsharded = NULL;
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID, "its unsharded memory is NULL");
    block.unsharded = x;
    block.shard_dtype = FSDP_I32;
    CHECK_ERROR(fsdp_all_gather_coalesced(world, &block, 1, stream), FSDP_INVALID, "buffer 0: shard_dtype is ");
    CHECK_ERROR(fsdp_reduce_scatter_coalesced(world, &block, 1, &sum, stream), FSDP_INVALID,
                "buffer 0: all its dtypes must be floating");
    fsdp_context_free(context);
}
