/* pack.h - packs rows into strips for tile.h, transposed, as f32.
 *
 * The transpose (d, n) of n rows of d elements makes strips of FSDP__NR columns; a strip is d runs of FSDP__NR floats,
 * columns beyond n being zero. */
#pragma once

#include "backend/cpu/kernels/tile.h"

typedef float fsdp__eight __attribute__((vector_size(32), aligned(4), may_alias));

/* Transposes an 8 x 8 panel: out[i][j] = in[j][i]. */
FSDP__INLINE void fsdp__transpose_8x8(fsdp__eight r[8])
{
    fsdp__eight a[8], b[8];

#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        a[2 * i] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 0, 8, 1, 9, 4, 12, 5, 13);
        a[2 * i + 1] = __builtin_shufflevector(r[2 * i], r[2 * i + 1], 2, 10, 3, 11, 6, 14, 7, 15);
    }
#pragma GCC unroll 2
    for (int i = 0; i < 2; i++) {
        b[4 * i] = __builtin_shufflevector(a[4 * i], a[4 * i + 2], 0, 1, 8, 9, 4, 5, 12, 13);
        b[4 * i + 1] = __builtin_shufflevector(a[4 * i], a[4 * i + 2], 2, 3, 10, 11, 6, 7, 14, 15);
        b[4 * i + 2] = __builtin_shufflevector(a[4 * i + 1], a[4 * i + 3], 0, 1, 8, 9, 4, 5, 12, 13);
        b[4 * i + 3] = __builtin_shufflevector(a[4 * i + 1], a[4 * i + 3], 2, 3, 10, 11, 6, 7, 14, 15);
    }
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) {
        r[i] = __builtin_shufflevector(b[i], b[i + 4], 0, 1, 2, 3, 8, 9, 10, 11);
        r[i + 4] = __builtin_shufflevector(b[i], b[i + 4], 4, 5, 6, 7, 12, 13, 14, 15);
    }
}

/* Packs one strip, of `lanes` rows (at most FSDP__NR): eight lanes, eight indices at a time. */
FSDP__INLINE void fsdp__pack_strip(const float *src, int64_t row, int64_t lanes, int64_t d, float *dst)
{
#pragma GCC unroll 4
    for (int first = 0; first < FSDP__NR; first += 8) {
        int64_t there = lanes - first, p = 0;
        if (there >= 8) {
            for (; p + 8 <= d; p += 8) {
                fsdp__eight r[8];
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                    r[i] = *(const fsdp__eight *)(src + (first + i) * row + p);
                fsdp__transpose_8x8(r);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                    *(fsdp__eight *)(dst + (p + i) * FSDP__NR + first) = r[i];
            }
        }
        for (; p < d; p++)
            for (int i = 0; i < 8; i++)
                dst[p * FSDP__NR + first + i] = i < there ? src[(first + i) * row + p] : 0.0f;
    }
}

/* Elements of a row that are widened at a time before they are transposed. */
#define FSDP__PACK_PIECE 64

/* Packs all strips of n rows of d elements, `row` apart. */
static inline void fsdp__pack_transposed(fsdp_dtype dtype, const void *src, int64_t row, int64_t n, int64_t d,
                                         float *dst)
{
    float wide[FSDP__NR * FSDP__PACK_PIECE];

    for (int64_t j = 0; j < n; j += FSDP__NR, dst += FSDP__NR * d) {
        int64_t lanes = FSDP__MIN(n - j, FSDP__NR);
        if (dtype == FSDP_F32) {
            fsdp__pack_strip((const float *)src + j * row, row, lanes, d, dst);
            continue;
        }
        for (int64_t at = 0; at < d; at += FSDP__PACK_PIECE) {
            int64_t piece = FSDP__MIN(d - at, FSDP__PACK_PIECE);
            for (int64_t i = 0; i < lanes; i++)
                fsdp__widen(dtype, fsdp__at(dtype, src, (j + i) * row + at), piece, wide + i * FSDP__PACK_PIECE);
            fsdp__pack_strip(wide, FSDP__PACK_PIECE, lanes, piece, dst + at * FSDP__NR);
        }
    }
}
