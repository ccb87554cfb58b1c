/* reference.h - every kernel of device/kernels.h as plainly as possible: one loop nest over doubles each, values
 * fetched and rounded one at a time. The table has a backend's shape, so that a test can run either on the same
 * arguments. */
#ifndef TESTS_BACKEND_REFERENCE_H
#define TESTS_BACKEND_REFERENCE_H

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/compiler.h"
#include "base/rng.h"
#include "device/kernels.h"

/* ---- elements, by arithmetic instead of by bits ---- */

static inline double half_value(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double mantissa = bits & ((1 << mantissa_bits) - 1), value;

    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = ldexp(mantissa, 1 - bias - mantissa_bits);
    else
        value = ldexp(mantissa + (1 << mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> 15 ? -value : value;
}

static inline uint16_t half_bits(double x, int exponent_bits, int mantissa_bits)
{
    int top = (1 << exponent_bits) - 1, bias = top >> 1, exponent;
    uint16_t sign = signbit(x) ? 0x8000u : 0;
    double m = fabs(x);

    if (isnan(x))
        return (uint16_t)(top << mantissa_bits | 1 << (mantissa_bits - 1));
    if (m == 0.0)
        return sign;
    if (isinf(m))
        return (uint16_t)(sign | top << mantissa_bits);
    (void)frexp(m, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    m = nearbyint(ldexp(m, mantissa_bits - exponent)); /* half to even; a carry moves into the exponent below */
    m = fmin(m + ldexp(exponent + bias - 1, mantissa_bits), ldexp(top, mantissa_bits)); /* too large: infinity */
    return (uint16_t)(sign | (uint16_t)m);
}

static inline double ref_get(fsdp_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case FSDP_F32:
        return (double)((const float *)p)[i];
    case FSDP_BF16:
        return half_value(((const uint16_t *)p)[i], 8, 7);
    case FSDP_F16:
        return half_value(((const uint16_t *)p)[i], 5, 10);
    case FSDP_I32:
        return ((const int32_t *)p)[i];
    case FSDP_I64:
        return (double)((const int64_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

static inline void ref_put(fsdp_dtype dtype, void *p, int64_t i, double x)
{
    switch (dtype) {
    case FSDP_F32:
        ((float *)p)[i] = (float)x;
        break;
    case FSDP_BF16:
        ((uint16_t *)p)[i] = half_bits(x, 8, 7);
        break;
    case FSDP_F16:
        ((uint16_t *)p)[i] = half_bits(x, 5, 10);
        break;
    case FSDP_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    case FSDP_I64:
        ((int64_t *)p)[i] = (int64_t)x;
        break;
    case FSDP_U8:
        ((uint8_t *)p)[i] = (uint8_t)(int64_t)x;
        break;
    default:
        ((uint8_t *)p)[i] = x != 0.0;
    }
}

/* What memory of this dtype makes of x. */
static inline double ref_round(fsdp_dtype dtype, double x)
{
    uint64_t memory;

    ref_put(dtype, &memory, 0, x);
    return ref_get(dtype, &memory, 0);
}

#define REFERENCE(name)                                                        \
    static fsdp_status ref_##name##_any(fsdp_stream *stream, const void *args) \
    {                                                                          \
        (void)stream;                                                          \
        ref_##name(args);                                                      \
        return FSDP_OK;                                                        \
    }

/* ---- matrices and memory ---- */

static void ref_matmul(const fsdp__matmul_args *k)
{
    for (int64_t e = 0; e < k->batch; e++)
        for (int64_t i = 0; i < k->m; i++)
            for (int64_t j = 0; j < k->n; j++) {
                int64_t at = e * k->c_batch + i * k->c_row + j;
                double sum = 0.0;
                for (int64_t p = 0; p < k->k; p++)
                    sum += ref_get(k->a_dtype, k->a, e * k->a_batch + i * k->a_row + p * k->a_col) *
                           ref_get(k->b_dtype, k->b, e * k->b_batch + p * k->b_row + j * k->b_col);
                sum *= (double)k->alpha;
                if (k->bias)
                    sum += ref_get(k->bias_dtype, k->bias, j);
                if (k->accumulate)
                    sum += ref_get(k->c_dtype, k->c, at);
                ref_put(k->c_dtype, k->c, at, sum);
            }
}

static void ref_copy(const fsdp__copy_args *k)
{
    int64_t numel = 1;
    double *values;

    for (int d = 0; d < k->ndim; d++)
        numel *= k->shape[d];
    values = malloc((size_t)numel * sizeof(*values) + 1); /* all reads before all writes: in place */
    for (int write = 0; write < 2; write++)
        for (int64_t e = 0; e < numel; e++) {
            int64_t rest = e, src = 0, dst = 0;
            for (int d = k->ndim - 1; d >= 0; d--) {
                src += rest % k->shape[d] * k->src_strides[d];
                dst += rest % k->shape[d] * k->dst_strides[d];
                rest /= k->shape[d];
            }
            if (!write)
                values[e] = ref_get(k->src_dtype, k->src, src);
            else
                ref_put(k->dst_dtype, k->dst, dst,
                        values[e] + (k->accumulate ? ref_get(k->dst_dtype, k->dst, dst) : 0.0));
        }
    free(values);
}

static void ref_fill(const fsdp__fill_args *k)
{
    for (int64_t i = 0; i < k->numel; i++)
        ref_put(k->dtype, k->dst, i, k->value);
}

static void ref_cast_segments(const fsdp__cast_segments_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->segments[s].numel; i++)
            ref_put(k->dst_dtype, k->segments[s].dst, i, ref_get(k->src_dtype, k->segments[s].src, i));
}

static void ref_reduce_ranks(const fsdp__reduce_ranks_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double x = ref_get(k->src_dtype, k->srcs[0], i);
        for (int s = 1; s < k->count; s++) {
            double v = ref_get(k->src_dtype, k->srcs[s], i);
            x = k->op == FSDP__RANK_SUM ? x + v : k->op == FSDP__RANK_MAX ? fmax(x, v) : fmin(x, v);
        }
        if (fsdp_dtype_is_floating(k->src_dtype))
            x /= k->divisor != 0 ? (double)k->divisor : 1.0;
        if (k->accumulate)
            x += ref_get(k->dst_dtype, k->dst, i);
        ref_put(k->dst_dtype, k->dst, i, x);
    }
}

static void ref_reduce(const fsdp__reduce_args *k)
{
    for (int64_t o = 0; o < k->outer; o++)
        for (int64_t i = 0; i < k->inner; i++) {
            double sum = 0.0;
            for (int64_t r = 0; r < k->reduced; r++)
                sum += ref_get(k->x_dtype, k->x, (o * k->reduced + r) * k->inner + i);
            sum *= (double)k->alpha;
            if (k->accumulate)
                sum += ref_get(k->y_dtype, k->y, o * k->inner + i);
            ref_put(k->y_dtype, k->y, o * k->inner + i, sum);
        }
}

/* ---- elementwise ---- */

static void ref_binary(const fsdp__binary_args *k)
{
    for (int64_t i = 0; i < k->rows * k->cols; i++) {
        double a = ref_get(k->dtype, k->a, i), b = ref_get(k->dtype, k->b, k->b_is_row ? i % k->cols : i);
        ref_put(k->dtype, k->y, i, k->op == FSDP__ADD ? a + b : a * b);
    }
}

static void ref_scale(const fsdp__scale_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double x = (double)k->alpha * ref_get(k->dtype, k->x, i) * (k->scalar ? (double)*k->scalar : 1.0);
        ref_put(k->dtype, k->y, i, x + (k->accumulate ? ref_get(k->dtype, k->y, i) : 0.0));
    }
}

static double ref_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double ref_activate(fsdp__activation kind, double x)
{
    switch (kind) {
    case FSDP__GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case FSDP__GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case FSDP__SILU:
        return x * ref_sigmoid(x);
    default:
        return x > 0.0 ? x : 0.0;
    }
}

static double ref_derivative(fsdp__activation kind, double x)
{
    double t;

    switch (kind) {
    case FSDP__GELU_TANH:
        t = tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
    case FSDP__GELU_ERF:
        return 0.5 * (1.0 + erf(x / sqrt(2.0))) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case FSDP__SILU:
        return ref_sigmoid(x) * (1.0 + x * (1.0 - ref_sigmoid(x)));
    default:
        return x > 0.0 ? 1.0 : 0.0;
    }
}

static void ref_activation_forward(const fsdp__activation_forward_args *k)
{
    for (int64_t i = 0; i < k->rows * k->cols; i++) {
        double x = ref_get(k->dtype, k->x, i) + (k->bias ? ref_get(k->dtype, k->bias, i % k->cols) : 0.0);
        ref_put(k->dtype, k->y, i, ref_activate(k->kind, x));
    }
}

static void ref_activation_backward(const fsdp__activation_backward_args *k)
{
    for (int64_t i = 0; i < k->rows * k->cols; i++) {
        double x = ref_get(k->dtype, k->x, i) + (k->bias ? ref_get(k->dtype, k->bias, i % k->cols) : 0.0);
        ref_put(k->dtype, k->dx, i, ref_get(k->dtype, k->dy, i) * ref_derivative(k->kind, x));
    }
}

static void ref_swiglu_forward(const fsdp__swiglu_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->cols; c++)
            ref_put(k->dtype, k->y, r * k->y_row + c,
                    ref_activate(FSDP__SILU, ref_get(k->dtype, k->gate, r * k->gate_row + c)) *
                        ref_get(k->dtype, k->up, r * k->up_row + c));
}

static void ref_swiglu_backward(const fsdp__swiglu_backward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->cols; c++) {
            double gate = ref_get(k->dtype, k->gate, r * k->gate_row + c);
            double up = ref_get(k->dtype, k->up, r * k->up_row + c), dy = ref_get(k->dtype, k->dy, r * k->dy_row + c);
            ref_put(k->dtype, k->dgate, r * k->dgate_row + c, dy * up * ref_derivative(FSDP__SILU, gate));
            ref_put(k->dtype, k->dup, r * k->dup_row + c, dy * ref_activate(FSDP__SILU, gate));
        }
}

static void ref_dropout(const fsdp__dropout_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        bool keep = fsdp__rng_uniform(k->key, k->offset + (uint64_t)i) >= k->p;
        ref_put(k->dtype, k->y, i, keep ? ref_get(k->dtype, k->x, i) / (1.0 - (double)k->p) : 0.0);
    }
}

