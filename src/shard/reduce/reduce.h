/* reduce.h - reduces unsharded gradients on each rank to each rank's part of their sum. */
#pragma once

#include "shard/reduce/reduction.h"

/* Sums the unsharded gradients over the ranks, divides them, and puts them into the shards' gradients. Without
 * all_reduce it sums inside the replica only, into partial gradients; the next call with all_reduce completes those.
 * `*reduced` says whether there was anything to do. [collective] */
fsdp_status fsdp__param_group_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                     const fsdp__reduce_settings *settings, bool *reduced);
