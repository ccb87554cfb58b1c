/* What goes wrong with the carrier by NCCL, on fake GPUs and a fake NCCL: it cannot be had, one of its calls fails, a
 * rank is killed. Nobody hangs, and the message says who and why. */
#include "comm/rank_gpu.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "backend/fakecuda/control.h"
#include "comm/transport/arena/shm.h"
#include "device/device.h"

enum {
    WORLD = 3,
    COUNT = 40,
    SYSTEM_ERROR = 2,
    EXPECTED = 42 /* exit status of a process that saw what it should see */
};

/* ---- every call once ---- */

typedef enum kind {
    GATHER,
    SCATTER,
    REDUCE,
    BROADCAST,
    SWAP,
    GATHER_BUFFERS,
    REDUCE_BUFFERS,
    KINDS
} kind;

static fsdp_status make_call(const rank_gpu *g, kind what, void *send, void *recv)
{
    const fsdp_reduce_options options = {.op = FSDP_SUM};
    fsdp_sharded_buffer b = {.unsharded = recv,
                             .shard = send,
                             .numel = g->size * COUNT,
                             .chunk = COUNT,
                             .unsharded_dtype = FSDP_F32,
                             .shard_dtype = FSDP_F32};

    switch (what) {
    case GATHER:
        return fsdp_all_gather(g->group, send, recv, COUNT, FSDP_F32, g->stream);
    case SCATTER:
        return fsdp_reduce_scatter(g->group, send, recv, COUNT, FSDP_F32, FSDP_SUM, g->stream);
    case REDUCE:
        return fsdp_all_reduce(g->group, send, recv, COUNT, FSDP_F32, FSDP_SUM, g->stream);
    case BROADCAST:
        return fsdp_broadcast(g->group, recv, COUNT, FSDP_F32, 0, g->stream);
    case SWAP:
        return fsdp_all_to_all(g->group, send, recv, COUNT, FSDP_F32, g->stream);
    case GATHER_BUFFERS:
        return fsdp_all_gather_coalesced(g->group, &b, 1, g->stream);
    default:
        return fsdp_reduce_scatter_coalesced(g->group, &b, 1, &options, g->stream);
    }
}

/* Memory for any of them. */
typedef struct memory {
    void *send, *recv;
} memory;

enum {
    BYTES = 4 * COUNT * WORLD
};

static memory memory_new(const rank_gpu *g)
{
    return (memory){rank_gpu_new(g, NULL, BYTES), rank_gpu_new(g, NULL, BYTES)};
}

static void memory_free(const rank_gpu *g, memory m)
{
    rank_gpu_free(g, m.send, BYTES);
    rank_gpu_free(g, m.recv, BYTES);
}

/* ---- NCCL that cannot be had ---- */

typedef struct refusal {
    fsdp_status status;
    const char *says;
} refusal;

static void be_refused(fsdp_context *context, void *arg)
{
    const refusal *expected = arg;
    rank_gpu g = rank_gpu_open(context);
    memory m = memory_new(&g);

    CHECK_ERROR(make_call(&g, GATHER, m.send, m.recv), expected->status, expected->says);
    memory_free(&g, m);
    rank_gpu_close(&g);
}

TEST(a_library_that_is_not_there_or_too_old_is_told_with_what_to_do)
{
    char *directory = test_directory(), *path = test_path(directory, "libnccl.so.2");

    test_write_file(path, "", 0);
    setenv("FSDP_CUDA_LIBRARIES", directory, 1);
    rank_gpu_run(2, be_refused,
                 &(refusal){FSDP_UNSUPPORTED, "group 'world' cannot have the carrier 'nccl' (comm.carrier): rank 0: "
                                              "cannot open libnccl.so.2"});
    rank_gpu_run(2, be_refused, &(refusal){FSDP_UNSUPPORTED, "or name the folder that has it in FSDP_CUDA_LIBRARIES"});
    unsetenv("FSDP_CUDA_LIBRARIES");
    setenv("FSDP_FAKENCCL_VERSION", "21805", 1);
    rank_gpu_run(2, be_refused,
                 &(refusal){FSDP_UNSUPPORTED, "rank 0: libnccl.so.2 is version 2.18.5: collectives by it need NCCL"});
}

