/* reduce.h - from unsharded gradients on each rank to each rank's part of their sum. */
#ifndef SHARD_REDUCE_H
#define SHARD_REDUCE_H

#include "shard/reduction.h"

/* Sums the unsharded gradients over the ranks, divided, into the shards' gradients; without all_reduce inside the
 * replica only, into partial gradients, which the next call with it completes. `*reduced`: whether there was anything
 * to do. [collective] */
fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                     const fsdp__reduce_settings *settings, bool *reduced);

#endif
