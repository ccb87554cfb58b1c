/* reduce.c - sums, the largest and the smallest over one dimension, in panels fixed by the sizes, and sums over
 * ranks. */
#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

#define PANEL_ROWS 64       /* rows of one partial sum when whole rows are added */
#define PANEL_ELEMENTS 4096 /* elements of one partial sum within a row */

typedef struct plan {
    const fsdp__reduce_args *k;
    float *partial; /* (outer, panels, inner) */
    int64_t panel, panels;
} plan;

FSDP__INLINE void sum_panel(fsdp_dtype dtype, bool centered, const plan *p, int64_t task)
{
    const fsdp__reduce_args *k = p->k;
    int64_t o = task / p->panels, first = task % p->panels * p->panel;
    int64_t end = FSDP__MIN(first + p->panel, k->reduced), n = k->inner;
    const void *x = fsdp__at(dtype, k->x, o * k->reduced * n);
    float *restrict out = p->partial + task * n;

    if (n == 1) {
        float sum = 0.0f, center = centered ? k->center[o] : 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t i = first; i < end; i++) {
            float v = fsdp__load(dtype, x, i);
            sum += centered ? (v - center) * (v - center) : v;
        }
        out[0] = sum;
        return;
    }
    memset(out, 0, (size_t)n * sizeof(float));
    for (int64_t r = first; r < end; r++) {
        const void *row = fsdp__at(dtype, x, r * n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = fsdp__load(dtype, row, i) - (centered ? k->center[o * n + i] : 0.0f);
            out[i] += centered ? v * v : v;
        }
    }
}

FSDP__INLINE float extreme(bool least, float a, float b)
{
    return b != b || (least ? b < a : b > a) ? b : a;
}

/* Finds the largest or smallest, vectorised by hand: see fsdp__largest. */
FSDP__INLINE float extreme_of_row(fsdp_dtype dtype, bool least, const void *x, int64_t first, int64_t end)
{
    float best = fsdp__load(dtype, x, first);
    int64_t i = first;

    if (end - first >= 2 * FSDP__LANES) {
        fsdp__vector a = fsdp__load_vector(dtype, x, i), b = fsdp__load_vector(dtype, x, i + FSDP__LANES);
        for (i += 2 * FSDP__LANES; i + 2 * FSDP__LANES <= end; i += 2 * FSDP__LANES) {
            fsdp__vector u = fsdp__load_vector(dtype, x, i), v = fsdp__load_vector(dtype, x, i + FSDP__LANES);
            fsdp__mask take_u = (least ? u < a : u > a) | (u != u), take_v = (least ? v < b : v > b) | (v != v);
            a = (fsdp__vector)((take_u & (fsdp__mask)u) | (~take_u & (fsdp__mask)a));
            b = (fsdp__vector)((take_v & (fsdp__mask)v) | (~take_v & (fsdp__mask)b));
        }
        for (int l = 0; l < FSDP__LANES; l++)
            best = extreme(least, extreme(least, best, a[l]), b[l]);
    }
    for (; i < end; i++)
        best = extreme(least, best, fsdp__load(dtype, x, i));
    return best;
}

FSDP__INLINE void extreme_panel(fsdp_dtype dtype, bool least, const plan *p, int64_t task)
{
    const fsdp__reduce_args *k = p->k;
    int64_t o = task / p->panels, first = task % p->panels * p->panel;
    int64_t end = FSDP__MIN(first + p->panel, k->reduced), n = k->inner;
    const void *x = fsdp__at(dtype, k->x, o * k->reduced * n);
    float *restrict out = p->partial + task * n;

    if (n == 1) {
        out[0] = extreme_of_row(dtype, least, x, first, end);
        return;
    }
    fsdp__widen(dtype, fsdp__at(dtype, x, first * n), n, out);
    for (int64_t r = first + 1; r < end; r++) {
        const void *row = fsdp__at(dtype, x, r * n);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            out[i] = extreme(least, out[i], fsdp__load(dtype, row, i));
    }
}

