/* matmul.c - the matrix product, for all layouts and dtypes: oneDNN's sgemm, and around it what sgemm does not have.
 *
 * Matrices that are f32 and contiguous in one direction are handed over as they are, and C is written in place. When
 * one is not (16 bits wide, or strided both ways), the product is made of blocks: a block of each such operand is
 * copied out as f32, and a block of such a C is summed up as f32 and rounded once, when it is complete. */
#include <dnnl.h>

#include "backend/cpu/kernels/dtype.h"

#define BLOCK \
    1024 /* largest side of a block: the copies of A, B and C take 12 MiB, and the product is still a large one */

/* An operand as sgemm wants it: f32, element (i,j) at data[i * row + j * col], one of the two strides being 1. */
typedef struct operand {
    const float *data;
    int64_t row, col;
} operand;

typedef struct product {
    const fsdp__matmul_args *k;
    const char *a, *b; /* this batch's matrices */
    char *c;
    bool copy_a, copy_b, copy_c;
    int64_t m_step, n_step, k_step; /* sides of a block */
    float *block_a, *block_b, *block_c;
} product;

/* Whether sgemm takes a matrix (rows, cols) where it lies. */
static bool fits(fsdp_dtype dtype, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (dtype != FSDP_F32)
        return false;
    return (col == 1 && (row >= cols || rows == 1)) || (row == 1 && (col >= rows || cols == 1));
}

/* ---- copies ---- */

typedef struct copy_plan {
    fsdp_dtype dtype;
    const void *src;
    int64_t outer, inner, inner_count; /* strides; elements of a run */
    float *dst;
} copy_plan;

static void copy_runs(const void *args, int64_t begin, int64_t end)
{
    const copy_plan *p = args;

    for (int64_t i = begin; i < end; i++) {
        const void *src = fsdp__at(p->dtype, p->src, i * p->outer);
        float *restrict dst = p->dst + i * p->inner_count;

        if (p->inner == 1) {
            fsdp__widen(p->dtype, src, p->inner_count, dst);
        } else {
            for (int64_t j = 0; j < p->inner_count; j++)
                dst[j] = fsdp__load(p->dtype, src, j * p->inner);
        }
    }
}

/* The block (rows, cols) at `src` as f32 without gaps, along the direction in which it lies. */
static operand copied(fsdp_dtype dtype, const void *src, int64_t rows, int64_t cols, int64_t row, int64_t col,
                      float *dst)
{
    bool across = row == 1 && col != 1; /* columns are runs */
    copy_plan plan = {.dtype = dtype,
                      .src = src,
                      .outer = across ? col : row,
                      .inner = across ? row : col,
                      .inner_count = across ? rows : cols,
                      .dst = dst};

    fsdp__for_ranges(across ? cols : rows, plan.inner_count, copy_runs, &plan);
    return (operand){.data = dst, .row = across ? 1 : cols, .col = across ? rows : 1};
}

static operand operand_a(const product *p, int64_t m0, int64_t k0, int64_t m, int64_t depth)
{
    const fsdp__matmul_args *k = p->k;
    const void *at = fsdp__at(k->a_dtype, p->a, m0 * k->a_row + k0 * k->a_col);

    if (p->copy_a)
        return copied(k->a_dtype, at, m, depth, k->a_row, k->a_col, p->block_a);
    return (operand){.data = at, .row = k->a_row, .col = k->a_col};
}

static operand operand_b(const product *p, int64_t k0, int64_t n0, int64_t depth, int64_t n)
{
    const fsdp__matmul_args *k = p->k;
    const void *at = fsdp__at(k->b_dtype, p->b, k0 * k->b_row + n0 * k->b_col);

    if (p->copy_b)
        return copied(k->b_dtype, at, depth, n, k->b_row, k->b_col, p->block_b);
    return (operand){.data = at, .row = k->b_row, .col = k->b_col};
}

/* ---- C ---- */

/* Rows of C (or of its block) with what is not in the product: x + bias + C. */
typedef struct finish_plan {
    const product *p;
    const float *x; /* NULL: zeros; rows x_row apart */
    int64_t x_row, m0, n0, cols;
    bool add;
} finish_plan;

