/* attention_backward.cu - gradients of attention; probabilities are computed again from the saved lse.
 *
 *     P = e^(scale Q K^T - lse)      dV = P^T dO          D  = row sums of dO * O
 *     dS = P * (dO V^T - D)          dK = scale dS^T Q    dQ = scale dS K
 *
 * See [Note: attention by tiles] in attention.cuh. */
#include "backend/cuda/kernels/attention_tiles.cuh"
#include "backend/cuda/kernels/attention_warps.cuh"

namespace attention
{
enum {
    SUMMERS = 8 /* threads that add up a query's products */
};

struct sum_plan {
    fsdp__attention_backward_args args;
    float *delta; /* (batch, heads, q_time) */
    int64_t rows;
    divisor by_heads, by_time;
    bool aligned;
};

/* Computes D: heads of a query lie side by side, so neighbours read what lies side by side. */
template <class T>
static __global__ void sum_rows(GRID_CONSTANT(sum_plan) p)
{
    const int n = ACCESS / (int)sizeof(T);
    const fsdp__attention_forward_args &k = p.args.forward;

    EACH_ITEM (item, FSDP__ROUND_UP(p.rows * SUMMERS, WARP)) {
        int64_t row = item / SUMMERS, query = quotient(row, p.by_heads), h = row - query * k.heads;
        int64_t b = quotient(query, p.by_time), t = query - b * k.q_time;
        bool real = row < p.rows;
        const T *out = OUT_ROWS(k, k.out, b, t, h).data, *dout = OUT_ROWS(k, p.args.dout, b, t, h).data;
        float sum = 0.0f;

        for (int64_t c = item % SUMMERS * n; real && c < k.head_dim; c += SUMMERS * n) {
            pack<T, n> x = get<n>(out, c, k.head_dim, p.aligned), dx = get<n>(dout, c, k.head_dim, p.aligned);

            UNROLL
            for (int e = 0; e < n; e++)
                sum += to_float(x.at[e]) * to_float(dx.at[e]);
        }
        for (int step = SUMMERS / 2; step > 0; step /= 2)
            sum += __shfl_xor_sync(ALL_LANES, sum, step);
        if (real && item % SUMMERS == 0)
            p.delta[(b * k.heads + h) * k.q_time + t] = sum;
    }
}

template <class T>
static fsdp_status launch_sums(fsdp_stream *stream, const fsdp__attention_backward_args *a, float *delta)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t rows = k->batch * k->q_time * k->heads, items = rows * SUMMERS + WARP;
    int64_t strides = k->out_batch | k->out_stride_time | k->out_head | k->head_dim;
    sum_plan p = {*a, delta, rows, {}, {}, is_aligned(k->out, strides * (int64_t)sizeof(T)) && is_aligned(a->dout, 0)};

    if (rows == 0)
        return FSDP_OK;
    p.by_heads = divisor_of(k->heads, items);
    p.by_time = divisor_of(k->q_time, items);
    return launch(stream, "attention_backward", sum_rows<T>, blocks_for(items, BLOCK), BLOCK, 0, p);
}

/* ---- by ordinary arithmetic ---- */

/* Turns the score of query t and key s into the probability, and dP into dS. */
template <bool NARROW>
DEVICE void gradient_of_score(const fsdp__attention_forward_args &k, float lse, float delta, bool seen, float &p,
                              float &ds)
{
    float score = score_of<NARROW>(k, p);

    p = seen ? expf(score - lse) : 0.0f;
    ds = seen ? p * (ds - delta) * slope_of<NARROW>(k, score) : 0.0f;
}

