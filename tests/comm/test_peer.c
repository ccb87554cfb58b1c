/* The carrier by memory that GPUs of a machine read from each other, on GPUs that are not there
 * (tests/backend/fakecuda): the bits of calls through the host, for ranks that are threads and processes, on one GPU
 * and two; ranks that die, and what the driver refuses. */
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "comm/suite_mixed.h"
#include "support/ranks.h"

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#include "comm/internal.h"
#include "comm/transport/arena/shm.h"
#include "device/device.h"
#include "oracle/oracle.h"

enum {
    MOST = 4,
    LONG = 1501,
    SMALL_OUTBOX = 1024 /* for many pieces */
};

/* ---- a rank with two groups: one by the carrier, one through the host ---- */

typedef struct gpu {
    fsdp_context *context;
    fsdp_process_group *peer, *staged;
    fsdp_device *device;
    fsdp_stream *stream, *other;
    int rank, size;
} gpu;

static fsdp_status open_gpu(fsdp_context *context, int64_t outbox, gpu *g)
{
    int ranks[MOST] = {0, 1, 2, 3}, count = 0;

    *g = (gpu){.context = context, .peer = fsdp_world(context), .rank = fsdp_context_rank(context)};
    g->size = fsdp_process_group_size(g->peer);
    fsdp__context_set_outbox(context, outbox);
    FSDP_TRY(fsdp_process_group_create(context, ranks, g->size, "staged", &g->staged));
    FSDP_TRY(fsdp_process_group_set_carrier(g->staged, FSDP_CARRIER_STAGED));
    FSDP_TRY(fsdp_process_group_set_carrier(g->peer, FSDP_CARRIER_PEER));
    FSDP_TRY(fsdp__device_count("cuda", &count));
    g->device = fsdp_cuda(context, g->rank % count);
    if (!g->device)
        return fsdp_last_status();
    FSDP_TRY(fsdp_stream_create(g->device, FSDP_STREAM_WORKER, &g->stream));
    FSDP_TRY(fsdp_stream_create(g->device, FSDP_STREAM_WORKER, &g->other));
    return FSDP_OK;
}

/* Closes what has been opened. */
static void close_gpu(gpu *g)
{
    if (g->stream)
        (void)fsdp_stream_synchronize(g->stream);
    if (g->other)
        (void)fsdp_stream_synchronize(g->other);
    fsdp_process_group_free(g->staged);
    fsdp_stream_free(g->stream);
    fsdp_stream_free(g->other);
}

/* ---- the same bits ---- */

typedef enum plain {
    GATHER,
    SCATTER,
    REDUCE,
    BROADCAST,
    SWAP,
    PLAINS
} plain;

typedef struct plain_call {
    plain what;
    fsdp_dtype dtype;
    int64_t count;
    fsdp_reduce_op op;
} plain_call;

static fsdp_status make(const plain_call *c, fsdp_process_group *group, void *send, void *recv, fsdp_stream *stream)
{
    switch (c->what) {
    case GATHER:
        return fsdp_all_gather(group, send, recv, c->count, c->dtype, stream);
    case SCATTER:
        return fsdp_reduce_scatter(group, send, recv, c->count, c->dtype, c->op, stream);
    case REDUCE:
        return fsdp_all_reduce(group, send, recv, c->count, c->dtype, c->op, stream);
    case BROADCAST:
        return fsdp_broadcast(group, recv, c->count, c->dtype, fsdp_process_group_size(group) - 1, stream);
    default:
        return fsdp_all_to_all(group, send, recv, c->count, c->dtype, stream);
    }
}

static double value(int rank, int64_t i)
{
    uint64_t x = ((uint64_t)i * 2654435761u + (uint64_t)rank * 40503u) * 0x9e3779b97f4a7c15u;

    return (double)((int64_t)(x >> 40) - (1 << 23)) / 65536.0;
}

/* Memory of the device for three times `bytes`, with the host's in each third. */
typedef struct three {
    const gpu *g;
    char *device, *host;
    size_t bytes;
} three;

