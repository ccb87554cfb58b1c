/* bucket_all_reduce.h - sends one bucket of gradients. */
#ifndef SHARD_REDUCE_BUCKET_ALL_REDUCE_H
#define SHARD_REDUCE_BUCKET_ALL_REDUCE_H

#include "shard/reduce/buckets.h"
#include "shard/reduce/reduction.h"

/* Averages the bucket's gradients over all ranks, into the gradients of its parameters. Where this rank has no gradient
 * it sends -0, and the result is a late one (buckets.h). [collective] */
fsdp_status fsdp__bucket_all_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                    const fsdp__reduce_settings *settings, int64_t index);

#endif
