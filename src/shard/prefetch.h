/* prefetch.h - gathers ahead of their use: by default the state that a backward comes to next, else those that the
 * caller listed (FSDP2's set_modules_to_forward_prefetch and ..._backward_prefetch). Scheduling only: a gather that
 * turns out not to be needed is given up at the end of the forward or the backward. */
#ifndef SHARD_PREFETCH_H
#define SHARD_PREFETCH_H

#include "shard/root.h"

/* Replaces the list by the states of `modules`, which it holds; on failure it stays. `whose` has the list. */
fsdp_status fsdp__prefetch_set(const fsdp__module_state *whose, fsdp__prefetch_list *list, fsdp_module *const *modules,
                               int count);
/* Both lists of a state: whose modules are gone lists nobody, or states could hold each other for ever. */
void fsdp__prefetch_forget(fsdp__module_state *state);
/* Whether all listed states are in root->states. */
bool fsdp__prefetch_is_within(const fsdp__module_state *state, const fsdp__root *root);

/* The parameters of `state` are there for the forward, or the backward: what is gathered next. [collective] */
fsdp_status fsdp__prefetch_forward(fsdp__module_state *state);
fsdp_status fsdp__prefetch_backward(fsdp__module_state *state);
/* A backward has left `state`, and its gradients are not reduced yet. [collective] */
fsdp_status fsdp__prefetch_post_backward(fsdp__module_state *state);

#endif
