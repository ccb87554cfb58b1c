/* test_packed.c - a transport that has only the plain collectives: coalesced ones are packed, with the same bits, also
 * where the host cannot follow the device's pointers. */
#include "check/fault.h"
#include "comm/host_transport.h"
#include "comm/suite_mixed.h"
#include "comm/transport/arena/arena_transport.h"
#include "device/device.h"
#include "support/ranks.h"

static fsdp_status plain_coalesced(void *group, const fsdp__call *call, fsdp__traffic *traffic)
{
    return host_transport_packed(fsdp__arena_all_gather, fsdp__arena_all_to_all, group, call, traffic);
}

/* What any transport must have, and nothing else. */
static const fsdp__collective_ops plain_collectives = {
    .all_gather = fsdp__arena_all_gather,
    .reduce_scatter = fsdp__arena_reduce_scatter,
    .all_reduce = fsdp__arena_all_reduce,
    .broadcast = fsdp__arena_broadcast,
    .all_to_all = fsdp__arena_all_to_all,
    .barrier = fsdp__arena_barrier,
    .all_gather_coalesced = plain_coalesced,
    .reduce_scatter_coalesced = plain_coalesced,
};
static const fsdp__comm_ops plain_ops = {
    .name = "plain",
    .collectives = &plain_collectives,
    .group_open = fsdp__arena_group_open,
    .group_ready = fsdp__arena_group_ready,
    .group_free = fsdp__arena_group_free,
    .abort = fsdp__arena_abort,
    .close = fsdp__arena_close,
};

typedef struct plain_world {
    const fsdp__comm_ops *ops;
    const char *device;
    fsdp_stream_mode mode;
    void (*body)(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream);
    fsdp__arena *arena;
} plain_world;

/* A second context of the rank, in a world of the same ranks whose transport is the plain one. */
static void enter_plain_world(fsdp_context *context, void *arg)
{
    const plain_world *w = arg;
    fsdp_context_options options = {
        .rank = fsdp_context_rank(context), .world_size = fsdp_context_world_size(context), .threads = 1};
    fsdp_context *second = NULL;
    fsdp_stream *stream;

    CHECK_OK(fsdp_context_create(&options, &second));
    CHECK_OK(fsdp__arena_attach(second, w->ops, w->arena, options.rank, true, options.world_size > 1));
    CHECK_OK(fsdp_stream_create(CHECK_PTR(fsdp__device_open(second, w->device, 0)), w->mode, &stream));
    CHECK(!fsdp_process_group_can_share(fsdp_world(second), FSDP_MEMORY_SYMMETRIC));
    w->body(fsdp_world(context), fsdp_world(second), stream);
    fsdp_stream_free(stream);
    CHECK_EQ(test_live_bytes(second), 0);
    fsdp_context_free(second);
}

static void run_world(int ranks, plain_world w)
{
    CHECK_OK(fsdp__arena_create(ranks, ranks, false, &w.arena));
    test_run_ranks(ranks, enter_plain_world, &w);
    fsdp__arena_unref(w.arena);
}

static void run_worlds(fsdp_stream_mode mode, void (*body)(fsdp_process_group *, fsdp_process_group *, fsdp_stream *))
{
    static const int worlds[] = {1, 3, 2, 4, 8};

    for (size_t i = test_brief() ? 1 : 0; i < (test_brief() ? 2 : sizeof worlds / sizeof *worlds); i++)
        run_world(worlds[i], (plain_world){&plain_ops, "cpu", mode, body, NULL});
}

/* On the device that the host cannot touch: by kernels on the arena, and by host memory alone. */
static void run_worlds_on_sim(void (*body)(fsdp_process_group *, fsdp_process_group *, fsdp_stream *))
{
    for (int ranks = test_brief() ? 3 : 1; ranks <= (test_brief() ? 3 : 4); ranks++) {
        run_world(ranks, (plain_world){&plain_ops, "sim", FSDP_STREAM_WORKER, body, NULL});
        run_world(ranks, (plain_world){&host_transport_ops, "sim", FSDP_STREAM_WORKER, body, NULL});
    }
}

/* ---- against naive results ---- */

static void run_suite(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    suite s = {.group = packed, .stream = stream};

    (void)direct;
    suite_blocks(&s);
}

TEST(packing_gives_naive_results)
{
    run_worlds(FSDP_STREAM_INLINE, run_suite);
    run_worlds(FSDP_STREAM_WORKER, run_suite);
}

