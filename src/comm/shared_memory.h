/* shared_memory.h - which shared memory a context has, and where in it a gather's buffers lie. The ranks compare these
 * places by region and offset, as a region may have another address on each. */
#pragma once

#include "comm/comm.h"

/* Describes a region that was handed out as FSDP_MEMORY_SHARED and not given back. */
typedef struct fsdp__shared_memory {
    struct fsdp__shared_memory *next;
    const char *start;
    size_t bytes;
    fsdp_device *device; /* in whose memory it lies; NULL: the host's */
    uint64_t name;       /* the same number on all ranks that have the region, another for the next region */
} fsdp__shared_memory;

/* Adds the region, which the call of the group has made, to the context's list. The list owns it from then on. */
void fsdp__shared_memory_add(fsdp_process_group *group, fsdp__shared_memory *region, const fsdp__call *call,
                             const void *start);
/* Removes the region that begins at `start`; returns whether there was one. */
bool fsdp__shared_memory_remove(fsdp__comm *comm, const void *start);
/* Returns the device in whose memory a region begins at `start`; NULL: there is none. */
fsdp_device *fsdp__shared_memory_device(const fsdp__comm *comm, const void *start);
void fsdp__shared_memory_free(fsdp__comm *comm);
/* Sets call->shared and call->places of a gather. Returns the index of a buffer that begins in shared memory and
 * reaches beyond its end; -1: there is none. */
int64_t fsdp__shared_memory_find(const fsdp__comm *comm, fsdp__call *call);
