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

static void *take(fsdp_device *device, size_t bytes, fsdp_memory_kind kind)
{
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(device, bytes, kind, &memory));
    CHECK_OK(fsdp__launch_fill_run(fsdp_device_stream(device), memory, FSDP_U8, (int64_t)bytes, 1 + (int)kind));
    return memory;
}

/* Gives a block back, whose bytes nobody has changed. */
static void give(fsdp_device *device, void *memory, size_t bytes, fsdp_memory_kind kind)
{
    unsigned char seen[2];

    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(device), &seen[0], memory, 1));
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(device), &seen[1], (char *)memory + bytes - 1, 1));
    CHECK_EQ(seen[0] + seen[1], 2 * (1 + (int)kind));
    fsdp__device_free(device, memory, bytes, kind);
}

/* Leaves the card nothing but what lies free beside a block of one kind, in pieces that cannot go back alone: `more`
 * bytes that can, too. Another kind takes almost all of it, and a small request the rest. */
static void take_what_another_has(fsdp_device *device, fsdp_memory_kind one, fsdp_memory_kind other, size_t more)
{
    const size_t bytes = 30 * (size_t)MIB + more, first = 12 * MIB, second = bytes - first - MIB;
    void *a = take(device, bytes, one), *b, *small, *none = NULL;
    fsdp_memory_stats stats;

    fsdp__device_free(device, a, bytes, one);
    a = take(device, first, one);
    fsdp_device_memory(device, &stats);
    fakecuda.set_memory(stats.reserved_bytes);
    b = take(device, second, other);
    small = take(device, MIB / 8, FSDP_MEMORY_WORKSPACE);
    CHECK_STATUS(fsdp__device_alloc(device, 4 * MIB, other, &none), FSDP_NO_MEMORY);
    fsdp_device_memory(device, &stats);
    CHECK(stats.reserved_bytes <= bytes + 2 * MIB);
    give(device, small, MIB / 8, FSDP_MEMORY_WORKSPACE);
    give(device, b, second, other);
    give(device, a, first, one);
}

/* What outlives steps has segments of its own, and small requests have. Where the driver maps no memory, a whole
 * segment is the least that goes back. */
TEST(memory_that_lies_free_in_another_pool_is_taken_where_the_card_has_none)
{
    static const fsdp_memory_kind kinds[] = {FSDP_MEMORY_ACTIVATION, FSDP_MEMORY_OPTIMIZER_STATE};

    for (int way = 0; way < 8; way++) {
        bool maps = way % 2, more = way / 2 % 2;
        fsdp_context *context = test_context();
        fsdp_device *device;

        setenv("FSDP_FAKECUDA_MAPPING", maps ? "1" : "0", 1);
        device = open_gpu(context);
        take_what_another_has(device, kinds[way / 4], kinds[1 - way / 4], maps && more ? 40 * MIB : 0);
        fakecuda.set_memory(0);
        fsdp_context_free(context);
        unsetenv("FSDP_FAKECUDA_MAPPING");
        check_nothing_lives();
    }
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
                   " of the card's 128.0MiB are free, and other processes may hold some (nvidia-smi lists "
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
                    "cannot allocate 200.0MiB of workspace on device 'cuda:0' (0.0KiB live, 0.0KiB reserved): "
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
    CHECK_OK(fsdp__stream_enqueue(stream, wait_for_flag, &gate, sizeof gate));
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

/* ---- memory of the host ---- */

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
MISSING_TEST(cuda)
#endif