static void run_mixed(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    suite s = {.group = packed, .stream = stream};

    (void)direct;
    suite_mixed(&s, 1000, test_brief() ? 4 : 8);
}

TEST(packing_takes_any_mixture_of_buffers)
{
    run_world(3, (plain_world){&plain_ops, "cpu", FSDP_STREAM_INLINE, run_mixed, NULL});
    run_worlds_on_sim(run_mixed);
}

/* ---- against the direct path, bit by bit ---- */

enum {
    BLOCKS = 5
};

/* Uneven, empty, smaller than most worlds, and (the last, where it is long) of several pieces in every world. */
static const int64_t numels[2][BLOCKS] = {{1, 0, 999, 5003, 64}, {7, 0, 999, 1, 1200007}};

static uint64_t hash_of(uint64_t x)
{
    x = (x + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u;
    return x ^ (x >> 29);
}

/* Any finite bits of moderate size, so that every rounding and the order of additions show. */
static void fill_bits(void *buffer, int64_t numel, fsdp_dtype dtype, uint64_t seed)
{
    for (int64_t i = 0; i < numel; i++) {
        uint64_t x = hash_of(seed * 1000003 + (uint64_t)i);

        if (dtype == FSDP_F32)
            ((uint32_t *)buffer)[i] = (uint32_t)((x >> 63) << 31 | 0x3e000000 | (x & 0x1ffffff));
        else if (dtype == FSDP_BF16)
            ((uint16_t *)buffer)[i] = (uint16_t)((x >> 63) << 15 | 0x3e00 | (x & 0x1ff));
        else if (dtype == FSDP_F16)
            ((uint16_t *)buffer)[i] = (uint16_t)((x >> 63) << 15 | 0x3000 | (x & 0xfff));
        else if (dtype == FSDP_BOOL)
            ((uint8_t *)buffer)[i] = x & 1;
        else
            memcpy((char *)buffer + (size_t)i * fsdp_dtype_size(dtype), &x, fsdp_dtype_size(dtype));
    }
}

/* The same buffers twice: whole memory that peers see, where the group has such, and other memory. */
typedef struct twins {
    fsdp_process_group *direct;
    fsdp_sharded_buffer buffers[2][BLOCKS];
    size_t whole_bytes[BLOCKS], shard_bytes[BLOCKS];
} twins;

static void *whole_alloc(fsdp_process_group *group, size_t bytes)
{
    void *unsharded = NULL;

    if (!fsdp_process_group_can_share(group, FSDP_MEMORY_SYMMETRIC))
        return CHECK_PTR(calloc(1, bytes + 1));
    CHECK_OK(fsdp_process_group_alloc(group, FSDP_MEMORY_SYMMETRIC, bytes, &unsharded));
    return unsharded;
}

static void whole_free(fsdp_process_group *group, void *unsharded, size_t bytes)
{
    if (fsdp_process_group_can_share(group, FSDP_MEMORY_SYMMETRIC))
        fsdp_process_group_free_memory(group, FSDP_MEMORY_SYMMETRIC, unsharded, bytes);
    else
        free(unsharded);
}

static void twins_make(fsdp_process_group *direct, const int64_t *numel, fsdp_dtype unsharded_dtype,
                       fsdp_dtype shard_dtype, fsdp_dtype reduce_dtype, twins *t)
{
    int size = fsdp_process_group_size(direct), rank = fsdp_process_group_rank(direct);

    t->direct = direct;
    for (int b = 0; b < BLOCKS; b++) {
        fsdp_sharded_buffer block = {.numel = numel[b],
                                     .chunk = (numel[b] + size - 1) / size,
                                     .unsharded_dtype = unsharded_dtype,
                                     .shard_dtype = shard_dtype,
                                     .reduce_dtype = reduce_dtype};

        t->whole_bytes[b] = (size_t)numel[b] * fsdp_dtype_size(unsharded_dtype);
        t->shard_bytes[b] = (size_t)suite_rows(&block, rank) * fsdp_dtype_size(shard_dtype);
        for (int twin = 0; twin < 2; twin++) {
            block.unsharded =
                twin == 0 ? whole_alloc(direct, t->whole_bytes[b]) : CHECK_PTR(malloc(t->whole_bytes[b] + 1));
            block.shard = CHECK_PTR(malloc(t->shard_bytes[b] + 1));
            fill_bits(block.unsharded, numel[b], unsharded_dtype, (uint64_t)(rank * BLOCKS + b));
            fill_bits(block.shard, suite_rows(&block, rank), shard_dtype, (uint64_t)(1000 + rank * BLOCKS + b));
            t->buffers[twin][b] = block;
        }
    }
}

static void twins_compare_and_free(twins *t)
{
    CHECK_OK(fsdp_barrier(t->direct)); /* peers are through with it */
    for (int b = 0; b < BLOCKS; b++) {
        CHECK_BYTES(t->buffers[1][b].unsharded, t->buffers[0][b].unsharded, t->whole_bytes[b]);
        CHECK_BYTES(t->buffers[1][b].shard, t->buffers[0][b].shard, t->shard_bytes[b]);
        whole_free(t->direct, t->buffers[0][b].unsharded, t->whole_bytes[b]);
        free(t->buffers[1][b].unsharded);
        free(t->buffers[0][b].shard);
        free(t->buffers[1][b].shard);
    }
}

/* Memory of the stream's device that holds the bytes. */
static void *placed(fsdp_stream *stream, const void *host, size_t bytes)
{
    void *data = NULL;

    CHECK_OK(fsdp__device_alloc(fsdp__stream_device(stream), bytes, FSDP_MEMORY_ACTIVATION, &data));
    CHECK_OK(fsdp__copy_to_device(stream, data, host, bytes));
    return data;
}

/* The bytes come back, and the memory is given back. */
static void taken_back(fsdp_stream *stream, void *host, void *data, size_t bytes)
{
    CHECK_OK(fsdp__copy_to_host(stream, host, data, bytes));
    CHECK_OK(fsdp_stream_synchronize(stream));
    fsdp__device_free(fsdp__stream_device(stream), data, bytes, FSDP_MEMORY_ACTIVATION);
}

/* The second twin, where the packed call finds it. */
static void twin_to_device(const twins *t, fsdp_stream *stream, fsdp_sharded_buffer *out)
{
    for (int b = 0; b < BLOCKS; b++) {
        out[b] = t->buffers[1][b];
        out[b].unsharded = placed(stream, out[b].unsharded, t->whole_bytes[b]);
        out[b].shard = placed(stream, out[b].shard, t->shard_bytes[b]);
    }
}

static void twin_to_host(const twins *t, fsdp_stream *stream, const fsdp_sharded_buffer *buffers)
{
    for (int b = 0; b < BLOCKS; b++) {
        taken_back(stream, t->buffers[1][b].unsharded, buffers[b].unsharded, t->whole_bytes[b]);
        taken_back(stream, t->buffers[1][b].shard, buffers[b].shard, t->shard_bytes[b]);
    }
}

static void compare_gather(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream,
                           const int64_t *numel, fsdp_dtype shard_dtype, fsdp_dtype unsharded_dtype)
{
    fsdp_stream *own = fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(direct)));
    fsdp_sharded_buffer on_device[BLOCKS];
    twins t;

    twins_make(direct, numel, unsharded_dtype, shard_dtype, FSDP_DTYPE_NONE, &t);
    CHECK_OK(fsdp_all_gather_coalesced(direct, t.buffers[0], BLOCKS, own));
    twin_to_device(&t, stream, on_device);
    CHECK_OK(fsdp_all_gather_coalesced(packed, on_device, BLOCKS, stream));
    twin_to_host(&t, stream, on_device);
    twins_compare_and_free(&t);
}

