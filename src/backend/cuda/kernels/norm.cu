/* norm.cu - LayerNorm and RMSNorm, with the residual addition in front. */
#include "backend/cuda/kernels/strips.cuh"

enum {
    FEW = 8,   /* columns of a row that a thread keeps in registers, if a warp has enough, and always in a backward, */
    SOME = 16, /* or so many */
    KEEPERS = 512,         /* the most threads of a row that is kept in a forward, or fetched ahead in a backward */
    FORWARD_WARPS = 20,    /* of a multiprocessor that keep rows in a forward, by their registers; 16 of f32 */
    MULTIPROCESSORS = 132, /* that panels are cut for, on any card: it must not decide the order of sums */
    BACKWARD_WARPS = 24    /* of a multiprocessor, by their registers; 20 where a bias has sums, too */
};

/* ---- forward ---- */

struct forward_plan {
    fsdp__norm_forward_args args;
    row_threads threads;
};

/* Says how s is made. */
template <class T, int LENGTH, int PACKS>
struct parts_of_sum {
    strip<T, LENGTH, PACKS> x, residual;
};

template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void get_parts(const forward_plan &k, int64_t row, Column col, parts_of_sum<T, LENGTH, PACKS> &parts)
{
    Column cols = (Column)k.args.cols, step = k.threads.group * LENGTH;

    get_strip<WHOLE>((const T *)k.args.x + row * k.args.cols, col, cols, step, parts.x);
    if (k.args.residual)
        get_strip<WHOLE>((const T *)k.args.residual + row * k.args.cols, col, cols, step, parts.residual);
}

/* Returns a strip of s, which is stored where there is a residual. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE strip<T, LENGTH, PACKS> make_sum(const forward_plan &k, int64_t row, Column col,
                                        parts_of_sum<T, LENGTH, PACKS> &parts)
{
    Column cols = (Column)k.args.cols;
    T *out = (T *)k.args.sum + row * k.args.cols;
    strip<T, LENGTH, PACKS> s = parts.x;

    if (!k.args.residual)
        return s;
    UNROLL
    for (int p = 0; p < PACKS; p++, col += k.threads.group * LENGTH) {
        float x[LENGTH], more[LENGTH];
        pack<T, LENGTH> sum;

        if (col >= cols)
            return s;
        s.at(p, x);
        parts.residual.at(p, more);
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            x[e] += more[e];
        sum = rounded<T>(x);
        s.set(p, sum);
        put<LENGTH>(out, col, cols, WHOLE, sum);
    }
    return s;
}

/* Says what a row adds up: its elements, their squares, or the squares of their distances from the mean. A square of a
 * distance is rounded once, together with the sum (FMA). */
enum added {
    ELEMENTS,
    SQUARES,
    DISTANCES
};

/* Adds WHAT up for a strip. A pack of a row that is kept is whole, or behind it. */
template <bool WHOLE, added WHAT, class T, int LENGTH, int PACKS, class Column>
DEVICE void add_strip(const forward_plan &k, strip<T, LENGTH, PACKS> &s, Column col, float mean, float &sum)
{
    Column cols = (Column)k.args.cols;

    UNROLL
    for (int p = 0; p < PACKS; p++, col += k.threads.group * LENGTH) {
        float x[LENGTH];

        if (WHOLE && col >= cols)
            return;
        s.at(p, x);
        UNROLL
        for (int e = 0; e < LENGTH; e++) {
            float d = WHOLE || col + e < cols ? x[e] - mean : 0.0f;

            sum += WHAT == DISTANCES ? d * d : WHAT == SQUARES ? times(d, d) : d;
        }
    }
}

