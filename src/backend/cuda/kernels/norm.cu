/* norm.cu - LayerNorm and RMSNorm, with the residual addition in front. */
#include "backend/cuda/kernels/rows.cuh"

enum {
    EACH = 8 /* columns of a row that a thread keeps in registers; longer rows are read again */
};

/* A thread's packs of a row: so many that are kept, or until the row ends. */
#define EACH_PACK(p, col)                                                                                            \
    for (int64_t p = 0, col = (int64_t)(threadIdx.x % (unsigned)k.threads.group) * n; KEPT ? p < packs : col < cols; \
         p++, col += (int64_t)k.threads.group * n)

/* Elements [i, i + N) of weights, as f32, plus `offset`; `none` for each where there are no weights. */
template <int N>
DEVICE void get_weights(fsdp_dtype dtype, const void *p, int64_t i, int64_t cols, bool whole, float none, float offset,
                        float *w)
{
    UNROLL
    for (int e = 0; e < N; e++)
        w[e] = none;
    if (!p)
        return;
#define GET(T)                                               \
    {                                                        \
        pack<T, N> x = get<N>((const T *)p, i, cols, whole); \
        UNROLL                                               \
        for (int e = 0; e < N; e++)                          \
            w[e] = to_float(x.at[e]) + offset;               \
    }
    EACH_FLOAT(dtype, GET)
#undef GET
}

/* ---- forward ---- */

struct forward_plan {
    fsdp__norm_forward_args args;
    row_threads threads;
    bool whole, weights_whole; /* packs may be fetched whole */
};

/* Fetches a pack of s, which is computed and stored first where there is a residual. */
template <class T, int N>
DEVICE pack<T, N> make_sum(const forward_plan &k, int64_t row, int64_t col)
{
    int64_t cols = k.args.cols;
    pack<T, N> s = get<N>((const T *)k.args.x + row * cols, col, cols, k.whole);

    if (k.args.residual) {
        pack<T, N> r = get<N>((const T *)k.args.residual + row * cols, col, cols, k.whole);

        UNROLL
        for (int e = 0; e < N; e++)
            s.at[e] = from_float<T>(to_float(s.at[e]) + to_float(r.at[e]));
        put<N>((T *)k.args.sum + row * cols, col, cols, k.whole, s);
    }
    return s;
}

/* Returns the sum of the elements less `mean`, to the power of 1 or 2. */
template <class T, int N>
DEVICE float sum_of(const pack<T, N> &s, float mean, bool squared, int64_t present)
{
    float sum = 0.0f;

    UNROLL
    for (int e = 0; e < N; e++) {
        float d = e < present ? to_float(s.at[e]) - mean : 0.0f;
        sum += squared ? d * d : d;
    }
    return sum;
}

template <class T, int N>
DEVICE void store_norm(const forward_plan &k, int64_t row, int64_t col, const pack<T, N> &s, float mean, float rstd)
{
    int64_t cols = k.args.cols;
    float w[N], b[N];
    pack<T, N> y;

    get_weights<N>(k.args.weight_dtype, k.args.weight, col, cols, k.weights_whole, 1.0f, k.args.plus_one ? 1.0f : 0.0f,
                   w);
    get_weights<N>(k.args.weight_dtype, k.args.bias, col, cols, k.weights_whole, 0.0f, 0.0f, b);
    UNROLL
    for (int e = 0; e < N; e++)
        y.at[e] = from_float<T>((to_float(s.at[e]) - mean) * rstd * w[e] + b[e]);
    put<N>((T *)k.args.y + row * cols, col, cols, k.whole, y);
}

