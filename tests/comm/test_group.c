/* test_group.c - making groups, the memory they hand out, and their counters. */
#include <unistd.h>

#include "comm/suite_coalesced.h"
#include "support/ranks.h"

/* ---- making ---- */

static void rows_and_columns(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), row = rank / 3, column = rank % 3;
    int row_ranks[3] = {row * 3, row * 3 + 1, row * 3 + 2}, column_ranks[2] = {column, column + 3};
    fsdp_process_group *rows = NULL, *columns = NULL;
    suite s = {.stream = fsdp_device_stream(fsdp_cpu(context))};

    (void)arg;
    CHECK_OK(fsdp_process_group_create(context, row_ranks, 3, "row", &rows));
    CHECK_OK(fsdp_process_group_create(context, column_ranks, 2, "column", &columns));
    CHECK_EQ(fsdp_process_group_size(rows), 3);
    CHECK_EQ(fsdp_process_group_rank(rows), column);
    CHECK_EQ(fsdp_process_group_size(columns), 2);
    CHECK_EQ(fsdp_process_group_rank(columns), row);
    CHECK_EQ(fsdp_process_group_global_rank(columns, 1), column + 3);
    CHECK_EQ(fsdp_process_group_global_rank(columns, 2), -1);
    CHECK(fsdp_process_group_context(rows) == context);
    s.group = rows;
    suite_plain_count(&s, FSDP_F32, 3001);
    suite_gather_blocks(&s, SUITE_SHARED, FSDP_F32, FSDP_F32, false);
    s.group = columns;
    suite_plain_count(&s, FSDP_BF16, 5003);
    suite_gather_blocks(&s, SUITE_SYMMETRIC, FSDP_F32, FSDP_BF16, false);
    suite_objects(columns);
    fsdp_process_group_free(columns);
    fsdp_process_group_free(rows);
}

TEST(rows_and_columns_of_a_mesh_are_groups)
{
    test_run_ranks(6, rows_and_columns, NULL);
}

static void partial_group(fsdp_context *context, void *arg)
{
    int ranks[2] = {1, 3}, own = fsdp_context_rank(context), alone[1] = {own};
    fsdp_process_group *group = NULL, *one = NULL;
    suite s = {.stream = fsdp_device_stream(fsdp_cpu(context))};

    (void)arg;
    CHECK_OK(fsdp_process_group_create(context, ranks, 2, "odd", &group));
    CHECK_EQ(group != NULL, own % 2 == 1);
    if (group) {
        s.group = group;
        suite_plain_count(&s, FSDP_I32, 100);
    }
    CHECK_OK(fsdp_process_group_create(context, alone, 1, "alone", &one));
    s.group = one;
    CHECK_EQ(fsdp_process_group_size(one), 1);
    suite_plain_count(&s, FSDP_I32, 100);
    fsdp_process_group_free(one);
    fsdp_process_group_free(group);
    fsdp_process_group_free(NULL);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
}

TEST(ranks_outside_a_group_get_none)
{
    test_run_ranks(4, partial_group, NULL);
}

static void group_mistakes(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), descending[2] = {1, 0}, pair[2] = {0, 1}, lonely[1] = {1};
    fsdp_process_group *group = (fsdp_process_group *)context;

    (void)arg;
    CHECK_ERROR(fsdp_process_group_create(context, descending, 2, "x", &group), FSDP_INVALID,
                "rank 0: cannot create group 'x': its ranks must ascend");
    CHECK_NULL(group);
    CHECK_ERROR(fsdp_process_group_create(context, pair, 0, "x", &group), FSDP_INVALID, "at least one rank");
    /* one rank alone is wrong: everybody learns it */
    CHECK_ERROR(fsdp_process_group_create(context, rank == 1 ? descending : pair, 2, "x", &group), FSDP_INVALID,
                "rank 1: cannot create group 'x': its ranks must ascend");
    CHECK_ERROR(fsdp_process_group_create(context, rank == 1 ? lonely : pair, rank == 1 ? 1 : 2, "x", &group),
                FSDP_MISMATCH,
                "rank 0: cannot create group 'x': rank 0 wants a group of 2 ranks from rank 0 on, rank 1 one of 1 from "
                "rank 1 on");
    CHECK_ERROR(fsdp_process_group_create(context, pair, 2, rank == 1 ? "y" : "x", &group), FSDP_MISMATCH,
                ": rank 0 wants it under the name 'x', rank 1 under another");
    /* and nothing is broken */
    CHECK_OK(fsdp_process_group_create(context, pair, 2, "x", &group));
    CHECK_OK(fsdp_barrier(group));
    fsdp_process_group_free(group);
}

