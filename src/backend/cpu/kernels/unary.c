/* unary.c - functions of one number, and their derivatives. */
#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/operand.h"

/* ---- forward ---- */

FSDP__INLINE void forward_floats(fsdp__unary_op op, const float *x, float *y, float low, float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fsdp__unary_value(op, x[i], low, high);
}

/* Computes with floats in registers only; through the cache it takes 1.5 times as long. */
FSDP__INLINE void forward_pairs(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__pair *x, fsdp__pair *y, float low,
                                float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fsdp__pair_of(dtype, fsdp__unary_value(op, fsdp__low(dtype, x[i]), low, high),
                             fsdp__unary_value(op, fsdp__high(dtype, x[i]), low, high));
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
        fsdp__store(dtype, y, n - 1, fsdp__unary_value(op, fsdp__load(dtype, x, n - 1), k->low, k->high));
}

static void absolute_halves(const uint16_t *x, uint16_t *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = x[i] & 0x7fffu;
}

FSDP__RANGE_KERNEL(unary_forward, k, k->numel, 1)
{
    if (k->op == FSDP__ABS && k->dtype != FSDP_F32) {
        absolute_halves((const uint16_t *)k->x + begin, (uint16_t *)k->y + begin, end - begin);
        return;
    }
#define LOOP(op)                            \
    case op:                                \
        forward_loop(T, op, k, begin, end); \
        break;
    FSDP__EACH_FLOAT(k->dtype, T, switch (k->op){FSDP__EACH_UNARY(LOOP)});
#undef LOOP
}

/* ---- backward ---- */

FSDP__INLINE void backward_floats(fsdp__unary_op op, const float *saved, const float *dy, float *dx, float low,
                                  float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = fsdp__unary_gradient(op, saved[i], dy[i], low, high);
}

FSDP__INLINE void backward_pairs(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__pair *saved, const fsdp__pair *dy,
                                 fsdp__pair *dx, float low, float high, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        dx[i] = fsdp__pair_of(
            dtype, fsdp__unary_gradient(op, fsdp__low(dtype, saved[i]), fsdp__low(dtype, dy[i]), low, high),
            fsdp__unary_gradient(op, fsdp__high(dtype, saved[i]), fsdp__high(dtype, dy[i]), low, high));
}

FSDP__INLINE void backward_loop(fsdp_dtype dtype, fsdp__unary_op op, const fsdp__unary_backward_args *k, int64_t begin,
                                int64_t end)
{
    const void *saved = fsdp__at(dtype, k->saved, begin), *dy = fsdp__at(dtype, k->dy, begin);
    void *dx = fsdp__at(dtype, k->dx, begin);
    int64_t n = end - begin;

    if (dtype == FSDP_F32) {
        backward_floats(op, saved, dy, dx, k->low, k->high, n);
        return;
    }
    backward_pairs(dtype, op, saved, dy, dx, k->low, k->high, n / 2);
    if (n % 2 == 1)
        fsdp__store(
            dtype, dx, n - 1,
            fsdp__unary_gradient(op, fsdp__load(dtype, saved, n - 1), fsdp__load(dtype, dy, n - 1), k->low, k->high));
}

FSDP__RANGE_KERNEL(unary_backward, k, k->numel, 1)
{
#define LOOP(op)                             \
    case op:                                 \
        backward_loop(T, op, k, begin, end); \
        break;
    FSDP__EACH_FLOAT(k->dtype, T, switch (k->op){FSDP__EACH_UNARY(LOOP)});
#undef LOOP
}
