/* forward.h - the schedule: runs a state as hooks on its modules (here), and in the graph (backward.h).
 *
 *     pre_forward    gather and wait; mark where the backward leaves this module again
 *     post_forward   reshard; remember the order; watch for the gradient of the output
 *     pre_backward   gather and wait; gather the one that comes next
 *     post_backward  reshard; reduce the gradients
 *     end of backward: post_backward for states that it missed (inputs without gradient, the root), and the rest */
#pragma once

#include "shard/state/root.h"

/* Hooks of a module: see nn/module.h. */
fsdp_status fsdp__hook_pre_forward(void *state, fsdp_module *module, fsdp_tensor **inputs, int count);
fsdp_status fsdp__hook_post_forward(void *state, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                    fsdp_tensor **outputs, int output_count);
void fsdp__hook_failed(void *state, fsdp_module *module);
