/* fake_copy.c - what streams do: copies, fills and kernels. */
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "backend/fakecuda/fake.h"

enum {
    HELD_NS = 100000 /* between two looks of a stream that is held */
};

/* ---- what records what runs ---- */

static const fake_recorder *_Atomic recorder;

void fake_record(const fake_recorder *now)
{
    recorder = now;
}

static int64_t clock_ns(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * INT64_C(1000000000) + now.tv_nsec;
}

static _Atomic int64_t rate; /* by how much the devices' clocks run ahead, in a million */

void fake_set_clock_rate(long millionths)
{
    rate = millionths;
}

static _Atomic int64_t skipped;

void fake_skip_time(long long ns)
{
    atomic_fetch_add(&skipped, ns);
}

int64_t fake_clock_ns(void)
{
    int64_t now = clock_ns();

    return now + now / 1000000 * rate + skipped;
}

/* Something that is recorded, from when it is issued until it has run. */
typedef struct recorded {
    const fake_recorder *by;
    uint32_t number;
    int64_t begin;
} recorded;

static void begin_recorded(const void *argument)
{
    recorded *const *r = argument;

    (*r)->begin = clock_ns();
}

static void end_recorded(const void *argument)
{
    recorded *r = *(recorded *const *)argument;

    if (r->begin > 0)
        r->by->ran(r->number, r->begin, clock_ns());
    free(r);
}

/* Queues work between two marks, if it is recorded. */
cudaError_t fake_enqueue_recorded(cudaStream_t stream, fake_sort sort, size_t amount, fake_work work,
                                  const void *argument, size_t bytes)
{
    const fake_recorder *by = recorder;
    uint32_t number = by ? by->issued(sort, stream, amount) : 0;
    recorded *r = number ? calloc(1, sizeof *r) : NULL;
    cudaError_t status;

    if (!r)
        return fake_enqueue(stream, work, argument, bytes, false);
    *r = (recorded){.by = by, .number = number};
    (void)fake_enqueue(stream, begin_recorded, &r, sizeof r, false);
    status = fake_enqueue(stream, work, argument, bytes, false);
    (void)fake_enqueue(stream, end_recorded, &r, sizeof r, true);
    return status;
}

/* ---- copies ---- */

typedef struct copy {
    void *to;
    const void *from;
    size_t bytes;
    void *staged; /* is freed afterwards */
} copy;

static void run_copy(const void *argument)
{
    const copy *c = argument;

    memcpy(c->to, c->from, c->bytes);
}

static void free_staged(const void *argument)
{
    free(((const copy *)argument)->staged);
}

/* Returns whether the kind of a copy agrees with what its sides are. */
static bool agrees(enum cudaMemcpyKind kind, const fake_place *to, const fake_place *from)
{
    bool to_device = to->found && to->kind <= FAKE_DEVICE_MEMORY_OF_STREAM,
         from_device = from->found && from->kind <= FAKE_DEVICE_MEMORY_OF_STREAM;

    switch (kind) {
    case cudaMemcpyHostToHost:
        return !to_device && !from_device;
    case cudaMemcpyHostToDevice:
        return to_device && !from_device;
    case cudaMemcpyDeviceToHost:
        return !to_device && from_device;
    case cudaMemcpyDeviceToDevice:
        return to_device && from_device;
    case cudaMemcpyDefault:
        return true;
    }
    return false;
}

static atomic_long counted[2][2]; /* [pinned][to the device] */

fakecuda_copies fake_copies(bool pinned)
{
    return (fakecuda_copies){.to_device = atomic_exchange(&counted[pinned][1], 0),
                             .to_host = atomic_exchange(&counted[pinned][0], 0)};
}

/* Counts a copy between the device and the host. */
static void count(enum cudaMemcpyKind kind, const fake_place *host)
{
    if (kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToHost)
        atomic_fetch_add(&counted[host->found][kind == cudaMemcpyHostToDevice], 1);
}

/* From memory of the host that is not pinned the bytes are taken now; to such memory they are copied before this
 * returns. All else is in the order of the stream. */
cudaError_t cudaMemcpyAsync(void *dst, const void *src, size_t bytes, enum cudaMemcpyKind kind, cudaStream_t stream)
{
    fake_place to = fake_find(dst, bytes), from = fake_find(src, bytes);
    copy c = {.to = to.found ? to.mapped : dst, .from = from.found ? from.mapped : src, .bytes = bytes};
    cudaError_t status;

    FAKE_BEGIN(cudaMemcpyAsync);
    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (bytes == 0)
        return cudaSuccess;
    if (!dst || !src || (to.found && !to.whole) || (from.found && !from.whole) || !agrees(kind, &to, &from))
        return fake_error(cudaErrorInvalidValue);
    count(kind, kind == cudaMemcpyHostToDevice ? &from : &to);
    if (!from.found) {
        c.staged = malloc(bytes);
        if (!c.staged)
            return fake_error(cudaErrorMemoryAllocation);
        memcpy(c.staged, src, bytes);
        c.from = c.staged;
    }
    status = fake_enqueue_recorded(stream, kind == cudaMemcpyDeviceToHost ? FAKE_COPIES_TO_HOST : FAKE_COPIES_TO_DEVICE,
                                   bytes, run_copy, &c, sizeof c);
    if (c.staged && fake_enqueue(stream, free_staged, &c, sizeof c, true) != cudaSuccess) {
        fake_stream_wait(stream);
        free(c.staged);
    }
    if (!to.found)
        fake_stream_wait(stream);
    return status;
}

