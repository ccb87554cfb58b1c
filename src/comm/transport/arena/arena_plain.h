/* arena_plain.h - the collectives over contiguous buffers, as slots of a transport's table. */
#ifndef COMM_ARENA_ARENA_PLAIN_H
#define COMM_ARENA_ARENA_PLAIN_H

#include "comm/comm_ops.h"

fsdp_status fsdp__symmetric_all_gather(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_reduce_scatter(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_all_reduce(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_broadcast(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_all_to_all(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_barrier(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

#endif
