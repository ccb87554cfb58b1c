/* The device that the host cannot touch: canaries, and what it promises. */
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>

#include "device/impl.h"
#include "device/kernels.h"
#include "support/test.h"

enum {
    NUMEL = 1000
};

static fsdp_device *open_sim(fsdp_context *context, int ordinal)
{
    return CHECK_PTR(fsdp__device_open(context, "sim", ordinal));
}

static float *take(fsdp_device *device, int64_t numel)
{
    void *data = NULL;

    CHECK_OK(fsdp__device_alloc(device, (size_t)numel * sizeof(float), FSDP_MEMORY_ACTIVATION, &data));
    return data;
}

static void give(fsdp_device *device, float *data, int64_t numel)
{
    fsdp__device_free(device, data, (size_t)numel * sizeof(float), FSDP_MEMORY_ACTIVATION);
}

static void scale(fsdp_stream *stream, const float *x, float *y, float alpha, int64_t numel)
{
    CHECK_OK(fsdp__launch_scale(
        stream, &(fsdp__scale_args){.x = x, .y = y, .alpha = alpha, .numel = numel, .dtype = FSDP_F32}));
}

static void fill(fsdp_stream *stream, float *y, double value, int64_t numel)
{
    CHECK_OK(
        fsdp__launch_fill(stream, &(fsdp__fill_args){.dst = y, .dtype = FSDP_F32, .numel = numel, .value = value}));
}

/* ---- canaries ---- */

static sigjmp_buf escape;

static void escape_fault(int number)
{
    (void)number;
    siglongjmp(escape, 1);
}

/* Whether the host's read or write of one byte there faults. */
static bool faults(void *at, bool write)
{
    struct sigaction action = {.sa_handler = escape_fault}, before;
    volatile unsigned char *byte = at;
    volatile bool faulted = true;

    sigemptyset(&action.sa_mask);
    sigaction(SIGSEGV, &action, &before);
    if (sigsetjmp(escape, 1) == 0) {
        if (write)
            *byte = 1;
        else
            (void)*byte;
        faulted = false;
    }
    sigaction(SIGSEGV, &before, NULL);
    return faulted;
}

static void check_faults(float *data)
{
    CHECK(faults(data, false) && faults(data, true));
    CHECK(faults(data + NUMEL - 1, false) && faults(data + NUMEL - 1, true));
}

/* A work that runs kernels on `data` from when it says so until it is told to stop. */
typedef struct busy {
    float *data;
    _Atomic bool runs, stop;
} busy;

static fsdp_status run_kernels(fsdp_stream *stream, const void *argument)
{
    busy *b = *(busy *const *)argument;
    const fsdp__fill_args args = {.dst = b->data, .dtype = FSDP_F32, .numel = NUMEL, .value = 3};

    do {
        FSDP_TRY(fsdp__run_kernel(stream, FSDP__KERNEL_FILL, &args));
        atomic_store(&b->runs, true);
    } while (!atomic_load(&b->stop));
    return FSDP_OK;
}

TEST(the_host_cannot_touch_its_memory)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_sim(context, 0);
    busy b = {.data = take(device, NUMEL)}, *argument = &b;
    int ordinary = 0;

    CHECK(!faults(&ordinary, true)); /* the canary itself */
    check_faults(b.data);
    CHECK_OK(fsdp__stream_enqueue(fsdp_device_stream(device), run_kernels, &argument, sizeof argument));
    while (!atomic_load(&b.runs))
        continue;
    for (int i = 0; i < 1000; i++)
        check_faults(b.data);
    atomic_store(&b.stop, true);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    check_faults(b.data);
    give(device, b.data, NUMEL);
    check_faults(b.data); /* the ledger keeps it */
    CHECK(!fsdp__device_host_access(device) && !fsdp__device_shared_memory(device));
    fsdp_context_free(context);
}

/* ---- what reaches it ---- */

