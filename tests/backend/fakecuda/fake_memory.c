/* fake_memory.c - memory of devices, and memory of the host that they know.
 *
 * [Note: two mappings]
 * Device memory is a file in memory that is mapped twice. The addresses that are handed out can never be read or
 * written, so whoever follows one on the host stops there and then. Copies use the second mapping, and so do kernels:
 * fake_kernels.c moves their arguments there. Fresh memory is all ones: NaNs, for who reads before he writes. */
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/fakecuda/fake.h"

enum {
    PAGE = 4096,
    POISON_MOST = 8 << 20 /* bytes at the start, so that large memory that nobody uses takes no pages */
};

typedef struct range {
    struct range *next;
    unsigned char *address, *mapped; /* equal for memory of the host */
    size_t bytes;
    fake_kind kind;
    int device;
} range;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static range *ranges; /* guarded by the lock */
static _Atomic size_t used[FAKE_DEVICES], peak[FAKE_DEVICES];

static bool holds(const unsigned char *start, size_t bytes, const void *pointer)
{
    return (uintptr_t)pointer >= (uintptr_t)start && (uintptr_t)pointer - (uintptr_t)start < bytes;
}

fake_place fake_find(const void *pointer, size_t bytes)
{
    fake_place place = {0};

    pthread_rwlock_rdlock(&lock);
    for (const range *r = ranges; r && !place.found; r = r->next) {
        bool first = holds(r->address, r->bytes, pointer), second = holds(r->mapped, r->bytes, pointer);
        size_t offset = (uintptr_t)pointer - (uintptr_t)(first ? r->address : r->mapped);

        if (first || second)
            place = (fake_place){.found = true,
                                 .whole = bytes <= r->bytes - offset,
                                 .kind = r->kind,
                                 .device = r->device,
                                 .mapped = r->mapped + offset};
    }
    pthread_rwlock_unlock(&lock);
    return place;
}

long fake_ranges(void)
{
    long count = 0;

    pthread_rwlock_rdlock(&lock);
    for (const range *r = ranges; r; r = r->next)
        count++;
    pthread_rwlock_unlock(&lock);
    return count;
}

static cudaError_t add(unsigned char *address, unsigned char *mapped, size_t bytes, fake_kind kind, int device)
{
    range *r = malloc(sizeof *r);

    if (!r)
        return fake_error(cudaErrorMemoryAllocation);
    *r = (range){.address = address, .mapped = mapped, .bytes = bytes, .kind = kind, .device = device};
    pthread_rwlock_wrlock(&lock);
    r->next = ranges;
    ranges = r;
    pthread_rwlock_unlock(&lock);
    return cudaSuccess;
}

/* Removes the range that starts there; false: there is none of that kind. */
static bool take(const void *address, fake_kind kind, range *out)
{
    range **link, *found;

    pthread_rwlock_wrlock(&lock);
    for (link = &ranges; *link && ((*link)->address != address || (*link)->kind != kind); link = &(*link)->next)
        continue;
    found = *link;
    if (found)
        *link = found->next;
    pthread_rwlock_unlock(&lock);
    if (found)
        *out = *found;
    free(found);
    return found != NULL;
}

/* ---- device memory ---- */

size_t fake_used(int device)
{
    return used[device];
}

size_t fake_peak(int device)
{
    return atomic_exchange(&peak[device], used[device]);
}

/* Counts bytes, unless the device has not so many. */
static bool count(int device, size_t bytes)
{
    size_t now = used[device], most = peak[device];

    do
        if (bytes > fake_capacity(device) || now > fake_capacity(device) - bytes)
            return false;
    while (!atomic_compare_exchange_weak(&used[device], &now, now + bytes));
    while (now + bytes > most && !atomic_compare_exchange_weak(&peak[device], &most, now + bytes))
        continue;
    return true;
}

