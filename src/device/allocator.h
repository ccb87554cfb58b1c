/* allocator.h - the ledger: hands out blocks of a backend's segments and counts every byte under its kind.
 *
 * Blocks are reused, and not given back while the device lives, except when the backend has nothing left: then segments
 * without a live block are returned, and of those that grow their holes, before the request is tried once more. The
 * same sequence of calls always makes the same decisions, wherever the segments happen to lie. All functions are
 * thread-safe. */
#ifndef DEVICE_ALLOCATOR_H
#define DEVICE_ALLOCATOR_H

#include "device/owners.h"

typedef struct fsdp__allocator fsdp__allocator;

/* Where segments come from: a backend, or memory that ranks share. */
typedef struct fsdp__segment_source {
    const char *name;
    bool has_bytes; /* false: the addresses are never followed */
    fsdp_status (*alloc)(void *arg, size_t bytes, void **out);
    void (*free)(void *arg, void *segment, size_t bytes);
    void *arg;
    /* Optional, all three. `grow` makes a segment of so many bytes longer, in its place. `fit` narrows a part of it,
     * [*from, *end), to what can be given back alone, which may be nothing. `cut` gives that back: nobody may touch it
     * any more, and it still counts among the segment's bytes. */
    fsdp_status (*grow)(void *arg, void *segment, size_t bytes, size_t more);
    void (*fit)(void *arg, void *segment, size_t *from, size_t *end);
    void (*cut)(void *arg, void *segment, size_t from, size_t end);
    /* Optional, all three, for memory that work which runs behind uses (fsdp__allocator_runs_behind). `queued` gives
     * the number of the last work that was queued, which may still use what is given back now; `done`, the number up to
     * which all has been done, so that memory can be returned; `settle` waits for what was queued before. The allocator
     * can be used meanwhile. [blocks] */
    uint64_t (*queued)(void *arg);
    uint64_t (*done)(void *arg);
    void (*settle)(void *arg);
    fsdp__taker (*taker)(void *arg); /* optional: who takes memory now */
} fsdp__segment_source;

fsdp_status fsdp__allocator_create(const fsdp__segment_source *source, fsdp__allocator **out);
/* Tells the allocator that work queued earlier still uses blocks that were given back: sanitizers must not forbid
 * that. */
void fsdp__allocator_runs_behind(fsdp__allocator *allocator);
/* Returns all segments. Blocks that are still live go with them. NULL is allowed. */
void fsdp__allocator_free(fsdp__allocator *allocator);

fsdp_status fsdp__allocator_take(fsdp__allocator *allocator, size_t bytes, fsdp_memory_kind kind, void **out);
/* Gives a block back. Returns false, and does nothing, when `pointer` is not a live block. */
bool fsdp__allocator_give(fsdp__allocator *allocator, void *pointer);
/* Returns to the backend what is unused, and what no work uses any more, for memory that is not taken from here. Waits
 * for no work that is queued. Returns whether there was any. */
bool fsdp__allocator_shrink(fsdp__allocator *allocator);
/* Puts what was asked for, and what is held, before the message of a request that has failed; returns the status. */
fsdp_status fsdp__allocator_refuse(fsdp__allocator *allocator, fsdp_status status, size_t bytes, fsdp_memory_kind kind);
/* Calls `visit`, which must not use the allocator, for every live block, and for every sum of memory from elsewhere. */
void fsdp__allocator_each(fsdp__allocator *allocator, void (*visit)(void *arg, const fsdp__owned *owned), void *arg);
/* Returns who has taken a live block; nobody when `pointer` is none. */
const void *fsdp__allocator_owner(fsdp__allocator *allocator, const void *pointer);
/* Gives a live block another owner. */
void fsdp__allocator_set_owner(fsdp__allocator *allocator, const void *pointer, const void *owner);
/* Returns whether [pointer, pointer + bytes) lies in one live block. */
bool fsdp__allocator_covers(fsdp__allocator *allocator, const void *pointer, size_t bytes);
/* Counts a live block under `kind` from now on. Returns its bytes, with the kind before; 0, and does nothing, when
 * `pointer` is no live block. */
size_t fsdp__allocator_recount(fsdp__allocator *allocator, const void *pointer, fsdp_memory_kind kind,
                               fsdp_memory_kind *before);
/* Counts memory from elsewhere as that of `owner`. Returns by how many bytes the count has changed. */
int64_t fsdp__allocator_account(fsdp__allocator *allocator, const void *owner, fsdp_memory_kind kind,
                                int64_t delta_bytes, bool shared);

void fsdp__allocator_stats(fsdp__allocator *allocator, fsdp_memory_stats *out);
void fsdp__allocator_reset_peak(fsdp__allocator *allocator);

#endif
