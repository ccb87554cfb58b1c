/* optimizer.c - Adam, AdamW, SGD and Lion over all tensors in one pass, and the sums from which norms are made. */
#include <math.h>

#include "backend/cpu/kernels/judged.h"
#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/spans.h"
#include "base/alloc.h"

#define SPLIT FSDP_DTYPE_NONE /* the dtype of parameters in halves: [Note: split numbers] */

typedef struct adam_plan {
    const fsdp__adam_args *k;
    float grad_scale;
    float beta2, one_minus_beta1, one_minus_beta2, step_size, root_correction, decay_factor;
} adam_plan;

FSDP__SPAN_NUMEL(adam_numel, adam_plan, a->k->spans[span].numel)

FSDP__INLINE float load_split(const void *low, const void *high, int64_t i)
{
    return fsdp__bits_float(fsdp__split_whole(((const uint16_t *)high)[i], ((const uint16_t *)low)[i]));
}

FSDP__INLINE void store_split(void *low, void *high, int64_t i, float x)
{
    uint32_t bits = fsdp__float_bits(x);

    ((uint16_t *)high)[i] = (uint16_t)fsdp__split_high(bits);
    ((uint16_t *)low)[i] = (uint16_t)fsdp__split_low(bits);
}

/* Updates as torch.optim does: m by lerp, denominator sqrt(v) / sqrt(1 - b2^t) + eps. The parameter's dtype may be
 * SPLIT. */
FSDP__INLINE void adam_loop(fsdp_dtype param_dtype, fsdp_dtype dtype, const adam_plan *p, const fsdp__optimizer_span *s,
                            bool l2, int64_t begin, int64_t end)
{
    float *restrict m = s->moment1, *restrict v = s->moment2;
    float scale = p->grad_scale, eps = (float)p->k->eps, decay = l2 ? (float)p->k->weight_decay : 0.0f;
    float beta2 = p->beta2, one_minus_beta1 = p->one_minus_beta1, one_minus_beta2 = p->one_minus_beta2;
    float step_size = p->step_size, root_correction = p->root_correction, factor = p->decay_factor;
    const void *grad = s->grad;
    void *restrict param = s->param, *restrict high = s->copy;

#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float g = fsdp__load(dtype, grad, i) * scale, a, b;
        float w = (param_dtype == SPLIT ? load_split(param, high, i) : fsdp__load(param_dtype, param, i)) * factor;
        if (l2)
            g += decay * w;
        a = m[i] + one_minus_beta1 * (g - m[i]);
        b = beta2 * v[i] + one_minus_beta2 * g * g;
        m[i] = a;
        v[i] = b;
        w -= step_size * a / (sqrtf(b) / root_correction + eps);
        if (param_dtype == SPLIT)
            store_split(param, high, i, w);
        else
            fsdp__store(param_dtype, param, i, w);
    }
}

/* The copies that a step leaves of its parameters. */
typedef struct copies {
    const fsdp__optimizer_span *spans;
    fsdp_dtype param_dtype, copy_dtype;
} copies;

FSDP__SPAN_NUMEL(copy_numel, copies, a->spans[span].numel)

/* Copies what parameters are now. */
static void copy_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const copies *k = args;
    void *restrict copy = k->spans[span].copy;
    const void *param = k->spans[span].param;

    if (copy)
        EACH_PAIR(k->param_dtype, k->copy_dtype, P, C,
                  _Pragma("omp simd") for (int64_t i = begin; i < end; i++)
                      fsdp__store(C, copy, i, fsdp__load(P, param, i)));
}

/* A step that is left out writes only the copies. */
#define COPIES(k)                                     \
    &(const copies)                                   \
    {                                                 \
        (k)->spans, (k)->param_dtype, (k)->copy_dtype \
    }
#define RUN(k, left_out, numel, piece, plan)                                \
    do {                                                                    \
        if (!(left_out))                                                    \
            fsdp__for_spans((k)->count, numel, piece, plan);                \
        else if ((k)->copy_dtype != FSDP_DTYPE_NONE)                        \
            fsdp__for_spans((k)->count, copy_numel, copy_piece, COPIES(k)); \
    } while (0)

