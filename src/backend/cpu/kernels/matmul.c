/* matmul.c - the matrix product, for all layouts and dtypes: oneDNN's sgemm, and around it what sgemm lacks.
 *
 * f32 matrices are passed on as they are, and C is written in place. If a matrix is 16 bits wide, has rows that
 * overlap, or is laid out so that sgemm reads it slowly, the product is made of panels: a panel of each such operand is
 * copied as f32, and a panel of such a C is summed as f32 and rounded once, when it is complete. Cores that multiply
 * bf16 themselves are tried first. A product of one row takes neither way (matvec.h). */
#include <dnnl.h>

#include "backend/cpu/kernels/matvec.h"
#include "backend/cpu/native_matmul.h"
#include "base/alloc.h"

/* Lists the largest sides of a panel: the copies of A, B and C take 20 MiB, and the product is still a large one. */
enum {
    ROWS = 2048,
    COLS = 1024,
    DEPTH = 1024
};

/* Element (i,j) is at data[i * row + j * col]; one of the two strides is 1. */
typedef struct matrix {
    const void *data;
    fsdp_dtype dtype;
    int64_t row, col;
} matrix;

typedef struct product {
    const fsdp__matmul_args *k;
    matrix a, b; /* those of this batch */
    char *c;
    int64_t m_step, n_step, k_step;     /* sides of a panel */
    float *panel_a, *panel_b, *panel_c; /* copies of a panel; NULL: sgemm takes the matrix in place */
} product;

/* Returns whether sgemm takes a matrix (rows, cols) in place. */
static bool fits(fsdp_dtype dtype, int64_t rows, int64_t cols, int64_t row, int64_t col)
{
    if (dtype != FSDP_F32)
        return false;
    return (col == 1 && (row >= cols || rows == 1)) || (row == 1 && (col >= rows || cols == 1));
}

/* ---- operands ---- */

enum {
    COLLIDING = 128, /* floats; runs that start a multiple of this apart share few sets of the first-level cache */
    PADDING = 16     /* puts such runs into different sets */
};

/* Returns whether sgemm is slow to read an operand with `stride` elements from one index of the depth to the next. If a
 * product has a short side, oneDNN packs nothing on AVX2, and runs that collide in the first-level cache then cost up
 * to half of its speed. A copy is cheaper, if it is used for some rows. With AVX-512 oneDNN looks at strides itself. */
static bool collides(const fsdp__matmul_args *k, int64_t stride)
{
    return FSDP__LANES < 16 && FSDP__MIN(FSDP__MIN(k->m, k->n), k->k) >= 64 && stride % COLLIDING == 0 &&
           1.0 / (double)k->m + 1.0 / (double)k->n >= 0.0038;
}

/* Returns the floats from one run of a copy to the next. */
static int64_t pitch_of(int64_t length)
{
    return length % COLLIDING == 0 ? length + PADDING : length;
}

typedef struct copy_plan {
    fsdp_dtype dtype;
    const void *src;
    int64_t stride, length, pitch; /* between runs, elements of a run, between runs of the copy */
    float *dst;
} copy_plan;

static void copy_runs(const void *args, int64_t begin, int64_t end)
{
    const copy_plan *p = args;

    for (int64_t i = begin; i < end; i++)
        fsdp__widen(p->dtype, fsdp__at(p->dtype, p->src, i * p->stride), p->length, p->dst + i * p->pitch);
}

/* Gives panel (rows, cols) of `x` from element (i,j) on, as sgemm wants it: in place, or copied to `scratch` along the
 * direction in which it is contiguous. */
static matrix panel_of(const matrix *x, int64_t i, int64_t j, int64_t rows, int64_t cols, float *scratch)
{
    bool across = x->col != 1; /* columns are contiguous */
    int64_t runs = across ? cols : rows, length = across ? rows : cols, pitch = pitch_of(length);
    matrix panel = *x;
    copy_plan plan;

    panel.data = fsdp__at(x->dtype, x->data, i * x->row + j * x->col);
    if (!scratch)
        return panel;
    plan = (copy_plan){.dtype = x->dtype,
                       .src = panel.data,
                       .stride = across ? x->col : x->row,
                       .length = length,
                       .pitch = pitch,
                       .dst = scratch};
    fsdp__for_ranges(runs, length, copy_runs, &plan);
    return (matrix){.data = scratch, .dtype = FSDP_F32, .row = across ? 1 : pitch, .col = across ? pitch : 1};
}

