/* The host side of a CUDA device, on the fake runtime (tests/backend/fakecuda): what is missing is told, streams, marks
 * and copies mean what they mean on the CPU, and every failure is survived or final. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/fakecuda/use.h"
#include "device/device.h"
#include "device/host_kernel.h"
#include "device/kernels.h"
#include "device/links.h"

enum {
    COUNT = 3000,
    PAGE = 4096,
    OUT_OF_MEMORY = 2, /* cudaError_t */
    ILLEGAL_ADDRESS = 700
};

/* ---- what is missing ---- */

static void check_no_gpu(const char *variable, const char *value, const char *name, const char *reason)
{
    fsdp_context *context = test_context();

    setenv(variable, value, 1);
    CHECK_NULL(fsdp_device_open(context, name));
    CHECK_CONTAINS(fsdp_last_error(), reason);
    unsetenv(variable);
    CHECK_PTR(fsdp_device_open(context, name));
    fsdp_context_free(context);
    check_nothing_lives();
}

TEST(what_keeps_a_gpu_from_being_used_is_told_with_what_to_do)
{
    check_no_gpu("FSDP_FAKECUDA_DRIVER", "0", "cuda", "there is no CUDA driver here: install NVIDIA's driver");
    check_no_gpu("FSDP_FAKECUDA_DRIVER", "11080", "cuda", "the CUDA driver is too old: it knows CUDA 11.8, and");
    check_no_gpu("FSDP_FAKECUDA_DEVICES", "0", "cuda", "there is no GPU here: nvidia-smi lists");
    check_no_gpu("FSDP_FAKECUDA_CAPABILITY", "70", "cuda:1", "cannot open device 'cuda:1'");
    check_no_gpu("FSDP_FAKECUDA_CAPABILITY", "70", "cuda", "is too old: its compute capability is 7.0, and the");
    check_no_gpu("FSDP_FAKECUDA_DEVICES", "1", "cuda:1", "there is 1 GPU here, from cuda:0 on");
}

TEST(the_worst_way_between_gpus_is_known)
{
    static const struct {
        const char *links, *peers;
        int ranks;
        fsdp__link worst;
    } cases[] = {{"18", NULL, 3, FSDP__LINK_NVLINK},  {"0", NULL, 3, FSDP__LINK_PCIE},
                 {NULL, NULL, 3, FSDP__LINK_UNKNOWN}, {"18", "0-2", 8, FSDP__LINK_HOST},
                 {"18", "0-2", 2, FSDP__LINK_NVLINK}, {"18", NULL, 1, FSDP__LINK_UNKNOWN}};

    setenv("FSDP_FAKECUDA_DEVICES", "3", 1);
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_context *context = test_context();

        if (cases[i].links)
            setenv("FSDP_FAKENVML_LINKS", cases[i].links, 1);
        if (cases[i].peers)
            setenv("FSDP_FAKECUDA_PEERS", cases[i].peers, 1);
        CHECK_EQ(fsdp__device_worst_link(open_gpu(context), cases[i].ranks), cases[i].worst);
        CHECK_EQ(fsdp__device_worst_link(CHECK_PTR(fsdp_cpu(context)), cases[i].ranks), FSDP__LINK_UNKNOWN);
        fsdp_context_free(context);
        unsetenv("FSDP_FAKENVML_LINKS");
        unsetenv("FSDP_FAKECUDA_PEERS");
    }
}

TEST(a_rank_takes_the_gpu_of_its_local_rank)
{
    static const struct {
        int local_rank, device;
    } ranks[] = {{0, 0}, {1, 1}, {2, 0}, {5, 1}};

    for (size_t i = 0; i < sizeof ranks / sizeof *ranks; i++) {
        const fsdp_context_options options = {
            .rank = 6, .world_size = 16, .local_rank = ranks[i].local_rank, .local_world_size = 8, .threads = 1};
        fsdp_context *context = NULL;
        fsdp_device *device;

        CHECK_OK(fsdp_context_create(&options, &context));
        device = CHECK_PTR(fsdp_cuda(context, -1));
        CHECK_EQ(fsdp_device_ordinal(device), ranks[i].device);
        CHECK(fsdp_device_open(context, "cuda") == device);
        CHECK(fsdp_cuda(context, ranks[i].device) == device);
        CHECK(fsdp_cuda(context, 1 - ranks[i].device) != device);
        fsdp_context_free(context);
    }
}

/* ---- streams of several kinds ---- */

typedef struct gate {
    pthread_mutex_t mutex;
    pthread_cond_t moved;
    bool open;
} gate;

