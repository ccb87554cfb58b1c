/* network_memory.h - memory that the ranks of each machine share, in a group over machines. */
#ifndef COMM_NETWORK_NETWORK_MEMORY_H
#define COMM_NETWORK_NETWORK_MEMORY_H

#include "comm/transport/network/meeting.h"

/* Slots of the transport's table. */
fsdp_status fsdp__network_alloc(void *transport, size_t bytes, void **out);
void fsdp__network_free(void *transport, void *pointer);
fsdp_status fsdp__network_alloc_shared(void *group, const fsdp__call *call, fsdp__traffic *traffic, void **out);
void fsdp__network_free_shared(void *group, void *pointer);

#endif
