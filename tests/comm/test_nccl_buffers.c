/* What NCCL is shown of GPUs' memory, on fake GPUs and a fake NCCL: windows, registered memory or neither, by version
 * and setting, with the values of calls without; copy engines; what happens where that fails, or a rank is gone. The
 * fake NCCL stops whoever breaks its rules (tests/backend/fakecuda/fake_nccl_memory.c). */
#include <stdatomic.h>
#include <time.h>

#include "comm/rank_gpu.h"
#include "comm/suite_mixed.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "device/device.h"

enum {
    WORLD = 3,
    MIB = 1 << 20,
    SYSTEM_ERROR = 2
};

static const char *const counted[] = {"ncclMemAlloc",
                                      "ncclMemFree",
                                      "ncclCommRegister",
                                      "ncclCommDeregister",
                                      "ncclCommWindowRegister",
                                      "ncclCommWindowDeregister",
                                      "ncclCopies"};

typedef enum use {
    ALLOCS,
    FREES,
    REGISTERS,
    DEREGISTERS,
    WINDOWS,
    WINDOW_ENDS,
    COPIES,
    USES
} use;

static void count_uses(void)
{
    for (int u = 0; u < USES; u++)
        fakecuda.fail_call(counted[u], 1, 0, false);
}

/* ---- what is shown ---- */

/* What a group is to show, and what NCCL is to see of it. */
typedef struct shows {
    fsdp_nccl_buffers buffers;
    int64_t mib; /* that the ledger counts for it */
    uint64_t seed;
} shows;

static int64_t workspace(const rank_gpu *g)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(g->device, &stats);
    return (int64_t)stats.live_bytes[FSDP_MEMORY_WORKSPACE];
}

static void mix(fsdp_context *context, void *arg)
{
    const shows *s = arg;
    rank_gpu g = rank_gpu_open(context);
    suite calls = {.group = g.group, .stream = g.stream};
    void *data = rank_gpu_new(&g, NULL, 400);
    int64_t before;

    CHECK_OK(fsdp_context_set_nccl_buffers(context, s->buffers));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    before = workspace(&g);
    CHECK_OK(fsdp_broadcast(g.group, data, 100, FSDP_F32, 0, g.stream)); /* which needs no memory of its own */
    CHECK_EQ(fsdp_process_group_carrier(g.group), FSDP_CARRIER_NCCL);
    CHECK_EQ(workspace(&g) - before, s->mib * MIB);
    suite_mixed(&calls, s->seed, test_brief() ? 2 : 6);
    rank_gpu_free(&g, data, 400);
    rank_gpu_close(&g);
}

/* Runs calls in which buffers are gathered and reduced; `uses` of NCCL's functions are of one rank. */
static void check_shows(shows s, const int uses[USES])
{
    count_uses();
    rank_gpu_run(WORLD, mix, &s);
    for (int u = 0; u < COPIES; u++)
        if (fakecuda.uses(counted[u]) != (long)uses[u] * WORLD)
            TEST_FAIL("%ld uses of %s on %d ranks, not %d on each", fakecuda.uses(counted[u]), counted[u], WORLD,
                      uses[u]);
    CHECK_EQ(fakecuda.uses("ncclCopies") > 0, uses[COPIES]);
    fakecuda.mend();
}

TEST(memory_is_shown_as_the_version_has_it)
{
    check_shows((shows){FSDP_NCCL_REGISTERED, 64, 71}, (const int[USES]){1, 1, 0, 0, 1, 1});
    check_shows((shows){FSDP_NCCL_COPY_ENGINES, 96, 72}, (const int[USES]){2, 2, 0, 0, 2, 2, 1});
    check_shows((shows){FSDP_NCCL_PLAIN, 0, 73}, (const int[USES]){0});
    setenv("FSDP_FAKENCCL_VERSION", "22705", 1); /* no copy engines */
    check_shows((shows){FSDP_NCCL_COPY_ENGINES, 96, 74}, (const int[USES]){2, 2, 0, 0, 2, 2});
    setenv("FSDP_FAKENCCL_VERSION", "22000", 1); /* no windows */
    check_shows((shows){FSDP_NCCL_COPY_ENGINES, 96, 75}, (const int[USES]){2, 2, 2, 2});
    check_shows((shows){FSDP_NCCL_REGISTERED, 64, 76}, (const int[USES]){1, 1, 1, 1});
}

