/* Memory of a CUDA device and of the host for it, on the fake runtime (tests/backend/fakecuda): what is cached is given
 * back where there is none left, and what is missing is said. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "backend/fakecuda/use.h"
#include "device/device.h"
#include "device/impl.h"
#include "device/kernels.h"
#include "device/steps.h"

enum {
    PAGE = 4096,
    MIB = 1 << 20,
    OUT_OF_MEMORY = 2, /* cudaError_t */
    ILLEGAL_ADDRESS = 700
};

/* Keeps a stream waiting until an int is not 0. */
static fsdp_status pass(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    while (!atomic_load(*(atomic_int *const *)argument))
        (void)usleep(1000);
    return FSDP_OK;
}

/* ---- the ledger ---- */

static fsdp_status linger(fsdp_stream *stream, const void *argument)
{
    (void)stream, (void)argument;
    (void)usleep(100000);
    return FSDP_OK;
}

/* A hole is given back where the device has nothing else, when what was queued has been done, and the blocks around it
 * keep their bytes. */
TEST(a_hole_between_blocks_is_given_back_where_nothing_else_is_left)
{
    enum {
        HOLE = 60 * MIB,
        LARGE = 100 * MIB
    };
    static unsigned char seen[MIB];
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    void *first = NULL, *hole = NULL, *last = NULL, *large = NULL;

    fakecuda.set_memory(150 * (size_t)MIB);
    CHECK_OK(fsdp__device_alloc(device, MIB, FSDP_MEMORY_ACTIVATION, &first));
    CHECK_OK(fsdp__device_alloc(device, HOLE, FSDP_MEMORY_ACTIVATION, &hole));
    CHECK_OK(fsdp__device_alloc(device, MIB, FSDP_MEMORY_ACTIVATION, &last));
    CHECK_OK(fsdp__launch_fill_run(stream, first, FSDP_U8, MIB, 1));
    CHECK_OK(fsdp__stream_enqueue(stream, linger, NULL, 0)); /* so what follows is issued after the call below */
    CHECK_OK(fsdp__launch_fill_run(stream, hole, FSDP_U8, HOLE, 2));
    CHECK_OK(fsdp__launch_fill_run(stream, last, FSDP_U8, MIB, 3));
    fsdp__device_free(device, hole, HOLE, FSDP_MEMORY_ACTIVATION);
    CHECK_OK(fsdp__device_alloc(device, LARGE, FSDP_MEMORY_ACTIVATION, &large));
    CHECK_OK(fsdp__launch_fill_run(stream, large, FSDP_U8, LARGE, 4));
    CHECK_OK(fsdp__copy_to_host(stream, seen, first, MIB));
    CHECK_EQ(seen[0] + seen[MIB - 1], 2);
    CHECK_OK(fsdp__copy_to_host(stream, seen, last, MIB));
    CHECK_EQ(seen[0] + seen[MIB - 1], 6);
    fsdp__device_free(device, first, MIB, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(device, last, MIB, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(device, large, LARGE, FSDP_MEMORY_ACTIVATION);
    fakecuda.set_memory(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

TEST(memory_that_is_not_there_is_an_error_that_can_be_survived)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    void *held = NULL, *more = NULL;
    fsdp_memory_stats stats;

    fakecuda.set_memory(128 * MIB);
    CHECK_OK(fsdp__device_alloc(device, 60 * MIB, FSDP_MEMORY_ACTIVATION, &held));
    CHECK_ERROR(fsdp__device_alloc(device, 100 * MIB, FSDP_MEMORY_GRADIENT, &more), FSDP_NO_MEMORY,
                "cannot allocate 100.0MiB of gradient on device 'cuda:0' (60.0MiB live, 60.0MiB reserved): cuda:0 has "
                "no memory left (cuMemCreate: out of memory): ");
    CHECK_CONTAINS(fsdp_last_error(),
                   " of the card's 0.12GiB are free, and other processes may hold some (nvidia-smi lists "
                   "them): end those, or take smaller batches or more ranks");
    CHECK_OK(fsdp__device_alloc(device, 40 * MIB, FSDP_MEMORY_GRADIENT, &more));
    fsdp__device_free(device, more, 40 * MIB, FSDP_MEMORY_GRADIENT);
    fsdp__device_free(device, held, 60 * MIB, FSDP_MEMORY_ACTIVATION);
    CHECK_OK(fsdp__device_alloc(device, 100 * MIB, FSDP_MEMORY_GRADIENT, &more)); /* what is unused goes back */
    fsdp__device_free(device, more, 100 * MIB, FSDP_MEMORY_GRADIENT);
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_total_bytes, 0);
    fakecuda.set_memory(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

enum {
    KEPT = 8, /* blocks of a step */
    EDGE = 64
};

typedef struct kept {
    void *memory;
    size_t bytes;
} kept;

static kept take(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, int value)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    kept k = {NULL, bytes};

    CHECK_OK(fsdp__device_alloc(device, bytes, kind, &k.memory));
    CHECK_OK(fsdp__launch_fill_run(stream, k.memory, FSDP_U8, EDGE, value));
    CHECK_OK(fsdp__launch_fill_run(stream, (char *)k.memory + bytes - EDGE, FSDP_U8, EDGE, value));
    return k;
}

/* Gives a block back, whose bytes nobody has changed. */
static void give(fsdp_device *device, const kept *k, fsdp_memory_kind kind, int value)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    unsigned char seen[2];

    CHECK_OK(fsdp__copy_to_host(stream, &seen[0], k->memory, 1));
    CHECK_OK(fsdp__copy_to_host(stream, &seen[1], (char *)k->memory + k->bytes - 1, 1));
    CHECK_EQ(seen[0], value);
    CHECK_EQ(seen[1], value);
    fsdp__device_free(device, k->memory, k->bytes, kind);
}

/* Takes a step, in which the first one makes what outlives it; block `odd` is larger than in the others. */
static void take_step(fsdp_device *device, kept *moments, int odd)
{
    kept blocks[KEPT], gradients[KEPT];

    CHECK_OK(fsdp__note_forward(fsdp_device_context(device)));
    for (int i = 0; i < KEPT; i++) {
        kept other = take(device, (size_t)(3 + 2 * i) * MIB + 64, FSDP_MEMORY_WORKSPACE, 100 + i);

        blocks[i] = take(device, (size_t)(5 + (i == odd ? 4 : 0)) * MIB + 4096, FSDP_MEMORY_ACTIVATION, 1 + i);
        give(device, &other, FSDP_MEMORY_WORKSPACE, 100 + i);
    }
    for (int i = KEPT - 1; i >= 0; i--) {
        gradients[i] = take(device, 3 * MIB, FSDP_MEMORY_GRADIENT, 20 + i);
        give(device, &blocks[i], FSDP_MEMORY_ACTIVATION, 1 + i);
    }
    for (int i = 0; i < KEPT; i++) {
        if (!moments[i].memory)
            moments[i] = take(device, 6 * MIB, FSDP_MEMORY_OPTIMIZER_STATE, 40 + i);
        give(device, &gradients[i], FSDP_MEMORY_GRADIENT, 20 + i);
    }
    fsdp__end_step(fsdp_device_context(device));
}

/* Pieces are cut out in the first step, and where the card has no more; they are mapped again where steps have places.
 */
TEST(steps_have_places_on_a_card_that_has_little_more_than_their_peak)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    kept moments[KEPT] = {{NULL, 0}};
    fsdp_memory_stats stats;
    uint64_t calls;

    for (int n = 0; n < 2; n++)
        take_step(device, moments, -1);
    fsdp_device_memory(device, &stats);
    CHECK(stats.reserved_bytes < stats.peak_total_bytes + 4 * (size_t)MIB);
    calls = stats.system_allocations;
    fakecuda.fail_call("cudaDeviceSynchronize", 0, 0, false);
    for (int n = 0; n < 3; n++)
        take_step(device, moments, -1);
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.system_allocations, calls);
    CHECK_EQ(fakecuda.uses("cudaDeviceSynchronize"), 0); /* nobody waits for the device */
    fakecuda.set_memory(stats.reserved_bytes + 32 * (size_t)MIB);
    for (int n = 0; n < 6; n++)
        take_step(device, moments, n % 2 ? n % KEPT : -1);
    for (int i = 0; i < KEPT; i++)
        give(device, &moments[i], FSDP_MEMORY_OPTIMIZER_STATE, 40 + i);
    fakecuda.set_memory(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

typedef struct asker {
    fsdp_device *device;
    atomic_int open;
} asker;

/* Asks for memory, and then lets a stream go on. */
static void *ask(void *arg)
{
    asker *a = arg;
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(a->device, MIB, FSDP_MEMORY_WORKSPACE, &memory));
    fsdp__device_free(a->device, memory, MIB, FSDP_MEMORY_WORKSPACE);
    atomic_store(&a->open, 1);
    return NULL;
}

/* Another stream waits for a thread that asks for memory, or that is to take its next step: who cuts memory out must
 * not wait for it. If it does, this test does not end. */
TEST(memory_is_cut_out_while_another_stream_waits)
{
    for (int asks = 0; asks < 2; asks++) {
        fsdp_context *context = test_context();
        asker a = {.device = open_gpu(context)};
        fsdp_stream *other = NULL;
        kept moments[KEPT] = {{NULL, 0}};
        pthread_t thread;

        CHECK_OK(fsdp_stream_create(a.device, FSDP_STREAM_WORKER, &other));
        fakecuda.fail_call("cuMemUnmap", 0, 0, false);
        fakecuda.hold(CHECK_PTR(fsdp_stream_native(other)), &a.open);
        if (asks)
            CHECK_EQ(pthread_create(&thread, NULL, ask, &a), 0);
        for (int n = 0; n < 3; n++)
            take_step(a.device, moments, -1);
        CHECK(fakecuda.uses("cuMemUnmap") > 0);
        CHECK(asks || !atomic_load(&a.open));
        atomic_store(&a.open, 1);
        if (asks)
            CHECK_EQ(pthread_join(thread, NULL), 0);
        fsdp_stream_free(other);
        for (int i = 0; i < KEPT; i++)
            give(a.device, &moments[i], FSDP_MEMORY_OPTIMIZER_STATE, 40 + i);
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

/* ---- scratch ---- */

static fsdp_status add_scratch(fsdp_stream *stream, const void *argument)
{
    const size_t *bytes = argument;

    return fsdp__stream_workspace(stream, *bytes) ? FSDP_OK : fsdp_last_status();
}

/* The ledger keeps 100 of 150 MiB that nobody uses. */
TEST(scratch_gets_what_the_ledger_keeps_unused)
{
    const size_t large = 100 * (size_t)MIB, huge = 200 * (size_t)MIB;

    for (int way = 0; way < 3; way++) { /* issued at once, queued, on another stream */
        fsdp_context *context = test_context();
        fsdp_device *device = open_gpu(context);
        fsdp_stream *own = fsdp_device_stream(device), *stream = own;
        void *memory = NULL;

        fakecuda.set_memory(150 * (size_t)MIB);
        if (way == 2)
            CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &stream));
        CHECK_OK(fsdp__device_alloc(device, large, FSDP_MEMORY_ACTIVATION, &memory));
        CHECK_OK(fsdp__launch_fill_run(own, memory, FSDP_U8, (int64_t)large, 1));
        fsdp__device_free(device, memory, large, FSDP_MEMORY_ACTIVATION);
        if (way == 0) {
            CHECK(fsdp__stream_enter(stream));
            CHECK_PTR(fsdp__stream_workspace(stream, large));
            fsdp__stream_leave(stream);
        } else {
            CHECK_OK(fsdp__stream_enqueue(stream, add_scratch, &large, sizeof large));
        }
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_OK(fsdp__stream_enqueue(stream, add_scratch, &huge, sizeof huge));
        CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_NO_MEMORY,
                    "cannot allocate 0.20GiB of workspace on device 'cuda:0' (0.0KiB live, 0.0KiB reserved): "
                    "cuda:0 has no memory left (cudaMallocAsync: out of memory): ");
        if (way == 2)
            fsdp_stream_free(stream);
        fakecuda.set_memory(0);
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

/* The first block is free when nothing is queued. It becomes one with a block that is filled by work behind the one
 * that asks for scratch. */
TEST(scratch_does_not_get_what_later_work_uses)
{
    const size_t large = 100 * (size_t)MIB;
    static unsigned char seen[MIB];
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    atomic_int open = 0, *gate = &open;
    void *first = NULL, *memory = NULL;

    fakecuda.set_memory(150 * (size_t)MIB);
    CHECK_OK(fsdp__device_alloc(device, 40 * MIB, FSDP_MEMORY_ACTIVATION, &first));
    CHECK_OK(fsdp__device_alloc(device, 60 * MIB, FSDP_MEMORY_ACTIVATION, &memory));
    fsdp__device_free(device, first, 40 * MIB, FSDP_MEMORY_ACTIVATION);
    CHECK_OK(fsdp__stream_enqueue(stream, pass, &gate, sizeof gate));
    CHECK_OK(fsdp__stream_enqueue(stream, add_scratch, &large, sizeof large));
    CHECK_OK(fsdp__launch_fill_run(stream, memory, FSDP_U8, MIB, 7));
    CHECK_OK(fsdp__copy_to_host(stream, seen, memory, MIB));
    fsdp__device_free(device, memory, 60 * MIB, FSDP_MEMORY_ACTIVATION);
    atomic_store(&open, 1);
    CHECK_ERROR(fsdp_stream_synchronize(stream), FSDP_NO_MEMORY,
                "cannot allocate 100.0MiB of workspace on device 'cuda:0' (0.0KiB live, 100.0MiB reserved): ");
    CHECK_EQ(seen[0] + seen[MIB - 1], 14);
    CHECK_OK(fsdp__stream_enqueue(stream, add_scratch, &large, sizeof large)); /* now nobody uses them */
    CHECK_OK(fsdp_stream_synchronize(stream));
    fakecuda.set_memory(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

static void *open_later(void *arg)
{
    (void)usleep(100000);
    atomic_store((atomic_int *)arg, 1);
    return NULL;
}

/* Who asks for memory that scratch has had. */
typedef enum who_asks {
    A_SEGMENT,
    A_SEGMENT_THAT_GROWS,
    AN_EXPORT,
    WHO_ASKS
} who_asks;

static void take_and_give(fsdp_device *device, size_t bytes, who_asks who)
{
    fsdp__export exported;
    void *memory = NULL;

    if (who == AN_EXPORT) {
        CHECK_OK(fsdp__device_export(device, bytes, true, &exported));
        fsdp__device_unexport(device, &exported);
        return;
    }
    CHECK_OK(fsdp__device_alloc(device, bytes, FSDP_MEMORY_ACTIVATION, &memory));
    fsdp__device_free(device, memory, bytes, FSDP_MEMORY_ACTIVATION);
}

/* The device has not come to where scratch of 60 MiB is given back when somebody asks for 80 of 150. */
TEST(the_ledger_and_exports_get_scratch_that_was_given_back)
{
    for (who_asks who = 0; who < WHO_ASKS; who++) {
        fsdp_context *context = test_context();
        fsdp_device *device = open_gpu(context);
        fsdp_stream *stream = fsdp_device_stream(device);
        atomic_int open = 0;
        pthread_t opener;
        void *native = CHECK_PTR(fsdp_stream_native(stream)), *first = NULL;

        fakecuda.set_memory(150 * (size_t)MIB);
        if (who == A_SEGMENT_THAT_GROWS)
            CHECK_OK(fsdp__device_alloc(device, 4 * MIB, FSDP_MEMORY_ACTIVATION, &first));
        CHECK(fsdp__stream_enter(stream));
        CHECK_PTR(fsdp__stream_workspace(stream, 60 * (size_t)MIB));
        fakecuda.hold(native, &open);
        CHECK_PTR(fsdp__stream_workspace(stream, 61 * (size_t)MIB));
        fsdp__stream_leave(stream);
        CHECK_EQ(pthread_create(&opener, NULL, open_later, &open), 0);
        take_and_give(device, 80 * MIB, who);
        CHECK_EQ(pthread_join(opener, NULL), 0);
        fsdp__device_free(device, first, 4 * MIB, FSDP_MEMORY_ACTIVATION);
        fakecuda.set_memory(0);
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

/* ---- streams that others let go on ---- */

/* Does so when the ledger has found no memory, most likely. */
static void *ask_later(void *arg)
{
    (void)usleep(50000);
    return ask(arg);
}

/* A stream that has given scratch back waits for a thread that itself needs memory of the ledger, and one of another
 * rank on the same GPU for what this thread does next. Who waits for too much, or keeps a lock while it waits, does not
 * end. */
TEST(who_waits_for_scratch_keeps_no_lock_and_waits_for_no_other_rank)
{
    fsdp_context *context = test_context(), *second = test_context();
    asker a = {.device = open_gpu(context)};
    fsdp_stream *stream = NULL, *others = NULL;
    void *first = NULL, *memory = NULL, *native;
    atomic_int open = 0;
    pthread_t thread;

    fakecuda.set_memory(150 * (size_t)MIB);
    CHECK_OK(fsdp_stream_create(a.device, FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp_stream_create(open_gpu(second), FSDP_STREAM_WORKER, &others));
    CHECK_OK(fsdp__device_alloc(a.device, 4 * MIB, FSDP_MEMORY_ACTIVATION, &first));
    native = CHECK_PTR(fsdp_stream_native(stream));
    fakecuda.hold(CHECK_PTR(fsdp_stream_native(others)), &open);
    CHECK(fsdp__stream_enter(stream));
    CHECK_PTR(fsdp__stream_workspace(stream, 60 * (size_t)MIB));
    fakecuda.hold(native, &a.open);
    CHECK_PTR(fsdp__stream_workspace(stream, 61 * (size_t)MIB));
    fsdp__stream_leave(stream);
    fsdp__device_free(a.device, first, 4 * MIB, FSDP_MEMORY_ACTIVATION);
    CHECK_EQ(pthread_create(&thread, NULL, ask_later, &a), 0);
    CHECK_OK(fsdp__device_alloc(a.device, 80 * MIB, FSDP_MEMORY_ACTIVATION, &memory));
    CHECK(atomic_load(&a.open) && !atomic_load(&open));
    atomic_store(&open, 1);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    fsdp__device_free(a.device, memory, 80 * MIB, FSDP_MEMORY_ACTIVATION);
    fsdp_stream_free(others);
    fsdp_stream_free(stream);
    fakecuda.set_memory(0);
    fsdp_context_free(second);
    fsdp_context_free(context);
    check_nothing_lives();
}

/* Another rank's stream on the same GPU waits for what this thread does after it has given memory back. */
TEST(memory_is_given_back_while_a_stream_of_another_rank_waits)
{
    for (int maps = 0; maps < 2; maps++) {
        fsdp_context *context = test_context(), *second = test_context();
        fsdp_device *device, *others;
        fsdp__export out;
        fsdp_stream *held = NULL;
        void *memory = NULL;
        atomic_int open = 0;

        setenv("FSDP_FAKECUDA_MAPPING", maps ? "1" : "0", 1);
        device = open_gpu(context);
        others = open_gpu(second);
        CHECK_OK(fsdp_stream_create(others, FSDP_STREAM_WORKER, &held));
        CHECK_OK(fsdp__device_export(device, MIB, true, &out));
        CHECK_OK(fsdp__device_alloc(device, 40 * MIB, FSDP_MEMORY_ACTIVATION, &memory));
        CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(device), memory, FSDP_U8, MIB, 1));
        CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
        fsdp__device_free(device, memory, 40 * MIB, FSDP_MEMORY_ACTIVATION);
        fakecuda.hold(CHECK_PTR(fsdp_stream_native(held)), &open);
        CHECK(fsdp__allocator_shrink(device->allocator));
        fsdp__device_unexport(device, &out);
        CHECK(!atomic_load(&open));
        atomic_store(&open, 1);
        fsdp_stream_free(held);
        fsdp_context_free(second);
        fsdp_context_free(context);
        unsetenv("FSDP_FAKECUDA_MAPPING");
        check_nothing_lives();
    }
}

/* What lies between the blocks is no whole piece of what was mapped. */
TEST(nobody_waits_for_the_device_where_nothing_can_be_given_back)
{
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    void *first = NULL, *hole = NULL, *last = NULL, *none = NULL;

    fakecuda.set_memory(80 * (size_t)MIB);
    CHECK_OK(fsdp__device_alloc(device, MIB, FSDP_MEMORY_ACTIVATION, &first));
    CHECK_OK(fsdp__device_alloc(device, 12 * MIB, FSDP_MEMORY_ACTIVATION, &hole));
    CHECK_OK(fsdp__device_alloc(device, MIB, FSDP_MEMORY_ACTIVATION, &last));
    fsdp__device_free(device, hole, 12 * MIB, FSDP_MEMORY_ACTIVATION);
    fakecuda.fail_call("cudaDeviceSynchronize", 0, 0, false);
    CHECK_STATUS(fsdp__device_alloc(device, 100 * MIB, FSDP_MEMORY_ACTIVATION, &none), FSDP_NO_MEMORY);
    CHECK_EQ(fakecuda.uses("cudaDeviceSynchronize"), 0);
    fsdp__device_free(device, first, MIB, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(device, last, MIB, FSDP_MEMORY_ACTIVATION);
    fakecuda.set_memory(0);
    fsdp_context_free(context);
    check_nothing_lives();
}

/* ---- memory of the host ---- */

static void no_line(void *arg, fsdp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void count_line(void *arg, fsdp_log_level level, const char *line)
{
    CHECK_EQ(level, FSDP_LOG_WARNING);
    CHECK_CONTAINS(line, "copies between the host and cuda:0 are slower than they could be: cannot register ");
    ++*(int *)arg;
}

/* The device is as it was, and copies work without. */
TEST(memory_of_the_host_that_cannot_be_pinned_loses_no_device)
{
    static const struct {
        int error;
        const char *reason;
    } cases[] = {{OUT_OF_MEMORY, "the host, and not the card, has no memory left to pin for cuda:0 (cudaHostRegister: "
                                 "out of memory): free memory of this machine"},
                 {1, "this memory of the host cannot be pinned for cuda:0 (cudaHostRegister: invalid argument)"},
                 {712, "this memory of the host cannot be pinned for cuda:0 (cudaHostRegister: "}};
    static _Alignas(PAGE) char host[3 * PAGE];
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    void *memory = NULL, *pinned = NULL;
    int lines = 0;

    fsdp_context_set_log(context, FSDP_LOG_WARNING, count_line, &lines);
    CHECK_OK(fsdp__device_alloc(device, sizeof host, FSDP_MEMORY_WORKSPACE, &memory));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fakecuda.fail_call("cudaHostRegister", 1, cases[i].error, false);
        CHECK_ERROR(fsdp__device_register_host(device, host, sizeof host), FSDP_UNSUPPORTED, cases[i].reason);
        CHECK_EQ(lines, 1);
        CHECK_OK(fsdp__copy_to_device(fsdp_device_stream(device), memory, host, sizeof host));
    }
    fakecuda.fail_call("cudaHostAlloc", 1, OUT_OF_MEMORY, false);
    CHECK_ERROR(fsdp__device_alloc_host(device, 100, &pinned), FSDP_NO_MEMORY, "the host, and not the card, has no");
    CHECK_OK(fsdp__device_register_host(device, host, sizeof host));
    fsdp__device_unregister_host(device, host, sizeof host);
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    fsdp__device_free(device, memory, sizeof host, FSDP_MEMORY_WORKSPACE);
    fakecuda.fail_call("cudaHostRegister", 1, ILLEGAL_ADDRESS, true); /* of work before it */
    CHECK_ERROR(fsdp__device_register_host(device, host, sizeof host), FSDP_STATE, "cannot be used any more");
    fsdp_context_set_log(context, FSDP_LOG_ERROR, no_line, NULL);
    fsdp_context_free(context);
    fakecuda.mend();
    check_nothing_lives();
}

#else

TEST(the_headers_of_cuda_are_missing)
{
    print_message("skipped: CUDA's headers were not found\n");
    skip();
}

#endif
