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
/* FSDP_STATE, that it cannot `what` them, where tensors were sharded, or cut otherwise, after they were added. */
fsdp_status fsdp__state_dict_check_current(const fsdp_state_dict *state, const char *what);
/* A copy of `name` at the end of one of the two lists of keys. */
fsdp_status fsdp__state_dict_keys_add(char ***names, int64_t *count, const char *name);
/* Bytes in the host's memory; `*out` is the tensor itself where that is its device, else a plain one. */
fsdp_status fsdp__tensor_to_host(fsdp_tensor *tensor, fsdp_tensor **out);
/* Adds it, or with `offload` the same part in the host's memory. */
fsdp_status fsdp__state_dict_add_to(fsdp_state_dict *out, const char *name, fsdp_tensor *tensor, bool offload);

#endif
