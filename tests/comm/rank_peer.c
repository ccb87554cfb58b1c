/* rank_peer.c - opens such ranks, and makes their calls. */
#include "comm/rank_peer.h"

#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "comm/comm.h"
#include "comm/suite.h"
#include "comm/transport/arena/arena_group.h"
#include "comm/transport/arena/shm.h"
#include "comm/world.h"
#include "device/device.h"
#include "oracle/oracle.h"

static fsdp_status open_device(rank_peer *g)
{
    int count = 0;

    FSDP_TRY(fsdp_process_group_set_carrier(g->staged, FSDP_CARRIER_STAGED));
    FSDP_TRY(fsdp_process_group_set_carrier(g->peer, FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp__device_count("cuda", &count));
    g->device = fsdp_cuda(g->context, g->rank % count);
    if (!g->device)
        return fsdp_last_status();
    FSDP_TRY(fsdp_stream_create(g->device, FSDP_STREAM_WORKER, &g->stream));
    FSDP_TRY(fsdp_stream_create(g->device, FSDP_STREAM_WORKER, &g->other));
    return FSDP_OK;
}

fsdp_status rank_peer_open(fsdp_context *context, int64_t outbox, rank_peer *g)
{
    int ranks[RANK_PEER_MOST] = {0, 1, 2, 3};

    *g = (rank_peer){.context = context, .peer = fsdp_world(context), .rank = fsdp_context_rank(context)};
    g->size = fsdp_process_group_size(g->peer);
    fsdp__context_set_outbox(context, outbox);
    FSDP_TRY(fsdp_process_group_create(context, ranks, g->size, "staged", &g->staged));
    FSDP_TRY(open_device(g));
    return FSDP_OK;
}

fsdp_status rank_peer_open_pair(fsdp_context *context, const int ranks[2], rank_peer *g)
{
    *g = (rank_peer){.context = context, .rank = fsdp_context_rank(context), .size = 2};
    fsdp__context_set_outbox(context, RANK_PEER_OUTBOX);
    FSDP_TRY(fsdp_process_group_create(context, ranks, 2, "pair", &g->peer));
    FSDP_TRY(fsdp_process_group_create(context, ranks, 2, "staged", &g->staged));
    FSDP_TRY(open_device(g));
    return FSDP_OK;
}

void rank_peer_close(rank_peer *g)
{
    if (g->stream)
        (void)fsdp_stream_synchronize(g->stream);
    if (g->other)
        (void)fsdp_stream_synchronize(g->other);
    fsdp_process_group_free(g->staged);
    fsdp_process_group_free(g->peer); /* but not the world */
    fsdp_stream_free(g->stream);
    fsdp_stream_free(g->other);
}

int rank_peer_one_gpu(void **state)
{
    (void)state;
    setenv("FSDP_FAKECUDA_DEVICES", "1", 1);
    return 0;
}

int rank_peer_any_gpus(void **state)
{
    (void)state;
    unsetenv("FSDP_FAKECUDA_DEVICES");
    return 0;
}

/* ---- the same bits ---- */

static double value(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)i * 2654435761u + (uint64_t)rank * 40503u) * 0x9e3779b97f4a7c15u;

    return (double)((int64_t)(x >> 40) - (1 << 23)) / 65536.0;
}

fsdp_status three_fill(const rank_peer *g, const plain_call *c, three *t)
{
    int64_t all = g->size * c->count;
    void *memory = NULL;

    *t = (three){.g = g, .bytes = (size_t)all * fsdp_dtype_size(c->dtype)};
    t->host = calloc(3, t->bytes + 64);
    suite_fill(c->dtype, t->host, all, value, g->rank);
    for (size_t third = 1; third < 3; third++)
        memcpy(t->host + third * t->bytes, t->host, t->bytes);
    FSDP_TRY(fsdp__device_alloc(g->device, 3 * t->bytes + 64, FSDP_MEMORY_ACTIVATION, &memory));
    t->device = memory;
    FSDP_TRY(fsdp__copy_to_device(g->stream, t->device, t->host, 3 * t->bytes));
    return FSDP_OK;
}