/* `dtypes`: of the contributions, of the wire, of the shards. */
static void compare_reduction(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream,
                              const int64_t *numel, const fsdp_dtype *dtypes, const fsdp_reduce_options *o)
{
    fsdp_stream *own = fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(direct)));
    fsdp_sharded_buffer on_device[BLOCKS];
    twins t;

    twins_make(direct, numel, dtypes[0], dtypes[2], dtypes[1], &t);
    CHECK_OK(fsdp_reduce_scatter_coalesced(direct, t.buffers[0], BLOCKS, o, own));
    twin_to_device(&t, stream, on_device);
    CHECK_OK(fsdp_reduce_scatter_coalesced(packed, on_device, BLOCKS, o, stream));
    twin_to_host(&t, stream, on_device);
    twins_compare_and_free(&t);
}

static void compare_all(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    static const fsdp_dtype floating[] = {FSDP_F32, FSDP_BF16, FSDP_F16},
                            other[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};

    for (int d = 0; d < 4; d++)
        compare_gather(direct, packed, stream, numels[0], other[d], other[d]);
    for (int d = 0; d < 27; d += test_long() ? 1 : test_brief() ? 11 : 2) {
        const fsdp_dtype dtypes[3] = {floating[d / 9], floating[d / 3 % 3], floating[d % 3]};
        fsdp_reduce_options o = {.op = d % 2 ? FSDP_SUM : FSDP_AVG, .divisor = d % 4 ? 0.7f : 0.0f};

        if (d < 9)
            compare_gather(direct, packed, stream, numels[0], floating[d / 3], floating[d % 3]);
        compare_reduction(direct, packed, stream, numels[0], dtypes, &o);
        o.accumulate = true;
        compare_reduction(direct, packed, stream, numels[0], dtypes, &o);
    }
}