/* Computes dK and dV of a tile of keys. */
template <class T, int COLUMNS, bool NARROW>
static __global__ void __launch_bounds__(BLOCK)
    backward_keys(GRID_CONSTANT(fsdp__attention_backward_args) a, const float *delta, int64_t tasks)
{
    __shared__ tiles s;
    const fsdp__attention_forward_args &k = a.forward;

    EACH_ROW (task, tasks) {
        place p = place_of<COLUMNS>(task, k.kv_heads, k.batch, k.head_dim);
        int64_t s0 = p.tile * TILE, group = k.heads / k.kv_heads, first = first_query(k, s0) / TILE * TILE;
        int keys = (int)at_most(k.kv_time - s0, TILE);
        int64_t end = end_seen<NARROW>(k, p.batch, s0 + keys - 1, first);
        square dk[COLUMNS / TILE] = {}, dv[COLUMNS / TILE] = {};
        const float scale[4] = {k.scale, k.scale, k.scale, k.scale}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};

        for (int64_t h = p.head * group; h < (p.head + 1) * group; h++)
            for (int64_t t0 = first; t0 < end; t0 += TILE) {
                int n = (int)at_most(k.q_time - t0, TILE);
                rows_of<const T> q = Q_ROWS(k, p.batch, t0, h), dout = OUT_ROWS(k, a.dout, p.batch, t0, h);
                square x, dx;

                multiply_rows<T>(x, s, K_ROWS(k, p.batch, s0, p.head), keys, q, n, k.head_dim);
                multiply_rows<T>(dx, s, V_ROWS(k, p.batch, s0, p.head), keys, dout, n, k.head_dim);
                for (int j = 0; j < 4; j++) {
                    int c = 4 * tile_x() + j;
                    int64_t row = (p.batch * k.heads + h) * k.q_time + t0 + c;
                    int64_t seen = c < n ? keys_seen(k, t0 + c) - s0 : 0,
                            from = first_seen<NARROW>(k, p.batch, t0 + c) - s0;
                    float lse = c < n ? k.lse[row] : 0.0f, d = c < n ? delta[row] : 0.0f;

                    for (int i = 0; i < 4; i++) {
                        int r = 4 * tile_y() + i;
                        gradient_of_score<NARROW>(k, lse, d, r < seen && (!NARROW || r >= from), x[i][j], dx[i][j]);
                    }
                }
                keep_factor(s, x);
                add_product<T, COLUMNS>(dv, s, dout, n, p.column, k.head_dim);
                __syncthreads();
                keep_factor(s, dx);
                add_product<T, COLUMNS>(dk, s, q, n, p.column, k.head_dim);
            }
        store_rows<T, COLUMNS>(dk, scale,
                               rows_at<T>(a.dk, p.batch, a.dk_batch, s0, a.dk_stride_time, p.head, a.dk_head), keys,
                               p.column, k.head_dim);
        store_rows<T, COLUMNS>(dv, one, rows_at<T>(a.dv, p.batch, a.dv_batch, s0, a.dv_stride_time, p.head, a.dv_head),
                               keys, p.column, k.head_dim);
    }
}

/* dQ of a tile of queries. */
template <class T, int COLUMNS, bool NARROW>
static __global__ void __launch_bounds__(BLOCK)
    backward_queries(GRID_CONSTANT(fsdp__attention_backward_args) a, const float *delta, int64_t tasks)
{
    __shared__ tiles s;
    const fsdp__attention_forward_args &k = a.forward;

    EACH_ROW (task, tasks) {
        /* Late tiles see more keys, so they come first. */
        place p = place_of<COLUMNS>(tasks - 1 - task, k.heads, k.batch, k.head_dim);
        int64_t t0 = p.tile * TILE, kv = p.head / (k.heads / k.kv_heads);
        int rows = (int)at_most(k.q_time - t0, TILE);
        int64_t end = keys_seen(k, t0 + rows - 1), row = (p.batch * k.heads + p.head) * k.q_time + t0;
        square dq[COLUMNS / TILE] = {};
        const float scale[4] = {k.scale, k.scale, k.scale, k.scale};

        for (int64_t s0 = first_seen<NARROW>(k, p.batch, t0) / TILE * TILE; s0 < end; s0 += TILE) {
            int n = (int)at_most(k.kv_time - s0, TILE);
            rows_of<const T> keys = K_ROWS(k, p.batch, s0, kv);
            square x, dx;

            multiply_rows<T>(x, s, Q_ROWS(k, p.batch, t0, p.head), rows, keys, n, k.head_dim);
            multiply_rows<T>(dx, s, OUT_ROWS(k, a.dout, p.batch, t0, p.head), rows, V_ROWS(k, p.batch, s0, kv), n,
                             k.head_dim);
            for (int i = 0; i < 4; i++) {
                int r = 4 * tile_y() + i;
                int64_t seen = r < rows ? at_most(keys_seen(k, t0 + r) - s0, n) : 0;
                int64_t from = first_seen<NARROW>(k, p.batch, t0 + r) - s0;
                float lse = r < rows ? k.lse[row + r] : 0.0f, d = r < rows ? delta[row + r] : 0.0f;

                for (int j = 0; j < 4; j++) {
                    int c = 4 * tile_x() + j;
                    gradient_of_score<NARROW>(k, lse, d, c < seen && (!NARROW || c >= from), x[i][j], dx[i][j]);
                }
            }
            keep_factor(s, dx);
            add_product<T, COLUMNS>(dq, s, keys, n, p.column, k.head_dim);
        }
        store_rows<T, COLUMNS>(dq, scale,
                               rows_at<T>(a.dq, p.batch, a.dq_batch, t0, a.dq_stride_time, p.head, a.dq_head), rows,
                               p.column, k.head_dim);
    }
}

