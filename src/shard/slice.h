/* slice.h - what each rank keeps of a gathered group from the end of a forward to the next use, where
 * reshard_after_forward is a number k: 1/k of the gathered bytes, which k consecutive ranks of the shard group gather
 * again (ZeRO++'s hpZ, FSDP2's sharded_post_forward_param).
 *
 * A slice is of bytes, not of rows: part i of k of every unsharded parameter, padded as for the gather. IN_PLACE and
 * CAST the bytes stay where they are, all of them on each machine, in memory that ranks share and nobody writes before
 * all slices are given up; only the ledger counts a k-th. COPY has a region of its own. */
#ifndef SHARD_SLICE_H
#define SHARD_SLICE_H

#include "shard/param.h"
#include "shard/residence.h"

typedef struct fsdp__slice {
    fsdp_process_group *pg; /* the k ranks; NULL: nothing is ever kept. The context's */
    int ranks, rank;        /* of it */
    bool kept;
    fsdp__region *region; /* COPY: while it is kept */
    fsdp_event *made;     /* COPY: on the device's stream */
} fsdp__slice;

/* Slices over k ranks of the residence's shard group, 1 < k < its ranks. [collective] of the world, the first time for
 * a mesh and k */
fsdp_status fsdp__slice_open(fsdp__slice *slice, const fsdp__residence *residence, int k);
void fsdp__slice_close(fsdp__slice *slice);
/* Of parameters that are unsharded now. */
fsdp_status fsdp__slice_keep(fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                             int64_t count);
/* Idempotent. The memory goes in the order of the device's stream. */
void fsdp__slice_drop(fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params, int64_t count);
/* What a gather over slice->pg is given, so that the unsharded parameters, which have memory, come of the ranks'
 * slices: IN_PLACE and CAST a meeting, which moves nothing. `stream`, which the gather is to run on, waits for them.
 * [stream] */
fsdp_status fsdp__slice_buffers(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                                int64_t count, fsdp_stream *stream, fsdp_sharded_buffer *buffers);

#endif