TEST(copies_and_kernels_reach_it)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_sim(context, 0);
    fsdp_stream *stream = fsdp_device_stream(device);
    float *x = take(device, NUMEL), *y = take(device, NUMEL), in[NUMEL], out[NUMEL];
    void *host = NULL;

    for (int i = 0; i < NUMEL; i++)
        in[i] = (float)i;
    CHECK_OK(fsdp__copy_to_device(stream, x, in, sizeof in));
    scale(stream, x, y, 2, NUMEL);
    CHECK_OK(fsdp__copy_on_device(stream, x, y, sizeof in / 2));
    CHECK_OK(fsdp__copy_to_host(stream, out, x, sizeof out));
    CHECK_OK(fsdp_stream_synchronize(stream));
    for (int i = 0; i < NUMEL; i++)
        CHECK_NEAR(out[i], i < NUMEL / 2 ? 2 * i : i, 0);

    CHECK_OK(fsdp__device_alloc_host(device, sizeof in, &host)); /* kernels use it where it lies */
    scale(stream, x, host, 3, NUMEL);
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_NEAR(((float *)host)[10], 60, 0);
    fsdp__device_free_host(device, host, sizeof in);

    memset(out, 0, sizeof out);
    CHECK_OK(fsdp__device_register_host(device, out, sizeof out));
    scale(stream, x, out, 4, NUMEL);
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_NEAR(out[10], 80, 0);
    fsdp__device_unregister_host(device, out, sizeof out);
    CHECK_ERROR(fsdp__launch_fill(stream, &(fsdp__fill_args){.dst = out, .dtype = FSDP_F32, .numel = NUMEL}),
                FSDP_INVALID, "'dst'");
    give(device, x, NUMEL);
    give(device, y, NUMEL);
    fsdp_context_free(context);
}

static void check_refused(fsdp_stream *stream, const float *x, float *good)
{
    const fsdp__span spans[] = {{good, good, 8}, {x, good, NUMEL}};

    CHECK_ERROR(fsdp__launch_scale(
                    stream, &(fsdp__scale_args){.x = x, .y = good, .alpha = 1, .numel = NUMEL, .dtype = FSDP_F32}),
                FSDP_INVALID, "cannot run kernel 'scale' on device 'sim:0': 'x' of 4000 bytes");
    CHECK_ERROR(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){spans, 2, FSDP_F32, FSDP_F32}), FSDP_INVALID,
                "cannot run kernel 'cast_spans' on device 'sim:0': 'src' of 4000 bytes");
    CHECK_ERROR(fsdp__copy_to_host(stream, good, x, NUMEL * sizeof(float)), FSDP_INVALID, "from device 'sim:0'");
    CHECK_ERROR(fsdp__copy_to_device(stream, (void *)(uintptr_t)x, good, NUMEL * sizeof(float)), FSDP_INVALID,
                "to device 'sim:0'");
}

/* One copy in a work. */
typedef struct inside {
    void *device;
    float host[NUMEL];
    bool to_device;
} inside;

static fsdp_status copy_inside(fsdp_stream *stream, const void *argument)
{
    inside *c = *(inside *const *)argument;

    return c->to_device ? fsdp__run_copy_to_device(stream, c->device, c->host, sizeof c->host)
                        : fsdp__run_copy_to_host(stream, c->host, c->device, sizeof c->host);
}

static void check_refused_inside(fsdp_stream *stream, void *device)
{
    inside c = {.device = device}, *argument = &c;

    CHECK_OK(fsdp__stream_enqueue(stream, copy_inside, &argument, sizeof argument));
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_INVALID,
                "cannot copy 4000 bytes from device 'sim:0' inside its work");
    c.to_device = true;
    CHECK_OK(fsdp__stream_enqueue(stream, copy_inside, &argument, sizeof argument));
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_INVALID,
                "cannot copy 4000 bytes to device 'sim:0' inside its work");
}