static void adam_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const adam_plan *p = args;
    const fsdp__optimizer_span *s = &p->k->spans[span];

    if (!p->k->decoupled && p->k->weight_decay != 0.0) {
        EACH_PAIR(p->k->param_dtype, p->k->grad_dtype, P, G, adam_loop(P, G, p, s, true, begin, end));
    } else {
        EACH_PAIR(p->k->param_dtype, p->k->grad_dtype, P, G, adam_loop(P, G, p, s, false, begin, end));
    }
    copy_piece(COPIES(p->k), span, begin, end);
}

static void split_adam_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const adam_plan *p = args;
    const fsdp__optimizer_span *s = &p->k->spans[span];

    if (!p->k->decoupled && p->k->weight_decay != 0.0)
        FSDP__EACH_FLOAT(p->k->grad_dtype, G, adam_loop(SPLIT, G, p, s, true, begin, end))
    else
        FSDP__EACH_FLOAT(p->k->grad_dtype, G, adam_loop(SPLIT, G, p, s, false, begin, end));
}

FSDP__KERNEL(adam, k)
{
    judged by = judged_of(k->verdict, k->grad_scale, k->step, k->behind);
    adam_plan p = {.k = k, ADAM_FACTORS(k, by)};

    if (!k->split)
        RUN(k, by.left_out, adam_numel, adam_piece, &p);
    else if (!by.left_out)
        fsdp__for_spans(k->count, adam_numel, split_adam_piece, &p);
    return FSDP_OK;
}

typedef struct sgd_plan {
    const fsdp__sgd_args *k;
    float grad_scale;
    bool first;
} sgd_plan;

FSDP__SPAN_NUMEL(sgd_numel, sgd_plan, a->k->spans[span].numel)

FSDP__INLINE void sgd_loop(fsdp_dtype param_dtype, fsdp_dtype dtype, const sgd_plan *p, const fsdp__optimizer_span *s,
                           bool buffered, int64_t begin, int64_t end)
{
    const fsdp__sgd_args *k = p->k;
    float *restrict buffer = s->moment1;
    float scale = p->grad_scale, decay = (float)k->weight_decay, lr = (float)k->lr, momentum = (float)k->momentum;
    float keep = p->first ? 0.0f : momentum, take = p->first ? 1.0f : (float)(1.0 - k->dampening);
    bool nesterov = k->nesterov, first = p->first;
    const void *grad = s->grad;
    void *restrict param = s->param;

#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        float w = fsdp__load(param_dtype, param, i), g = fsdp__load(dtype, grad, i) * scale + decay * w;
        if (buffered) {
            float b = (first ? 0.0f : keep * buffer[i]) + take * g;
            buffer[i] = b;
            g = nesterov ? g + momentum * b : b;
        }
        fsdp__store(param_dtype, param, i, w - lr * g);
    }
}

static void sgd_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const sgd_plan *p = args;
    const fsdp__sgd_args *k = p->k;
    const fsdp__optimizer_span *s = &k->spans[span];

    if (s->moment1 && k->momentum != 0.0) {
        EACH_PAIR(k->param_dtype, k->grad_dtype, P, G, sgd_loop(P, G, p, s, true, begin, end));
    } else {
        EACH_PAIR(k->param_dtype, k->grad_dtype, P, G, sgd_loop(P, G, p, s, false, begin, end));
    }
    copy_piece(COPIES(k), span, begin, end);
}

FSDP__KERNEL(sgd, k)
{
    judged by = judged_of(k->verdict, k->grad_scale, k->step, k->behind);
    const sgd_plan p = {.k = k, .grad_scale = by.grad_scale, .first = by.step == 1};

    RUN(k, by.left_out, sgd_numel, sgd_piece, &p);
    return FSDP_OK;
}

typedef struct lion_plan {
    const fsdp__lion_args *k;
    float grad_scale;
} lion_plan;

FSDP__SPAN_NUMEL(lion_numel, lion_plan, a->k->spans[span].numel)

