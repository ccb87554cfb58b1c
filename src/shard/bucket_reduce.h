/* bucket_reduce.h - the gradients of a replicated group, bucket by bucket: sent as a backward goes on, in the order of
 * the buckets; what has not been by its end then. */
#ifndef SHARD_BUCKET_REDUCE_H
#define SHARD_BUCKET_REDUCE_H

#include "shard/buckets.h"
#include "shard/reduction.h"

/* A backward that reduces has come to the group's modules: what it does not use need not be waited for. Again in the
 * same backward: nothing. [collective] */
fsdp_status fsdp__buckets_begin_backward(fsdp__param_group *group);
/* All buckets that have not been sent, or, without all_reduce, none: gradients stay on this rank. What was not used is
 * settled. `*reduced`: whether there was anything to do. [collective] */
fsdp_status fsdp__buckets_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                 const fsdp__reduce_settings *settings, bool *reduced);

#endif
