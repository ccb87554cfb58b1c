/* arena_coalesced.h - the coalesced collectives, as slots of a transport's table. */
#ifndef COMM_ARENA_ARENA_COALESCED_H
#define COMM_ARENA_ARENA_COALESCED_H

#include "comm/comm_ops.h"

fsdp_status fsdp__symmetric_all_gather_coalesced(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_reduce_scatter_coalesced(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

#endif
