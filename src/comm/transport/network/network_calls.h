/* network_calls.h - the slots of the transport's table: collectives and memory, for a group over machines. */
#pragma once

#include "comm/transport/network/meeting.h"

/* ---- network_plain.c, plain_reduce.c ---- */

fsdp_status fsdp__network_all_gather(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_reduce_scatter(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_all_reduce(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_broadcast(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_all_to_all(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_barrier(void *group, const fsdp__call *, fsdp__traffic *);

/* ---- network_coalesced.c ---- */

fsdp_status fsdp__network_all_gather_coalesced(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_reduce_scatter_coalesced(void *group, const fsdp__call *, fsdp__traffic *);
void fsdp__network_give_back(void *group, const fsdp_sharded_buffer *buffer);
int fsdp__network_block(const void *group);

/* ---- network_memory.c: memory that the ranks of each machine share ---- */

extern const fsdp__memory_ops fsdp__network_memory;