template <class T, bool KEPT>
static __global__ __launch_bounds__(MOST_THREADS) void norm_rows(const __grid_constant__ forward_plan k)
{
    const int n = ACCESS / (int)sizeof(T), packs = KEPT ? EACH / n : 1;
    const int64_t cols = k.args.cols;
    const bool rms = k.args.rms;
    __shared__ float partial[WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        const T *s = (const T *)(k.args.residual ? k.args.sum : k.args.x) + row * cols;
        pack<T, n> kept[packs];
        float sum = 0.0f, mean = 0.0f, rstd;

        UNROLL
        EACH_PACK (p, col) {
            pack<T, n> x = {};

            if (col < cols)
                x = make_sum<T, n>(k, row, col);
            sum += sum_of(x, 0.0f, rms, cols - col);
            if (KEPT)
                kept[p] = x;
        }
        sum = group_sum(sum, partial, k.threads.group);
        if (!rms) {
            mean = sum / (float)cols;
            sum = 0.0f;
            UNROLL
            EACH_PACK (p, col)
                sum += sum_of(KEPT ? kept[p] : get<n>(s, col, cols, k.whole), mean, true, cols - col);
            sum = group_sum(sum, partial, k.threads.group);
        }
        rstd = 1.0f / sqrtf(sum / (float)cols + k.args.eps);
        UNROLL
        EACH_PACK (p, col)
            if (col < cols)
                store_norm<T, n>(k, row, col, KEPT ? kept[p] : get<n>(s, col, cols, k.whole), mean, rstd);
        if (threadIdx.x % (unsigned)k.threads.group == 0) {
            if (k.args.mean && !rms)
                k.args.mean[row] = mean;
            if (k.args.rstd)
                k.args.rstd[row] = rstd;
        }
    }
}

ENTRY(norm_forward)
{
    const fsdp__norm_forward_args *a = (const fsdp__norm_forward_args *)args;
    int64_t row_bytes = a->cols * (int64_t)(a->dtype == FSDP_F32 ? sizeof(float) : sizeof(bf16));
    forward_plan k = {*a, threads_of_rows(a->rows, a->cols, EACH), false, false};

    k.whole = is_aligned(a->x, row_bytes) && is_aligned(a->residual, 0) && is_aligned(a->sum, 0) && is_aligned(a->y, 0);
    k.weights_whole = k.whole && is_aligned(a->weight, 0) && is_aligned(a->bias, 0);
#define NORM(T)                                                                                                   \
    FSDP_TRY(launch(stream, "norm_forward",                                                                       \
                    a->cols <= k.threads.group * EACH ? norm_rows<T, true> : norm_rows<T, false>, k.threads.grid, \
                    k.threads.block, 0, k))
    EACH_FLOAT(a->dtype, NORM)
#undef NORM
    return FSDP_OK;
}

/* ---- backward ---- */

/* Column sums are taken over panels of rows, each a group's, and then over panels. */
struct backward_plan {
    fsdp__norm_backward_args args;
    row_threads threads;
    bool whole, weights_whole;
    int64_t panels, panel_rows;
    float *dweight, *dbias; /* (panels, cols); NULL: not needed */
};

/* A pack of what a row's gradient is computed from. */
template <int N>
struct backward_pack {
    float centred[N], dy[N], w[N]; /* s less its mean */
};

template <class T, int N>
DEVICE backward_pack<N> get_backward(const backward_plan &k, int64_t row, int64_t col, float mean)
{
    int64_t cols = k.args.cols;
    pack<T, N> s = get<N>((const T *)k.args.s + row * cols, col, cols, k.whole);
    pack<T, N> dy = get<N>((const T *)k.args.dy + row * cols, col, cols, k.whole);
    backward_pack<N> x;

    get_weights<N>(k.args.weight_dtype, k.args.weight, col, cols, k.weights_whole, 1.0f, k.args.plus_one ? 1.0f : 0.0f,
                   x.w);
    UNROLL
    for (int e = 0; e < N; e++) {
        x.centred[e] = to_float(s.at[e]) - mean;
        x.dy[e] = to_float(dy.at[e]); /* past the row's end: 0, which adds nothing */
    }
    return x;
}

/* Stores dx = dy w rstd - mean of (dy w) rstd - (s - mean) dot [+ dsum]. */
template <class T, int N>
DEVICE void store_dx(const backward_plan &k, int64_t row, int64_t col, const backward_pack<N> &x, float rstd, float sum,
                     float dot)
{
    int64_t cols = k.args.cols;
    pack<T, N> extra = {}, dx;

    if (k.args.dsum)
        extra = get<N>((const T *)k.args.dsum + row * cols, col, cols, k.whole);
    UNROLL
    for (int e = 0; e < N; e++)
        dx.at[e] = from_float<T>(x.dy[e] * x.w[e] * rstd - sum - x.centred[e] * dot + to_float(extra.at[e]));
    put<N>((T *)k.args.dx + row * cols, col, cols, k.whole, dx);
}

