/* fake_blas.h - what the files of the fake cublasLt share. */
#pragma once

#include <cublasLt.h>

#include "backend/fakecuda/fake.h"

#define BLAS_BEGIN(call)                           \
    do {                                           \
        int begun = fake_use(FAKE_##call);         \
                                                   \
        if (begun)                                 \
            return (cublasStatus_t)begun;          \
        if (fake_is_lost(fake_current()))          \
            return CUBLAS_STATUS_EXECUTION_FAILED; \
    } while (0)

/* What the library's opaque structs hold here. */
typedef struct product {
    cublasOperation_t trans_a, trans_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t bias_type;
    bool has_bias_type;
    const void *bias;
    void *aux; /* what GELU is of */
    int64_t aux_ld;
} product;

typedef struct matrix {
    cudaDataType_t type;
    uint64_t rows, cols;
    int64_t ld, batch_stride;
    int32_t batch;
} matrix;

typedef struct preference {
    uint64_t workspace_bytes;
    uint32_t reductions, alignment[4]; /* of a, b, c, d */
} preference;

/* The numbers of an algorithm, by which one that another process has found is made again. */
typedef struct numbers {
    int32_t id;
    uint32_t tile, stages;
    int32_t split_k;
    uint32_t reduction, swizzle, custom;
    uint16_t inner, cluster;
} numbers;

/* What an algorithm holds: for which call it is, 0 if it was made of its numbers, and what it needs. */
typedef struct algorithm {
    uint64_t call;
    uint32_t workspace_bytes;
    uint16_t alignment[4], bias_alignment, aux_alignment;
    numbers numbers;
} algorithm;

/* A whole call: D (m,n) = alpha op(A) (m,k) op(B) (k,n) + beta D + bias (m). */
typedef struct call {
    product product;
    matrix a, b, d;
    uint64_t m, n, k;
} call;

/* Puts a call together; refuses what the library refuses. */
cublasStatus_t fake_blas_call(cublasLtMatmulDesc_t desc, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d, call *out);
/* Gives what the algorithm needs for the call. Returns false if it is none of the call's. */
bool fake_blas_settle(const call *c, const cublasLtMatmulAlgo_t *algo, algorithm *out);

static inline size_t type_size(cudaDataType_t type)
{
    return type == CUDA_R_32F ? 4 : type == CUDA_R_16BF || type == CUDA_R_16F ? 2 : 0;
}

/* Returns whether the call writes sums of an operand in the place of a bias. */
static inline bool sums(const call *c)
{
    return c->product.epilogue == CUBLASLT_EPILOGUE_BGRADA || c->product.epilogue == CUBLASLT_EPILOGUE_BGRADB;
}

/* Returns whether the product takes GELU, or its gradient, along, and whether what GELU is of lies somewhere. */
static inline bool has_gelu(const call *c)
{
    return c->product.epilogue & (CUBLASLT_EPILOGUE_GELU | 64);
}

static inline bool has_aux(const call *c)
{
    return has_gelu(c) && c->product.epilogue & 128;
}

/* Returns whether the call has a bias, or sums in its place. */
static inline bool has_vector(const call *c)
{
    return sums(c) || c->product.epilogue == CUBLASLT_EPILOGUE_BIAS ||
           (has_gelu(c) && c->product.epilogue & CUBLASLT_EPILOGUE_BIAS);
}
