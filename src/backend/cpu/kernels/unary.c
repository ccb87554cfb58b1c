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

/* Computes the derivative times dy. `s` is y or x: see kernels.h. */
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

/* Expands to CALL(op) with op constant. */
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

/* ---- forward ---- */

FSDP__INLINE void forward_floats(fsdp__unary_op op, const float *x, float *y, float low, float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = value(op, x[i], low, high);
}

/* Computes with floats in registers only: through the cache it takes half as long again. */
FSDP__INLINE void forward_pairs(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__pair *x, fsdp__pair *y, float low,
                                float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fsdp__pair_of(dtype, value(op, fsdp__low(dtype, x[i]), low, high),
                             value(op, fsdp__high(dtype, x[i]), low, high));
}

/* Computes functions that need all registers themselves. */
FSDP__INLINE void forward_pieces(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__pair *x, fsdp__pair *y, int64_t n)
{
    float low[FSDP__PIECE], high[FSDP__PIECE];

    for (int64_t at = 0; at < n; at += FSDP__PIECE) {
        int64_t end = FSDP__MIN(n - at, FSDP__PIECE);
        for (int64_t i = 0; i < end; i++) {
            low[i] = fsdp__low(dtype, x[at + i]);
            high[i] = fsdp__high(dtype, x[at + i]);
        }
        forward_floats(op, low, low, 0.0f, 0.0f, end);
        forward_floats(op, high, high, 0.0f, 0.0f, end);
        for (int64_t i = 0; i < end; i++)
            y[at + i] = fsdp__pair_of(dtype, low[i], high[i]);
    }
}

FSDP__INLINE void forward_loop(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__unary_forward_args *k, int64_t begin,
                               int64_t end)
{
    const void *x = fsdp__at(dtype, k->x, begin);
    void *y = fsdp__at(dtype, k->y, begin);
    int64_t n = end - begin;

    if (dtype == FSDP_F32) {
        forward_floats(op, x, y, k->low, k->high, n);
        return;
    }
    if (op == FSDP__EXP || op == FSDP__TANH || op == FSDP__SIGMOID || op == FSDP__LOG)
        forward_pieces(dtype, op, x, y, n / 2);
    else
        forward_pairs(dtype, op, x, y, k->low, k->high, n / 2);
    if (n % 2 == 1)
        fsdp__store(dtype, y, n - 1, value(op, fsdp__load(dtype, x, n - 1), k->low, k->high));
}

static void absolute_halves(const uint16_t *x, uint16_t *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] & 0x7fffu;
}

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__unary_forward_args *k = args;

    if (k->op == FSDP__ABS && k->dtype != FSDP_F32) {
        absolute_halves((const uint16_t *)k->x + begin, (uint16_t *)k->y + begin, end - begin);
        return;
    }
#define LOOP(op) forward_loop(T, op, k, begin, end)
#define FORWARD(type)              \
    do {                           \
        const fsdp_dtype T = type; \
        EACH_OP(k->op, LOOP)       \
    } while (0)
    FSDP__EACH_FLOAT(k->dtype, FORWARD)
#undef FORWARD
#undef LOOP
}

fsdp_status KERNEL(unary_forward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__unary_forward_args *k = args;

    fsdp__for_ranges(k->numel, 1, forward_range, k);
    return FSDP_OK;
}

/* ---- backward ---- */

FSDP__INLINE void backward_floats(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__unary_backward_args *k,
                                  int64_t begin, int64_t end)
{
    const void *saved = k->saved, *dy = k->dy;
    void *dx = k->dx;
    float low = k->low, high = k->high;

#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        fsdp__store(dtype, dx, i, gradient(op, fsdp__load(dtype, saved, i), fsdp__load(dtype, dy, i), low, high));
}

FSDP__INLINE void backward_pairs(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__unary_backward_args *k, int64_t begin,
                                 int64_t n)
{
    const fsdp__pair *saved = fsdp__at(dtype, k->saved, begin), *dy = fsdp__at(dtype, k->dy, begin);
    fsdp__pair *dx = fsdp__at(dtype, k->dx, begin);
    float low = k->low, high = k->high;

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = fsdp__pair_of(dtype, gradient(op, fsdp__low(dtype, saved[i]), fsdp__low(dtype, dy[i]), low, high),
                              gradient(op, fsdp__high(dtype, saved[i]), fsdp__high(dtype, dy[i]), low, high));
}

FSDP__INLINE void backward_loop(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__unary_backward_args *k, int64_t begin,
                                int64_t end)
{
    int64_t pairs = dtype == FSDP_F32 ? 0 : (end - begin) / 2;

    if (pairs > 0)
        backward_pairs(dtype, op, k, begin, pairs);
    backward_floats(dtype, op, k, begin + 2 * pairs, end);
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__unary_backward_args *k = args;

#define LOOP(op) backward_loop(T, op, k, begin, end)
#define BACKWARD(type)             \
    do {                           \
        const fsdp_dtype T = type; \
        EACH_OP(k->op, LOOP)       \
    } while (0)
    FSDP__EACH_FLOAT(k->dtype, BACKWARD)
#undef BACKWARD
#undef LOOP
}

fsdp_status KERNEL(unary_backward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__unary_backward_args *k = args;

    fsdp__for_ranges(k->numel, 1, backward_range, k);
    return FSDP_OK;
}
