/* vectored.h - the vectored collectives of a transport that has none of its own: packed.h over its plain all_gather and
 * all_to_all. */
#ifndef COMM_VECTORED_H
#define COMM_VECTORED_H

#include "comm/comm_ops.h"

/* `group` is the fsdp_process_group. Pieces lie in the stream's workspace, of a few MiB however many bytes are
 * exchanged. */
fsdp_status fsdp__vectored_all_gather_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);
fsdp_status fsdp__vectored_reduce_scatter_blocks(void *group, const fsdp__call *, fsdp_stream *, fsdp__traffic *);

#endif
