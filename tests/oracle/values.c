/* values.c - elements of every dtype, by arithmetic instead of by bits, but for powers of two. */
#include "oracle/oracle.h"

#include <math.h>
#include <string.h>

/* Returns 2 to a power that a double has. ldexp looks at many cases more, and this is called for each element. */
static double two_to(int power)
{
    uint64_t bits = (uint64_t)(power + 1023) << 52;
    double value;

    memcpy(&value, &bits, sizeof value);
    return value;
}

static double half_value(uint16_t bits, int exponent_bits, int mantissa_bits)
{
    int exponent = bits >> mantissa_bits & ((1 << exponent_bits) - 1), bias = (1 << (exponent_bits - 1)) - 1;
    double mantissa = bits & ((1 << mantissa_bits) - 1), value;

    if (exponent == (1 << exponent_bits) - 1)
        value = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0)
        value = mantissa * two_to(1 - bias - mantissa_bits);
    else
        value = (mantissa + (1 << mantissa_bits)) * two_to(exponent - bias - mantissa_bits);
    return bits >> 15 ? -value : value;
}

static uint16_t half_bits(double x, int exponent_bits, int mantissa_bits)
{
    int top = (1 << exponent_bits) - 1, bias = top >> 1, exponent;
    uint16_t sign = signbit(x) ? 0x8000u : 0;
    double m = fabs(x);

    if (isnan(x))
        return (uint16_t)(top << mantissa_bits | 1 << (mantissa_bits - 1));
    if (m == 0.0)
        return sign;
    if (isinf(m))
        return (uint16_t)(sign | top << mantissa_bits);
    (void)frexp(m, &exponent);
    exponent = exponent - 1 < 1 - bias ? 1 - bias : exponent - 1;
    m = nearbyint(m * two_to(mantissa_bits - exponent)); /* half to even; a carry moves into the exponent below */
    m = fmin(m + (exponent + bias - 1) * two_to(mantissa_bits), top * two_to(mantissa_bits)); /* too large: infinity */
    return (uint16_t)(sign | (uint16_t)m);
}

double oracle_get(fsdp_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case FSDP_F32:
        return (double)((const float *)p)[i];
    case FSDP_BF16:
        return half_value(((const uint16_t *)p)[i], 8, 7);
    case FSDP_F16:
        return half_value(((const uint16_t *)p)[i], 5, 10);
    case FSDP_I32:
        return ((const int32_t *)p)[i];
    case FSDP_I64:
        return (double)((const int64_t *)p)[i];
    default:
        return ((const uint8_t *)p)[i];
    }
}

void oracle_put(fsdp_dtype dtype, void *p, int64_t i, double x)
{
    switch (dtype) {
    case FSDP_F32:
        ((float *)p)[i] = (float)x;
        break;
    case FSDP_BF16:
        ((uint16_t *)p)[i] = half_bits(x, 8, 7);
        break;
    case FSDP_F16:
        ((uint16_t *)p)[i] = half_bits(x, 5, 10);
        break;
    case FSDP_I32:
        ((int32_t *)p)[i] = (int32_t)x;
        break;
    case FSDP_I64:
        ((int64_t *)p)[i] = (int64_t)x;
        break;
    case FSDP_U8:
        ((uint8_t *)p)[i] = (uint8_t)(int64_t)x;
        break;
    default:
        ((uint8_t *)p)[i] = x != 0.0;
    }
}

double oracle_round(fsdp_dtype dtype, double x)
{
    uint64_t memory;

    oracle_put(dtype, &memory, 0, x);
    return oracle_get(dtype, &memory, 0);
}
