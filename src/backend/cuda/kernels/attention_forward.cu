/* attention_forward.cu - softmax(scale Q K^T) V with a running maximum and sum for each query.
 * See [Note: attention by tiles] in attention.cuh. */
#include "backend/cuda/kernels/attention_single.cuh"
#include "backend/cuda/kernels/attention_tiles.cuh"
#include "backend/cuda/kernels/attention_warps.cuh"

namespace attention
{
/* ---- by ordinary arithmetic ---- */

/* Holds what a thread knows of its four queries. */
struct running {
    float top[4], sum[4]; /* the sum is over the thread's own keys */
};

/* Turns scores into e^(score - running maximum), for `n` keys from s0 on, and scales what was summed before. */
template <bool NARROW, int PARTS>
DEVICE void softmax_tile(const fsdp__attention_forward_args &k, int64_t batch, square &x, running &w,
                         square (&out)[PARTS], int64_t t0, int64_t s0, int n)
{
    for (int i = 0; i < 4; i++) {
        int64_t t = t0 + 4 * tile_y() + i, seen = at_most(keys_seen(k, t) - s0, n),
                first = first_seen<NARROW>(k, batch, t) - s0;
        float top = w.top[i], base, scaled;

        for (int j = 0; j < 4; j++) {
            int s = 4 * tile_x() + j;

            x[i][j] = s < seen && (!NARROW || s >= first) ? score_of<NARROW>(k, x[i][j]) : -INFINITY;
            top = larger(top, x[i][j]);
        }
        for (int step = SIDE / 2; step > 0; step /= 2)
            top = larger(top, __shfl_xor_sync(ALL_LANES, top, step));
        base = top == -INFINITY ? 0.0f : top; /* only -inf so far: every e^x is 0 */
        scaled = expf(w.top[i] - base);
        w.top[i] = top;
        w.sum[i] *= scaled;
        for (int j = 0; j < 4; j++) {
            x[i][j] = expf(x[i][j] - base);
            w.sum[i] += x[i][j];
            for (int part = 0; part < PARTS; part++)
                out[part][i][j] *= scaled;
        }
    }
}

/* Turns sums into the factors of the output's rows; stores the lse if the block has the head's first columns. */
DEVICE void finish_rows(const fsdp__attention_forward_args &k, const running &w, const place &p, int n,
                        float (&factor)[4])
{
    for (int i = 0; i < 4; i++) {
        int64_t r = 4 * tile_y() + i, t = p.tile * TILE + r;
        float sum = w.sum[i];

        for (int step = SIDE / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        /* A NaN must stay one; a query that sees nothing gives zeros. */
        factor[i] = sum > 0.0f || sum != sum ? 1.0f / sum : 0.0f;
        if (k.lse && p.column == 0 && tile_x() == 0 && r < n)
            k.lse[(p.batch * k.heads + p.head) * k.q_time + t] = sum == 0.0f ? -INFINITY : w.top[i] + logf(sum);
    }
}

template <class T, int COLUMNS, bool NARROW>
static __global__ void __launch_bounds__(BLOCK) attend(GRID_CONSTANT(fsdp__attention_forward_args) k, int64_t tasks)
{
    __shared__ tiles s;

    EACH_ROW (task, tasks) {
        /* Late tiles see more keys, so they come first. */
        place p = place_of<COLUMNS>(tasks - 1 - task, k.heads, k.batch, k.head_dim);
        int64_t t0 = p.tile * TILE, group = k.heads / k.kv_heads;
        int rows = (int)at_most(k.q_time - t0, TILE);
        int64_t end = keys_seen(k, t0 + rows - 1);
        square out[COLUMNS / TILE] = {};
        running w = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {}};
        float factor[4];

        for (int64_t s0 = first_seen<NARROW>(k, p.batch, t0) / TILE * TILE; s0 < end; s0 += TILE) {
            int n = (int)at_most(k.kv_time - s0, TILE);
            square x;

            multiply_rows<T>(x, s, Q_ROWS(k, p.batch, t0, p.head), rows, K_ROWS(k, p.batch, s0, p.head / group), n,
                             k.head_dim);
            softmax_tile<NARROW>(k, p.batch, x, w, out, t0, s0, n);
            keep_factor(s, x);
            add_product<T, COLUMNS>(out, s, V_ROWS(k, p.batch, s0, p.head / group), n, p.column, k.head_dim);
        }
        finish_rows(k, w, p, rows, factor);
        store_rows<T, COLUMNS>(out, factor,
                               rows_at<T>(k.out, p.batch, k.out_batch, t0, k.out_stride_time, p.head, k.out_head), rows,
                               p.column, k.head_dim);
    }
}

template <class T, int COLUMNS, bool NARROW>
static fsdp_status launch_columns(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    int64_t tasks = parts(k->q_time, TILE) * k->batch * k->heads * parts(k->head_dim, COLUMNS);

    return launch(stream, "attention_forward", attend<T, COLUMNS, NARROW>, blocks_for(tasks, 1), BLOCK, 0, *k, tasks);
}

template <class T, bool NARROW>
static fsdp_status launch_tiles(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    if constexpr (sizeof(T) == sizeof(float)) /* narrow heads of other types take tensor cores */
        if (k->head_dim <= TILE)
            return launch_columns<T, TILE, NARROW>(stream, k);
    return launch_columns<T, MOST_COLUMNS, NARROW>(stream, k);
}

/* ---- on tensor cores ---- */

/* Holds what a lane knows of its queries; tops are logarithms to the base 2, and sums are over the lane's own keys. */
template <class S>
struct warp_running {
    float top[S::FOLD][2], sum[S::FOLD][2];
};

/* Turns scores into 2^(score - running maximum) and scales what was summed before. A NaN gets lost in the maximum, but
 * comes back in the sum. */
template <class S>
DEVICE void softmax_scores(typename S::scores &x, warp_running<S> &w, typename S::sums &out)
{
    for (int m = 0; m < S::FOLD; m++)
        for (int i = 0; i < 2; i++) {
            float top = w.top[m][i], base, scaled;

            for (int n = 0; n < S::OTHERS / 8; n++)
                top = fmaxf(top, fmaxf(x[m][n][2 * i], x[m][n][2 * i + 1]));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 1));
            top = fmaxf(top, __shfl_xor_sync(ALL_LANES, top, 2));
            base = top == -INFINITY ? 0.0f : top; /* only -inf so far: every power is 0 */
            scaled = exp2_fast(w.top[m][i] - base);
            w.top[m][i] = top;
            w.sum[m][i] *= scaled;
            for (int n = 0; n < S::OTHERS / 8; n++)
                for (int j = 2 * i; j < 2 * i + 2; j++) {
                    x[m][n][j] = exp2_fast(x[m][n][j] - base);
                    w.sum[m][i] += x[m][n][j];
                }
            for (int c = 0; c < S::WIDTH / 8; c++) {
                out[m][c][2 * i] *= scaled;
                out[m][c][2 * i + 1] *= scaled;
            }
        }
}