TEST(ranks_that_cannot_join_give_up_together)
{
    static const char *const calls[] = {"ncclGetUniqueId", "ncclCommInitRankConfig", "ncclCommGetAsyncError"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        for (long n = 1; n <= (i == 0 ? 2 : 2 * WORLD); n++) {
            fakecuda.fail_call(calls[i], n, SYSTEM_ERROR, false);
            rank_gpu_run(WORLD, be_refused,
                         &(refusal){FSDP_UNSUPPORTED, "answers 'unhandled system error' (2): asked for by a test"});
            CHECK(fakecuda.failed(calls[i]));
            fakecuda.mend();
        }
}

static void share_gpu(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    fsdp_device *first = CHECK_PTR(fsdp_cuda(context, 0));
    bool shared = *(const bool *)arg;
    memory m;

    fsdp_stream_free(g.stream);
    g.device = first;
    CHECK_OK(fsdp_stream_create(first, FSDP_STREAM_WORKER, &g.stream));
    m = memory_new(&g);
    if (shared)
        CHECK_OK(make_call(&g, GATHER, m.send, m.recv));
    else
        CHECK_ERROR(make_call(&g, GATHER, m.send, m.recv), FSDP_UNSUPPORTED, "ranks that share a GPU need their own");
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    memory_free(&g, m);
    rank_gpu_close(&g);
}

TEST(ranks_that_share_a_gpu_need_a_setting_of_nccls)
{
    rank_gpu_run(2, share_gpu, &(bool){false});
    setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1);
    rank_gpu_run(2, share_gpu, &(bool){true});
}

/* ---- without being asked for ---- */

static void do_without(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    memory m;

    (void)arg;
    CHECK_OK(fsdp_context_set_carrier(context, FSDP_CARRIER_AUTO));
    m = memory_new(&g);
    for (int what = 0; what < KINDS; what++)
        CHECK_OK(make_call(&g, (kind)what, m.send, m.recv));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    CHECK_EQ(fsdp_process_group_carrier(g.group), FSDP_CARRIER_STAGED);
    memory_free(&g, m);
    rank_gpu_close(&g);
}

TEST(machines_without_nccl_exchange_through_their_hosts)
{
    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    setenv("FSDP_FAKENCCL_VERSION", "21805", 1);
    test_run_machines(2, 1, false, do_without, NULL);
}

/* ---- a call that fails ---- */

static void call_all(fsdp_context *context, void *arg)
{
    rank_gpu g = rank_gpu_open(context);
    fsdp_status status = FSDP_OK;
    memory m = memory_new(&g);

    (void)arg;
    for (int what = 0; what < KINDS && status == FSDP_OK; what++)
        status = make_call(&g, (kind)what, m.send, m.recv);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(g.stream);
    CHECK(status != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "asked for by a test");
    memory_free(&g, m);
    rank_gpu_close(&g);
}

