/* optimizers.c - optimizers. */
#include "oracle/oracle.h"

#include <math.h>
#include <string.h>

/* Each power by itself, from the last to the first. */
void oracle_power_sum(const fsdp__power_sum_args *k)
{
    const double place = 67108864.0; /* 2^26 */

    if (k->sum && !k->accumulate)
        memset(k->sum, 0, sizeof *k->sum);
    if (k->largest)
        *k->largest = 0.0;
    for (int64_t s = k->count - 1; s >= 0; s--)
        for (int64_t i = k->spans[s].numel - 1; i >= 0; i--) {
            double x = fabs(oracle_get(k->dtype, k->spans[s].src, i)), power = pow(x, k->p),
                   digits[FSDP__DIGIT_SUM_KEPT];

            if (isinf(k->p)) {
                *k->largest = fmax(*k->largest, x);
            } else if (power > 0.0) {
                int top = fsdp__digit_sum_top(power);

                power *= fsdp__digit_sum_scale(top);
                for (int d = 0; d < FSDP__DIGIT_SUM_KEPT; d++, power *= place) {
                    digits[d] = floor(power);
                    power -= digits[d];
                }
                fsdp__digit_sum_put(k->sum, top, digits);
            }
        }
}

void oracle_judge_step(const fsdp__judge_step_args *k)
{
    fsdp__verdict before = *k->verdict, *v = k->verdict;
    bool finite;

    v->norm = sqrt(fsdp__digit_sum_value(k->sum));
    for (int64_t i = 0; i < k->count; i++)
        if (!k->takes_all && !isfinite(k->losses[i]))
            v->norm = NAN;
    finite = isfinite(v->norm);
    v->scale = 1.0f;
    if (k->max_norm > 0.0f && isfinite(k->max_norm) && !(1.0f / ((float)v->norm + 1e-6f) * k->max_norm >= 1.0f))
        v->scale = 1.0f / ((float)v->norm + 1e-6f) * k->max_norm;
    v->left_out = 0;
    if (!k->takes_all && (!finite || (k->stays && before.left_out)))
        v->left_out = 1;
    v->left_out_before = before.left_out;
}

/* Writes the copy of element i, if there is one, from what the parameter is now. */
static void put_copy(void *copy, const void *param, fsdp_dtype param_dtype, fsdp_dtype copy_dtype, int64_t i)
{
    if (copy)
        oracle_put(copy_dtype, copy, i, oracle_get(param_dtype, param, i));
}

void oracle_adam(const fsdp__adam_args *k)
{
    int64_t t = k->step - (k->verdict && k->behind && k->verdict->left_out_before ? 1 : 0);
    double correction1 = 1.0 - pow(k->beta1, (double)t), correction2 = 1.0 - pow(k->beta2, (double)t);
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);

    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i), m, v;
            double grad = scale * oracle_get(k->grad_dtype, g->grad, i);
            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
            if (k->verdict && k->verdict->left_out)
                continue;
            if (k->decoupled)
                p *= 1.0 - k->lr * k->weight_decay;
            else
                grad += k->weight_decay * p;
            m = k->beta1 * (double)g->moment1[i] + (1.0 - k->beta1) * grad;
            v = k->beta2 * (double)g->moment2[i] + (1.0 - k->beta2) * grad * grad;
            g->moment1[i] = (float)m;
            g->moment2[i] = (float)v;
            oracle_put(k->param_dtype, g->param, i,
                       p - k->lr / correction1 * m / (sqrt(v) / sqrt(correction2) + k->eps));
            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
        }
}

void oracle_sgd(const fsdp__sgd_args *k)
{
    int64_t t = k->step - (k->verdict && k->behind && k->verdict->left_out_before ? 1 : 0);
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);

    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i);
            double grad = scale * oracle_get(k->grad_dtype, g->grad, i) + k->weight_decay * p;
            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
            if (k->verdict && k->verdict->left_out)
                continue;
            if (g->moment1 && k->momentum != 0.0) {
                double buffer = t == 1 ? grad : k->momentum * (double)g->moment1[i] + (1.0 - k->dampening) * grad;
                g->moment1[i] = (float)buffer;
                grad = k->nesterov ? grad + k->momentum * buffer : buffer;
            }
            oracle_put(k->param_dtype, g->param, i, p - k->lr * grad);
            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
        }
}

void oracle_lion(const fsdp__lion_args *k)
{
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);

    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i) * (1.0 - k->lr * k->weight_decay);
            double grad = scale * oracle_get(k->grad_dtype, g->grad, i), m = (double)g->moment1[i];
            double u = k->beta1 * m + (1.0 - k->beta1) * grad;

            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
            if (k->verdict && k->verdict->left_out)
                continue;
            g->moment1[i] = (float)(k->beta2 * m + (1.0 - k->beta2) * grad);
            oracle_put(k->param_dtype, g->param, i, p - k->lr * (double)((u > 0.0) - (u < 0.0)));
            put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
        }
}

