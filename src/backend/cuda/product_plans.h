/* product_plans.h - calls of cublasLt that are made ready once: descriptors, and the algorithm. */
#ifndef BACKEND_CUDA_PRODUCT_PLANS_H
#define BACKEND_CUDA_PRODUCT_PLANS_H

#include "backend/cuda/product_algorithms.h"

typedef struct fsdp__product_plan {
    fsdp__product_call call;
    bool taken;                       /* cublasLt has an algorithm for the call */
    bool told;                        /* that it has none, or that it refuses the table's */
    const fsdp__product_row *refused; /* the table's, in whose place the heuristic's was taken; NULL: none */
    fsdp__product_descriptors descriptors;
    cublasLtMatmulAlgo_t algorithm;
    size_t workspace_bytes;
    struct fsdp__product_plan *next; /* for the cache */
} fsdp__product_plan;

/* The plans of a device. Zeros are an empty cache. */
typedef struct fsdp__product_plans {
    const fsdp__product_row *rows; /* the table of algorithms; NULL: none */
    const char *card;              /* the device's */
    fsdp__product_plan *lists[256];
    int count;
} fsdp__product_plans;

/* Returns the plan of a call, made now if it is a new one; valid until the next call. [one thread at a time] */
fsdp_status fsdp__product_plan_of(fsdp__product_plans *plans, const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                  fsdp__product_plan **out);
void fsdp__product_plans_drop(fsdp__product_plans *plans, const fsdp__cublaslt *lt);

#endif
