/* op.h - what the operations share. Each has a file of its own, with its shape rule, forward and backward side by side.
 *
 * An operation checks its arguments (one style of message: "linear: input (2, 3) does not fit weight (4, 5)"), makes
 * its output in the scope, launches its kernels on the device's stream and records itself. */
#pragma once

#include "autograd/autograd.h"
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/ops.h"
#include "ops/global.h"
#include "tensor/tensor.h"

/* Returns false, with a last error, if tensors of one call are on different devices, one has no bytes now, or one is
 * global: then the operation has no rule for it. Skips NULL entries and FSDP_NO_BIAS. */
bool fsdp__op_inputs(const char *op, fsdp_tensor *const *inputs, int count);
/* Checks that the inputs share a floating dtype. */
bool fsdp__op_same_dtype(const char *op, fsdp_tensor *const *inputs, int count);
/* Sets the last error "<op>: <what> <shape of a> does not fit <what> <shape of b>"; returns NULL. */
fsdp_tensor *fsdp__op_misfit(const char *op, const char *what, const fsdp_tensor *a, const char *other,
                             const fsdp_tensor *b);
/* Sets the last error "<op>: <what> must be <must>, not <dtype> <shape>"; returns NULL. */
fsdp_tensor *fsdp__op_bad(const char *op, const char *what, const char *must, const fsdp_tensor *tensor);

/* Makes `*dim`, which may be negative and then counts from the end, one of `ndim` dimensions from 0 on. Returns false,
 * with a last error that names `tensor`, if there is no such dimension. */
bool fsdp__op_dim(const char *op, const fsdp_tensor *tensor, int ndim, int *dim);
/* Returns whether there is a list of `count` dimensions or sizes; if not, the last error says so. */
bool fsdp__op_has_list(const char *op, int count, const void *list);

fsdp_stream *fsdp__op_stream(const fsdp_tensor *tensor);
/* Returns `tensor`, or a contiguous copy from the scope. NULL on failure or for NULL. */
fsdp_tensor *fsdp__op_contiguous(fsdp_tensor *tensor);
/* Begins a function of one floating tensor: gives it contiguous, and an empty tensor like it. NULL and a last error if
 * that is not possible. */
fsdp_tensor *fsdp__op_of_one(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor **y);
/* Returns where an element-wise backward writes: `grad` itself if nobody else sees it, else a new tensor like it. */
fsdp_tensor *fsdp__op_reuse(fsdp_tensor *grad);
/* Makes the tensor that a backward writes the gradient of input `input` to, like the tensor `like`: where the operation
 * that made the input reads it, or a new one. From the scope; may be strided. NULL on failure. */
fsdp_tensor *fsdp__op_gradient(fsdp__node *node, int input, const fsdp_tensor *like);
/* Makes a tensor of x's shape and dtype, with `cols` in the last dimension. The caller owns it. */
fsdp_status fsdp__op_wide(const fsdp_tensor *x, int64_t cols, fsdp_tensor **out);
/* Returns the product of all dimensions but the last. */
int64_t fsdp__op_rows(const fsdp_tensor *tensor);
int64_t fsdp__op_last(const fsdp_tensor *tensor); /* size of the last dimension; 1 for () */
/* Computes y = alpha * x [* *scalar], of the same shape and dtype, contiguous. Works in place if y == x. */
fsdp_status fsdp__op_scale(const fsdp_tensor *x, float alpha, const fsdp_tensor *scalar, fsdp_tensor *y);
/* Computes out [+]= sum of x over its middle dimension: x (outer,reduced,inner), both contiguous. */
fsdp_status fsdp__op_reduce(const fsdp_tensor *x, int64_t outer, int64_t reduced, int64_t inner, fsdp_tensor *out,
                            bool accumulate);
/* Reduces x over the dimensions that `reduced` marks: out [+]= alpha * the result of `op`. It takes one pass for each
 * run of adjacent reduced dimensions. x and out are contiguous, and out has as many elements as the other dimensions
 * have. */