static void other_ranks(fsdp_context *context, void *arg)
{
    int with_one[3] = {0, 1, 3}, with_two[3] = {0, 2, 3};
    fsdp_process_group *group = NULL;

    (void)arg;
    CHECK_ERROR(
        fsdp_process_group_create(context, fsdp_context_rank(context) == 1 ? with_two : with_one, 3, "x", &group),
        FSDP_MISMATCH,
        "rank 0 wants a group of 3 ranks from rank 0 on, rank 1 one of 3 from rank 0 on with other ranks");
}

TEST(mistakes_in_making_a_group_are_everybodys)
{
    test_run_ranks(2, group_mistakes, NULL);
    test_run_ranks(4, other_ranks, NULL);
}

static void many_groups(fsdp_context *context, void *arg)
{
    int pair[2] = {0, 1};
    fsdp_process_group *groups[63] = {NULL}, *one_more = NULL;

    (void)arg;
    for (int round = 0; round < 2; round++) {
        for (int i = 0; i < 63; i++)
            CHECK_OK(fsdp_process_group_create(context, pair, 2, "many", &groups[i]));
        CHECK_ERROR(fsdp_process_group_create(context, pair, 2, "many", &one_more), FSDP_UNSUPPORTED,
                    "rank 0: cannot create group 'many': 64 process groups are alive");
        for (int i = 0; i < 63; i++) {
            CHECK_OK(fsdp_barrier(groups[i]));
            fsdp_process_group_free(groups[i]);
        }
        CHECK_OK(fsdp_barrier(fsdp_world(context)));
    }
}

TEST(places_of_freed_groups_are_used_again)
{
    test_run_ranks(2, many_groups, NULL);
}

/* ---- memory ---- */

static void visible_memory(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    void *a = NULL, *b = NULL, *c = NULL;

    (void)arg;
    CHECK(fsdp_process_group_can_share(world, FSDP_MEMORY_SYMMETRIC));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, 1000, &a));
    CHECK_EQ((uintptr_t)a % 64, 0);
    memset(a, 1, 1000);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, a, 1000);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, NULL, 1000);
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, 1000, &b));
    CHECK(b != a); /* peers may still be reading */
    CHECK_OK(fsdp_barrier(world));
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, 1000, &c));
    CHECK(c == a); /* no more */
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, b, 1000);
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, c, 1000);
    CHECK_ERROR(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, SIZE_MAX / 2, &a), FSDP_NO_MEMORY,
                "cannot allocate");
    CHECK_NULL(a);
}

TEST(visible_memory_waits_for_readers)
{
    test_run_ranks(2, visible_memory, NULL);
}

static void common_memory(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    int rank = fsdp_process_group_rank(world), size = fsdp_process_group_size(world);
    int machine_ranks = size / test_machines_of(size);
    int64_t *first = NULL, *again = NULL;
    char who[32];

    (void)arg;
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, 1000, (void **)&first));
    CHECK_EQ(first[rank], 0);
    first[rank] = rank + 1;
    CHECK_OK(fsdp_barrier(world));
    for (int r = 0; r < size; r++)
        CHECK_EQ(first[r], r / machine_ranks == rank / machine_ranks ? r + 1 : 0);
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, first, 1000);
    CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, 1000, (void **)&again));
    CHECK(again == first);
    CHECK_EQ(again[rank], 0); /* zeroed again */
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_free_memory(world, FSDP_MEMORY_SHARED, again, 1000);
    /* a failure is everybody's and breaks nothing */
    if (rank == size - 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
    CHECK_ERROR(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, 1000, (void **)&again), FSDP_NO_MEMORY,
                "cannot allocate 1000 bytes shared by group 'world'");
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_NULL(again);
    snprintf(who, sizeof who, "rank %d", rank / machine_ranks * machine_ranks); /* the first of the machine */
    CHECK_ERROR(fsdp_process_group_alloc(world, FSDP_MEMORY_SHARED, SIZE_MAX / 2, (void **)&again), FSDP_NO_MEMORY,
                who);
    CHECK_OK(fsdp_barrier(world));
}

