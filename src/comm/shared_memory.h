/* shared_memory.h - which shared memory a context has, and where in it a gather's buffers lie: what the ranks compare,
 * as a region may have another address on each. */
#ifndef COMM_SHARED_MEMORY_H
#define COMM_SHARED_MEMORY_H

#include "comm/comm.h"

/* What was handed out as FSDP_MEMORY_SHARED and not given back. */
typedef struct fsdp__shared_memory {
    struct fsdp__shared_memory *next;
    const char *start;
    size_t bytes;
    uint64_t name; /* the same number on all ranks that have it, another for the next region */
} fsdp__shared_memory;

/* Without its place yet, so that what can fail is done before the ranks meet. */
fsdp__shared_memory *fsdp__shared_memory_new(void);
/* `sequence`: of the call of the group that made it. Takes the region. */
void fsdp__shared_memory_add(fsdp_process_group *group, fsdp__shared_memory *region, uint64_t sequence,
                             const void *start, size_t bytes);
/* Whether it was there. */
bool fsdp__shared_memory_remove(fsdp__comm *comm, const void *start);
void fsdp__shared_memory_free(fsdp__comm *comm);
/* Of a gather: call->shared and call->places. Returns the number of a buffer that begins in shared memory and reaches
 * beyond its end; -1: there is none. */
int64_t fsdp__shared_memory_find(const fsdp__comm *comm, fsdp__call *call);

#endif
