/* gemm.c - the matrix product, for all layouts and dtypes.
 *
 * Blocks of A and B are packed into f32 strips (pack.h), where 16-bit operands are widened on the way; tiles of C are
 * made in registers (tile.h) and leave through one function that adds the bias, accumulates and rounds. Every element
 * of C is one sum in an order that the sizes alone decide. */
#include "backend/cpu/kernels/pack.h"

/* A block of C is BLOCK_M x BLOCK_N, made in steps of at most BLOCK_K; a task of a thread is TASK_M x TASK_N of it.
 * A strip of B (BLOCK_K x NR) stays in the first-level cache, a task's rows of A in the second. */
#define BLOCK_M 1024
#define BLOCK_N 2048
#define BLOCK_K 320
#define TASK_M 96
#define TASK_N 256

typedef struct gemm {
    const fsdp__matmul_args *k;
    const char *a, *b; /* this batch's matrices */
    char *c;
    int64_t step; /* K is taken in steps of this size */
    float *packed_a, *packed_b;
    float *sum; /* (BLOCK_M, BLOCK_N) when steps cannot be kept in C itself; else NULL */
    /* The block in work. */
    int64_t m0, n0, k0, m, n, depth;
} gemm;

static void tile_packed(int64_t rows, int64_t k, const float *a, const float *b, float *c, int64_t c_row,
                        bool accumulate)
{
    if (rows == FSDP__MR)
        fsdp__tile_rows(FSDP__MR, k, a, 1, FSDP__MR, b, c, c_row, accumulate);
    else
        fsdp__tile(rows, k, a, 1, FSDP__MR, b, c, c_row, accumulate);
}

static void pack_a_strip(const gemm *g, int64_t strip)
{
    const fsdp__matmul_args *k = g->k;
    int64_t first = strip * FSDP__MR;
    const char *src = fsdp__at(k->a_dtype, g->a, (g->m0 + first) * k->a_row + g->k0 * k->a_col);

    fsdp__pack_strip(FSDP__MR, k->a_dtype, src, k->a_row, k->a_col, g->m - first, g->depth, k->alpha,
                     g->packed_a + strip * FSDP__MR * g->step);
}

static void pack_b_strip(const gemm *g, int64_t strip)
{
    const fsdp__matmul_args *k = g->k;
    int64_t first = strip * FSDP__NR;
    const char *src = fsdp__at(k->b_dtype, g->b, g->k0 * k->b_row + (g->n0 + first) * k->b_col);

    fsdp__pack_strip(FSDP__NR, k->b_dtype, src, k->b_col, k->b_row, g->n - first, g->depth, 1.0f,
                     g->packed_b + strip * FSDP__NR * g->step);
}

FSDP__INLINE void finish_row(fsdp_dtype dtype, fsdp_dtype bias_dtype, const float *x, const void *bias, void *c,
                             int64_t at, int64_t n, bool add)
{
    for (int64_t j = 0; j < n; j++) {
        float v = x[j];
        if (bias)
            v += fsdp__load(bias_dtype, bias, j);
        if (add)
            v += fsdp__load(dtype, c, at + j);
        fsdp__store(dtype, c, at + j, v);
    }
}

/* Sums x (rows, cols) leave for C (i, j): with the bias on the first step, onto C when told to or on later steps. */
static void leave(const gemm *g, const float *x, int64_t x_row, int64_t i, int64_t j, int64_t rows, int64_t cols,
                  bool first)
{
    const fsdp__matmul_args *k = g->k;
    const void *bias = first && k->bias ? fsdp__at(k->bias_dtype, k->bias, j) : NULL;
    bool add = k->accumulate || !first;

    for (int64_t r = 0; r < rows; r++) {
        int64_t at = (i + r) * k->c_row + j;
#define FINISH(T) finish_row(T, k->bias_dtype, x + r * x_row, bias, g->c, at, cols, add)
        FSDP__EACH_FLOAT(k->c_dtype, FINISH)
#undef FINISH
    }
}

/* One strip of A times one strip of B. */
static void make_tile(const gemm *g, int64_t i, int64_t j, const float *a, const float *b)
{
    const fsdp__matmul_args *k = g->k;
    int64_t rows = FSDP__MIN(g->m - i, FSDP__MR), cols = FSDP__MIN(g->n - j, FSDP__NR);
    bool first = g->k0 == 0;
    float tile[FSDP__MR * FSDP__NR] __attribute__((aligned(64)));

    if (g->sum) {
        tile_packed(rows, g->depth, a, b, g->sum + i * BLOCK_N + j, BLOCK_N, !first);
    } else if (cols == FSDP__NR && k->c_dtype == FSDP_F32 && !(first && k->bias)) {
        tile_packed(rows, g->depth, a, b, (float *)g->c + (g->m0 + i) * k->c_row + g->n0 + j, k->c_row,
                    k->accumulate || !first);
    } else {
        tile_packed(rows, g->depth, a, b, tile, FSDP__NR, false);
        leave(g, tile, FSDP__NR, g->m0 + i, g->n0 + j, rows, cols, first);
    }
}

