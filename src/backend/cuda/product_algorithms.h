/* product_algorithms.h - a call as cublasLt's descriptors, and the algorithms that the library has for it.
 *
 * [Note: order of sums]
 * Of the ways to share a sum among blocks only that is allowed in which a second step adds the parts in order, in f32:
 * adding in place depends on who comes first. */
#pragma once

#include "backend/cuda/cublaslt_calls.h"
#include "backend/cuda/product_rows.h"

enum {
    FSDP__PRODUCT_WORKSPACE = 32 << 20 /* that an algorithm may ask for */
};

typedef struct fsdp__product_descriptors {
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t first, second, out;
} fsdp__product_descriptors;

/* Describes the call. Release it, also after a failure. */
fsdp_status fsdp__product_describe(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                   fsdp__product_descriptors *out);
void fsdp__product_descriptors_release(const fsdp__cublaslt *lt, fsdp__product_descriptors *d);

/* Gives up to `most` algorithms by the library's heuristic, the one first that it takes for the fastest. `alignment` is
 * that of all addresses, or 0: that which the call has. None is no failure. */
fsdp_status fsdp__product_heuristic(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                    const fsdp__product_descriptors *d, int alignment, int most,
                                    cublasLtMatmulHeuristicResult_t *results, int *count);
/* Makes an algorithm of its numbers, with the workspace that it needs. Returns false if the library refuses it for this
 * call on this device, or if it is against [Note: order of sums]. */
bool fsdp__product_algorithm_make(const fsdp__cublaslt *lt, const fsdp__product_call *call,
                                  const fsdp__product_descriptors *d, const fsdp__product_algorithm *numbers,
                                  cublasLtMatmulHeuristicResult_t *out);
/* Reads the numbers of an algorithm. Returns false if the library does not tell one. */
bool fsdp__product_algorithm_read(const fsdp__cublaslt *lt, const cublasLtMatmulAlgo_t *algorithm,
                                  fsdp__product_algorithm *out);
