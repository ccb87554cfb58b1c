/* low_gradients.h - gradients of shards that rest in another dtype than their shards (FSDP1's
 * keep_low_precision_grads), from the end of a backward to the next reduction. That reduction adds to them in the dtype
 * of the shards again, as PyTorch does. For flat groups only. */
#pragma once

#include "shard/group/param_group.h"

/* Converts the gradients to the dtype of the shards, before something is added to them. This call and the next do
 * nothing if no such dtype was asked for. */
fsdp_status fsdp__param_group_raise_gradients(fsdp__param_group *group);
/* Converts the gradients to the dtype they rest in. All reductions must have landed. */
fsdp_status fsdp__param_group_lower_gradients(fsdp__param_group *group);