/* ---- C ---- */

/* A panel of C, (rows, cols) at `c`; `sum` is where it is summed: `c` itself or the copy. */
typedef struct result {
    const fsdp__matmul_args *k;
    void *c;
    float *sum;
    int64_t sum_row, n0, cols;
} result;

/* Sets rows to the part of the result that is no product: C + bias, or zeros. */
static void start_rows(const void *args, int64_t begin, int64_t end)
{
    const result *r = args;
    const fsdp__matmul_args *k = r->k;
    const void *bias = k->bias ? fsdp__at(k->bias_dtype, k->bias, r->n0) : NULL;

    for (int64_t i = begin; i < end; i++) {
        float *restrict sum = r->sum + i * r->sum_row;
        if (!k->accumulate)
            memset(sum, 0, (size_t)r->cols * sizeof(float));
        else if (r->sum != r->c)
            fsdp__widen(k->c_dtype, fsdp__at(k->c_dtype, r->c, i * k->c_row), r->cols, sum);
        if (!bias)
            continue;
        FSDP__EACH_FLOAT(k->bias_dtype, T, for (int64_t j = 0; j < r->cols; j++) sum[j] += fsdp__load(T, bias, j));
    }
}

static void round_rows(const void *args, int64_t begin, int64_t end)
{
    const result *r = args;

    for (int64_t i = begin; i < end; i++)
        fsdp__narrow(r->k->c_dtype, r->sum + i * r->sum_row, r->cols, fsdp__at(r->k->c_dtype, r->c, i * r->k->c_row));
}

/* ---- the product ---- */

/* Returns the stride for sgemm, which refuses one that is too small: that of a single row or column may be anything. */
static int64_t leading(const matrix *x, int64_t rows, int64_t cols)
{
    return x->col == 1 ? FSDP__MAX(x->row, cols) : FSDP__MAX(x->col, rows);
}

static fsdp_status sgemm(float alpha, const matrix *a, const matrix *b, int64_t m, int64_t n, int64_t depth, float beta,
                         float *c, int64_t c_row)
{
    dnnl_status_t status =
        dnnl_sgemm(a->col == 1 ? 'N' : 'T', b->col == 1 ? 'N' : 'T', m, n, depth, alpha, a->data, leading(a, m, depth),
                   b->data, leading(b, depth, n), beta, c, FSDP__MAX(c_row, n));

    if (status == dnnl_success)
        return FSDP_OK;
    return FSDP_FAIL(status == dnnl_out_of_memory ? FSDP_NO_MEMORY : FSDP_UNSUPPORTED,
                     "dnnl_sgemm failed with status %d: (%lld,%lld) x (%lld,%lld)", (int)status, (long long)m,
                     (long long)depth, (long long)depth, (long long)n);
}

/* Computes one panel of C over the whole depth. */
static fsdp_status make_panel(const product *p, int64_t m0, int64_t n0, int64_t m, int64_t n)
{
    const fsdp__matmul_args *k = p->k;
    result r = {.k = k, .c = fsdp__at(k->c_dtype, p->c, m0 * k->c_row + n0), .n0 = n0, .cols = n};
    bool onto = k->accumulate || k->bias;

    r.sum = p->panel_c ? p->panel_c : r.c;
    r.sum_row = p->panel_c ? n : k->c_row;
    /* If a product has no depth, no sgemm writes C. */
    if (k->bias || k->k == 0 || (k->accumulate && p->panel_c))
        fsdp__for_ranges(m, n, start_rows, &r); /* sgemm adds the product to it on its way out */
    for (int64_t k0 = 0; k0 < k->k; k0 += p->k_step) {
        int64_t depth = FSDP__MIN(k->k - k0, p->k_step);
        matrix b = panel_of(&p->b, k0, n0, depth, n, p->panel_b), a = panel_of(&p->a, m0, k0, m, depth, p->panel_a);

        FSDP_TRY(sgemm(k->alpha, &a, &b, m, n, depth, onto || k0 > 0 ? 1.0f : 0.0f, r.sum, r.sum_row));
    }
    if (p->panel_c)
        fsdp__for_ranges(m, n, round_rows, &r);
    return FSDP_OK;
}