static void ref_random(const fsdp__random_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        uint64_t index = k->offset + (uint64_t)i;
        float draw =
            k->distribution == FSDP__NORMAL ? fsdp__rng_normal(k->key, index) : fsdp__rng_uniform(k->key, index);
        ref_put(k->dtype, k->dst, i, (double)k->a + (double)k->b * (double)draw);
    }
}

/* ---- rows ---- */

static void ref_norm_forward(const fsdp__norm_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double mean = 0.0, variance = 0.0, rstd;
        const void *s = k->residual ? k->sum : k->x;
        for (int64_t c = 0; k->residual && c < k->cols; c++)
            ref_put(k->dtype, k->sum, r * k->cols + c,
                    ref_get(k->dtype, k->x, r * k->cols + c) + ref_get(k->dtype, k->residual, r * k->cols + c));
        for (int64_t c = 0; !k->rms && c < k->cols; c++)
            mean += ref_get(k->dtype, s, r * k->cols + c) / (double)k->cols;
        for (int64_t c = 0; c < k->cols; c++)
            variance += pow(ref_get(k->dtype, s, r * k->cols + c) - mean, 2.0) / (double)k->cols;
        rstd = 1.0 / sqrt(variance + (double)k->eps);
        for (int64_t c = 0; c < k->cols; c++) {
            double y = (ref_get(k->dtype, s, r * k->cols + c) - mean) * rstd;
            y = y * (k->weight ? ref_get(k->weight_dtype, k->weight, c) : 1.0);
            ref_put(k->dtype, k->y, r * k->cols + c, y + (k->bias ? ref_get(k->weight_dtype, k->bias, c) : 0.0));
        }
        if (k->mean && !k->rms)
            k->mean[r] = (float)mean;
        if (k->rstd)
            k->rstd[r] = (float)rstd;
    }
}

