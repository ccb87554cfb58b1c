/* norm.c - LayerNorm and RMSNorm, with the residual addition in front. */
#include <math.h>

#include "backend/cpu/kernels/dtype.h"
#include "base/alloc.h"

/* Converts weights to f32 in scratch, so that loops have one dtype, and adds 1 if asked to. NULL stays NULL. */
static const float *weights(fsdp_dtype dtype, const void *w, int64_t cols, bool plus_one, float *scratch)
{
    if (!w || (dtype == FSDP_F32 && !plus_one))
        return w;
    fsdp__widen(dtype, w, cols, scratch);
    for (int64_t i = 0; plus_one && i < cols; i++)
        scratch[i] += 1.0f;
    return scratch;
}

typedef struct forward_plan {
    const fsdp__norm_forward_args *k;
    const float *weight, *bias;
} forward_plan;

/* Computes s = x + residual as it is stored, and returns its sum. */
FSDP__INLINE float add_residual(fsdp_dtype dtype, const void *x, const void *residual, void *sum, int64_t n)
{
    float total = 0.0f;

    if (residual) {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; i++) {
            float s = fsdp__rounded(dtype, fsdp__load(dtype, x, i) + fsdp__load(dtype, residual, i));
            fsdp__store(dtype, sum, i, s);
            total += s;
        }
    } else {
#pragma omp simd reduction(+ : total)
        for (int64_t i = 0; i < n; i++)
            total += fsdp__load(dtype, x, i);
    }
    return total;
}

FSDP__INLINE float squares(fsdp_dtype dtype, const void *s, float mean, int64_t n)
{
    float total = 0.0f;

#pragma omp simd reduction(+ : total)
    for (int64_t i = 0; i < n; i++) {
        float d = fsdp__load(dtype, s, i) - mean;
        total += d * d;
    }
    return total;
}

FSDP__INLINE void forward_row(fsdp_dtype dtype, const forward_plan *plan, int64_t r)
{
    const fsdp__norm_forward_args *k = plan->k;
    const float *w = plan->weight, *b = plan->bias;
    int64_t n = k->cols;
    const void *x = fsdp__at(dtype, k->x, r * n), *s = x;
    void *y = fsdp__at(dtype, k->y, r * n);
    float mean = 0.0f, rstd;

    if (k->residual) {
        s = fsdp__at(dtype, k->sum, r * n);
        mean = add_residual(dtype, x, fsdp__at(dtype, k->residual, r * n), fsdp__at(dtype, k->sum, r * n), n);
    } else if (!k->rms) {
        mean = add_residual(dtype, x, NULL, NULL, n);
    }
    mean = k->rms ? 0.0f : mean / (float)n;
    rstd = 1.0f / sqrtf(squares(dtype, s, mean, n) / (float)n + k->eps);
    if (k->mean && !k->rms)
        k->mean[r] = mean;
    if (k->rstd)
        k->rstd[r] = rstd;
    if (w && b) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, (fsdp__load(dtype, s, i) - mean) * rstd * w[i] + b[i]);
    } else if (w) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, (fsdp__load(dtype, s, i) - mean) * rstd * w[i]);
    } else {
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, (fsdp__load(dtype, s, i) - mean) * rstd + (b ? b[i] : 0.0f));
    }
}

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const forward_plan *plan = args;

    for (int64_t r = begin; r < end; r++) {
        FSDP__EACH_FLOAT(plan->k->dtype, T, forward_row(T, plan, r));
    }
}

FSDP__KERNEL(norm_forward, k)
{
    forward_plan plan = {.k = k};
    float *scratch = NULL;

    if ((k->weight_dtype != FSDP_F32 || k->plus_one) && (k->weight || k->bias))
        FSDP__TRY_NEW(scratch = fsdp__stream_workspace(stream, 2 * (size_t)k->cols * sizeof(float)));
    plan.weight = weights(k->weight_dtype, k->weight, k->cols, k->plus_one, scratch);
    plan.bias = weights(k->weight_dtype, k->bias, k->cols, false, scratch ? scratch + k->cols : NULL);
    fsdp__for_ranges(k->rows, k->cols, forward_range, &plan);
    return FSDP_OK;
}

/* ---- backward ---- */

/* Column sums are taken over panels of rows, then over panels: both depend on the sizes only. */
#define PANEL_ROWS 64
#define PANELS_MAX 64

typedef struct backward_plan {
    const fsdp__norm_backward_args *k;
    const float *weight;
    float *partial_weight, *partial_bias; /* (panels, cols); NULL: not needed */
    int64_t panel_rows;
} backward_plan;

/* Holds what the three sums of a row and the two outputs of each element share. */
typedef struct row_view {
    const void *s, *dy, *dsum;
    void *dx;
    const float *w;
    float mean, rstd;
    int64_t n;
} row_view;