#define GATE                                                                  \
    {                                                                         \
        .mutex = PTHREAD_MUTEX_INITIALIZER, .moved = PTHREAD_COND_INITIALIZER \
    }

static void gate_open(gate *g)
{
    pthread_mutex_lock(&g->mutex);
    g->open = true;
    pthread_cond_broadcast(&g->moved);
    pthread_mutex_unlock(&g->mutex);
}

static fsdp_status pass(fsdp_stream *stream, const void *argument)
{
    gate *g = *(gate *const *)argument;

    (void)stream;
    pthread_mutex_lock(&g->mutex);
    while (!g->open)
        pthread_cond_wait(&g->moved, &g->mutex);
    pthread_mutex_unlock(&g->mutex);
    return FSDP_OK;
}

/* Two streams, of which one is a GPU's, and numbers of each one's device. */
typedef struct pair {
    fsdp_context *context;
    fsdp_device *devices[2];
    fsdp_stream *streams[2];
    float *numbers[2];
    fsdp_event *event;
} pair;

static void pair_open(pair *p, const char *first, const char *second)
{
    const char *const names[2] = {first, second};

    p->context = test_context();
    for (int i = 0; i < 2; i++) {
        void *memory = NULL;

        p->devices[i] = CHECK_PTR(fsdp_device_open(p->context, names[i]));
        CHECK_OK(fsdp_stream_create(p->devices[i], FSDP_STREAM_WORKER, &p->streams[i]));
        CHECK_OK(fsdp__device_alloc(p->devices[i], COUNT * sizeof(float), FSDP_MEMORY_WORKSPACE, &memory));
        p->numbers[i] = memory;
    }
    CHECK_OK(fsdp_event_create(p->devices[0], &p->event));
}

static void pair_close(pair *p)
{
    fsdp_event_free(p->event);
    for (int i = 0; i < 2; i++) {
        fsdp_stream_free(p->streams[i]);
        fsdp__device_free(p->devices[i], p->numbers[i], COUNT * sizeof(float), FSDP_MEMORY_WORKSPACE);
    }
    fsdp_context_free(p->context);
    check_nothing_lives();
}

static void fill(const pair *p, int i, double value)
{
    CHECK_OK(fsdp__launch_fill_run(p->streams[i], p->numbers[i], FSDP_F32, COUNT, value));
}

static const char *const kinds[][2] = {
    {"cuda:0", "cpu"}, {"cpu", "cuda:0"}, {"cuda:0", "cuda:1"}, {"cuda:0", "cuda:0"}};

/* The first stream is held up by the host, or not at all; what it then writes is what the second one copies. */
TEST(a_stream_waits_for_an_event_of_a_stream_of_any_device)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
        for (int held = 0; held < 2; held++) {
            gate stop = GATE, *g = &stop;
            float between[COUNT], seen[COUNT];
            pair p;

            pair_open(&p, kinds[k][0], kinds[k][1]);
            fill(&p, 0, 1);
            fill(&p, 1, 2);
            CHECK_OK(fsdp_stream_synchronize(p.streams[0]));
            if (held)
                CHECK_OK(fsdp__stream_enqueue(p.streams[0], pass, &g, sizeof g));
            fill(&p, 0, 3);
            CHECK_OK(fsdp__copy_to_host(p.streams[0], between, p.numbers[0], sizeof between));
            CHECK_OK(fsdp_event_record(p.event, p.streams[0]));
            CHECK_OK(fsdp_stream_wait_event(p.streams[1], p.event));
            CHECK_OK(fsdp__copy_to_device(p.streams[1], p.numbers[1], between, sizeof between));
            CHECK_OK(fsdp__copy_to_host(p.streams[1], seen, p.numbers[1], sizeof seen));
            gate_open(g);
            CHECK_OK(fsdp_stream_synchronize(p.streams[1]));
            for (int i = 0; i < COUNT; i++)
                CHECK_EQ((int)seen[i], 3);
            CHECK_OK(fsdp_stream_synchronize(p.streams[0]));
            pair_close(&p);
        }
}

/* What was recorded again since counts for those only who ask after that. */
TEST(a_later_record_does_not_move_what_a_stream_waits_for)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        gate stop = GATE, *g = &stop;
        pair p;

        pair_open(&p, kinds[k][0], kinds[k][1]);
        fill(&p, 0, 1);
        CHECK_OK(fsdp_event_record(p.event, p.streams[0]));
        CHECK_OK(fsdp_stream_wait_event(p.streams[1], p.event));
        CHECK_OK(fsdp__stream_enqueue(p.streams[0], pass, &g, sizeof g));
        CHECK_OK(fsdp_event_record(p.event, p.streams[0]));
        CHECK_OK(fsdp_stream_synchronize(p.streams[1])); /* for ever, if it waited for the second record */
        gate_open(g);
        CHECK_OK(fsdp_event_synchronize(p.event));
        pair_close(&p);
    }
}