static void ref_norm_backward(const fsdp__norm_backward_args *k)
{
    int64_t n = k->cols;
    double *dw = calloc((size_t)n + 1, sizeof(double)), *db = calloc((size_t)n + 1, sizeof(double));

    for (int64_t r = 0; r < k->rows; r++) {
        double mean = k->rms ? 0.0 : (double)k->mean[r], rstd = (double)k->rstd[r], sum = 0.0, dot = 0.0;
        for (int64_t c = 0; c < n; c++) {
            double dy = ref_get(k->dtype, k->dy, r * n + c), x = (ref_get(k->dtype, k->s, r * n + c) - mean) * rstd;
            double g = dy * (k->weight ? ref_get(k->weight_dtype, k->weight, c) : 1.0);
            dw[c] += dy * x;
            db[c] += dy;
            sum += k->rms ? 0.0 : g / (double)n;
            dot += g * x / (double)n;
        }
        for (int64_t c = 0; k->dx && c < n; c++) {
            double g = ref_get(k->dtype, k->dy, r * n + c) * (k->weight ? ref_get(k->weight_dtype, k->weight, c) : 1.0);
            double x = (ref_get(k->dtype, k->s, r * n + c) - mean) * rstd;
            double extra = k->dsum ? ref_get(k->dtype, k->dsum, r * n + c) : 0.0;
            ref_put(k->dtype, k->dx, r * n + c, (g - sum - x * dot) * rstd + extra);
        }
    }
    for (int64_t c = 0; c < n; c++) {
        fsdp_dtype t = k->dweight_dtype;
        if (k->dweight)
            ref_put(t, k->dweight, c, dw[c] + (k->accumulate_weight ? ref_get(t, k->dweight, c) : 0.0));
        if (k->dbias)
            ref_put(t, k->dbias, c, db[c] + (k->accumulate_bias ? ref_get(t, k->dbias, c) : 0.0));
    }
    free(dw);
    free(db);
}

