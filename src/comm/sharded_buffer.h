/* sharded_buffer.h - what all ways of running a coalesced call have in common: whose rows lie where, and the copies and
 * sums that the call is made of. All of them are kernels of the stream: no pointer to device memory is followed here.
 */
#ifndef COMM_SHARDED_BUFFER_H
#define COMM_SHARDED_BUFFER_H

#include "comm/comm_ops.h"
#include "device/kernels.h"

enum {
    FSDP__COPIES = 64 /* that a kernel launch takes */
};

/* Rows of the buffer that group rank `rank` owns. */
int64_t fsdp__sharded_buffer_rows(const fsdp_sharded_buffer *buffer, int rank);
/* The address of element `index`. */
char *fsdp__place(const void *base, int64_t index, fsdp_dtype dtype);

/* Copies with conversion, launched many at a time. */
typedef struct fsdp__copies {
    fsdp_stream *stream;
    fsdp__traffic *traffic; /* the bytes written are added to it */
    fsdp_dtype src_dtype, dst_dtype;
    int64_t count;
    fsdp__span spans[FSDP__COPIES];
} fsdp__copies;

/* Nothing to do for no elements, or for a place onto itself. */
fsdp_status fsdp__copies_add(fsdp__copies *copies, void *dst, const void *src, int64_t numel);
/* Launches what has been added and not been launched yet. */
fsdp_status fsdp__copies_flush(fsdp__copies *copies);

/* dst (+)= the sum of `count` contributions in that order, divided as `call`, a reduce_scatter_coalesced, asks for. */
fsdp_status fsdp__sum_rows(const fsdp__call *call, fsdp_stream *stream, const void *const *srcs, int count,
                           fsdp_dtype src_dtype, void *dst, int64_t numel);

#endif
