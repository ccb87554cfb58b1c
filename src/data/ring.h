/* ring.h - batches that are made ahead by worker threads, or in the caller's thread if there are none.
 *
 * Batch n goes to slot n modulo the number of slots, and may be begun once the batch that used the slot before has been
 * given back. Which worker makes which batch does not matter, so the batches are the same for any number of workers,
 * and a failure comes out at the batch it belongs to. */
#pragma once

#include <stdint.h>

#include "fsdp/context.h"

typedef struct fsdp__ring fsdp__ring;

/* Makes batch `number` in the memory of `slot`. `thread`, from 0, is one of max(workers, 1). */
typedef fsdp_status fsdp__ring_maker(void *arg, int64_t number, int slot, int thread);

/* Returns how many slots a ring has. */
int fsdp__ring_slots(int workers);
/* Starts the workers, which wait for fsdp__ring_begin. `owner` is for messages; `context` is told of each batch
 * (base/probe.h), unless it is NULL. */
fsdp_status fsdp__ring_create(const fsdp_context *context, const char *owner, int workers, fsdp__ring_maker *make,
                              void *arg, fsdp__ring **out);
void fsdp__ring_free(fsdp__ring *ring);

/* Lets batches [0, limit) be made, in a new or an ended ring. */
void fsdp__ring_begin(fsdp__ring *ring, int64_t limit);
/* Returns once no worker makes a batch; the slots and what the maker reads are the caller's until the next begin. */
void fsdp__ring_end(fsdp__ring *ring);
/* Gives back the slot of the batch before, and returns that of the next one, which must be below the limit, once the
 * batch is made. A batch that failed fails again at every call until the end. [blocks] */
fsdp_status fsdp__ring_next(fsdp__ring *ring, int *out_slot);
/* Returns how many batches fsdp__ring_next has returned since the ring began. */
int64_t fsdp__ring_taken(const fsdp__ring *ring);
