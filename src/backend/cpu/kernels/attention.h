/* attention.h - what the two directions of attention share.
 *
 * [Note: attention by strips]
 * Time is cut into blocks of queries and blocks of keys. Keys and values are packed once per key head into strips
 * (pack.h), so that every product is a row of tiles (tile.h). The causal mask is never applied to scores: a tile of
 * query rows knows how many keys its last row sees, and neither scores nor sums go further. */
#ifndef BACKEND_CPU_ATTENTION_H
#define BACKEND_CPU_ATTENTION_H

#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/pack.h"

#define FSDP__Q_BLOCK 48   /* queries: a multiple of every FSDP__MR */
#define FSDP__KV_BLOCK 128 /* keys: a multiple of every FSDP__NR */

/* Keys that query t sees. */
FSDP__INLINE int64_t fsdp__keys_seen(const fsdp__attention_forward_args *k, int64_t t)
{
    int64_t seen = k->causal ? t + k->kv_time - k->q_time + 1 : k->kv_time;

    return FSDP__MAX(FSDP__MIN(seen, k->kv_time), 0);
}

/* The first query that sees key s (q_time when none). */
FSDP__INLINE int64_t fsdp__first_query(const fsdp__attention_forward_args *k, int64_t s)
{
    int64_t first = k->causal ? s - k->kv_time + k->q_time : 0;

    return FSDP__MAX(FSDP__MIN(first, k->q_time), 0);
}

/* n rows of `d` elements, `row` apart, to f32 rows of d, times `scale`. */
static inline void fsdp__gather_rows(fsdp_dtype dtype, const void *src, int64_t row, int64_t n, int64_t d, float scale,
                                     float *restrict dst)
{
    for (int64_t i = 0; i < n; i++) {
#define GATHER(T) \
    _Pragma("omp simd") for (int64_t c = 0; c < d; c++) dst[i * d + c] = fsdp__load(T, src, i * row + c) * scale
        FSDP__EACH_FLOAT(dtype, GATHER)
#undef GATHER
    }
}

/* Strips of a right-hand matrix whose element (p, j) is src[p * p_stride + j * j_stride], k x n. */
static inline void fsdp__pack_right(fsdp_dtype dtype, const void *src, int64_t p_stride, int64_t j_stride, int64_t k,
                                    int64_t n, float scale, float *dst)
{
    for (int64_t j = 0; j < n; j += FSDP__NR)
        fsdp__pack_strip(FSDP__NR, dtype, fsdp__at(dtype, src, j * j_stride), j_stride, p_stride, n - j, k, scale,
                         dst + j * k);
}

#endif
