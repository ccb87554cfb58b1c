/* reduce.h - from unsharded gradients on each rank to each rank's part of their sum. */
#ifndef SHARD_REDUCE_H
#define SHARD_REDUCE_H

#include "shard/gradients.h"

/* Sums the unsharded gradients over the ranks into the shards' gradients, divided by `divide_factor` (0: by the number
 * of ranks). `*reduced`: whether there were any. [collective] */
fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm, float divide_factor,
                                     bool *reduced);

#endif