static fsdp_status fill(const gpu *g, const plain_call *c, three *t)
{
    int64_t all = g->size * c->count;
    void *memory = NULL;

    *t = (three){.g = g, .bytes = (size_t)all * fsdp_dtype_size(c->dtype)};
    t->host = calloc(3, t->bytes + 64);
    for (int third = 0; third < 3; third++)
        for (int64_t i = 0; i < all; i++)
            oracle_put(c->dtype, t->host + (size_t)third * t->bytes, i, value(g->rank, i));
    FSDP_TRY(fsdp__device_alloc(g->device, 3 * t->bytes + 64, FSDP_MEMORY_ACTIVATION, &memory));
    t->device = memory;
    FSDP_TRY(fsdp__copy_to_device(g->stream, t->device, t->host, 3 * t->bytes));
    return FSDP_OK;
}

static void drop(three *t)
{
    (void)fsdp_stream_synchronize(t->g->stream);
    fsdp__device_free(t->g->device, t->device, 3 * t->bytes + 64, FSDP_MEMORY_ACTIVATION);
    free(t->host);
}

/* Makes the call by both groups, and returns whether the results are the same bytes. */
static fsdp_status compare(const gpu *g, const plain_call *c, bool *same)
{
    three t;
    fsdp_status status = fill(g, c, &t);

    FSDP_TRY_GOTO(status, status, out);
    FSDP_TRY_GOTO(status, make(c, g->peer, t.device, t.device + t.bytes, g->stream), out);
    FSDP_TRY_GOTO(status, make(c, g->staged, t.device, t.device + 2 * t.bytes, g->stream), out);
    FSDP_TRY_GOTO(status, fsdp__copy_to_host(g->stream, t.host, t.device, 3 * t.bytes), out);
    FSDP_TRY_GOTO(status, fsdp_stream_synchronize(g->stream), out);
    *same = memcmp(t.host + t.bytes, t.host + 2 * t.bytes, t.bytes) == 0;
out:
    drop(&t);
    return status;
}

/* Makes all calls; returns 0, or the number of the first that is wrong. */
static fsdp_status compare_all(const gpu *g, int *wrong)
{
    static const int64_t counts[] = {0, 1, 37, LONG};
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_I64, FSDP_U8};
    int number = 0;

    for (int what = 0; what < PLAINS; what++)
        for (size_t i = 0; i < FSDP__COUNT_OF(counts) * FSDP__COUNT_OF(dtypes); i++)
            for (int op = FSDP_SUM; op < ((what == SCATTER || what == REDUCE) && i % 4 == 0 ? FSDP_REDUCE_OPS : 1);
                 op++) {
                plain_call c = {(plain)what, dtypes[i % 4], counts[i / 4], (fsdp_reduce_op)op};
                bool same = false;

                number++;
                FSDP_TRY(compare(g, &c, &same));
                if (!same && *wrong == 0)
                    *wrong = number;
            }
    return FSDP_OK;
}

/* ---- ranks that are processes: first, while this process has no threads ---- */

typedef struct child {
    int fd, rank, world, calls; /* after so many calls rank 1 dies */
    bool holds;                 /* with its device held up */
    const char *fails;          /* a function of the driver that fails once on rank 1 */
} child;

enum {
    RIGHT = 42
};

static int compared(const child *c, fsdp_context *context)
{
    int wrong = 0;
    gpu g;

    (void)c;
    if (open_gpu(context, SMALL_OUTBOX, &g) != FSDP_OK || compare_all(&g, &wrong) != FSDP_OK || wrong) {
        fprintf(stderr, "rank %d: call %d: %s\n", c->rank, wrong, fsdp_last_error());
        return 1;
    }
    if (fsdp_process_group_carrier(g.peer) != (c->world > 1 ? FSDP_CARRIER_PEER : FSDP_CARRIER_AUTO))
        return 2;
    close_gpu(&g);
    return RIGHT;
}