TEST(nccls_own_settings_take_windows_or_all_away)
{
    setenv("NCCL_WIN_ENABLE", "0", 1);
    check_shows((shows){FSDP_NCCL_REGISTERED, 64, 81}, (const int[USES]){1, 1, 1, 1, 1});
    setenv("NCCL_LOCAL_REGISTER", "0", 1); /* then the memory has no use, and is given back */
    check_shows((shows){FSDP_NCCL_REGISTERED, 0, 82}, (const int[USES]){1, 1, 1, 0, 1});
}

/* Where NCCL takes the memory for gathers and not that for sums, or the other way, each is kept or given back by
 * itself. */
TEST(memory_of_one_kind_of_call_is_kept_where_nccl_does_not_take_the_other)
{
    setenv("FSDP_FAKENCCL_TAKES", "32", 1);
    check_shows((shows){FSDP_NCCL_COPY_ENGINES, 32, 83}, (const int[USES]){2, 2, 1, 0, 2, 1, 1});
    check_shows((shows){FSDP_NCCL_REGISTERED, 0, 84}, (const int[USES]){1, 1, 1, 0, 1});
    setenv("FSDP_FAKENCCL_TAKES", "64", 1);
    check_shows((shows){FSDP_NCCL_COPY_ENGINES, 64, 85}, (const int[USES]){2, 2, 1, 0, 2, 1, 1});
}

/* A choice is one for groups to come: what has a carrier keeps what it shows. */
RUN_TEST(what_is_chosen_later_is_of_groups_without_a_carrier, rank_gpu_run, 2)
{
    rank_gpu g = rank_gpu_open(context);
    fsdp_process_group *other;
    void *data = rank_gpu_new(&g, NULL, 400);
    int64_t before = workspace(&g);

    CHECK_OK(fsdp_broadcast(g.group, data, 100, FSDP_F32, 0, g.stream));
    CHECK_EQ(workspace(&g) - before, 64 * MIB);
    CHECK_OK(fsdp_context_set_nccl_buffers(context, FSDP_NCCL_PLAIN));
    CHECK_OK(fsdp_broadcast(g.group, data, 100, FSDP_F32, 0, g.stream));
    CHECK_EQ(workspace(&g) - before, 64 * MIB);
    CHECK_OK(fsdp_process_group_create(context, (const int[]){0, 1}, 2, "other", &other));
    CHECK_OK(fsdp_process_group_set_carrier(other, FSDP_CARRIER_NCCL));
    CHECK_OK(fsdp_broadcast(other, data, 100, FSDP_F32, 0, g.stream));
    CHECK_EQ(fsdp_process_group_carrier(other), FSDP_CARRIER_NCCL);
    CHECK_EQ(workspace(&g) - before, 64 * MIB);
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    fsdp_process_group_free(other);
    rank_gpu_free(&g, data, 400);
    rank_gpu_close(&g);
}

