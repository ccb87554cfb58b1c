/* test_kernels.h - kernels that test cudash itself, and what intrinsics.cuh does on it. */
#pragma once

#include <stdbool.h>
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

/* Launches a kernel that does nothing. */
typedef struct {
    unsigned grid[3], threads;
    size_t shared_bytes;
} cudash_shape;
fsdp_status cudash_test_launch(const cudash_shape *shape);

/* Runs a kernel of test_planted.cu with its fault or without it. */
enum {
    CUDASH_PLANTED_INTS = 512 /* of out, which hold 1 before, and after a right kernel */
};
fsdp_status cudash_test_planted(const char *name, bool wrong, int *out);

#ifdef __cplusplus
}
#endif