static void ref_rope(const fsdp__rope_args *k)
{
    int64_t half = k->head_dim / 2;

    for (int64_t e = 0; e < k->batch * k->time * k->heads * half; e++) {
        int64_t i = e % half, h = e / half % k->heads, t = e / half / k->heads % k->time;
        int64_t b = e / half / k->heads / k->time;
        int64_t x = b * k->x_batch + t * k->x_time + h * k->x_head + i;
        int64_t y = b * k->y_batch + t * k->y_time + h * k->y_head + i;
        double angle = (double)((float)(k->position0 + t) * k->frequency[i]) * (k->inverse ? -1.0 : 1.0);
        double low = ref_get(k->dtype, k->x, x), high = ref_get(k->dtype, k->x, x + half);
        double add0 = k->accumulate ? ref_get(k->dtype, k->y, y) : 0.0;
        double add1 = k->accumulate ? ref_get(k->dtype, k->y, y + half) : 0.0;
        ref_put(k->dtype, k->y, y, low * cos(angle) - high * sin(angle) + add0);
        ref_put(k->dtype, k->y, y + half, high * cos(angle) + low * sin(angle) + add1);
    }
}

static void ref_softmax_forward(const fsdp__softmax_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double top = -INFINITY, sum = 0.0;
        for (int64_t c = 0; c < k->cols; c++)
            top = fmax(top, ref_get(k->dtype, k->x, r * k->cols + c));
        for (int64_t c = 0; c < k->cols; c++)
            sum += exp(ref_get(k->dtype, k->x, r * k->cols + c) - top);
        for (int64_t c = 0; c < k->cols; c++)
            ref_put(k->dtype, k->y, r * k->cols + c, exp(ref_get(k->dtype, k->x, r * k->cols + c) - top) / sum);
    }
}

