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

void oracle_adam(const fsdp__adam_args *k)
{
    int64_t t = k->step - (k->verdict && k->behind && k->verdict->left_out_before ? 1 : 0);
    double correction1 = 1.0 - pow(k->beta1, (double)t), correction2 = 1.0 - pow(k->beta2, (double)t);
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);

    for (int64_t s = 0; s < k->count && !(k->verdict && k->verdict->left_out); s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i), m, v;
            double grad = scale * oracle_get(k->grad_dtype, g->grad, i);
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
        }
}

void oracle_sgd(const fsdp__sgd_args *k)
{
    int64_t t = k->step - (k->verdict && k->behind && k->verdict->left_out_before ? 1 : 0);
    double scale = (double)(k->verdict ? k->verdict->scale : k->grad_scale);

    for (int64_t s = 0; s < k->count && !(k->verdict && k->verdict->left_out); s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i);
            double grad = scale * oracle_get(k->grad_dtype, g->grad, i) + k->weight_decay * p;
            if (g->moment1 && k->momentum != 0.0) {
                double buffer = t == 1 ? grad : k->momentum * (double)g->moment1[i] + (1.0 - k->dampening) * grad;
                g->moment1[i] = (float)buffer;
                grad = k->nesterov ? grad + k->momentum * buffer : buffer;
            }
            oracle_put(k->param_dtype, g->param, i, p - k->lr * grad);
        }
}
