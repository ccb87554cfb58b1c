/* product_call.h - a matrix product as a call of cublasLt, without its pointers.
 *
 * cublasLt's matrices are column-major. C (m,n) by rows is C^T (n,m) by columns, and C^T = B^T A^T: so its first matrix
 * is our B, its second one our A, and its bias, one number a row, is ours, one number a column. */
#ifndef BACKEND_CUDA_PRODUCT_CALL_H
#define BACKEND_CUDA_PRODUCT_CALL_H

#include "device/kernel_args.h"

enum {
    /* What counts of an address is its alignment, up to this many bytes: blocks of memory have more, and an algorithm
     * must not depend on how much more. */
    FSDP__PRODUCT_ALIGNMENT = 16
};

/* A matrix as it is stored: element (row, col) at data[row + col * ld]. */
typedef struct fsdp__product_matrix {
    int64_t rows, cols, ld, batch; /* batch: elements from one matrix to the next, or 0 */
    fsdp_dtype dtype;
    int transposed; /* the product takes its transpose */
    int alignment;  /* of the address, in bytes */
    int unused;     /* 0: calls are compared as bytes */
} fsdp__product_matrix;

typedef enum fsdp__product_sums {
    FSDP__SUMS_OF_NONE,
    FSDP__SUMS_OF_FIRST, /* (n) */
    FSDP__SUMS_OF_SECOND /* (m) */
} fsdp__product_sums;

/* out (n,m) = op(first) (n,k) x op(second) (k,m) [+ bias (n)] [+ out]. `out` is not transposed. */
typedef struct fsdp__product_call {
    fsdp__product_matrix first, second, out;
    int32_t batch;
    int32_t bias_alignment; /* 0: no bias, and no sums, which have its place. Its dtype is that of `out` */
    int32_t sums;           /* which operand is added up: fsdp__product_sums */
    int32_t unused;         /* 0 */
} fsdp__product_call;

/* Gives the product as a call; returns false if cublasLt has none for it: its dtypes, or a layout in which rows
 * overlap. There must be something to compute, and something to sum. */
bool fsdp__product_call_of(const fsdp__matmul_args *k, fsdp__product_call *out);

#endif
