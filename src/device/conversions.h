/* conversions.h - numbers of 32 bits as those of 16 and 8, and back, bit by bit.
 *
 * Kernels of the CPU and of GPUs share them, so C++ includes this file too. FSDP__CONVERSION is how its functions are
 * declared. */
#pragma once

#include <stdint.h>
#include <string.h>

FSDP__CONVERSION uint32_t fsdp__float_bits(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

FSDP__CONVERSION float fsdp__bits_float(uint32_t bits)
{
    float x;

    memcpy(&x, &bits, sizeof x);
    return x;
}

/* ---- 16 bits ---- */

FSDP__CONVERSION float fsdp__from_bf16(uint16_t x)
{
    return fsdp__bits_float((uint32_t)x << 16);
}

/* Returns the bf16 number in the upper half; the lower half is noise. Rounds to nearest even; a NaN stays one. */
FSDP__CONVERSION uint32_t fsdp__bf16_above(float x)
{
    uint32_t bits = fsdp__float_bits(x);
    uint32_t rounded = bits + 0x7fffu + (bits >> 16 & 1), quiet = bits | 0x400000u;

    return x != x ? quiet : rounded;
}

FSDP__CONVERSION uint16_t fsdp__to_bf16(float x)
{
    return (uint16_t)(fsdp__bf16_above(x) >> 16);
}

/* Computes with integers only: a half's denormals are normal floats, but the way there must not pass through float
 * denormals. */
FSDP__CONVERSION float fsdp__from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, magnitude = x & 0x7fffu;
    uint32_t normal = (magnitude << 13) + (112u << 23);
    float tiny = (float)(int32_t)magnitude * 0x1p-24f;
    uint32_t bits = magnitude >= 0x7c00u ? normal + (112u << 23) : magnitude < 0x400u ? fsdp__float_bits(tiny) : normal;

    return fsdp__bits_float(sign | bits);
}

/* Rounds to nearest even; what is too large becomes infinity. */
FSDP__CONVERSION uint16_t fsdp__to_f16(float x)
{
    uint32_t bits = fsdp__float_bits(x), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
    /* Adding 0.5 leaves a result below 2^-14 in the sum's last bits, rounded by the adder. */
    uint32_t tiny = fsdp__float_bits(fsdp__bits_float(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t normal = (magnitude - (112u << 23) + 0xfffu + (magnitude >> 13 & 1)) >> 13;
    uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : 0x7c00u;
    uint32_t half = magnitude >= 0x47800000u ? large : magnitude < 0x38800000u ? tiny : normal;

    return (uint16_t)(sign | half);
}

/* ---- e4m3 ---- */

/* Rounds to nearest even, at most 448; a NaN stays one. Adding 2^14 leaves a result below 2^-6 in the sum's last bits,
 * rounded by the adder. */
FSDP__CONVERSION uint8_t fsdp__to_float8(float x)
{
    uint32_t bits = fsdp__float_bits(x), sign = bits >> 24 & 0x80u;
    float magnitude = fsdp__bits_float(bits & 0x7fffffffu), limited = magnitude > 448.0f ? 448.0f : magnitude;
    uint32_t limited_bits = fsdp__float_bits(limited);
    uint32_t normal = (limited_bits - (120u << 23) + 0x7ffffu + (limited_bits >> 20 & 1)) >> 20;
    uint32_t tiny = fsdp__float_bits(limited + 16384.0f) - 0x46800000u;
    uint32_t code = limited < 0x1p-6f ? tiny : normal;

    return (uint8_t)(sign | (magnitude != magnitude ? 0x7fu : code));
}

FSDP__CONVERSION float fsdp__from_float8(uint8_t code)
{
    uint32_t magnitude = code & 0x7fu, sign = (uint32_t)(code & 0x80u) << 24;
    float tiny = (float)(int32_t)magnitude * 0x1p-9f;
    uint32_t normal = (magnitude << 20) + (120u << 23);
    uint32_t bits = magnitude == 0x7fu ? 0x7fc00000u : magnitude < 8u ? fsdp__float_bits(tiny) : normal;

    return fsdp__bits_float(sign | bits);
}

/* Returns the scale that makes the largest magnitude 448. In f64, as PyTorch's float8 training does. */
FSDP__CONVERSION float fsdp__float8_scale(float amax)
{
    double least = 1e-12, most = amax;

    return (float)(448.0 / (most < least ? least : most));
}

/* ---- int8 ---- */

/* If a block's largest magnitude is below this, the inverse would be infinite. */
#define FSDP__SMALLEST_BLOCK 1e-30f

/* Rounds to nearest even by the adder: 1.5 * 2^23 leaves the integer in the sum's last bits. */
FSDP__CONVERSION uint8_t fsdp__to_int8(float x)
{
    float high = x > 127.0f ? 127.0f : x, limited = high < -127.0f ? -127.0f : high;

    return (uint8_t)fsdp__float_bits(limited + 12582912.0f);
}