static void panel_of(const plan *p, int64_t task)
{
    if (p->k->center) {
        FSDP__EACH_FLOAT(p->k->x_dtype, T, sum_panel(T, true, p, task));
    } else if (p->k->op == FSDP__REDUCE_SUM) {
        FSDP__EACH_FLOAT(p->k->x_dtype, T, sum_panel(T, false, p, task));
    } else if (p->k->op == FSDP__REDUCE_MAX) {
        FSDP__EACH_FLOAT(p->k->x_dtype, T, extreme_panel(T, false, p, task));
    } else {
        FSDP__EACH_FLOAT(p->k->x_dtype, T, extreme_panel(T, true, p, task));
    }
}

/* Combines the panels of `o` in its first panel, in order, whichever threads made them, and writes the result. */
static void finish(const plan *p, int64_t o)
{
    const fsdp__reduce_args *k = p->k;
    int64_t n = k->inner;
    float *restrict total = p->partial + o * p->panels * n;
    void *y = fsdp__at(k->y_dtype, k->y, o * n);

    for (int64_t b = 1; b < p->panels; b++)
        for (int64_t i = 0; i < n; i++)
            total[i] = k->op == FSDP__REDUCE_SUM ? total[i] + total[b * n + i]
                                                 : extreme(k->op == FSDP__REDUCE_MIN, total[i], total[b * n + i]);
    FSDP__EACH_FLOAT(k->y_dtype, T,
                     for (int64_t i = 0; i < n; i++)
                         fsdp__store(T, y, i, k->alpha * total[i] + (k->accumulate ? fsdp__load(T, y, i) : 0.0f)));
}

FSDP__KERNEL(reduce, k)
{
    plan p = {.k = k, .panel = k->inner == 1 ? PANEL_ELEMENTS : PANEL_ROWS};
    int64_t tasks;

    p.panels = FSDP__MAX(fsdp__ceil_div(k->reduced, p.panel), 1);
    tasks = k->outer * p.panels;
    FSDP__TRY_NEW(p.partial = fsdp__stream_workspace(stream, (size_t)(tasks * k->inner) * sizeof(float) + 1));
#pragma omp parallel if (k->outer * k->reduced * k->inner > FSDP__PARALLEL_MIN && tasks > 1)
    {
#pragma omp for schedule(static)
        for (int64_t t = 0; t < tasks; t++)
            panel_of(&p, t);
#pragma omp for schedule(static)
        for (int64_t o = 0; o < k->outer; o++)
            finish(&p, o); /* after the barrier that ends the loop above, so that all panels are there */
    }
    return FSDP_OK;
}

/* ---- over ranks ---- */

/* Elements that are summed in the first-level cache before they are stored. */
#define PIECE 2048

FSDP__INLINE float combine(fsdp__rank_op op, float a, float b)
{
    if (op == FSDP__RANK_SUM)
        return a + b;
    if (op == FSDP__RANK_MAX)
        return b > a || b != b ? b : a;
    return b < a || b != b ? b : a;
}

/* Says how to divide by the number of ranks. A division takes several times as long as a product. The inverse of a
 * power of two is exact, so the product with it has the quotient's bits; no other division is replaced. */
typedef struct rank_job {
    const fsdp__reduce_ranks_args *k;
    float divisor, inverse;
    bool divides; /* otherwise `inverse` is exact */
} rank_job;

static rank_job begin_ranks(const fsdp__reduce_ranks_args *k)
{
    float divisor = k->divisor != 0.0f ? k->divisor : 1.0f;
    uint32_t bits = fsdp__float_bits(divisor), exponent = bits >> 23 & 0xffu;
    bool exact = (bits & 0x7fffffu) == 0 && exponent >= 1 && exponent <= 253; /* it and its inverse are normal */

    return (rank_job){.k = k, .divisor = divisor, .inverse = 1.0f / divisor, .divides = !exact};
}