/* By default GPUs that do not reach each other, and ranks of whose driver a call fails, exchange through the host. */
static int falls_back(const child *c, fsdp_context *context)
{
    plain_call call = {.what = REDUCE, .dtype = FSDP_F32, .count = LONG};
    bool same = false;
    gpu g;

    if (open_gpu(context, SMALL_OUTBOX, &g) != FSDP_OK ||
        fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_AUTO) != FSDP_OK)
        return 1;
    if (c->fails && c->rank == 1)
        fakecuda.fail_call(c->fails, 1, 801 /* cudaErrorNotSupported */, false);
    if (compare(&g, &call, &same) != FSDP_OK || !same) {
        fprintf(stderr, "rank %d without %s: %s\n", c->rank, c->fails ? c->fails : "reach", fsdp_last_error());
        return 2;
    }
    if (fsdp_process_group_carrier(g.peer) != FSDP_CARRIER_STAGED)
        return 3;
    close_gpu(&g);
    return RIGHT;
}

/* Rank 1 dies after some calls; the others hear of it from whatever they do next. */
static int dies(const child *c, fsdp_context *context)
{
    static const atomic_int never;
    fsdp_status status = FSDP_OK;
    plain_call call = {.dtype = FSDP_F32, .count = LONG};
    three t;
    gpu g;

    if (open_gpu(context, SMALL_OUTBOX, &g) != FSDP_OK || fill(&g, &call, &t) != FSDP_OK)
        return 1;
    for (int i = 0; i < PLAINS && status == FSDP_OK; i++) {
        if (c->rank == 1 && c->holds && i == c->calls)
            fakecuda.hold(fsdp_stream_native(g.stream), &never);
        call.what = (plain)i;
        status = make(&call, g.peer, t.device, t.device + t.bytes, g.stream);
        if (c->rank == 1 && i == c->calls) {
            if (c->holds) /* all calls that the others make are issued here, too, and their devices alone wait */
                (void)nanosleep(&(struct timespec){.tv_nsec = 300000000}, NULL);
            raise(SIGKILL);
        }
        if (c->holds && i == c->calls)
            break;
    }
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(g.stream);
    if (status != FSDP_COMM || !strstr(fsdp_last_error(), "rank 1 has died")) {
        fprintf(stderr, "rank %d after %d calls: %s: %s\n", c->rank, c->calls, fsdp_status_text(status),
                fsdp_last_error());
        return 3;
    }
    drop(&t);
    close_gpu(&g);
    return RIGHT;
}

static void run_child(const child *c, int (*body)(const child *, fsdp_context *))
{
    fsdp_context_options options = {.rank = c->rank, .world_size = c->world, .threads = 1};
    fsdp_context *context = NULL;
    int code;

    if (fsdp__shm_join(c->fd, false, &options, &context) != FSDP_OK)
        _exit(4);
    fsdp_context_set_log(context, FSDP_LOG_WARNING, NULL, NULL);
    code = body(c, context);
    fsdp_context_free(context);
    _exit(code);
}

static void run_processes(child c, int (*body)(const child *, fsdp_context *), int dead)
{
    fsdp__arena *arena = NULL;
    pid_t pids[MOST];
    int status;

    CHECK_OK(fsdp__shm_create(c.world, &arena));
    c.fd = arena->fd;
    for (c.rank = 0; c.rank < c.world; c.rank++) {
        pids[c.rank] = fork();
        if (pids[c.rank] == 0)
            run_child(&c, body);
    }
    for (int r = 0; r < c.world; r++) {
        if (r == dead)
            continue;
        CHECK_EQ(waitpid(pids[r], &status, 0), pids[r]);
        CHECK(WIFEXITED(status));
        CHECK_EQ(WEXITSTATUS(status), RIGHT);
    }
    if (dead >= 0)
        CHECK_EQ(waitpid(pids[dead], &status, 0), pids[dead]);
    fsdp__arena_unref(arena);
}