/* `x` and `bias` may be NULL; each is looked at once, not per element. */
FSDP__INLINE void finish_row_with(fsdp_dtype dtype, fsdp_dtype bias_dtype, const float *x, const void *bias, void *c,
                                  int64_t cols, bool add)
{
#define ROW(value, before) \
    _Pragma("omp simd") for (int64_t j = 0; j < cols; j++) fsdp__store(dtype, c, j, (value) + (before))
    if (x && bias && add)
        ROW(x[j] + fsdp__load(bias_dtype, bias, j), fsdp__load(dtype, c, j));
    else if (x && bias)
        ROW(x[j], fsdp__load(bias_dtype, bias, j));
    else if (x && add)
        ROW(x[j], fsdp__load(dtype, c, j));
    else if (x)
        ROW(x[j], 0.0f);
    else if (bias && add)
        ROW(fsdp__load(bias_dtype, bias, j), fsdp__load(dtype, c, j));
    else if (bias)
        ROW(fsdp__load(bias_dtype, bias, j), 0.0f);
    else if (!add)
        ROW(0.0f, 0.0f);
#undef ROW
}

FSDP__INLINE void finish_row(fsdp_dtype dtype, fsdp_dtype bias_dtype, const float *x, const void *bias, void *c,
                             int64_t cols, bool add)
{
#define WITH(B) finish_row_with(dtype, B, x, bias, c, cols, add)
    FSDP__EACH_FLOAT(bias_dtype, WITH)
#undef WITH
}

static void finish_rows(const void *args, int64_t begin, int64_t end)
{
    const finish_plan *f = args;
    const fsdp__matmul_args *k = f->p->k;
    const void *bias = k->bias ? fsdp__at(k->bias_dtype, k->bias, f->n0) : NULL;

    for (int64_t i = begin; i < end; i++) {
        void *c = fsdp__at(k->c_dtype, f->p->c, (f->m0 + i) * k->c_row + f->n0);
        const float *x = f->x ? f->x + i * f->x_row : NULL;
#define FINISH(T) finish_row(T, k->bias_dtype, x, bias, c, f->cols, f->add)
        FSDP__EACH_FLOAT(k->c_dtype, FINISH)
#undef FINISH
    }
}

static void finish(const finish_plan *plan, int64_t rows)
{
    fsdp__for_ranges(rows, plan->cols, finish_rows, plan);
}

/* ---- the product ---- */

static int64_t leading(operand x, int64_t rows, int64_t cols)
{
    return x.col == 1 ? FSDP__MAX(x.row, cols) : FSDP__MAX(x.col, rows);
}

static fsdp_status sgemm(const product *p, operand a, operand b, int64_t m, int64_t n, int64_t depth, float beta,
                         float *c, int64_t c_row)
{
    dnnl_status_t st = dnnl_sgemm(a.col == 1 ? 'N' : 'T', b.col == 1 ? 'N' : 'T', m, n, depth, p->k->alpha, a.data,
                                  leading(a, m, depth), b.data, leading(b, depth, n), beta, c, FSDP__MAX(c_row, n));

    if (st == dnnl_success)
        return FSDP_OK;
    return FSDP_FAIL(st == dnnl_out_of_memory ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED,
                     "dnnl_sgemm failed with status %d: (%lld,%lld) x (%lld,%lld)", (int)st, (long long)m,
                     (long long)depth, (long long)depth, (long long)n);
}

/* One block of C over the whole depth. */
static fsdp_status make_block(const product *p, int64_t m0, int64_t n0, int64_t m, int64_t n)
{
    const fsdp__matmul_args *k = p->k;
    float *c = p->copy_c ? p->block_c : (float *)p->c + m0 * k->c_row + n0;
    int64_t c_row = p->copy_c ? n : k->c_row;
    finish_plan rest = {.p = p, .m0 = m0, .n0 = n0, .cols = n, .add = k->accumulate};
    bool onto = k->accumulate && !p->copy_c;

    if (!p->copy_c && k->bias) {
        finish(&rest, m); /* first: the product is added to it on the way out */
        onto = true;
    }
    for (int64_t k0 = 0; k0 < k->k; k0 += p->k_step) {
        int64_t depth = FSDP__MIN(k->k - k0, p->k_step);
        operand b = operand_b(p, k0, n0, depth, n), a = operand_a(p, m0, k0, m, depth);

        FSDP_TRY(sgemm(p, a, b, m, n, depth, onto || k0 > 0 ? 1.0f : 0.0f, c, c_row));
    }
    if (p->copy_c) {
        rest.x = p->block_c;
        rest.x_row = n;
        finish(&rest, m);
    }
    return FSDP_OK;
}

