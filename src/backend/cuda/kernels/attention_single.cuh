/* attention_single.cuh - attention of one query: the cost of a token if the keys and values of those before it are
 * kept. All keys are read once, so what counts is that many blocks read: a block takes a panel of keys of one head, and
 * a second kernel folds the panels in order. */
#pragma once

#include "backend/cuda/kernels/attention.cuh"

namespace attention
{
enum {
    PANEL = 256,                /* keys of a block: as many as it has threads */
    PANEL_WARPS = PANEL / WARP, /* they take the keys in turns, and sum up their values */
    TEAM = 8,                   /* lanes that compute a score together */
    STRIP = 4 * WARP            /* columns of the values at a time */
};

/* Holds what panels leave behind: for each head of each batch element and each panel the largest score, the sum of
 * e^(score - largest), and `dim` sums of values. */
struct panels {
    float *data;
    int64_t count, dim;
};

DEVICE float *panel_at(const panels &p, int64_t head, int64_t panel)
{
    return p.data + (head * p.count + panel) * (p.dim + 2);
}

template <class T>
struct __align__(16) piece
{
    T at[16 / sizeof(T)];
};

/* Returns this lane's share of the product of a query and a key. */
template <class T>
DEVICE float share_of_score(const T *q, const T *key, bool pieces, int64_t dim)
{
    enum {
        PIECE = 16 / sizeof(T)
    };
    int lane = (int)threadIdx.x % TEAM;
    float sum = 0.0f;

    if (!pieces) {
        for (int64_t c = lane; c < dim; c += TEAM)
            sum += load(q, c) * load(key, c);
        return sum;
    }
    for (int64_t c = lane * PIECE; c < dim; c += TEAM * PIECE) {
        piece<T> x = *(const piece<T> *)(q + c), y = *(const piece<T> *)(key + c);

        for (int i = 0; i < PIECE; i++)
            sum += to_float(x.at[i]) * to_float(y.at[i]);
    }
    return sum;
}

/* Computes the scores of n keys: a team a key. */
template <class T>
DEVICE void score_keys(const fsdp__attention_forward_args &k, float *scores, rows_of<const T> q, rows_of<const T> keys,
                       int n)
{
    int64_t dim = k.head_dim;
    bool pieces = in_pieces(keys, dim) && (uintptr_t)q.data % 16 == 0;

    for (int s = (int)threadIdx.x / TEAM; s < PANEL; s += PANEL / TEAM) {
        float sum = s < n ? share_of_score(q.data, keys.data + s * keys.stride, pieces, dim) : 0.0f;

        for (int step = TEAM / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (threadIdx.x % TEAM == 0)
            scores[s] = s < n ? score_of<true>(k, sum) : -INFINITY;
    }
}

/* Sums up columns [first, first + STRIP) of n values, times their weights. */
template <class T>
DEVICE void sum_values(float *to, float (*parts_of)[STRIP], const float *weights, rows_of<const T> values, int n,
                       int64_t first, int64_t dim)
{
    int warp = (int)threadIdx.x / WARP, lane = lane_of_warp();
    float sum[STRIP / WARP] = {};

    for (int s = warp; s < n; s += PANEL_WARPS)
        for (int i = 0; i < STRIP / WARP; i++)
            if (first + i * WARP + lane < dim)
                sum[i] += weights[s] * load(values.data, s * values.stride + first + i * WARP + lane);
    __syncthreads();
    for (int i = 0; i < STRIP / WARP; i++)
        parts_of[warp][i * WARP + lane] = sum[i];
    __syncthreads();
    for (int c = (int)threadIdx.x; c < STRIP && first + c < dim; c += PANEL) {
        float all = 0.0f;

        for (int w = 0; w < PANEL_WARPS; w++)
            all += parts_of[w][c];
        to[first + c] = all;
    }
}

template <class T>
static __global__ void __launch_bounds__(PANEL)
    attend_panel(GRID_CONSTANT(fsdp__attention_forward_args) k, panels all, int64_t tasks)
{
    __shared__ float scores[PANEL], parts_of[PANEL_WARPS][STRIP], partial[PANEL_WARPS];

    EACH_ROW (task, tasks) {
        int64_t panel = task / (k.batch * k.heads), head = task % (k.batch * k.heads), s0 = panel * PANEL;
        int64_t b = head / k.heads, h = head % k.heads, kv = h / (k.heads / k.kv_heads);
        int n = (int)at_most(k.kv_time - s0, PANEL);
        float *to = panel_at(all, head, panel), score, top, sum;

        __syncthreads();
        score_keys<T>(k, scores, Q_ROWS(k, b, 0, h), K_ROWS(k, b, s0, kv), n);
        __syncthreads();
        score = scores[threadIdx.x];
        top = block_max(score, partial);
        score = expf(score - (top == -INFINITY ? 0.0f : top));
        sum = block_sum(score, partial);
        scores[threadIdx.x] = score;
        __syncthreads();
        if (threadIdx.x == 0)
            to[0] = top, to[1] = sum;
        for (int64_t first = 0; first < k.head_dim; first += STRIP)
            sum_values<T>(to + 2, parts_of, scores, V_ROWS(k, b, s0, kv), n, first, k.head_dim);
    }
}

/* Folds the panels of a head, a thread a column. */
template <class T>
static __global__ void fold_panels(GRID_CONSTANT(fsdp__attention_forward_args) k, panels all)
{
    EACH_ROW (head, k.batch * k.heads) {
        float top = -INFINITY, base, sum = 0.0f, factor;
        T *out = (T *)k.out + head / k.heads * k.out_batch + head % k.heads * k.out_head;

        for (int64_t p = 0; p < all.count; p++)
            top = larger(top, panel_at(all, head, p)[0]);
        base = top == -INFINITY ? 0.0f : top; /* nothing but -inf: every e^x is 0 */
        for (int64_t p = 0; p < all.count; p++)
            sum += panel_at(all, head, p)[1] * expf(panel_at(all, head, p)[0] - base);
        /* A NaN must stay one; a query that sees nothing gives zeros. */
        factor = sum > 0.0f || sum != sum ? 1.0f / sum : 0.0f;
        if (k.lse && threadIdx.x == 0)
            k.lse[head] = sum == 0.0f ? -INFINITY : top + logf(sum);
        for (int64_t c = threadIdx.x; c < k.head_dim; c += blockDim.x) {
            float value = 0.0f;

            for (int64_t p = 0; p < all.count; p++)
                value += panel_at(all, head, p)[2 + c] * expf(panel_at(all, head, p)[0] - base);
            store(out, c, value * factor);
        }
    }
}

template <class T>
static fsdp_status launch_single(fsdp_stream *stream, const fsdp__attention_forward_args *args)
{
    fsdp__attention_forward_args seen = *args, *k = &seen;
    int64_t heads = k->batch * k->heads, hidden = k->window > 0 && k->window < k->kv_time ? k->kv_time - k->window : 0;
    panels all = {NULL, parts(k->kv_time - hidden, PANEL), k->head_dim};

    k->k = (const T *)k->k + hidden * k->k_stride_time;
    k->v = (const T *)k->v + hidden * k->v_stride_time;
    k->kv_time -= hidden;

    all.data = (float *)fsdp__stream_workspace(stream, (size_t)(heads * all.count * (all.dim + 2) + 1) * sizeof(float));
    if (!all.data)
        return fsdp_last_status();
    FSDP_TRY(launch(stream, "attention_forward", attend_panel<T>, blocks_for(heads * all.count, 1), PANEL, 0, *k, all,
                    heads * all.count));
    return launch(stream, "attention_forward", fold_panels<T>, blocks_for(heads, 1), STRIP, 0, *k, all);
}
} // namespace attention
