/* Memory that a CUDA device maps for steps, on the fake runtime (tests/backend/fakecuda): it is given back and moves
 * while streams use it, and nobody waits for more than the device's own stream. */
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
    MIB = 1 << 20,
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

/* ---- streams that others let go on ---- */

/* Asks when the ledger has found no memory, most likely. */
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

/* ---- a stream of a program's own ---- */

static fsdp_status linger(fsdp_stream *stream, const void *argument)
{
    (void)stream;
    (void)usleep(*(const useconds_t *)argument);
    return FSDP_OK;
}

/* What the device has read of a block, when its stream has been waited for: both ends, and the middle. A copy to the
 * host may be done after the call, so this outlives the step. */
typedef struct readings {
    unsigned char first, middle, last;
} readings;

/* Reads a block behind its last use, and gives it back at once. */
static void see(fsdp_device *device, const kept *k, readings *out)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    const char *data = k->memory;

    CHECK_OK(fsdp__copy_to_host(stream, &out->first, data, 1));
    CHECK_OK(fsdp__copy_to_host(stream, &out->middle, data + k->bytes / 2, 1));
    CHECK_OK(fsdp__copy_to_host(stream, &out->last, data + k->bytes - 1, 1));
    fsdp__device_free(device, k->memory, k->bytes, FSDP_MEMORY_ACTIVATION);
}

/* Takes a step whose blocks have drawn sizes. The device's stream fills the ends of each, and behind that the program's
 * own stream the middle; the device's stream waits for it before the block is given back. The host waits for neither.
 */
static void step_beside(fsdp_device *device, fsdp_stream *own, unsigned int dice, readings *out)
{
    fsdp_stream *stream = fsdp_device_stream(device);
    kept blocks[KEPT];

    CHECK_OK(fsdp__note_forward(fsdp_device_context(device)));
    for (int i = 0; i < KEPT; i++) {
        dice = dice * 1664525u + 1013904223u;
        blocks[i] =
            take(device, (size_t)(1 + (dice >> 16) % (i % 3 ? 4 : 24)) * MIB + 4096, FSDP_MEMORY_ACTIVATION, 1 + i);
        follow(own, stream);
        CHECK_OK(fsdp__launch_fill_run(own, (char *)blocks[i].memory + blocks[i].bytes / 2, FSDP_U8, EDGE, 50 + i));
    }
    for (int i = KEPT - 1; i >= 0; i--) {
        follow(stream, own);
        see(device, &blocks[i], &out[i]);
    }
    fsdp__end_step(fsdp_device_context(device));
}

/* Two steps of three ask for the same, so blocks have places; the others move them, and what lies unused goes back. The
 * program's stream is late in each step, so what is given back is still in use when others ask for it. */
TEST(a_stream_of_a_programs_own_uses_memory_that_has_places)
{
    const int steps = test_long() ? 200 : 10;
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    readings *all = CHECK_PTR(calloc((size_t)steps * KEPT, sizeof *all));
    fsdp_stream *own = NULL;

    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &own));
    for (int n = 0; n < steps; n++) {
        CHECK_OK(fsdp__stream_enqueue(own, linger, &(useconds_t){3000}, sizeof(useconds_t)));
        step_beside(device, own, n % 3 ? 7 : (unsigned int)n, &all[n * KEPT]);
    }
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    for (int i = 0; i < steps * KEPT; i++) {
        CHECK_EQ(all[i].first, 1 + i % KEPT);
        CHECK_EQ(all[i].middle, 50 + i % KEPT);
        CHECK_EQ(all[i].last, 1 + i % KEPT);
    }
    free(all);
    fsdp_stream_free(own);
    fsdp_context_free(context);
    check_nothing_lives();
}

/* Takes a step whose requests depend on a seed: some larger than in the others, some in another order. `more` bytes
 * live all along; what outlives the step is made at its end, unless it is there or is not to be. */
