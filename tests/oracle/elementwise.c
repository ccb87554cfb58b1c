/* elementwise.c - elementwise kernels. */
#include "oracle/oracle.h"

#include <math.h>

#include "base/rng.h"
#include "support/dice.h"

void oracle_scale(const fsdp__scale_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double x = (double)k->alpha * oracle_get(k->dtype, k->x, i) * (k->scalar ? (double)*k->scalar : 1.0);
        oracle_put(k->dtype, k->y, i, x + (k->accumulate ? oracle_get(k->dtype, k->y, i) : 0.0));
    }
}

static double oracle_sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

double oracle_activate(fsdp__activation kind, double x)
{
    switch (kind) {
    case FSDP__GELU_TANH:
        return 0.5 * x * (1.0 + tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x)));
    case FSDP__GELU_ERF:
        return 0.5 * x * (1.0 + erf(x / sqrt(2.0)));
    case FSDP__SILU:
        return x * oracle_sigmoid(x);
    default:
        return x > 0.0 ? x : 0.0;
    }
}

double oracle_derivative(fsdp__activation kind, double x)
{
    double t;

    switch (kind) {
    case FSDP__GELU_TANH:
        t = tanh(sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x));
        return 0.5 * (1.0 + t) + 0.5 * x * (1.0 - t * t) * sqrt(2.0 / M_PI) * (1.0 + 3.0 * 0.044715 * x * x);
    case FSDP__GELU_ERF:
        return 0.5 * (1.0 + erf(x / sqrt(2.0))) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
    case FSDP__SILU:
        return oracle_sigmoid(x) * (1.0 + x * (1.0 - oracle_sigmoid(x)));
    default:
        return x > 0.0 ? 1.0 : 0.0;
    }
}

void oracle_activation_forward(const fsdp__activation_forward_args *k)
{
    for (int64_t i = 0; i < k->rows * k->cols; i++) {
        double x = oracle_get(k->dtype, k->x, i) + (k->bias ? oracle_get(k->dtype, k->bias, i % k->cols) : 0.0);
        oracle_put(k->dtype, k->y, i, oracle_activate(k->kind, x));
    }
}

void oracle_activation_backward(const fsdp__activation_backward_args *k)
{
    for (int64_t i = 0; i < k->rows * k->cols; i++) {
        double x = oracle_get(k->dtype, k->x, i) + (k->bias ? oracle_get(k->dtype, k->bias, i % k->cols) : 0.0);
        oracle_put(k->dtype, k->dx, i, oracle_get(k->dtype, k->dy, i) * oracle_derivative(k->kind, x));
    }
}

static fsdp__activation gate_of(bool gelu)
{
    return gelu ? FSDP__GELU_TANH : FSDP__SILU;
}

void oracle_swiglu_forward(const fsdp__swiglu_forward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->cols; c++)
            oracle_put(k->dtype, k->y, r * k->y_row + c,
                       oracle_activate(gate_of(k->gelu), oracle_get(k->dtype, k->gate, r * k->gate_row + c)) *
                           oracle_get(k->dtype, k->up, r * k->up_row + c));
}

void oracle_swiglu_backward(const fsdp__swiglu_backward_args *k)
{
    for (int64_t r = 0; r < k->rows; r++)
        for (int64_t c = 0; c < k->cols; c++) {
            double gate = oracle_get(k->dtype, k->gate, r * k->gate_row + c);
            double up = oracle_get(k->dtype, k->up, r * k->up_row + c),
                   dy = oracle_get(k->dtype, k->dy, r * k->dy_row + c);
            oracle_put(k->dtype, k->dgate, r * k->dgate_row + c, dy * up * oracle_derivative(gate_of(k->gelu), gate));
            oracle_put(k->dtype, k->dup, r * k->dup_row + c, dy * oracle_activate(gate_of(k->gelu), gate));
            if (k->y)
                oracle_put(k->dtype, k->y, r * k->y_row + c, oracle_activate(gate_of(k->gelu), gate) * up);
        }
}

void oracle_dropout(const fsdp__dropout_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        bool keep = fsdp__rng_uniform(k->key, k->offset + (uint64_t)i) >= k->p;
        oracle_put(k->dtype, k->y, i, keep ? oracle_get(k->dtype, k->x, i) / (1.0 - (double)k->p) : 0.0);
    }
}

void oracle_random(const fsdp__random_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        uint64_t index = k->offset + (uint64_t)i;
        float draw = k->distribution == FSDP__NORMAL ? dice_normal(k->key, index) : fsdp__rng_uniform(k->key, index);
        oracle_put(k->dtype, k->dst, i, (double)k->a + (double)k->b * (double)draw);
    }
}