/* Stores a pack of a panel's column sums. */
template <int N>
DEVICE void store_columns(float *out, int64_t col, int64_t cols, const float *sums)
{
    UNROLL
    for (int e = 0; e < N; e++)
        if (out && col + e < cols)
            out[col + e] = sums[e];
}

/* The sums of a row that its gradient needs: of dy w, and of dy w (s - mean). They are scaled for store_dx(). */
DEVICE void sum_row(const backward_plan &k, float (&sums)[2], float *partial, float rstd)
{
    group_sums(sums, partial, k.threads.group);
    sums[0] = k.args.rms ? 0.0f : sums[0] / (float)k.args.cols * rstd;
    sums[1] = sums[1] / (float)k.args.cols * rstd * rstd * rstd;
}

template <int N>
DEVICE void add_row(float (&sums)[2], const backward_pack<N> &x)
{
    UNROLL
    for (int e = 0; e < N; e++) {
        sums[0] += x.dy[e] * x.w[e];
        sums[1] += x.dy[e] * x.w[e] * x.centred[e];
    }
}

/* Rows that their threads keep: dx and the column sums in one pass. */
template <class T>
static __global__ __launch_bounds__(MOST_THREADS) void norm_panels(const __grid_constant__ backward_plan k)
{
    const int n = ACCESS / (int)sizeof(T), packs = EACH / n;
    const bool KEPT = true;
    const int64_t cols = k.args.cols;
    __shared__ float partial[2 * WARP];

    EACH_GROUP (panel, k.panels, k.threads.group) {
        int64_t end = (panel + 1) * k.panel_rows;
        float dweight[packs][n] = {}, dbias[packs][n] = {};

        for (int64_t row = panel * k.panel_rows; row < end && row < k.args.rows; row++) {
            float mean = k.args.rms ? 0.0f : k.args.mean[row], rstd = k.args.rstd[row], sums[2] = {};
            backward_pack<n> kept[packs];

            UNROLL
            EACH_PACK (p, col) {
                kept[p] = backward_pack<n>();
                if (col < cols)
                    kept[p] = get_backward<T, n>(k, row, col, mean);
                add_row(sums, kept[p]);
                UNROLL
                for (int e = 0; e < n; e++) {
                    dweight[p][e] += kept[p].dy[e] * (kept[p].centred[e] * rstd);
                    dbias[p][e] += kept[p].dy[e];
                }
            }
            if (k.args.dx)
                sum_row(k, sums, partial, rstd);
            UNROLL
            EACH_PACK (p, col)
                if (k.args.dx && col < cols)
                    store_dx<T, n>(k, row, col, kept[p], rstd, sums[0], sums[1]);
        }
        UNROLL
        EACH_PACK (p, col) {
            store_columns<n>(k.dweight ? k.dweight + panel * cols : NULL, col, cols, dweight[p]);
            store_columns<n>(k.dbias ? k.dbias + panel * cols : NULL, col, cols, dbias[p]);
        }
    }
}

/* dx of longer rows, which are read twice. */
template <class T>
static __global__ __launch_bounds__(MOST_THREADS) void norm_long_rows(const __grid_constant__ backward_plan k)
{
    const int n = ACCESS / (int)sizeof(T), packs = 0;
    const bool KEPT = false;
    const int64_t cols = k.args.cols;
    __shared__ float partial[2 * WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        float mean = k.args.rms ? 0.0f : k.args.mean[row], rstd = k.args.rstd[row], sums[2] = {};

        EACH_PACK (p, col)
            add_row(sums, get_backward<T, n>(k, row, col, mean));
        sum_row(k, sums, partial, rstd);
        EACH_PACK (p, col)
            store_dx<T, n>(k, row, col, get_backward<T, n>(k, row, col, mean), rstd, sums[0], sums[1]);
    }
}

/* Column sums of longer rows, a thread for each column of a panel. */
template <class T>
static __global__ void norm_long_columns(const __grid_constant__ backward_plan k)
{
    EACH_ITEM (at, k.panels * k.args.cols) {
        int64_t panel = at / k.args.cols, col = at % k.args.cols, end = (panel + 1) * k.panel_rows;
        float dweight = 0.0f, dbias = 0.0f;

        for (int64_t row = panel * k.panel_rows; row < end && row < k.args.rows; row++) {
            float mean = k.args.rms ? 0.0f : k.args.mean[row], rstd = k.args.rstd[row];
            float dy = load((const T *)k.args.dy, row * k.args.cols + col);

            dweight += dy * ((load((const T *)k.args.s, row * k.args.cols + col) - mean) * rstd);
            dbias += dy;
        }
        if (k.dweight)
            k.dweight[at] = dweight;
        if (k.dbias)
            k.dbias[at] = dbias;
    }
}