FSDP__INLINE void backward_row(fsdp_dtype dtype, const row_view *v, bool rms)
{
    const float *w = v->w;
    float mean = v->mean, rstd = v->rstd, sum = 0.0f, dot = 0.0f;
    int64_t n = v->n;

    if (w) {
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < n; i++) {
            float g = fsdp__load(dtype, v->dy, i) * w[i];
            sum += g;
            dot += g * (fsdp__load(dtype, v->s, i) - mean);
        }
    } else {
#pragma omp simd reduction(+ : sum, dot)
        for (int64_t i = 0; i < n; i++) {
            float g = fsdp__load(dtype, v->dy, i);
            sum += g;
            dot += g * (fsdp__load(dtype, v->s, i) - mean);
        }
    }
    sum = rms ? 0.0f : sum / (float)n * rstd;
    dot = dot / (float)n * rstd * rstd * rstd;
#define DX(g, extra)             \
    fsdp__store(dtype, v->dx, i, \
                fsdp__load(dtype, v->dy, i) * (g)*rstd - sum - (fsdp__load(dtype, v->s, i) - mean) * dot + (extra))
    if (w && v->dsum) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            DX(w[i], fsdp__load(dtype, v->dsum, i));
    } else if (w) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            DX(w[i], 0.0f);
    } else {
        for (int64_t i = 0; i < n; i++)
            DX(1.0f, v->dsum ? fsdp__load(dtype, v->dsum, i) : 0.0f);
    }
#undef DX
}

FSDP__INLINE void add_columns(fsdp_dtype dtype, const row_view *v, float *restrict dw, float *restrict db)
{
    float mean = v->mean, rstd = v->rstd;

    if (dw) {
#pragma omp simd
        for (int64_t i = 0; i < v->n; i++)
            dw[i] += fsdp__load(dtype, v->dy, i) * ((fsdp__load(dtype, v->s, i) - mean) * rstd);
    }
    if (db) {
#pragma omp simd
        for (int64_t i = 0; i < v->n; i++)
            db[i] += fsdp__load(dtype, v->dy, i);
    }
}

FSDP__INLINE void backward_panel(fsdp_dtype dtype, const backward_plan *plan, int64_t panel)
{
    const fsdp__norm_backward_args *k = plan->k;
    int64_t n = k->cols, end = FSDP__MIN((panel + 1) * plan->panel_rows, k->rows);
    float *dw = plan->partial_weight ? plan->partial_weight + panel * n : NULL;
    float *db = plan->partial_bias ? plan->partial_bias + panel * n : NULL;

    if (dw)
        memset(dw, 0, (size_t)n * sizeof(float));
    if (db)
        memset(db, 0, (size_t)n * sizeof(float));
    for (int64_t r = panel * plan->panel_rows; r < end; r++) {
        row_view v = {.s = fsdp__at(dtype, k->s, r * n),
                      .dy = fsdp__at(dtype, k->dy, r * n),
                      .dsum = k->dsum ? fsdp__at(dtype, k->dsum, r * n) : NULL,
                      .dx = k->dx ? fsdp__at(dtype, k->dx, r * n) : NULL,
                      .w = plan->weight,
                      .mean = k->rms ? 0.0f : k->mean[r],
                      .rstd = k->rstd[r],
                      .n = n};
        add_columns(dtype, &v, dw, db); /* do this first: dx may overwrite dy */
        if (v.dx)
            backward_row(dtype, &v, k->rms);
    }
}

static void add_partials(fsdp_dtype dtype, const float *partial, int64_t panels, int64_t cols, void *out,
                         bool accumulate, float *restrict total)
{
    memcpy(total, partial, (size_t)cols * sizeof(float));
    for (int64_t b = 1; b < panels; b++)
        for (int64_t i = 0; i < cols; i++)
            total[i] += partial[b * cols + i];
    if (accumulate) {
        FSDP__EACH_FLOAT(dtype, T,
                         for (int64_t i = 0; i < cols; i++) fsdp__store(T, out, i, fsdp__load(T, out, i) + total[i]));
    } else {
        fsdp__narrow(dtype, total, cols, out);
    }
}

FSDP__KERNEL(norm_backward, k)
{
    backward_plan plan = {.k = k, .panel_rows = FSDP__MAX(PANEL_ROWS, fsdp__ceil_div(k->rows, PANELS_MAX))};
    int64_t n = k->cols, panels = FSDP__MAX(fsdp__ceil_div(k->rows, plan.panel_rows), 1);
    float *scratch = fsdp__stream_workspace(stream, (size_t)((2 * panels + 2) * n) * sizeof(float) + 1);

    FSDP__TRY_NEW(scratch);
    plan.weight = weights(k->weight_dtype, k->weight, n, k->plus_one, scratch);
    if (k->dweight)
        plan.partial_weight = scratch + 2 * n;
    if (k->dbias)
        plan.partial_bias = scratch + (2 + panels) * n;
#pragma omp parallel for schedule(static) if (k->rows * n > FSDP__PARALLEL_MIN && panels > 1)
    for (int64_t b = 0; b < panels; b++) {
        FSDP__EACH_FLOAT(k->dtype, T, backward_panel(T, &plan, b));
    }
    if (k->dweight)
        add_partials(k->dweight_dtype, plan.partial_weight, panels, n, k->dweight, k->accumulate_weight, scratch + n);
    if (k->dbias)
        add_partials(k->dweight_dtype, plan.partial_bias, panels, n, k->dbias, k->accumulate_bias, scratch + n);
    return FSDP_OK;
}