static void compare_pieces(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    const fsdp_dtype dtypes[3] = {FSDP_F32, FSDP_F32, FSDP_F32};
    fsdp_reduce_options o = {.op = FSDP_AVG, .accumulate = true};

    compare_gather(direct, packed, stream, numels[1], FSDP_F32, FSDP_F32);
    compare_gather(direct, packed, stream, numels[1], FSDP_BF16, FSDP_F32);
    compare_reduction(direct, packed, stream, numels[1], dtypes, &o);
}

TEST(packing_gives_the_bits_of_the_direct_path)
{
    run_worlds(FSDP_STREAM_INLINE, compare_all);
    if (!test_brief())
        run_worlds(FSDP_STREAM_INLINE, compare_pieces);
    run_worlds(FSDP_STREAM_WORKER, compare_pieces);
}

TEST(packing_gives_the_same_bits_where_the_host_follows_no_pointer)
{
    run_worlds_on_sim(compare_all);
    run_worlds_on_sim(compare_pieces);
}

/* ---- the plain calls, on memory that the host cannot touch ---- */

enum {
    PLAIN_NUMEL = 1 << 16 /* of each buffer, for up to four ranks */
};

/* Small (a payload) and large, each beside bytes that stay as they are. */
static void compare_plain(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    fsdp_stream *own = fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(direct)));
    uint64_t rank = (uint64_t)fsdp_process_group_rank(direct);
    size_t bytes = PLAIN_NUMEL * sizeof(float);
    float *send = CHECK_PTR(malloc(bytes)), *expected = CHECK_PTR(malloc(bytes)), *actual = CHECK_PTR(malloc(bytes));

    for (int i = 0; i < 2 * PLAINS; i++) {
        plain_call call = {
            .what = (plain)(i % PLAINS), .dtype = FSDP_F32, .count = i < PLAINS ? 7 : PLAIN_NUMEL / 4 - 1};
        void *sent, *received;

        call.op = call.what == SCATTER ? FSDP_AVG : FSDP_SUM;
        fill_bits(send, PLAIN_NUMEL, FSDP_F32, rank);
        fill_bits(expected, PLAIN_NUMEL, FSDP_F32, 100 + rank);
        sent = placed(stream, send, bytes);
        received = placed(stream, expected, bytes);
        CHECK_OK(plain_make(&call, packed, sent, received, stream));
        taken_back(stream, actual, sent, bytes);
        CHECK_BYTES(actual, send, bytes);
        taken_back(stream, actual, received, bytes);
        CHECK_OK(plain_make(&call, direct, send, expected, own));
        CHECK_BYTES(actual, expected, bytes);
    }
    free(actual);
    free(expected);
    free(send);
}

TEST(plain_calls_give_the_same_bits_there)
{
    run_worlds_on_sim(compare_plain);
}

/* ---- counters and failures ---- */

enum {
    ROWS = 5000 /* of a rank, too many for a payload */
};

/* One gather and one reduction of memory that peers do not see. */
static void move_rows(fsdp_process_group *group, fsdp_stream *stream, fsdp_comm_stats *out)
{
    int64_t numel = fsdp_process_group_size(group) * ROWS;
    float *unsharded = calloc((size_t)numel, sizeof *unsharded), *shard = calloc(ROWS, sizeof *shard);
    fsdp_sharded_buffer block = {.unsharded = unsharded,
                                 .shard = shard,
                                 .numel = numel,
                                 .chunk = ROWS,
                                 .unsharded_dtype = FSDP_F32,
                                 .shard_dtype = FSDP_F32};
    fsdp_reduce_options o = {.op = FSDP_SUM};

    CHECK_OK(fsdp_all_gather_coalesced(group, &block, 1, stream));
    CHECK_OK(fsdp_reduce_scatter_coalesced(group, &block, 1, &o, stream));
    fsdp_process_group_stats(group, out);
    free(shard);
    free(unsharded);
}