static fsdp_status make_product(const product *p)
{
    const fsdp__matmul_args *k = p->k;

    if (k->k == 0) {
        finish(&(finish_plan){.p = p, .cols = k->n, .add = k->accumulate}, k->m);
        return FSDP_OK;
    }
    for (int64_t n0 = 0; n0 < k->n; n0 += p->n_step)
        for (int64_t m0 = 0; m0 < k->m; m0 += p->m_step)
            FSDP_TRY(make_block(p, m0, n0, FSDP__MIN(k->m - m0, p->m_step), FSDP__MIN(k->n - n0, p->n_step)));
    return FSDP_OK;
}

/* ---- entry ---- */

/* A side in equal steps of at most BLOCK. */
static int64_t step_of(int64_t side)
{
    return fsdp__ceil_div(side, FSDP__MAX(fsdp__ceil_div(side, BLOCK), 1));
}

static void set_batch(product *p, int64_t batch)
{
    const fsdp__matmul_args *k = p->k;

    p->a = fsdp__at(k->a_dtype, k->a, batch * k->a_batch);
    p->b = fsdp__at(k->b_dtype, k->b, batch * k->b_batch);
    p->c = fsdp__at(k->c_dtype, k->c, batch * k->c_batch);
}

/* What is the same for all batches but the scratch; returns the floats of scratch that one product needs. */
static int64_t plan_product(const fsdp__matmul_args *k, product *p)
{
    *p = (product){.k = k, .m_step = k->m, .n_step = k->n, .k_step = k->k};
    p->copy_a = !fits(k->a_dtype, k->m, k->k, k->a_row, k->a_col);
    p->copy_b = !fits(k->b_dtype, k->k, k->n, k->b_row, k->b_col);
    p->copy_c = !fits(k->c_dtype, k->m, k->n, k->c_row, 1);
    if (!p->copy_a && !p->copy_b && !p->copy_c)
        return 0;
    p->m_step = step_of(k->m);
    p->n_step = step_of(k->n);
    p->k_step = step_of(k->k);
    return (p->copy_a ? p->m_step * p->k_step : 0) + (p->copy_b ? p->k_step * p->n_step : 0) +
           (p->copy_c ? p->m_step * p->n_step : 0);
}

static void set_scratch(product *p, float *scratch)
{
    p->block_a = scratch;
    p->block_b = p->block_a + (p->copy_a ? p->m_step * p->k_step : 0);
    p->block_c = p->block_b + (p->copy_b ? p->k_step * p->n_step : 0);
}

/* Multiplications of one product below which a batch is shared out whole, one product a thread. */
#define SMALL_PRODUCT (1 << 21)

fsdp_status KERNEL(matmul)(fsdp_stream *stream, const void *args)
{
    const fsdp__matmul_args *k = args;
    product plan;
    int64_t floats = fsdp__round_up(plan_product(k, &plan), 16);
    int threads = k->batch > 1 && k->m * k->n * k->k < SMALL_PRODUCT ? fsdp__threads() : 1;
    float *scratch = NULL;
    fsdp_status st = FSDP_OK;

    if (k->m == 0 || k->n == 0)
        return FSDP_OK;
    if (floats > 0) {
        scratch = fsdp__stream_workspace(stream, (size_t)(floats * threads) * sizeof(float));
        if (!scratch)
            return FSDP_NO_MEMORY;
    }
#pragma omp parallel for schedule(static) num_threads(threads) if (threads > 1)
    for (int64_t batch = 0; batch < k->batch; batch++) {
        product mine = plan;
        fsdp_status made;

        set_scratch(&mine, scratch ? scratch + fsdp__thread() * floats : NULL);
        set_batch(&mine, batch);
        made = make_product(&mine);
        if (made != FSDP_OK) {
#pragma omp atomic write
            st = made;
        }
    }
    return st;
}
