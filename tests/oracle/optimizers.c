/* optimizers.c - optimizers. */
#include "oracle/oracle.h"

#include <math.h>

void oracle_power_sum(const fsdp__power_sum_args *k)
{
    *k->out = 0.0;
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            double x = fabs(oracle_get(k->dtype, k->spans[s].src, i));
            *k->out = isinf(k->p) ? fmax(*k->out, x) : *k->out + pow(x, k->p);
        }
}

void oracle_adam(const fsdp__adam_args *k)
{
    double correction1 = 1.0 - pow(k->beta1, (double)k->step), correction2 = 1.0 - pow(k->beta2, (double)k->step);

    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i), m, v;
            double grad = (double)k->grad_scale * oracle_get(k->grad_dtype, g->grad, i);
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
    for (int64_t s = 0; s < k->count; s++)
        for (int64_t i = 0; i < k->spans[s].numel; i++) {
            const fsdp__optimizer_span *g = &k->spans[s];
            double p = oracle_get(k->param_dtype, g->param, i);
            double grad = (double)k->grad_scale * oracle_get(k->grad_dtype, g->grad, i) + k->weight_decay * p;
            if (g->moment1 && k->momentum != 0.0) {
                double buffer = k->first ? grad : k->momentum * (double)g->moment1[i] + (1.0 - k->dampening) * grad;
                g->moment1[i] = (float)buffer;
                grad = k->nesterov ? grad + k->momentum * buffer : buffer;
            }
            oracle_put(k->param_dtype, g->param, i, p - k->lr * grad);
        }
}