template <bool WHOLE, class T, class W, int LENGTH, int PACKS, class Column>
DEVICE void store_norm(const forward_plan &k, int64_t row, Column col, strip<T, LENGTH, PACKS> &s,
                       strip<W, LENGTH, PACKS> &weight, strip<W, LENGTH, PACKS> &bias, float mean, float rstd)
{
    Column cols = (Column)k.args.cols;
    T *out = (T *)k.args.y + row * k.args.cols;
    float offset = k.args.weight && k.args.plus_one ? 1.0f : 0.0f;

    UNROLL
    for (int p = 0; p < PACKS; p++, col += k.threads.group * LENGTH) {
        float x[LENGTH], w[LENGTH], b[LENGTH];

        if (col >= cols)
            return;
        s.at(p, x);
        weight.at(p, w);
        bias.at(p, b);
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            x[e] = (x[e] - mean) * rstd * (w[e] + offset) + b[e];
        put<LENGTH>(out, col, cols, WHOLE, rounded<T>(x));
    }
}

/* Returns where a row of s lies when it was made. */
template <class T>
DEVICE const T *row_of_sum(const forward_plan &k, int64_t row)
{
    return (const T *)(k.args.residual ? k.args.sum : k.args.x) + row * k.args.cols;
}

/* Returns a thread's part of the sum of squares of what is `mean` apart; rows that are not KEPT are read again. */
template <bool KEPT, class T, int LENGTH, int PACKS>
DEVICE float squares_of(const forward_plan &k, int64_t row, strip<T, LENGTH, PACKS> &s, float mean)
{
    float sum = 0.0f;

    EACH_STRIP (col, LENGTH) {
        if (!KEPT)
            get_strip<KEPT>(row_of_sum<T>(k, row), (int64_t)col, k.args.cols, (int64_t)k.threads.group * LENGTH, s);
        add_strip<KEPT, DISTANCES>(k, s, col, mean, sum);
    }
    return sum;
}

DEVICE void store_moments(const forward_plan &k, int64_t row, float mean, float rstd)
{
    if (threadIdx.x % (unsigned)k.threads.group != 0)
        return;
    if (k.args.mean && !k.args.rms)
        k.args.mean[row] = mean;
    if (k.args.rstd)
        k.args.rstd[row] = rstd;
}

/* T is what a row has, W what weights and bias have. KEPT rows have aligned packs, and the next row is on its way while
 * one is computed. */
template <class T, class W, int PACKS, bool KEPT>
static __global__ __launch_bounds__(KEPT ? KEEPERS : MOST_THREADS) void norm_rows(GRID_CONSTANT(forward_plan) k)
{
    const int n = ACCESS / (int)sizeof(T);
    typedef typename column_of<KEPT>::type column;
    const column cols = (column)k.args.cols, step = k.threads.group * n;
    const column own = (int)(threadIdx.x % (unsigned)k.threads.group) * n; /* a thread's first column */
    const bool rms = k.args.rms;
    __shared__ float partial[WARP];
    parts_of_sum<T, n, PACKS> parts;
    strip<W, n, PACKS> weight = {}, bias = {};

    if (KEPT) {
        get_weights<KEPT>(k.args.weight, 1.0f, own, cols, step, weight);
        get_weights<KEPT>(k.args.bias, 0.0f, own, cols, step, bias);
        if (FIRST_GROUP(k.threads.group) < k.args.rows)
            get_parts<KEPT>(k, FIRST_GROUP(k.threads.group), own, parts);
    }
    EACH_GROUP (row, k.args.rows, k.threads.group) {
        strip<T, n, PACKS> s;
        float sum = 0.0f, mean = 0.0f, rstd;

        EACH_STRIP (col, n) {
            if (!KEPT)
                get_parts<KEPT>(k, row, col, parts);
            s = make_sum<KEPT>(k, row, col, parts);
            if (KEPT && row + groups_ * gridDim.x < k.args.rows)
                get_parts<KEPT>(k, row + groups_ * gridDim.x, own, parts);
            if (rms)
                add_strip<KEPT, SQUARES>(k, s, col, 0.0f, sum);
            else
                add_strip<KEPT, ELEMENTS>(k, s, col, 0.0f, sum);
        }
        sum = group_sum(sum, partial, k.threads.group);
        if (!rms) {
            mean = sum / (float)cols;
            sum = group_sum(squares_of<KEPT>(k, row, s, mean), partial, k.threads.group);
        }
        rstd = 1.0f / sqrtf(sum / (float)cols + k.args.eps);
        EACH_STRIP (col, n) {
            if (!KEPT) {
                get_strip<KEPT>(row_of_sum<T>(k, row), col, cols, step, s);
                get_weights<KEPT>(k.args.weight, 1.0f, col, cols, step, weight);
                get_weights<KEPT>(k.args.bias, 0.0f, col, cols, step, bias);
            }
            store_norm<KEPT>(k, row, col, s, weight, bias, mean, rstd);
        }
        store_moments(k, row, mean, rstd);
    }
}

