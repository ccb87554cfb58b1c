/* cuda_pinned.c - host memory that somebody else has allocated, where the device reaches it.
 *
 * CUDA registers whole pages, once in a process, while requests may share pages with each other and are made again by
 * every rank that is a thread. So what is registered is a piece: the pages of a request that no piece had before. A
 * piece lives as long as a request does that needs it. A copy must not cross the end of a piece: cuda_copy.c cuts it
 * there. CUDA's state is the process's, and so is the list. */
#include <unistd.h>

#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/compiler.h"

typedef struct piece {
    struct piece *next; /* in the order of addresses */
    uintptr_t first, end;
    int64_t refs;
} piece;

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static piece *pieces; /* guarded by the mutex */

/* Describes the pages of a request. */
typedef struct pages {
    uintptr_t first, end;
} pages;

static pages pages_of(const void *memory, size_t bytes)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)memory;

    return (pages){at / page * page, FSDP__ROUND_UP(at + bytes, page)};
}

/* Says, the first time also in the log, that the system refuses: copies work without. */
static fsdp_status refuse(const fsdp_device *device, size_t bytes)
{
    fsdp_status status = FSDP_FAIL(FSDP_UNSUPPORTED, "cannot register %zu bytes of the host with %s: %s", bytes,
                                   device->name, fsdp_last_error());

    if (!atomic_exchange(&fsdp__cuda_state_of(device)->refused, true))
        fsdp_log(device->context, FSDP_LOG_WARNING, "copies between the host and %s are slower than they could be: %s",
                 device->name, fsdp_last_error());
    return status;
}

/* Registers the gap in front of `*link`, as a piece without references. */
static fsdp_status fill_gap(const fsdp_device *device, piece **link, uintptr_t first, uintptr_t end)
{
    piece *p = fsdp__malloc(sizeof *p);
    fsdp_status status;

    if (!p)
        return FSDP_NO_MEMORY;
    status = FSDP__CUDA_HOST_CALL(device, cudaHostRegister((void *)first, end - first, cudaHostRegisterPortable));
    if (status != FSDP_OK)
        fsdp__free(p);
    if (status == FSDP_NO_MEMORY || status == FSDP_UNSUPPORTED)
        return refuse(device, (size_t)(end - first));
    if (status != FSDP_OK)
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    *p = (piece){.next = *link, .first = first, .end = end};
    *link = p;
    return FSDP_OK;
}

/* Lets go of the pieces from the request's first page up to `end`. */
static void drop(const fsdp_device *device, uintptr_t first, uintptr_t end)
{
    for (piece **link = &pieces; *link && (*link)->first < end;) {
        piece *p = *link;

        if (p->end <= first || --p->refs > 0) {
            link = &p->next;
            continue;
        }
        *link = p->next;
        FSDP__CUDA_GIVE_BACK(device, cudaHostUnregister((void *)p->first));
        fsdp__free(p);
    }
}

static fsdp_status take(const fsdp_device *device, pages request)
{
    piece **link = &pieces;

    for (uintptr_t at = request.first; at < request.end; link = &(*link)->next) {
        while (*link && (*link)->end <= at)
            link = &(*link)->next;
        if (!*link || (*link)->first > at) {
            uintptr_t end = *link ? FSDP__MIN((*link)->first, request.end) : request.end;
            fsdp_status status = fill_gap(device, link, at, end);

            if (status != FSDP_OK) {
                drop(device, request.first, at);
                return status;
            }
        }
        (*link)->refs++;
        at = (*link)->end;
    }
    return FSDP_OK;
}

fsdp_status fsdp__cuda_host_register(fsdp_device *device, void *memory, size_t bytes)
{
    fsdp_status status;

    if (bytes == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__cuda_use(device));
    pthread_mutex_lock(&mutex);
    status = take(device, pages_of(memory, bytes));
    pthread_mutex_unlock(&mutex);
    return status;
}

void fsdp__cuda_host_unregister(fsdp_device *device, void *memory, size_t bytes)
{
    pages request = pages_of(memory, bytes);

    if (bytes == 0)
        return;
    (void)fsdp__cuda_use(device);
    pthread_mutex_lock(&mutex);
    drop(device, request.first, request.end);
    pthread_mutex_unlock(&mutex);
}

size_t fsdp__cuda_host_run(const void *host, size_t bytes)
{
    uintptr_t at = (uintptr_t)host, end = at + bytes;

    pthread_mutex_lock(&mutex);
    for (const piece *p = pieces; p && p->first < end; p = p->next)
        if (at < p->end)
            end = at < p->first ? p->first : FSDP__MIN(end, p->end);
    pthread_mutex_unlock(&mutex);
    return end - at;
}
