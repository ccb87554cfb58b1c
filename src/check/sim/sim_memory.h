/* sim_memory.h - the memory of the simulated device that kernels may reach: [Note: two mappings] in sim_device.c. */
#pragma once

#include <pthread.h>

#include "device/impl.h"

/* Describes memory that kernels reach. */
typedef struct fsdp__sim_range {
    struct fsdp__sim_range *next;
    unsigned char *address, *mapped; /* what pointers have, and what kernels use; equal for host memory */
    size_t bytes;
} fsdp__sim_range;

typedef struct fsdp__sim_state {
    pthread_mutex_t mutex;
    fsdp__sim_range *ranges; /* guarded by the mutex */
    uint64_t seed;
    _Atomic uint64_t pauses; /* how many were drawn */
} fsdp__sim_state;

fsdp_status fsdp__sim_range_add(fsdp_device *device, void *address, void *mapped, size_t bytes);
/* Removes a range. Returns where it was mapped, or NULL if there was none. */
void *fsdp__sim_range_remove(fsdp_device *device, const void *address);
/* Returns where a kernel finds all of [pointer, pointer + bytes): in the second mapping for device memory, at the
 * address itself for host memory that was registered. NULL: it is neither. [thread-safe] */
void *fsdp__sim_translate(const fsdp_device *device, const void *pointer, size_t bytes);
/* Does the same for work of the stream that runs now, which may also use the stream's scratch. */
void *fsdp__sim_reach(const fsdp_stream *stream, const void *pointer, size_t bytes);
