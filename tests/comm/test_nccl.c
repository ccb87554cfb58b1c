/* The carrier by NCCL, on fake GPUs and a fake NCCL (tests/backend/fakecuda): the bits of the CPU's transports, or
 * NCCL's own sums; ranks that disagree, die or cannot join; libraries that do not fit. */
#include <time.h>

#include "comm/rank_gpu.h"
#include "comm/suite_mixed.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "oracle/oracle.h"

enum {
    MOST = 4,
    LONG = 300007, /* elements: several pieces through mailboxes, and not a multiple of any world */
    SYSTEM_ERROR = 2
};

/* ---- the bits of the CPU's transports ---- */

static double value(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)i * 2654435761u + (uint64_t)rank * 40503u) * 0x9e3779b97f4a7c15u;

    return (double)((int64_t)(x >> 40) - (1 << 23)) / 65536.0;
}

/* The two ways of one call: on the GPU, and on the CPU by the transport. */
typedef struct ways {
    const rank_gpu *g;
    fsdp_stream *cpu;
    plain_call call;
} ways;

/* Computes a call on both; compares all bytes, or values up to a tolerance. */
static void check_ways(const ways *w, double tolerance)
{
    const rank_gpu *g = w->g;
    int64_t all = g->size * w->call.count;
    size_t bytes = (size_t)all * fsdp_dtype_size(w->call.dtype);
    char *send = CHECK_PTR(calloc(3, bytes + 8)), *recv = send + bytes + 8, *got = recv + bytes + 8;
    void *gpu_send, *gpu_recv;

    suite_fill(w->call.dtype, send, all, value, g->rank);
    memcpy(recv, send, bytes);
    gpu_send = rank_gpu_new(g, send, bytes);
    gpu_recv = rank_gpu_new(g, recv, bytes);
    CHECK_OK(plain_make(&w->call, g->group, gpu_send, gpu_recv, g->stream));
    CHECK_OK(fsdp_barrier(g->group)); /* in which the hosts meet, for the check of races, too */
    CHECK_OK(plain_make(&w->call, g->group, send, recv, w->cpu));
    CHECK_OK(fsdp_stream_synchronize(w->cpu));
    CHECK_OK(fsdp__copy_to_host(g->stream, got, gpu_recv, bytes));
    CHECK_OK(fsdp_stream_synchronize(g->stream));
    if (tolerance == 0.0)
        CHECK_BYTES(got, recv, bytes);
    for (int64_t i = 0; i < all && tolerance > 0.0; i++)
        CHECK_NEAR(oracle_get(w->call.dtype, got, i), oracle_get(w->call.dtype, recv, i), tolerance);
    CHECK_EQ(fsdp_process_group_carrier(g->group), g->size > 1 ? FSDP_CARRIER_NCCL : FSDP_CARRIER_AUTO);
    rank_gpu_free(g, gpu_send, bytes);
    rank_gpu_free(g, gpu_recv, bytes);
    free(send);
}

static void compare_plain(fsdp_context *context, void *arg)
{
    static const int64_t counts[] = {0, 1, 37, 4099, LONG};
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16, FSDP_I32, FSDP_I64, FSDP_U8};
    rank_gpu g = rank_gpu_open(context);
    ways w = {.g = &g};

    (void)arg;
    CHECK_OK(fsdp_stream_create(CHECK_PTR(fsdp_cpu(context)), FSDP_STREAM_INLINE, &w.cpu));
    for (int what = 0; what < PLAINS; what++)
        for (size_t c = 0; c < FSDP__COUNT_OF(counts); c++)
            for (size_t d = 0; d < (counts[c] < LONG ? FSDP__COUNT_OF(dtypes) : 2); d++) {
                for (int op = FSDP_SUM; op < FSDP_REDUCE_OPS; op++) {
                    w.call = (plain_call){(plain)what, dtypes[d], counts[c], (fsdp_reduce_op)op};
                    if ((what != SCATTER && what != REDUCE && op > FSDP_SUM) ||
                        (op == FSDP_AVG && !fsdp_dtype_is_floating(dtypes[d])) ||
                        !test_takes((int)(c + d) + op + fsdp_process_group_size(g.group) / 2, 2, 3))
                        continue;
                    check_ways(&w, 0.0);
                }
            }
    fsdp_stream_free(w.cpu);
    rank_gpu_close(&g);
}

TEST(plain_calls_have_the_bits_of_the_cpus)
{
    for (int world = 1; world <= MOST; world++)
        if (test_takes(world + 3, 2, 6)) /* brief: 3 */
            rank_gpu_run(world, compare_plain, NULL);
}

TEST(an_older_nccl_gives_the_same)
{
    setenv("FSDP_FAKENCCL_VERSION", "22000", 1);
    rank_gpu_run(TEST_SANITIZED && !test_long() ? 2 : 3, compare_plain, NULL);
}