template <class T, int COLUMNS, bool NARROW>
static fsdp_status launch_columns(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t each = k->batch * parts(k->head_dim, COLUMNS), key_tasks = parts(k->kv_time, TILE) * k->kv_heads * each;
    int64_t query_tasks = parts(k->q_time, TILE) * k->heads * each;

    FSDP_TRY(launch(stream, "attention_backward", backward_keys<T, COLUMNS, NARROW>, blocks_for(key_tasks, 1), BLOCK, 0,
                    *a, delta, key_tasks));
    return launch(stream, "attention_backward", backward_queries<T, COLUMNS, NARROW>, blocks_for(query_tasks, 1), BLOCK,
                  0, *a, delta, query_tasks);
}

template <class T, bool NARROW>
static fsdp_status launch_tiles_of(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    if constexpr (sizeof(T) == sizeof(float)) /* narrow heads of other types take tensor cores */
        if (a->forward.head_dim <= TILE)
            return launch_columns<T, TILE, NARROW>(stream, a, delta);
    return launch_columns<T, MOST_COLUMNS, NARROW>(stream, a, delta);
}

template <class T>
static fsdp_status launch_tiles(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    return is_narrow(a->forward) ? launch_tiles_of<T, true>(stream, a, delta)
                                 : launch_tiles_of<T, false>(stream, a, delta);
}

/* ---- on tensor cores ---- */

/* Turns a score into the probability and dP into dS; the lse is to the base 2 (+inf where there is no query: both are
 * 0). `scale` is that of scores to the base 2. */
template <class S>
DEVICE void gradient_of_power(const fsdp__attention_forward_args &k, float scale, float lse, float delta, float &p,
                              float &ds)
{
    if (S::NARROW && k.softcap > 0.0f) {
        float score = score_of<true>(k, p);

        p = exp2_fast(score * LOG2_E - lse);
        ds = p * (ds - delta) * slope_of<true>(k, score);
    } else {
        p = exp2_fast(p * scale - lse);
        ds = p * (ds - delta);
    }
}

/* Holds what is known of the queries of a tile, in shared memory. */
template <class S>
struct __align__(8) query_sums
{
    float lse[S::OTHERS], delta[S::OTHERS];
};

/* Loads the sums of n queries, of which `row` is the first one's place. */
template <class S>
DEVICE void load_sums(query_sums<S> &to, const float *lse, const float *delta, int64_t row, int64_t n)
{
    for (int i = (int)threadIdx.x; i < S::OTHERS; i += THREADS) {
        to.lse[i] = i < n ? lse[row + i] * LOG2_E : INFINITY;
        to.delta[i] = i < n ? delta[row + i] : 0.0f;
    }
}

/* Sets to zero the elements of keys (rows, from s0 on) and queries (columns, from t0 on) where the query does not see
 * the key. */
template <class S>
DEVICE void hide_from_queries(const fsdp__attention_forward_args &k, int64_t batch, typename S::scores &p,
                              typename S::scores &ds, int64_t s0, int64_t t0)
{
    int lane = lane_of_warp();
    int64_t seen = t0 + ahead(k) - s0; /* the first query sees the keys up to this one */

    if (!k.causal || (seen >= S::WARP_ROWS - 1 && (!S::NARROW || s0 >= first_key(k, batch, t0 + S::OTHERS - 1))))
        return;
    UNROLL
    for (int m = 0; m < S::FOLD; m++)
        UNROLL
    for (int n = 0; n < S::OTHERS / 8; n++)
        UNROLL
    for (int i = 0; i < 4; i++) {
        int row = 16 * m + lane / 4 + i / 2 * 8, column = 8 * n + lane % 4 * 2 + i % 2;

        if (row > column + (int)seen || (S::NARROW && s0 + row < first_key(k, batch, t0 + column)))
            p[m][n][i] = ds[m][n][i] = 0.0f;
    }
}

