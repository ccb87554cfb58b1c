/* custom.h - moves the bytes of a collective: by the library, or by a function that the caller has written. For that
 * function the buffers are packed, and the result is unpacked. A part is what one rank has of all buffers, one after
 * the other. */
#pragma once

#include "shard/group/comm_context.h"

/* Gathers on the gathers' stream: by the function of the caller's, if there is one (`custom->run`) and there are other
 * ranks, otherwise by the library. `*packed` may become memory that this work uses: whoever calls keeps it until that
 * is done, also after a failure. [collective] [stream] */
fsdp_status fsdp__all_gather(const fsdp_custom_collective *custom, fsdp__comm_context *comm, fsdp_process_group *pg,
                             const fsdp_sharded_buffer *buffers, int64_t count, fsdp__region **packed);
/* Reduces by the caller's function, with one call for all buffers of one reduce dtype. A rank that has no gradient for
 * a buffer contributes zeros. `*packed` is as above. */
fsdp_status fsdp__custom_reduce_scatter(const fsdp_custom_collective *custom, fsdp__comm_context *comm,
                                        fsdp_process_group *pg, const fsdp_sharded_buffer *buffers, int64_t count,
                                        const fsdp_reduce_options *options, fsdp_stream *stream, fsdp__region **packed);