/* Does the same as finish_rows(); the warp's rows begin at query t0. */
template <class S>
DEVICE void finish_sums(const fsdp__attention_forward_args &k, const warp_running<S> &w, const place &p, int64_t t0,
                        float (&factor)[S::FOLD][2])
{
    for (int m = 0; m < S::FOLD; m++)
        for (int i = 0; i < 2; i++) {
            int64_t t = t0 + 16 * m + lane_of_warp() / 4 + 8 * i;
            float sum = w.sum[m][i];

            sum += __shfl_xor_sync(ALL_LANES, sum, 1);
            sum += __shfl_xor_sync(ALL_LANES, sum, 2);
            factor[m][i] = sum > 0.0f || sum != sum ? 1.0f / sum : 0.0f;
            if (k.lse && lane_of_warp() % 4 == 0 && t < k.q_time)
                k.lse[(p.batch * k.heads + p.head) * k.q_time + t] =
                    sum == 0.0f ? -INFINITY : (w.top[m][i] + log2f(sum)) * LN_2;
        }
}

/* Takes the keys and values from s0 on, in shared memory; the warp's rows begin at query t0. */
template <class S, class T>
DEVICE void attend_keys(const fsdp__attention_forward_args &k, int64_t batch, const T *own, const T *keys, int64_t t0,
                        int64_t s0, warp_running<S> &w, typename S::sums &out)
{
    typename S::scores x;
    float scale = k.scale * LOG2_E;

    if (t0 >= k.q_time || s0 >= keys_seen(k, t0 + S::WARP_ROWS - 1))
        return;
    if (S::NARROW && s0 + S::OTHERS <= first_key(k, batch, t0))
        return;
    multiply_tiles<S>(x, own, keys);
    UNROLL
    for (int m = 0; m < S::FOLD; m++)
        UNROLL
    for (int n = 0; n < S::OTHERS / 8; n++)
        UNROLL
    for (int i = 0; i < 4; i++)
        x[m][n][i] = S::NARROW ? score_of<S::NARROW>(k, x[m][n][i]) * LOG2_E : x[m][n][i] * scale;
    hide_keys<S>(k, batch, x, -INFINITY, t0, s0);
    softmax_scores<S>(x, w, out);
    add_tile<S>(out, x, keys + S::OTHERS * S::ROW);
}

