/* prefetch.h - gathers ahead of use (prefetch): by default the state that a backward comes to next, otherwise those
 * that the caller listed (FSDP2's set_modules_to_forward_prefetch and ..._backward_prefetch). This is scheduling only:
 * a gather that turns out not to be needed is given up at the end of the forward or the backward. */
#pragma once

#include "shard/state/root.h"

/* Replaces a list of `whose` by the states of `modules`, and holds those. On failure the list stays as it was. */
fsdp_status fsdp__prefetch_set(const fsdp__module_state *whose, fsdp__prefetch_list *list, fsdp_module *const *modules,
                               int count);
/* Clears both lists of a state whose modules are gone; otherwise states could hold each other for ever. */
void fsdp__prefetch_forget(fsdp__module_state *state);
/* Returns whether all listed states are in root->states. */
bool fsdp__prefetch_is_within(const fsdp__module_state *state, const fsdp__root *root);

/* Gathers what comes next. Call these once the parameters of `state` are there for the forward, or for the backward.
 * [collective] */
fsdp_status fsdp__prefetch_forward(fsdp__module_state *state);
fsdp_status fsdp__prefetch_backward(fsdp__module_state *state);
/* Does the same when a backward has left `state`, before its gradients are reduced. [collective] */
fsdp_status fsdp__prefetch_post_backward(fsdp__module_state *state);