TEST(a_wait_carries_the_failure_to_a_stream_of_any_device)
{
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        gate stop = GATE, *g = &stop;
        pair p;

        pair_open(&p, kinds[k][0], kinds[k][1]);
        CHECK_OK(fsdp__stream_enqueue(p.streams[0], pass, &g, sizeof g));
        CHECK_OK(fsdp__stream_enqueue(p.streams[0], break_down, NULL, 0));
        CHECK_OK(fsdp_event_record(p.event, p.streams[0]));
        if (k % 2) /* both before and after it has happened */
            gate_open(g);
        CHECK_OK(fsdp_stream_wait_event(p.streams[1], p.event));
        gate_open(g);
        CHECK_ERROR(fsdp_stream_synchronize(p.streams[1]), FSDP_IO, "the host's part is broken");
        CHECK_ERROR(fsdp_stream_synchronize(p.streams[0]), FSDP_IO, "the host's part is broken");
        CHECK_OK(fsdp_stream_wait_event(p.streams[1], p.event));
        CHECK_OK(fsdp_stream_synchronize(p.streams[1])); /* the failure has been told */
        pair_close(&p);
    }
}

TEST(a_gpu_that_has_failed_gives_no_handle)
{
    fsdp_context *context = test_context();
    fsdp_stream *stream = fsdp_device_stream(open_gpu(context));

    CHECK_PTR(fsdp_stream_native(stream));
    fakecuda.fail_call("cudaStreamSynchronize", 1, ILLEGAL_ADDRESS, true);
    CHECK_STATUS(fsdp_stream_synchronize(stream), FSDP_STATE);
    fsdp_clear_error();
    CHECK_NULL(fsdp_stream_native(stream));
    CHECK_CONTAINS(fsdp_last_error(), "device 'cuda:0' has failed and cannot be used any more");
    fsdp_context_free(context);
    fakecuda.mend();
}

/* ---- who issues ---- */

static fsdp_status run_fill(fsdp_stream *stream, const void *argument)
{
    return fsdp__run_kernel(stream, FSDP__KERNEL_FILL, argument);
}

/* A kernel behind a function of the host comes after it, and so do a copy and what a user issues himself. */
TEST(kernels_and_copies_stay_behind_functions_of_the_host)
{
    gate stop = GATE, *g = &stop;
    float seen[2][COUNT];
    pair p;

    pair_open(&p, "cuda:0", "cpu");
    for (int round = 0; round < 3; round++) {
        const fsdp__fill_args five = {.dst = p.numbers[0], .dtype = FSDP_F32, .numel = COUNT, .value = 5};

        stop.open = false;
        fill(&p, 0, 4);
        CHECK_OK(fsdp__copy_to_host(p.streams[0], seen[0], p.numbers[0], sizeof seen[0]));
        CHECK_OK(fsdp__stream_enqueue(p.streams[0], pass, &g, sizeof g));
        CHECK_OK(fsdp__stream_enqueue(p.streams[0], run_fill, &five, sizeof five));
        CHECK_OK(fsdp__copy_to_host(p.streams[0], seen[1], p.numbers[0], sizeof seen[1]));
        fill(&p, 0, 6);
        gate_open(g);
        CHECK_PTR(fsdp_stream_native(p.streams[0])); /* all has been issued */
        CHECK_OK(fsdp_stream_synchronize(p.streams[0]));
        for (int i = 0; i < COUNT; i++) {
            CHECK_EQ((int)seen[0][i], 4);
            CHECK_EQ((int)seen[1][i], 5);
        }
    }
    CHECK(fsdp_stream_native(p.streams[0]) != fsdp_stream_native(fsdp_device_stream(p.devices[0])));
    CHECK_NULL(fsdp_stream_native(p.streams[1]));
    CHECK_NULL(fsdp_stream_native(NULL));
    pair_close(&p);
}

