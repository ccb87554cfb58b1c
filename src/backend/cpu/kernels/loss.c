/* loss.c - softmax and cross-entropy in one pass over the logits, with their gradient. */
#include <math.h>

#include "backend/cpu/kernels/mathf.h"
#include "base/alloc.h"

typedef struct plan {
    const fsdp__cross_entropy_args *k;
    double *losses; /* (rows) */
    float *scratch; /* with a softcap: two rows for each thread */
} plan;

/* Returns the sum of e^(x - top), and also writes the terms to `e` if that is not NULL. */
FSDP__INLINE float row_exp_sum(fsdp_dtype dtype, const void *x, float top, float *e, int64_t n)
{
    float sum = 0.0f;

    if (e) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            float v = fsdp__expf_low(fsdp__load(dtype, x, i) - top);
            e[i] = v;
            sum += v;
        }
    } else {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += fsdp__expf_low(fsdp__load(dtype, x, i) - top);
    }
    return sum;
}

/* One row, and the place of its target in it, which may be elsewhere. */
typedef struct row {
    const fsdp__cross_entropy_args *k;
    int64_t number, target;
} row;

static bool has_target(row r)
{
    return r.target >= 0 && r.target < r.k->cols;
}

/* Computes what a part of a row is to give. */
FSDP__INLINE void part_of_row(fsdp_dtype dtype, fsdp_dtype g_dtype, const void *x, void *g, row r)
{
    const fsdp__cross_entropy_args *k = r.k;
    float at_target = has_target(r) ? fsdp__load(dtype, x, r.target) : 0.0f, top = k->largest[r.number];
    float factor;

    if (!g) {
        k->sums[r.number] = row_exp_sum(dtype, x, top, NULL, k->cols);
        k->at_targets[r.number] = at_target;
        return;
    }
    factor = k->loss_scale / k->sums[r.number];
#pragma omp simd
    for (int64_t i = 0; i < k->cols; i++)
        fsdp__store(g_dtype, g, i, fsdp__expf_low(fsdp__load(dtype, x, i) - top) * factor);
    if (has_target(r))
        fsdp__store(g_dtype, g, r.target, k->loss_scale * (expf(at_target - top) / k->sums[r.number] - 1.0f));
}

/* Returns the row's loss, and computes its gradient if g is not NULL (g may be x). */
FSDP__INLINE double row_loss(fsdp_dtype dtype, fsdp_dtype g_dtype, const void *x, void *g, row r)
{
    int64_t target = r.target, n = r.k->cols;
    float loss_scale = r.k->loss_scale;
    float top = fsdp__largest(dtype, x, n), at_target = fsdp__load(dtype, x, target);
    bool keep = g && g_dtype == FSDP_F32; /* the exponentials can wait in the gradient itself */
    float sum = row_exp_sum(dtype, x, top, keep ? g : NULL, n);
    float factor = loss_scale / sum;

    if (keep) {
        float *p = g;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            p[i] *= factor;
        p[target] = loss_scale * (expf(at_target - top) / sum - 1.0f);
    } else if (g) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(g_dtype, g, i, fsdp__expf_low(fsdp__load(dtype, x, i) - top) * factor);
        fsdp__store(g_dtype, g, target, loss_scale * (expf(at_target - top) / sum - 1.0f));
    }
    return (double)logf(sum) + (double)top - (double)at_target;
}

/* Does either; what is to be done with a part gives no loss. */
FSDP__INLINE double loss_of_row(fsdp_dtype dtype, fsdp_dtype g_dtype, const void *x, void *g, row r)
{
    if (!r.k->largest)
        return row_loss(dtype, g_dtype, x, g, r);
    part_of_row(dtype, g_dtype, x, g, r);
    return 0.0;
}