static void mix(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    suite s = {.group = g.group, .stream = g.stream};

    suite_mixed(&s, *(const uint64_t *)arg, test_brief() ? 6 : 12);
    rank_gpu_close(&g);
}

TEST(calls_of_buffers_have_the_values_that_they_should)
{
    for (int world = 1; world <= MOST; world++) {
        uint64_t first = 5000 + (uint64_t)world;

        if (test_takes(world, 2, 2))
            rank_gpu_run(world, mix, &first);
    }
}

/* ---- sums by NCCL ---- */

static void sum_plain(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    ways w = {.g = &g};

    (void)arg;
    CHECK_OK(fsdp_context_set_nccl_sums(context, true));
    CHECK_OK(fsdp_stream_create(CHECK_PTR(fsdp_cpu(context)), FSDP_STREAM_INLINE, &w.cpu));
    for (int what = SCATTER; what <= REDUCE; what++)
        for (int op = FSDP_SUM; op < FSDP_REDUCE_OPS; op++) {
            w.call = (plain_call){(plain)what, FSDP_F32, LONG / 10,
                                  (fsdp_reduce_op)op}; /* sums of four below 2^9 in 24 bits; in bf16 of 8 */
            check_ways(&w, 1e-3);
            w.call.dtype = FSDP_BF16;
            check_ways(&w, 12.0);
        }
    fsdp_stream_free(w.cpu);
    rank_gpu_close(&g);
}

TEST(nccl_makes_sums_that_are_near)
{
    for (int world = 2; world <= MOST; world++)
        rank_gpu_run(world, sum_plain, NULL);
}

enum {
    BUFFERS = 5
};

/* Buffers of one reduction: of several dtypes and runs, and some to which not all ranks add. */
typedef struct sums {
    const rank_gpu *g;
    fsdp_sharded_buffer gpu[BUFFERS], cpu[BUFFERS];
    size_t whole[BUFFERS], part[BUFFERS];
} sums;

static void make_buffer(sums *s, int i)
{
    static const struct {
        int64_t rows, outer;
        fsdp_dtype dtype, wire;
    } of[BUFFERS] = {{100, 1, FSDP_F32, FSDP_DTYPE_NONE},
                     {64, 1, FSDP_BF16, FSDP_F32},
                     {10, 3, FSDP_BF16, FSDP_BF16},
                     {9, 1, FSDP_F32, FSDP_F16},
                     {40, 1, FSDP_F32, FSDP_DTYPE_NONE}};
    int64_t chunk = (of[i].rows + s->g->size - 1) / s->g->size, all = of[i].rows * of[i].outer;
    fsdp_sharded_buffer b = {.numel = of[i].rows,
                             .chunk = chunk,
                             .outer = of[i].outer,
                             .unsharded_dtype = of[i].dtype,
                             .shard_dtype = FSDP_F32,
                             .reduce_dtype = of[i].wire};
    bool adds = i < 3 || (i == 3 && s->g->rank == s->g->size - 1);

    s->whole[i] = (size_t)all * fsdp_dtype_size(b.unsharded_dtype);
    s->part[i] = (size_t)(chunk * of[i].outer) * 4;
    s->cpu[i] = s->gpu[i] = b;
    s->cpu[i].shard = CHECK_PTR(calloc(1, s->part[i]));
    s->gpu[i].shard = rank_gpu_new(s->g, s->cpu[i].shard, s->part[i]);
    if (!adds)
        return;
    s->cpu[i].unsharded = CHECK_PTR(malloc(s->whole[i]));
    for (int64_t k = 0; k < all; k++)
        oracle_put(b.unsharded_dtype, s->cpu[i].unsharded, k, value(s->g->rank + i, k) / 64.0);
    s->gpu[i].unsharded = rank_gpu_new(s->g, s->cpu[i].unsharded, s->whole[i]);
}

static void check_buffer(const sums *s, int i, double tolerance)
{
    float *got = CHECK_PTR(calloc(1, s->part[i]));

    CHECK_OK(fsdp__copy_to_host(s->g->stream, got, s->gpu[i].shard, s->part[i]));
    CHECK_OK(fsdp_stream_synchronize(s->g->stream));
    if (tolerance == 0.0)
        CHECK_BYTES(got, s->cpu[i].shard, s->part[i]);
    for (size_t k = 0; k < s->part[i] / 4; k++)
        CHECK_NEAR(got[k], ((const float *)s->cpu[i].shard)[k], tolerance);
    free(got);
    free(s->cpu[i].shard);
    free(s->cpu[i].unsharded);
    rank_gpu_free(s->g, s->gpu[i].shard, s->part[i]);
    if (s->gpu[i].unsharded)
        rank_gpu_free(s->g, s->gpu[i].unsharded, s->whole[i]);
}

