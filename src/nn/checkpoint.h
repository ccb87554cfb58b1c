/* checkpoint.h - a module's forward as a checkpoint. */
#ifndef NN_CHECKPOINT_H
#define NN_CHECKPOINT_H

#include "nn/module.h"

/* `function` of a module with fsdp_module_set_checkpoint, between its hooks. */
fsdp_tensor *fsdp__module_checkpointed(fsdp_module *module, fsdp_module_function function, fsdp_tensor *const *inputs,
                                       int count);

#endif
