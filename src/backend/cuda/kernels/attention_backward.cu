/* attention_backward.cu - gradients of attention; probabilities are computed again from the saved lse.
 *
 *     P = e^(scale Q K^T - lse)      dV = P^T dO          D  = row sums of dO * O
 *     dS = P * (dO V^T - D)          dK = scale dS^T Q    dQ = scale dS K
 *
 * See [Note: attention by tiles] in attention.cuh. */
#include "backend/cuda/kernels/attention.cuh"

/* Computes D, (batch, heads, q_time): a warp a query. */
template <class T>
static __global__ void sum_rows(const __grid_constant__ fsdp__attention_backward_args a, float *delta, int64_t rows)
{
    const fsdp__attention_forward_args &k = a.forward;

    for (int64_t row = (int64_t)blockIdx.x * (BLOCK / WARP) + threadIdx.x / WARP; row < rows;
         row += (int64_t)gridDim.x * (BLOCK / WARP)) {
        int64_t t = row % k.q_time, h = row / k.q_time % k.heads, b = row / k.q_time / k.heads;
        const T *out = OUT_ROWS(k, k.out, b, t, h).data, *dout = OUT_ROWS(k, a.dout, b, t, h).data;
        float sum = 0.0f;

        for (int64_t c = lane_of_warp(); c < k.head_dim; c += WARP)
            sum += load(out, c) * load(dout, c);
        sum = warp_sum(sum);
        if (lane_of_warp() == 0)
            delta[row] = sum;
    }
}

/* Turns the score of query t and key s into the probability, and dP into dS. */
DEVICE void gradient_of_score(const fsdp__attention_forward_args &k, float lse, float delta, bool seen, float &p,
                              float &ds)
{
    p = seen ? expf(p * k.scale - lse) : 0.0f;
    ds = seen ? p * (ds - delta) : 0.0f;
}