/* Two streams pack in the same memory, one after the other; the first is held up until both calls are issued. */
RUN_TEST(streams_use_the_memory_one_after_the_other, rank_gpu_run, WORLD)
{
    rank_gpu g = rank_gpu_open(context);
    const fsdp_reduce_options options = {.op = FSDP_SUM};
    float whole[2][4096], part[2][4096];
    size_t bytes = sizeof whole[0];
    fsdp_stream *streams[] = {g.stream, NULL};
    fsdp_sharded_buffer b[2];
    atomic_int open = 0;

    CHECK_OK(fsdp_stream_create(g.device, FSDP_STREAM_WORKER, &streams[1]));
    for (int s = 0; s < 2; s++) {
        for (int i = 0; i < 4096; i++)
            whole[s][i] = (float)(1 + s + i % 7);
        b[s] = (fsdp_sharded_buffer){.unsharded = rank_gpu_new(&g, whole[s], bytes),
                                     .shard = rank_gpu_new(&g, whole[s], bytes),
                                     .numel = 4096,
                                     .chunk = (4096 + g.size - 1) / g.size,
                                     .unsharded_dtype = FSDP_F32,
                                     .shard_dtype = FSDP_F32};
    }
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    fakecuda.hold(fsdp_stream_native(g.stream), &open);
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_reduce_scatter_coalesced(g.group, &b[i % 2], 1, &options, streams[i % 2]));
    (void)nanosleep(&(struct timespec){.tv_nsec = 100000000}, NULL); /* in which the other stream may run ahead */
    atomic_store(&open, 1);
    for (int s = 0; s < 2; s++) {
        CHECK_OK(fsdp__copy_to_host(streams[s], part[s], b[s].shard, 4 * (size_t)b[s].chunk));
        CHECK_OK(fsdp_stream_synchronize(streams[s]));
        for (int64_t i = 0; i < b[s].chunk && g.rank * b[s].chunk + i < 4096; i++)
            CHECK_NEAR(part[s][i], (float)g.size * whole[s][g.rank * b[s].chunk + i], 0);
        rank_gpu_free(&g, b[s].unsharded, bytes);
        rank_gpu_free(&g, b[s].shard, bytes);
    }
    fsdp_stream_free(streams[1]);
    rank_gpu_close(&g);
}

/* ---- what fails ---- */

TEST(a_group_does_without_where_nccl_fails_to_be_shown_memory)
{
    static const char *const calls[] = {"ncclMemAlloc", "ncclCommWindowRegister"};
    shows s = {FSDP_NCCL_REGISTERED, 0, 91};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++) {
        fakecuda.fail_call(calls[i], 2, SYSTEM_ERROR, false);
        rank_gpu_run(WORLD, mix, &s);
        CHECK(fakecuda.failed(calls[i]));
        fakecuda.mend();
    }
    setenv("FSDP_FAKENCCL_VERSION", "22604", 1);
    fakecuda.fail_call("ncclCommRegister", 2, SYSTEM_ERROR, false);
    rank_gpu_run(WORLD, mix, &s);
    CHECK(fakecuda.failed("ncclCommRegister"));
    fakecuda.mend();
}

TEST(a_rank_that_cannot_deregister_leaves_all_the_same)
{
    shows s = {FSDP_NCCL_REGISTERED, 64, 92};

    fakecuda.fail_call("ncclCommWindowDeregister", 1, SYSTEM_ERROR, false);
    rank_gpu_run(WORLD, mix, &s);
    CHECK(fakecuda.failed("ncclCommWindowDeregister"));
    fakecuda.mend();
}

RUN_TEST(ranks_that_would_show_other_memory_are_told, rank_gpu_run, 2)
{
    rank_gpu g = rank_gpu_open(context);
    void *data = rank_gpu_new(&g, NULL, 40);

    CHECK_ERROR(fsdp_context_set_nccl_buffers(context, FSDP_NCCL_BUFFERS), FSDP_INVALID, "unknown choice");
    CHECK_OK(fsdp_context_set_nccl_buffers(context, g.rank == 1 ? FSDP_NCCL_PLAIN : FSDP_NCCL_COPY_ENGINES));
    CHECK_ERROR(fsdp_all_reduce(g.group, data, data, 10, FSDP_F32, FSDP_SUM, g.stream), FSDP_MISMATCH,
                "comm.nccl_buffers is 'copy_engines' on rank 0 but 'plain' on rank 1");
    rank_gpu_free(&g, data, 40);
    rank_gpu_close(&g);
}

#endif
