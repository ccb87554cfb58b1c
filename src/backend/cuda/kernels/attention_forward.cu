/* attention_forward.cu - softmax(scale Q K^T) V with a running maximum and sum for each query.
 * See [Note: attention by tiles] in attention.cuh. */
#include "backend/cuda/kernels/attention.cuh"

/* What a thread knows of its four queries. */
struct running {
    float top[4], sum[4]; /* the sum is over the thread's own keys */
};

/* Turns scores into e^(score - running maximum), for `n` keys from s0 on, and scales what was summed before. */
template <int PARTS>
DEVICE void softmax_tile(const fsdp__attention_forward_args &k, square &x, running &w, square (&out)[PARTS], int64_t t0,
                         int64_t s0, int n)
{
    for (int i = 0; i < 4; i++) {
        int64_t seen = at_most(keys_seen(k, t0 + 4 * tile_y() + i) - s0, n);
        float top = w.top[i], base, scaled;

        for (int j = 0; j < 4; j++) {
            x[i][j] = 4 * tile_x() + j < seen ? x[i][j] * k.scale : -INFINITY;
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

template <class T, int COLUMNS>
static __global__ void __launch_bounds__(BLOCK)
    attend(const __grid_constant__ fsdp__attention_forward_args k, int64_t tasks)
{
    __shared__ tiles s;

    EACH_TASK(task, tasks)
    {
        /* Late tiles see more keys, so they come first. */
        place p = place_of<COLUMNS>(tasks - 1 - task, k.heads, k.batch, k.head_dim);
        int64_t t0 = p.tile * TILE, group = k.heads / k.kv_heads;
        int rows = (int)at_most(k.q_time - t0, TILE);
        int64_t end = keys_seen(k, t0 + rows - 1);
        square out[COLUMNS / TILE] = {};
        running w = {{-INFINITY, -INFINITY, -INFINITY, -INFINITY}, {}};
        float factor[4];

        for (int64_t s0 = 0; s0 < end; s0 += TILE) {
            int n = (int)at_most(k.kv_time - s0, TILE);
            square x;

            multiply_rows<T>(x, s, Q_ROWS(k, p.batch, t0, p.head), rows, K_ROWS(k, p.batch, s0, p.head / group), n,
                             k.head_dim);
            softmax_tile(k, x, w, out, t0, s0, n);
            keep_factor(s, x);
            add_product<T, COLUMNS>(out, s, V_ROWS(k, p.batch, s0, p.head / group), n, p.column, k.head_dim);
        }
        finish_rows(k, w, p, rows, factor);
        store_rows<T, COLUMNS>(out, factor,
                               rows_at<T>(k.out, p.batch, k.out_batch, t0, k.out_stride_time, p.head, k.out_head), rows,
                               p.column, k.head_dim);
    }
}

template <class T, int COLUMNS>
static fsdp_status launch_attend(fsdp_stream *stream, const fsdp__attention_forward_args *k)
{
    int64_t tasks = parts(k->q_time, TILE) * k->batch * k->heads * parts(k->head_dim, COLUMNS);

    return launch(stream, "attention_forward", attend<T, COLUMNS>, blocks_for(tasks, 1), BLOCK, 0, *k, tasks);
}

ENTRY(attention_forward)
{
    const fsdp__attention_forward_args *k = (const fsdp__attention_forward_args *)args;

#define ATTEND(T) \
    return k->head_dim <= TILE ? launch_attend<T, TILE>(stream, k) : launch_attend<T, MOST_COLUMNS>(stream, k)
    EACH_FLOAT(k->dtype, ATTEND)
#undef ATTEND
    return FSDP_OK;
}
