/* gradients.h - the unsharded gradients of a group until they are reduced, and their memory. */
#pragma once

#include "shard/group/param_group.h"

/* Makes a new gradient of the shard `like` a distributed tensor as that is; after a failure it is gone, and `*gradient`
 * NULL. */
fsdp_status fsdp__distribute_like(const fsdp_tensor *like, fsdp_tensor **gradient);
/* Returns the dtype that the parameter's gradients are computed in. Where nobody else adds to them, on a device that
 * does so as fast, that is the dtype of the shard: they are its gradients as they are. */
fsdp_dtype fsdp__param_grad_dtype(const fsdp__param *param);
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
/* Gives the memory of an unsharded parameter's first gradient in a backward: it lies where the reduction reads it. */
fsdp_status fsdp__param_gradient_source(void *param, fsdp_tensor *leaf, fsdp_tensor **out);
/* Drop unsharded gradients that were not reduced: of a parameter, or of all. */
void fsdp__param_drop_gradients(fsdp__param *param);
void fsdp__param_group_drop_gradients(fsdp__param_group *group);
/* Detaches the group from its gradient buffers: later gradients get new memory, and what is in the buffers now belongs
 * to those who hold it. */
void fsdp__param_group_leave_gradient_buffers(fsdp__param_group *group);
