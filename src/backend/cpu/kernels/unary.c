/* unary.c - functions of one number, and their derivatives. */
#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/operand.h"

#include <math.h>

FSDP__INLINE float value(fsdp__unary_op op, float x, float low, float high)
{
    switch (op) {
    case FSDP__EXP:
        return fsdp__expf(x);
    case FSDP__SQRT:
        return sqrtf(x);
    case FSDP__RSQRT:
        return 1.0f / sqrtf(x);
    case FSDP__RECIPROCAL:
        return 1.0f / x;
    case FSDP__TANH:
        return fsdp__tanhf(x);
    case FSDP__SIGMOID:
        return fsdp__sigmoidf(x);
    case FSDP__LOG:
        return fsdp__logf(x);
    case FSDP__ABS:
        return fsdp__bits_float(fsdp__float_bits(x) & 0x7fffffffu);
    case FSDP__SQUARE:
        return x * x;
    default:
        x = x < low ? low : x;
        return x > high ? high : x;
    }
}

/* `s` is y or x: kernels.h. */
FSDP__INLINE float gradient(fsdp__unary_op op, float s, float dy, float low, float high)
{
    switch (op) {
    case FSDP__EXP:
        return dy * s;
    case FSDP__SQRT:
        return dy / (2.0f * s);
    case FSDP__RSQRT:
        return -0.5f * dy * (s * s * s);
    case FSDP__RECIPROCAL:
        return -dy * (s * s);
    case FSDP__TANH:
        return dy * (1.0f - s * s);
    case FSDP__SIGMOID:
        return dy * (1.0f - s) * s;
    case FSDP__LOG:
        return dy / s;
    case FSDP__ABS:
        return s > 0.0f ? dy : s < 0.0f ? -dy : dy * 0.0f;
    case FSDP__SQUARE:
        return dy * (2.0f * s);
    default:
        return (s > low || low == -INFINITY) && (s < high || high == INFINITY) && s == s ? dy : 0.0f;
    }
}

FSDP__INLINE void forward_loop(fsdp__unary_op op, const float *x, float *y, float low, float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = value(op, x[i], low, high);
}

FSDP__INLINE void backward_loop(fsdp__unary_op op, const float *s, const float *dy, float *dx, float low, float high,
                                int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = gradient(op, s[i], dy[i], low, high);
}

/* CALL(op) with it constant. */
#define EACH_OP(op, CALL)       \
    switch (op) {               \
    case FSDP__EXP:             \
        CALL(FSDP__EXP);        \
        break;                  \
    case FSDP__SQRT:            \
        CALL(FSDP__SQRT);       \
        break;                  \
    case FSDP__RSQRT:           \
        CALL(FSDP__RSQRT);      \
        break;                  \
    case FSDP__RECIPROCAL:      \
        CALL(FSDP__RECIPROCAL); \
        break;                  \
    case FSDP__TANH:            \
        CALL(FSDP__TANH);       \
        break;                  \
    case FSDP__SIGMOID:         \
        CALL(FSDP__SIGMOID);    \
        break;                  \
    case FSDP__LOG:             \
        CALL(FSDP__LOG);        \
        break;                  \
    case FSDP__ABS:             \
        CALL(FSDP__ABS);        \
        break;                  \
    case FSDP__SQUARE:          \
        CALL(FSDP__SQUARE);     \
        break;                  \
    default:                    \
        CALL(FSDP__CLAMP);      \
    }

static fsdp__operand packed(const void *data, fsdp_dtype dtype)
{
    return (fsdp__operand){.data = data, .dtype = dtype, .ndim = 1, .shape = {INT64_MAX}, .strides = {1}};
}

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__unary_forward_args *k = args;
    const fsdp__operand from = packed(k->x, k->dtype);
    float x_buffer[FSDP__PIECE], y_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const float *x = fsdp__operand_floats(&from, at, n, x_buffer);
        float *y = fsdp__place_floats(k->dtype, k->y, at, y_buffer);
#define LOOP(op) forward_loop(op, x, y, k->low, k->high, n)
        EACH_OP(k->op, LOOP)
#undef LOOP
        fsdp__put_floats(k->dtype, k->y, at, n, y);
    }
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__unary_backward_args *k = args;
    const fsdp__operand saved = packed(k->saved, k->dtype), grads = packed(k->dy, k->dtype);
    float s_buffer[FSDP__PIECE], dy_buffer[FSDP__PIECE], dx_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const float *s = fsdp__operand_floats(&saved, at, n, s_buffer);
        const float *dy = fsdp__operand_floats(&grads, at, n, dy_buffer);
        float *dx = fsdp__place_floats(k->dtype, k->dx, at, dx_buffer);
#define LOOP(op) backward_loop(op, s, dy, dx, k->low, k->high, n)
        EACH_OP(k->op, LOOP)
#undef LOOP
        fsdp__put_floats(k->dtype, k->dx, at, n, dx);
    }
}

fsdp_status KERNEL(unary_forward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__unary_forward_args *k = args;

    fsdp__for_ranges(k->numel, 1, forward_range, k);
    return FSDP_OK;
}

fsdp_status KERNEL(unary_backward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__unary_backward_args *k = args;

    fsdp__for_ranges(k->numel, 1, backward_range, k);
    return FSDP_OK;
}