fsdp_status fsdp__op_reduce_dims(const fsdp_tensor *x, const bool *reduced, fsdp__reduce_op op, float alpha,
                                 fsdp_tensor *out, bool accumulate);
/* Copies src, repeated, to dst: `strides` are those of src over dst's shape, 0 where it repeats. */
fsdp_status fsdp__op_broadcast(fsdp_tensor *dst, const fsdp_tensor *src, const int64_t *strides);

/* Checks int32 or int64 indices: a value outside [0, limit) that is not `ignore` (pass `limit` for none) is an error
 * that names position and value. `*valid` becomes the number of those that are not ignored. On a device without bytes
 * all are taken for valid. Blocks, unless the host knows them: fsdp__tensor_range. */
fsdp_status fsdp__op_check_indices(const char *op, const char *what, const fsdp_tensor *indices, int64_t limit,
                                   int64_t ignore, int64_t *valid);
/* Returns ids (int32) that count from row `first` of `count` on: outside [0, rows) they are others' rows. */
fsdp_tensor *fsdp__op_ids_from(fsdp_tensor *ids, int64_t first, int64_t count);
/* Does what fsdp_embedding does with a table of which `table` has the rows from `first` on; the whole one has `count`.
 * Ids of other rows give zeros, and no gradient. */
fsdp_tensor *fsdp__op_embedding_part(fsdp_tensor *table, fsdp_tensor *ids, int64_t first, int64_t count);

/* Two of `count` equal chunks of dimension 1, one behind the other; count 0: that dimension is not cut so. */
typedef struct fsdp__op_chunks {
    int64_t count, numbers[2];
} fsdp__op_chunks;

/* Describes a part of dimension `dim`, which is `whole` long: the elements from `first` on. whole -1: it is no part.
 * What it is a part of may itself have chunks of a sequence; then `dim` is 1 or 2. */
typedef struct fsdp__op_part {
    int dim;
    int64_t first, whole;
    fsdp__op_chunks chunks;
} fsdp__op_part;
/* Does what fsdp_dropout does with a part of a tensor: the mask is that part of the whole one's. */
fsdp_tensor *fsdp__op_dropout_part(fsdp_tensor *x, float p, uint64_t key, fsdp__op_part part);

/* Checks positions in documents: int32 (batch,time), each 0 or one more than the token before. Gives them in contiguous
 * memory, and how many pairs of a token and one that it sees there are; 0 if the host does not know. Blocks, unless the
 * host has written them and nobody since, or they were checked before. */
fsdp_status fsdp__op_check_positions(const char *op, fsdp_tensor *positions, int64_t batch, int64_t time,
                                     fsdp_tensor **contiguous, int64_t *pairs);

enum {
    FSDP__LINEARS_MOST = 8 /* linears of a group */
};
/* Returns whether fsdp_linear_group computes these by one product. */
bool fsdp__linear_group_joins(const fsdp_tensor *x, int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases);

/* Computes, inside a backward, the gradients of a linear's weight, which is that input of the node, and of the bias
 * behind it, where they are needed: x (...,C) and the contiguous gradient of the result (...,O). */
fsdp_status fsdp__linear_leaf_gradients(fsdp__node *node, int weight, fsdp_tensor *x, fsdp_tensor *grad, bool conv1d);

/* Two linears with GELU, in its tanh form, between them. */
typedef struct fsdp__gelu_mlp {
    fsdp_tensor *x;                      /* (...,C) */
    fsdp_tensor *weights[2], *biases[2]; /* (F,C), (O,F); conv1d: (C,F), (F,O). A bias may be FSDP_NO_BIAS */
    bool conv1d;
} fsdp__gelu_mlp;
/* Returns whether they are worth computing together: on a device whose products take GELU along, and in no function
 * that is recomputed, which keeps results of operations between them. False also for what is no such pair. */
