/* cuda_segments.c - memory of the device, and of the host where the device reaches it.
 *
 * [Note: segments]
 * A segment is a range of addresses, of which the front has memory: pieces that are mapped one behind the other. It
 * grows by more of them, also where some were cut out, so the ledger's blocks lie side by side, and no more memory is
 * reserved than they need. Its range has more addresses than the device has bytes, since what is cut out of it keeps
 * its addresses. Where the driver cannot map memory a segment is cudaMalloc's, and does not grow. */
#include "backend/cuda/cuda.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/lock.h"

enum {
    RANGES = 8 /* the bytes of a range are so many times those of the device */
};

#define GRANULE ((size_t)2 << 20) /* the allocator's steps are multiples of it */
#define PIECE ((size_t)32 << 20)  /* bytes of a piece, at most: what can be cut out is whole pieces */

typedef struct piece {
    size_t offset, bytes;
} piece;

typedef struct fsdp__cuda_range {
    struct fsdp__cuda_range *next;
    CUdeviceptr start;
    size_t bytes;
    piece *pieces; /* by their offset */
    int64_t count, capacity;
} range;

/* Calls the driver, as FSDP__CUDA_CALL calls CUDA: the numbers of their errors are the same. */
#define DRIVER_CALL(device, name, ...)                                                                           \
    (fsdp__cuda_alive(device) == FSDP_OK                                                                         \
         ? fsdp__cuda_check((device), (cudaError_t)fsdp__cuda_state_of(device)->driver.name(__VA_ARGS__), #name, \
                            __FILE__, __LINE__)                                                                  \
         : fsdp_last_status())
#define DRIVER_GIVE_BACK(device, name, ...)                                                                    \
    fsdp__cuda_given_back((device), (cudaError_t)fsdp__cuda_state_of(device)->driver.name(__VA_ARGS__), #name, \
                          __FILE__, __LINE__)

/* ---- what the driver can do ---- */

static CUmemAllocationProp kind_of(const fsdp_device *device)
{
    return (CUmemAllocationProp){.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                 .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device->ordinal}};
}

static size_t range_bytes(const fsdp_device *device)
{
    return RANGES * (fsdp__cuda_state_of(device)->bytes + GRANULE - 1) / GRANULE * GRANULE;
}

/* Finds the driver's functions. */
static bool find_functions(fsdp__cuda_mapping *driver)
{
    const struct {
        const char *name;
        void **place;
    } functions[] = {
#define FUNCTION(name, arguments) {#name, (void **)&driver->name},
        FSDP__CUDA_MAPPING(FUNCTION)
#undef FUNCTION
    };
    enum cudaDriverEntryPointQueryResult found;

    for (size_t i = 0; i < FSDP__COUNT_OF(functions); i++)
        if (cudaGetDriverEntryPointByVersion(functions[i].name, functions[i].place, 12000, cudaEnableDefault, &found) !=
                cudaSuccess ||
            found != cudaDriverEntryPointSuccess)
            return false;
    return true;
}

