/* product_plans.h - calls of cublasLt that are made ready once: descriptors, and the algorithm. */
#ifndef BACKEND_CUDA_PRODUCT_PLANS_H
#define BACKEND_CUDA_PRODUCT_PLANS_H

#include <cublasLt.h>

#include "backend/cuda/product_call.h"

/* The functions of cublasLt that are used. */
#define FSDP__CUBLASLT_MAP(X)       \
    X(Create)                       \
    X(Destroy)                      \
    X(GetStatusString)              \
    X(MatmulDescCreate)             \
    X(MatmulDescDestroy)            \
    X(MatmulDescSetAttribute)       \
    X(MatrixLayoutCreate)           \
    X(MatrixLayoutDestroy)          \
    X(MatrixLayoutSetAttribute)     \
    X(MatmulPreferenceCreate)       \
    X(MatmulPreferenceDestroy)      \
    X(MatmulPreferenceSetAttribute) \
    X(MatmulAlgoGetHeuristic)       \
    X(Matmul)

typedef struct fsdp__cublaslt {
#define FSDP__CUBLASLT_MEMBER(name) __typeof__(&cublasLt##name) name;
    FSDP__CUBLASLT_MAP(FSDP__CUBLASLT_MEMBER)
#undef FSDP__CUBLASLT_MEMBER
} fsdp__cublaslt;

/* Calls a function of cublasLt by its short name; what it answers is recorded as an error, if it is one. */
#define FSDP__CUBLASLT(lt, name, ...) \
    fsdp__cublaslt_status((lt), (lt)->name(__VA_ARGS__), "cublasLt" #name, __FILE__, __LINE__)
fsdp_status fsdp__cublaslt_status(const fsdp__cublaslt *lt, cublasStatus_t answer, const char *name, const char *file,
                                  int line);

typedef struct fsdp__product_plan {
    fsdp__product_call call;
    bool taken; /* cublasLt has an algorithm for the call */
    bool told;  /* that it has none */
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, out;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    struct fsdp__product_plan *next; /* for the cache */
} fsdp__product_plan;

/* The plans of a device. Zeros are an empty cache. */
typedef struct fsdp__product_plans {
    fsdp__product_plan *lists[256];
    int count;
} fsdp__product_plans;

/* Returns the plan of a call, made now if it is a new one; valid until the next call. [one thread at a time] */
fsdp_status fsdp__product_plan_of(fsdp__product_plans *plans, const fsdp__cublaslt *lt, cublasLtHandle_t handle,
                                  const fsdp__product_call *call, fsdp__product_plan **out);
void fsdp__product_plans_drop(fsdp__product_plans *plans, const fsdp__cublaslt *lt);

#endif