/* Says whether rows of T with weights of W are usual enough for kernels that keep them. */
template <class T, class W>
struct usual {
    static const bool value = false;
};
template <class T>
struct usual<T, T> {
    static const bool value = true;
};
template <>
struct usual<bf16, float> {
    static const bool value = true;
};
template <>
struct usual<f16, float> {
    static const bool value = true;
};

/* Returns how many blocks a card has room for: more would wait, while the next row of these comes beside. */
static unsigned room_for_rows(fsdp_stream *stream, size_t size, unsigned block)
{
    int multiprocessors, warps = size == sizeof(float) ? FORWARD_WARPS - 4 : FORWARD_WARPS;
    size_t shared_bytes;

    fsdp__cuda_card(stream, &multiprocessors, &shared_bytes);
    return (unsigned)FSDP__MAX(warps * WARP / (int)block, 1) * (unsigned)multiprocessors;
}

template <class T, class W>
static fsdp_status launch_forward(fsdp_stream *stream, forward_plan k, bool kept)
{
    const int n = ACCESS / (int)sizeof(T);
    auto *kernel = norm_rows<T, W, 1, false>;

    if constexpr (usual<T, W>::value) {
        if (kept) {
            kernel = k.args.cols <= WARP * FEW ? norm_rows<T, W, FEW / n, true> : norm_rows<T, W, SOME / n, true>;
            k.threads.grid = FSDP__MIN(k.threads.grid, room_for_rows(stream, sizeof(T), k.threads.block));
        }
    }
    return launch(stream, "norm_forward", kernel, k.threads.grid, k.threads.block, 0, k);
}

ENTRY(norm_forward, a)
{
    int64_t row_bytes = a->cols * (int64_t)fsdp_dtype_size(a->dtype);
    forward_plan k = {*a, threads_of_rows(a->rows, a->cols, a->cols <= WARP * FEW ? FEW : SOME)};
    bool kept = a->cols <= KEEPERS * SOME && is_aligned(a->x, row_bytes) && is_aligned(a->residual, 0) &&
                is_aligned(a->sum, 0) && is_aligned(a->y, 0) && is_aligned(a->weight, 0) && is_aligned(a->bias, 0);

    EACH_PAIR(a->dtype, a->weight_dtype, T, W, FSDP_TRY((launch_forward<T, W>(stream, k, kept))));
    return FSDP_OK;
}

/* ---- backward ---- */

/* Column sums are taken over panels of rows, each a group's, and then over panels. */
struct backward_plan {
    fsdp__norm_backward_args args;
    row_threads threads;
    int64_t panels, panel_rows;
    float *dweight, *dbias; /* (panels, cols); NULL: not needed */
};

/* Holds what a row's gradient is computed from. */
template <class T, int LENGTH, int PACKS>
struct row_strip {
    strip<T, LENGTH, PACKS> s, dy, dsum;
    float mean, rstd;
};

