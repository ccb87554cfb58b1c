/* slice.h - what each rank keeps of a gathered group from the end of a forward to the next use, if
 * reshard_after_forward is a number k: 1/k of the gathered bytes. k consecutive ranks of the shard group gather those
 * again (ZeRO++'s hpZ, FSDP2's sharded_post_forward_param).
 *
 * A slice is cut by bytes, not by rows: it is part i of k of every unsharded parameter, padded as for the gather. In
 * IN_PLACE and CAST all bytes stay where they are, on each machine, in memory that ranks share and that nobody writes
 * before all slices are given up; only the ledger counts a k-th. In COPY the slice has a region of its own. */
#pragma once

#include "shard/group/residence.h"

typedef struct fsdp__slice {
    fsdp_process_group *pg; /* the k ranks; NULL: no slices. Owned by the context */
    int ranks, rank;        /* of `pg` */
    bool kept;
    fsdp__region *region; /* COPY: while it is kept */
    fsdp_event *made;     /* COPY: event on the device's stream */
} fsdp__slice;

/* Sets up slices over k ranks of the group's shard group, 1 < k < its ranks. [collective] of the world, the first time
 * for a mesh and k */
fsdp_status fsdp__slice_open(struct fsdp__param_group *group, int k);
void fsdp__slice_close(fsdp__slice *slice);
/* Keeps the slice of parameters that are unsharded now. The next gather is made from the ranks' slices
 * (fsdp__gather_slices); in IN_PLACE and CAST it is only a barrier. */
fsdp_status fsdp__slice_keep(struct fsdp__param_group *group);
/* Drops the slice. Idempotent. Its memory is freed in the order of the device's stream. */
void fsdp__slice_drop(struct fsdp__param_group *group);
