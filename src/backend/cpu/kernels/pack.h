/* pack.h - matrices into strips for tile.h: `width` lanes side by side, index after index, as f32.
 *
 * A right-hand matrix (k, n) makes strips of FSDP__NR columns, a left-hand one (m, k) strips of FSDP__MR rows; either
 * way a strip is k runs of `width` floats, lanes beyond the matrix being zero. */
#ifndef BACKEND_CPU_PACK_H
#define BACKEND_CPU_PACK_H

#include "backend/cpu/kernels/tile.h"

typedef float fsdp__eight __attribute__((vector_size(32), aligned(4), may_alias));

/* An 8 x 8 block: out[i][j] = in[j][i]. */
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

/* Lanes are rows of `src`, contiguous in k: eight lanes, eight indices at a time. */
FSDP__INLINE void fsdp__pack_across(int width, const float *src, int64_t lane, int64_t lanes, int64_t k, float scale,
                                    float *dst)
{
#pragma GCC unroll 4
    for (int first = 0; first < width; first += 8) {
        int take = width - first < 8 ? width - first : 8;
        int64_t there = lanes - first, p = 0;
        if (there >= take) {
            for (; p + 8 <= k; p += 8) {
                fsdp__eight r[8];
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                    r[i] = *(const fsdp__eight *)(src + (first + (i < take ? i : 0)) * lane + p) * scale;
                fsdp__transpose_8x8(r);
#pragma GCC unroll 8
                for (int i = 0; i < 8; i++)
                    memcpy(dst + (p + i) * width + first, &r[i], (size_t)take * sizeof(float));
            }
        }
        for (; p < k; p++)
            for (int i = 0; i < take; i++)
                dst[p * width + first + i] = i < there ? src[(first + i) * lane + p] * scale : 0.0f;
    }
}

/* Indices are rows of `src`, contiguous in the lanes. */
FSDP__INLINE void fsdp__pack_along(int width, fsdp_dtype dtype, const void *src, int64_t index, int64_t lanes,
                                   int64_t k, float scale, float *dst)
{
    if (lanes >= width) {
        for (int64_t p = 0; p < k; p++) {
#pragma omp simd
            for (int i = 0; i < width; i++)
                dst[p * width + i] = fsdp__load(dtype, src, p * index + i) * scale;
        }
    } else {
        for (int64_t p = 0; p < k; p++)
            for (int i = 0; i < width; i++)
                dst[p * width + i] = i < lanes ? fsdp__load(dtype, src, p * index + i) * scale : 0.0f;
    }
}

/* Indices that are widened at a time before they are transposed. */
#define FSDP__PACK_PIECE 64

/* One strip: element (lane i, index p) is src[i * lane + p * index], times `scale`. `width` is constant. */
FSDP__INLINE void fsdp__pack_strip(int width, fsdp_dtype dtype, const void *src, int64_t lane, int64_t index,
                                   int64_t lanes, int64_t k, float scale, float *dst)
{
    if (lane == 1) {
#define ALONG(T) fsdp__pack_along(width, T, src, index, lanes, k, scale, dst)
        FSDP__EACH_FLOAT(dtype, ALONG)
#undef ALONG
    } else if (index == 1 && dtype == FSDP_F32) {
        fsdp__pack_across(width, src, lane, lanes, k, scale, dst);
    } else if (index == 1) {
        float wide[FSDP__NR * FSDP__PACK_PIECE];
        for (int64_t at = 0; at < k; at += FSDP__PACK_PIECE) {
            int64_t n = FSDP__MIN(k - at, FSDP__PACK_PIECE);
            for (int64_t i = 0; i < FSDP__MIN(lanes, width); i++)
                fsdp__widen(dtype, fsdp__at(dtype, src, i * lane + at), n, wide + i * FSDP__PACK_PIECE);
            fsdp__pack_across(width, wide, FSDP__PACK_PIECE, lanes, n, scale, dst + at * width);
        }
    } else {
        for (int64_t p = 0; p < k; p++)
            for (int i = 0; i < width; i++)
                dst[p * width + i] = i < lanes ? fsdp__load(dtype, src, i * lane + p * index) * scale : 0.0f;
    }
}

#endif