TEST(memory_of_others_is_refused)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_sim(context, 0), *other = open_sim(context, 1);
    fsdp_stream *stream = fsdp_device_stream(device);
    float *own = take(device, NUMEL), *good = take(device, NUMEL), *theirs = take(other, NUMEL), host[NUMEL] = {0};

    check_refused(stream, host, good);
    check_refused(stream, theirs, good);
    check_refused(stream, own + 100, good); /* past its block */
    give(device, own, NUMEL);
    check_refused(stream, own, good); /* given back */
    /* What is queued as work is refused when it runs. */
    CHECK_OK(fsdp__stream_enqueue(stream, run_kernels, &(busy *){&(busy){.data = host, .stop = true}}, sizeof(void *)));
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_INVALID, "cannot run kernel 'fill' on device 'sim:0': 'dst'");
    check_refused_inside(stream, host);
    check_refused_inside(stream, theirs);
    give(device, good, NUMEL);
    give(other, theirs, NUMEL);
    fsdp_context_free(context);
}

/* ---- several, and their streams ---- */

TEST(devices_have_ordinals_and_ledgers_of_their_own)
{
    fsdp_context *context = test_context();
    fsdp_device *first = open_sim(context, 0), *second = open_sim(context, 1);
    float *x = take(first, NUMEL), *y = take(second, NUMEL), out[NUMEL];
    fsdp_event *event = NULL;
    fsdp_memory_stats stats;
    void *host = NULL;

    CHECK(first != second && open_sim(context, 1) == second);
    CHECK_STRING(fsdp_device_name(second), "sim:1");
    CHECK_EQ(fsdp_device_ordinal(second), 1);
    CHECK_EQ(fsdp_device_ordinal(fsdp_cpu(context)), 0);
    CHECK_NULL(fsdp__device_open(context, "sim", 8));
    CHECK_CONTAINS(fsdp_last_error(), "cannot open device 'sim': its number 8 is not below 8");
    CHECK_NULL(fsdp__device_open(context, "cpu", 1));
    CHECK_NULL(fsdp__device_open(context, "gpu", 0));
    CHECK_CONTAINS(fsdp_last_error(), "cannot open device 'gpu': devices are 'cpu', ");
    CHECK_NULL(fsdp__device_find(context, "sim", 2));

    /* From one to the other through host memory, in the order that an event gives. */
    CHECK_OK(fsdp__device_alloc_host(first, sizeof out, &host));
    CHECK_OK(fsdp_event_create(first, &event));
    fill(fsdp_device_stream(first), x, 7, NUMEL);
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(first), host, x, sizeof out));
    CHECK_OK(fsdp_event_record(event, fsdp_device_stream(first)));
    CHECK_OK(fsdp_stream_wait_event(fsdp_device_stream(second), event));
    CHECK_OK(fsdp__copy_to_device(fsdp_device_stream(second), y, host, sizeof out));
    scale(fsdp_device_stream(second), y, y, 2, NUMEL);
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(second), out, y, sizeof out));
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(second)));
    CHECK_NEAR(out[NUMEL - 1], 14, 0);
    fsdp_event_free(event);
    fsdp__device_free_host(first, host, sizeof out);

    give(second, y, NUMEL);
    fsdp_device_memory(first, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], fsdp__device_rounded(sizeof out));
    fsdp_device_memory(second, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], 0);
    CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_ACTIVATION], fsdp__device_rounded(sizeof out));
    give(first, x, NUMEL);
    fsdp_context_free(context);
}

/* Two streams that hand two buffers to each other, the only order being that of events. */
static void hand_over(const char *seed, float *out)
{
    fsdp_context *context = test_context();
    fsdp_device *device = (setenv("FSDP_SIM_SEED", seed, 1), open_sim(context, 0));
    fsdp_stream *streams[2] = {fsdp_device_stream(device), NULL};
    float *data[2] = {take(device, NUMEL), take(device, NUMEL)};
    fsdp_event *done[2] = {NULL, NULL};

    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_INLINE, &streams[1]));
    CHECK(!fsdp__stream_is_inline(streams[0]) && !fsdp__stream_is_inline(streams[1]));
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_event_create(device, &done[i]));
    fill(streams[0], data[0], 1, NUMEL);
    for (int turn = 0; turn < 200; turn++) {
        int from = turn % 2, to = 1 - from;

        scale(streams[from], data[from], data[to], turn % 3 ? 0.75f : 1.5f, NUMEL);
        CHECK_OK(fsdp_event_record(done[from], streams[from]));
        CHECK_OK(fsdp_stream_wait_event(streams[to], done[from]));
    }
    CHECK_OK(fsdp__copy_to_host(streams[0], out, data[0], NUMEL * sizeof *out));
    CHECK_OK(fsdp_stream_synchronize(streams[0]));
    CHECK_OK(fsdp_stream_synchronize(streams[1]));
    for (int i = 0; i < 2; i++) {
        fsdp_event_free(done[i]);
        give(device, data[i], NUMEL);
    }
    fsdp_stream_free(streams[1]);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(any_timing_gives_the_same_bits)
{
    static const char *const seeds[] = {"2", "3", "4", "5", "6", "7", "8"};
    float first[NUMEL], again[NUMEL];

    hand_over("1", first);
    CHECK(first[0] != 0);
    for (size_t i = 0; i < sizeof seeds / sizeof *seeds; i++) {
        hand_over(seeds[i], again);
        CHECK_BYTES(again, first, sizeof first);
    }
}