bool fsdp__gelu_mlp_joins(const fsdp__gelu_mlp *mlp);
/* Computes them as one operation, (...,O). */
fsdp_tensor *fsdp__gelu_mlp_apply(const fsdp__gelu_mlp *mlp);

/* Describes a gated pair and the linear behind it. */
typedef struct fsdp__gated_linear {
    fsdp_tensor *gate, *up;     /* (...,F) */
    fsdp_tensor *weight, *bias; /* (O,F), (O) or FSDP_NO_BIAS */
    bool gelu;                  /* gelu_tanh(gate) * up; otherwise silu(gate) * up */
} fsdp__gated_linear;
/* Returns whether they are worth computing together: on a device that makes such a pair again in the backward, where
 * gate, up and the weight all have gradients, and in no function that is recomputed. False also for what does not fit.
 */
bool fsdp__gated_linear_joins(const fsdp__gated_linear *m);
/* Computes them as one operation, (...,O), which does not keep the pair's result: the backward makes it again, in the
 * pass that makes the gradients of gate and up. */
fsdp_tensor *fsdp__gated_linear_apply(const fsdp__gated_linear *m);

/* Returns how many tokens the longest document of such positions (batch,time) has; 0: they cannot be read. On a device
 * without bytes it is taken to be a whole row. Blocks as the check does. */
int64_t fsdp__op_longest_document(const fsdp_tensor *positions);
/* Replaces each of x, one tensor or queries and keys of the same tokens, by what fsdp_rope and, where `positions` is
 * not NULL, fsdp_rope_at make of it. What rotates is multiplied by `scale`, too. With `over` the results are written
 * over x where they can be: nobody else may need x. A NULL in x is somebody's failure, which has a last error. */
fsdp_status fsdp__op_rope(int count, fsdp_tensor **x, fsdp_tensor *frequencies, fsdp_tensor *positions,
                          int64_t position0, float scale, bool over);

/* ---- matrix products (gemm.c) ---- */

/* A tensor as a batch of matrices that the kernel can read in place. */
typedef struct fsdp__matrix {
    const void *data;
    int64_t batch, rows, cols;
    int64_t batch_stride, row, col; /* one of row and col is 1 */
    fsdp_dtype dtype;
} fsdp__matrix;

/* Takes all leading dimensions as rows. Copies to contiguous memory of the scope if the strides do not allow that. */
fsdp_status fsdp__matrix_of(fsdp_tensor *tensor, fsdp__matrix *out);
/* Takes the last two dimensions as matrices, and the others as the batch. */
fsdp_status fsdp__matrix_batch_of(fsdp_tensor *tensor, fsdp__matrix *out);
fsdp__matrix fsdp__matrix_transposed(fsdp__matrix matrix);
/* Computes c [+]= a b [+ bias], with c contiguous. A batch of one in a or b is repeated. */
fsdp_status fsdp__gemm(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *bias, fsdp_tensor *c, bool accumulate);
/* Computes c [+]= a b, and the sums of a's rows, or of b's columns, of c's dtype. Where fsdp__gemm_sums says so. */
fsdp_status fsdp__gemm_and_sums(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *c, bool accumulate, fsdp_tensor *sums,
                                bool of_b);
/* Computes c = gelu(a b [+ bias]) in the tanh form, and writes GELU's input to `before`, unless that is NULL. */
fsdp_status fsdp__gemm_gelu(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *bias, fsdp_tensor *c, fsdp_tensor *before);
/* Computes c = a b times the derivative of GELU at `before`. */
fsdp_status fsdp__gemm_gelu_gradient(fsdp__matrix a, fsdp__matrix b, fsdp_tensor *c, fsdp_tensor *before);
/* Returns whether the device adds up that operand as it multiplies. */
bool fsdp__gemm_sums(fsdp__matrix a, fsdp__matrix b, const fsdp_tensor *c, const fsdp_tensor *sums, bool of_b);
