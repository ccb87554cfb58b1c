/* fake_memory.c - memory of devices, and memory of the host that they know.
 *
 * [Note: memory that is mapped twice]
 * Device memory is a file in memory that is mapped twice. The addresses that are handed out can never be read or
 * written, so whoever follows one on the host stops there and then. Copies use the second mapping, and so do kernels:
 * fake_kernels.c moves their arguments there. Fresh memory is all ones: NaNs, for who reads before he writes. */
#include <cuda.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "backend/fakecuda/fake.h"

enum {
    PAGE = 4096,
    GRANULE = 2 << 20 /* of mapped memory */
};

/* What cuMemCreate makes. */
typedef struct physical {
    size_t bytes;
    int device, file, uses; /* `uses`: by the caller, and by where it is mapped */
} physical;

/* Memory that is mapped into a range of addresses. */
typedef struct part {
    struct part *next;
    size_t offset, bytes;
    physical *memory;
} part;

typedef struct range {
    struct range *next;
    unsigned char *address, *mapped; /* equal for memory of the host */
    size_t bytes;                    /* of a range of addresses: to the end of its last part */
    fake_kind kind;
    int device;
    int file;        /* of cudaMalloc's memory: it can be mapped elsewhere */
    size_t reserved; /* of a range of addresses */
    part *parts;
} range;

static pthread_rwlock_t lock = PTHREAD_RWLOCK_INITIALIZER;
static range *ranges; /* guarded by the lock */
static atomic_long physicals;
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
    long count = physicals;

    pthread_rwlock_rdlock(&lock);
    for (const range *r = ranges; r; r = r->next)
        count++;
    pthread_rwlock_unlock(&lock);
    return count;
}

