/* plain_shares.h - shares of a plain reduction: some ranks of a group, its sharers, add up one share each. */
#ifndef COMM_NETWORK_PLAIN_SHARES_H
#define COMM_NETWORK_PLAIN_SHARES_H

#include "comm/transport/network/plain_run.h"
#include "device/kernels.h"

/* The `count` ranks first, first + stride, ... of the group; this rank is the one at `place`. */
typedef struct fsdp__sharers {
    int first, stride, count, place;
} fsdp__sharers;

/* Some elements of a buffer. */
typedef struct fsdp__share {
    char *data;
    int64_t count;
} fsdp__share;

/* Computes `dst`: the reduction `how` (op, divisor, block) of this rank's share over the sharers, in their order.
 * `shares` are this rank's contributions, by place. A meeting that is due, or on its way, ends meanwhile, and the
 * call's flags are exchanged. */
fsdp_status fsdp__shares_reduce(fsdp__plain_run *run, const fsdp__sharers *sharers, const fsdp__share *shares,
                                fsdp__reduce_ranks_args how, void *dst);
/* Gathers the shares: each sharer has its own, and gets the others'. */
fsdp_status fsdp__shares_gather(fsdp__plain_run *run, const fsdp__sharers *sharers, const fsdp__share *shares);

#endif