/* Adds what the queries from t0 on, in shared memory, give to the warp's keys, which begin at s0. */
template <class S, class T>
DEVICE void add_queries(const fsdp__attention_forward_args &k, int64_t batch, const T *own, const T *pair,
                        const query_sums<S> &sums, int64_t s0, int64_t t0, typename S::sums &dk, typename S::sums &dv)
{
    const T *q = pair, *dout = pair + S::OTHERS * S::ROW;
    float scale = k.scale * LOG2_E;
    typename S::scores x, dx;
    int column = lane_of_warp() % 4 * 2;

    if (s0 >= k.kv_time || (k.causal && s0 > t0 + S::OTHERS - 1 + ahead(k)))
        return;
    if (S::NARROW && s0 + S::WARP_ROWS <= first_key(k, batch, t0))
        return;
    multiply_tiles<S>(x, own, q);
    multiply_tiles<S>(dx, own + S::ROWS * S::ROW, dout);
    UNROLL
    for (int n = 0; n < S::OTHERS / 8; n++) {
        float2 lse = *(const float2 *)&sums.lse[8 * n + column], delta = *(const float2 *)&sums.delta[8 * n + column];

        UNROLL
        for (int m = 0; m < S::FOLD; m++)
            UNROLL
        for (int i = 0; i < 4; i += 2) {
            gradient_of_power<S>(k, scale, lse.x, delta.x, x[m][n][i], dx[m][n][i]);
            gradient_of_power<S>(k, scale, lse.y, delta.y, x[m][n][i + 1], dx[m][n][i + 1]);
        }
    }
    hide_from_queries<S>(k, batch, x, dx, s0, t0);
    add_tile<S>(dv, x, dout);
    add_tile<S>(dk, dx, q);
}

/* Begins to copy the queries of a head from t0 on, with dO, and loads their sums. */
template <class S>
DEVICE void stage_queries(const fsdp__attention_backward_args &a, const float *delta, typename S::type *pair,
                          query_sums<S> &sums, int64_t batch, int64_t head, int64_t t0)
{
    typedef typename S::type T;
    const fsdp__attention_forward_args &k = a.forward;
    int64_t n = k.q_time - t0;

    stage_pair<S>(pair, Q_ROWS(k, batch, t0, head), OUT_ROWS(k, a.dout, batch, t0, head), S::OTHERS, n,
                  (int)k.head_dim);
    load_sums<S>(sums, k.lse, delta, (batch * k.heads + head) * k.q_time + t0, n);
}

/* Computes dK and dV of a tile of keys. */
template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
    keys_by_warps(GRID_CONSTANT(fsdp__attention_backward_args) a, const float *delta, int64_t tasks)
{
    typedef typename S::type T;
    __shared__ query_sums<S> sums[2];
    SHARED_BYTES(T, shared);
    const fsdp__attention_forward_args &k = a.forward;
    int row = (int)threadIdx.x / WARP * S::WARP_ROWS, dim = (int)k.head_dim; /* the warp's first */
    T *own = shared + row * S::ROW, *pairs = shared + 2 * S::ROWS * S::ROW;

    EACH_ROW (task, tasks) {
        place p = place_of<S::WIDTH>(task, k.kv_heads, k.batch, dim);
        int64_t s0 = p.tile * S::ROWS, from = first_query(k, s0), group = k.heads / k.kv_heads;
        int64_t end = end_seen<S::NARROW>(k, p.batch, at_most(s0 + S::ROWS, k.kv_time) - 1, from);
        int64_t steps = parts(end - from, S::OTHERS) * group, head = p.head * group, t0 = from;
        typename S::sums dk = {}, dv = {};
        float scale[S::FOLD][2], one[S::FOLD][2];

        await_stage();
        stage_pair<S>(shared, K_ROWS(k, p.batch, s0, p.head), V_ROWS(k, p.batch, s0, p.head), S::ROWS, k.kv_time - s0,
                      dim);
        if (steps > 0)
            stage_queries<S>(a, delta, pairs, sums[0], p.batch, head, t0);
        for (int64_t i = 0; i < steps; i++) {
            int64_t now = t0, turn = i % 2;

            await_stage();
            t0 += S::OTHERS;
            if (t0 >= end)
                t0 = from, head++;
            if (i + 1 < steps)
                stage_queries<S>(a, delta, pairs + (1 - turn) * 2 * S::OTHERS * S::ROW, sums[1 - turn], p.batch, head,
                                 t0);
            add_queries<S>(k, p.batch, own, pairs + turn * 2 * S::OTHERS * S::ROW, sums[turn], s0 + row, now, dk, dv);
        }
        await_stage();
        for (int i = 0; i < 2 * S::FOLD; i++)
            scale[i / 2][i % 2] = k.scale, one[i / 2][i % 2] = 1.0f;
        store_sums<S>(dk, scale, own,
                      rows_at<T>(a.dk, p.batch, a.dk_batch, s0 + row, a.dk_stride_time, p.head, a.dk_head),
                      k.kv_time - s0 - row, dim);
        store_sums<S>(dv, one, own,
                      rows_at<T>(a.dv, p.batch, a.dv_batch, s0 + row, a.dv_stride_time, p.head, a.dv_head),
                      k.kv_time - s0 - row, dim);
    }
}

