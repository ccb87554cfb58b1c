/* reduce.h - from unsharded gradients on each rank to each rank's part of their sum. */
#ifndef SHARD_REDUCE_H
#define SHARD_REDUCE_H

#include "shard/gradients.h"

/* What the caller has set. */
typedef struct fsdp__reduce_settings {
    bool all_reduce;           /* over the replicas, too; where there are any */
    bool force_sum;            /* never average on the wire */
    float divide_factor;       /* 0: all ranks of the mesh */
    fsdp_all_reduce_hook hook; /* NULL: none */
    void *hook_arg;
    fsdp_post_accumulate_grad_hook landed; /* NULL: nobody is told */
    void *landed_arg;
} fsdp__reduce_settings;

/* Sums the unsharded gradients over the ranks, divided, into the shards' gradients; without all_reduce inside the
 * replica only, into partial gradients, which the next call with it completes. `*reduced`: whether there was anything
 * to do. [collective] */
fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                     const fsdp__reduce_settings *settings, bool *reduced);

#endif
