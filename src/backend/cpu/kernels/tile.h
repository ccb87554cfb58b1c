/* tile.h - the inner loop of every matrix product made here: a tile of C in registers.
 *
 * FSDP__NR columns of B lie side by side. A is read element by element and may be stored by rows or by columns. */
#pragma once

#include "backend/cpu/kernels/dtype.h"

#define FSDP__NR (2 * FSDP__LANES) /* columns of a tile */
#if FSDP__LANES == 16
#define FSDP__MR 12 /* rows of a full tile: it has as many accumulators as registers allow */
#else
#define FSDP__MR 6
#endif

/* Computes C (rows, NR) [+]= A (rows, k) x B (k, NR). Element (i,p) of A is at a[i * a_row + p * a_col]. `rows` is
 * constant. */
FSDP__INLINE void fsdp__tile_rows(int rows, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                                  int64_t b_row, float *c, int64_t c_row, bool accumulate)
{
    fsdp__vector low[FSDP__MR], high[FSDP__MR];

#pragma GCC unroll 16
    for (int i = 0; i < rows; i++)
        low[i] = high[i] = (fsdp__vector){0};
    for (int64_t p = 0; p < k; p++) {
        fsdp__vector b0 = *(const fsdp__vector *)b, b1 = *(const fsdp__vector *)(b + FSDP__LANES);
#pragma GCC unroll 16
        for (int i = 0; i < rows; i++) {
            float x = a[i * a_row];
            low[i] += x * b0;
            high[i] += x * b1;
        }
        b += b_row;
        a += a_col;
    }
#pragma GCC unroll 16
    for (int i = 0; i < rows; i++) {
        fsdp__vector *out0 = (fsdp__vector *)(c + i * c_row), *out1 = (fsdp__vector *)(c + i * c_row + FSDP__LANES);
        if (accumulate) {
            low[i] += *out0;
            high[i] += *out1;
        }
        *out0 = low[i];
        *out1 = high[i];
    }
}

/* Does the same for any number of rows up to FSDP__MR. */
#define FSDP__TILE_CASE(rows)                                                      \
    case rows:                                                                     \
        fsdp__tile_rows(rows, k, a, a_row, a_col, b, b_row, c, c_row, accumulate); \
        break;
FSDP__INLINE void fsdp__tile(int64_t rows, int64_t k, const float *a, int64_t a_row, int64_t a_col, const float *b,
                             int64_t b_row, float *c, int64_t c_row, bool accumulate)
{
    switch (rows) {
#if FSDP__MR == 12
        FSDP__TILE_CASE(12)
        FSDP__TILE_CASE(11)
        FSDP__TILE_CASE(10)
        FSDP__TILE_CASE(9)
        FSDP__TILE_CASE(8)
        FSDP__TILE_CASE(7)
#endif
        FSDP__TILE_CASE(6)
        FSDP__TILE_CASE(5)
        FSDP__TILE_CASE(4)
        FSDP__TILE_CASE(3)
        FSDP__TILE_CASE(2)
        FSDP__TILE_CASE(1)
    default:
        break;
    }
}
