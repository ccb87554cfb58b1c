/* activations.h - activations and their derivatives: a part of device/formulas.h which is included again with other
 * exponentials. fsdp__expf, fsdp__erff and fsdp__dividef(a, b), a / b, are there before it. */
#include "device/kernel_args.h"

FSDP__FORMULA float fsdp__sigmoidf(float x)
{
    return fsdp__dividef(1.0f, 1.0f + fsdp__expf(-x));
}

#define FSDP__EACH_ACTIVATION(CASE) CASE(FSDP__GELU_TANH) CASE(FSDP__GELU_ERF) CASE(FSDP__SILU) CASE(FSDP__RELU)

/* Computes sqrt(2 / pi) (x + 0.044715 x^3), doubled: (1 + tanh u) / 2 is sigmoid(2 u). */
FSDP__FORMULA float fsdp__gelu_argument(float x)
{
    return 2.0f * 0.7978845608f * (x + 0.044715f * x * x * x);
}

FSDP__FORMULA float fsdp__activate(fsdp__activation kind, float x)
{
    switch (kind) {
    case FSDP__GELU_TANH:
        return fsdp__dividef(x, 1.0f + fsdp__expf(-fsdp__gelu_argument(x)));
    case FSDP__GELU_ERF:
        return 0.5f * x * (1.0f + fsdp__erff(x * 0.70710678f));
    case FSDP__SILU:
        return fsdp__dividef(x, 1.0f + fsdp__expf(-x));
    default:
        return x < 0.0f ? 0.0f : x;
    }
}

FSDP__FORMULA float fsdp__activation_derivative(fsdp__activation kind, float x)
{
    float s;

    switch (kind) {
    case FSDP__GELU_TANH:
        s = fsdp__sigmoidf(fsdp__gelu_argument(x));
        return s + x * s * (1.0f - s) * (2.0f * 0.7978845608f) * (1.0f + 3.0f * 0.044715f * x * x);
    case FSDP__GELU_ERF:
        return 0.5f * (1.0f + fsdp__erff(x * 0.70710678f)) + x * 0.39894228f * fsdp__expf(-0.5f * x * x);
    case FSDP__SILU:
        s = fsdp__sigmoidf(x);
        return s * (1.0f + x * (1.0f - s));
    default:
        return x > 0.0f ? 1.0f : 0.0f;
    }
}
