/* context_parallel.h - calls of models whose sequences may be cut over ranks, with tokens that the host has. */
#pragma once

#include "fsdp/nn.h"

/* Holds what a model that gives a loss is called with: (rows,time) each, borrowed. */
typedef struct fsdp__host_call {
    fsdp_device *device;
    int64_t rows, time;
    const int32_t *tokens, *targets; /* NULL: zeros */
    const int32_t *positions;        /* in documents; NULL: a row is one */
} fsdp__host_call;

/* Calls any model so, and returns the loss, or losses. If its sequences are cut, they are cut on the host, which then
 * need not wait to read them. Values are right: nobody looks. [collective] where the model's call is */
fsdp_tensor *fsdp__call_from_host(fsdp_module *model, const fsdp__host_call *call);
