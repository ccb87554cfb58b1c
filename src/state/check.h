/* check.h - checks on state dicts before tensors are communicated, and where the tensors are put. */
#pragma once

#include "fsdp/state.h"

/* Gives all ranks of the context of a state dict, or of the `other` one if that is not NULL. */
fsdp_status fsdp__state_dict_world(const fsdp_state_dict *state, const fsdp_state_dict *other, const char *what,
                                   fsdp_process_group **out);
/* Mixes in an entry's name, its shape, and how it is cut, which are the same on all ranks. */
uint64_t fsdp__entry_hash(uint64_t hash, const fsdp_state_dict_entry *entry);
/* Checks, before anybody gathers, that all ranks have the same tensors in the same order. [collective] */
fsdp_status fsdp__state_dict_check_same(const fsdp_state_dict *state, fsdp_process_group *world);
/* Returns FSDP_STATE if entries are on the meta device; the message says that it cannot `what` them. */
fsdp_status fsdp__state_dict_check_values(const fsdp_state_dict *state, const char *what);
/* Returns FSDP_STATE if tensors were sharded, or cut in another way, after they were added; the message says that it
 * cannot `what` them. */
fsdp_status fsdp__state_dict_check_current(const fsdp_state_dict *state, const char *what);
/* Adds a copy of `name` at the end of one of the two lists of keys. */
fsdp_status fsdp__state_dict_keys_add(char ***names, int64_t *count, const char *name);
/* Gives the tensor's bytes in the host's memory; `*out` is the tensor itself if it is there already, else a plain
 * tensor. */
fsdp_status fsdp__tensor_to_host(fsdp_tensor *tensor, fsdp_tensor **out);
/* Adds the tensor to `out`, or with `offload` the same part in the host's memory. */
fsdp_status fsdp__state_dict_add_to(fsdp_state_dict *out, const char *name, fsdp_tensor *tensor, bool offload);
