/* Memory of the host that a GPU reaches, and copies from and to any other, on the fake runtime
 * (tests/backend/fakecuda). */
#include "support/dice.h"
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

#include "backend/fakecuda/use.h"
#include "base/compiler.h"
#include "device/device.h"

enum {
    PAGE = 4096,
    OUT_OF_MEMORY = 2 /* cudaError_t */
};

/* ---- memory of the host ---- */

/* Requests that share pages, and one that is made twice; copies across their ends, to and from everywhere. */
TEST(memory_of_the_host_is_registered_by_pages_that_requests_share)
{
    enum {
        PAGES = 8
    };
    static const struct {
        size_t at, bytes;
    } requests[] = {{100, 200}, {3 * PAGE - 10, 20}, {400, PAGE}, {0, PAGES * PAGE}, {400, PAGE}, {5 * PAGE, 1}};
    enum {
        REQUESTS = sizeof requests / sizeof *requests
    };
    static _Alignas(PAGE) unsigned char host[PAGES * PAGE], back[PAGES * PAGE];
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(device, sizeof host, FSDP_MEMORY_WORKSPACE, &memory));
    for (int round = 0; round < 2 * REQUESTS; round++) {
        int i = round % REQUESTS;

        if (round < REQUESTS)
            CHECK_OK(fsdp__device_register_host(device, host + requests[i].at, requests[i].bytes));
        else
            fsdp__device_unregister_host(device, host + requests[i].at, requests[i].bytes);
        for (size_t b = 0; b < sizeof host; b++)
            host[b] = (unsigned char)(b * 7 + (size_t)round);
        memset(back, 0, sizeof back);
        CHECK_OK(fsdp__copy_to_device(stream, memory, host, sizeof host));
        CHECK_OK(fsdp__copy_to_host(stream, back, memory, sizeof back));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_BYTES(back, host, sizeof host);
        memset(host + 50, 0, sizeof host - 100);
        CHECK_OK(fsdp__copy_to_host(stream, host + 50, (char *)memory + 50, sizeof host - 100));
        CHECK_OK(fsdp_stream_synchronize(stream));
        CHECK_BYTES(host, back, sizeof host);
    }
    fsdp__device_free(device, memory, sizeof host, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
    check_nothing_lives();
}

enum {
    MIB = 1 << 20,
    RING = 4 * MIB /* pinned bytes of a stream that other memory passes through */
};

/* Fails where a copy since the last call went to or from memory that the device does not reach, or where none went
 * through such memory. */
static void check_all_pinned(bool both)
{
    fakecuda_copies pageable = fakecuda.copies(false), pinned = fakecuda.copies(true);

    CHECK_EQ(pageable.to_device, 0);
    CHECK_EQ(pageable.to_host, 0);
    CHECK(pinned.to_device > 0);
    CHECK(!both || pinned.to_host > 0);
}

static void forget_copies(void)
{
    (void)fakecuda.copies(false);
    (void)fakecuda.copies(true);
}

/* The device stands still meanwhile, so nobody may wait for it. The source is overwritten each time at once. */
TEST(what_is_handed_to_a_gpu_is_read_at_once_and_does_not_wait)
{
    enum {
        BYTES = 3 * MIB
    };
    unsigned char *host = malloc(BYTES), *right = malloc(BYTES);
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    atomic_int open = 0;
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(device, BYTES, FSDP_MEMORY_WORKSPACE, &memory));
    fakecuda.hold(fsdp_stream_native(stream), &open);
    forget_copies();
    for (size_t at = 0, n = 1; at < BYTES; at += n, n = FSDP__MIN(2 * n + 1, BYTES - at)) {
        memset(host, (int)(n % 251), n);
        memset(right + at, (int)(n % 251), n);
        CHECK_OK(fsdp__hand_to_device(stream, (char *)memory + at, host, n));
        memset(host, 255, n);
    }
    check_all_pinned(false);
    atomic_store(&open, 1);
    CHECK_OK(fsdp__copy_to_host(stream, host, memory, BYTES));
    CHECK_BYTES(host, right, BYTES);
    fsdp__device_free(device, memory, BYTES, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
    free(host);
    free(right);
    check_nothing_lives();
}

