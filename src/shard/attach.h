/* attach.h - a state takes hold of its modules: what every front door does once it has chosen the parameters. */
#ifndef SHARD_ATTACH_H
#define SHARD_ATTACH_H

#include "shard/root.h"

/* Whether the groups can keep what reshard_after_forward_ranks says. */
fsdp_status fsdp__module_state_check_slices(const fsdp__module_state *state);
/* Hooks the state's modules, turns the parameters of its groups into shards, and gives them memory if they have bytes.
 * On failure nothing has changed. [collective] */
fsdp_status fsdp__module_state_attach(fsdp__module_state *state);
/* Whether a module of the state is `module` or has it below. */
bool fsdp__module_state_reaches(const fsdp__module_state *state, const fsdp_module *module);

#endif