static void make_task(const gemm *g, int64_t task)
{
    int64_t across = fsdp__ceil_div(g->n, TASK_N), i0 = task / across * TASK_M, j0 = task % across * TASK_N;
    int64_t i1 = FSDP__MIN(i0 + TASK_M, g->m), j1 = FSDP__MIN(j0 + TASK_N, g->n);

    for (int64_t j = j0; j < j1; j += FSDP__NR)
        for (int64_t i = i0; i < i1; i += FSDP__MR)
            make_tile(g, i, j, g->packed_a + i * g->step, g->packed_b + j * g->step);
    if (g->sum && g->k0 + g->depth == g->k->k)
        leave(g, g->sum + i0 * BLOCK_N + j0, BLOCK_N, g->m0 + i0, g->n0 + j0, i1 - i0, j1 - j0, true);
}

/* Sets the block: its place, its size, and the counts of strips and tasks. */
static void set_block(gemm *g, int64_t n0, int64_t m0, int64_t k0)
{
    g->n0 = n0;
    g->m0 = m0;
    g->k0 = k0;
    g->n = FSDP__MIN(g->k->n - n0, BLOCK_N);
    g->m = FSDP__MIN(g->k->m - m0, BLOCK_M);
    g->depth = FSDP__MIN(g->k->k - k0, g->step);
}

/* All threads of the team call it; alone it is a plain loop. */
static void run(gemm shared)
{
    gemm *g = &shared; /* a copy: every thread steps through the same blocks */

    for (int64_t n0 = 0; n0 < g->k->n; n0 += BLOCK_N) {
        for (int64_t m0 = 0; m0 < g->k->m; m0 += BLOCK_M) {
            for (int64_t k0 = 0; k0 < g->k->k; k0 += g->step) {
                set_block(g, n0, m0, k0);
#pragma omp for schedule(static) nowait
                for (int64_t s = 0; s < fsdp__ceil_div(g->m, FSDP__MR); s++)
                    pack_a_strip(g, s);
#pragma omp for schedule(static)
                for (int64_t s = 0; s < fsdp__ceil_div(g->n, FSDP__NR); s++)
                    pack_b_strip(g, s);
#pragma omp for schedule(dynamic, 1)
                for (int64_t t = 0; t < fsdp__ceil_div(g->m, TASK_M) * fsdp__ceil_div(g->n, TASK_N); t++)
                    make_task(g, t);
            }
        }
    }
}

/* k == 0: nothing to add up. */
static void bias_only(const gemm *g)
{
    float zeros[256] = {0};

    for (int64_t i = 0; i < g->k->m; i++)
        for (int64_t j = 0; j < g->k->n; j += 256)
            leave(g, zeros, 0, i, j, 1, FSDP__MIN(g->k->n - j, 256), true);
}

/* ---- few rows ---- */

#define FEW_ROWS 4

/* B's columns are contiguous: each output is a dot product, B is read once where it lies. */
FSDP__INLINE void dot_rows(fsdp_dtype dtype, int rows, const float *a, int64_t a_row, const void *b, int64_t k,
                           float *out)
{
    float s0 = 0, s1 = 0, s2 = 0, s3 = 0;

#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t p = 0; p < k; p++) {
        float x = fsdp__load(dtype, b, p);
        s0 += a[p] * x;
        if (rows > 1)
            s1 += a[a_row + p] * x;
        if (rows > 2)
            s2 += a[2 * a_row + p] * x;
        if (rows > 3)
            s3 += a[3 * a_row + p] * x;
    }
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

typedef struct skinny {
    const gemm *g;
    const float *a; /* (m, k) f32, alpha applied */
} skinny;

static void dots(const void *args, int64_t begin, int64_t end)
{
    const skinny *s = args;
    const fsdp__matmul_args *k = s->g->k;

    for (int64_t j = begin; j < end; j++) {
        float out[FEW_ROWS];
        const void *b = fsdp__at(k->b_dtype, s->g->b, j * k->b_col);
#define DOT(T)                                    \
    if (k->m == 1)                                \
        dot_rows(T, 1, s->a, k->k, b, k->k, out); \
    else if (k->m == 2)                           \
        dot_rows(T, 2, s->a, k->k, b, k->k, out); \
    else if (k->m == 3)                           \
        dot_rows(T, 3, s->a, k->k, b, k->k, out); \
    else                                          \
        dot_rows(T, 4, s->a, k->k, b, k->k, out)
        FSDP__EACH_FLOAT(k->b_dtype, DOT)
#undef DOT
        leave(s->g, out, 1, 0, j, k->m, 1, true);
    }
}