/* Holds what a lane knows of its queries. */
template <class S>
struct own_sums {
    float lse[S::FOLD][2], delta[S::FOLD][2];
};

/* Loads the sums of the warp's queries, n of which are real; `row` is the first one's place. */
template <class S>
DEVICE void load_own_sums(own_sums<S> &to, const float *lse, const float *delta, int64_t row, int64_t n)
{
    for (int m = 0; m < S::FOLD; m++)
        for (int i = 0; i < 2; i++) {
            int r = 16 * m + lane_of_warp() / 4 + 8 * i;

            to.lse[m][i] = r < n ? lse[row + r] * LOG2_E : INFINITY;
            to.delta[m][i] = r < n ? delta[row + r] : 0.0f;
        }
}

/* Adds what the keys from s0 on, in shared memory, give to the gradients of the warp's queries, which begin at t0. */
template <class S, class T>
DEVICE void add_keys(const fsdp__attention_forward_args &k, int64_t batch, const T *own, const T *pair,
                     const own_sums<S> &sums, int64_t t0, int64_t s0, typename S::sums &dq)
{
    typename S::scores x, dx;
    float scale = k.scale * LOG2_E;

    if (t0 >= k.q_time || s0 >= keys_seen(k, t0 + S::WARP_ROWS - 1))
        return;
    if (S::NARROW && s0 + S::OTHERS <= first_key(k, batch, t0))
        return;
    multiply_tiles<S>(x, own, pair);
    multiply_tiles<S>(dx, own + S::ROWS * S::ROW, pair + S::OTHERS * S::ROW);
    UNROLL
    for (int m = 0; m < S::FOLD; m++)
        UNROLL
    for (int n = 0; n < S::OTHERS / 8; n++)
        UNROLL
    for (int i = 0; i < 4; i++)
        gradient_of_power<S>(k, scale, sums.lse[m][i / 2], sums.delta[m][i / 2], x[m][n][i], dx[m][n][i]);
    hide_keys<S>(k, batch, dx, 0.0f, t0, s0);
    add_tile<S>(dq, dx, pair);
}

/* dQ of a tile of queries. */
template <class S>
static __global__ void __launch_bounds__(THREADS, S::BLOCKS)
    queries_by_warps(GRID_CONSTANT(fsdp__attention_backward_args) a, const float *delta, int64_t tasks)
{
    typedef typename S::type T;
    SHARED_BYTES(T, shared);
    const fsdp__attention_forward_args &k = a.forward;
    int row = (int)threadIdx.x / WARP * S::WARP_ROWS, dim = (int)k.head_dim;
    T *own = shared + row * S::ROW, *pairs = shared + 2 * S::ROWS * S::ROW;

    EACH_ROW (task, tasks) {
        place p = place_of<S::WIDTH>(tasks - 1 - task, k.heads, k.batch, dim);
        int64_t t0 = p.tile * S::ROWS, end = keys_seen(k, at_most(t0 + S::ROWS, k.q_time) - 1);
        int64_t kv = p.head / (k.heads / k.kv_heads),
                place_of_sums = (p.batch * k.heads + p.head) * k.q_time + t0 + row;
        rows_of<const T> keys = K_ROWS(k, p.batch, 0, kv), values = V_ROWS(k, p.batch, 0, kv);
        int64_t begin = first_seen<S::NARROW>(k, p.batch, t0) / S::OTHERS * S::OTHERS;
        typename S::sums dq = {};
        own_sums<S> sums;
        float scale[S::FOLD][2];

        await_stage();
        stage_pair<S>(shared, Q_ROWS(k, p.batch, t0, p.head), OUT_ROWS(k, a.dout, p.batch, t0, p.head), S::ROWS,
                      k.q_time - t0, dim);
        stage_pair<S>(pairs, later(keys, begin), later(values, begin), S::OTHERS, k.kv_time - begin, dim);
        load_own_sums<S>(sums, k.lse, delta, place_of_sums, k.q_time - t0 - row);
        for (int64_t s = begin, turn = 0; s < end; s += S::OTHERS, turn = 1 - turn) {
            int64_t next = s + S::OTHERS;

            await_stage();
            if (next < end)
                stage_pair<S>(pairs + (1 - turn) * 2 * S::OTHERS * S::ROW, later(keys, next), later(values, next),
                              S::OTHERS, k.kv_time - next, dim);
            add_keys<S>(k, p.batch, own, pairs + turn * 2 * S::OTHERS * S::ROW, sums, t0 + row, s, dq);
        }
        await_stage();
        for (int i = 0; i < 2 * S::FOLD; i++)
            scale[i / 2][i % 2] = k.scale;
        store_sums<S>(dq, scale, own,
                      rows_at<T>(a.dq, p.batch, a.dq_batch, t0 + row, a.dq_stride_time, p.head, a.dq_head),
                      k.q_time - t0 - row, dim);
    }
}

