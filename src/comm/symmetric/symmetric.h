/* symmetric.h - the algorithms that `threads` and `shm` share, on an arena (arena.h).
 *
 * [Note: parity]
 * Each rank has a slot per group with two entries, and two payloads; call n uses number n % 2. A rank writes those of
 * call n + 2 only after the entry barrier of call n + 1, which its peers enter after they have read those of call n.
 * So what a rank shows in a call can be read for the whole call without a barrier at its end. The same holds for
 * staging halves, piece by piece, and for peers' blocks (fsdp/comm.h, "Reuse"). */
#ifndef COMM_SYMMETRIC_SYMMETRIC_H
#define COMM_SYMMETRIC_SYMMETRIC_H

#include <pthread.h>

#include "comm/comm_ops.h"
#include "comm/symmetric/arena.h"
#include "device/allocator.h"
#include "device/kernels.h"

/* One rank's view of the arena. */
typedef struct fsdp__symmetric {
    fsdp__arena *arena;
    int rank;
    bool all_visible;      /* peers see every address of this rank (threads) */
    fsdp__allocator *heap; /* of blocks in this rank's part of the arena */
    struct fsdp__heap_source *source;
    pthread_mutex_t mutex; /* of the list: groups run their calls on several threads */
    fsdp_device **devices; /* that know the arena's payloads and staging: see fsdp__symmetric_open_device */
    int64_t device_count, device_capacity;
} fsdp__symmetric;

/* What a rank says about a call; all ranks' must be equal. */
typedef struct fsdp__signature {
    uint64_t sequence;
    int64_t bytes;  /* per rank */
    int64_t blocks; /* in vectored calls */
    uint64_t hash;  /* of the blocks' sizes */
    uint8_t name, dtype, other_dtype, op, root, wire_dtype, force_copy;
    float divisor;
    char label[FSDP__LABEL_BYTES]; /* what the call is for */
} fsdp__signature;

typedef struct fsdp__entry {
    fsdp__signature signature;
    /* Not compared. Addresses are offsets from the arena's base. */
    uint64_t send, recv;
    uint64_t blocks_hash; /* of the addresses of all blocks' `whole` */
    bool visible;         /* all this call's memory can be read by peers */
    int32_t own_status;   /* of group_alloc */
    uint64_t common;      /* group_alloc's answer: offset, 0 when it failed */
} fsdp__entry;

typedef struct fsdp__slot {
    _Atomic uint32_t ticket; /* generation that this rank's last barrier leads to */
    _Alignas(64) fsdp__entry entries[2];
} fsdp__slot;

_Static_assert(sizeof(fsdp__slot) <= FSDP__SLOT_BYTES, "a slot has its place in the arena");

typedef struct fsdp__symmetric_group {
    fsdp__symmetric *world;
    fsdp__shared_group *shared;
    char *name;
    int index; /* in the arena; -1 until group_ready */
    int rank, size;
    int *ranks; /* global */
    uint64_t key;
    bool claimed;              /* this rank is the first and has taken the place */
    void **sources, **results; /* scratch, `size` entries each; one call runs at a time */
    const void **operands;
    struct fsdp__common_block *freed; /* common memory of this rank's heap that peers may still hold */
} fsdp__symmetric_group;

/* ---- symmetric.c ---- */

/* Joins as `rank`: waits until all ranks are there. On success the context owns it all; takes its own reference of the
 * arena. [collective] */
fsdp_status fsdp__symmetric_attach(fsdp_context *context, const fsdp__comm_ops *ops, fsdp__arena *arena, int rank,
                                   bool all_visible, bool wait);

/* A device whose kernels do not reach all host memory must know that through which its collectives travel. */
fsdp_status fsdp__symmetric_open_device(fsdp__symmetric *symmetric, fsdp_stream *stream);

fsdp_status fsdp__symmetric_group_open(void *transport, const fsdp__group_spec *spec, void **out);
void fsdp__symmetric_group_ready(void *group);
void fsdp__symmetric_group_free(void *group);
void fsdp__symmetric_abort(void *transport, const char *text);
void fsdp__symmetric_close(void *transport);

/* The slots that both transports have in common. */
#define FSDP__SYMMETRIC_OPS                                                                                   \
    .all_gather = fsdp__symmetric_all_gather, .reduce_scatter = fsdp__symmetric_reduce_scatter,               \
    .all_reduce = fsdp__symmetric_all_reduce, .broadcast = fsdp__symmetric_broadcast,                         \
    .all_to_all = fsdp__symmetric_all_to_all, .barrier = fsdp__symmetric_barrier,                             \
    .all_gather_blocks = fsdp__symmetric_all_gather_blocks,                                                   \
    .reduce_scatter_blocks = fsdp__symmetric_reduce_scatter_blocks, .group_open = fsdp__symmetric_group_open, \
    .group_ready = fsdp__symmetric_group_ready, .group_free = fsdp__symmetric_group_free,                     \
    .abort = fsdp__symmetric_abort, .close = fsdp__symmetric_close, .alloc = fsdp__symmetric_alloc,           \
    .free = fsdp__symmetric_free, .alloc_common = fsdp__symmetric_alloc_common,                               \
    .free_common = fsdp__symmetric_free_common, .read_begin = fsdp__symmetric_read_begin,                     \
    .read_end = fsdp__symmetric_read_end, .read_done = fsdp__symmetric_read_done,                             \
    .reads_ended = fsdp__symmetric_reads_ended, .readers_done = fsdp__symmetric_readers_done,                 \
    .reader_ended = fsdp__symmetric_reader_ended, .await_reader = fsdp__symmetric_await_reader,               \
    .host_waits = fsdp__symmetric_host_waits, .host_is_waiting = fsdp__symmetric_host_is_waiting,             \
    .awaits_meeting = fsdp__symmetric_awaits_meeting, .awaits_read = fsdp__symmetric_awaits_read