static fsdp_status make_product(const product *p)
{
    const fsdp__matmul_args *k = p->k;

    for (int64_t n0 = 0; n0 < k->n; n0 += p->n_step)
        for (int64_t m0 = 0; m0 < k->m; m0 += p->m_step)
            FSDP_TRY(make_panel(p, m0, n0, FSDP__MIN(k->m - m0, p->m_step), FSDP__MIN(k->n - n0, p->n_step)));
    return FSDP_OK;
}

/* Divides a side into equal steps of at most `most`. */
static int64_t step_of(int64_t side, int64_t most)
{
    return fsdp__ceil_div(side, FSDP__MAX(fsdp__ceil_div(side, most), 1));
}

/* The sizes of what a thread's scratch begins with, in floats; 0 for an operand that is not copied. */
typedef struct scratch_sizes {
    int64_t a, b, c;
} scratch_sizes;

/* Sets the sides of a panel, and returns how much scratch its copies take. */
static scratch_sizes plan_panels(product *p)
{
    const fsdp__matmul_args *k = p->k;
    bool a = !fits(k->a_dtype, k->m, k->k, k->a_row, k->a_col) || collides(k, k->a_col);
    bool b = !fits(k->b_dtype, k->k, k->n, k->b_row, k->b_col) || collides(k, k->b_row);
    bool c = !fits(k->c_dtype, k->m, k->n, k->c_row, 1), any = a || b || c;

    p->m_step = any ? step_of(k->m, ROWS) : k->m;
    p->n_step = any ? step_of(k->n, COLS) : k->n;
    p->k_step = any ? step_of(k->k, DEPTH) : k->k;
    return (scratch_sizes){a ? (p->m_step + PADDING) * (p->k_step + PADDING) : 0,
                           b ? (p->k_step + PADDING) * (p->n_step + PADDING) : 0, c ? p->m_step * p->n_step : 0};
}

static void set_batch(product *p, int64_t batch)
{
    const fsdp__matmul_args *k = p->k;

    p->a = (matrix){fsdp__at(k->a_dtype, k->a, batch * k->a_batch), k->a_dtype, k->a_row, k->a_col};
    p->b = (matrix){fsdp__at(k->b_dtype, k->b, batch * k->b_batch), k->b_dtype, k->b_row, k->b_col};
    p->c = fsdp__at(k->c_dtype, k->c, batch * k->c_batch);
}

static void set_scratch(product *p, const scratch_sizes *sizes, float *scratch)
{
    p->panel_a = sizes->a ? scratch : NULL;
    p->panel_b = sizes->b ? scratch + sizes->a : NULL;
    p->panel_c = sizes->c ? scratch + sizes->a + sizes->b : NULL;
}

/* Computes one batch of a product, with scratch of its own. */
static fsdp_status batch_product(const product *plan, const scratch_sizes *sizes, float *scratch, int64_t batch)
{
    product mine = *plan;

    if (scratch)
        set_scratch(&mine, sizes, scratch);
    set_batch(&mine, batch);
    return make_product(&mine);
}

/* If one product has fewer multiplications than this, the products of a batch are shared among threads: one thread
 * makes each. */
#define SMALL_PRODUCT (1 << 21)

