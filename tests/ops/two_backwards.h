/* two_backwards.h - a small sharded model, two of whose steps are taken: what its kernels, gradients and memory are, to
 * compare models that differ in how their operations are put together. */
#pragma once

#include "device/kernel_args.h"
#include "fsdp/adapter.h"
#include "fsdp/nn.h"
#include "support/ranks.h"

enum {
    TWO_PARAMETERS = 64 /* at most */
};

typedef struct two_backwards {
    fsdp_device *device;
    int forward[FSDP__KERNELS], backward[FSDP__KERNELS]; /* launches of the second step */
    int64_t peak;                                        /* bytes */
    float loss;
    int64_t count, numel[TWO_PARAMETERS];
    float *gradients[TWO_PARAMETERS]; /* of this rank's shards; NULL: none */
} two_backwards;

/* The device of the test, or a GPU of which only sizes are known. */
fsdp_device *two_device(fsdp_context *context, bool dry);
/* Writes values that differ to all parameters; those whose name has `norm` are about 1. */
void two_fill(fsdp_module *model, const char *norm);
/* Returns the module of a block by its path. */
fsdp_module *two_part(fsdp_module *block, const char *path);
/* Adds a hook to it that does nothing, so that it is called by itself. */
void two_hook(fsdp_module *block, const char *path);
/* Takes two steps, the second of which adds gradients; frees the model and the adapter (or NULL). */
void two_take(fsdp_context *context, fsdp_module *model, fsdp_adapter *adapter, two_backwards *out);
/* Compares losses and gradients; with a tolerance of 0 by bits. */
void two_check_close(const two_backwards *a, const two_backwards *b, double tolerance);
void two_free(two_backwards *t);