typedef struct filling {
    void *to;
    int byte;
    size_t bytes;
} filling;

static void run_filling(const void *argument)
{
    const filling *f = argument;

    memset(f->to, f->byte, f->bytes);
}

cudaError_t cudaMemsetAsync(void *dst, int byte, size_t bytes, cudaStream_t stream)
{
    fake_place to = fake_find(dst, bytes);
    filling f = {to.mapped, byte, bytes};

    FAKE_BEGIN(cudaMemsetAsync);
    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (bytes == 0)
        return cudaSuccess;
    if (!to.found || !to.whole)
        return fake_error(cudaErrorInvalidValue);
    return fake_enqueue_recorded(stream, FAKE_FILLS, bytes, run_filling, &f, sizeof f);
}

/* ---- what holds a stream up ---- */

static void pause_until(const void *argument)
{
    const atomic_int *const *open = argument;

    while (atomic_load(*open) == 0)
        (void)nanosleep(&(struct timespec){.tv_nsec = HELD_NS}, NULL);
}

void fake_stream_hold(void *stream, const atomic_int *open)
{
    (void)fake_enqueue(stream, pause_until, &open, sizeof open, true);
}

/* ---- kernels ---- */

enum {
    SHARED_BYTES = 48 << 10, /* of a kernel that has not asked for more */
    ARGUMENT_BYTES = 32764,  /* of CUDA 12.1 and later, for GPUs of 7.0 and later */
    THREADS_MOST = 1024,
    GRID_MOST = 65535, /* in y and z */
    KERNELS = 1024
};

/* What kernels have asked for. */
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static struct {
    const void *kernel;
    size_t shared_bytes;
} asked[KERNELS]; /* guarded by the mutex */

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    int at = 0;

    FAKE_BEGIN(cudaFuncSetAttribute);
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize || value < 0 || (size_t)value > fake_shared_bytes())
        return fake_error(cudaErrorInvalidValue);
    pthread_mutex_lock(&mutex);
    while (at < KERNELS - 1 && asked[at].kernel && asked[at].kernel != kernel)
        at++;
    asked[at].kernel = kernel;
    asked[at].shared_bytes = (size_t)value;
    pthread_mutex_unlock(&mutex);
    return cudaSuccess;
}

static size_t shared_limit(const void *kernel)
{
    size_t limit = SHARED_BYTES;

    pthread_mutex_lock(&mutex);
    for (int at = 0; at < KERNELS && asked[at].kernel; at++)
        if (asked[at].kernel == kernel && asked[at].shared_bytes > limit)
            limit = asked[at].shared_bytes;
    pthread_mutex_unlock(&mutex);
    return limit;
}

typedef struct launched {
    unsigned grid[3], block;
    size_t shared_bytes;
    int device;
    const fake_body *kind;
    _Alignas(16) unsigned char body[];
} launched;

static void run_kernel(const void *argument)
{
    const launched *l = argument;
    cudaError_t error;

    fake_set_current(l->device);
    error = fake_begin(FAKE_kernel);
    if (error != cudaSuccess)
        fake_lose(l->device, error);
    else
        l->kind->run(l->grid, l->block, l->shared_bytes, l->body);
}

static bool is_possible(const void *kernel, dim3 grid, dim3 block, size_t shared_bytes)
{
    return kernel && grid.x > 0 && grid.y > 0 && grid.z > 0 && grid.x <= INT32_MAX && grid.y <= GRID_MOST &&
           grid.z <= GRID_MOST && block.x > 0 && block.x <= THREADS_MOST && block.y == 1 && block.z == 1 &&
           shared_bytes <= shared_limit(kernel);
}

/* A kernel is a function of the host; its arguments are in its body (fake_body). */
cudaError_t cudaLaunchKernel(const void *kernel, dim3 grid, dim3 block, void **args, size_t shared_bytes,
                             cudaStream_t stream)
{
    const fake_body *kind = args[0];
    launched *l;
    cudaError_t status;

    FAKE_BEGIN(cudaLaunchKernel);
    if (!fake_is_stream(stream) || fake_stream_device(stream) != fake_current())
        return fake_error(cudaErrorInvalidResourceHandle);
    if (!is_possible(kernel, grid, block, shared_bytes))
        return fake_error(cudaErrorInvalidConfiguration);
    if (kind->bytes > ARGUMENT_BYTES + sizeof kernel)
        return fake_error(cudaErrorInvalidValue);
    l = aligned_alloc(16, (sizeof *l + kind->bytes + 15) / 16 * 16);
    if (!l)
        return fake_error(cudaErrorMemoryAllocation);
    *l = (launched){.grid = {grid.x, grid.y, grid.z},
                    .block = block.x,
                    .shared_bytes = shared_bytes,
                    .device = fake_stream_device(stream),
                    .kind = kind};
    memcpy(l->body, args[1], kind->bytes);
    status = fake_enqueue_recorded(stream, FAKE_RUNS_KERNEL, 0, run_kernel, l, sizeof *l + kind->bytes);
    free(l);
    return status;
}