template <class Keys, class Queries>
static fsdp_status launch_shapes(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t key_tasks = parts(k->kv_time, Keys::ROWS) * k->batch * k->kv_heads;
    int64_t query_tasks = parts(k->q_time, Queries::ROWS) * k->batch * k->heads;

    FSDP_TRY(launch(stream, "attention_backward", keys_by_warps<Keys>, blocks_for(key_tasks, 1), THREADS,
                    shared_bytes<Keys>(2), *a, delta, key_tasks));
    return launch(stream, "attention_backward", queries_by_warps<Queries>, blocks_for(query_tasks, 1), THREADS,
                  shared_bytes<Queries>(2), *a, delta, query_tasks);
}

template <class T, bool NARROW>
static fsdp_status launch_widths(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    int64_t dim = a->forward.head_dim;

    if (dim <= 32)
        return launch_shapes<shape<T, 32, 2, 32, NARROW>, shape<T, 32, 2, 32, NARROW>>(stream, a, delta);
    if (dim <= 64)
        return launch_shapes<shape<T, 64, 2, 32, NARROW, 0>, shape<T, 64, 2, 32, NARROW, NARROW ? 0 : 3>>(stream, a,
                                                                                                          delta);
    if (dim <= 96)
        return launch_shapes<shape<T, 96, 1, 32, NARROW>, shape<T, 96, 1, 32, NARROW>>(stream, a, delta);
    return launch_shapes<shape<T, 128, 1, 32, NARROW>, shape<T, 128, 1, 64, NARROW>>(stream, a, delta);
}

template <class T>
static fsdp_status launch_warps(fsdp_stream *stream, const fsdp__attention_backward_args *a, const float *delta)
{
    return is_narrow(a->forward) ? launch_widths<T, true>(stream, a, delta) : launch_widths<T, false>(stream, a, delta);
}

/* ---- both ---- */

/* Computes D, then the gradients. */
template <class T>
static fsdp_status launch_backward(fsdp_stream *stream, const fsdp__attention_backward_args *a, float *delta,
                                   fsdp_status (*gradients)(fsdp_stream *, const fsdp__attention_backward_args *,
                                                            const float *))
{
    FSDP_TRY(launch_sums<T>(stream, a, delta));
    return gradients(stream, a, delta);
}
} // namespace attention

using namespace attention;

ENTRY_LIKE(own_attention_backward, attention_backward, given)
{
    fsdp__attention_backward_args a = *given;
    const fsdp__attention_forward_args *k = &a.forward;
    int64_t rows = k->batch * k->heads * k->q_time; /* if there are none, keys get zeros */
    float *delta = (float *)fsdp__stream_workspace(stream, (size_t)(rows + 1) * sizeof(float));

    if (!delta)
        return fsdp_last_status();
    if (a.dq_batch == 0) {
        a.dq_batch = k->q_batch, a.dq_stride_time = k->q_stride_time, a.dq_head = k->q_head;
        a.dk_batch = k->k_batch, a.dk_stride_time = k->k_stride_time, a.dk_head = k->k_head;
        a.dv_batch = k->v_batch, a.dv_stride_time = k->v_stride_time, a.dv_head = k->v_head;
    }
    if (k->head_dim <= MOST_WIDTH)
        EACH_HALF(k->dtype, T, return launch_backward<T>(stream, &a, delta, launch_warps<T>));
    EACH_FLOAT(k->dtype, T, return launch_backward<T>(stream, &a, delta, launch_tiles<T>));
    return FSDP_OK;
}