template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void get_row(const backward_plan &k, int64_t row, Column col, row_strip<T, LENGTH, PACKS> &x)
{
    Column cols = (Column)k.args.cols, step = k.threads.group * LENGTH;

    x.mean = k.args.rms ? 0.0f : k.args.mean[row];
    x.rstd = k.args.rstd[row];
    get_strip<WHOLE>((const T *)k.args.s + row * k.args.cols, col, cols, step, x.s);
    get_strip<WHOLE>((const T *)k.args.dy + row * k.args.cols, col, cols, step, x.dy);
    x.dsum = {};
    if (k.args.dsum)
        get_strip<WHOLE>((const T *)k.args.dsum + row * k.args.cols, col, cols, step, x.dsum);
}

/* Gives a pack of what dy is multiplied with. */
template <class W, int LENGTH, int PACKS>
DEVICE void scales_of(const backward_plan &k, strip<W, LENGTH, PACKS> &weight, int p, float (&w)[LENGTH])
{
    float offset = k.args.weight && k.args.plus_one ? 1.0f : 0.0f;

    weight.at(p, w);
    UNROLL
    for (int e = 0; e < LENGTH; e++)
        w[e] += offset;
}

/* Adds to the sums of a row that its gradient needs: of dy w, and of dy w (s - mean); and to those of its columns where
 * the caller has some. */
template <class T, class W, int LENGTH, int PACKS>
DEVICE void add_row(const backward_plan &k, row_strip<T, LENGTH, PACKS> &x, strip<W, LENGTH, PACKS> &weight,
                    float (&sums)[2], float (*dweight)[LENGTH], float (*dbias)[LENGTH])
{
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        float s[LENGTH], dy[LENGTH], w[LENGTH];

        x.s.at(p, s);
        x.dy.at(p, dy);
        scales_of(k, weight, p, w);
        UNROLL
        for (int e = 0; e < LENGTH; e++) { /* past the row's end dy is 0 */
            float centred = s[e] - x.mean, scaled = dy[e] * w[e];

            sums[0] += scaled;
            sums[1] += scaled * centred;
            if (dweight)
                dweight[p][e] += dy[e] * (centred * x.rstd);
            if (dbias)
                dbias[p][e] += dy[e];
        }
    }
}

/* Makes of these sums what store_dx() takes. */
DEVICE void sum_row(const backward_plan &k, float (&sums)[2], float *partial, float rstd)
{
    group_sums(sums, partial, k.threads.group);
    sums[0] = k.args.rms ? 0.0f : sums[0] / (float)k.args.cols * rstd;
    sums[1] = sums[1] / (float)k.args.cols * rstd * rstd * rstd;
}

/* Stores dx = dy w rstd - mean of (dy w) rstd - (s - mean) dot [+ dsum]. */
template <bool WHOLE, class T, class W, int LENGTH, int PACKS, class Column>
DEVICE void store_dx(const backward_plan &k, int64_t row, Column col, row_strip<T, LENGTH, PACKS> &x,
                     strip<W, LENGTH, PACKS> &weight, const float (&sums)[2])
{
    Column cols = (Column)k.args.cols;
    T *out = (T *)k.args.dx + row * k.args.cols;

    UNROLL
    for (int p = 0; p < PACKS; p++, col += k.threads.group * LENGTH) {
        float s[LENGTH], dy[LENGTH], extra[LENGTH], w[LENGTH];

        if (col >= cols)
            return;
        x.s.at(p, s);
        x.dy.at(p, dy);
        x.dsum.at(p, extra);
        scales_of(k, weight, p, w);
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            dy[e] = dy[e] * w[e] * x.rstd - sums[0] - (s[e] - x.mean) * sums[1] + extra[e];
        put<LENGTH>(out, col, cols, WHOLE, rounded<T>(dy));
    }
}

/* Stores a panel's column sums. */
template <int N, int PACKS>
DEVICE void store_columns(const backward_plan &k, float *out, int64_t col, const float (&sums)[PACKS][N])
{
    UNROLL
    for (int p = 0; p < PACKS; p++, col += (int64_t)k.threads.group * N)
        UNROLL
    for (int e = 0; e < N; e++)
        if (col + e < k.args.cols)
            out[col + e] = sums[p][e];
}

