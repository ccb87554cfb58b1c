/* explain/own.h - a model as a caller has it, with one tensor under two names and nothing that divides by the ranks:
 *
 *     Tied: table = Embedding(11,7)   up = Linear(7,13)   down = Linear(13,7)   head: table.weight */
#pragma once

#include "fsdp/explain.h"
#include "fsdp/ops.h"

enum {
    OWN_VOCABULARY = 11,
    OWN_DIM = 7
};

fsdp_module *own_build(void *arg, fsdp_context *context, fsdp_device *device);
fsdp_tensor *own_loss(void *arg, fsdp_module *module, fsdp_device *device);