/* Maps and unmaps a granule of a whole range: some drivers cannot, and a process may have a limit of addresses. */
static bool can_map(const fsdp_device *device)
{
    const fsdp__cuda_mapping *driver = &fsdp__cuda_state_of(device)->driver;
    CUmemAllocationProp kind = kind_of(device);
    CUmemAccessDesc access = {.location = kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory;
    size_t granule = 0, bytes = range_bytes(device);
    CUdeviceptr start = 0;
    bool made, mapped;

    if (driver->cuMemGetAllocationGranularity(&granule, &kind, CU_MEM_ALLOC_GRANULARITY_MINIMUM) != CUDA_SUCCESS ||
        granule == 0 || GRANULE % granule != 0 || driver->cuMemAddressReserve(&start, bytes, 0, 0, 0) != CUDA_SUCCESS)
        return false;
    made = driver->cuMemCreate(&memory, GRANULE, &kind, 0) == CUDA_SUCCESS;
    mapped = made && driver->cuMemMap(start, GRANULE, 0, memory, 0) == CUDA_SUCCESS;
    if (made)
        (void)driver->cuMemRelease(memory);
    if (mapped) {
        mapped = driver->cuMemSetAccess(start, GRANULE, &access, 1) == CUDA_SUCCESS;
        mapped = driver->cuMemUnmap(start, GRANULE) == CUDA_SUCCESS && mapped;
    }
    return driver->cuMemAddressFree(start, bytes) == CUDA_SUCCESS && mapped;
}

void fsdp__cuda_mapping_find(fsdp_device *device)
{
    device->grows = find_functions(&fsdp__cuda_state_of(device)->driver) && can_map(device);
    (void)cudaGetLastError(); /* what is missing is no failure */
}

/* ---- ranges ---- */

/* Finds the pieces that lie whole in a part of a range: [first, end). */
static void pieces_in(const range *r, size_t from, size_t to, int64_t *first, int64_t *end)
{
    *first = 0;
    while (*first < r->count && r->pieces[*first].offset < from)
        ++*first;
    for (*end = *first; *end < r->count && r->pieces[*end].offset + r->pieces[*end].bytes <= to; ++*end)
        continue;
}

/* Maps one piece where nothing is. */
static fsdp_status map_piece(const fsdp_device *device, range *r, size_t offset, size_t bytes)
{
    CUmemAllocationProp kind = kind_of(device);
    CUmemAccessDesc access = {.location = kind.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    CUmemGenericAllocationHandle memory;
    fsdp_status status;
    int64_t at, end;

    if (fsdp__grow(&r->pieces, r->count, &r->capacity, sizeof *r->pieces) != 0)
        return FSDP_NO_MEMORY;
    FSDP_TRY(DRIVER_CALL(device, cuMemCreate, &memory, bytes, &kind, 0));
    status = DRIVER_CALL(device, cuMemMap, r->start + offset, bytes, 0, memory, 0);
    DRIVER_GIVE_BACK(device, cuMemRelease, memory); /* the mapping keeps it */
    FSDP_TRY(status);
    pieces_in(r, offset, offset, &at, &end);
    memmove(r->pieces + at + 1, r->pieces + at, (size_t)(r->count++ - at) * sizeof *r->pieces);
    r->pieces[at] = (piece){offset, bytes};
    return DRIVER_CALL(device, cuMemSetAccess, r->start + offset, bytes, &access, 1);
}

/* Unmaps some pieces. The device must not use them any more. */
static void unmap(const fsdp_device *device, range *r, int64_t first, int64_t end)
{
    for (int64_t i = first; i < end; i++)
        DRIVER_GIVE_BACK(device, cuMemUnmap, r->start + r->pieces[i].offset, r->pieces[i].bytes);
    if (end > first)
        memmove(r->pieces + first, r->pieces + end, (size_t)(r->count - end) * sizeof *r->pieces);
    r->count -= end - first;
}

/* Maps memory at [from, end): all of it, or nothing. FSDP_NOT_FOUND where the range ends before. */
static fsdp_status map(const fsdp_device *device, range *r, size_t from, size_t end)
{
    fsdp_status status = FSDP_OK;
    int64_t first, last;

    if (end > r->bytes)
        return FSDP_NOT_FOUND;
    for (size_t at = from, bytes; at < end && status == FSDP_OK; at += bytes) {
        bytes = FSDP__MIN(end - at, PIECE);
        status = map_piece(device, r, at, bytes);
    }
    if (status != FSDP_OK) {
        pieces_in(r, from, end, &first, &last);
        unmap(device, r, first, last);
    }
    return status;
}

static void range_free(const fsdp_device *device, range *r)
{
    unmap(device, r, 0, r->count);
    if (r->start)
        DRIVER_GIVE_BACK(device, cuMemAddressFree, r->start, r->bytes);
    fsdp__free(r->pieces);
    fsdp__free(r);
}

static fsdp_status range_create(const fsdp_device *device, size_t bytes, range **out)
{
    range *r;
    fsdp_status status;

    if (bytes > range_bytes(device))
        return FSDP_FAIL(FSDP_NO_MEMORY, "%s does not have that much memory", device->name);
    r = fsdp__calloc(1, sizeof *r);
    if (!r)
        return FSDP_NO_MEMORY;
    r->bytes = range_bytes(device);
    status = DRIVER_CALL(device, cuMemAddressReserve, &r->start, r->bytes, 0, 0, 0);
    if (status == FSDP_OK)
        status = map(device, r, 0, bytes);
    if (status != FSDP_OK) {
        range_free(device, r);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = r;
    return FSDP_OK;
}

/* Returns the link to the range of a segment. */
static range **range_at(fsdp__cuda_state *state, const void *segment)
{
    range **link = &state->ranges;

    while (*link && (*link)->start != (CUdeviceptr)(uintptr_t)segment)
        link = &(*link)->next;
    return link;
}

/* ---- segments ---- */

/* Memory is given back in the order of the device's own stream: what is behind that uses it no more. */
fsdp_status fsdp__cuda_issued(fsdp_device *device, fsdp__device_moment **out)
{
    fsdp__cuda_moment *moment = NULL;

    FSDP_TRY(fsdp__cuda_moment_behind(device->stream, &moment));
    *out = &moment->base;
    return FSDP_OK;
}

/* Frees it in the order of a stream that does nothing else, and so without a wait for others. Fails where none can. */
static cudaError_t free_apart(void *memory)
{
    cudaStream_t apart;
    cudaError_t error = cudaStreamCreateWithPriority(&apart, cudaStreamNonBlocking, 0);

    if (error != cudaSuccess)
        return error;
    error = cudaFreeAsync(memory, apart);
    (void)cudaStreamSynchronize(apart); /* then the card has it */
    (void)cudaStreamDestroy(apart);
    return error;
}

/* cudaFree would wait for all streams of the GPU, and other threads could not launch meanwhile what these wait for. So
 * it is only for drivers that free nothing in the order of a stream, and when the device closes. */
void fsdp__cuda_give_back_memory(const fsdp_device *device, void *memory)
{
    if (device->stream && fsdp__cuda_state_of(device)->pools && free_apart(memory) == cudaSuccess)
        return;
    (void)cudaGetLastError();
    FSDP__CUDA_GIVE_BACK(device, cudaFree(memory));
}

static fsdp_status make_segment(fsdp_device *device, size_t bytes, void **out)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    range *r = NULL;

    if (!device->grows) {
        FSDP__CUDA_TRY(device, cudaMalloc(out, bytes));
        return FSDP_OK;
    }
    FSDP_TRY(range_create(device, bytes, &r));
    pthread_mutex_lock(&state->mutex);
    r->next = state->ranges;
    state->ranges = r;
    pthread_mutex_unlock(&state->mutex);
    *out = (void *)(uintptr_t)r->start;
    return FSDP_OK;
}

fsdp_status fsdp__cuda_segment_alloc(fsdp_device *device, size_t bytes, void **out)
{
    FSDP_TRY(fsdp__cuda_use(device));
    return make_segment(device, bytes, out);
}

fsdp_status fsdp__cuda_segment_grow(fsdp_device *device, void *segment, size_t bytes, size_t more)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    fsdp_status status;

    FSDP_TRY(fsdp__cuda_use(device));
    pthread_mutex_lock(&state->mutex);
    status = map(device, *range_at(state, segment), bytes, bytes + more);
    pthread_mutex_unlock(&state->mutex);
    return status;
}

void fsdp__cuda_segment_fit(fsdp_device *device, void *segment, size_t *from, size_t *end)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    int64_t first, last;
    const range *r;

    pthread_mutex_lock(&state->mutex);
    r = *range_at(state, segment);
    pieces_in(r, *from, *end, &first, &last);
    *from = first < last ? r->pieces[first].offset : *end;
    *end = first < last ? r->pieces[last - 1].offset + r->pieces[last - 1].bytes : *end;
    pthread_mutex_unlock(&state->mutex);
}

