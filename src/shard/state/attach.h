/* attach.h - attaches a state to its modules: what every front door does once it has chosen the parameters. */
#pragma once

#include "shard/state/root.h"

/* Checks that the groups can keep the slices that reshard_after_forward_ranks asks for. */
fsdp_status fsdp__module_state_check_slices(const fsdp__module_state *state);
/* Hooks the state's modules, turns the parameters of its groups into shards, and gives the groups memory unless the
 * parameters are on the meta device. On failure nothing has changed. [collective] */
fsdp_status fsdp__module_state_attach(fsdp__module_state *state);
/* Returns whether `module` is a module of the state or lies below one. */
bool fsdp__module_state_reaches(const fsdp__module_state *state, const fsdp_module *module);