template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
    attend_by_warps(GRID_CONSTANT(fsdp__attention_forward_args) k, int64_t tasks)
{
    typedef typename S::type T;
    SHARED_BYTES(T, shared);
    T *own = shared + threadIdx.x / WARP * S::WARP_ROWS * S::ROW, *pair = shared + S::ROWS * S::ROW;
    int dim = (int)k.head_dim;

    EACH_ROW (task, tasks) {
        place p = place_of<S::WIDTH>(tasks - 1 - task, k.heads, k.batch, dim);
        int64_t t0 = p.tile * S::ROWS, first = t0 + (int)threadIdx.x / WARP * S::WARP_ROWS;
        int64_t end = keys_seen(k, at_most(t0 + S::ROWS, k.q_time) - 1), kv = p.head / (k.heads / k.kv_heads);
        int64_t begin = first_seen<S::NARROW>(k, p.batch, t0) / S::OTHERS * S::OTHERS;
        rows_of<const T> keys = K_ROWS(k, p.batch, 0, kv), values = V_ROWS(k, p.batch, 0, kv);
        typename S::sums out = {};
        warp_running<S> w;
        float factor[S::FOLD][2];

        for (int i = 0; i < 2 * S::FOLD; i++)
            w.top[i / 2][i % 2] = -INFINITY, w.sum[i / 2][i % 2] = 0.0f;
        await_stage();
        stage_rows<S>(shared, Q_ROWS(k, p.batch, t0, p.head), S::ROWS, k.q_time - t0, dim);
        stage_pair<S>(pair, later(keys, begin), later(values, begin), S::OTHERS, k.kv_time - begin, dim);
        for (int64_t s0 = begin, turn = 0; s0 < end; s0 += S::OTHERS, turn = 1 - turn) {
            int64_t next = s0 + S::OTHERS;

            await_stage();
            if (next < end)
                stage_pair<S>(pair + (1 - turn) * 2 * S::OTHERS * S::ROW, later(keys, next), later(values, next),
                              S::OTHERS, k.kv_time - next, dim);
            attend_keys<S>(k, p.batch, own, pair + turn * 2 * S::OTHERS * S::ROW, first, s0, w, out);
        }
        await_stage();
        finish_sums<S>(k, w, p, first, factor);
        store_sums<S>(out, factor, own,
                      rows_at<T>(k.out, p.batch, k.out_batch, first, k.out_stride_time, p.head, k.out_head),
                      k.q_time - first, dim);
    }
}

template <class S>
static fsdp_status launch_shape(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    int64_t tasks = parts(k->q_time, S::ROWS) * k->batch * k->heads;

    return launch(stream, "attention_forward", attend_by_warps<S>, blocks_for(tasks, 1), THREADS, shared_bytes<S>(1),
                  *k, tasks);
}

template <class T, bool NARROW>
static fsdp_status launch_warps(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    if (k->head_dim <= 32)
        return launch_shape<shape<T, 32, 2, 64, NARROW>>(stream, k);
    if (k->head_dim <= 64)
        return launch_shape<shape<T, 64, 2, 32, NARROW, NARROW ? 0 : 3>>(stream, k);
    if (k->head_dim <= 96)
        return launch_shape<shape<T, 96, 1, 64, NARROW>>(stream, k);
    return launch_shape<shape<T, 128, 1, 64, NARROW>>(stream, k);
}
} // namespace attention

using namespace attention;

ENTRY_LIKE(own_attention_forward, attention_forward, k)
{
    if (k->q_time == 1)
        EACH_FLOAT(k->dtype, T, return launch_single<T>(stream, k));
    if (k->head_dim <= MOST_WIDTH)
        EACH_HALF(k->dtype, T,
                  return is_narrow(*k) ? launch_warps<T, true>(stream, k) : launch_warps<T, false>(stream, k));
    EACH_FLOAT(k->dtype, T,
               return is_narrow(*k) ? launch_tiles<T, true>(stream, k) : launch_tiles<T, false>(stream, k));
    return FSDP_OK;
}