TEST(a_call_that_fails_on_one_rank_fails_on_all)
{
    static const char *const calls[] = {"ncclGroupStart", "ncclGroupEnd", "ncclAllGather", "ncclBroadcast",
                                        "ncclAlltoAll"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        for (long n = 1; n <= 3; n++) {
            fakecuda.fail_call(calls[i], n, SYSTEM_ERROR, false);
            rank_gpu_run(WORLD, call_all, NULL);
            CHECK(fakecuda.failed(calls[i]));
            fakecuda.mend();
        }
}

/* ---- processes ---- */

/* What a process does; returns its exit status. */
typedef int (*process_body)(const rank_gpu *g, kind what);

static int gather_between_processes(const rank_gpu *g, kind what);
static int find_other_version(const rank_gpu *g, kind what);
static int lose_a_rank_at_once(const rank_gpu *g, kind what);
static int lose_a_rank_in_nccl(const rank_gpu *g, kind what);
static const process_body bodies[] = {gather_between_processes, find_other_version, lose_a_rank_at_once,
                                      lose_a_rank_in_nccl};

/* What a process is to do: its number among the bodies, in the world of the arena's file. */
typedef struct errand {
    int fd, rank, body, what;
} errand;

static int run_process(const errand *e)
{
    fsdp_context_options options = {
        .rank = e->rank, .world_size = WORLD, .local_rank = e->rank, .local_world_size = WORLD, .threads = 1};
    fsdp_context *context = NULL;
    rank_gpu g;
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (fsdp__shm_join(e->fd, false, &options, &context) != FSDP_OK)
        return 2;
    g = rank_gpu_open(context);
    code = bodies[e->body](&g, (kind)e->what);
    if (code != EXPECTED)
        fprintf(stderr, "rank %d, call %d: %s\n", e->rank, e->what, fsdp_last_error());
    rank_gpu_close(&g);
    fsdp_context_free(context);
    return code;
}

/* Starts this program as a rank: a fork of a process that has threads would go on with what they had half done. */
static pid_t start_process(const errand *e)
{
    char text[64], number[12];
    char *const argv[] = {(char[]){"test_comm"}, (char[]){"nccl_faults"}, NULL};
    posix_spawn_file_actions_t actions;
    pid_t pid;

    snprintf(text, sizeof text, "%d %d %d %d", e->fd, e->rank, e->body, e->what);
    snprintf(number, sizeof number, "%d", e->rank);
    setenv("FSDP_TEST_ERRAND", text, 1);
    setenv("RANK", number, 1);
    CHECK_EQ(posix_spawn_file_actions_init(&actions), 0);
    CHECK_EQ(posix_spawn_file_actions_adddup2(&actions, e->fd, e->fd), 0); /* it stays open there */
    CHECK_EQ(posix_spawn(&pid, "/proc/self/exe", &actions, NULL, argv, environ), 0);
    CHECK_EQ(posix_spawn_file_actions_destroy(&actions), 0);
    unsetenv("RANK");
    unsetenv("FSDP_TEST_ERRAND");
    return pid;
}

/* Runs the cases, or is one of their processes. */
static int main_or_process(void)
{
    const char *text = getenv("FSDP_TEST_ERRAND");
    errand e;

    if (!text)
        return test_run_cases(__FILE__);
    if (sscanf(text, "%d %d %d %d", &e.fd, &e.rank, &e.body, &e.what) != 4) /* NOLINT: start_process has written it */
        return 2;
    return run_process(&e);
}
TEST_FILE(main_or_process)

/* Runs a world of processes, of which one (-1: none) is killed. */
static void run_processes(process_body body, kind what, int killed)
{
    errand e = {.what = (int)what};
    fsdp__arena *arena = NULL;
    pid_t pids[WORLD];
    int status;

    setenv("FSDP_FAKECUDA_DEVICES", "8", 1);
    CHECK_OK(fsdp__shm_create(WORLD, &arena));
    e.fd = arena->fd;
    while (bodies[e.body] != body)
        e.body++;
    for (e.rank = 0; e.rank < WORLD; e.rank++)
        pids[e.rank] = start_process(&e);
    for (int r = 0; r < WORLD; r++) {
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        if (r == killed)
            CHECK(WIFSIGNALED(status));
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != EXPECTED)
            TEST_FAIL("call %d: process of rank %d ended with status %d", what, r, status);
    }
    fsdp__arena_unref(arena);
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

static int gather_between_processes(const rank_gpu *g, kind what)
{
    float own = (float)g->rank, all[WORLD] = {0};
    void *send = rank_gpu_new(g, &own, sizeof own), *recv = rank_gpu_new(g, NULL, sizeof all);
    int code = EXPECTED;

    (void)what;
    if (fsdp_all_gather(g->group, send, recv, 1, FSDP_F32, g->stream) != FSDP_OK ||
        fsdp__copy_to_host(g->stream, all, recv, sizeof all) != FSDP_OK ||
        fsdp_stream_synchronize(g->stream) != FSDP_OK)
        code = 3;
    for (int r = 0; r < WORLD; r++)
        code = all[r] == (float)r ? code : 4;
    rank_gpu_free(g, send, sizeof own);
    rank_gpu_free(g, recv, sizeof all);
    return code;
}

TEST(processes_exchange_by_nccl)
{
    run_processes(gather_between_processes, GATHER, -1);
}

static int find_other_version(const rank_gpu *g, kind what)
{
    memory m = memory_new(g);
    bool told = make_call(g, what, m.send, m.recv) == FSDP_UNSUPPORTED &&
                strstr(fsdp_last_error(), "rank 0 has NCCL 2.30.7 and rank 1 2.28.9: all ranks need the same version");

    memory_free(g, m);
    return told ? EXPECTED : 3;
}

TEST(a_rank_with_another_library_is_named)
{
    setenv("FSDP_FAKENCCL_OTHER", "1=22809", 1);
    run_processes(find_other_version, GATHER, -1);
}

/* Rank 1 is killed while the ranks still join. */
static int lose_a_rank_at_once(const rank_gpu *g, kind what)
{
    memory m = memory_new(g);
    fsdp_status status = fsdp_barrier(g->group); /* nobody dies while others still join the world */

    if (g->rank == 1)
        raise(SIGKILL);
    if (status == FSDP_OK)
        status = make_call(g, what, m.send, m.recv);
    if (status != FSDP_COMM || !strstr(fsdp_last_error(), "rank 1 has died"))
        return 4;
    memory_free(g, m);
    return EXPECTED;
}

TEST(a_rank_that_is_killed_before_it_joins_is_named)
{
    run_processes(lose_a_rank_at_once, GATHER, 1);
}

/* NCCL kills it where it makes a window, which the others wait for. */
static int lose_a_rank_in_nccl(const rank_gpu *g, kind what)
{
    memory m = memory_new(g);
    fsdp_status status = make_call(g, what, m.send, m.recv);

    if (status != FSDP_COMM || !strstr(fsdp_last_error(), "rank 1 has died"))
        return 4;
    memory_free(g, m);
    return EXPECTED;
}

TEST(a_rank_that_is_killed_while_windows_are_made_is_named)
{
    setenv("FSDP_FAKENCCL_DIES", "1", 1);
    run_processes(lose_a_rank_in_nccl, GATHER, 1);
}
#endif
