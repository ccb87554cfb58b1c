/* methods.h - what all methods of a sharded module begin with. */
#ifndef SHARD_METHODS_H
#define SHARD_METHODS_H

#include "shard/root.h"

/* The state of `module`; FSDP_STATE when it was not given to a front door. */
fsdp_status fsdp__method_state(fsdp_module *module, fsdp__module_state **out);

#endif