void three_drop(three *t)
{
    (void)fsdp_stream_synchronize(t->g->stream);
    fsdp__device_free(t->g->device, t->device, 3 * t->bytes + 64, FSDP_MEMORY_ACTIVATION);
    free(t->host);
}

fsdp_status plain_compare(const rank_peer *g, const plain_call *c, bool *same)
{
    three t;
    fsdp_status status = three_fill(g, c, &t);

    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, plain_make(c, g->peer, t.device, t.device + t.bytes, g->stream), out);
    FSDP_TRY_GOTO(status, plain_make(c, g->staged, t.device, t.device + 2 * t.bytes, g->stream), out);
    FSDP_TRY_GOTO(status, fsdp__copy_to_host(g->stream, t.host, t.device, 3 * t.bytes), out);
    FSDP_TRY_GOTO(status, fsdp_stream_synchronize(g->stream), out);
    *same = memcmp(t.host + t.bytes, t.host + 2 * t.bytes, t.bytes) == 0;
out:
    three_drop(&t);
    return status;
}

fsdp_status plain_compare_all(const rank_peer *g, int *wrong)
{
    static const int64_t counts[] = {0, 1, 37, RANK_PEER_LONG};
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_I64, FSDP_U8};
    int number = 0;

    for (int what = 0; what < PLAINS; what++)
        for (size_t i = 0; i < FSDP__COUNT_OF(counts) * FSDP__COUNT_OF(dtypes); i++)
            for (int op = FSDP_SUM; op < ((what == SCATTER || what == REDUCE) && i % 4 == 0 ? FSDP_REDUCE_OPS : 1);
                 op++) {
                plain_call c = {(plain)what, dtypes[i % 4], counts[i / 4], (fsdp_reduce_op)op};
                bool same = false;

                number++;
                FSDP_TRY(plain_compare(g, &c, &same));
                if (!same && *wrong == 0)
                    *wrong = number;
            }
    return FSDP_OK;
}

/* ---- ranks that are processes ---- */

static void run_child(const rank_child *c, int (*body)(const rank_child *, fsdp_context *))
{
    fsdp_context_options options = {.rank = c->rank, .world_size = c->world, .threads = 1};
    fsdp_context *context = NULL;
    int code;

    (void)prctl(PR_SET_PDEATHSIG, SIGKILL); /* one that hangs does not outlive a test that fails */
    if (fsdp__shm_join(c->fd, false, &options, &context) != FSDP_OK)
        _exit(4);
    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
    code = body(c, context);
    fsdp_context_free(context);
    _exit(code);
}

static void await_child(const rank_child *c, int rank, pid_t pid)
{
    bool ends = rank != 1 || c->fate == RANK_LIVES;
    int status = 0;

    if (!ends && c->fate == RANK_STOPS)
        CHECK_EQ(kill(pid, SIGKILL), 0);
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    if (!ends)
        return;
    CHECK(WIFEXITED(status));
    CHECK_EQ(WEXITSTATUS(status), RANK_RIGHT);
}

fsdp__board *rank_peer_board(fsdp_context *context)
{
    const fsdp__arena_view *view = fsdp__comm_get(context)->transport;

    return view->arena->board;
}

void rank_children_run(rank_child c, int (*body)(const rank_child *, fsdp_context *))
{
    fsdp__arena *arena = NULL;
    pid_t pids[RANK_PEER_MOST];

    CHECK_OK(fsdp__shm_create(c.world, &arena));
    c.fd = arena->fd;
    for (c.rank = 0; c.rank < c.world; c.rank++) {
        pids[c.rank] = fork();
        if (pids[c.rank] == 0)
            run_child(&c, body);
    }
    for (int r = 0; r < c.world; r++)
        if (r != 1)
            await_child(&c, r, pids[r]);
    if (c.world > 1)
        await_child(&c, 1, pids[1]);
    fsdp__arena_unref(arena);
}
