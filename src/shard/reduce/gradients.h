/* gradients.h - the unsharded gradients of a group until they are reduced: their memory, and how the group learns of
 * what callers do to the leaves. */
#ifndef SHARD_REDUCE_GRADIENTS_H
#define SHARD_REDUCE_GRADIENTS_H

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

/* Returns the unsharded gradient to reduce; NULL if the parameter has none. */
fsdp_tensor *fsdp__param_unreduced(const fsdp__param *param);
/* Returns whether the param takes part in the next reduction: this rank has a gradient of it, or another rank may have
 * one. */
bool fsdp__param_is_due(const fsdp__param *param);
/* Copies a gradient of the shard that the caller has set with strides to contiguous memory, since reductions add to
 * contiguous gradients. */
fsdp_status fsdp__param_make_grad_contiguous(fsdp__param *param);
/* Keeps the gradients of this backward unsharded on this rank until a later backward reduces them. */
fsdp_status fsdp__param_group_keep_gradients(fsdp__param_group *group);
/* Adds gradients to those accumulated in the reduce dtype, if that differs from the dtype they are computed in. */
fsdp_status fsdp__param_group_fold_gradients(fsdp__param_group *group);
/* Gives the vector of a flat group that is reduced, with zeros where a parameter has no gradient; NULL if none has one.
 * Accumulated gradients must have been folded. The caller owns `*out`. */
fsdp_status fsdp__param_group_flat_gradient(fsdp__param_group *group, fsdp_tensor **out);
/* Drops unsharded gradients that were not reduced. */
void fsdp__param_group_drop_gradients(fsdp__param_group *group);
/* Detaches the group from its gradient buffers: later gradients get new memory, and what is in the buffers now belongs
 * to those who hold it. */
void fsdp__param_group_leave_gradient_buffers(fsdp__param_group *group);

#endif