static void draw_step(fsdp_device *device, unsigned int dice, size_t more, kept *moment)
{
    kept blocks[KEPT] = {{NULL, 0}}, large = {NULL, more};

    CHECK_OK(fsdp__note_forward(fsdp_device_context(device)));
    if (more > 0)
        large = take(device, more, FSDP_MEMORY_ACTIVATION, 1);
    for (int i = 0; i < 4 * KEPT; i++) {
        kept *k = &blocks[(dice = dice * 1664525u + 1013904223u) >> 29];

        if (k->memory)
            fsdp__device_free(device, k->memory, k->bytes, FSDP_MEMORY_ACTIVATION);
        *k = k->memory ? (kept){NULL, 0}
                       : take(device, (size_t)(1 + (dice >> 16) % 48) * MIB + 4096, FSDP_MEMORY_ACTIVATION, 1);
    }
    for (int i = 0; i < KEPT; i++)
        fsdp__device_free(device, blocks[i].memory, blocks[i].bytes, FSDP_MEMORY_ACTIVATION);
    fsdp__device_free(device, large.memory, large.bytes, FSDP_MEMORY_ACTIVATION);
    if (moment && !moment->memory)
        *moment = take(device, 6 * MIB, FSDP_MEMORY_OPTIMIZER_STATE, 40);
    fsdp__end_step(fsdp_device_context(device));
}

static long waits(void)
{
    return fakecuda.uses("cudaStreamSynchronize") + fakecuda.uses("cudaEventSynchronize") +
           fakecuda.uses("cudaDeviceSynchronize");
}

static void count_calls(void)
{
    static const char *const calls[] = {"cudaStreamSynchronize", "cudaEventSynchronize", "cudaDeviceSynchronize",
                                        "cuMemUnmap"};

    for (size_t i = 0; i < FSDP__COUNT_OF(calls); i++)
        fakecuda.fail_call(calls[i], 0, 0, false);
}

/* Lets the device's own stream wait for another one, which waits in the other's thread if something is queued. */
static void hold(fsdp_device *device, fsdp_stream *other, atomic_int **gate, bool queued)
{
    if (queued)
        CHECK_OK(fsdp__stream_enqueue(other, wait_for_flag, gate, sizeof *gate));
    else
        fakecuda.hold(CHECK_PTR(fsdp_stream_native(other)), *gate);
    follow(fsdp_device_stream(device), other);
}

typedef struct hold_way {
    unsigned int from; /* the first step in which the device's own stream waits */
    bool queued;
    bool moments; /* the first step makes what outlives it, */
    bool differ;  /* and some later ones differ from it */
} hold_way;

enum {
    MORE = 100 * MIB /* that the first step needs more than the others */
};

/* No step waits while the stream is held, nor is more mapped than they need, or a quarter more where they differ, for
 * which it matters what had gone back before. What may have been in use goes back when it is not. */
static void step_while_held(fsdp_device *device, fsdp_stream *other, const hold_way *how, kept *moment)
{
    atomic_int open = 0, *gate = &open;
    fsdp_memory_stats stats;

    for (unsigned int n = 0; n < 6; n++) {
        if (n == how->from) {
            CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device))); /* what came before is past */
            hold(device, other, &gate, how->queued);
            count_calls();
        }
        draw_step(device, how->differ && n % 4 == 3 ? n : 7, n == 0 ? MORE : 0, moment);
    }
    CHECK_EQ(waits(), 0);
    CHECK(how->from > 1 || fakecuda.uses("cuMemUnmap") == 0);
    fsdp_device_memory(device, &stats);
    CHECK(stats.reserved_bytes < stats.peak_total_bytes + (how->differ ? stats.peak_total_bytes / 4 : 0) + 32 * MIB);
    CHECK(!atomic_load(&open));
    atomic_store(&open, 1);
    for (int n = 0; n < 2; n++) {
        CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
        draw_step(device, 7, 0, moment);
    }
    fsdp_device_memory(device, &stats);
    CHECK(stats.reserved_bytes < stats.peak_total_bytes); /* which was the first step's */
}

/* The device's own stream waits for another one, as for a gather whose other ranks are late: they may wait for what
 * this host does next. The first step makes its moments then; or at the third forward what lies unused above the places
 * that were chosen is to go back; or steps differ. If one waits, this test does not end. */
TEST(no_step_waits_for_what_a_stream_waits_for)
{
    static const hold_way ways[] = {{.from = 0, .moments = true},
                                    {.from = 1},
                                    {.from = 3, .differ = true},
                                    {.from = 3, .queued = true, .differ = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++) {
        fsdp_context *context = test_context();
        fsdp_device *device = open_gpu(context);
        fsdp_stream *other = NULL;
        kept moment = {NULL, 0};

        CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &other));
        step_while_held(device, other, &ways[i], ways[i].moments ? &moment : NULL);
        if (moment.memory)
            give(device, &moment, FSDP_MEMORY_OPTIMIZER_STATE, 40);
        fsdp_stream_free(other);
        fsdp_context_free(context);
        check_nothing_lives();
    }
}

#else
MISSING_TEST(cuda)
#endif
