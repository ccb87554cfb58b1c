/* product_call.h - a matrix product as a call of cublasLt, without its pointers.
 *
 * cublasLt's matrices are column-major. C (m,n) by rows is C^T (n,m) by columns, and C^T = B^T A^T: so its first matrix
 * is our B, its second one our A, and its bias, one number a row, is ours, one number a column. */
#pragma once

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

/* Lists what a product does beside multiplying. */
#define FSDP__EPILOGUE_MAP(X)                                                              \
    X(NONE)                                                                                \
    X(BIAS)           /* adds (n) to each column of `out` */                               \
    X(SUMS_OF_FIRST)  /* adds the first operand up, to (n) */                              \
    X(SUMS_OF_SECOND) /* adds the second one up, to (m) */                                 \
    X(GELU)           /* takes the result through GELU, in its tanh form */                \
    X(GELU_BIAS)      /* the same, behind the bias */                                      \
    X(GELU_AUX)       /* and writes GELU's input, too: (n,m), with the columns of `out` */ \
    X(GELU_AUX_BIAS)                                                                       \
    X(DGELU) /* multiplies the result by GELU's derivative at that */

typedef enum fsdp__product_epilogue {
#define FSDP__EPILOGUE_ENUM(name) FSDP__EPILOGUE_##name,
    FSDP__EPILOGUE_MAP(FSDP__EPILOGUE_ENUM)
#undef FSDP__EPILOGUE_ENUM
} fsdp__product_epilogue;

extern const char *const fsdp__product_epilogue_names[];

/* Describes out (n,m) = op(first) (n,k) x op(second) (k,m) [+ bias (n)] [+ out]. `out` is not transposed. */
typedef struct fsdp__product_call {
    fsdp__product_matrix first, second, out;
    int32_t batch;
    int32_t epilogue;       /* fsdp__product_epilogue */
    int32_t bias_alignment; /* of the bias, or of the sums, which have its place; 0: neither. Their dtype is `out`'s */
    int32_t aux_alignment;  /* of GELU's input; 0: it is not asked for */
} fsdp__product_call;

/* Gives the product as a call; returns false if cublasLt has none for it: its dtypes, or a layout in which rows
 * overlap. There must be something to compute, and something to sum. */
bool fsdp__product_call_of(const fsdp__matmul_args *k, fsdp__product_call *out);
