/* blocks.h - the vectored collectives, as slots of a transport. */
#ifndef COMM_SYMMETRIC_BLOCKS_H
#define COMM_SYMMETRIC_BLOCKS_H

#include "comm/comm_ops.h"

fsdp_status fsdp__symmetric_all_gather_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__symmetric_reduce_scatter_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

#endif