static cudaError_t add(const range *what)
{
    range *r = malloc(sizeof *r);

    if (!r)
        return fake_error(cudaErrorMemoryAllocation);
    *r = *what;
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

static bool map_twice(int file, range *r)
{
    r->address = mmap(NULL, r->bytes, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    r->mapped = mmap(NULL, r->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    return r->address != MAP_FAILED && r->mapped != MAP_FAILED;
}

static bool make_file(range *r)
{
    r->address = r->mapped = MAP_FAILED;
    r->file = memfd_create("fakecuda", MFD_CLOEXEC);
    return r->file >= 0 && ftruncate(r->file, (off_t)r->bytes) == 0;
}

/* Gives the range's memory back; called from a stream, too. */
static void unmap(const void *argument)
{
    const range *r = argument;

    if (r->address != MAP_FAILED)
        (void)munmap(r->address, r->bytes);
    if (r->mapped != MAP_FAILED)
        (void)munmap(r->mapped, r->bytes);
    if (r->file >= 0)
        (void)close(r->file);
    if (r->kind != FAKE_IMPORTED)
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
    if (!make_file(&r) || !map_twice(r.file, &r) || add(&r) != cudaSuccess) {
        unmap(&r);
        return fake_error(cudaErrorMemoryAllocation);
    }
    fake_fill(r.file, r.bytes, 0);
    *out = r.address;
    return cudaSuccess;
}

int fake_file_of(const void *pointer, size_t *bytes)
{
    int file = -1;

    pthread_rwlock_rdlock(&lock);
    for (const range *r = ranges; r; r = r->next)
        if (r->address == pointer && r->kind == FAKE_DEVICE_MEMORY) {
            file = r->file;
            *bytes = r->bytes;
        }
    pthread_rwlock_unlock(&lock);
    return file;
}

cudaError_t fake_import(int file, size_t bytes, void **out)
{
    range r = {.bytes = bytes, .kind = FAKE_IMPORTED, .device = fake_current(), .file = file};

    if (!map_twice(file, &r) || add(&r) != cudaSuccess) {
        unmap(&r);
        return fake_error(cudaErrorMemoryAllocation);
    }
    *out = r.address;
    return cudaSuccess;
}

bool fake_give_up_import(void *pointer)
{
    range r;

    if (!take(pointer, FAKE_IMPORTED, &r))
        return false;
    unmap(&r);
    return true;
}

cudaError_t cudaMalloc(void **out, size_t bytes)
{
    FAKE_BEGIN(cudaMalloc);
    return allocate(out, bytes, FAKE_DEVICE_MEMORY, fake_current());
}

/* Takes the bytes away from a process that has the memory open: it is stopped where it still uses them (SIGBUS). */
static void free_range(const void *argument)
{
    const range *r = argument;

    if (r->kind == FAKE_DEVICE_MEMORY && ftruncate(r->file, 0) != 0)
        abort();
    unmap(r);
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
    free_range(&r);
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

/* Takes what cudaMalloc has made, too. */
cudaError_t cudaFreeAsync(void *pointer, cudaStream_t stream)
{
    cudaError_t begun = fake_begin(FAKE_cudaFreeAsync);
    range r;

    if (!fake_is_stream(stream))
        return fake_error(cudaErrorInvalidResourceHandle);
    if (!pointer)
        return begun;
    if (!take(pointer, FAKE_DEVICE_MEMORY_OF_STREAM, &r) && !take(pointer, FAKE_DEVICE_MEMORY, &r))
        return fake_error(cudaErrorInvalidValue);
    if (fake_enqueue(stream, free_range, &r, sizeof r, true) != cudaSuccess) {
        fake_stream_wait(stream);
        free_range(&r);
    }
    return begun;
}

/* ---- memory that is mapped ---- */

#define DRIVER_BEGIN(call)                           \
    do {                                             \
        cudaError_t begun = fake_begin(FAKE_##call); \
                                                     \
        if (begun != cudaSuccess)                    \
            return (CUresult)begun;                  \
    } while (0)

static void drop(physical *m)
{
    if (--m->uses > 0)
        return;
    (void)close(m->file);
    atomic_fetch_sub(&used[m->device], m->bytes);
    atomic_fetch_sub(&physicals, 1);
    free(m);
}

/* Maps a file, or nothing, at both addresses of a place in a range. */
static bool map_at(const range *r, size_t offset, size_t bytes, int file)
{
    int flags = MAP_FIXED | MAP_NORESERVE | (file < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED);

    return mmap(r->address + offset, bytes, PROT_NONE, flags, file, 0) != MAP_FAILED &&
           mmap(r->mapped + offset, bytes, PROT_NONE, flags, file, 0) != MAP_FAILED;
}

/* Finds the range that has [start, start + bytes) among its addresses. Call it under the lock. */
static range *range_of(CUdeviceptr start, size_t bytes)
{
    for (range *r = ranges; r; r = r->next)
        if (r->kind == FAKE_DEVICE_RANGE && start >= (uintptr_t)r->address &&
            start + bytes <= (uintptr_t)r->address + r->reserved)
            return r;
    return NULL;
}

CUresult cuMemGetAllocationGranularity(size_t *out, const CUmemAllocationProp *prop,
                                       CUmemAllocationGranularity_flags option)
{
    DRIVER_BEGIN(cuMemGetAllocationGranularity);
    (void)prop, (void)option;
    *out = GRANULE;
    return getenv("FSDP_FAKECUDA_MAPPING") && strcmp(getenv("FSDP_FAKECUDA_MAPPING"), "0") == 0
               ? CUDA_ERROR_NOT_SUPPORTED
               : CUDA_SUCCESS;
}

CUresult cuMemAddressReserve(CUdeviceptr *out, size_t bytes, size_t alignment, CUdeviceptr at, unsigned long long flags)
{
    unsigned char *address, *mapped;

    DRIVER_BEGIN(cuMemAddressReserve);
    if (bytes == 0 || bytes % GRANULE != 0 || alignment != 0 || at != 0 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    address = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    mapped = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (address == MAP_FAILED || mapped == MAP_FAILED ||
        add(&(range){
            .address = address, .mapped = mapped, .kind = FAKE_DEVICE_RANGE, .device = -1, .reserved = bytes}) !=
            cudaSuccess)
        return CUDA_ERROR_OUT_OF_MEMORY;
    *out = (uintptr_t)address;
    return CUDA_SUCCESS;
}

CUresult cuMemAddressFree(CUdeviceptr start, size_t bytes)
{
    cudaError_t begun = fake_begin(FAKE_cuMemAddressFree);
    bool whole;
    range r;

    pthread_rwlock_rdlock(&lock);
    whole = range_of(start, bytes) && range_of(start, bytes)->reserved == bytes && !range_of(start, bytes)->parts;
    pthread_rwlock_unlock(&lock);
    if (!whole || !take((void *)(uintptr_t)start, FAKE_DEVICE_RANGE, &r))
        return CUDA_ERROR_INVALID_VALUE;
    (void)munmap(r.address, r.reserved);
    (void)munmap(r.mapped, r.reserved);
    return (CUresult)begun;
}

CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                     unsigned long long flags)
{
    int device = prop->location.id;
    physical *m;

    DRIVER_BEGIN(cuMemCreate);
    if (bytes == 0 || bytes % GRANULE != 0 || flags != 0 || prop->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE || device < 0 || device >= FAKE_DEVICES)
        return CUDA_ERROR_INVALID_VALUE;
    if (!count(device, bytes))
        return CUDA_ERROR_OUT_OF_MEMORY;
    m = malloc(sizeof *m);
    if (m)
        *m = (physical){.bytes = bytes, .device = device, .uses = 1, .file = memfd_create("fakecuda", MFD_CLOEXEC)};
    if (!m || m->file < 0 || ftruncate(m->file, (off_t)bytes) != 0)
        abort();
    atomic_fetch_add(&physicals, 1);
    *out = (uintptr_t)m;
    return CUDA_SUCCESS;
}

CUresult cuMemRelease(CUmemGenericAllocationHandle handle)
{
    cudaError_t begun = fake_begin(FAKE_cuMemRelease);

    drop((physical *)(uintptr_t)handle);
    return (CUresult)begun;
}

CUresult cuMemMap(CUdeviceptr start, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                  unsigned long long flags)
{
    physical *m = (physical *)(uintptr_t)handle;
    part *made = malloc(sizeof *made);
    CUresult result = CUDA_ERROR_INVALID_VALUE;
    cudaError_t begun = fake_begin(FAKE_cuMemMap);
    range *r;

    pthread_rwlock_wrlock(&lock);
    r = range_of(start, bytes);
    if (made && r && begun == cudaSuccess && bytes == m->bytes && offset == 0 && flags == 0) {
        *made = (part){r->parts, start - (uintptr_t)r->address, bytes, m};
        result = CUDA_SUCCESS;
        for (const part *p = r->parts; p; p = p->next)
            if (p->offset < made->offset + bytes && made->offset < p->offset + p->bytes)
                result = CUDA_ERROR_INVALID_VALUE;
    }
    if (result == CUDA_SUCCESS && map_at(r, made->offset, bytes, m->file)) {
        r->parts = made;
        r->device = m->device;
        r->bytes = made->offset + bytes > r->bytes ? made->offset + bytes : r->bytes;
        m->uses++;
        made = NULL;
    }
    pthread_rwlock_unlock(&lock);
    free(made);
    return begun == cudaSuccess ? result : (CUresult)begun;
}

/* What still uses it stops there and then. */
CUresult cuMemUnmap(CUdeviceptr start, size_t bytes)
{
    cudaError_t begun = fake_begin(FAKE_cuMemUnmap);
    part **link = NULL, *found = NULL;
    range *r;

    pthread_rwlock_wrlock(&lock);
    r = range_of(start, bytes);
    for (link = r ? &r->parts : NULL; link && *link && !found;)
        if ((uintptr_t)r->address + (*link)->offset == start && (*link)->bytes == bytes)
            found = *link;
        else
            link = &(*link)->next;
    if (found) {
        *link = found->next;
        (void)map_at(r, found->offset, bytes, -1);
        drop(found->memory);
    }
    pthread_rwlock_unlock(&lock);
    free(found);
    return !found ? CUDA_ERROR_INVALID_VALUE : (CUresult)begun;
}

CUresult cuMemSetAccess(CUdeviceptr start, size_t bytes, const CUmemAccessDesc *desc, size_t descs)
{
    unsigned char *mapped = NULL;
    int file = -1;
    range *r;

    DRIVER_BEGIN(cuMemSetAccess);
    pthread_rwlock_rdlock(&lock);
    r = range_of(start, bytes);
    for (const part *p = r ? r->parts : NULL; p; p = p->next)
        if ((uintptr_t)r->address + p->offset == start && p->bytes == bytes)
            mapped = r->mapped + p->offset, file = p->memory->file;
    pthread_rwlock_unlock(&lock);
    if (!mapped || descs != 1 || desc->flags != CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
        return CUDA_ERROR_INVALID_VALUE;
    if (mprotect(mapped, bytes, PROT_READ | PROT_WRITE) != 0)
        return CUDA_ERROR_OUT_OF_MEMORY;
    fake_fill(file, bytes, 0);
    return CUDA_SUCCESS;
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
    memory = fake_map_ones(bytes);
    if (!memory)
        return fake_error(cudaErrorMemoryAllocation);
    if (add(&(range){.address = memory, .mapped = memory, .bytes = bytes, .kind = FAKE_HOST_MEMORY, .device = -1}) !=
        cudaSuccess) {
        fake_unmap_ones(memory, bytes);
        return fake_error(cudaErrorMemoryAllocation);
    }
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
    fake_unmap_ones(r.address, r.bytes);
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
    return add(&(range){.address = pointer, .mapped = pointer, .bytes = bytes, .kind = FAKE_REGISTERED, .device = -1});
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
                                          .device = place.found ? place.device : -1,
                                          .devicePointer = (void *)(uintptr_t)pointer};
    return cudaSuccess;
}

void fake_forget_memory(void)
{
    while (ranges) {
        range r = *ranges;

        (void)take(r.address, r.kind, &r);
        for (part *p = r.parts, *next; p; p = next) {
            next = p->next;
            drop(p->memory);
            free(p);
        }
        if (r.kind == FAKE_DEVICE_RANGE) {
            (void)munmap(r.address, r.reserved);
            (void)munmap(r.mapped, r.reserved);
        } else if (r.kind <= FAKE_DEVICE_MEMORY_OF_STREAM)
            unmap(&r);
        else if (r.kind == FAKE_HOST_MEMORY)
            fake_unmap_ones(r.address, r.bytes);
    }
}