static void count_bytes(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    int64_t size = fsdp_process_group_size(packed), all = size * ROWS * 4, own = ROWS * 4;
    fsdp_comm_stats stats;

    if (size == 1)
        return; /* counts nothing */
    move_rows(packed, stream, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 1);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 1);
    CHECK_EQ(stats.calls[FSDP_ALL_TO_ALL], 0);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], all - own);
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], all - own);
    /* own rows packed, peers' received, all put in their places; all packed, all received behind the bits that say who
     * contributes, summed where they are */
    CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], own + (all - own) + all);
    CHECK_EQ(stats.bytes_moved[FSDP_REDUCE_SCATTER], all + all + size * 16);
    move_rows(direct, fsdp_device_stream(fsdp_cpu(fsdp_process_group_context(direct))), &stats);
    /* through staging: peers' rows are read where they were packed */
    CHECK_EQ(stats.bytes_moved[FSDP_ALL_GATHER], own + all);
    CHECK_EQ(stats.bytes_moved[FSDP_REDUCE_SCATTER], all + (all - own));
}

TEST(bytes_of_packing_are_counted)
{
    run_worlds(FSDP_STREAM_INLINE, count_bytes);
}

static void disagree(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    int rank = fsdp_process_group_rank(packed), size = fsdp_process_group_size(packed);
    float unsharded[100] = {0}, shard[100] = {0};
    fsdp_sharded_buffer block = {.unsharded = unsharded,
                                 .shard = shard,
                                 .numel = rank == size - 1 ? 99 : 100,
                                 .chunk = 100,
                                 .unsharded_dtype = FSDP_F32,
                                 .shard_dtype = FSDP_F32};

    (void)direct;
    if (size > 1)
        CHECK_ERROR(
            fsdp_all_gather_coalesced(packed, &block, 1, stream), FSDP_MISMATCH,
            "call 1 is all_gather_coalesced of 1 buffers with 400 bytes float32 on rank 0 but all_gather_coalesced");
}

TEST(ranks_that_disagree_are_told)
{
    run_worlds(FSDP_STREAM_INLINE, disagree);
}

/* Pieces lie in memory that may not be had: rank 1 fails, and all learn of it. */
typedef struct shortage {
    long nth;
    bool hit;
    fsdp_status status[3]; /* of each rank */
} shortage;

static shortage now;

static void run_short(fsdp_process_group *direct, fsdp_process_group *packed, fsdp_stream *stream)
{
    float unsharded[9] = {0}, shard[3] = {0};
    fsdp_sharded_buffer block = {.unsharded = unsharded,
                                 .shard = shard,
                                 .numel = 9,
                                 .chunk = 3,
                                 .unsharded_dtype = FSDP_F32,
                                 .shard_dtype = FSDP_F32};
    fsdp_reduce_options o = {.op = FSDP_SUM};
    int rank = fsdp_process_group_rank(packed);
    fsdp_status status;

    (void)direct;
    test_meet();
    if (rank == 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, now.nth);
    status = fsdp_all_gather_coalesced(packed, &block, 1, stream);
    if (status == FSDP_OK)
        status = fsdp_reduce_scatter_coalesced(packed, &block, 1, &o, stream);
    if (rank == 1) {
        now.hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    } else if (status != FSDP_OK) {
        CHECK_CONTAINS(fsdp_last_error(), "rank 1 failed: ");
    }
    now.status[rank] = status;
}

TEST(a_rank_without_memory_ends_the_call_of_all)
{
    int failed = 0;

    for (now = (shortage){.nth = 1}; now.nth == 1 || now.hit; now.nth++) {
        run_world(3, (plain_world){&plain_ops, "cpu", FSDP_STREAM_INLINE, run_short, NULL});
        for (int r = 0; r < 3; r++)
            CHECK_EQ(now.status[r] != FSDP_OK, now.hit);
        failed += now.hit;
    }
    CHECK(failed >= 3); /* scratch and piece of the gather, scratch of the reduction */
}