/* Adds up the rows of A, or the columns of B. */
static void add_up(const void *args, int64_t begin, int64_t end)
{
    const fsdp__matmul_args *k = args;
    const void *x = k->sums_of_b ? k->b : k->a;
    int64_t side = k->sums_of_b ? k->b_col : k->a_row, step = k->sums_of_b ? k->b_row : k->a_col;

#define ADD(T)                                            \
    for (int64_t i = begin; i < end; i++) {               \
        double sum = 0;                                   \
        for (int64_t p = 0; p < k->k; p++)                \
            sum += fsdp__load(T, x, i * side + p * step); \
        sums[i - begin] = (float)sum;                     \
    }
    for (float sums[64]; begin < end; begin += 64) {
        int64_t last = end, count = FSDP__MIN(end - begin, 64);

        end = begin + count;
        FSDP__EACH_FLOAT(k->sums_of_b ? k->b_dtype : k->a_dtype, T, ADD(T));
        fsdp__narrow(k->c_dtype, sums, count, fsdp__at(k->c_dtype, k->sums, begin));
        end = last;
    }
#undef ADD
}

static fsdp_status multiply(fsdp_stream *stream, const fsdp__matmul_args *k)
{
    product plan = {.k = k};
    scratch_sizes sizes = plan_panels(&plan);
    int64_t floats = fsdp__round_up(sizes.a + sizes.b + sizes.c, 16);
    bool share = k->batch > 1 && k->m * k->n * k->k < SMALL_PRODUCT;
    bool done = false;
    float *scratch = NULL;
    fsdp_status status = FSDP_OK;

    if (k->sums)
        fsdp__for_ranges(k->sums_of_b ? k->n : k->m, k->k, add_up, k);
    if (k->m == 0 || k->n == 0)
        return FSDP_OK;
    if (fsdp__is_matvec(k))
        return fsdp__matvec_run(stream, k);
    if (k->a_dtype == FSDP_BF16 && k->b_dtype == FSDP_BF16 && fsdp__has_native_bf16())
        FSDP_TRY(fsdp__native_matmul(k, &done));
    if (done)
        return FSDP_OK;
    if (floats > 0)
        FSDP__TRY_NEW(
            scratch = fsdp__stream_workspace(stream, (size_t)(floats * (share ? fsdp__threads() : 1)) * sizeof(float)));
    /* Do not open a parallel region around products that use all threads, not even one of one thread: OpenMP starts new
     * threads for each region inside another. */
    if (!share) {
        for (int64_t batch = 0; batch < k->batch && status == FSDP_OK; batch++)
            status = batch_product(&plan, &sizes, scratch, batch);
        return status;
    }
#pragma omp parallel for schedule(static)
    for (int64_t batch = 0; batch < k->batch; batch++) {
        fsdp_status made = batch_product(&plan, &sizes, scratch ? scratch + fsdp__thread() * floats : NULL, batch);

        if (made != FSDP_OK) {
#pragma omp atomic write
            status = made;
        }
    }
    return status;
}

/* Takes the rows of a product, from one on, through GELU or its gradient. */
static fsdp_status gelu_rows(fsdp_stream *stream, const fsdp__matmul_args *k, int64_t first, int64_t count)
{
    int64_t at = first * k->c_row;
    char *c = fsdp__at(k->c_dtype, k->c, at), *before = k->before ? fsdp__at(k->c_dtype, k->before, at) : c;
    const fsdp__activation_forward_args forward = {
        .x = before, .y = c, .rows = count, .cols = k->n, .kind = FSDP__GELU_TANH, .dtype = k->c_dtype};
    const fsdp__activation_backward_args backward = {
        .x = before, .dy = c, .dx = c, .rows = count, .cols = k->n, .kind = FSDP__GELU_TANH, .dtype = k->c_dtype};

    return k->gelu == FSDP__PRODUCT_GELU ? KERNEL(activation_forward)(stream, &forward)
                                         : KERNEL(activation_backward)(stream, &backward);
}

FSDP__KERNEL(matmul, k)
{
    fsdp__matmul_args plain = *k;
    int64_t rows = k->c_row == k->n ? k->m : 1;

    if (k->gelu == FSDP__PRODUCT_PLAIN)
        return multiply(stream, k);
    if (k->gelu == FSDP__PRODUCT_GELU && k->before)
        plain.c = k->before;
    FSDP_TRY(multiply(stream, &plain));
    for (int64_t row = 0; row < k->m; row += rows)
        FSDP_TRY(gelu_rows(stream, k, row, rows));
    return FSDP_OK;
}