/* Stores `sum`, divided; its element i is that of `dst`. */
FSDP__INLINE void store_ranks(const rank_job *j, bool divides, fsdp_dtype dtype, void *dst, const float *restrict sum,
                              int64_t n)
{
    float divisor = j->divisor, inverse = j->inverse;
    bool accumulate = j->k->accumulate;

#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float x = divides ? sum[i] / divisor : sum[i] * inverse;
        fsdp__store(dtype, dst, i, accumulate ? fsdp__load(dtype, dst, i) + x : x);
    }
}

/* Sums a few f32 or bf16 sources, the common case: every source is read once, and nothing is kept in between. */
FSDP__INLINE void sum_few(fsdp_dtype src, fsdp_dtype dst, const rank_job *j, int count, bool accumulate, bool divides,
                          int64_t begin, int64_t end)
{
    const fsdp__reduce_ranks_args *k = j->k;
    const void *s0 = k->srcs[0], *s1 = k->srcs[count > 1 ? 1 : 0], *s2 = k->srcs[count > 2 ? 2 : 0];
    const void *s3 = k->srcs[count > 3 ? 3 : 0];
    float divisor = j->divisor, inverse = j->inverse;
    void *out = k->dst;

#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float x = fsdp__load(src, s0, i);
        if (count > 1)
            x += fsdp__load(src, s1, i);
        if (count > 2)
            x += fsdp__load(src, s2, i);
        if (count > 3)
            x += fsdp__load(src, s3, i);
        x = divides ? x / divisor : x * inverse;
        fsdp__store(dst, out, i, accumulate ? fsdp__load(dst, out, i) + x : x);
    }
}

FSDP__INLINE void sum_few_counts(fsdp_dtype src, fsdp_dtype dst, const rank_job *j, int64_t begin, int64_t end)
{
#define FEW(count)                                             \
    if (j->k->accumulate && j->divides)                        \
        sum_few(src, dst, j, count, true, true, begin, end);   \
    else if (j->k->accumulate)                                 \
        sum_few(src, dst, j, count, true, false, begin, end);  \
    else if (j->divides)                                       \
        sum_few(src, dst, j, count, false, true, begin, end);  \
    else                                                       \
        sum_few(src, dst, j, count, false, false, begin, end); \
    break
    switch (j->k->count) {
    case 1:
        FEW(1);
    case 2:
        FEW(2);
    case 3:
        FEW(3);
    default:
        FEW(4);
    }
#undef FEW
}

FSDP__INLINE void add_source(fsdp_dtype dtype, fsdp__rank_op op, const void *src, int64_t at, float *restrict sum,
                             int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        sum[i] = combine(op, sum[i], fsdp__load(dtype, src, at + i));
}

/* Computes sum = sum op src[at, at + n). */
static void add_floats(fsdp__rank_op op, fsdp_dtype dtype, const void *src, int64_t at, float *sum, int64_t n)
{
    if (op == FSDP__RANK_SUM) {
        FSDP__EACH_FLOAT(dtype, T, add_source(T, FSDP__RANK_SUM, src, at, sum, n));
    } else if (op == FSDP__RANK_MAX) {
        FSDP__EACH_FLOAT(dtype, T, add_source(T, FSDP__RANK_MAX, src, at, sum, n));
    } else {
        FSDP__EACH_FLOAT(dtype, T, add_source(T, FSDP__RANK_MIN, src, at, sum, n));
    }
}

/* Computes sum = the sources in [first, last) that are there; returns whether there is any. */
static bool add_all(const fsdp__reduce_ranks_args *k, int first, int last, int64_t at, float *sum, int64_t n)
{
    bool any = false;

    for (int s = first; s < last; s++) {
        if (!k->srcs[s])
            continue;
        if (any)
            add_floats(k->op, k->src_dtype, k->srcs[s], at, sum, n);
        else
            fsdp__widen(k->src_dtype, fsdp__at(k->src_dtype, k->srcs[s], at), n, sum);
        any = true;
    }
    return any;
}

