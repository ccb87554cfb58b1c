/* bucket_order.h - reduces the gradients of a replicated group bucket by bucket. Buckets are sent in their order while
 * a backward goes on; those that have not been sent by its end are sent then. */
#pragma once

#include "shard/reduce/buckets.h"
#include "shard/reduce/reduction.h"

/* Tells the buckets that a backward has come to the group's modules. If it reduces, parameters that it does not use are
 * not waited for. A second call in the same backward does nothing. `settings` NULL: it does not
 * reduce. [collective] */
fsdp_status fsdp__buckets_begin_backward(fsdp__param_group *group, fsdp__comm_context *comm,
                                         const fsdp__reduce_settings *settings);
/* Sends all buckets that have not been sent yet, and settles the gradients of parameters that this rank did not use.
 * Without all_reduce in `settings` it sends none, and gradients stay on this rank, unless there is only one replica.
 * `*reduced` says whether there was anything to do. [collective] */
fsdp_status fsdp__buckets_reduce(fsdp__param_group *group, fsdp__comm_context *comm,
                                 const fsdp__reduce_settings *settings, bool *reduced);