TEST(common_memory_is_one_region_for_all_of_a_machine)
{
    test_run_ranks(3, common_memory, NULL);
}

/* Groups come and go with their memory, which one of them still holds as its first rank ends. */
static void memory_of_passing_groups(fsdp_context *context, void *arg)
{
    static const int all[] = {0, 1, 2, 3};
    int size = fsdp_context_world_size(context);
    uintptr_t lowest = UINTPTR_MAX, highest = 0;
    size_t bytes = 100000;

    (void)arg;
    for (int i = 0; i < 100; i++) {
        fsdp_process_group *group;
        void *memory;

        CHECK_OK(fsdp_process_group_create(context, all, size, "passing", &group));
        CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SHARED, bytes, &memory));
        lowest = (uintptr_t)memory < lowest ? (uintptr_t)memory : lowest;
        highest = (uintptr_t)memory > highest ? (uintptr_t)memory : highest;
        if (fsdp_context_rank(context) != 0)
            test_meet(); /* the first rank has given it back, and its group too */
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SHARED, memory, bytes);
        fsdp_process_group_free(group);
        if (fsdp_context_rank(context) == 0)
            test_meet();
        test_meet();
    }
    CHECK(highest - lowest <= 5 * bytes);
}

TEST(memory_of_groups_that_are_gone_is_used_again)
{
    test_run_ranks(3, memory_of_passing_groups, NULL);
}

/* The same program finds its memory in the same places, also with calls in flight on a worker. */
static void steady_memory(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context);
    fsdp_stream *stream;
    uintptr_t lowest = UINTPTR_MAX, highest = 0;

    (void)arg;
    CHECK_OK(fsdp_stream_create(fsdp_cpu(context), FSDP_STREAM_WORKER, &stream));
    for (int i = 0; i < 200; i++) {
        float *unsharded = NULL, shard[500];
        fsdp_sharded_buffer block = {
            .shard = shard, .numel = 1000, .chunk = 500, .unsharded_dtype = FSDP_F32, .shard_dtype = FSDP_F32};

        for (int k = 0; k < 500; k++)
            shard[k] = (float)i;
        CHECK_OK(fsdp_process_group_alloc(world, FSDP_MEMORY_SYMMETRIC, 4000, (void **)&unsharded));
        lowest = (uintptr_t)unsharded < lowest ? (uintptr_t)unsharded : lowest;
        highest = (uintptr_t)unsharded > highest ? (uintptr_t)unsharded : highest;
        block.unsharded = unsharded;
        CHECK_OK(fsdp_all_gather_coalesced(world, &block, 1, stream));
        if (i % 10 == 0) {
            CHECK_OK(fsdp_stream_synchronize(stream));
            CHECK_EQ(unsharded[0], i);
            CHECK_EQ(unsharded[999], i);
        }
        fsdp_process_group_free_memory(world, FSDP_MEMORY_SYMMETRIC, unsharded, 4000);
        CHECK_OK(fsdp_stream_synchronize(stream)); /* `shard` ends here */
    }
    CHECK(highest - lowest <= 5 * 4200); /* a handful of places, over and over */
    fsdp_stream_free(stream);
}

TEST(memory_of_calls_in_flight_is_reused)
{
    test_run_ranks(2, steady_memory, NULL);
}

/* ---- counters ---- */