static fsdp_status stand_still(fsdp_stream *stream, const void *argument)
{
    atomic_int *const *open = argument;

    (void)stream;
    while (!atomic_load(*open))
        sched_yield();
    return FSDP_OK;
}

/* A function of the host is queued, which ends only when the copy has been queued behind it. */
TEST(a_few_bytes_are_handed_to_a_stream_that_has_something_else_to_do)
{
    unsigned char host[1000], back[1000], right[1000];
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    atomic_int open = 0, *pointer = &open;
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(device, sizeof host, FSDP_MEMORY_WORKSPACE, &memory));
    CHECK_OK(fsdp__stream_enqueue(stream, stand_still, &pointer, sizeof pointer));
    for (size_t i = 0; i < sizeof host; i++)
        host[i] = right[i] = (unsigned char)(i * 7);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);)
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, fsdp__hand_to_device(stream, memory, host, sizeof host));
    memset(host, 255, sizeof host);
    atomic_store(&open, 1);
    CHECK_OK(fsdp__copy_to_host(stream, back, memory, sizeof back));
    CHECK_OK(fsdp_stream_synchronize(stream));
    CHECK_BYTES(back, right, sizeof right);
    fsdp__device_free(device, memory, sizeof host, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
    check_nothing_lives();
}

/* The host waits for the first piece when the device has been given several. */
TEST(the_device_reads_ahead_while_the_host_empties_what_has_come)
{
    const size_t bytes = 3 * RING + 5;
    unsigned char *back = malloc(bytes);
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    void *memory = NULL;

    CHECK_OK(fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, &memory));
    forget_copies();
    fakecuda.fail_call("cudaEventSynchronize", 1, OUT_OF_MEMORY, false);
    CHECK_STATUS(fsdp__copy_to_host(fsdp_device_stream(device), back, memory, bytes), FSDP_NO_MEMORY);
    CHECK_EQ(fakecuda.copies(true).to_host, RING / MIB);
    CHECK_OK(fsdp__copy_to_host(fsdp_device_stream(device), back, memory, bytes));
    CHECK_EQ(fakecuda.copies(true).to_host, 3 * RING / MIB + 1);
    CHECK_EQ(fakecuda.copies(false).to_host, 0);
    fsdp__device_free(device, memory, bytes, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
    free(back);
    check_nothing_lives();
}

/* Any sizes, both ways in any order, with pinned memory among it; a plain array says what must be there. */
TEST(copies_through_pinned_pieces_keep_their_order)
{
    enum {
        BYTES = RING + RING / 2
    };
    unsigned char *right = malloc(BYTES), *host = malloc(BYTES);
    fsdp_context *context = test_context();
    fsdp_device *device = open_gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    uint64_t dice = 3;
    void *memory = NULL, *pinned = NULL;

    CHECK_OK(fsdp__device_alloc(device, BYTES, FSDP_MEMORY_WORKSPACE, &memory));
    CHECK_OK(fsdp__device_alloc_host(device, BYTES, &pinned));
    memset(right, 0, BYTES);
    CHECK_OK(fsdp__hand_to_device(stream, memory, right, BYTES));
    forget_copies();
    for (int round = 0; round < 60; round++) {
        size_t n = 1 + (size_t)dice_below(&dice, 1 << (1 + dice_below(&dice, 22)));
        size_t at = (size_t)dice_below(&dice, (int)(BYTES - n) + 1);
        unsigned char *source = dice_chance(&dice, 75) ? host : pinned;

        if (dice_chance(&dice, 67)) {
            memset(source, round, n);
            memset(right + at, round, n);
            CHECK_OK(fsdp__hand_to_device(stream, (char *)memory + at, source, n));
            memset(source, 0, n);
        } else {
            CHECK_OK(fsdp__copy_to_host(stream, host, (char *)memory + at, n));
            CHECK_OK(fsdp_stream_synchronize(stream));
            CHECK_BYTES(host, right + at, n);
        }
    }
    check_all_pinned(true);
    fsdp__device_free_host(device, pinned, BYTES);
    fsdp__device_free(device, memory, BYTES, FSDP_MEMORY_WORKSPACE);
    fsdp_context_free(context);
    free(right);
    free(host);
    check_nothing_lives();
}

#else
MISSING_TEST(cuda)
#endif