/* Works on rows that their threads keep: dx and the column sums in one pass. */
template <class T, class W, bool BIAS, bool AHEAD>
DEVICE void norm_panel(const backward_plan &k, int64_t panel, float *partial)
{
    const int n = ACCESS / (int)sizeof(T), PACKS = FEW / n;
    int64_t end = FSDP__MIN((panel + 1) * k.panel_rows, k.args.rows);
    int col = (int)(threadIdx.x % (unsigned)k.threads.group) * n;
    float dweight[PACKS][n] = {}, dbias[BIAS ? PACKS : 1][n] = {};
    row_strip<T, n, PACKS> next;
    strip<W, n, PACKS> weight = {};

    get_weights<true>(k.args.weight, 1.0f, col, (int)k.args.cols, k.threads.group * n, weight);
    if (AHEAD)
        get_row<true>(k, panel * k.panel_rows, col, next);
    for (int64_t row = panel * k.panel_rows; row < end; row++) {
        row_strip<T, n, PACKS> x = next;
        float sums[2] = {};

        if (!AHEAD)
            get_row<true>(k, row, col, x);
        else if (row + 1 < end) /* on its way while this row is added up */
            get_row<true>(k, row + 1, col, next);
        add_row(k, x, weight, sums, dweight, BIAS ? dbias : (float(*)[n])NULL);
        if (!k.args.dx)
            continue;
        sum_row(k, sums, partial, x.rstd);
        store_dx<true>(k, row, col, x, weight, sums);
    }
    if (k.dweight)
        store_columns<n>(k, k.dweight + panel * k.args.cols, col, dweight);
    if (BIAS)
        store_columns<n>(k, k.dbias + panel * k.args.cols, col, dbias);
}

template <class T, class W, bool BIAS, bool AHEAD = true>
static __global__ __launch_bounds__(AHEAD ? KEEPERS : MOST_THREADS) void norm_panels(GRID_CONSTANT(backward_plan) k)
{
    __shared__ float partial[2 * WARP];

    EACH_GROUP (panel, k.panels, k.threads.group)
        norm_panel<T, W, BIAS, AHEAD>(k, panel, partial);
}

/* dx of other rows, which are read twice. */
template <class T, class W>
static __global__ __launch_bounds__(MOST_THREADS) void norm_long_rows(GRID_CONSTANT(backward_plan) k)
{
    const int n = ACCESS / (int)sizeof(T), PACKS = 1;
    const bool KEPT = false;
    const int64_t step = 0; /* of a strip of one pack */
    __shared__ float partial[2 * WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        row_strip<T, n, PACKS> x;
        strip<W, n, PACKS> weight = {};
        float sums[2] = {};

        EACH_STRIP (col, n) {
            get_row<KEPT>(k, row, col, x);
            get_weights<KEPT>(k.args.weight, 1.0f, col, k.args.cols, step, weight);
            add_row(k, x, weight, sums, (float(*)[n])NULL, (float(*)[n])NULL);
        }
        sum_row(k, sums, partial, k.args.rstd[row]);
        EACH_STRIP (col, n) {
            get_row<KEPT>(k, row, col, x);
            get_weights<KEPT>(k.args.weight, 1.0f, col, k.args.cols, step, weight);
            store_dx<KEPT>(k, row, col, x, weight, sums);
        }
    }
}

/* Adds up the columns of longer rows, a thread for each column of a panel. */
template <class T>
static __global__ void norm_long_columns(GRID_CONSTANT(backward_plan) k)
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
    FOLDERS = 32 /* warps that add the panels in turns */
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
    EACH_FLOAT(k.args.dweight_dtype, T,
               FSDP_TRY(launch(stream, "norm_backward", fold_panels<T>, blocks_for(k.args.cols, WARP), FOLDERS * WARP,
                               0, panels, k.panels, k.args.cols, (T *)out, accumulate)));
    return FSDP_OK;
}

