/* cuda.h - shared by the host side of the device of NVIDIA's GPUs: its state, its streams, its functions.
 *
 * [Note: issued by whom]
 * Kernels, copies, marks and waits are issued to a stream's cudaStream_t in the caller's thread as long as nothing is
 * queued before them. A function of the host, or a wait for something that has not been issued yet, is queued, and the
 * stream's worker (device/worker.h) starts: whatever follows is issued by the worker, until its queue is empty. A mark
 * is passed when the work before it was issued; the moment that it carries is a cudaEvent_t. */
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <pthread.h>

#include "backend/cuda/cuda_error.h"
#include "device/impl.h"
#include "device/worker.h"

#define FSDP__CUDA_PIECES 4
#define FSDP__CUDA_PIECE_BYTES ((size_t)1 << 20)

/* A place in a stream; see cuda_event.c. */
typedef struct fsdp__cuda_moment {
    fsdp__device_moment base;
    struct fsdp__cuda_moments *home;
    cudaEvent_t event;
    bool timed;                       /* its time can be measured */
    struct fsdp__cuda_moment *origin; /* of a stamp: from where it is measured; it is released with it. NULL: none */
    int64_t ns;                       /* of an origin: its time */
    struct fsdp__cuda_moment *next;   /* of those that nobody uses, or that one caller waits for */
} fsdp__cuda_moment;

/* The driver's functions that map memory; see [Note: segments] in cuda_segments.c. */
#define FSDP__CUDA_MAPPING(X)                                                                                   \
    X(cuMemGetAllocationGranularity, (size_t *, const CUmemAllocationProp *, CUmemAllocationGranularity_flags)) \
    X(cuMemAddressReserve, (CUdeviceptr *, size_t, size_t, CUdeviceptr, unsigned long long))                    \
    X(cuMemAddressFree, (CUdeviceptr, size_t))                                                                  \
    X(cuMemCreate, (CUmemGenericAllocationHandle *, size_t, const CUmemAllocationProp *, unsigned long long))   \
    X(cuMemRelease, (CUmemGenericAllocationHandle))                                                             \
    X(cuMemMap, (CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long))                \
    X(cuMemUnmap, (CUdeviceptr, size_t))                                                                        \
    X(cuMemSetAccess, (CUdeviceptr, size_t, const CUmemAccessDesc *, size_t))

typedef struct fsdp__cuda_mapping {
#define FSDP__CUDA_MAPPING_MEMBER(name, arguments) CUresult(CUDAAPI *name) arguments;
    FSDP__CUDA_MAPPING(FSDP__CUDA_MAPPING_MEMBER)
#undef FSDP__CUDA_MAPPING_MEMBER
} fsdp__cuda_mapping;

/* The driver's functions by which streams wait for each other; see cuda_peers.c. */
typedef struct fsdp__cuda_words {
    CUresult(CUDAAPI *write)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
    CUresult(CUDAAPI *await)(CUstream, CUdeviceptr, cuuint32_t, unsigned);
} fsdp__cuda_words;

/* Holds the state of a device (device->state). */
typedef struct fsdp__cuda_state {
    char model[64];
    int capability; /* 90: 9.0 */
    int multiprocessors, clock_khz;
    size_t shared_bytes;  /* that a block of threads can have */
    size_t bytes;         /* of its memory */
    bool pools;           /* memory can be allocated and freed in stream order */
    _Atomic bool refused; /* the system has refused to register memory of the host */
    fsdp__cuda_mapping driver;
    fsdp__cuda_words words;
    struct fsdp__cuda_range *ranges;   /* guarded by the mutex, as the next */
    struct fsdp__cuda_stream *streams; /* all that were made for this device, and for no other rank's of the same GPU */
    pthread_mutex_t mutex;
    struct fsdp__cuda_moments *moments;
    _Atomic uint64_t ticket;        /* of what CUPTI records for it (cuda_activity.c); 0: it does not */
    _Atomic int64_t issued;         /* kernels, products, copies and fills since then */
    struct fsdp__cuda_clock *clock; /* NULL: no stamp was taken yet. Guarded by the mutex */
    fsdp__cuda_lost lost;
    /* State of the products by a library, and how it is freed; made when the first product runs, under the mutex. */
    void *products;
    void (*products_free)(void *products);
    struct fsdp__cuda_attentions *attentions; /* cuDNN's; NULL: nobody has asked for them */
    struct fsdp__nccl *nccl;                  /* NULL: nobody has asked for it. Guarded by the mutex */
} fsdp__cuda_state;

