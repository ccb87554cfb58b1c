/* norm.cu - LayerNorm and RMSNorm, with the residual addition in front. */
#include "backend/cuda/kernels/strips.cuh"

enum {
    FEW = 8,   /* columns of a row that a thread keeps in registers, if a warp has enough, and always in a backward, */
    SOME = 16, /* or so many */
    KEEPERS = 512,         /* the most threads of a row that is kept in a forward, or fetched ahead in a backward */
    MULTIPROCESSORS = 132, /* that panels are cut for, on any card: it must not decide the order of sums */
    PANEL_THREADS = 768    /* of a panel of 16 bits, as many as a multiprocessor has registers for */
};

/* ---- forward ---- */

struct forward_plan {
    fsdp__norm_forward_args args;
    row_threads threads;
    float by_cols; /* 1 / columns */
};

/* Says how s is made. */
template <class T, int LENGTH, int PACKS>
struct parts_of_sum {
    strip<T, LENGTH, PACKS> x, residual;
};

/* A thread's strip of a row begins at element `at`, and `left` columns of the row are there from it on. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void get_parts(const forward_plan &k, int64_t at, Column left, parts_of_sum<T, LENGTH, PACKS> &parts)
{
    const Column step = k.threads.group * LENGTH;

    get_strip<WHOLE>((const T *)k.args.x + at, left, step, parts.x);
    if (k.args.residual)
        get_strip<WHOLE>((const T *)k.args.residual + at, left, step, parts.residual);
}

/* Gives a strip of s, which is stored where there is a residual. What is past the row's end is 0. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void make_sum(const forward_plan &k, int64_t at, Column left, parts_of_sum<T, LENGTH, PACKS> &parts,
                     float (&s)[PACKS][LENGTH])
{
    const Column step = k.threads.group * LENGTH;

    UNROLL
    for (int p = 0; p < PACKS; p++, left -= step) {
        float more[LENGTH];
        pack<T, LENGTH> sum;

        parts.x.at(p, s[p]);
        if (!k.args.residual || left <= 0)
            continue;
        parts.residual.at(p, more);
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            s[p][e] += more[e];
        sum = rounded<T>(s[p]);
        unpack(sum, s[p]);
        put<LENGTH>((T *)k.args.sum + at + p * step, 0, left, WHOLE, sum);
    }
}

/* Adds up a strip from which `mean` is subtracted, or its SQUARES. A pack of a row that is kept is whole, or behind
 * it. */
template <bool WHOLE, bool SQUARES, int LENGTH, int PACKS, class Column>
DEVICE void add_strip(const forward_plan &k, float (&s)[PACKS][LENGTH], Column left, float mean, float &sum)
{
    UNROLL
    for (int p = 0; p < PACKS; p++, left -= k.threads.group * LENGTH) {
        if (WHOLE && left <= 0)
            return;
        UNROLL
        for (int e = 0; e < LENGTH; e++) {
            s[p][e] = WHOLE || e < left ? s[p][e] - mean : 0.0f;
            sum += SQUARES ? s[p][e] * s[p][e] : s[p][e];
        }
    }
}

/* Stores y of a strip from which the mean was subtracted. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void store_norm(const forward_plan &k, int64_t at, Column left, const float (&s)[PACKS][LENGTH],
                       const float (&weight)[PACKS][LENGTH], const float (&bias)[PACKS][LENGTH], float rstd)
{
    const Column step = k.threads.group * LENGTH;

    UNROLL
    for (int p = 0; p < PACKS; p++, left -= step) {
        float y[LENGTH];

        if (left <= 0)
            return;
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            y[e] = s[p][e] * rstd * weight[p][e] + bias[p][e];
        put<LENGTH>((T *)k.args.y + at + p * step, 0, left, WHOLE, rounded<T>(y));
    }
}

/* Subtracts the mean from a strip of s, which is read again if it is not KEPT, and adds up its squares. */
template <bool KEPT, class T, int LENGTH, int PACKS, class Column>
DEVICE void centre(const forward_plan &k, int64_t at, Column left, float mean, float (&s)[PACKS][LENGTH],
                   float &squares)
{
    if constexpr (!KEPT) {
        strip<T, LENGTH, PACKS> x;

        get_strip<KEPT>((const T *)(k.args.residual ? k.args.sum : k.args.x) + at, left, (Column)0, x);
        x.at(0, s[0]);
    }
    add_strip<KEPT, true>(k, s, left, mean, squares);
}

