/* reduce.cu - sums, the largest and the smallest over one dimension, in panels fixed by the sizes ([Note: bits]).
 *
 * Each stage makes one f32 of every panel, and the next stage takes these for its elements, until there is one panel.
 */
#include "backend/cuda/kernels/pack.cuh"

enum {
    PANEL = 4096,         /* elements of a row */
    PANEL_ROWS = 256,     /* whole rows */
    GROUPS = BLOCK / WARP /* of threads, which take the rows of a panel in turns */
};

/* ---- what is reduced ---- */

struct sum_of {
    static DEVICE float none(void)
    {
        return 0.0f;
    }
    static DEVICE float of(float x, float)
    {
        return x;
    }
    static DEVICE float join(float a, float b)
    {
        return a + b;
    }
};

struct squares_of : sum_of {
    static DEVICE float of(float x, float center)
    {
        return (x - center) * (x - center);
    }
};

/* A NaN wins. */
struct largest_of {
    static DEVICE float none(void)
    {
        return -INFINITY;
    }
    static DEVICE float of(float x, float)
    {
        return x;
    }
    static DEVICE float join(float a, float b)
    {
        return larger(a, b);
    }
};

struct smallest_of {
    static DEVICE float none(void)
    {
        return INFINITY;
    }
    static DEVICE float of(float x, float)
    {
        return x;
    }
    static DEVICE float join(float a, float b)
    {
        return a < b || a != a ? a : b;
    }
};

/* ---- a stage ---- */

struct stage {
    const void *x;       /* (outer,reduced,inner) */
    const float *center; /* (outer,inner), or NULL */
    float *partial;      /* (outer,panels,inner); NULL in the last stage, whose result goes to y */
    void *y;
    fsdp_dtype y_dtype;
    float alpha;
    bool accumulate, aligned;
    int64_t outer, reduced, inner, panels;
    int64_t blocks; /* of columns */
};

template <class T>
DEVICE void write_result(T *y, int64_t i, const stage &k, float total)
{
    store(y, i, k.alpha * total + (k.accumulate ? load(y, i) : 0.0f));
}

/* Stores result i of the stage. */
DEVICE void put_result(const stage &k, int64_t i, float total)
{
    if (k.partial)
        k.partial[i] = total;
    else if (k.y_dtype == FSDP_F32)
        write_result((float *)k.y, i, k, total);
    else if (k.y_dtype == FSDP_BF16)
        write_result((bf16 *)k.y, i, k, total);
    else
        write_result((f16 *)k.y, i, k, total);
}

/* Joins the values of a warp, or of a block, for thread 0. */
template <class F, int THREADS>
DEVICE float join_threads(float x)
{
    __shared__ float partial[BLOCK / WARP];

    UNROLL
    for (int step = WARP / 2; step > 0; step /= 2)
        x = F::join(x, __shfl_xor_sync(ALL_LANES, x, step));
    if (THREADS == WARP)
        return x;
    __syncthreads(); /* thread 0 has read what an earlier call has left there */
    if (lane_of_warp() == 0)
        partial[threadIdx.x / WARP] = x;
    __syncthreads();
    if (threadIdx.x == 0)
        for (int w = 1; w < BLOCK / WARP; w++)
            x = F::join(x, partial[w]);
    return x;
}

/* inner is 1: THREADS threads take a panel of a row. */
template <class T, class F, int THREADS>
static __global__ void reduce_rows(GRID_CONSTANT(stage) k)
{
    const int n = ACCESS / (int)sizeof(T), teams = BLOCK / THREADS;
    int thread = (int)threadIdx.x % THREADS;

    for (int64_t task = (int64_t)blockIdx.x * teams + threadIdx.x / THREADS; task < k.outer * k.panels;
         task += (int64_t)gridDim.x * teams) {
        int64_t o = task / k.panels, first = (task - o * k.panels) * PANEL;
        int64_t end = k.reduced - first < PANEL ? k.reduced : first + PANEL;
        const T *x = (const T *)k.x + o * k.reduced;
        float center = k.center ? k.center[o] : 0.0f, total = F::none();

        for (int64_t i = first + thread * n; i < end; i += THREADS * n) {
            bool whole = k.aligned && i + n <= end;
            pack<T, n> v = get<n>(x, i, end, whole);

            UNROLL
            for (int e = 0; e < n; e++)
                total = i + e < end ? F::join(total, F::of(to_float(v.at[e]), center)) : total;
        }
        total = join_threads<F, THREADS>(total);
        if (thread == 0)
            put_result(k, task, total);
    }
}

/* Joins the rows r, r + GROUPS and so on below `end`, N columns of each. */
template <class F, bool WHOLE, int N, class T>
DEVICE void join_rows(const T *x, int64_t r, int64_t end, int64_t col, int64_t inner, const float (&center)[N],
                      float (&total)[N])
{
    UNROLL_BY(4)
    for (; r < end; r += GROUPS) {
        pack<T, N> v = get<N>(x + r * inner, col, inner, WHOLE);

        UNROLL
        for (int e = 0; e < N; e++)
            total[e] = F::join(total[e], F::of(to_float(v.at[e]), center[e]));
    }
}

