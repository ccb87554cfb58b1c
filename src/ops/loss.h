/* loss.h - what losses share: they make their gradients in the forward; the backward only scales them and passes them
 * on. */
#pragma once

#include "ops/op.h"

/* Holds the state of a loss's node: the gradients of its inputs for an upstream gradient of `unit`. Owned; NULL if not
 * wanted. */
typedef struct fsdp__loss_state {
    fsdp_tensor *gradients[2];
    float unit; /* a power of two */
} fsdp__loss_state;

/* Returns the unit for gradients of `dtype`. They are made before the upstream gradient is known, by which a gradient
 * scaler would raise them: those of a mean over many targets would be too small for float16, so they are made 1024
 * times as large. */
float fsdp__loss_unit(fsdp_dtype dtype);
/* Scales a loss back that its kernel has made `unit` times as large, too. */
fsdp_status fsdp__loss_of_unit(fsdp_tensor *loss, float unit);

extern const fsdp__traits fsdp__loss_traits; /* of both losses */
/* Returns true in a recomputation; then `*loss` is that of the first run, or NULL with a last error. */
bool fsdp__loss_recall(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor *other, fsdp_tensor **loss);

void fsdp__loss_state_free(void *state);
fsdp_status fsdp__loss_backward(fsdp__node *node, fsdp_tensor *const *grads);

/* Checks targets (int32, the leading dimensions of `x`, values in [0, classes) or -100). Gives the targets in
 * contiguous memory, and how many are not -100. */
fsdp_status fsdp__loss_targets(const char *op, const fsdp_tensor *x, int64_t classes, fsdp_tensor *targets,
                               fsdp_tensor **contiguous, int64_t *count);
/* Gets what a sum over `count` targets is multiplied by; a mean over none: NaN. NULL options: those of a mean. */
fsdp_status fsdp__loss_scale(const char *op, const fsdp_cross_entropy_options *options, int64_t count, float *scale);

/* ---- a vocabulary that ranks have parts of ---- */

/* Describes rows of a linear_cross_entropy: what fsdp__cross_entropy_args says of all of them. */
typedef struct fsdp__loss_chunk {
    const fsdp_tensor *logits, *targets, *dlogits; /* (rows,cols), (rows), like logits or NULL; logits may be dlogits */
    fsdp_tensor *loss;                             /* () */
    float scale, softcap;
    bool first; /* the loss is set, not added to */
} fsdp__loss_chunk;

/* Makes the loss of chunks: `weight` has some rows of a vocabulary, and other ranks have the others. */
typedef struct fsdp__chunk_loss {
    fsdp_status (*compute)(const void *arg, const fsdp__loss_chunk *chunk);
    const void *arg;
    int64_t classes, most; /* rows of the vocabulary; the most that a rank has */
} fsdp__chunk_loss;
/* Does what fsdp_linear_cross_entropy_with does with such a weight. The gradient of x is this rank's contribution. NULL
 * `part`: the weight is whole. */
fsdp_tensor *fsdp__linear_cross_entropy_part(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets,
                                             const fsdp_cross_entropy_options *options, const fsdp__chunk_loss *part);
