/* test_kernels.h - kernels that test cudash itself, and what intrinsics.cuh does on it. */
#ifndef TESTS_CUDASH_TEST_KERNELS_H
#define TESTS_CUDASH_TEST_KERNELS_H

#include <stdint.h>

#include "fsdp/device.h"

#ifdef __cplusplus
extern "C" {
#endif

/* c (rows x columns, f32) = a (rows x depth) b of elements of 16 bits, on tensor cores. b is depth x columns, or, as
 * `b_transposed`, columns x depth. depth, and the columns of b, are multiples of 8. */
typedef struct {
    fsdp_dtype dtype;
    int64_t rows, columns, depth;
    int b_transposed;
    const void *a, *b;
    float *c;
} cudash_product;
fsdp_status cudash_test_product(fsdp_stream *stream, const cudash_product *args);

#ifdef __cplusplus
}
#endif

#endif
