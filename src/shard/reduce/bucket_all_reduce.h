/* bucket_all_reduce.h - sends one bucket of gradients. */
#pragma once

#include "shard/reduce/buckets.h"
#include "shard/reduce/reduction.h"

/* Averages the bucket's gradients over all ranks, into the gradients of its parameters. Where this rank has no gradient
 * it sends -0, and the result is a late one (buckets.h). [collective] */
fsdp_status fsdp__bucket_all_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                    const fsdp__reduce_settings *settings, int64_t index);