static void ref_softmax_backward(const fsdp__softmax_backward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++) {
        double dot = 0.0;
        for (int64_t c = 0; c < k->cols; c++)
            dot += ref_get(k->dtype, k->y, r * k->cols + c) * ref_get(k->dtype, k->dy, r * k->cols + c);
        for (int64_t c = 0; c < k->cols; c++) {
            int64_t i = r * k->cols + c;
            ref_put(k->dtype, k->dx, i, ref_get(k->dtype, k->y, i) * (ref_get(k->dtype, k->dy, i) - dot));
        }
    }
}

static void ref_cross_entropy(const fsdp__cross_entropy_args *k)
{
    double loss = 0.0;
    bool bad = false;

    for (int64_t r = 0; r < k->rows; r++) {
        int32_t target = k->targets[r];
        bool counts = target != k->ignore_index && target >= 0 && target < k->cols;
        double top = -INFINITY, sum = 0.0;
        if (target != k->ignore_index && !counts && !bad && k->bad_row) {
            *k->bad_row = r;
            bad = true;
        }
        for (int64_t c = 0; c < k->cols; c++)
            top = fmax(top, ref_get(k->dtype, k->logits, r * k->cols + c));
        for (int64_t c = 0; c < k->cols; c++)
            sum += exp(ref_get(k->dtype, k->logits, r * k->cols + c) - top);
        if (counts)
            loss += log(sum) + top - ref_get(k->dtype, k->logits, r * k->cols + target);
        for (int64_t c = 0; k->dlogits && c < k->cols; c++) {
            double p = exp(ref_get(k->dtype, k->logits, r * k->cols + c) - top) / sum;
            ref_put(k->dlogits_dtype, k->dlogits, r * k->cols + c,
                    counts ? (double)k->loss_scale * (p - (c == target)) : 0.0);
        }
    }
    *k->loss = (float)((double)k->loss_scale * loss + (k->accumulate_loss ? (double)*k->loss : 0.0));
}

static void ref_embedding_forward(const fsdp__embedding_forward_args *k)
{
    bool bad = false;

    for (int64_t r = 0; r < k->rows; r++) {
        bool valid = k->ids[r] >= 0 && k->ids[r] < k->table_rows;
        if (!valid && !bad && k->bad_row) {
            *k->bad_row = r;
            bad = true;
        }
        for (int64_t c = 0; c < k->cols; c++)
            ref_put(k->dtype, k->y, r * k->cols + c,
                    valid ? ref_get(k->dtype, k->table, k->ids[r] * k->cols + c) : 0.0);
    }
}

static void ref_embedding_backward(const fsdp__embedding_backward_args *k)
{
    for (int64_t id = 0; id < k->table_rows; id++)
        for (int64_t c = 0; c < k->cols; c++) {
            double sum = k->accumulate ? ref_get(k->dtable_dtype, k->dtable, id * k->cols + c) : 0.0;
            for (int64_t r = 0; r < k->rows; r++)
                if (k->ids[r] == id)
                    sum += ref_get(k->dtype, k->dy, r * k->cols + c);
            ref_put(k->dtable_dtype, k->dtable, id * k->cols + c, sum);
        }
}

/* ---- attention ---- */

static double ref_score(const fsdp__attention_forward_args *k, int64_t b, int64_t h, int64_t t, int64_t s)
{
    int64_t kv = h / (k->heads / k->kv_heads);
    double sum = 0.0;

    if (k->causal && s > t + k->kv_time - k->q_time)
        return -INFINITY;
    for (int64_t d = 0; d < k->head_dim; d++)
        sum += ref_get(k->dtype, k->q, b * k->q_batch + t * k->q_stride_time + h * k->q_head + d) *
               ref_get(k->dtype, k->k, b * k->k_batch + s * k->k_stride_time + kv * k->k_head + d);
    return sum * (double)k->scale;
}