TEST(processes_have_the_bits_of_calls_through_the_host)
{
    for (int devices = 1; devices <= 2; devices++)
        for (int world = devices; world <= MOST; world += 3 - devices) {
            setenv("FSDP_FAKECUDA_DEVICES", devices == 1 ? "1" : "2", 1);
            run_processes((child){.world = world}, compared, -1);
        }
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

TEST(what_cannot_be_had_by_default_goes_through_the_host)
{
    static const char *const calls[] = {"cudaHostRegister", "cudaIpcGetMemHandle", "cudaIpcOpenMemHandle"};

    setenv("FSDP_FAKECUDA_DEVICES", "2", 1);
    setenv("FSDP_FAKECUDA_PEERS", "0", 1);
    run_processes((child){.world = 2}, falls_back, -1);
    unsetenv("FSDP_FAKECUDA_PEERS");
    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        run_processes((child){.world = 3, .fails = calls[i]}, falls_back, -1);
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

TEST(a_killed_process_is_named_whatever_it_was_in)
{
    for (int calls = 0; calls < PLAINS; calls++)
        run_processes((child){.world = 3, .calls = calls}, dies, 1);
}

TEST(devices_that_wait_for_a_dead_rank_are_released)
{
    for (int calls = 0; calls < PLAINS; calls++) {
        int64_t began = fsdp__clock_ns();

        run_processes((child){.world = 3, .calls = calls, .holds = true}, dies, 1);
        CHECK((double)(fsdp__clock_ns() - began) < 60e9); /* and not after comm.timeout */
    }
}

/* ---- ranks that are threads ---- */

typedef struct setting {
    const char *devices, *words;
    int64_t outbox;
} setting;

static void run_threads(int world, const setting *s, test_rank_body body)
{
    setenv("FSDP_FAKECUDA_DEVICES", s->devices, 1);
    if (s->words)
        setenv("FSDP_FAKECUDA_WORDS", s->words, 1);
    test_run_ranks(world, body, (void *)(uintptr_t)s);
    unsetenv("FSDP_FAKECUDA_WORDS");
    unsetenv("FSDP_FAKECUDA_DEVICES");
}

static void compare_body(fsdp_context *context, void *arg)
{
    int wrong = 0;
    gpu g;

    CHECK_OK(open_gpu(context, ((const setting *)arg)->outbox, &g));
    CHECK_OK(compare_all(&g, &wrong));
    CHECK_EQ(wrong, 0);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), g.size > 1 ? FSDP_CARRIER_PEER : FSDP_CARRIER_AUTO);
    close_gpu(&g);
}

TEST(threads_have_the_bits_of_calls_through_the_host)
{
    static const setting settings[] = {{"1", NULL, 0}, {"2", NULL, SMALL_OUTBOX}, {"2", "0", SMALL_OUTBOX}};

    for (size_t i = 0; i < FSDP__COUNT_OF(settings); i++)
        for (int world = 1 + (int)i; world <= MOST; world += 1 + (int)(i > 0))
            run_threads(world, &settings[i], compare_body);
}

static void mix(fsdp_context *context, void *arg)
{
    gpu g;
    suite s;

    CHECK_OK(open_gpu(context, ((const setting *)arg)->outbox, &g));
    s = (suite){.group = g.peer, .stream = g.stream};
    suite_mixed(&s, 100, 12);
    close_gpu(&g);
}

TEST(calls_of_buffers_have_the_values_that_they_should)
{
    static const setting settings[] = {{"1", NULL, 0}, {"2", NULL, SMALL_OUTBOX}, {"2", "0", 0}};

    for (size_t i = 0; i < FSDP__COUNT_OF(settings); i++)
        for (int world = 2; world <= MOST; world++)
            run_threads(world, &settings[i], mix);
}

/* Many calls on two streams, which nothing orders but the group. */
static void two_streams(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_I64, .count = LONG};
    fsdp_event *event = NULL;
    gpu g;
    three t;

    CHECK_OK(open_gpu(context, ((const setting *)arg)->outbox, &g));
    CHECK_OK(fill(&g, &c, &t));
    for (int64_t i = 0; i < LONG; i++)
        ((int64_t *)(void *)t.host)[i] = i + g.rank;
    CHECK_OK(fsdp__copy_to_device(g.stream, t.device, t.host, t.bytes));
    CHECK_OK(fsdp_event_create(g.device, &event));
    CHECK_OK(fsdp_event_record(event, g.stream));
    CHECK_OK(fsdp_stream_wait_event(g.other, event));
    for (int i = 0; i < 20; i++)
        CHECK_OK(make(&c, g.peer, t.device, t.device + (size_t)(1 + i % 2) * t.bytes, i % 2 ? g.other : g.stream));
    CHECK_OK(fsdp_stream_synchronize(g.other));
    CHECK_OK(fsdp__copy_to_host(g.stream, t.host, t.device, 3 * t.bytes));
    CHECK_OK(fsdp_stream_synchronize(g.stream));
    for (int half = 1; half < 3; half++)
        for (int64_t i = 0; i < LONG; i++)
            CHECK_EQ(((int64_t *)(void *)(t.host + (size_t)half * t.bytes))[i], g.size * i + g.size * (g.size - 1) / 2);
    fsdp_event_free(event);
    drop(&t);
    close_gpu(&g);
}