void fsdp__cuda_segment_cut(fsdp_device *device, void *segment, size_t from, size_t end)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    int64_t first, last;
    range *r;

    (void)fsdp__cuda_use(device);
    pthread_mutex_lock(&state->mutex);
    r = *range_at(state, segment);
    pieces_in(r, from, end, &first, &last);
    unmap(device, r, first, last);
    pthread_mutex_unlock(&state->mutex);
}

void fsdp__cuda_segment_free(fsdp_device *device, void *segment, size_t bytes)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    range **link, *found;

    (void)bytes;
    (void)fsdp__cuda_use(device);
    pthread_mutex_lock(&state->mutex);
    link = range_at(state, segment);
    found = *link;
    if (found)
        *link = found->next;
    pthread_mutex_unlock(&state->mutex);
    if (!found) {
        fsdp__cuda_give_back_memory(device, segment);
        return;
    }
    range_free(device, found);
}

/* ---- scratch ----
 *
 * Freed in the order of a stream, it is the device's again when that stream has come there. Who finds no memory waits
 * for these places, of each stream the last one, and without a lock: what comes before one of them may wait for another
 * rank, and that one for what another thread of this rank has yet to issue. */

/* Takes the place of the stream's `given`, which may be NULL; `moment` may be NULL. */
static void set_given(fsdp__cuda_stream *stream, fsdp__cuda_moment *moment)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(stream->base.device);
    fsdp__cuda_moment *before;

    pthread_mutex_lock(&state->mutex);
    before = stream->given;
    stream->given = moment;
    pthread_mutex_unlock(&state->mutex);
    if (before)
        fsdp__cuda_moment_drop(before);
}

