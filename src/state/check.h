/* check.h - what state dicts must have before tensors are communicated, and where these go. */
#ifndef STATE_CHECK_H
#define STATE_CHECK_H

#include "fsdp/state.h"

/* Of a state dict that has entries. */
fsdp_context *fsdp__state_dict_context(const fsdp_state_dict *state);
/* Before anybody gathers: which tensors, in which order. [collective] */
fsdp_status fsdp__state_dict_check_same(const fsdp_state_dict *state, fsdp_process_group *world);
/* FSDP_STATE, that it cannot `what` them, where entries are on the meta device. */
fsdp_status fsdp__state_dict_check_values(const fsdp_state_dict *state, const char *what);
/* Bytes in the host's memory; `*out` is the tensor itself where that is its device, else a plain one. */
fsdp_status fsdp__tensor_to_host(fsdp_tensor *tensor, fsdp_tensor **out);
/* Adds it, or with `offload` the same part in the host's memory. */
fsdp_status fsdp__state_dict_add_to(fsdp_state_dict *out, const char *name, fsdp_tensor *tensor, bool offload);

#endif