/* Describes pinned memory through which a stream copies: see [Note: pageable memory] in cuda_copy.c. */
typedef struct fsdp__cuda_pieces {
    char *memory;                        /* NULL: there was no such copy yet */
    cudaEvent_t used[FSDP__CUDA_PIECES]; /* after the last copies of each */
    int now;                             /* which is being filled on the way to the device, */
    size_t filled;                       /* and how far */
} fsdp__cuda_pieces;

typedef struct fsdp__cuda_stream {
    fsdp_stream base;
    cudaStream_t native;
    fsdp__worker worker;
    fsdp__cuda_pieces pieces;
    struct fsdp__cuda_stream *next; /* of the device's; guarded by its mutex, as the next */
    fsdp__cuda_moment *given;       /* behind the last scratch that was given back; NULL: somebody has waited for it */
} fsdp__cuda_stream;

static inline fsdp__cuda_state *fsdp__cuda_state_of(const fsdp_device *device)
{
    return device->state;
}

static inline cudaStream_t fsdp__cuda_native(const fsdp_stream *stream)
{
    return ((const fsdp__cuda_stream *)stream)->native;
}

/* Counts something that the device will run, where that is recorded. A product is one, whatever it launches. */
static inline void fsdp__cuda_count_issued(const fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);

    if (atomic_load_explicit(&state->ticket, memory_order_relaxed) > 0)
        atomic_fetch_add_explicit(&state->issued, 1, memory_order_relaxed);
}

/* Makes the device the calling thread's own. Whoever calls CUDA calls this first. */
fsdp_status fsdp__cuda_use(const fsdp_device *device);

/* ---- cuda_links.c ---- */

fsdp__link fsdp__cuda_links(fsdp_device *device, int count, char *text, size_t bytes);

/* ---- cuda_stream.c ---- */

fsdp_status fsdp__cuda_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out);
void fsdp__cuda_stream_free(fsdp_stream *stream);
fsdp_status fsdp__cuda_stream_enqueue(fsdp_stream *stream, fsdp_status (*work)(fsdp_stream *, const void *),
                                      const void *argument, size_t bytes);
fsdp_status fsdp__cuda_stream_synchronize(fsdp_stream *stream);
fsdp_status fsdp__cuda_stream_check(fsdp_stream *stream);
fsdp_status fsdp__cuda_stream_settle(fsdp_stream *stream);
bool fsdp__cuda_stream_enter(fsdp_stream *stream);
void fsdp__cuda_stream_leave(fsdp_stream *stream);
void *fsdp__cuda_stream_native(fsdp_stream *stream);
/* Waits until the device's streams have done what was issued to them, on a lost device, too. Those of other ranks may
 * wait for what this thread has yet to do, and cudaDeviceSynchronize would wait for them. */
void fsdp__cuda_await_streams(const fsdp_device *device);
/* Gives the moment behind all that the streams have been given, what is queued included; NULL: all of it is done. */
fsdp_status fsdp__cuda_mark_all(fsdp_device *device, fsdp__device_moment **out);
bool fsdp__cuda_has_ended(fsdp_device *device);

/* ---- cuda_event.c ---- */

fsdp_status fsdp__cuda_stream_mark(fsdp_stream *stream, fsdp__mark *out);
fsdp_status fsdp__cuda_stream_await(fsdp_stream *stream, fsdp__mark mark);
/* Takes a moment that nobody uses, which the caller owns: one whose time can be measured, or not. */
fsdp_status fsdp__cuda_moment_take(fsdp_device *device, bool timed, fsdp__cuda_moment **out);
/* Takes a moment behind all that was issued to the stream so far. The caller need not have entered the stream. */
fsdp_status fsdp__cuda_moment_behind(fsdp_stream *stream, fsdp__cuda_moment **out);
void fsdp__cuda_moment_drop(fsdp__cuda_moment *moment);
/* Gives how much time lies between two timed moments, both of which the device has reached, in ns. CUDA has it as a
 * float of milliseconds. */
fsdp_status fsdp__cuda_moment_elapsed(const fsdp__cuda_moment *from, const fsdp__cuda_moment *to, int64_t *ns);
/* Open and close the device's moments. Those that an event of another device still holds stay until it lets go of
 * them. */