/* A host function in the stream keeps what follows waiting; then the bytes are read before the call returns, too. */
TEST(what_is_handed_to_a_gpu_behind_a_function_of_the_host_is_read_on_return)
{
    gate stop = GATE, *g = &stop;
    float here[COUNT], seen[COUNT];
    pair p;

    pair_open(&p, "cuda:0", "cpu");
    for (int i = 0; i < COUNT; i++)
        here[i] = 7;
    CHECK_OK(fsdp__stream_enqueue(p.streams[0], pass, &g, sizeof g));
    fill(&p, 0, 6);
    gate_open(g); /* else the call would wait for ever */
    CHECK_OK(fsdp__hand_to_device(p.streams[0], p.numbers[0], here, sizeof here));
    memset(here, 0, sizeof here);
    CHECK_OK(fsdp__copy_to_host(p.streams[0], seen, p.numbers[0], sizeof seen));
    CHECK_OK(fsdp_stream_synchronize(p.streams[0]));
    for (int i = 0; i < COUNT; i++)
        CHECK_EQ((int)seen[i], 7);
    pair_close(&p);
}

/* ---- failures ---- */

static fsdp_status add_scratch(fsdp_stream *stream, const void *argument)
{
    (void)argument;
    return fsdp__stream_workspace(stream, 1 << 20) ? FSDP_OK : fsdp_last_status();
}

/* Uses all that a device does on two streams; `*right` tells whether what came back is right. */
static fsdp_status use_streams(fsdp_device *device, fsdp_stream *other, fsdp_event *event, void *memory, bool *right)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    static float here[COUNT], back[COUNT]; /* copies may still run after a failure */

    for (int i = 0; i < COUNT; i++)
        here[i] = (float)i;
    *right = false;
    FSDP_TRY(fsdp__copy_to_device(stream, memory, here, sizeof here));
    FSDP_TRY(fsdp__launch_scale(
        stream, &(fsdp__scale_args){.x = memory, .y = memory, .alpha = 2, .numel = COUNT, .dtype = FSDP_F32}));
    FSDP_TRY(fsdp_event_record(event, stream));
    FSDP_TRY(fsdp_stream_wait_event(other, event));
    FSDP_TRY(fsdp__stream_enqueue(other, add_scratch, NULL, 0));
    FSDP_TRY(fsdp__copy_to_host(other, back, memory, sizeof back));
    FSDP_TRY(fsdp_event_record(event, other));
    FSDP_TRY(fsdp_event_synchronize(event));
    FSDP_TRY(fsdp_stream_synchronize(other));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    *right = true;
    for (int i = 0; i < COUNT; i++)
        *right = *right && back[i] == 2 * here[i];
    return FSDP_OK;
}

static fsdp_status use_device(fsdp_device *device, bool *right)
{
    static float host[2 * PAGE];
    fsdp_stream *other = NULL;
    fsdp_event *event = NULL;
    void *memory = NULL, *pinned = NULL;
    fsdp_status status;

    FSDP_TRY_GOTO(status, fsdp__device_alloc(device, COUNT * sizeof(float), FSDP_MEMORY_WORKSPACE, &memory), out);
    FSDP_TRY_GOTO(status, fsdp__device_alloc_host(device, 100, &pinned), out);
    FSDP_TRY_GOTO(status, fsdp__device_register_host(device, host, sizeof host), out);
    fsdp__device_unregister_host(device, host, sizeof host);
    FSDP_TRY_GOTO(status, fsdp_stream_create(device, FSDP_STREAM_WORKER, &other), out);
    FSDP_TRY_GOTO(status, fsdp_event_create(device, &event), out);
    status = use_streams(device, other, event, memory, right);
out:
    if (other) /* nothing may be used any more when it is freed */
        FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(other));
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(fsdp_device_stream(device)));
    fsdp_event_free(event);
    fsdp_stream_free(other);
    fsdp__device_free_host(device, pinned, 100);
    fsdp__device_free(device, memory, COUNT * sizeof(float), FSDP_MEMORY_WORKSPACE);
    return status;
}

/* Returns whether the n-th use of the call failed. */
static bool fails_cleanly(const char *call, long nth, int error)
{
    fsdp_context *context = test_context();
    fsdp_device *device;
    bool right = false, failed;
    fsdp_status status;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, no_line, NULL); /* a device that was lost is closed with failures */
    fakecuda.fail_call(call, nth, error, error != OUT_OF_MEMORY);
    device = fsdp_cuda(context, 0);
    status = device ? use_device(device, &right) : fsdp_last_status();
    failed = fakecuda.failed(call);
    if (status == FSDP_OK)
        CHECK(right);
    if (!failed)
        CHECK_OK(status);
    if (failed && device && status != FSDP_OK && error != OUT_OF_MEMORY) { /* final, with the same text */
        char first[1024];

        snprintf(first, sizeof first, "%s", fsdp_last_error());
        CHECK_CONTAINS(first, "device 'cuda:0' has failed and cannot be used any more: ");
        CHECK(use_device(device, &right) != FSDP_OK);
        CHECK_CONTAINS(fsdp_last_error(), strstr(first, "device 'cuda:0' has failed"));
    }
    if (failed && device && error == OUT_OF_MEMORY) { /* not final */
        CHECK_OK(use_device(device, &right));
        CHECK(right);
    }
    fsdp_context_free(context);
    fakecuda.mend();
    check_nothing_lives();
    fsdp_clear_error();
    return failed;
}