static void sum_buffers(fsdp_context *context, void *arg)
{
    const double *tolerance = arg;
    rank_gpu g = rank_gpu_open(context);
    uint8_t contributed[2][BUFFERS] = {{0}};
    fsdp_reduce_options options = {.op = FSDP_AVG, .predivide = 2.0f, .divisor = 0.7f, .accumulate = true};
    fsdp_stream *cpu;
    sums s = {.g = &g};

    CHECK_OK(fsdp_context_set_nccl_sums(context, *tolerance > 0.0));
    CHECK_OK(fsdp_stream_create(CHECK_PTR(fsdp_cpu(context)), FSDP_STREAM_INLINE, &cpu));
    for (int i = 0; i < BUFFERS; i++)
        make_buffer(&s, i);
    options.contributed = contributed[0];
    CHECK_OK(fsdp_reduce_scatter_coalesced(g.group, s.gpu, BUFFERS, &options, g.stream));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_barrier(g.group));
    options.contributed = contributed[1];
    CHECK_OK(fsdp_reduce_scatter_coalesced(g.group, s.cpu, BUFFERS, &options, cpu));
    CHECK_BYTES(contributed[0], contributed[1], BUFFERS);
    for (int i = 0; i < BUFFERS; i++)
        check_buffer(&s, i, *tolerance);
    fsdp_stream_free(cpu);
    rank_gpu_close(&g);
}

TEST(sums_of_buffers_are_exact_or_near)
{
    for (int world = 2; world <= MOST; world++) {
        rank_gpu_run(world, sum_buffers, &(double){0.0});
        rank_gpu_run(world, sum_buffers, &(double){0.05});
    }
}

/* ---- flags, and two streams ---- */

RUN_TEST(flags_are_joined_by_the_hosts, rank_gpu_run, 3)
{
    rank_gpu g = rank_gpu_open(context);
    uint8_t flags[3] = {g.rank == 0, 0, g.rank == g.size - 1};
    bool lacking = false;

    CHECK_OK(fsdp__process_group_any(
        g.group, &(fsdp__any){.flags = flags, .count = 3, .lacking = &lacking, .stream = g.stream}));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_BYTES(flags, ((const uint8_t[]){1, 0, 1}), 3);
    CHECK(lacking);
    rank_gpu_close(&g);
}

/* Many gathers on one stream and sums on another, issued in turns. */
static void use_two_streams(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    float own = (float)g.rank + 1.0f, all[MOST + 1] = {0};
    void *send = rank_gpu_new(&g, &own, 4), *gathered = rank_gpu_new(&g, NULL, sizeof all),
         *sum = rank_gpu_new(&g, NULL, 4);
    fsdp_stream *second;

    (void)arg;
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_stream_create(g.device, FSDP_STREAM_WORKER, &second));
    for (int i = 0; i < 30; i++) {
        CHECK_OK(fsdp_all_gather(g.group, send, gathered, 1, FSDP_F32, g.stream));
        CHECK_OK(fsdp_all_reduce(g.group, send, sum, 1, FSDP_F32, FSDP_SUM, second));
    }
    CHECK_OK(fsdp__copy_to_host(g.stream, all, gathered, 4 * (size_t)g.size));
    CHECK_OK(fsdp__copy_to_host(second, &all[MOST], sum, 4));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_stream_synchronize(second));
    for (int r = 0; r < g.size; r++)
        CHECK_NEAR(all[r], r + 1, 0);
    CHECK_NEAR(all[MOST], g.size * (g.size + 1) / 2, 0);
    rank_gpu_free(&g, send, 4);
    rank_gpu_free(&g, gathered, sizeof all);
    rank_gpu_free(&g, sum, 4);
    fsdp_stream_free(second);
    rank_gpu_close(&g);
}

enum {
    GATHERS = 12
};

/* Gathers of one size on two streams by turns; on rank 0 one of the streams is held up until all are issued. */
static void gather_by_turns(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    int32_t own[GATHERS], all[GATHERS * MOST];
    fsdp_stream *streams[] = {g.stream, NULL};
    size_t bytes = sizeof own, all_bytes = bytes * (size_t)g.size;
    char *send, *gathered = rank_gpu_new(&g, NULL, all_bytes);
    atomic_int open = 0;

    (void)arg;
    for (int i = 0; i < GATHERS; i++)
        own[i] = 100 * g.rank + i;
    send = rank_gpu_new(&g, own, bytes);
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_stream_create(g.device, FSDP_STREAM_WORKER, &streams[1]));
    if (g.rank == 0)
        fakecuda.hold(fsdp_stream_native(g.stream), &open);
    for (int i = 0; i < GATHERS; i++)
        CHECK_OK(
            fsdp_all_gather(g.group, send + 4 * i, gathered + 4 * (size_t)(i * g.size), 1, FSDP_I32, streams[i % 2]));
    (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* in which the other stream may run ahead */
    atomic_store(&open, 1);
    CHECK_OK(fsdp_stream_synchronize(streams[1]));
    CHECK_OK(fsdp__copy_to_host(g.stream, all, gathered, all_bytes));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    for (int i = 0; i < GATHERS; i++)
        for (int r = 0; r < g.size; r++)
            CHECK_EQ(all[i * g.size + r], 100 * r + i);
    rank_gpu_free(&g, send, bytes);
    rank_gpu_free(&g, gathered, all_bytes);
    fsdp_stream_free(streams[1]);
    rank_gpu_close(&g);
}