fsdp_status fsdp__cuda_moments_open(fsdp_device *device);
void fsdp__cuda_moments_close(fsdp_device *device);

/* ---- cuda_stamp.c ---- */

fsdp_status fsdp__cuda_stream_stamp(fsdp_stream *stream, fsdp__device_moment **out);
/* Frees what stamps are measured with, before the moments are closed. */
void fsdp__cuda_clock_close(fsdp_device *device);

/* ---- cuda_activity.c ---- */

fsdp_status fsdp__cuda_activities_start(fsdp_device *device);
fsdp_status fsdp__cuda_activities_stop(fsdp_device *device, fsdp__activity_listener *tell, void *arg,
                                       fsdp__activity_sum *out);
void fsdp__cuda_activity_enter(fsdp_device *device, uint64_t number);
void fsdp__cuda_activity_leave(fsdp_device *device);
/* Ends the record of a device that is being closed, if there is one. */
void fsdp__cuda_activities_close(fsdp_device *device);

/* ---- attention_fast.c ---- */

/* Opens cuDNN, if it is not open. */
fsdp_status fsdp__cuda_attention_open(fsdp_device *device);
void fsdp__cuda_attention_close(fsdp_device *device);

/* ---- nccl_clique.c ---- */

extern const fsdp__clique_ops fsdp__cuda_cliques;
void fsdp__cuda_cliques_close(fsdp_device *device);

/* ---- cuda_pinned.c ---- */

fsdp_status fsdp__cuda_host_register(fsdp_device *device, void *memory, size_t bytes);
void fsdp__cuda_host_unregister(fsdp_device *device, void *memory, size_t bytes);
/* Returns how many bytes from `host` on one copy may have: they lie in one piece that is registered, or in none. */
size_t fsdp__cuda_host_run(const void *host, size_t bytes);

/* ---- cuda_peers.c: slots of the table ---- */

fsdp_status fsdp__cuda_export_alloc(fsdp_device *device, size_t bytes, fsdp__export *out);
void fsdp__cuda_export_free(fsdp_device *device, const fsdp__export *memory);
fsdp_status fsdp__cuda_import_open(fsdp_device *device, const fsdp__export *theirs, void **out);
void fsdp__cuda_import_close(fsdp_device *device, const fsdp__export *theirs, void *memory);
fsdp_status fsdp__cuda_try_words(fsdp_device *device, uint32_t *word);
fsdp_status fsdp__cuda_write_word(fsdp_stream *stream, uint32_t *word, uint32_t value);
fsdp_status fsdp__cuda_await_word(fsdp_stream *stream, uint32_t *word, uint32_t value);

/* ---- cuda_segments.c, cuda_copy.c: slots of the table ---- */

fsdp_status fsdp__cuda_segment_alloc(fsdp_device *device, size_t bytes, void **out);
void fsdp__cuda_segment_free(fsdp_device *device, void *segment, size_t bytes);
fsdp_status fsdp__cuda_segment_grow(fsdp_device *device, void *segment, size_t bytes, size_t more);
void fsdp__cuda_segment_fit(fsdp_device *device, void *segment, size_t *from, size_t *end);
void fsdp__cuda_segment_cut(fsdp_device *device, void *segment, size_t from, size_t end);
fsdp_status fsdp__cuda_issued(fsdp_device *device, fsdp__device_moment **out);
/* Finds out whether segments can grow (device->grows). */
void fsdp__cuda_mapping_find(fsdp_device *device);
fsdp_status fsdp__cuda_scratch_alloc(fsdp_stream *stream, size_t bytes, void **out);
void fsdp__cuda_scratch_free(fsdp_stream *stream, void *scratch, size_t bytes);
bool fsdp__cuda_scratch_owed(fsdp_device *device);
void fsdp__cuda_scratch_settle(fsdp_device *device);
/* Gives back what cudaMalloc has made, and nothing uses any more. */
void fsdp__cuda_give_back_memory(const fsdp_device *device, void *memory);
fsdp_status fsdp__cuda_host_alloc(fsdp_device *device, size_t bytes, void **out);
void fsdp__cuda_host_free(fsdp_device *device, void *memory, size_t bytes);
fsdp_status fsdp__cuda_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
fsdp_status fsdp__cuda_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes);
fsdp_status fsdp__cuda_hand_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes);
/* Frees what copies of the stream have made; its work is done. */
void fsdp__cuda_pieces_free(fsdp__cuda_stream *stream);
