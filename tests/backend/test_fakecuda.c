/* The fake CUDA runtime (tests/backend/fakecuda): what it must do as the real one does, and what it must find. */
#include "support/test.h"

#ifdef FSDP_HAVE_FAKECUDA
#include <stdatomic.h>
#include <unistd.h>

#include "backend/fakecuda/fake.h"
#include "backend/fakecuda/use.h"

#define CUDA(call) CHECK_EQ(call, cudaSuccess)

enum {
    NUMBERS = 1000
};

static cudaStream_t new_stream(void)
{
    cudaStream_t stream = NULL;

    CUDA(cudaSetDevice(0));
    CUDA(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, 0));
    return stream;
}

static cudaEvent_t new_event(unsigned flags)
{
    cudaEvent_t event = NULL;

    CUDA(cudaEventCreateWithFlags(&event, flags));
    return event;
}

/* ---- kernels of this test ---- */

/* Appends a number. */
typedef struct appending {
    int *list, *count, number;
} appending;

static void append(const unsigned grid[3], unsigned block, size_t shared_bytes, const void *body)
{
    const appending *a = body;

    (void)grid, (void)block, (void)shared_bytes;
    a->list[(*a->count)++] = a->number;
}

/* Holds its stream until the gate is opened. */
static void pass_gate(const unsigned grid[3], unsigned block, size_t shared_bytes, const void *body)
{
    atomic_int *const *gate = body;

    (void)grid, (void)block, (void)shared_bytes;
    while (atomic_load(*gate) == 0)
        (void)usleep(100);
}

static cudaError_t launch(cudaStream_t stream, const fake_body *kind, const void *body)
{
    void *args[] = {(void *)(uintptr_t)kind, (void *)(uintptr_t)body};
    dim3 one = {1, 1, 1};

    return cudaLaunchKernel((const void *)(uintptr_t)kind->run, one, one, args, 0, stream);
}

static const fake_body appends = {sizeof(appending), append}, gates = {sizeof(void *), pass_gate};

static void close_gate(cudaStream_t stream, atomic_int *gate)
{
    atomic_store(gate, 0);
    CUDA(launch(stream, &gates, &gate));
}

/* ---- streams and events ---- */

TEST(work_is_done_in_the_order_of_its_stream)
{
    static int list[NUMBERS];
    int count = 0;
    cudaStream_t stream = new_stream();

    for (int i = 0; i < NUMBERS; i++)
        CUDA(launch(stream, &appends, &(appending){list, &count, i}));
    CUDA(cudaStreamSynchronize(stream));
    CHECK_EQ(count, NUMBERS);
    for (int i = 0; i < NUMBERS; i++)
        CHECK_EQ(list[i], i);
    CUDA(cudaStreamDestroy(stream));
    check_nothing_lives();
}

TEST(work_is_done_after_the_call_that_gave_it)
{
    int list[1] = {0}, count = 0;
    atomic_int gate;
    cudaStream_t stream = new_stream();

    close_gate(stream, &gate);
    CUDA(launch(stream, &appends, &(appending){list, &count, 7}));
    CHECK_EQ(cudaStreamQuery(stream), cudaErrorNotReady);
    CHECK_EQ(cudaGetLastError(), cudaErrorNotReady);
    CHECK_EQ(count, 0);
    atomic_store(&gate, 1);
    CUDA(cudaStreamSynchronize(stream));
    CHECK_EQ(list[0], 7);
    CUDA(cudaStreamQuery(stream));
    CUDA(cudaStreamDestroy(stream));
}

TEST(a_stream_that_was_destroyed_does_what_it_was_given)
{
    int list[1], count = 0;
    atomic_int gate;
    cudaStream_t stream = new_stream(), other = new_stream();
    cudaEvent_t event = new_event(cudaEventDisableTiming);

    close_gate(stream, &gate);
    CUDA(launch(stream, &appends, &(appending){list, &count, 1}));
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamDestroy(stream));
    CHECK_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    CUDA(cudaStreamWaitEvent(other, event, 0));
    atomic_store(&gate, 1);
    CUDA(cudaStreamSynchronize(other));
    CHECK_EQ(count, 1);
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(other));
}