FSDP__INLINE void lion_loop(fsdp_dtype param_dtype, fsdp_dtype dtype, const lion_plan *p, const fsdp__optimizer_span *s,
                            int64_t begin, int64_t end)
{
    const fsdp__lion_args *k = p->k;
    float *restrict m = s->moment1;
    float scale = p->grad_scale, decay = (float)(k->lr * k->weight_decay), lr = (float)k->lr;
    float take1 = (float)(1.0 - k->beta1), take2 = (float)(1.0 - k->beta2);
    const void *grad = s->grad;
    void *restrict param = s->param;

#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        /* A product of two floats is exact in double: it does not matter whether a loop joins it with a sum. */
        double g = (double)fsdp__load(dtype, grad, i) * (double)scale, at = (double)m[i];
        float away = (float)(g - at), w = fsdp__load(param_dtype, param, i);
        float u = (float)(at + (double)take1 * (double)away), step = u > 0.0f ? lr : u < 0.0f ? -lr : 0.0f * u;
        m[i] = (float)(at + (double)take2 * (double)away);
        w = (float)((double)w - (double)decay * (double)w);
        fsdp__store(param_dtype, param, i, w - step);
    }
}

static void lion_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const lion_plan *p = args;

    EACH_PAIR(p->k->param_dtype, p->k->grad_dtype, P, G, lion_loop(P, G, p, &p->k->spans[span], begin, end));
    copy_piece(COPIES(p->k), span, begin, end);
}

FSDP__KERNEL(lion, k)
{
    judged by = judged_of(k->verdict, k->grad_scale, 1, false);
    const lion_plan p = {.k = k, .grad_scale = by.grad_scale};

    RUN(k, by.left_out, lion_numel, lion_piece, &p);
    return FSDP_OK;
}

/* ---- numbers in halves ---- */

FSDP__SPAN_NUMEL(split_numel, fsdp__split_spans_args, a->spans[span].numel)

static void split_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const fsdp__split_spans_args *k = args;
    const fsdp__split_span *s = &k->spans[span];
    float *restrict whole = s->whole;
    void *restrict high = s->high, *restrict low = s->low;

    if (k->join)
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            whole[i] = load_split(low, high, i);
    else
#pragma omp simd
        for (int64_t i = begin; i < end; i++)
            store_split(low, high, i, whole[i]);
}

FSDP__KERNEL(split_spans, k)
{
    fsdp__for_spans(k->count, split_numel, split_piece, k);
    return FSDP_OK;
}

/* ---- averages ---- */

FSDP__SPAN_NUMEL(lerp_numel, fsdp__lerp_spans_args, a->spans[span].numel)

FSDP__INLINE void lerp_loop(fsdp_dtype dst_dtype, fsdp_dtype dtype, const fsdp__lerp_spans_args *k, const fsdp__span *s,
                            int64_t begin, int64_t end)
{
    const void *src = s->src;
    void *restrict dst = s->dst;
    float weight = k->weight, scale = k->scale;

#pragma omp simd
    for (int64_t i = begin; i < end; i++) {
        double at = (double)fsdp__load(dst_dtype, dst, i); /* exact products, as above */
        float away = (float)((double)scale * (double)fsdp__load(dtype, src, i) - at);
        fsdp__store(dst_dtype, dst, i, (float)(at + (double)weight * (double)away));
    }
}

static void lerp_piece(const void *args, int64_t span, int64_t begin, int64_t end)
{
    const fsdp__lerp_spans_args *k = args;

    EACH_PAIR(k->dst_dtype, k->src_dtype, P, G, lerp_loop(P, G, k, &k->spans[span], begin, end));
}

FSDP__KERNEL(lerp_spans, k)
{
    if (!k->verdict || !k->verdict->left_out)
        fsdp__for_spans(k->count, lerp_numel, lerp_piece, k);
    return FSDP_OK;
}

FSDP__KERNEL(judge_step, k)
{
    bool clips = k->max_norm > 0 && !isinf(k->max_norm), left_out_before = k->verdict->left_out != 0;
    double norm = sqrt(fsdp__digit_sum_value(k->sum));
    float factor;

    for (int64_t i = 0; i < k->count && !k->takes_all; i++)
        norm = isfinite(k->losses[i]) ? norm : NAN;
    factor = 1.0f / ((float)norm + 1e-6f) * k->max_norm;
    *k->verdict = (fsdp__verdict){
        .norm = norm,
        .scale = !clips || factor > 1 ? 1 : factor,
        .left_out = !k->takes_all && (!isfinite(norm) || (k->stays && left_out_before)),
        .left_out_before = left_out_before,
    };
    return FSDP_OK;
}

/* ---- sums for norms ---- */

#define SUM_PANEL 16384

typedef struct sum_panel {
    const void *src;
    int64_t n;
    double largest;                      /* the largest |x|, or its power */
    int top;                             /* the place of that power's top digit; 0 if there is none */
    double digits[FSDP__DIGIT_SUM_KEPT]; /* sums of integers, so they are exact in any order */
} sum_panel;

