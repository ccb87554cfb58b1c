/* formulas.h - functions of one or two numbers, and their derivatives, as kernels compute them element by element.
 *
 * Kernels of the CPU and of GPUs share them, so C++ includes this file too. Exponentials and the like are each one's
 * own: fsdp__expf, fsdp__logf, fsdp__log1pf, fsdp__tanhf, fsdp__erff, the division of activations (fsdp__dividef), and
 * the bits of a float (fsdp__float_bits and fsdp__bits_float) are there before it is included; FSDP__FORMULA is how its
 * functions are declared. `op` and `kind` are constants wherever speed matters. */
#pragma once

#include <math.h>

#include "device/activations.h"

/* ---- of one number ---- */

/* Expands to CASE(op) for each function. */
#define FSDP__EACH_UNARY(CASE) \
    CASE(FSDP__EXP)            \
    CASE(FSDP__SQRT)           \
    CASE(FSDP__RSQRT)          \
    CASE(FSDP__RECIPROCAL)     \
    CASE(FSDP__TANH) CASE(FSDP__SIGMOID) CASE(FSDP__LOG) CASE(FSDP__ABS) CASE(FSDP__SQUARE) CASE(FSDP__CLAMP)

FSDP__FORMULA float fsdp__unary_value(fsdp__unary_op op, float x, float low, float high)
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
        return fsdp__bits_float(fsdp__float_bits(x) & 0x7fffffffu); /* a NaN keeps its bits */
    case FSDP__SQUARE:
        return x * x;
    default: /* a NaN stays */
        x = x < low ? low : x;
        return x > high ? high : x;
    }
}

/* Computes the derivative times dy. `s` is y or x: see fsdp__unary_op. */
FSDP__FORMULA float fsdp__unary_gradient(fsdp__unary_op op, float s, float dy, float low, float high)
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

/* ---- bits of a number in two halves ---- */

/* [Note: split numbers]
 * An f32 as two halves: the high one is a bf16, the nearest, and of two as near the one of larger magnitude; the low
 * one are the 16 lower bits. Together they are all bits of the number, but those of a NaN, which stays one. (If ties
 * went to the even bf16, it would stand for 65,537 numbers, which 16 bits cannot tell apart.) */

FSDP__FORMULA uint32_t fsdp__split_high(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits >> 16 | 0x40u : (bits + 0x8000u) >> 16;
}

/* The half of a NaN does not carry into the other. */
FSDP__FORMULA uint32_t fsdp__split_low(uint32_t bits)
{
    return (bits & 0x7fffffffu) > 0x7f800000u ? bits & 0x7fffu : bits & 0xffffu;
}

FSDP__FORMULA uint32_t fsdp__split_whole(uint32_t high, uint32_t low)
{
    return (high - (low >> 15)) << 16 | low;
}

/* ---- of two numbers ---- */

/* Bounds a logarithm from below by -100, as PyTorch does. */
FSDP__FORMULA float fsdp__bounded(float log)
{
    return log < -100.0f ? -100.0f : log;
}

/* Computes all of them but powers and comparisons. */
FSDP__FORMULA float fsdp__binary_value(fsdp__binary_op op, float a, float b, float beta)
{
    float d = a - b;

    switch (op) {
    case FSDP__ADD:
        return a + b;
    case FSDP__MUL:
        return a * b;
    case FSDP__SUB:
        return d;
    case FSDP__DIV:
        return a / b;
    case FSDP__MAXIMUM:
        return a > b || a != a ? a : b;
    case FSDP__MINIMUM:
        return a < b || a != a ? a : b;
    case FSDP__SQUARED_ERROR:
        return d * d;
    case FSDP__ABSOLUTE_ERROR:
        return fabsf(d);
    case FSDP__SMOOTH_ERROR:
        d = fabsf(d);
        return d < beta ? 0.5f * d * d / beta : d - 0.5f * beta;
    case FSDP__BCE:
        return (b - 1.0f) * fsdp__bounded(fsdp__log1pf(-a)) - b * fsdp__bounded(fsdp__logf(a));
    default: /* FSDP__BCE_LOGITS */
        return (1.0f - b) * a + fsdp__log1pf(fsdp__expf(-fabsf(a))) + (a < 0.0f ? -a : 0.0f);
    }
}

FSDP__FORMULA float fsdp__sign(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}

/* Computes the gradient of a. `power` is used by POW only: a^(b - 1). */
FSDP__FORMULA float fsdp__left_gradient(fsdp__binary_op op, float a, float b, float power, float dy, float beta)
{
    float d = a - b;

    switch (op) {
    case FSDP__MUL:
        return dy * b;
    case FSDP__DIV:
        return dy / b;
    case FSDP__POW:
        return b == 0.0f ? 0.0f : dy * (b * power);
    case FSDP__MAXIMUM:
        return a == b ? 0.5f * dy : a < b ? 0.0f : dy;
    case FSDP__MINIMUM:
        return a == b ? 0.5f * dy : a > b ? 0.0f : dy;
    case FSDP__SQUARED_ERROR:
        return 2.0f * d * dy;
    case FSDP__ABSOLUTE_ERROR:
        return fsdp__sign(d) * dy;
    case FSDP__SMOOTH_ERROR:
        return (d >= beta ? 1.0f : d <= -beta ? -1.0f : d / beta) * dy;
    case FSDP__BCE:
        d *= dy;
        a = (1.0f - a) * a;
        return d / (a < 1e-12f ? 1e-12f : a);
    default: /* FSDP__BCE_LOGITS */
        return (fsdp__sigmoidf(a) - b) * dy;
    }
}

/* Computes the gradient of b. `power` is used by POW only: a^b. */
FSDP__FORMULA float fsdp__right_gradient(fsdp__binary_op op, float a, float b, float power, float dy, float beta)
{
    float y;

    switch (op) {
    case FSDP__MUL:
        return dy * a;
    case FSDP__DIV:
        return -dy * (a / b / b);
    case FSDP__POW: /* 0 for 0 to a power that is not negative */
        y = dy * (power * fsdp__logf(a));
        return a == 0.0f && b >= 0.0f ? 0.0f : y;
    case FSDP__MAXIMUM:
        return a == b ? 0.5f * dy : a > b ? 0.0f : dy;
    case FSDP__MINIMUM:
        return a == b ? 0.5f * dy : a < b ? 0.0f : dy;
    case FSDP__BCE:
        return dy * (fsdp__log1pf(-a) - fsdp__logf(a));
    case FSDP__BCE_LOGITS:
        return -dy * a;
    default: /* functions of the difference alone */
        return -fsdp__left_gradient(op, a, b, 0.0f, dy, beta);
    }
}