/* ---- what a launch takes with it ---- */

static fsdp_status stand(fsdp_stream *stream, const void *argument)
{
    _Atomic bool *go = *(_Atomic bool *const *)argument;

    (void)stream;
    while (!atomic_load(go))
        continue;
    return FSDP_OK;
}

TEST(a_table_is_the_callers_again_when_the_launch_returns)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_sim(context, 0);
    fsdp_stream *stream = fsdp_device_stream(device);
    float *x = take(device, NUMEL), *y = take(device, NUMEL), out[2];
    fsdp__span spans[200];
    const void *srcs[] = {x, x, x};
    fsdp__reduce_ranks_args sum = {.srcs = srcs,
                                   .count = 3,
                                   .dst = y,
                                   .numel = 1,
                                   .src_dtype = FSDP_F32,
                                   .dst_dtype = FSDP_F32,
                                   .op = FSDP__RANK_SUM};
    _Atomic bool go = false, *argument = &go;

    for (int i = 0; i < 200; i++)
        spans[i] = (fsdp__span){x, y + i, 1};
    fill(stream, x, 5, NUMEL);
    CHECK_OK(fsdp__stream_enqueue(stream, stand, &argument, sizeof argument));
    CHECK_OK(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){spans, 200, FSDP_F32, FSDP_F32}));
    CHECK_OK(fsdp__launch_reduce_ranks(stream, &sum));
    memset(spans, 0xFF, sizeof spans);
    memset(srcs, 0xFF, sizeof srcs);
    atomic_store(&go, true);
    CHECK_OK(fsdp__copy_to_host(stream, &out[0], y, sizeof(float)));
    CHECK_OK(fsdp__copy_to_host(stream, &out[1], y + 199, sizeof(float)));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_NEAR(out[0], 15, 0);
    CHECK_NEAR(out[1], 5, 0);
    give(device, x, NUMEL);
    give(device, y, NUMEL);
    fsdp_context_free(context);
}

/* Scratch is the kernels' memory, and counted. */
TEST(scratch_is_counted)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_sim(context, 0);
    fsdp_stream *stream = fsdp_device_stream(device);
    float *x = take(device, 64 * NUMEL), *y = take(device, 1), out;
    fsdp_memory_stats stats;

    fill(stream, x, 0.5, 64 * NUMEL);
    CHECK_OK(fsdp__launch_reduce(stream, &(fsdp__reduce_args){.x = x,
                                                              .y = y,
                                                              .outer = 1,
                                                              .reduced = 64 * NUMEL,
                                                              .inner = 1,
                                                              .alpha = 1,
                                                              .x_dtype = FSDP_F32,
                                                              .y_dtype = FSDP_F32}));
    CHECK_OK(fsdp__copy_to_host(stream, &out, y, sizeof out));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_NEAR(out, 32 * NUMEL, 0);
    fsdp_device_memory(device, &stats);
    CHECK(stats.live_bytes[FSDP_MEMORY_WORKSPACE] > 0);
    fsdp__stream_drop_workspace(stream);
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_WORKSPACE], 0);
    give(device, x, 64 * NUMEL);
    give(device, y, 1);
    fsdp_context_free(context);
}
