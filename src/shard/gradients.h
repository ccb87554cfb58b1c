/* gradients.h - unsharded gradients of a group until they are reduced: their memory, and what callers do to the leaves.
 */
#ifndef SHARD_GRADIENTS_H
#define SHARD_GRADIENTS_H

#include "shard/group.h"

/* Makes the param's two tensors leaves whose fate the engine hears of; the second once there is one, which also gets
 * the source of its gradient. */
fsdp_status fsdp__param_own_sharded(fsdp__param *param);
fsdp_status fsdp__param_own_unsharded(fsdp__param *param);
/* One that is written back is frozen, and loses its gradient, as its shard does. */
fsdp_status fsdp__param_own_summoned(fsdp__param *param);
void fsdp__param_disown_summoned(fsdp__param *param);
/* The tensors may outlive the group in an optimizer, a graph, or the caller's hands. */
void fsdp__param_disown(fsdp__param *param);
/* The same for a flat group's one parameter. */
fsdp_status fsdp__flat_parameter_own(fsdp__param_group *group);
void fsdp__flat_parameter_disown(fsdp__param_group *group);
/* The param whose shard, or unsharded tensor, this is; NULL when no group took it. */
fsdp__param *fsdp__param_of(const fsdp_tensor *tensor);

/* The unsharded gradient to reduce, NULL when the parameter has none. */
fsdp_tensor *fsdp__param_unreduced(const fsdp__param *param);
/* This rank has a gradient, or takes part for the sake of those that may have one. */
bool fsdp__param_is_due(const fsdp__param *param);
/* A gradient of the shard that the caller has set may lie in strides, and what is added to it does not. */
fsdp_status fsdp__param_make_grad_contiguous(fsdp__param *param);
/* Gradients of this backward stay unsharded on this rank until a later one is reduced. */
fsdp_status fsdp__param_group_keep_gradients(fsdp__param_group *group);
/* Where gradients add up in another dtype than they are computed in, they are added to those accumulated in it. */
fsdp_status fsdp__param_group_fold_gradients(fsdp__param_group *group);
/* Of a flat group: the vector that is reduced, with zeros where a parameter has no gradient; NULL where none has one.
 * Accumulated ones are folded. The caller owns `*out`. */
fsdp_status fsdp__param_group_flat_gradient(fsdp__param_group *group, fsdp_tensor **out);
/* Forgets unsharded gradients that were not reduced. */
void fsdp__param_group_drop_gradients(fsdp__param_group *group);
/* Later gradients get memory of their own: what is in the buffers now belongs to those who hold it. */
void fsdp__param_group_leave_gradient_buffers(fsdp__param_group *group);

#endif
