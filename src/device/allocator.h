/* allocator.h - the ledger: hands out blocks of a backend's segments and counts every byte under its kind.
 *
 * Blocks are reused, and not given back while the device lives, except when the backend has nothing left: then segments
 * without a live block are returned, and of those that grow their holes, before the request is tried once more. Where
 * segments grow, the same happens before a first step makes what outlives it, to what places leave unused, and before
 * far more is mapped than has ever lived at once. What lies free for requests of another kind, and cannot go back
 * alone, serves a request that would fail otherwise.
 *
 * [Note: what is leaving]
 * A device may still use what was given back, and the host does not wait for that in a step. What is to be returned is
 * out of use at once, and is returned in a later request, when the device is known to have got far enough. A request
 * that finds no free block takes it back before that, where the least is to be mapped for it. The host waits only where
 * a request would fail otherwise, and holds no lock meanwhile. So how far a device is decides where such a request
 * lies; without a device that runs behind, the same sequence of calls always makes the same decisions, wherever the
 * segments happen to lie.
 *
 * All functions are thread-safe. */
#pragma once

#include "device/segment_source.h"

typedef struct fsdp__allocator fsdp__allocator;

fsdp_status fsdp__allocator_create(const fsdp__segment_source *source, fsdp__allocator **out);
/* Tells the allocator that work queued earlier still uses blocks that were given back: sanitizers must not forbid
 * that. */
void fsdp__allocator_runs_behind(fsdp__allocator *allocator);
/* Returns all segments. Blocks that are still live go with them. NULL is allowed. */
void fsdp__allocator_free(fsdp__allocator *allocator);

fsdp_status fsdp__allocator_take(fsdp__allocator *allocator, size_t bytes, fsdp_memory_kind kind, void **out);
/* Gives a block back. Returns false, and does nothing, when `pointer` is not a live block. */
bool fsdp__allocator_give(fsdp__allocator *allocator, void *pointer);
/* Mark steps of training (device/steps.h): where segments grow, a step that asks for the same as one before gets the
 * places that were chosen for it ([Note: places of a step]). */
fsdp_status fsdp__allocator_note_forward(fsdp__allocator *allocator);
fsdp_status fsdp__allocator_renew(fsdp__allocator *allocator, const void *owner, fsdp_memory_kind kind);
void fsdp__allocator_end_step(fsdp__allocator *allocator);
/* Returns to the backend what is unused, and what no work uses any more, for memory that is not taken from here, and is
 * needed: it waits for what was issued to the device, and for no work that is queued. Returns whether there was any. */
bool fsdp__allocator_shrink(fsdp__allocator *allocator);
/* Waits for what was queued first, and for scratch that streams have given back, where that may bring memory; returns
 * whether it may. Not for work of a stream, which may be what is waited for. [blocks] */
bool fsdp__allocator_settle(fsdp__allocator *allocator);
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
