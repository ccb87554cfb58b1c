/* methods.h - finds a sharded module's state, which is how every method begins. */
#ifndef SHARD_STATE_METHODS_H
#define SHARD_STATE_METHODS_H

#include "shard/state/root.h"

/* Gives the state of `module`; FSDP_STATE if the module was not given to a front door. */
fsdp_status fsdp__method_state(fsdp_module *module, fsdp__module_state **out);

#endif
