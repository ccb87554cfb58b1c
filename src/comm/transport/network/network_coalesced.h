/* network_coalesced.h - the collectives of sharded parameters, for a group over machines. */
#ifndef COMM_NETWORK_NETWORK_COALESCED_H
#define COMM_NETWORK_NETWORK_COALESCED_H

#include "comm/transport/network/meeting.h"

/* Slots of the transport's table. */
fsdp_status fsdp__network_all_gather_coalesced(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_reduce_scatter_coalesced(void *group, const fsdp__call *, fsdp__traffic *);
void fsdp__network_give_back(void *group, const fsdp_sharded_buffer *buffer);

/* What a world that is not on paper does in a reduction: see fsdp__world_acts. */
fsdp_status fsdp__network_show(fsdp__network_group *group, const fsdp__call *, fsdp__traffic *, bool *visible);
bool fsdp__network_adds(const fsdp__network_group *group, const fsdp__call *, int local, int64_t i);

#endif