enum {
    FOLDERS = 32 /* warps that each add every so-manieth panel */
};

/* out [+]= the sum over panels. A block takes 32 columns. */
template <class T>
static __global__ __launch_bounds__(FOLDERS *WARP) void fold_panels(const float *panels, int64_t count, int64_t cols,
                                                                    T *out, bool accumulate)
{
    __shared__ float partial[FOLDERS][WARP];
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    int64_t col = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0.0f;

    for (int64_t panel = warp; col < cols && panel < count; panel += FOLDERS)
        sum += panels[panel * cols + col];
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= cols)
        return;
    for (int other = 1; other < FOLDERS; other++)
        sum += partial[other][lane];
    store(out, col, accumulate ? load(out, col) + sum : sum);
}

static fsdp_status fold(fsdp_stream *stream, const backward_plan &k, const float *panels, void *out, bool accumulate)
{
    if (!out)
        return FSDP_OK;
#define FOLD(T)                                                                                                       \
    FSDP_TRY(launch(stream, "norm_backward", fold_panels<T>, blocks_for(k.args.cols, WARP), FOLDERS *WARP, 0, panels, \
                    k.panels, k.args.cols, (T *)out, accumulate))
    EACH_FLOAT(k.args.dweight_dtype, FOLD)
#undef FOLD
    return FSDP_OK;
}

/* Panels are so many that each multiprocessor has several, and so few that their sums are little beside the rows. */
static void cut_panels(backward_plan *k)
{
    int64_t rows = k->args.rows, cols = FSDP__MAX(k->args.cols, 1);
    int64_t most = FSDP__MAX(512, FSDP__MIN(4096, (1 << 20) / cols));

    k->panel_rows = FSDP__MAX(16, (rows + most - 1) / most);
    k->panels = (rows + k->panel_rows - 1) / k->panel_rows;
}

template <class T>
static fsdp_status launch_backward(fsdp_stream *stream, const backward_plan &k)
{
    const fsdp__norm_backward_args *a = &k.args;
    row_threads rows = threads_of_rows(a->rows, a->cols, EACH);

    if (a->cols <= rows.group * EACH)
        return launch(stream, "norm_backward", norm_panels<T>, k.threads.grid, k.threads.block, 0, k);
    if (a->dweight || a->dbias) /* first: dx may overwrite dy */
        FSDP_TRY(
            launch(stream, "norm_backward", norm_long_columns<T>, blocks_for(k.panels * a->cols, BLOCK), BLOCK, 0, k));
    if (a->dx)
        FSDP_TRY(launch(stream, "norm_backward", norm_long_rows<T>, rows.grid, rows.block, 0, k));
    return FSDP_OK;
}

ENTRY(norm_backward)
{
    const fsdp__norm_backward_args *a = (const fsdp__norm_backward_args *)args;
    int64_t row_bytes = a->cols * (int64_t)(a->dtype == FSDP_F32 ? sizeof(float) : sizeof(bf16));
    backward_plan k = {};
    float *sums;

    k.args = *a;
    cut_panels(&k);
    k.threads = threads_of_rows(k.panels, a->cols, EACH);
    k.whole = is_aligned(a->s, row_bytes) && is_aligned(a->dy, 0) && is_aligned(a->dsum, 0) && is_aligned(a->dx, 0);
    k.weights_whole = k.whole && is_aligned(a->weight, 0);
    sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * k.panels * a->cols) * sizeof(float) + 1);
    if (!sums)
        return fsdp_last_status();
    k.dweight = a->dweight ? sums : NULL;
    k.dbias = a->dbias ? sums + k.panels * a->cols : NULL;
#define BACKWARD(T) FSDP_TRY(launch_backward<T>(stream, k))
    EACH_FLOAT(a->dtype, BACKWARD)
#undef BACKWARD
    FSDP_TRY(fold(stream, k, k.dweight, a->dweight, a->accumulate_weight));
    return fold(stream, k, k.dbias, a->dbias, a->accumulate_bias);
}