/* Returns whether each rank has waited for another one, which who has always come last has not. */
static bool all_have_waited(fsdp_context *context)
{
    int64_t total_ns, waiting_ns;
    float waited;

    fsdp_context_comm_time(context, &total_ns, &waiting_ns);
    CHECK(total_ns > 0 && waiting_ns <= total_ns);
    waited = waiting_ns > 0;
    CHECK_OK(fsdp_all_reduce(fsdp_world(context), &waited, &waited, 1, FSDP_F32, FSDP_SUM,
                             fsdp_device_stream(fsdp_cpu(context))));
    return waited == (float)fsdp_context_world_size(context);
}

static void counted(fsdp_context *context, void *arg)
{
    fsdp_process_group *world = fsdp_world(context), *all = NULL;
    fsdp_stream *stream = fsdp_device_stream(fsdp_cpu(context));
    int size = fsdp_process_group_size(world), ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    float *x = calloc(8000, sizeof *x), *y = calloc(8000, sizeof *y);
    fsdp_sharded_buffer buffers[2] = {{x, y, 10, (10 + size - 1) / size, 1, FSDP_BF16, FSDP_F32, FSDP_F32},
                                      {x + 100, y + 100, 1, 1, 1, FSDP_BF16, FSDP_F32, FSDP_F32}};
    fsdp_reduce_options reduce = {.op = FSDP_AVG};
    int64_t rows = buffers[0].chunk + 1;
    fsdp_comm_stats s;

    (void)arg;
    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_all_gather(world, x, y, 10, FSDP_F32, stream));
    CHECK_OK(fsdp_reduce_scatter(world, x, y, 10, FSDP_BF16, FSDP_SUM, stream));
    CHECK_OK(fsdp_all_reduce(world, x, y, 1000 * size, FSDP_F32, FSDP_SUM, stream));
    CHECK_OK(fsdp_all_gather_coalesced(world, buffers, 2, stream));
    CHECK_OK(fsdp_reduce_scatter_coalesced(world, buffers, 2, &reduce, stream));
    CHECK_OK(fsdp_barrier(world));
    fsdp_process_group_stats(world, &s);
    CHECK_EQ(s.calls[FSDP_ALL_GATHER], 2);
    CHECK_EQ(s.bytes_sent[FSDP_ALL_GATHER], (size - 1) * (40 + rows * 2));
    CHECK_EQ(s.calls[FSDP_REDUCE_SCATTER], 2);
    CHECK_EQ(s.bytes_sent[FSDP_REDUCE_SCATTER], (size - 1) * (20 + rows * 4));
    CHECK_EQ(s.calls[FSDP_ALL_REDUCE], 1);
    CHECK_EQ(s.bytes_sent[FSDP_ALL_REDUCE], 2 * (size - 1) * 4000);
    CHECK(s.bytes_moved[FSDP_ALL_REDUCE] + s.network_received[FSDP_ALL_REDUCE] > 0);
    CHECK_EQ(s.calls[FSDP_BARRIER], 1);
    CHECK_OK(fsdp_process_group_create(context, ranks, size, "all", &all));
    CHECK_OK(fsdp_all_gather(all, x, y, 10, FSDP_F32, stream));
    fsdp_process_group_stats(all, &s);
    CHECK_EQ(s.calls[FSDP_ALL_GATHER], 1);
    fsdp_process_group_free(all);
    fsdp_context_comm_stats(context, &s);
    CHECK_EQ(s.calls[FSDP_ALL_GATHER], 3);                    /* of freed groups too */
    CHECK_EQ(s.calls[FSDP_OBJECTS], 0);                       /* making a group counts nothing */
    for (int round = 0; !all_have_waited(context); round++) { /* each is late in its turn, if it is not held up */
        CHECK(round < 100);
        if (fsdp_process_group_rank(world) == round % size)
            usleep(10000);
        CHECK_OK(fsdp_barrier(world));
    }
    fsdp_context_reset_comm_stats(context);
    fsdp_process_group_stats(world, &s);
    CHECK_EQ(s.calls[FSDP_ALL_GATHER], 0);
    free(x);
    free(y);
}

TEST(counters_are_those_of_a_ring)
{
    test_run_ranks(2, counted, NULL);
    test_run_ranks(4, counted, NULL);
}
