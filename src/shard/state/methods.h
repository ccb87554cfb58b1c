/* methods.h - finds a sharded module's state, which is how every method begins. */
#pragma once

#include "shard/state/root.h"

/* Gives the state of `module`; FSDP_STATE if the module was not given to a front door. */
fsdp_status fsdp__method_state(fsdp_module *module, fsdp__module_state **out);
/* Calls `visit` for the state of each module at and below `module` that has one, or without `recurse` of `module`
 * alone. A state of several modules is visited for each. */
fsdp_status fsdp__each_state(fsdp_module *module, bool recurse,
                             fsdp_status (*visit)(void *arg, fsdp__module_state *state), void *arg);
/* Checks a function of the caller's that is to take the place of a collective; NULL is none. */
fsdp_status fsdp__check_custom(const fsdp_custom_collective *collective);
/* Returns the failure of a call that is not for replicated modules. */
fsdp_status fsdp__fail_replicated(const fsdp__module_state *state, const char *instead);
