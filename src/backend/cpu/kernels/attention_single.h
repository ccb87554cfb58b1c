/* attention_single.h - attention of one query: nothing is packed, and each key and each value is read once, in place.
 * This is the cost of a token if the keys and values of those before it are kept. */
#pragma once

#include "backend/cpu/kernels/attention.h"

/* Returns whether there is a single query and no backward, which would need values that only panels keep. */
FSDP__INLINE bool fsdp__is_single_query(const fsdp__attention_forward_args *k)
{
    return k->q_time == 1 && !k->lse && k->kv_time > 0;
}

/* Computes the scores of the n keys at `keys`, `row` apart. */
FSDP__INLINE void fsdp__single_scores(fsdp_dtype dtype, const float *restrict q, const void *keys, int64_t row,
                                      int64_t n, int64_t d, float *restrict scores)
{
    for (int64_t s = 0; s < n; s++) {
        float sum = 0.0f;

#pragma omp simd reduction(+ : sum)
        for (int64_t c = 0; c < d; c++)
            sum += q[c] * fsdp__load(dtype, keys, s * row + c);
        scores[s] = sum;
    }
}

/* Computes out (d) = the sum of the n values, each times its weight. */
FSDP__INLINE void fsdp__single_values(fsdp_dtype dtype, const float *restrict weights, const void *values, int64_t row,
                                      int64_t n, int64_t d, float *restrict out)
{
    memset(out, 0, (size_t)d * sizeof *out);
    for (int64_t s = 0; s < n; s++) {
        float weight = weights[s];

#pragma omp simd
        for (int64_t c = 0; c < d; c++)
            out[c] += weight * fsdp__load(dtype, values, s * row + c);
    }
}

/* Turns scores into weights, not yet divided by their sum, which it returns. */
static inline float fsdp__single_weights(float *restrict scores, int64_t n)
{
    float top = fsdp__largest(FSDP_F32, scores, n), sum = 0.0f;

    if (top == -INFINITY)
        top = 0.0f; /* every e^x is 0 */
#pragma omp simd reduction(+ : sum)
    for (int64_t s = 0; s < n; s++) {
        scores[s] = fsdp__expf_low(scores[s] - top);
        sum += scores[s];
    }
    return sum;
}

/* Computes one head of one sequence; scratch has the query, the output and the scores. */
static inline void fsdp__single_head(const fsdp__attention_forward_args *k, int64_t b, int64_t h, float *scratch)
{
    int64_t d = k->head_dim, first = fsdp__first_key(k, b, 0), n = k->kv_time - first;
    int64_t g = h / (k->heads / k->kv_heads);
    const void *keys = fsdp__at(k->dtype, k->k, b * k->k_batch + g * k->k_head + first * k->k_stride_time);
    const void *values = fsdp__at(k->dtype, k->v, b * k->v_batch + g * k->v_head + first * k->v_stride_time);
    float *q = scratch, *out = scratch + d, *scores = scratch + 2 * d, sum, factor;

    fsdp__gather_rows(k->dtype, fsdp__at(k->dtype, k->q, b * k->q_batch + h * k->q_head), d, 1, d, d, k->scale, q);
    FSDP__EACH_FLOAT(k->dtype, T, fsdp__single_scores(T, q, keys, k->k_stride_time, n, d, scores));
    if (k->softcap > 0.0f)
        fsdp__cap(scores, k->softcap, n);
    sum = fsdp__single_weights(scores, n);
    FSDP__EACH_FLOAT(k->dtype, T, fsdp__single_values(T, scores, values, k->v_stride_time, n, d, out));
    factor = sum > 0.0f || sum != sum ? 1.0f / sum : 0.0f; /* as in panels: a NaN stays one, all -inf gives zeros */
    FSDP__EACH_FLOAT(k->dtype, T,
                     for (int64_t c = 0; c < d; c++)
                         fsdp__store(T, k->out, b * k->out_batch + h * k->out_head + c, out[c] * factor));
}

static fsdp_status fsdp__attend_single(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    int64_t floats = fsdp__round_up(2 * k->head_dim + k->kv_time, 16), heads = k->batch * k->heads;
    float *scratch = fsdp__stream_workspace(stream, (size_t)(fsdp__threads() * floats) * sizeof *scratch);

    if (!scratch)
        return FSDP_NO_MEMORY;
#pragma omp parallel for schedule(static) if (heads * k->kv_time * k->head_dim > FSDP__PARALLEL_MIN)
    for (int64_t i = 0; i < heads; i++)
        fsdp__single_head(k, i / k->heads, i % k->heads, scratch + fsdp__thread() * floats);
    return FSDP_OK;
}
