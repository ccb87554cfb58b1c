/* activation.c - y = f(x + bias) and its backward. */
#include "backend/cpu/kernels/mathf.h"

#define SQRT_2_OVER_PI 0.7978845608f

FSDP__INLINE float activate(fsdp__activation kind, float x)
{
    switch (kind) {
    case FSDP__GELU_TANH: /* (1 + tanh u) / 2 is sigmoid(2 u) */
        return x / (1.0f + fsdp__expf(-2.0f * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x)));
    case FSDP__GELU_ERF:
        return 0.5f * x * (1.0f + fsdp__erff(x * 0.70710678f));
    case FSDP__SILU:
        return x / (1.0f + fsdp__expf(-x));
    default:
        return x < 0.0f ? 0.0f : x;
    }
}

FSDP__INLINE float derivative(fsdp__activation kind, float x)
{
    float s;

    switch (kind) {
    case FSDP__GELU_TANH:
        s = fsdp__sigmoidf(2.0f * SQRT_2_OVER_PI * (x + 0.044715f * x * x * x));
        return s + x * s * (1.0f - s) * (2.0f * SQRT_2_OVER_PI) * (1.0f + 3.0f * 0.044715f * x * x);
    case FSDP__GELU_ERF:
        return 0.5f * (1.0f + fsdp__erff(x * 0.70710678f)) + x * 0.39894228f * fsdp__expf(-0.5f * x * x);
    case FSDP__SILU:
        s = fsdp__sigmoidf(x);
        return s * (1.0f + x * (1.0f - s));
    default:
        return x > 0.0f ? 1.0f : 0.0f;
    }
}

FSDP__INLINE void forward_row(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, void *y,
                              int64_t n)
{
    if (bias) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, activate(kind, fsdp__load(dtype, x, i) + fsdp__load(dtype, bias, i)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, activate(kind, fsdp__load(dtype, x, i)));
    }
}

FSDP__INLINE void backward_row(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, const void *dy,
                               void *dx, int64_t n)
{
    if (bias) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = fsdp__load(dtype, x, i) + fsdp__load(dtype, bias, i);
            fsdp__store(dtype, dx, i, fsdp__load(dtype, dy, i) * derivative(kind, v));
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, dx, i, fsdp__load(dtype, dy, i) * derivative(kind, fsdp__load(dtype, x, i)));
    }
}

/* Expands to CALL(dtype, kind, ...) with both constant. */
#define EACH_KIND(T, CALL)        \
    switch (kind) {               \
    case FSDP__GELU_TANH:         \
        CALL(T, FSDP__GELU_TANH); \
        break;                    \
    case FSDP__GELU_ERF:          \
        CALL(T, FSDP__GELU_ERF);  \
        break;                    \
    case FSDP__SILU:              \
        CALL(T, FSDP__SILU);      \
        break;                    \
    default:                      \
        CALL(T, FSDP__RELU);      \
    }

static void forward_any(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, void *y, int64_t n)
{
#define ROW(T, K) forward_row(T, K, x, bias, y, n)
#define KINDS(T) EACH_KIND(T, ROW)
    FSDP__EACH_FLOAT(dtype, KINDS)
#undef ROW
#undef KINDS
}

static void backward_any(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, const void *dy,
                         void *dx, int64_t n)
{
#define ROW(T, K) backward_row(T, K, x, bias, dy, dx, n)
#define KINDS(T) EACH_KIND(T, ROW)
    FSDP__EACH_FLOAT(dtype, KINDS)
#undef ROW
#undef KINDS
}

/* Computes a range. Without a bias rows do not matter: begin and end count elements, otherwise rows. */
static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__activation_forward_args *a = args;

    if (!a->bias) {
        forward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, begin), NULL, fsdp__at(a->dtype, a->y, begin),
                    end - begin);
        return;
    }
    for (int64_t r = begin; r < end; r++)
        forward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, r * a->cols), a->bias,
                    fsdp__at(a->dtype, a->y, r * a->cols), a->cols);
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__activation_backward_args *a = args;

    if (!a->bias) {
        backward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, begin), NULL, fsdp__at(a->dtype, a->dy, begin),
                     fsdp__at(a->dtype, a->dx, begin), end - begin);
        return;
    }
    for (int64_t r = begin; r < end; r++)
        backward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, r * a->cols), a->bias,
                     fsdp__at(a->dtype, a->dy, r * a->cols), fsdp__at(a->dtype, a->dx, r * a->cols), a->cols);
}

fsdp_status KERNEL(activation_forward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__activation_forward_args *a = args;

    if (a->bias)
        fsdp__for_ranges(a->rows, a->cols, forward_range, a);
    else
        fsdp__for_ranges(a->rows * a->cols, 1, forward_range, a);
    return FSDP_OK;
}

fsdp_status KERNEL(activation_backward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__activation_backward_args *a = args;

    if (a->bias)
        fsdp__for_ranges(a->rows, a->cols, backward_range, a);
    else
        fsdp__for_ranges(a->rows * a->cols, 1, backward_range, a);
    return FSDP_OK;
}
