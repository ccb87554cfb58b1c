/* op.h - what the operations share. Each lives in a file of its own: shape rule, forward and backward side by side.
 *
 * An operation checks its arguments (one style of message: "linear: input (2, 3) does not fit weight (4, 5)"), makes
 * its output in the scope, launches its kernels on the device's stream and records itself. */
#ifndef OPS_OP_H
#define OPS_OP_H

#include "autograd/autograd.h"
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/ops.h"
#include "tensor/tensor.h"

/* False and a last error when tensors of one call are on different devices or one has no bytes now. NULL entries and
 * FSDP_NO_BIAS are skipped. */
bool fsdp__op_inputs(const char *op, fsdp_tensor *const *inputs, int count);
/* The inputs must share a floating dtype. */
bool fsdp__op_same_dtype(const char *op, fsdp_tensor *const *inputs, int count);
/* Records "<op>: <what> <shape of a> does not fit <what> <shape of b>"; returns NULL. */
fsdp_tensor *fsdp__op_misfit(const char *op, const char *what, const fsdp_tensor *a, const char *other,
                             const fsdp_tensor *b);
/* Records "<op>: <what> must be <must>, not <dtype> <shape>"; returns NULL. */
fsdp_tensor *fsdp__op_bad(const char *op, const char *what, const char *must, const fsdp_tensor *tensor);

/* `*dim`, negative from the end, as one of `ndim` dimensions from 0 on; false and a last error, naming `tensor`, when
 * it is none. */
bool fsdp__op_dim(const char *op, const fsdp_tensor *tensor, int ndim, int *dim);

fsdp_stream *fsdp__op_stream(const fsdp_tensor *tensor);
/* `tensor`, or a contiguous copy from the scope. NULL on failure or for NULL. */
fsdp_tensor *fsdp__op_contiguous(fsdp_tensor *tensor);
/* Where an element-wise backward writes: `grad` itself when nobody else sees it, else a fresh tensor like it. */
fsdp_tensor *fsdp__op_reuse(fsdp_tensor *grad);
/* Product of all dimensions but the last. */
int64_t fsdp__op_rows(const fsdp_tensor *tensor);
int64_t fsdp__op_last(const fsdp_tensor *tensor); /* size of the last dimension; 1 for () */
/* y = alpha * x [* *scalar], same shape and dtype, contiguous. In place when y == x. */
fsdp_status fsdp__op_scale(const fsdp_tensor *x, float alpha, const fsdp_tensor *scalar, fsdp_tensor *y);
/* out [+]= alpha * sum of x over its middle: x (outer,reduced,inner), both contiguous. */
fsdp_status fsdp__op_reduce(const fsdp_tensor *x, int64_t outer, int64_t reduced, int64_t inner, float alpha,
                            fsdp_tensor *out, bool accumulate);
/* out [+]= alpha * x over the dimensions that `reduced` names, in as few passes as these have runs: x and out
 * contiguous, out with as many elements as the others have. */
fsdp_status fsdp__op_reduce_dims(const fsdp_tensor *x, const bool *reduced, fsdp__reduce_op op, float alpha,
                                 fsdp_tensor *out, bool accumulate);
/* dst = src repeated: `strides` of src over dst's shape, 0 where it repeats. */
fsdp_status fsdp__op_broadcast(fsdp_tensor *dst, const fsdp_tensor *src, const int64_t *strides);

/* Of int32 or int64: values outside [0, limit) that are not `ignore` (pass `limit` for none) are an error naming
 * position and value.
 * `*valid`: how many are not ignored. On a device without bytes all are taken for valid. [blocks] */
fsdp_status fsdp__op_check_indices(const char *op, const char *what, const fsdp_tensor *indices, int64_t limit,
                                   int64_t ignore, int64_t *valid);

/* ---- matrix products (gemm.c) ---- */

/* A tensor as a batch of matrices that the kernel can read in place. */
typedef struct fsdp__matrix {
    const void *data;
    int64_t batch, rows, cols;
    int64_t batch_stride, row, col; /* one of row and col is 1 */
    fsdp_dtype dtype;
} fsdp__matrix;

/* All leading dimensions as rows. Copies to contiguous memory of the scope when strides do not allow. */
fsdp_status fsdp__matrix_of(fsdp_tensor *tensor, fsdp__matrix *out);
/* The last two dimensions as matrices, the others as the batch. */
fsdp_status fsdp__matrix_batch_of(fsdp_tensor *tensor, fsdp__matrix *out);
fsdp__matrix fsdp__matrix_transposed(fsdp__matrix matrix);
/* c [+]= a b [+ bias]: c contiguous. A batch of one in a or b is repeated. */
fsdp_status fsdp__gemm(fsdp__matrix a, fsdp__matrix b, const fsdp_tensor *bias, fsdp_tensor *c, bool accumulate);

#endif