static double any_loss(row r, const void *x, void *g)
{
    const fsdp__cross_entropy_args *k = r.k;
    double loss = 0.0;

    if (!g || k->dlogits_dtype == FSDP_F32)
        FSDP__EACH_FLOAT(k->dtype, T, loss = loss_of_row(T, FSDP_F32, x, g, r))
    else if (k->dlogits_dtype == FSDP_BF16)
        FSDP__EACH_FLOAT(k->dtype, T, loss = loss_of_row(T, FSDP_BF16, x, g, r))
    else
        FSDP__EACH_FLOAT(k->dtype, T, loss = loss_of_row(T, FSDP_F16, x, g, r));
    return loss;
}

/* Does the same as any_loss() for logits that are capped in `capped`; their gradient waits in the row behind it. */
static double capped_loss(row r, const void *x, void *g, float *capped)
{
    const fsdp__cross_entropy_args *k = r.k;
    float *gradient = capped + k->cols, cap = k->softcap;
    double loss;

    FSDP__EACH_FLOAT(k->dtype, T,
                     _Pragma("omp simd") for (int64_t i = 0; i < k->cols; i++) capped[i] =
                         cap * fsdp__tanhf(fsdp__load(T, x, i) / cap));
    loss = loss_of_row(FSDP_F32, FSDP_F32, capped, g ? gradient : NULL, r);
    if (g)
        FSDP__EACH_FLOAT(k->dlogits_dtype, T,
                         _Pragma("omp simd") for (int64_t i = 0; i < k->cols; i++)
                             fsdp__store(T, g, i, gradient[i] * (1.0f - capped[i] / cap * (capped[i] / cap))));
    return loss;
}

/* Writes what a row gives that does not count. */
static void leave_out(row r, void *g)
{
    const fsdp__cross_entropy_args *k = r.k;

    if (g) {
        memset(g, 0, (size_t)k->cols * fsdp__float_size(k->dlogits_dtype));
    } else if (k->largest) {
        k->sums[r.number] = 1.0f;
        k->at_targets[r.number] = 0.0f;
    }
}

static void rows(const void *args, int64_t begin, int64_t end)
{
    const plan *p = args;
    const fsdp__cross_entropy_args *k = p->k;

    for (int64_t i = begin; i < end; i++) {
        row r = {k, i, k->targets[i] - k->first_col};
        int64_t at = i * (k->logits_row > 0 ? k->logits_row : k->cols);
        const void *x = fsdp__at(k->dtype, k->logits, at);
        void *g = k->dlogits ? fsdp__at(k->dlogits_dtype, k->dlogits, at) : NULL;

        p->losses[i] = 0.0;
        if (k->targets[i] == k->ignore_index || (!k->largest && !has_target(r)))
            leave_out(r, g);
        else
            p->losses[i] =
                k->softcap > 0.0f ? capped_loss(r, x, g, p->scratch + fsdp__thread() * 2 * k->cols) : any_loss(r, x, g);
    }
}

static void find_bad_row(const fsdp__cross_entropy_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        int32_t target = k->targets[r];
        if (target != k->ignore_index && (target < 0 || target >= k->cols)) {
            *k->bad_row = r;
            return;
        }
    }
}

FSDP__KERNEL(cross_entropy, k)
{
    size_t scratch = k->softcap > 0.0f ? (size_t)(fsdp__threads() * 2 * k->cols) * sizeof(float) : 0;
    plan p = {.k = k, .losses = fsdp__stream_workspace(stream, (size_t)k->rows * sizeof(double) + scratch + 1)};
    double total = 0.0;

    FSDP__TRY_NEW(p.losses);
    p.scratch = (float *)(p.losses + k->rows);
    if (k->bad_row)
        find_bad_row(k);
    fsdp__for_ranges(k->rows, k->cols, rows, &p);
    if (k->largest)
        return FSDP_OK;
    /* Sum in row order, whichever threads made the losses. */
    for (int64_t r = 0; r < k->rows; r++)
        total += p.losses[r];
    total *= (double)k->loss_scale;
    *k->loss = (float)(k->accumulate_loss ? (double)*k->loss + total : total);
    return FSDP_OK;
}
