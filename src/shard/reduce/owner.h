/* owner.h - how a group learns of what callers do to its leaves: gradients that they set or drop, and what they freeze.
 */
#pragma once

#include "shard/group/param_group.h"

/* Make the param's two tensors leaves that report to the engine. The unsharded one, once it exists, also gets a source
 * for the memory of its gradient. */
fsdp_status fsdp__param_own_sharded(fsdp__param *param);
fsdp_status fsdp__param_own_unsharded(fsdp__param *param);
/* Does the same for a summoned tensor that is written back: when the caller freezes it or drops its gradient, the same
 * happens to the shard. */
fsdp_status fsdp__param_own_summoned(fsdp__param *param);
void fsdp__param_disown_summoned(fsdp__param *param);
/* Detaches the param from its tensors, which may outlive the group in an optimizer, a graph, or the caller's hands. */
void fsdp__param_disown(fsdp__param *param);
/* Do the same for a flat group's one parameter. */
fsdp_status fsdp__flat_parameter_own(fsdp__param_group *group);
void fsdp__flat_parameter_disown(fsdp__param_group *group);
/* Returns the param whose shard or unsharded tensor this is; NULL if no group took it. */
fsdp__param *fsdp__param_of(const fsdp_tensor *tensor);
