/* attention.h - what the two directions of attention share.
 *
 * [Note: attention by strips]
 * Time is cut into panels of queries and panels of keys. Where a product needs a transposed matrix on its right, keys
 * or values are packed once per key head into strips (pack.h), so that every product is a row of tiles (tile.h). The
 * causal mask is never applied to scores: a tile of query rows knows how many keys its last row sees, and neither
 * scores nor sums go further. Where documents or a window hide the first keys, it also knows which is the first that
 * one of its rows sees: products begin there, in whole vectors, and only what lies between is hidden. */
#pragma once

#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/pack.h"

#define FSDP__Q_PANEL 48   /* queries: a multiple of every FSDP__MR */
#define FSDP__KV_PANEL 128 /* keys: a multiple of every FSDP__NR */

/* Returns by how many places the first query lies behind the first key. */
FSDP__INLINE int64_t fsdp__ahead(const fsdp__attention_forward_args *k)
{
    return k->kv_time - k->q_time + k->lead;
}

/* Returns how many keys query t sees. */
FSDP__INLINE int64_t fsdp__keys_seen(const fsdp__attention_forward_args *k, int64_t t)
{
    int64_t seen = k->causal ? t + fsdp__ahead(k) + 1 : k->kv_time;

    return FSDP__MAX(FSDP__MIN(seen, k->kv_time), 0);
}

/* Returns the first query that sees key s (q_time if there is none). */
FSDP__INLINE int64_t fsdp__first_query(const fsdp__attention_forward_args *k, int64_t s)
{
    int64_t first = k->causal ? s - fsdp__ahead(k) : 0;

    return FSDP__MAX(FSDP__MIN(first, k->q_time), 0);
}

/* Returns the first key that query t of batch element b sees; it never falls from query to query. */
FSDP__INLINE int64_t fsdp__first_key(const fsdp__attention_forward_args *k, int64_t b, int64_t t)
{
    int64_t first = k->window > 0 ? t + fsdp__ahead(k) + 1 - k->window : 0;

    if (k->positions)
        first = FSDP__MAX(first, t + fsdp__ahead(k) - k->positions[b * k->q_time + t]);
    return FSDP__MIN(FSDP__MAX(first, 0), k->kv_time);
}

/* Returns the query behind the last that sees key s, at least `first`. */
FSDP__INLINE int64_t fsdp__end_query(const fsdp__attention_forward_args *k, int64_t b, int64_t s, int64_t first)
{
    int64_t end = k->q_time;

    if (!k->positions && k->window == 0)
        return end;
    while (first < end) {
        int64_t t = first + (end - first) / 2;

        if (fsdp__first_key(k, b, t) <= s)
            first = t + 1;
        else
            end = t;
    }
    return end;
}

/* Puts capped numbers in the place of n numbers. */
FSDP__INLINE void fsdp__cap(float *restrict x, float cap, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        x[i] = cap * fsdp__tanhf(x[i] / cap);
}

/* Converts n rows of `d` elements, `row` apart, to f32 rows, times `scale`, with zeros from d up to `padded`. */
static inline void fsdp__gather_rows(fsdp_dtype dtype, const void *src, int64_t row, int64_t n, int64_t d,
                                     int64_t padded, float scale, float *restrict dst)
{
    for (int64_t i = 0; i < n; i++) {
        float *restrict to = dst + i * padded;
        FSDP__EACH_FLOAT(dtype, T,
                         _Pragma("omp simd") for (int64_t c = 0; c < d; c++) to[c] =
                             fsdp__load(T, src, i * row + c) * scale);
        for (int64_t c = d; c < padded; c++)
            to[c] = 0.0f;
    }
}

/* Computes a tile whose left matrix is stored by rows. Not inlined: it is large, and called from many places. */
static __attribute__((noinline)) void fsdp__tile_across(int64_t rows, int64_t k, const float *a, int64_t a_row,
                                                        const float *b, int64_t b_row, float *c, int64_t c_row,
                                                        bool accumulate)
{
    fsdp__tile(rows, k, a, a_row, 1, b, b_row, c, c_row, accumulate);
}