/* Notes that the stream has given scratch back. */
static fsdp_status note_given(fsdp_stream *stream)
{
    fsdp__cuda_moment *moment = NULL;

    FSDP_TRY(fsdp__cuda_moment_behind(stream, &moment));
    set_given((fsdp__cuda_stream *)stream, moment);
    return FSDP_OK;
}

/* Returns the first place that nobody has waited for, with a reference for the caller; NULL if there is none. */
static fsdp__cuda_moment *first_given(fsdp__cuda_state *state)
{
    const fsdp__cuda_stream *stream;

    FSDP__HELD(&state->mutex);
    for (stream = state->streams; stream && !stream->given; stream = stream->next)
        continue;
    if (!stream)
        return NULL;
    atomic_fetch_add(&stream->given->base.refs, 1);
    return stream->given;
}

/* Takes a place that was waited for off its stream, unless that has another one by now, or is gone. */
static void forget_given(fsdp__cuda_state *state, const fsdp__cuda_moment *moment)
{
    FSDP__HELD(&state->mutex);
    for (fsdp__cuda_stream *stream = state->streams; stream; stream = stream->next)
        if (stream->given == moment) {
            fsdp__cuda_moment_drop(stream->given);
            stream->given = NULL;
        }
}

bool fsdp__cuda_scratch_owed(fsdp_device *device)
{
    fsdp__cuda_moment *moment = first_given(fsdp__cuda_state_of(device));

    if (moment)
        fsdp__cuda_moment_drop(moment);
    return moment != NULL;
}

void fsdp__cuda_scratch_settle(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    bool held = fsdp_hold_error(true); /* a failure is told by what is asked for next */

    for (fsdp__cuda_moment *moment; (moment = first_given(state)) != NULL;) {
        (void)moment->base.wait(&moment->base);
        forget_given(state, moment);
        fsdp__cuda_moment_drop(moment);
    }
    fsdp_release_error(held);
}

fsdp_status fsdp__cuda_scratch_alloc(fsdp_stream *stream, size_t bytes, void **out)
{
    fsdp_device *device = stream->device;

    FSDP_TRY(fsdp__cuda_use(device));
    if (!fsdp__cuda_state_of(device)->pools)
        FSDP__CUDA_TRY(device, cudaMalloc(out, bytes));
    else
        FSDP__CUDA_TRY(device, cudaMallocAsync(out, bytes, fsdp__cuda_native(stream)));
    return FSDP_OK;
}

void fsdp__cuda_scratch_free(fsdp_stream *stream, void *scratch, size_t bytes)
{
    fsdp_device *device = stream->device;
    bool held;

    if (!fsdp__cuda_state_of(device)->pools) {
        fsdp__cuda_segment_free(device, scratch, bytes);
        return;
    }
    (void)fsdp__cuda_use(device);
    FSDP__CUDA_GIVE_BACK(device, cudaFreeAsync(scratch, fsdp__cuda_native(stream)));
    held = fsdp_hold_error(true);
    (void)note_given(stream);
    fsdp_release_error(held);
}

/* ---- host memory ---- */

fsdp_status fsdp__cuda_host_alloc(fsdp_device *device, size_t bytes, void **out)
{
    FSDP_TRY(fsdp__cuda_use(device));
    return FSDP__CUDA_HOST_CALL(device, cudaHostAlloc(out, bytes, cudaHostAllocPortable));
}

void fsdp__cuda_host_free(fsdp_device *device, void *memory, size_t bytes)
{
    (void)bytes;
    (void)fsdp__cuda_use(device);
    FSDP__CUDA_GIVE_BACK(device, cudaFreeHost(memory));
}