TEST(calls_on_two_streams_are_in_order)
{
    run_threads(3, &(setting){"2", NULL, SMALL_OUTBOX}, two_streams);
}

/* ---- what cannot be had ---- */

static void refused(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    bool same = false;
    gpu g;

    CHECK_OK(open_gpu(context, 0, &g));
    CHECK_ERROR(compare(&g, &c, &same), FSDP_UNSUPPORTED, arg);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), FSDP_CARRIER_AUTO);
    CHECK_OK(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_AUTO));
    CHECK_OK(compare(&g, &c, &same)); /* ranks that are threads exchange through the host by default */
    CHECK(same);
    CHECK_EQ(fsdp_process_group_carrier(g.peer), FSDP_CARRIER_STAGED);
    CHECK_ERROR(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_PEER), FSDP_STATE, "it has made calls on a GPU");
    close_gpu(&g);
}

TEST(gpus_that_do_not_reach_each_other_go_through_the_host)
{
    setenv("FSDP_FAKECUDA_PEERS", "0", 1);
    test_run_ranks(2, refused, "cannot have the carrier 'peer' (comm.carrier): rank 0: cuda:0 cannot read the memory");
    unsetenv("FSDP_FAKECUDA_PEERS");
}

static void disagree(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    bool same = false;
    gpu g;

    (void)arg;
    CHECK_OK(open_gpu(context, 0, &g));
    if (g.rank == 1)
        CHECK_OK(fsdp_process_group_set_carrier(g.peer, FSDP_CARRIER_STAGED));
    CHECK_ERROR(compare(&g, &c, &same), FSDP_MISMATCH, "to be 'peer' on rank 0 but 'staged' on rank 1");
    close_gpu(&g);
}

TEST(ranks_that_want_other_carriers_are_named)
{
    test_run_ranks(2, disagree, NULL);
}

/* ---- failures ---- */

/* Every function of the driver that a carrier needs fails once: the call is right or fails, and nobody hangs. */
static void survive(fsdp_context *context, void *arg)
{
    plain_call c = {.what = REDUCE, .dtype = FSDP_F32, .count = 3};
    fsdp_status status;
    bool same = true;
    gpu g;

    (void)arg;
    status = open_gpu(context, SMALL_OUTBOX, &g);
    for (int i = 0; i < 2 && status == FSDP_OK; i++)
        status = compare(&g, &c, &same);
    CHECK(status != FSDP_OK || same);
    close_gpu(&g);
}

TEST(a_call_of_the_driver_that_fails_hangs_nobody)
{
    static const char *const calls[] = {"cudaMalloc",
                                        "cudaHostRegister",
                                        "cudaDeviceCanAccessPeer",
                                        "cudaDeviceEnablePeerAccess",
                                        "cudaDeviceGetPCIBusId",
                                        "cuStreamWriteValue32",
                                        "cuStreamWaitValue32",
                                        "cudaStreamCreateWithPriority"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        for (long nth = 1; nth <= 12; nth++) {
            char text[4096];
            bool failed;

            fakecuda.fail_call(calls[i], nth, 801 /* cudaErrorNotSupported */, false);
            (void)test_try_ranks(2, survive, NULL, text, sizeof text);
            failed = fakecuda.failed(calls[i]);
            fakecuda.mend();
            if (!failed)
                break;
        }
}
#endif