template <bool WHOLE, class W, int LENGTH, int PACKS, class Column>
DEVICE void get_weights(const forward_plan &k, Column col, float (&weight)[PACKS][LENGTH], float (&bias)[PACKS][LENGTH])
{
    const Column left = (Column)k.args.cols - col, step = k.threads.group * LENGTH;

    get_numbers<WHOLE, W>(k.args.weight, 1.0f, k.args.weight && k.args.plus_one ? 1.0f : 0.0f, col, left, step, weight);
    get_numbers<WHOLE, W>(k.args.bias, 0.0f, 0.0f, col, left, step, bias);
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

/* Says how many warps of a multiprocessor keep rows, by their registers. */
template <class T>
struct forward_warps {
    enum {
        MOST = sizeof(T) < sizeof(float) ? 20 : 16
    };
};

/* T is what a row has, W what weights and bias have. KEPT rows have aligned packs, and the next row is on its way while
 * one is computed; others are read again, pack by pack. */
template <class T, class W, int PACKS, bool KEPT>
static __global__ __launch_bounds__(KEPT ? forward_warps<T>::MOST *WARP
                                         : MOST_THREADS) void norm_rows(GRID_CONSTANT(forward_plan) k)
{
    const int n = ACCESS / (int)sizeof(T);
    typedef typename column_of<KEPT>::type column;
    const column cols = (column)k.args.cols, own = (int)(threadIdx.x % (unsigned)k.threads.group) * n;
    const int64_t far = gridDim.x * (blockDim.x / (unsigned)k.threads.group) * k.args.cols;
    int64_t first = FIRST_GROUP(k.threads.group) * k.args.cols; /* element of the row */
    __shared__ float partial[WARP];
    parts_of_sum<T, n, PACKS> parts = {};
    float s[PACKS][n], weight[PACKS][n], bias[PACKS][n], none = 0.0f;

    if (KEPT) {
        get_weights<KEPT, W>(k, own, weight, bias);
        if (first < k.args.rows * k.args.cols)
            get_parts<KEPT>(k, first + own, cols - own, parts);
    }
    EACH_GROUP (row, k.args.rows, k.threads.group) {
        float sum = 0.0f, mean = 0.0f, rstd;

        EACH_STRIP (col, n) {
            if (!KEPT)
                get_parts<KEPT>(k, first + col, cols - col, parts);
            make_sum<KEPT>(k, first + col, cols - col, parts, s);
            if (KEPT && row + groups_ * gridDim.x < k.args.rows)
                get_parts<KEPT>(k, first + far + col, cols - col, parts);
            if (k.args.rms)
                add_strip<KEPT, true>(k, s, cols - col, 0.0f, sum);
            else
                add_strip<KEPT, false>(k, s, cols - col, 0.0f, sum);
        }
        sum = group_sum(sum, partial, k.threads.group);
        if (!k.args.rms) {
            mean = sum * k.by_cols;
            sum = 0.0f;
            EACH_STRIP (col, n)
                centre<KEPT, T>(k, first + col, cols - col, mean, s, sum);
            sum = group_sum(sum, partial, k.threads.group);
        }
        rstd = inverse_root(sum * k.by_cols + k.args.eps);
        EACH_STRIP (col, n) {
            if (!KEPT) {
                centre<KEPT, T>(k, first + col, cols - col, mean, s, none);
                get_weights<KEPT, W>(k, col, weight, bias);
            }
            store_norm<KEPT, T>(k, first + col, cols - col, s, weight, bias, rstd);
        }
        store_moments(k, row, mean, rstd);
        first += far;
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
static unsigned room_for_rows(fsdp_stream *stream, int warps, unsigned block)
{
    int multiprocessors;
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
            k.threads.grid = FSDP__MIN(k.threads.grid, room_for_rows(stream, forward_warps<T>::MOST, k.threads.block));
        }
    }
    return launch(stream, "norm_forward", kernel, k.threads.grid, k.threads.block, 0, k);
}

ENTRY(norm_forward, a)
{
    int64_t row_bytes = a->cols * (int64_t)fsdp_dtype_size(a->dtype);
    forward_plan k = {*a, threads_of_rows(a->rows, a->cols, a->cols <= WARP * FEW ? FEW : SOME), 1.0f / (float)a->cols};
    bool kept = a->cols <= KEEPERS * SOME && is_aligned(a->x, row_bytes) && is_aligned(a->residual, 0) &&
                is_aligned(a->sum, 0) && is_aligned(a->y, 0) && is_aligned(a->weight, 0) && is_aligned(a->bias, 0);

    EACH_PAIR(a->dtype, a->weight_dtype, T, W, FSDP_TRY((launch_forward<T, W>(stream, k, kept))));
    return FSDP_OK;
}

/* ---- backward ---- */

/* Column sums are taken over panels of rows, a block's each, and then over panels. A block has several groups, whose
 * rows are as far apart as all groups of the grid are many; they meet where a row's sums need a barrier. */
struct backward_plan {
    fsdp__norm_backward_args args;
    row_threads threads;
    int64_t panels;
    float by_cols;          /* 1 / columns */
    float *dweight, *dbias; /* (panels, cols); NULL: not needed */
};

/* Holds what a row's gradient is computed from. What is past the row's end is never fetched. */
template <class T, int LENGTH, int PACKS>
struct row_strip {
    strip<T, LENGTH, PACKS> s, dy, dsum;
    float mean, rstd;
};

/* A thread's strip of the row begins at element `at`, and `left` columns of the row are there from it on. */
template <bool WHOLE, class T, int LENGTH, int PACKS, class Column>
DEVICE void get_row(const backward_plan &k, int64_t row, int64_t at, Column left, row_strip<T, LENGTH, PACKS> &x)
{
    const Column step = k.threads.group * LENGTH;

    x.mean = k.args.rms ? 0.0f : k.args.mean[row];
    x.rstd = k.args.rstd[row];
    get_strip<WHOLE>((const T *)k.args.s + at, left, step, x.s);
    get_strip<WHOLE>((const T *)k.args.dy + at, left, step, x.dy);
    if (k.args.dsum)
        get_strip<WHOLE>((const T *)k.args.dsum + at, left, step, x.dsum);
}

/* Adds to the sums of a row that its gradient needs: of dy w (s - mean) rstd, and CENTRED of dy w; and to those of its
 * columns where the caller has some. */
template <bool CENTRED, class T, int LENGTH, int PACKS>
DEVICE void add_row(row_strip<T, LENGTH, PACKS> &x, const float (&w)[PACKS][LENGTH], float (&sums)[1 + CENTRED],
                    float (*dweight)[LENGTH], float (*dbias)[LENGTH])
{
    UNROLL
    for (int p = 0; p < PACKS; p++) {
        float s[LENGTH], dy[LENGTH];

        x.s.at(p, s);
        x.dy.at(p, dy);
        UNROLL
        for (int e = 0; e < LENGTH; e++) { /* past the row's end dy is 0 */
            float normed = (CENTRED ? s[e] - x.mean : s[e]) * x.rstd, scaled = dy[e] * w[p][e];

            sums[0] += scaled * normed;
            if (CENTRED)
                sums[CENTRED] += scaled;
            if (dweight)
                dweight[p][e] += dy[e] * normed;
            if (CENTRED && dbias)
                dbias[p][e] += dy[e];
        }
    }
}

/* Makes of these sums what store_dx() takes. */
template <int COUNT>
DEVICE void sum_row(const backward_plan &k, float (&sums)[COUNT], float *partial, int first_warp, float rstd)
{
    group_sums(sums, partial, k.threads.group, first_warp);
    sums[0] *= k.by_cols * rstd * rstd;
    if (COUNT > 1)
        sums[COUNT - 1] = k.args.rms ? 0.0f : sums[COUNT - 1] * k.by_cols * rstd;
}

/* Stores dx = dy w rstd - mean of (dy w) rstd - (s - mean) dot [+ dsum]. */
template <bool WHOLE, bool CENTRED, class T, int LENGTH, int PACKS, class Column>
DEVICE void store_dx(const backward_plan &k, int64_t at, Column left, row_strip<T, LENGTH, PACKS> &x,
                     const float (&w)[PACKS][LENGTH], const float (&sums)[1 + CENTRED])
{
    const Column step = k.threads.group * LENGTH;
    const float constant = CENTRED ? x.mean * sums[0] - sums[CENTRED] : 0.0f;

    UNROLL
    for (int p = 0; p < PACKS; p++, left -= step) {
        float s[LENGTH], dy[LENGTH], dx[LENGTH];

        if (left <= 0)
            return;
        x.s.at(p, s);
        x.dy.at(p, dy);
        x.dsum.at(p, dx);
        UNROLL
        for (int e = 0; e < LENGTH; e++)
            dx[e] = (CENTRED ? dx[e] + constant : dx[e]) + dy[e] * w[p][e] * x.rstd - s[e] * sums[0];
        put<LENGTH>((T *)k.args.dx + at + p * step, 0, left, WHOLE, rounded<T>(dx));
    }
}

/* Stores a panel's column sums: those of its groups, one after the other. */
template <int N, int PACKS>
DEVICE void store_columns(const backward_plan &k, float *out, float *columns, int first, const float (&sums)[PACKS][N])
{
    const unsigned groups = blockDim.x / (unsigned)k.threads.group, own = threadIdx.x / (unsigned)k.threads.group;

    for (unsigned group = 0; group < groups; group++, __syncthreads()) {
        UNROLL
        for (int p = 0; p < PACKS; p++)
            UNROLL
        for (int e = 0; e < N; e++) {
            int col = first + p * k.threads.group * N + e;

            if (group == own && col < k.args.cols)
                (group + 1 < groups ? columns : out)[col] = sums[p][e] + (group > 0 ? columns[col] : 0.0f);
        }
    }
}

/* Says how many threads a block has at most where rows are kept and fetched AHEAD, by its registers. Two groups and
 * more have at most half of it each. */
template <class T>
struct panel_threads {
    enum {
        MOST = sizeof(T) < sizeof(float) ? PANEL_THREADS : KEEPERS,
        COLUMNS = MOST / 2 * FEW
    };
};

/* Works on rows that their threads keep: dx and the column sums in one pass. CENTRED: there is a mean, or a bias. */
template <class T, class W, bool CENTRED, bool AHEAD = true>
static __global__ __launch_bounds__(AHEAD ? panel_threads<T>::MOST : MOST_THREADS,
                                    1) void norm_panels(GRID_CONSTANT(backward_plan) k)
{
    const int n = ACCESS / (int)sizeof(T), PACKS = FEW / n;
    const int64_t groups = blockDim.x / (unsigned)k.threads.group, step = gridDim.x * groups;
    const int own = (int)(threadIdx.x % (unsigned)k.threads.group), col = own * n;
    const int first_warp = ((int)threadIdx.x - own) / WARP;
    const float offset = k.args.weight && k.args.plus_one ? 1.0f : 0.0f;
    __shared__ float partial[2 * WARP], columns[AHEAD ? panel_threads<T>::COLUMNS : 1];
    float dweight[PACKS][n] = {}, dbias[CENTRED ? PACKS : 1][n] = {}, w[PACKS][n];
    row_strip<T, n, PACKS> next = {};
    const int left = (int)k.args.cols - col;
    int64_t row = FIRST_GROUP(k.threads.group), at = row * k.args.cols + col, far = step * k.args.cols;

    get_numbers<true, W>(k.args.weight, 1.0f, offset, col, left, k.threads.group * n, w);
    if (AHEAD && row < k.args.rows)
        get_row<true>(k, row, at, left, next);
    for (int64_t first = blockIdx.x * groups; first < k.args.rows; first += step, row += step, at += far) {
        row_strip<T, n, PACKS> x = next;
        float sums[1 + CENTRED] = {};

        if (!AHEAD)
            get_row<true>(k, row, at, left, x);
        else if (row + step < k.args.rows) /* on its way while this row is added up */
            get_row<true>(k, row + step, at + far, left, next);
        if (row < k.args.rows)
            add_row<CENTRED>(x, w, sums, dweight, CENTRED ? dbias : (float(*)[n])NULL);
        if (!k.args.dx)
            continue;
        sum_row(k, sums, partial, first_warp, x.rstd);
        if (row < k.args.rows)
            store_dx<true, CENTRED>(k, at, left, x, w, sums);
    }
    if (k.dweight)
        store_columns<n>(k, k.dweight + blockIdx.x * k.args.cols, columns, col, dweight);
    if (CENTRED && k.dbias)
        store_columns<n>(k, k.dbias + blockIdx.x * k.args.cols, columns, col, dbias);
}

/* dx of other rows, which are read twice. */
template <class T, class W>
static __global__ __launch_bounds__(MOST_THREADS) void norm_long_rows(GRID_CONSTANT(backward_plan) k)
{
    const int n = ACCESS / (int)sizeof(T), PACKS = 1;
    const bool KEPT = false;
    const int64_t step = 0; /* of a strip of one pack */
    const float offset = k.args.weight && k.args.plus_one ? 1.0f : 0.0f;
    __shared__ float partial[2 * WARP];

    EACH_GROUP (row, k.args.rows, k.threads.group) {
        row_strip<T, n, PACKS> x = {};
        float sums[2] = {}, w[PACKS][n];

        EACH_STRIP (col, n) {
            get_row<KEPT>(k, row, row * k.args.cols + col, k.args.cols - col, x);
            get_numbers<KEPT, W>(k.args.weight, 1.0f, offset, col, k.args.cols - col, step, w);
            add_row<true>(x, w, sums, (float(*)[n])NULL, (float(*)[n])NULL);
        }
        sum_row(k, sums, partial, 0, k.args.rstd[row]);
        EACH_STRIP (col, n) {
            get_row<KEPT>(k, row, row * k.args.cols + col, k.args.cols - col, x);
            get_numbers<KEPT, W>(k.args.weight, 1.0f, offset, col, k.args.cols - col, step, w);
            store_dx<KEPT, true>(k, row * k.args.cols + col, k.args.cols - col, x, w, sums);
        }
    }
}

/* Adds up the columns of longer rows as norm_panels() does, a thread for each column of a panel. */
template <class T>
static __global__ void norm_long_columns(GRID_CONSTANT(backward_plan) k)
{
    const int64_t groups = k.threads.block / (unsigned)k.threads.group;

    EACH_ITEM (at, k.panels * k.args.cols) {
        int64_t panel = at / k.args.cols, col = at % k.args.cols;
        float dweight = 0.0f, dbias = 0.0f;

        for (int64_t group = panel * groups; group < (panel + 1) * groups; group++) {
            float of_weight = 0.0f, of_bias = 0.0f;

            for (int64_t row = group; row < k.args.rows; row += k.panels * groups) {
                float mean = k.args.rms ? 0.0f : k.args.mean[row], rstd = k.args.rstd[row];
                float dy = load((const T *)k.args.dy, row * k.args.cols + col);

                of_weight += dy * ((load((const T *)k.args.s, row * k.args.cols + col) - mean) * rstd);
                of_bias += dy;
            }
            dweight = of_weight + dweight;
            dbias = of_bias + dbias;
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

/* dweight [+]= the sum over its panels, and blocks with y = 1 do so for dbias. A block takes 32 columns. */
template <class T>
static __global__ __launch_bounds__(FOLDERS *WARP) void fold_panels(GRID_CONSTANT(backward_plan) k)
{
    const float *panels = blockIdx.y ? k.dbias : k.dweight;
    const bool accumulate = blockIdx.y ? k.args.accumulate_bias : k.args.accumulate_weight;
    T *out = (T *)(blockIdx.y ? k.args.dbias : k.args.dweight);
    __shared__ float partial[FOLDERS][WARP];
    int lane = lane_of_warp(), warp = (int)threadIdx.x / WARP;
    int64_t col = (int64_t)blockIdx.x * WARP + lane;
    float sum = 0.0f;

    if (!out)
        return;
    UNROLL_BY(8)
    for (int64_t panel = warp; panel < k.panels; panel += FOLDERS)
        sum += col < k.args.cols ? panels[panel * k.args.cols + col] : 0.0f;
    partial[warp][lane] = sum;
    __syncthreads();
    if (warp > 0 || col >= k.args.cols)
        return;
    for (int other = 1; other < FOLDERS; other++)
        sum += partial[other][lane];
    store(out, col, accumulate ? load(out, col) + sum : sum);
}

static fsdp_status fold(fsdp_stream *stream, const backward_plan &k)
{
    const dim3 grid = {blocks_for(k.args.cols, WARP), k.args.dbias ? 2u : 1u, 1};

    if (!k.args.dweight && !k.args.dbias)
        return FSDP_OK;
    EACH_FLOAT(k.args.dweight_dtype, T,
               FSDP_TRY(launch(stream, "norm_backward", fold_panels<T>, grid, FOLDERS * WARP, 0, k)));
    return FSDP_OK;
}

/* A multiprocessor has one panel, but few rows are no more panels than their sums are worth. */
static void cut_panels(backward_plan *k)
{
    const int most = k->args.dtype == FSDP_F32 ? KEEPERS : PANEL_THREADS;
    int64_t groups, panels;

    k->threads = threads_of_rows(k->args.rows, k->args.cols, FEW);
    groups = FSDP__MAX(most / k->threads.group, 1);
    panels = (k->args.rows + FSDP__MAX(groups, 8) - 1) / FSDP__MAX(groups, 8);
    k->threads.block = (unsigned)(k->threads.group * groups);
    k->panels = FSDP__MIN(panels, (int64_t)MULTIPROCESSORS);
    k->threads.grid = (unsigned)k->panels;
}

template <class T, class W>
static fsdp_status launch_long(fsdp_stream *stream, const backward_plan &k)
{
    const fsdp__norm_backward_args *a = &k.args;
    const row_threads t = threads_of_rows(a->rows, a->cols, FEW);

    if (a->dweight || a->dbias) /* first: dx may overwrite dy */
        FSDP_TRY(
            launch(stream, "norm_backward", norm_long_columns<T>, blocks_for(k.panels * a->cols, BLOCK), BLOCK, 0, k));
    if (a->dx)
        FSDP_TRY(launch(stream, "norm_backward", norm_long_rows<T, W>, t.grid, t.block, 0, k));
    return FSDP_OK;
}

/* Kernels that keep a row have registers for so many threads; without a bias's sums, and with elements of 16 bits, for
 * 1,024 that fetch nothing ahead. */
template <class T, class W>
static fsdp_status launch_backward(fsdp_stream *stream, const backward_plan &k, bool kept)
{
    if constexpr (usual<T, W>::value) {
        const bool centred = !k.args.rms || k.args.dbias, long_rows = k.threads.group > panel_threads<T>::MOST;
        auto *kernel = centred ? norm_panels<T, W, true> : norm_panels<T, W, false>;

        if constexpr (sizeof(T) < sizeof(float))
            if (long_rows)
                kernel = norm_panels<T, W, false, false>;
        if (kept && (!long_rows || (sizeof(T) < sizeof(float) && !centred)))
            return launch(stream, "norm_backward", kernel, k.threads.grid, k.threads.block, 0, k);
    }
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
    k.by_cols = 1.0f / (float)a->cols;
    cut_panels(&k);
    sums = (float *)fsdp__stream_workspace(stream, (size_t)(2 * k.panels * a->cols) * sizeof(float) + 1);
    if (!sums)
        return fsdp_last_status();
    k.dweight = a->dweight ? sums : NULL;
    k.dbias = a->dbias ? sums + k.panels * a->cols : NULL;
    EACH_PAIR(a->dtype, a->weight_dtype, T, W, FSDP_TRY((launch_backward<T, W>(stream, k, kept))));
    return fold(stream, k);
}
