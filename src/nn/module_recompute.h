/* module_recompute.h - runs a module's forward as a recomputed function. */
#pragma once

#include "nn/module.h"

/* Does what fsdp__forward_run does, for a module with fsdp_module_set_recompute, between its hooks. */
fsdp_status fsdp__module_recomputed(const fsdp__forward *forward, fsdp_module *module, fsdp_tensor *const *inputs,
                                    int count, fsdp_tensor **outputs, int output_count);
