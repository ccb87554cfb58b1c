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

/* Returns the row's loss, and computes its gradient if g is not NULL (g may be x). */
FSDP__INLINE double row_loss(fsdp_dtype dtype, fsdp_dtype g_dtype, const void *x, void *g, int64_t target,
                             float loss_scale, int64_t n)
{
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

static double any_loss(const fsdp__cross_entropy_args *k, const void *x, void *g, int64_t target)
{
    double loss = 0.0;

#define TO_F32(T) loss = row_loss(T, FSDP_F32, x, g, target, k->loss_scale, k->cols)
#define TO_BF16(T) loss = row_loss(T, FSDP_BF16, x, g, target, k->loss_scale, k->cols)
#define TO_F16(T) loss = row_loss(T, FSDP_F16, x, g, target, k->loss_scale, k->cols)
    if (!g || k->dlogits_dtype == FSDP_F32) {
        FSDP__EACH_FLOAT(k->dtype, TO_F32)
    } else if (k->dlogits_dtype == FSDP_BF16) {
        FSDP__EACH_FLOAT(k->dtype, TO_BF16)
    } else {
        FSDP__EACH_FLOAT(k->dtype, TO_F16)
    }
    return loss;
}

/* As any_loss(), of logits that are capped in `capped`; their gradient waits in the row behind it. */
static double capped_loss(const fsdp__cross_entropy_args *k, const void *x, void *g, int64_t target, float *capped)
{
    float *gradient = capped + k->cols, cap = k->softcap;
    double loss;

#define CAP(T) \
    _Pragma("omp simd") for (int64_t i = 0; i < k->cols; i++) capped[i] = cap * fsdp__tanhf(fsdp__load(T, x, i) / cap)
    FSDP__EACH_FLOAT(k->dtype, CAP)
#undef CAP
    loss = row_loss(FSDP_F32, FSDP_F32, capped, g ? gradient : NULL, target, k->loss_scale, k->cols);
#define STORE(T)                                              \
    _Pragma("omp simd") for (int64_t i = 0; i < k->cols; i++) \
        fsdp__store(T, g, i, gradient[i] * (1.0f - capped[i] / cap * (capped[i] / cap)))
    if (g)
        FSDP__EACH_FLOAT(k->dlogits_dtype, STORE)
#undef STORE
    return loss;
}

static void rows(const void *args, int64_t begin, int64_t end)
{
    const plan *p = args;
    const fsdp__cross_entropy_args *k = p->k;

    for (int64_t r = begin; r < end; r++) {
        int32_t target = k->targets[r];
        const void *x = fsdp__at(k->dtype, k->logits, r * k->cols);
        void *g = k->dlogits ? fsdp__at(k->dlogits_dtype, k->dlogits, r * k->cols) : NULL;

        p->losses[r] = 0.0;
        if (target != k->ignore_index && target >= 0 && target < k->cols)
            p->losses[r] = k->softcap > 0.0f ? capped_loss(k, x, g, target, p->scratch + fsdp__thread() * 2 * k->cols)
                                             : any_loss(k, x, g, target);
        else if (g)
            memset(g, 0, (size_t)k->cols * fsdp__float_size(k->dlogits_dtype));
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

fsdp_status KERNEL(cross_entropy)(fsdp_stream *stream, const void *args)
{
    const fsdp__cross_entropy_args *k = args;
    size_t scratch = k->softcap > 0.0f ? (size_t)(fsdp__threads() * 2 * k->cols) * sizeof(float) : 0;
    plan p = {.k = k, .losses = fsdp__stream_workspace(stream, (size_t)k->rows * sizeof(double) + scratch + 1)};
    double total = 0.0;

    FSDP__TRY_NEW(p.losses);
    p.scratch = (float *)(p.losses + k->rows);
    if (k->bad_row)
        find_bad_row(k);
    fsdp__for_ranges(k->rows, k->cols, rows, &p);
    /* Sum in row order, whichever threads made the losses. */
    for (int64_t r = 0; r < k->rows; r++)
        total += p.losses[r];
    total *= (double)k->loss_scale;
    *k->loss = (float)(k->accumulate_loss ? (double)*k->loss + total : total);
    return FSDP_OK;
}