TEST(a_wait_is_for_the_last_record_before_it)
{
    atomic_int first_gate, second_gate;
    cudaStream_t stream = new_stream(), waits = new_stream();
    cudaEvent_t event = new_event(cudaEventDisableTiming);

    CUDA(cudaStreamWaitEvent(waits, event, 0)); /* never recorded: nothing to wait for */
    CUDA(cudaEventSynchronize(event));
    close_gate(stream, &first_gate);
    CUDA(cudaEventRecord(event, stream));
    CUDA(cudaStreamWaitEvent(waits, event, 0));
    CHECK_EQ(cudaEventQuery(event), cudaErrorNotReady);
    close_gate(stream, &second_gate);
    CUDA(cudaEventRecord(event, stream)); /* moves the event, but not the wait */
    CHECK_EQ(cudaStreamQuery(waits), cudaErrorNotReady);
    atomic_store(&first_gate, 1);
    CUDA(cudaStreamSynchronize(waits));
    CHECK_EQ(cudaEventQuery(event), cudaErrorNotReady);
    atomic_store(&second_gate, 1);
    CUDA(cudaEventSynchronize(event));
    CUDA(cudaEventQuery(event));
    (void)cudaGetLastError();
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
    CUDA(cudaStreamDestroy(waits));
}

TEST(time_is_measured_between_events_that_measure_it)
{
    cudaStream_t stream = new_stream();
    cudaEvent_t start = new_event(0), end = new_event(0), silent = new_event(cudaEventDisableTiming);
    float ms = -1;

    CHECK_EQ(cudaEventElapsedTime(&ms, start, end), cudaErrorInvalidResourceHandle);
    CUDA(cudaEventRecord(start, stream));
    CUDA(cudaEventRecord(end, stream));
    CUDA(cudaEventRecord(silent, stream));
    CUDA(cudaStreamSynchronize(stream));
    CUDA(cudaEventElapsedTime(&ms, start, end));
    CHECK(ms >= 0);
    CHECK_EQ(cudaEventElapsedTime(&ms, start, silent), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
    CUDA(cudaEventDestroy(start));
    CUDA(cudaEventDestroy(end));
    CUDA(cudaEventDestroy(silent));
    CUDA(cudaStreamDestroy(stream));
}

TEST(default_streams_and_streams_of_another_device_are_refused)
{
    cudaStream_t const none[] = {0, cudaStreamLegacy, cudaStreamPerThread};
    cudaStream_t stream = new_stream();
    cudaEvent_t event;
    int list[1], count = 0;
    const appending body = {list, &count, 0};

    for (int i = 0; i < 3; i++) {
        CHECK_EQ(launch(none[i], &appends, &body), cudaErrorInvalidResourceHandle);
        CHECK_EQ(cudaStreamSynchronize(none[i]), cudaErrorInvalidResourceHandle);
        CHECK_EQ(cudaMemsetAsync(list, 0, 1, none[i]), cudaErrorInvalidResourceHandle);
    }
    CUDA(cudaSetDevice(1));
    event = new_event(cudaEventDisableTiming);
    CHECK_EQ(launch(stream, &appends, &body), cudaErrorInvalidResourceHandle);
    CHECK_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
    CUDA(cudaSetDevice(0));
    CUDA(launch(stream, &appends, &body));
    CUDA(cudaStreamSynchronize(stream));
    CHECK_EQ(count, 1);
    (void)cudaGetLastError();
    CUDA(cudaEventDestroy(event));
    CUDA(cudaStreamDestroy(stream));
}

/* ---- memory and copies ---- */

TEST(the_host_cannot_touch_device_memory)
{
    void *memory, *copy = NULL;
    int ends[2];

    CUDA(cudaMalloc(&memory, 100));
    CHECK_EQ(pipe(ends), 0);
    CHECK_EQ(write(ends[1], memory, 1), -1);
    (void)close(ends[0]);
    (void)close(ends[1]);
    CUDA(cudaFree(memory));
    CHECK_EQ(cudaFree(memory), cudaErrorInvalidValue);
    CHECK_EQ(cudaFree(&copy), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    check_nothing_lives();
}

TEST(pageable_memory_is_copied_at_the_call_and_pinned_memory_in_the_order_of_the_stream)
{
    int pageable = 1, *pinned, *device, result = 0;
    atomic_int gate;
    cudaStream_t stream = new_stream();

    CUDA(cudaHostAlloc((void **)&pinned, 2 * sizeof *pinned, cudaHostAllocPortable));
    CUDA(cudaMalloc((void **)&device, 2 * sizeof *device));
    pinned[0] = 1;
    pinned[1] = 0;
    close_gate(stream, &gate);
    CUDA(cudaMemcpyAsync(device, &pageable, sizeof(int), cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(device + 1, pinned, sizeof(int), cudaMemcpyHostToDevice, stream));
    CUDA(cudaMemcpyAsync(pinned + 1, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK_EQ(pinned[1], 0);
    pageable = 2;
    pinned[0] = 2;
    atomic_store(&gate, 1);
    CUDA(cudaMemcpyAsync(&result, device, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK_EQ(result, 1); /* as it was, and here on return */
    CHECK_EQ(pinned[1], 1);
    CUDA(cudaMemcpyAsync(&result, device + 1, sizeof(int), cudaMemcpyDeviceToHost, stream));
    CHECK_EQ(result, 2); /* as it was when the stream got there */
    CUDA(cudaFreeHost(pinned));
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(stream));
    check_nothing_lives();
}

TEST(a_copy_must_be_what_it_says_and_stay_inside)
{
    char host[8192], *device;
    cudaStream_t stream = new_stream();

    CUDA(cudaMalloc((void **)&device, 4096));
    CHECK_EQ(cudaMemcpyAsync(device, host, 8, cudaMemcpyDeviceToHost, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(host, device, 8, cudaMemcpyDeviceToDevice, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpyAsync(device + 4000, host, 97, cudaMemcpyHostToDevice, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemsetAsync(device + 4000, 0, 97, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemsetAsync(host, 0, 8, stream), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CUDA(cudaMemsetAsync(device, 5, 4096, stream));
    CUDA(cudaMemcpyAsync(host, device + 4000, 96, cudaMemcpyDefault, stream));
    for (int i = 0; i < 96; i++)
        CHECK_EQ(host[i], 5);
    CUDA(cudaFree(device));
    CUDA(cudaStreamDestroy(stream));
}

TEST(memory_is_registered_once_and_in_pages)
{
    char *memory = aligned_alloc(4096, 8192);

    CUDA(cudaHostRegister(memory, 100, cudaHostRegisterPortable));
    CHECK_EQ(cudaHostRegister(memory + 200, 100, cudaHostRegisterPortable), cudaErrorHostMemoryAlreadyRegistered);
    CUDA(cudaHostRegister(memory + 4096, 100, cudaHostRegisterPortable));
    CHECK_EQ(cudaHostUnregister(memory + 1), cudaErrorHostMemoryNotRegistered);
    CUDA(cudaHostUnregister(memory));
    CUDA(cudaHostUnregister(memory + 4096));
    (void)cudaGetLastError();
    free(memory);
    check_nothing_lives();
}

TEST(a_device_has_as_much_memory_as_it_was_given)
{
    void *first, *second;
    size_t free_bytes, total;
    cudaStream_t stream = new_stream();

    fakecuda.set_memory(1 << 20);
    (void)fakecuda.peak(0);
    CUDA(cudaMalloc(&first, 600 << 10));
    CHECK_EQ(cudaMalloc(&second, 600 << 10), cudaErrorMemoryAllocation);
    CUDA(cudaMalloc(&second, 400 << 10));
    CUDA(cudaMemGetInfo(&free_bytes, &total));
    CHECK_EQ(free_bytes, 24 << 10);
    CHECK_EQ(total, 1 << 20);
    CUDA(cudaFree(first));
    CUDA(cudaFree(second));
    CHECK_EQ(fakecuda.peak(0), 1000 << 10);
    CUDA(cudaMallocAsync(&first, 600 << 10, stream));
    CUDA(cudaFreeAsync(first, stream));
    CUDA(cudaMallocAsync(&second, 600 << 10, stream)); /* waits for what is being given back */
    CUDA(cudaFreeAsync(second, stream));
    CUDA(cudaStreamSynchronize(stream));
    (void)cudaGetLastError();
    fakecuda.set_memory(0);
    CUDA(cudaStreamDestroy(stream));
    check_nothing_lives();
}

/* ---- what fails ---- */

TEST(the_nth_call_fails_and_the_next_one_does_not)
{
    void *memory[3];

    fakecuda.fail_call("cudaMalloc", 2, cudaErrorMemoryAllocation, false);
    CUDA(cudaMalloc(&memory[0], 10));
    CHECK(!fakecuda.failed("cudaMalloc"));
    CHECK_EQ(cudaMalloc(&memory[1], 10), cudaErrorMemoryAllocation);
    CHECK(fakecuda.failed("cudaMalloc"));
    CHECK_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
    CUDA(cudaMalloc(&memory[2], 10));
    CHECK_EQ(fakecuda.uses("cudaMalloc"), 3);
    CUDA(cudaFree(memory[0]));
    CUDA(cudaFree(memory[2]));
    check_nothing_lives();
}

TEST(a_lost_device_fails_all_calls_and_does_nothing_until_it_is_mended)
{
    int list[4], count = 0;
    void *memory;
    cudaStream_t stream = new_stream();

    CUDA(cudaMalloc(&memory, 10));
    fakecuda.fail_call("kernel", 2, cudaErrorIllegalAddress, true);
    for (int i = 0; i < 4; i++)
        (void)launch(stream, &appends, &(appending){list, &count, i});
    CHECK_EQ(cudaStreamSynchronize(stream), cudaErrorIllegalAddress);
    CHECK_EQ(count, 1);
    CHECK_EQ(cudaMalloc(&memory, 10), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    CHECK_EQ(cudaGetLastError(), cudaErrorIllegalAddress);
    CUDA(cudaSetDevice(1)); /* the other one is whole */
    CHECK_EQ(cudaSetDevice(0), cudaErrorIllegalAddress);
    CHECK_EQ(cudaFree(memory), cudaErrorIllegalAddress); /* and gives it back all the same */
    fakecuda.mend();
    check_nothing_lives();
    CUDA(cudaSetDevice(0));
    CHECK_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
    (void)cudaGetLastError();
}

TEST(a_launch_that_no_gpu_can_do_is_refused)
{
    static fake_body kind = {8, append};
    static const char body[33000];
    void *args[] = {&kind, (void *)(uintptr_t)body};
    cudaStream_t stream = new_stream();
    const void *kernel = (const void *)(uintptr_t)append;
    dim3 one = {1, 1, 1}, wide = {1, 65536, 1}, many = {1025, 1, 1};

    CHECK_EQ(cudaLaunchKernel(kernel, wide, one, args, 0, stream), cudaErrorInvalidConfiguration);
    CHECK_EQ(cudaLaunchKernel(kernel, one, many, args, 0, stream), cudaErrorInvalidConfiguration);
    CHECK_EQ(cudaLaunchKernel(kernel, one, one, args, 64 << 10, stream), cudaErrorInvalidConfiguration);
    CHECK_EQ(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 228 << 10),
             cudaErrorInvalidValue);
    kind.bytes = sizeof body;
    CHECK_EQ(cudaLaunchKernel(kernel, one, one, args, 0, stream), cudaErrorInvalidValue);
    (void)cudaGetLastError();
    CUDA(cudaStreamDestroy(stream));
}

#else
MISSING_TEST(cuda)
#endif