static void add_blocks(const fsdp__reduce_ranks_args *k, int64_t at, float *sum, int64_t n)
{
    float block[PIECE], rounded[PIECE]; /* `rounded` is in block_dtype, which is no wider */
    bool any = false;

    for (int s = 0; s < k->count; s += k->block) {
        if (!add_all(k, s, FSDP__MIN(s + k->block, k->count), at, block, n))
            continue;
        fsdp__narrow(k->block_dtype, block, n, rounded);
        if (any)
            add_floats(k->op, k->block_dtype, rounded, 0, sum, n);
        else
            fsdp__widen(k->block_dtype, rounded, n, sum);
        any = true;
    }
}

static void reduce_floats(const rank_job *j, int64_t begin, int64_t end)
{
    const fsdp__reduce_ranks_args *k = j->k;
    float sum[PIECE];

    for (int64_t at = begin; at < end; at += PIECE) {
        int64_t n = FSDP__MIN(end - at, PIECE);

        if (k->block > 0)
            add_blocks(k, at, sum, n);
        else
            (void)add_all(k, 0, k->count, at, sum, n);
        FSDP__EACH_FLOAT(k->dst_dtype, T, if (j->divides) store_ranks(j, true, T, fsdp__at(T, k->dst, at), sum, n);
                         else store_ranks(j, false, T, fsdp__at(T, k->dst, at), sum, n));
    }
}

static void reduce_integers(const fsdp__reduce_ranks_args *k, int64_t begin, int64_t end)
{
#define INTEGERS(type)                                                        \
    for (int64_t i = begin; i < end; i++) {                                   \
        int64_t x = ((const type *)k->srcs[0])[i];                            \
        for (int s = 1; s < k->count; s++) {                                  \
            int64_t v = ((const type *)k->srcs[s])[i];                        \
            if (k->op == FSDP__RANK_SUM)                                      \
                x = (int64_t)((uint64_t)x + (uint64_t)v);                     \
            else if (k->op == FSDP__RANK_MAX)                                 \
                x = v > x ? v : x;                                            \
            else                                                              \
                x = v < x ? v : x;                                            \
        }                                                                     \
        if (k->accumulate)                                                    \
            x = (int64_t)((uint64_t)x + (uint64_t)((const type *)k->dst)[i]); \
        ((type *)k->dst)[i] = (type)(k->dst_dtype == FSDP_BOOL ? x != 0 : x); \
    }
    if (k->src_dtype == FSDP_I64) {
        INTEGERS(int64_t)
    } else if (k->src_dtype == FSDP_I32) {
        INTEGERS(int32_t)
    } else {
        INTEGERS(uint8_t)
    }
#undef INTEGERS
}

static void reduce_range(const void *args, int64_t begin, int64_t end)
{
    const rank_job *j = args;
    const fsdp__reduce_ranks_args *k = j->k;
    bool few = k->op == FSDP__RANK_SUM && k->count <= 4 && k->block == 0;

    if (k->src_dtype == FSDP_I32 || k->src_dtype == FSDP_I64 || k->src_dtype == FSDP_U8 || k->src_dtype == FSDP_BOOL)
        reduce_integers(k, begin, end);
    else if (few && k->src_dtype == FSDP_F32 && k->dst_dtype == FSDP_F32)
        sum_few_counts(FSDP_F32, FSDP_F32, j, begin, end);
    else if (few && k->src_dtype == FSDP_BF16 && k->dst_dtype == FSDP_BF16)
        sum_few_counts(FSDP_BF16, FSDP_BF16, j, begin, end);
    else if (few && k->src_dtype == FSDP_BF16 && k->dst_dtype == FSDP_F32)
        sum_few_counts(FSDP_BF16, FSDP_F32, j, begin, end);
    else if (few && k->src_dtype == FSDP_F32 && k->dst_dtype == FSDP_BF16)
        sum_few_counts(FSDP_F32, FSDP_BF16, j, begin, end);
    else
        reduce_floats(j, begin, end);
}

FSDP__KERNEL(reduce_ranks, k)
{
    rank_job job = begin_ranks(k);

    fsdp__for_ranges(job.k->numel, 1, reduce_range, &job);
    return FSDP_OK;
}