/* A block takes N columns a lane and a panel of rows, which its groups of threads take in turns. */
template <class T, class F, int N>
static __global__ void reduce_columns(GRID_CONSTANT(stage) k)
{
    __shared__ float partial[GROUPS][WARP * N];
    int lane = lane_of_warp(), group = (int)threadIdx.x / WARP;

    EACH_ROW (task, k.outer * k.panels * k.blocks) {
        int64_t at = task / k.blocks, block = task - at * k.blocks, o = at / k.panels;
        int64_t first = (at - o * k.panels) * PANEL_ROWS, col = (block * WARP + lane) * N;
        int64_t end = k.reduced - first < PANEL_ROWS ? k.reduced : first + PANEL_ROWS;
        const T *x = (const T *)k.x + o * k.reduced * k.inner;
        float center[N], total[N];

        UNROLL
        for (int e = 0; e < N; e++) {
            center[e] = k.center && col + e < k.inner ? k.center[o * k.inner + col + e] : 0.0f;
            total[e] = F::none();
        }
        if (k.aligned && col + N <= k.inner)
            join_rows<F, true>(x, first + group, end, col, k.inner, center, total);
        else if (col < k.inner)
            join_rows<F, false>(x, first + group, end, col, k.inner, center, total);
        __syncthreads(); /* the block before has been read */
        UNROLL
        for (int e = 0; e < N; e++)
            partial[group][lane * N + e] = total[e];
        __syncthreads();
        col = block * WARP * N + threadIdx.x;
        if (threadIdx.x < WARP * N && col < k.inner) {
            float sum = partial[0][threadIdx.x];

            for (int g = 1; g < GROUPS; g++)
                sum = F::join(sum, partial[g][threadIdx.x]);
            put_result(k, at * k.inner + col, sum);
        }
    }
}

template <class T, class F>
static fsdp_status launch_stage(fsdp_stream *stream, stage k)
{
    const int n = ACCESS / (int)sizeof(T);
    int64_t tasks = k.outer * k.panels;
    bool narrow = k.inner < WARP * n / 2;

    k.aligned = is_aligned(k.x, (k.inner > 1 ? k.inner : k.outer > 1 ? k.reduced : 0) * (int64_t)sizeof(T));
    if (k.inner == 1 && k.reduced <= PANEL / 4)
        return launch(stream, "reduce", reduce_rows<T, F, WARP>, blocks_for(tasks, BLOCK / WARP), BLOCK, 0, k);
    if (k.inner == 1)
        return launch(stream, "reduce", reduce_rows<T, F, BLOCK>, blocks_for(tasks, 1), BLOCK, 0, k);
    k.blocks = narrow ? (k.inner + WARP - 1) / WARP : (k.inner + WARP * n - 1) / (WARP * n);
    return launch(stream, "reduce", narrow ? reduce_columns<T, F, 1> : reduce_columns<T, F, n>,
                  blocks_for(tasks * k.blocks, 1), BLOCK, 0, k);
}

/* ---- all stages ---- */

static int64_t panels_of(int64_t reduced, int64_t inner)
{
    int64_t panel = inner == 1 ? (int64_t)PANEL : (int64_t)PANEL_ROWS;

    return reduced > panel ? (reduced + panel - 1) / panel : 1;
}

/* Reduces by FIRST, and what is left by REST. */
template <class T, class FIRST, class REST>
static fsdp_status reduce_by(fsdp_stream *stream, const fsdp__reduce_args *k)
{
    stage s = {k->x,       k->center,  NULL,          k->y,
               k->y_dtype, k->alpha,   k->accumulate, false,
               k->outer,   k->reduced, k->inner,      panels_of(k->reduced, k->inner),
               0};
    float *scratch = NULL;
    int64_t all = 0, width = k->outer * k->inner;

    for (int64_t n = s.panels; n > 1; n = panels_of(n, k->inner))
        all += n;
    if (all > 0) {
        scratch = (float *)fsdp__stream_workspace(stream, (size_t)(all * width) * sizeof(float));
        if (!scratch)
            return fsdp_last_status();
    }
    s.partial = s.panels > 1 ? scratch : NULL;
    FSDP_TRY((launch_stage<T, FIRST>(stream, s)));
    while (s.partial) {
        s.x = s.partial;
        s.center = NULL;
        scratch += s.panels * width;
        s.reduced = s.panels;
        s.panels = panels_of(s.reduced, k->inner);
        s.partial = s.panels > 1 ? scratch : NULL;
        FSDP_TRY((launch_stage<float, REST>(stream, s)));
    }
    return FSDP_OK;
}

template <class T>
static fsdp_status reduce(fsdp_stream *stream, const fsdp__reduce_args *k)
{
    if (k->center)
        return reduce_by<T, squares_of, sum_of>(stream, k);
    if (k->op == FSDP__REDUCE_SUM)
        return reduce_by<T, sum_of, sum_of>(stream, k);
    if (k->op == FSDP__REDUCE_MAX)
        return reduce_by<T, largest_of, largest_of>(stream, k);
    return reduce_by<T, smallest_of, smallest_of>(stream, k);
}

ENTRY(reduce, k)
{
    if (k->outer == 0 || k->inner == 0)
        return FSDP_OK;
    EACH_FLOAT(k->x_dtype, T, return reduce<T>(stream, k));
    return FSDP_OK;
}