static bool map_twice(size_t bytes, range *r)
{
    int file = memfd_create("fakecuda", MFD_CLOEXEC);

    r->address = r->mapped = MAP_FAILED;
    if (file >= 0 && ftruncate(file, (off_t)bytes) == 0) {
        r->address = mmap(NULL, bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
        r->mapped = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    }
    if (file >= 0)
        (void)close(file); /* the mappings keep the file */
    return r->address != MAP_FAILED && r->mapped != MAP_FAILED;
}

/* Gives the range's memory back; called from a stream, too. */
static void unmap(const void *argument)
{
    const range *r = argument;

    if (r->address != MAP_FAILED)
        (void)munmap(r->address, r->bytes);
    if (r->mapped != MAP_FAILED)
        (void)munmap(r->mapped, r->bytes);
    atomic_fetch_sub(&used[r->device], r->bytes);
}

static cudaError_t allocate(void **out, size_t bytes, fake_kind kind, int device)
{
    range r = {.bytes = (bytes + PAGE - 1) / PAGE * PAGE, .kind = kind, .device = device};

    if (!out)
        return fake_error(cudaErrorInvalidValue);
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    if (!count(device, r.bytes))
        return fake_error(cudaErrorMemoryAllocation);
    if (!map_twice(r.bytes, &r) || add(r.address, r.mapped, r.bytes, kind, device) != cudaSuccess) {
        unmap(&r);
        return fake_error(cudaErrorMemoryAllocation);
    }
    memset(r.mapped, 0xff, r.bytes < POISON_MOST ? r.bytes : POISON_MOST);
    *out = r.address;
    return cudaSuccess;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    FAKE_BEGIN(cudaMalloc);
    return allocate(out, bytes, FAKE_DEVICE_MEMORY, fake_current());
}

/* Waits for all of the device's work first, as the real one does. */
cudaError_t cudaFree(void *pointer)
{
    cudaError_t begun = fake_begin(FAKE_cudaFree);
    range r;

    if (!pointer)
        return begun;
    if (!take(pointer, FAKE_DEVICE_MEMORY, &r))
        return fake_error(cudaErrorInvalidValue);
    fake_device_wait(r.device);
    unmap(&r);
    return begun;
}

cudaError_t cudaMallocAsync(void **out, size_t bytes, cudaStream_t stream)
{
    cudaError_t status;

    FAKE_BEGIN(cudaMallocAsync);
    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    status = allocate(out, bytes, FAKE_DEVICE_MEMORY_OF_STREAM, fake_stream_device(stream));
    if (status != cudaErrorMemoryAllocation)
        return status;
    fake_device_wait(fake_stream_device(stream)); /* for what is given back in the order of streams */
    return allocate(out, bytes, FAKE_DEVICE_MEMORY_OF_STREAM, fake_stream_device(stream));
}

cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    cudaError_t begun = fake_begin(FAKE_cudaFreeAsync);
    range r;

    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (!pointer)
        return begun;
    if (!take(pointer, FAKE_DEVICE_MEMORY_OF_STREAM, &r))
        return fake_error(cudaErrorInvalidValue);
    if (fake_enqueue(stream, unmap, &r, sizeof r, true) != cudaSuccess) {
        fake_stream_wait(stream);
        unmap(&r);
    }
    return begun;
}

/* ---- memory of the host ---- */

cudaError_t cudaHostAlloc(void **out, size_t bytes, unsigned int flags)
{
    unsigned char *memory;

    FAKE_BEGIN(cudaHostAlloc);
    (void)flags;
    if (!out)
        return fake_error(cudaErrorInvalidValue);
    *out = NULL;
    if (bytes == 0)
        return cudaSuccess;
    memory = aligned_alloc(PAGE, (bytes + PAGE - 1) / PAGE * PAGE);
    if (!memory || add(memory, memory, bytes, FAKE_HOST_MEMORY, -1) != cudaSuccess) {
        free(memory);
        return fake_error(cudaErrorMemoryAllocation);
    }
    memset(memory, 0xff, bytes);
    *out = memory;
    return cudaSuccess;
}

/* Waits for all devices first: each may still use it. */
cudaError_t cudaFreeHost(void *pointer)
{
    cudaError_t begun = fake_begin(FAKE_cudaFreeHost);
    range r;

    if (!pointer)
        return begun;
    if (!take(pointer, FAKE_HOST_MEMORY, &r))
        return fake_error(cudaErrorInvalidValue);
    for (int d = 0; d < FAKE_DEVICES; d++)
        fake_device_wait(d);
    free(r.address);
    return begun;
}

/* Memory is registered in pages: two pieces that share one are the same memory twice. */
cudaError_t cudaHostRegister(void *pointer, size_t bytes, unsigned int flags)
{
    uintptr_t first = (uintptr_t)pointer / PAGE, end = ((uintptr_t)pointer + bytes + PAGE - 1) / PAGE;
    bool overlaps = false;

    FAKE_BEGIN(cudaHostRegister);
    (void)flags;
    if (!pointer || bytes == 0)
        return fake_error(cudaErrorInvalidValue);
    pthread_rwlock_rdlock(&lock);
    for (const range *r = ranges; r; r = r->next)
        if (first < ((uintptr_t)r->address + r->bytes + PAGE - 1) / PAGE && (uintptr_t)r->address / PAGE < end)
            overlaps = true;
    pthread_rwlock_unlock(&lock);
    if (overlaps)
        return fake_error(cudaErrorHostMemoryAlreadyRegistered);
    return add(pointer, pointer, bytes, FAKE_REGISTERED, -1);
}

cudaError_t cudaHostUnregister(void *pointer)
{
    cudaError_t begun = fake_begin(FAKE_cudaHostUnregister);
    range r;

    if (!take(pointer, FAKE_REGISTERED, &r))
        return fake_error(cudaErrorHostMemoryNotRegistered);
    return begun;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *out, const void *pointer)
{
    fake_place place = fake_find(pointer, 1);

    FAKE_BEGIN(cudaPointerGetAttributes);
    *out = (struct cudaPointerAttributes){.type = !place.found ? cudaMemoryTypeUnregistered
                                                  : place.kind <= FAKE_DEVICE_MEMORY_OF_STREAM ? cudaMemoryTypeDevice
                                                                                               : cudaMemoryTypeHost,
                                          .device = place.found ? place.device : -1};
    return cudaSuccess;
}

void fake_forget_memory(void)
{
    while (ranges) {
        range r = *ranges;

        (void)take(r.address, r.kind, &r);
        if (r.kind <= FAKE_DEVICE_MEMORY_OF_STREAM)
            unmap(&r);
        else if (r.kind == FAKE_HOST_MEMORY)
            free(r.address);
    }
}
