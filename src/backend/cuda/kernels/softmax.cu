/* softmax.cu - softmax and its logarithm over the last dimension, and their backward. */
#include "backend/cuda/kernels/rows.cuh"

enum {
    EACH = 16 /* columns that make it worth while to take another thread for a row */
};

template <class Args>
struct softmax_plan {
    Args args;
    row_threads threads;
    bool whole;
};

/* A thread's packs of a row. */
#define EACH_PACK(col) \
    for (int64_t col = (int64_t)(threadIdx.x % (unsigned)k.threads.group) * n; col < cols; col += k.threads.group * n)

template <class T>
static __global__
__launch_bounds__(MOST_THREADS) void softmax_rows(GRID_CONSTANT(softmax_plan<fsdp__softmax_forward_args>) k)
{
    const int n = ACCESS / (int)sizeof(T);
    const int64_t cols = k.args.cols;
    __shared__ float partial[WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        const T *x = (const T *)k.args.x + row * cols;
        exp_sum s = sum_exponentials(x, cols, k.whole, k.threads.group, partial);
        float factor = 1.0f / s.sum, shift = logf(s.sum);

        EACH_ROW_PACK (col, cols, n, k.threads.group) {
            pack<T, n> p = get<n>(x, col, cols, k.whole);

            UNROLL
            for (int e = 0; e < n; e++) {
                float v = to_float(p.at[e]) - s.largest;

                p.at[e] = from_float<T>(k.args.log ? v - shift : exponential(v) * factor);
            }
            put<n>((T *)k.args.y + row * cols, col, cols, k.whole, p);
        }
    }
}

template <class T>
static __global__
__launch_bounds__(MOST_THREADS) void softmax_gradients(GRID_CONSTANT(softmax_plan<fsdp__softmax_backward_args>) k)
{
    const int n = ACCESS / (int)sizeof(T);
    const int64_t cols = k.args.cols;
    __shared__ float partial[WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        const T *y = (const T *)k.args.y + row * cols, *dy = (const T *)k.args.dy + row * cols;
        float sum = 0.0f;

        EACH_PACK (col) {
            pack<T, n> p = get<n>(y, col, cols, k.whole), d = get<n>(dy, col, cols, k.whole);

            UNROLL
            for (int e = 0; e < n; e++)
                sum += (k.args.log ? 1.0f : to_float(p.at[e])) * to_float(d.at[e]);
        }
        sum = group_sum(sum, partial, k.threads.group);
        EACH_PACK (col) {
            pack<T, n> p = get<n>(y, col, cols, k.whole), d = get<n>(dy, col, cols, k.whole);

            UNROLL
            for (int e = 0; e < n; e++) {
                float value = to_float(p.at[e]), by = to_float(d.at[e]);
                d.at[e] = from_float<T>(k.args.log ? by - expf(value) * sum : value * (by - sum));
            }
            put<n>((T *)k.args.dx + row * cols, col, cols, k.whole, d);
        }
    }
}

ENTRY(softmax_forward, a)
{
    softmax_plan<fsdp__softmax_forward_args> k = {*a, threads_of_rows(a->rows, a->cols, EACH), false};

#define SOFTMAX(T)                                                                   \
    k.whole = is_aligned(a->x, a->cols * (int64_t)sizeof(T)) && is_aligned(a->y, 0); \
    FSDP_TRY(launch(stream, "softmax_forward", softmax_rows<T>, k.threads.grid, k.threads.block, 0, k))
    EACH_FLOAT(a->dtype, T, SOFTMAX(T));
#undef SOFTMAX
    return FSDP_OK;
}

ENTRY(softmax_backward, a)
{
    softmax_plan<fsdp__softmax_backward_args> k = {*a, threads_of_rows(a->rows, a->cols, EACH), false};

#define GRADIENT(T)                                                                                           \
    k.whole = is_aligned(a->y, a->cols * (int64_t)sizeof(T)) && is_aligned(a->dy, 0) && is_aligned(a->dx, 0); \
    FSDP_TRY(launch(stream, "softmax_backward", softmax_gradients<T>, k.threads.grid, k.threads.block, 0, k))
    EACH_FLOAT(a->dtype, T, GRADIENT(T));
#undef GRADIENT
    return FSDP_OK;
}