TEST(every_call_of_cuda_that_fails_is_survived_or_final)
{
    int failures = 0;

    for (const char *const *call = fakecuda.calls; *call; call++)
        if (strncmp(*call, "cublas", 6) != 0)
            for (long nth = 1; fails_cleanly(*call, nth, ILLEGAL_ADDRESS); nth++)
                failures++;
    CHECK(failures > 50);
    CHECK(fails_cleanly("cuMemCreate", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cuMemMap", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cudaMallocAsync", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cudaHostAlloc", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cudaHostRegister", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cudaEventCreateWithFlags", 1, OUT_OF_MEMORY));
    CHECK(fails_cleanly("cudaStreamCreateWithPriority", 2, OUT_OF_MEMORY));
    setenv("FSDP_FAKECUDA_MAPPING", "0", 1); /* then segments are of another kind */
    CHECK(fails_cleanly("cudaMalloc", 1, ILLEGAL_ADDRESS));
    CHECK(fails_cleanly("cudaMalloc", 1, OUT_OF_MEMORY));
    CHECK(!fails_cleanly("cuMemCreate", 1, OUT_OF_MEMORY));
}

/* ---- functions of the caller's on a device that is lost ---- */

static fsdp_status count_host(const void *arg, void *const *data)
{
    (void)data;
    atomic_fetch_add(*(atomic_int *const *)arg, 1);
    return FSDP_OK;
}

static fsdp_status count_device(fsdp_stream *stream, const void *arg, void *const *data)
{
    (void)stream;
    return count_host(arg, data);
}

/* They need no copy that would fail, and are asked for before the loss is known, and after. */
TEST(a_callers_function_does_not_run_on_a_lost_device)
{
    atomic_int runs = 0, *counter = &runs;
    fsdp__host_kernel kernels[2] = {
        {.name = "mine", .function = count_host, .arg = &counter, .arg_bytes = sizeof counter},
        {.name = "mine", .device_function = count_device, .arg = &counter, .arg_bytes = sizeof counter}};

    for (int k = 0; k < 2; k++) {
        fsdp_context *context = test_context();
        fsdp_stream *stream = fsdp_device_stream(open_gpu(context));
        gate stop = GATE, *g = &stop;
        char first[1024];

        atomic_store(&runs, 0);
        CHECK_OK(fsdp__launch_host_kernel(stream, &kernels[k]));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_OK(fsdp__stream_enqueue(stream, pass, &g, sizeof g));
        CHECK_OK(fsdp__launch_host_kernel(stream, &kernels[k]));
        fakecuda.fail_call("cudaStreamSynchronize", 1, ILLEGAL_ADDRESS, true);
        CHECK_STATUS(fsdp__stream_settle(stream), FSDP_STATE);
        snprintf(first, sizeof first, "%s", fsdp_last_error());
        CHECK_CONTAINS(first, "device 'cuda:0' has failed and cannot be used any more");
        gate_open(g);
        CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_STATE, "kernel 'mine': ");
        CHECK_CONTAINS(fsdp_last_error(), first);
        CHECK_ERROR(fsdp__launch_host_kernel(stream, &kernels[k]), FSDP_STATE, first);
        CHECK_EQ(runs, 1);
        fsdp_context_set_log(context, FSDP_LOG_ERROR, no_line, NULL);
        fsdp_context_free(context);
        fakecuda.mend();
        check_nothing_lives();
    }
}

TEST(any_allocation_may_fail)
{
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_context *context = NULL;
        bool right = false;
        fsdp_status status = fsdp_context_create(&(fsdp_context_options){.threads = 1}, &context);
        fsdp_device *device = context ? fsdp_cuda(context, 0) : NULL;

        if (status == FSDP_OK)
            status = device ? use_device(device, &right) : fsdp_last_status();
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK(right == (status == FSDP_OK));
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

#else
MISSING_TEST(cuda)
#endif