/* Probabilities of one query into p (kv_time); returns the lse. */
static double ref_probabilities(const fsdp__attention_forward_args *k, int64_t b, int64_t h, int64_t t, double *p)
{
    double top = -INFINITY, sum = 0.0;

    for (int64_t s = 0; s < k->kv_time; s++)
        top = fmax(top, p[s] = ref_score(k, b, h, t, s));
    for (int64_t s = 0; s < k->kv_time; s++)
        sum += p[s] = top == -INFINITY ? 0.0 : exp(p[s] - top);
    for (int64_t s = 0; s < k->kv_time; s++)
        p[s] = sum > 0.0 ? p[s] / sum : 0.0;
    return sum > 0.0 ? top + log(sum) : -INFINITY;
}

static void ref_attention_forward(const fsdp__attention_forward_args *k)
{
    double *p = malloc((size_t)k->kv_time * sizeof(double) + 1);

    for (int64_t e = 0; e < k->batch * k->heads * k->q_time; e++) {
        int64_t t = e % k->q_time, h = e / k->q_time % k->heads, b = e / k->q_time / k->heads;
        int64_t kv = h / (k->heads / k->kv_heads);
        double lse = ref_probabilities(k, b, h, t, p);
        if (k->lse)
            k->lse[e] = (float)lse;
        for (int64_t d = 0; d < k->head_dim; d++) {
            double sum = 0.0;
            for (int64_t s = 0; s < k->kv_time; s++)
                sum += p[s] * ref_get(k->dtype, k->v, b * k->v_batch + s * k->v_stride_time + kv * k->v_head + d);
            ref_put(k->dtype, k->out, b * k->out_batch + t * k->out_stride_time + h * k->out_head + d, sum);
        }
    }
    free(p);
}

/* Adds query (b, h, t)'s share to the gradients, all in double; dq, dk, dv are dense (batch, time, heads, D). */
static void ref_attention_query(const fsdp__attention_backward_args *a, int64_t b, int64_t h, int64_t t, double *p,
                                double *dq, double *dk, double *dv)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t kv = h / (k->heads / k->kv_heads), d_count = k->head_dim;
    int64_t out = b * k->out_batch + t * k->out_stride_time + h * k->out_head;
    double delta = 0.0;

    ref_probabilities(k, b, h, t, p);
    for (int64_t d = 0; d < d_count; d++)
        delta += ref_get(k->dtype, a->dout, out + d) * ref_get(k->dtype, k->out, out + d);
    for (int64_t s = 0; s < k->kv_time; s++) {
        int64_t key = b * k->k_batch + s * k->k_stride_time + kv * k->k_head;
        int64_t value = b * k->v_batch + s * k->v_stride_time + kv * k->v_head;
        int64_t query = b * k->q_batch + t * k->q_stride_time + h * k->q_head;
        double *dks = dk + ((b * k->kv_time + s) * k->kv_heads + kv) * d_count, ds, dp = 0.0;
        double *dvs = dv + ((b * k->kv_time + s) * k->kv_heads + kv) * d_count;
        for (int64_t d = 0; d < d_count; d++)
            dp += ref_get(k->dtype, a->dout, out + d) * ref_get(k->dtype, k->v, value + d);
        ds = p[s] * (dp - delta) * (double)k->scale;
        for (int64_t d = 0; d < d_count; d++) {
            dvs[d] += p[s] * ref_get(k->dtype, a->dout, out + d);
            dks[d] += ds * ref_get(k->dtype, k->q, query + d);
            dq[((b * k->q_time + t) * k->heads + h) * d_count + d] += ds * ref_get(k->dtype, k->k, key + d);
        }
    }
}

static void ref_scatter(fsdp_dtype dtype, const double *src, void *dst, const int64_t size[4], int64_t batch,
                        int64_t time, int64_t head)
{
    for (int64_t e = 0; e < size[0] * size[1] * size[2] * size[3]; e++) {
        int64_t d = e % size[3], h = e / size[3] % size[2], t = e / size[3] / size[2] % size[1];
        ref_put(dtype, dst, e / size[3] / size[2] / size[1] * batch + t * time + h * head + d, src[e]);
    }
}

