/* low_gradients.h - gradients of shards that rest in another dtype than their shards have (FSDP1's
 * keep_low_precision_grads): from the end of a backward to the next reduction, which adds to them in that of the shards
 * again, as PyTorch does. Of flat groups. */
#ifndef SHARD_LOW_GRADIENTS_H
#define SHARD_LOW_GRADIENTS_H

#include "shard/group.h"

/* Before something is added to them: in the dtype of the shards. Both do nothing where nothing was asked for. */
fsdp_status fsdp__param_group_raise_gradients(fsdp__param_group *group);
/* Where they rest. All that was reduced has landed. */
fsdp_status fsdp__param_group_lower_gradients(fsdp__param_group *group);

#endif