CALL_TEST(calls_of_a_communicator_are_in_order_on_two_streams, rank_gpu_run(3, gather_by_turns, NULL))
CALL_TEST(gathers_and_sums_may_be_on_two_streams, rank_gpu_run(3, use_two_streams, NULL))

/* ---- ranks that disagree ---- */

RUN_TEST(ranks_that_make_different_calls_are_told_both, rank_gpu_run, 3)
{
    rank_gpu g = rank_gpu_open(context);
    void *data = rank_gpu_new(&g, NULL, 4000);
    fsdp_status status;

    status = g.rank == 1 ? fsdp_all_reduce(g.group, data, data, 10, FSDP_F32, FSDP_SUM, g.stream)
                         : fsdp_all_gather(g.group, data, data, 10, FSDP_F32, g.stream);
    status = status == FSDP_OK ? fsdp_stream_synchronize(g.stream) : status;
    CHECK_EQ(status, FSDP_MISMATCH);
    CHECK_CONTAINS(fsdp_last_error(), " is all_gather of 40 bytes float32 on rank 0 but all_reduce sum of 40 "
                                      "bytes float32 on rank 1");
    rank_gpu_free(&g, data, 4000);
    rank_gpu_close(&g);
}

/* Ranks that call two groups in other orders: their hosts wait for each other, and nothing is issued to NCCL, which
 * would hang. */
RUN_TEST(ranks_that_call_groups_in_other_orders_are_told_both, rank_gpu_run, 2)
{
    static const char *const names[] = {"first", "second"};
    rank_gpu g = rank_gpu_open(context);
    void *data = rank_gpu_new(&g, NULL, 400);
    fsdp_process_group *groups[2];
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp_process_group_create(context, (const int[]){0, 1}, 2, names[i], &groups[i]));
        CHECK_OK(fsdp_all_reduce(groups[i], data, data, 10, FSDP_F32, FSDP_SUM, g.stream));
    }
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_OK(fsdp_context_set_comm_timeout(context, g.rank == 0 ? 1 : 1000)); /* nobody else is to be first */
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = fsdp_all_gather(groups[i ^ (g.rank == 1)], data, data, 10, FSDP_F32, g.stream);
    status = status == FSDP_OK ? fsdp_stream_synchronize(g.stream) : status;
    CHECK(status != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "'first'");
    CHECK_CONTAINS(fsdp_last_error(), "'second'");
    for (int i = 0; i < 2; i++)
        fsdp_process_group_free(groups[i]);
    rank_gpu_free(&g, data, 400);
    rank_gpu_close(&g);
}

RUN_TEST(ranks_that_would_add_in_different_orders_are_told, rank_gpu_run, 2)
{
    rank_gpu g = rank_gpu_open(context);
    void *data = rank_gpu_new(&g, NULL, 40);

    CHECK_OK(fsdp_context_set_nccl_sums(context, g.rank == 1));
    CHECK_ERROR(fsdp_all_reduce(g.group, data, data, 10, FSDP_F32, FSDP_SUM, g.stream), FSDP_MISMATCH,
                "comm.reduce is 'exact' on rank 0 but 'nccl' on rank 1");
    rank_gpu_free(&g, data, 40);
    rank_gpu_close(&g);
}

RUN_TEST(sums_by_nccl_need_nccl, rank_gpu_run, 2)
{
    rank_gpu g = rank_gpu_open(context);
    void *data = rank_gpu_new(&g, NULL, 40);

    CHECK_OK(fsdp_context_set_nccl_sums(context, true));
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_STAGED));
    CHECK_ERROR(fsdp_all_reduce(g.group, data, data, 10, FSDP_F32, FSDP_SUM, g.stream), FSDP_INVALID,
                "cannot have the carrier 'staged' (comm.carrier) and sums by NCCL (comm.reduce)");
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_AUTO)); /* which is NCCL then */
    CHECK_OK(fsdp_all_reduce(g.group, data, data, 10, FSDP_F32, FSDP_SUM, g.stream));
    CHECK_EQ(fsdp_process_group_carrier(g.group), FSDP_CARRIER_NCCL);
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    rank_gpu_free(&g, data, 40);
    rank_gpu_close(&g);
}

#endif