static void ref_attention_backward(const fsdp__attention_backward_args *a)
{
    const fsdp__attention_forward_args *k = &a->forward;
    int64_t q_size[4] = {k->batch, k->q_time, k->heads, k->head_dim};
    int64_t kv_size[4] = {k->batch, k->kv_time, k->kv_heads, k->head_dim};
    size_t q_count = (size_t)(k->batch * k->q_time * k->heads * k->head_dim);
    size_t kv_count = (size_t)(k->batch * k->kv_time * k->kv_heads * k->head_dim);
    double *p = malloc((size_t)k->kv_time * sizeof(double) + 1), *dq = calloc(q_count + 1, sizeof(double));
    double *dk = calloc(kv_count + 1, sizeof(double)), *dv = calloc(kv_count + 1, sizeof(double));
    bool own = a->dq_batch != 0;

    for (int64_t e = 0; e < k->batch * k->heads * k->q_time; e++)
        ref_attention_query(a, e / k->q_time / k->heads, e / k->q_time % k->heads, e % k->q_time, p, dq, dk, dv);
    ref_scatter(k->dtype, dq, a->dq, q_size, own ? a->dq_batch : k->q_batch, own ? a->dq_stride_time : k->q_stride_time,
                own ? a->dq_head : k->q_head);
    ref_scatter(k->dtype, dk, a->dk, kv_size, own ? a->dk_batch : k->k_batch,
                own ? a->dk_stride_time : k->k_stride_time, own ? a->dk_head : k->k_head);
    ref_scatter(k->dtype, dv, a->dv, kv_size, own ? a->dv_batch : k->v_batch,
                own ? a->dv_stride_time : k->v_stride_time, own ? a->dv_head : k->v_head);
    free(p);
    free(dq);
    free(dk);
    free(dv);
}

/* ---- optimizers ---- */

static void ref_squared_norm(const fsdp__squared_norm_args *k)
{
    *k->out = 0.0;
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->segments[s].numel; i++)
            *k->out += pow(ref_get(k->dtype, k->segments[s].src, i), 2.0);
}

static void ref_adam(const fsdp__adam_args *k)
{
    double correction1 = 1.0 - pow(k->beta1, (double)k->step), correction2 = 1.0 - pow(k->beta2, (double)k->step);

    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->segments[s].numel; i++) {
            const fsdp__optimizer_segment *g = &k->segments[s];
            double p = (double)g->param[i], grad = (double)k->grad_scale * ref_get(k->grad_dtype, g->grad, i), m, v;
            if (k->decoupled)
                p *= 1.0 - k->lr * k->weight_decay;
            else
                grad += k->weight_decay * p;
            m = k->beta1 * (double)g->moment1[i] + (1.0 - k->beta1) * grad;
            v = k->beta2 * (double)g->moment2[i] + (1.0 - k->beta2) * grad * grad;
            g->moment1[i] = (float)m;
            g->moment2[i] = (float)v;
            g->param[i] = (float)(p - k->lr / correction1 * m / (sqrt(v) / sqrt(correction2) + k->eps));
        }
}

static void ref_sgd(const fsdp__sgd_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->segments[s].numel; i++) {
            const fsdp__optimizer_segment *g = &k->segments[s];
            double p = (double)g->param[i];
            double grad = (double)k->grad_scale * ref_get(k->grad_dtype, g->grad, i) + k->weight_decay * p;
            if (g->moment1 && k->momentum != 0.0) {
                double buffer = k->first ? grad : k->momentum * (double)g->moment1[i] + (1.0 - k->dampening) * grad;
                g->moment1[i] = (float)buffer;
                grad = k->nesterov ? grad + k->momentum * buffer : buffer;
            }
            g->param[i] = (float)(p - k->lr * grad);
        }
}

#define REFERENCE_ENTRY(NAME, name, class) REFERENCE(name)
FSDP__KERNEL_MAP(REFERENCE_ENTRY)
#undef REFERENCE_ENTRY

#define REFERENCE_ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = ref_##name##_any,
FSDP__UNUSED static const fsdp__kernel_function reference_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(REFERENCE_ENTRY)};
#undef REFERENCE_ENTRY

#endif