#define AXPY_COLUMNS 512

/* B's rows are contiguous: they are added up, some columns at a time. */
static void axpys(const void *args, int64_t begin, int64_t end)
{
    const skinny *s = args;
    const fsdp__matmul_args *k = s->g->k;
    float sum[AXPY_COLUMNS];

    for (int64_t strip = begin; strip < end; strip++) {
        int64_t j = strip * AXPY_COLUMNS, n = FSDP__MIN(k->n - j, AXPY_COLUMNS);
        for (int64_t i = 0; i < k->m; i++) {
            memset(sum, 0, (size_t)n * sizeof(float));
            for (int64_t p = 0; p < k->k; p++) {
                const void *b = fsdp__at(k->b_dtype, s->g->b, p * k->b_row + j);
                float x = s->a[i * k->k + p];
#define AXPY(T)                     \
    for (int64_t c = 0; c < n; c++) \
    sum[c] += x * fsdp__load(T, b, c)
                FSDP__EACH_FLOAT(k->b_dtype, AXPY)
#undef AXPY
            }
            leave(s->g, sum, 0, i, j, 1, n, true);
        }
    }
}

static void run_skinny(const gemm *g, float *a)
{
    const fsdp__matmul_args *k = g->k;
    skinny s = {.g = g, .a = a};

    for (int64_t i = 0; i < k->m; i++)
        for (int64_t p = 0; p < k->k; p++)
            a[i * k->k + p] = k->alpha * fsdp__load(k->a_dtype, g->a, i * k->a_row + p * k->a_col);
    if (k->b_row == 1)
        fsdp__for_ranges(k->n, k->k * k->m, dots, &s);
    else
        fsdp__for_ranges(fsdp__ceil_div(k->n, AXPY_COLUMNS), k->k * AXPY_COLUMNS, axpys, &s);
}

/* ---- entry ---- */

static void set_batch(gemm *g, int64_t batch)
{
    const fsdp__matmul_args *k = g->k;

    g->a = fsdp__at(k->a_dtype, k->a, batch * k->a_batch);
    g->b = fsdp__at(k->b_dtype, k->b, batch * k->b_batch);
    g->c = fsdp__at(k->c_dtype, k->c, batch * k->c_batch);
}

/* Work (multiplications) of one product below which a batch is shared out whole, one product a thread. */
#define SMALL_PRODUCT (1 << 21)
/* Work for which threads pay. */
#define PARALLEL_PRODUCT (1 << 17)

fsdp_status KERNEL(matmul)(fsdp_stream *stream, const void *args)
{
    const fsdp__matmul_args *k = args;
    bool few = k->m <= FEW_ROWS && (k->b_row == 1 || k->b_col == 1);
    int64_t steps = FSDP__MAX(fsdp__ceil_div(k->k, BLOCK_K), 1), step = fsdp__round_up(fsdp__ceil_div(k->k, steps), 8);
    int64_t a_floats = few ? k->m * k->k : fsdp__round_up(FSDP__MIN(k->m, BLOCK_M), FSDP__MR) * step;
    int64_t b_floats = few ? 0 : fsdp__round_up(FSDP__MIN(k->n, BLOCK_N), FSDP__NR) * step;
    int64_t sum_floats =
        few || steps == 1 || k->c_dtype == FSDP_F32 ? 0 : (FSDP__MIN(k->m, BLOCK_M) + FSDP__MR) * BLOCK_N;
    int64_t work = k->m * k->n * k->k, floats = fsdp__round_up(a_floats + b_floats + sum_floats, 16);
    bool by_batch = k->batch > 1 && work < SMALL_PRODUCT && !few && k->batch * work > PARALLEL_PRODUCT;
    int threads = by_batch ? fsdp__threads() : 1;
    float *scratch;

    if (k->m == 0 || k->n == 0)
        return FSDP_OK;
    scratch = fsdp__stream_workspace(stream, (size_t)(floats * threads + 16) * sizeof(float));
    if (!scratch)
        return FSDP_NO_MEMORY;
#pragma omp parallel for schedule(static) num_threads(threads) if (by_batch && threads > 1)
    for (int64_t batch = 0; batch < k->batch; batch++) {
        float *mine = scratch + (by_batch ? fsdp__thread() : 0) * floats;
        gemm g = {.k = k, .step = step, .packed_a = mine, .packed_b = mine + a_floats};
        g.sum = sum_floats ? mine + a_floats + b_floats : NULL;
        set_batch(&g, batch);
        if (k->k == 0) {
            bias_only(&g);
        } else if (few) {
            run_skinny(&g, mine);
        } else if (by_batch) {
#pragma omp parallel num_threads(1)
            run(g);
        } else {
#pragma omp parallel if (work > PARALLEL_PRODUCT)
            run(g);
        }
    }
    return FSDP_OK;
}
