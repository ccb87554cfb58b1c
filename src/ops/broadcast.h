/* broadcast.h - operands of different shapes, broadcast as in PyTorch and NumPy, and functions of two operands. */
#pragma once

#include "ops/op.h"

typedef struct fsdp__shape {
    int ndim;
    int64_t sizes[FSDP_MAX_DIMS];
} fsdp__shape;

fsdp__shape fsdp__shape_of(const fsdp_tensor *tensor);
/* Broadcasts `*shape` with `sizes`: a dimension of either that is 1 or missing is repeated. Returns false if they do
 * not fit. */
bool fsdp__broadcast(int ndim, const int64_t *sizes, fsdp__shape *shape);
/* Does the same for `tensor`, and on failure sets a last error that names `first` and, second, `tensor`. */
bool fsdp__broadcast_with(const char *op, const fsdp_tensor *first, const fsdp_tensor *tensor, fsdp__shape *shape);
/* Gives the strides of `tensor` over the dimensions of `over`: 0 where it repeats. */
void fsdp__broadcast_strides(const fsdp_tensor *tensor, const fsdp_tensor *over, int64_t *strides);
/* Returns `tensor`, or a contiguous copy from the scope if its rows are not contiguous: a copy goes through a
 * transposed matrix in tiles, and a kernel of several operands does not. NULL on failure or for NULL. */
fsdp_tensor *fsdp__by_rows(fsdp_tensor *tensor);
/* Gives `grad`, which has the shape of a result, to an input of `shape`: summed over what was repeated. */
fsdp_status fsdp__give_summed(fsdp__node *node, int input, fsdp_tensor *grad, const fsdp__shape *shape);

/* Computes a op b and records it under `op`, whose backward is fsdp__binary_backward. */
fsdp_tensor *fsdp__binary(const fsdp__op *op, fsdp__binary_op kind, fsdp_tensor *a, fsdp_tensor *b, float beta);
fsdp_status fsdp__binary_backward(fsdp__node *node, fsdp_tensor *const *grads);
/* Computes y = a op b, or a op scalar if b is NULL, over y's shape; y is contiguous. */
fsdp_status fsdp__binary_compute(fsdp__binary_op op, const fsdp_tensor *a, const fsdp_tensor *b, float scalar,
                                 float beta, fsdp_tensor *y);
/* Computes da = dy * the derivative of a op b by a, over da's shape; the others are repeated where they are smaller. */
fsdp_status fsdp__binary_slopes(fsdp__binary_op op, const fsdp_tensor *a, const fsdp_tensor *b, const fsdp_tensor *dy,
                                fsdp_tensor *da);
/* Computes y = mask ? a : b; a number takes the place of a if it is NULL, and 0 that of b. */
fsdp_status fsdp__where_compute(const fsdp_tensor *mask, const fsdp_tensor *a, double a_scalar, const fsdp_tensor *b,
                                fsdp_tensor *y);
