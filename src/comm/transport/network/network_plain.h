/* network_plain.h - the collectives over contiguous parts, for a group over machines. */
#ifndef COMM_NETWORK_NETWORK_PLAIN_H
#define COMM_NETWORK_NETWORK_PLAIN_H

#include "comm/transport/network/meeting.h"

/* Slots of the transport's table. */
fsdp_status fsdp__network_all_gather(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_reduce_scatter(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_all_reduce(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_broadcast(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_all_to_all(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__network_barrier(void *group, const fsdp__call *, fsdp__traffic *);

#endif