FSDP__INLINE double power(double x, double p)
{
    return p == 2.0 ? x * x : p == 1.0 ? fabs(x) : pow(fabs(x), p);
}

/* Splits powers into digits. A conversion to int32_t cuts off the fraction, and every instruction set has it for
 * vectors. */
FSDP__INLINE void add_digits(fsdp_dtype dtype, const void *x, int64_t n, double p, double scale, double *digits)
{
    const double place = 1 << FSDP__DIGIT_SUM_BITS;
    double first = 0.0, second = 0.0, third = 0.0;

#pragma omp simd reduction(+ : first, second, third)
    for (int64_t i = 0; i < n; i++) {
        double v = power(fsdp__load(dtype, x, i), p) * scale;
        double whole = (int32_t)v;

        first += whole;
        v = (v - whole) * place;
        whole = (int32_t)v;
        second += whole;
        third += (int32_t)((v - whole) * place);
    }
    digits[0] = first;
    digits[1] = second;
    digits[2] = third;
}

/* Finds the largest magnitude by the bits: without the sign they have the order of the numbers, and those of a NaN are
 * the largest. */
FSDP__INLINE double largest_magnitude(fsdp_dtype dtype, const void *x, int64_t n)
{
    int32_t largest = 0;

#pragma omp simd reduction(max : largest)
    for (int64_t i = 0; i < n; i++) {
        int32_t bits = (int32_t)(fsdp__float_bits(fsdp__load(dtype, x, i)) & 0x7fffffffu);
        largest = bits > largest ? bits : largest;
    }
    return fsdp__bits_float((uint32_t)largest);
}

static void sum_one(const fsdp__power_sum_args *k, sum_panel *panel)
{
    double scale;

    FSDP__EACH_FLOAT(k->dtype, T, panel->largest = largest_magnitude(T, panel->src, panel->n));
    if (isinf(k->p))
        return;
    panel->largest = power(panel->largest, k->p);
    if (!isfinite(panel->largest) || panel->largest == 0.0)
        return;
    panel->top = fsdp__digit_sum_top(panel->largest);
    scale = fsdp__digit_sum_scale(panel->top);
#define ADD(T, p) add_digits(T, panel->src, panel->n, p, scale, panel->digits)
    if (k->p == 2.0) {
        FSDP__EACH_FLOAT(k->dtype, T, ADD(T, 2.0));
    } else if (k->p == 1.0) {
        FSDP__EACH_FLOAT(k->dtype, T, ADD(T, 1.0));
    } else {
        FSDP__EACH_FLOAT(k->dtype, T, ADD(T, k->p));
    }
#undef ADD
}

static void put_together(const fsdp__power_sum_args *k, const sum_panel *list, int64_t panels)
{
    if (isinf(k->p)) {
        *k->largest = 0.0;
        for (int64_t i = 0; i < panels; i++)
            if (isnan(list[i].largest) || list[i].largest > *k->largest)
                *k->largest = list[i].largest;
        return;
    }
    if (!k->accumulate)
        memset(k->sum, 0, sizeof *k->sum);
    for (int64_t i = 0; i < panels; i++) {
        k->sum->nan += isnan(list[i].largest);
        k->sum->infinite += isinf(list[i].largest) != 0;
        if (list[i].top > 0)
            fsdp__digit_sum_put(k->sum, list[i].top, list[i].digits);
    }
}

FSDP__KERNEL(power_sum, k)
{
    int64_t panels = 0, b = 0;
    sum_panel *list;

    for (int64_t s = 0; s < k->count; s++)
        panels += fsdp__ceil_div(k->spans[s].numel, SUM_PANEL);
    FSDP__TRY_NEW(list = fsdp__stream_workspace(stream, (size_t)panels * sizeof *list + 1));
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t at = 0; at < k->spans[s].numel; at += SUM_PANEL)
            list[b++] = (sum_panel){.src = fsdp__at(k->dtype, k->spans[s].src, at),
                                    .n = FSDP__MIN(k->spans[s].numel - at, SUM_PANEL)};
#pragma omp parallel for schedule(static) if (panels > 2)
    for (int64_t i = 0; i < panels; i++)
        sum_one(k, &list[i]);
    put_together(k, list, panels);
    return FSDP_OK;
}