/* ---- rendezvous.c ---- */

/* All ranks of the group have come here, and what they wrote before is visible. Fails when the world is broken. */
fsdp_status fsdp__rendezvous(fsdp__symmetric_group *group, fsdp__traffic *traffic);
/* The entry of a call: shows this rank's entry, meets, compares signatures. `entry->signature` is filled from `call`.
 * After it, fsdp__entry_of reads the peers' entries. */
fsdp_status fsdp__show(fsdp__symmetric_group *group, const fsdp__call *call, fsdp__entry *entry,
                       fsdp__traffic *traffic);
/* Whether the program of group rank `rank` waits in a meeting to which this rank has not come. */
bool fsdp__symmetric_awaits_meeting(void *group, int rank);
const fsdp__entry *fsdp__entry_of(const fsdp__symmetric_group *group, const fsdp__call *call, int rank);
unsigned char *fsdp__payload_of(const fsdp__symmetric_group *group, const fsdp__call *call, int rank);

/* ---- signature.c ---- */

void fsdp__signature_fill(const fsdp__call *call, fsdp__signature *out);
/* "all_gather of 4096 bytes float32", and " for 'label'" if it has one */
void fsdp__signature_text(const fsdp__signature *signature, char *text, size_t bytes);

/* ---- plain.c, blocks.c ---- */

fsdp_status fsdp__symmetric_all_gather(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_reduce_scatter(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_all_reduce(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_broadcast(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_all_to_all(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_barrier(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_all_gather_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_reduce_scatter_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

/* ---- memory.c ---- */

fsdp_status fsdp__symmetric_memory_open(fsdp__symmetric *symmetric);
void fsdp__symmetric_memory_close(fsdp__symmetric *symmetric);
fsdp_status fsdp__symmetric_alloc(void *transport, size_t bytes, void **out);
void fsdp__symmetric_free(void *transport, void *pointer);
fsdp_status fsdp__symmetric_alloc_common(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__symmetric_free_common(void *group, void *pointer);

/* ---- readers.c ---- */

/* Where a rank is in its reads of a common region. */
typedef struct fsdp__reader {
    _Alignas(64) _Atomic uint64_t done; /* reads that are over, as peers see it */
    _Atomic uint64_t ended;             /* that the program has ended: they will be over by themselves */
    _Atomic uint64_t awaited;           /* this rank waits for all to be done with reads up to this; 0: it does not */
    uint64_t begun;
    bool member; /* of the region's group */
} fsdp__reader;

/* In front of a common region. */
typedef struct fsdp__common_block {
    struct fsdp__common_block *next; /* only the owner follows it */
    _Atomic int32_t given_back;
    int32_t ranks;
    _Atomic uint32_t moved; /* steps when a reader is done and somebody sleeps */
    _Atomic uint32_t sleepers;
    fsdp__reader readers[]; /* by global rank */
} fsdp__common_block;

size_t fsdp__common_header(const fsdp__symmetric_group *group);
fsdp__common_block *fsdp__common_block_of(const fsdp__symmetric_group *group, void *pointer);

void fsdp__symmetric_read_begin(void *group, void *pointer);
uint64_t fsdp__symmetric_read_end(void *group, void *pointer);
void fsdp__symmetric_read_done(void *group, void *pointer, uint64_t number);
uint64_t fsdp__symmetric_reads_ended(void *group, void *pointer);
bool fsdp__symmetric_readers_done(void *group, void *pointer, uint64_t number, int *behind);
bool fsdp__symmetric_reader_ended(void *group, void *pointer, uint64_t number, int rank);
fsdp_status fsdp__symmetric_await_reader(void *group, void *pointer, uint64_t number, int behind);
void fsdp__symmetric_host_waits(void *transport, int change);
bool fsdp__symmetric_host_is_waiting(void *transport);
bool fsdp__symmetric_awaits_read(void *group, int rank);

/* Addresses on their way between ranks. */
static inline uint64_t fsdp__to_offset(const fsdp__symmetric_group *group, const void *pointer)
{
    return (uint64_t)((uintptr_t)pointer - (uintptr_t)group->world->arena->base);
}

static inline void *fsdp__from_offset(const fsdp__symmetric_group *group, uint64_t offset)
{
    return (void *)((uintptr_t)group->world->arena->base + (uintptr_t)offset);
}

#endif