/* dK and dV of a tile of keys. */
template <class T, int COLUMNS>
static __global__ void __launch_bounds__(BLOCK)
    backward_keys(const __grid_constant__ fsdp__attention_backward_args a, const float *delta, int64_t tasks)
{
    __shared__ tiles s;
    const fsdp__attention_forward_args &k = a.forward;

    EACH_TASK(task, tasks)
    {
        place p = place_of<COLUMNS>(task, k.kv_heads, k.batch, k.head_dim);
        int64_t s0 = p.tile * TILE, group = k.heads / k.kv_heads, first = first_query(k, s0) / TILE * TILE;
        int keys = (int)at_most(k.kv_time - s0, TILE);
        square dk[COLUMNS / TILE] = {}, dv[COLUMNS / TILE] = {};
        const float scale[4] = {k.scale, k.scale, k.scale, k.scale}, one[4] = {1.0f, 1.0f, 1.0f, 1.0f};

        for (int64_t h = p.head * group; h < (p.head + 1) * group; h++)
            for (int64_t t0 = first; t0 < k.q_time; t0 += TILE) {
                int n = (int)at_most(k.q_time - t0, TILE);
                rows_of<const T> q = Q_ROWS(k, p.batch, t0, h), dout = OUT_ROWS(k, a.dout, p.batch, t0, h);
                square x, dx;

                multiply_rows<T>(x, s, K_ROWS(k, p.batch, s0, p.head), keys, q, n, k.head_dim);
                multiply_rows<T>(dx, s, V_ROWS(k, p.batch, s0, p.head), keys, dout, n, k.head_dim);
                for (int j = 0; j < 4; j++) {
                    int c = 4 * tile_x() + j;
                    int64_t row = (p.batch * k.heads + h) * k.q_time + t0 + c;
                    int64_t seen = c < n ? keys_seen(k, t0 + c) - s0 : 0;
                    float lse = c < n ? k.lse[row] : 0.0f, d = c < n ? delta[row] : 0.0f;

                    for (int i = 0; i < 4; i++)
                        gradient_of_score(k, lse, d, 4 * tile_y() + i < seen, x[i][j], dx[i][j]);
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
template <class T, int COLUMNS>
static __global__ void __launch_bounds__(BLOCK)
    backward_queries(const __grid_constant__ fsdp__attention_backward_args a, const float *delta, int64_t tasks)
{
    __shared__ tiles s;
    const fsdp__attention_forward_args &k = a.forward;

    EACH_TASK(task, tasks)
    {
        /* Late tiles see more keys, so they come first. */
        place p = place_of<COLUMNS>(tasks - 1 - task, k.heads, k.batch, k.head_dim);
        int64_t t0 = p.tile * TILE, kv = p.head / (k.heads / k.kv_heads);
        int rows = (int)at_most(k.q_time - t0, TILE);
        int64_t end = keys_seen(k, t0 + rows - 1), row = (p.batch * k.heads + p.head) * k.q_time + t0;
        square dq[COLUMNS / TILE] = {};
        const float scale[4] = {k.scale, k.scale, k.scale, k.scale};

        for (int64_t s0 = 0; s0 < end; s0 += TILE) {
            int n = (int)at_most(k.kv_time - s0, TILE);
            rows_of<const T> keys = K_ROWS(k, p.batch, s0, kv);
            square x, dx;

            multiply_rows<T>(x, s, Q_ROWS(k, p.batch, t0, p.head), rows, keys, n, k.head_dim);
            multiply_rows<T>(dx, s, OUT_ROWS(k, a.dout, p.batch, t0, p.head), rows, V_ROWS(k, p.batch, s0, kv), n,
                             k.head_dim);
            for (int i = 0; i < 4; i++) {
                int r = 4 * tile_y() + i;
                int64_t seen = r < rows ? at_most(keys_seen(k, t0 + r) - s0, n) : 0;
                float lse = r < rows ? k.lse[row + r] : 0.0f, d = r < rows ? delta[row + r] : 0.0f;

                for (int j = 0; j < 4; j++)
                    gradient_of_score(k, lse, d, 4 * tile_x() + j < seen, x[i][j], dx[i][j]);
            }
            keep_factor(s, dx);
            add_product<T, COLUMNS>(dq, s, keys, n, p.column, k.head_dim);
        }
        store_rows<T, COLUMNS>(dq, scale,
                               rows_at<T>(a.dq, p.batch, a.dq_batch, t0, a.dq_stride_time, p.head, a.dq_head), rows,
                               p.column, k.head_dim);
    }
}

template <class T, int COLUMNS>
static fsdp_status launch_backward(fsdp_stream *stream, const fsdp__attention_backward_args *a, float *delta)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t rows = k->batch * k->heads * k->q_time, slices = parts(k->head_dim, COLUMNS);
    int64_t key_tasks = parts(k->kv_time, TILE) * k->batch * k->kv_heads * slices;
    int64_t query_tasks = parts(k->q_time, TILE) * k->batch * k->heads * slices;

    FSDP_TRY(
        launch(stream, "attention_backward", sum_rows<T>, blocks_for(rows, BLOCK / WARP), BLOCK, 0, *a, delta, rows));
    FSDP_TRY(launch(stream, "attention_backward", backward_keys<T, COLUMNS>, blocks_for(key_tasks, 1), BLOCK, 0, *a,
                    delta, key_tasks));
    return launch(stream, "attention_backward", backward_queries<T, COLUMNS>, blocks_for(query_tasks, 1), BLOCK, 0, *a,
                  delta, query_tasks);
}

ENTRY(attention_backward)
{
    fsdp__attention_backward_args a = *(const fsdp__attention_backward_args *)args;
    const fsdp__attention_forward_args *k = &a.forward;
    float *delta = (float *)fsdp__stream_workspace(stream, (size_t)(k->batch * k->heads * k->q_time) * sizeof(float));

    if (!delta)
        return FSDP_NO_MEMORY;
    if (a.dq_batch == 0) {
        a.dq_batch = k->q_batch, a.dq_stride_time = k->q_stride_time, a.dq_head = k->q_head;
        a.dk_batch = k->k_batch, a.dk_stride_time = k->k_stride_time, a.dk_head = k->k_head;
        a.dv_batch = k->v_batch, a.dv_stride_time = k->v_stride_time, a.dv_head = k->v_head;
    }
#define BACKWARD(T)                                                          \
    return k->head_dim <= TILE ? launch_backward<T, TILE>(stream, &a, delta) \
                               : launch_backward<T, MOST_COLUMNS>(stream, &a, delta)
    EACH_FLOAT(k->dtype, BACKWARD)
#undef BACKWARD
    return FSDP_OK;
}
