/* parallel/world_gradient.h - holds the gradient of a computation of all ranks together to difference quotients. */
#pragma once

#include "fsdp/parallel.h"
#include "support/ranks.h"

typedef struct world_gradient {
    fsdp_tensor *(*function)(void *arg, fsdp_tensor *x);
    void *arg;
    /* Whether all ranks hold the input, or the output, alike: then it counts once. */
    bool input_alike, output_alike;
} world_gradient;

/* Compares the gradients of x, a leaf on each rank, with quotients of the sum over ranks of weights times output.
 * [collective] */
void check_world_gradient(fsdp_context *context, const world_gradient *g, fsdp_tensor *x);

/* A leaf that requires a gradient, in the scope, with numbers below 1 that follow from `seed`. */
fsdp_tensor *world_leaf(fsdp_context *context, fsdp_dtype dtype, int ndim, const int64_t *shape, uint64_t seed);