/* Panels are so many that each multiprocessor has several warps, and so few that their sums are little beside the
 * rows; and not a few more than a multiple of those that a card has room for, since most of it would wait for them. */
static void cut_panels(backward_plan *k)
{
    int64_t rows = k->args.rows, cols = FSDP__MAX(k->args.cols, 1);
    int64_t most = FSDP__MAX(512, FSDP__MIN(1024, (1 << 21) / cols));
    int64_t warps = threads_of_rows(rows, cols, FEW).group / WARP;
    int64_t room = MULTIPROCESSORS * FSDP__MAX((BACKWARD_WARPS - (k->args.dbias ? 4 : 0)) / warps, 1);

    most = FSDP__MAX((most + room / 2) / room, 1) * room;
    k->panel_rows = FSDP__MAX(8, (rows + most - 1) / most);
    k->panels = (rows + k->panel_rows - 1) / k->panel_rows;
}

template <class T, class W>
static fsdp_status launch_long(fsdp_stream *stream, const backward_plan &k)
{
    const fsdp__norm_backward_args *a = &k.args;

    if (a->dweight || a->dbias) /* first: dx may overwrite dy */
        FSDP_TRY(
            launch(stream, "norm_backward", norm_long_columns<T>, blocks_for(k.panels * a->cols, BLOCK), BLOCK, 0, k));
    if (a->dx)
        FSDP_TRY(launch(stream, "norm_backward", norm_long_rows<T, W>, k.threads.grid, k.threads.block, 0, k));
    return FSDP_OK;
}

/* Kernels that keep a row have registers for 512 threads; without a bias's sums, and with elements of 16 bits, for
 * 1,024 that fetch nothing ahead. */
template <class T, class W>
static fsdp_status launch_backward(fsdp_stream *stream, backward_plan k, bool kept)
{
    if constexpr (usual<T, W>::value) {
        auto *kernel = k.dbias ? norm_panels<T, W, true> : norm_panels<T, W, false>;

        k.threads = threads_of_rows(k.panels, k.args.cols, FEW);
        if constexpr (sizeof(T) < sizeof(float))
            if (k.threads.group > KEEPERS && !k.dbias)
                kernel = norm_panels<T, W, false, false>;
        if (kept && (k.threads.group <= KEEPERS || (sizeof(T) < sizeof(float) && !k.dbias)))
            return launch(stream, "norm_backward", kernel, k.threads.grid, k.threads.block, 0, k);
    }
    k.threads = threads_of_rows(k.args.rows, k.args.cols, FEW);
    return launch_long<T, W>(stream, k);
}

ENTRY(norm_backward, a)
{
    int64_t row_bytes = a->cols * (int64_t)fsdp_dtype_size(a->dtype);
    backward_plan k = {};
    bool kept = a->cols <= MOST_THREADS * FEW && is_aligned(a->s, row_bytes) && is_aligned(a->dy, 0) &&
                is_aligned(a->dsum, 0) && is_aligned(a->dx, 0) && is_aligned(a->weight, 0);
    float *sums;

    k.args = *a;
    cut_panels(&k);
    sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * k.panels * a->cols) * sizeof(float) + 1);
    if (!sums)
        return fsdp_last_status();
    k.dweight = a->dweight ? sums : NULL;
    k.dbias = a->dbias ? sums + k.panels * a->cols : NULL;
    EACH_PAIR(a->dtype, a->weight_dtype, T, W, FSDP_TRY((launch_backward<T, W>(stream, k, kept))));
    FSDP_TRY(fold(stream, k, k.dweight, a->dweight, a->accumulate_weight));
    return fold(stream, k, k.dbias, a->dbias, a->accumulate_bias);
}