void oracle_lerp_spans(const fsdp__lerp_spans_args *k)
{
    for (int64_t s = 0; s < k->count && !(k->verdict && k->verdict->left_out); s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            double at = oracle_get(k->dst_dtype, k->spans[s].dst, i);
            double to = (double)k->scale * oracle_get(k->src_dtype, k->spans[s].src, i);

            oracle_put(k->dst_dtype, k->spans[s].dst, i, at + (double)k->weight * (to - at));
        }
}

/* ---- moments of bytes ---- */

/* The number of a code, from the list that all numbers of it make: sorted, each decade with twice as many. */
static double byte_value(int code, bool has_sign)
{
    double values[FSDP__BYTE_CODES];
    int count = 0;

    for (int decade = 0; decade < 7; decade++) {
        int parts = has_sign ? 1 << decade : 2 << decade;

        for (int q = 0; q < parts; q++) {
            double x = (0.1 + 0.9 * (2 * q + 1) / (2.0 * parts)) * pow(10, decade - 6);

            values[count++] = x;
            if (has_sign)
                values[count++] = -x;
        }
    }
    values[count++] = 0.0;
    values[count++] = 1.0;
    for (int i = 1; i < count; i++)
        for (int j = i; j > 0 && values[j] < values[j - 1]; j--) {
            double swapped = values[j];

            values[j] = values[j - 1];
            values[j - 1] = swapped;
        }
    return values[code];
}

typedef struct byte_table {
    double first[FSDP__BYTE_CODES], second[FSDP__BYTE_CODES];
} byte_table;

static void encode_block(const double *table, const double *x, int64_t n, uint8_t *codes, float *scale)
{
    double largest = 0.0;

    for (int64_t i = 0; i < n; i++)
        largest = fmax(largest, fabs(x[i]));
    *scale = (float)largest;
    for (int64_t i = 0; i < n; i++) {
        int best = 0;

        for (int c = 1; c < FSDP__BYTE_CODES && largest > 0.0; c++)
            if (fabs(table[c] - x[i] / largest) < fabs(table[best] - x[i] / largest))
                best = c;
        codes[i] = (uint8_t)best;
    }
}

static void byte_block(const fsdp__byte_adam_args *k, const byte_table *table, const fsdp__byte_span *g, int64_t block,
                       int64_t at, int64_t n)
{
    int64_t t = k->step - (k->verdict && k->behind && k->verdict->left_out_before ? 1 : 0);
    double correction1 = 1.0 - pow(k->beta1, (double)t), correction2 = 1.0 - pow(k->beta2, (double)t);
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);
    double m[FSDP__BYTE_BLOCK], v[FSDP__BYTE_BLOCK];

    for (int64_t i = 0; i < n; i++) {
        double p = oracle_get(k->param_dtype, g->param, at + i);
        double grad = scale * oracle_get(k->grad_dtype, g->grad, at + i);

        if (k->decoupled)
            p *= 1.0 - k->lr * k->weight_decay;
        else
            grad += k->weight_decay * p;
        m[i] = k->beta1 * table->first[g->codes1[at + i]] * (double)g->scales1[block] + (1.0 - k->beta1) * grad;
        v[i] = k->beta2 * table->second[g->codes2[at + i]] * (double)g->scales2[block] + (1.0 - k->beta2) * grad * grad;
        oracle_put(k->param_dtype, g->param, at + i,
                   p - k->lr / correction1 * m[i] / (sqrt(v[i]) / sqrt(correction2) + k->eps));
        put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, at + i);
    }
    encode_block(table->first, m, n, g->codes1 + at, &g->scales1[block]);
    encode_block(table->second, v, n, g->codes2 + at, &g->scales2[block]);
}

void oracle_byte_adam(const fsdp__byte_adam_args *k)
{
    byte_table table;

    for (int c = 0; c < FSDP__BYTE_CODES; c++) {
        table.first[c] = byte_value(c, true);
        table.second[c] = byte_value(c, false);
    }
    for (int64_t s = 0; s < k->count; s++) {
        const fsdp__byte_span *g = &k->spans[s];
        int64_t block = 0;

        if (k->verdict && k->verdict->left_out) {
            for (int64_t i = 0; i < g->rows * g->cols; i++)
                put_copy(g->copy, g->param, k->param_dtype, k->copy_dtype, i);
            continue;
        }
        for (int64_t r = 0; r < g->rows; r++)
            for (int64_t c = 0; c < g->cols; c += FSDP__BYTE_BLOCK)
                byte_block(k, &table, g, block++, r * g->cols + c,
                           g->cols - c < FSDP__BYTE_BLOCK ? g->cols - c : FSDP__BYTE_BLOCK);
    }
}
