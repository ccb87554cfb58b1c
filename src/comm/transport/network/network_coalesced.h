/* network_coalesced.h - the collectives of sharded parameters, for a group over machines. */
#ifndef COMM_NETWORK_NETWORK_COALESCED_H
#define COMM_NETWORK_NETWORK_COALESCED_H

#include "comm/transport/network/meeting.h"

/* Slots of the transport's table. */
fsdp_status fsdp__network_all_gather_coalesced(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__network_reduce_scatter_coalesced(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
void fsdp__network_give_back(void *group, const fsdp_sharded_buffer *buffer);

#endif
