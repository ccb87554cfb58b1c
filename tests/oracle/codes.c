/* codes.c - weights in fewer bits. */
#include "oracle/oracle.h"

#include <math.h>
#include <string.h>

double oracle_float8_value(uint8_t code)
{
    int exponent = code >> 3 & 15, mantissa = code & 7;
    double value = exponent == 0 ? ldexp(mantissa, -9) : ldexp(8 + mantissa, exponent - 10);

    if ((code & 0x7f) == 0x7f)
        return NAN;
    return code & 0x80 ? -value : value;
}

/* The nearest of all codes; of two as near, the even one. */
uint8_t oracle_float8_code(double x)
{
    uint8_t sign = signbit(x) ? 0x80 : 0, best = 0;
    double magnitude = fabs(x);

    if (isnan(x))
        return sign | 0x7f;
    for (uint8_t code = 1; code < 0x7f; code++) {
        double nearer = fabs(oracle_float8_value(code) - magnitude), near = fabs(oracle_float8_value(best) - magnitude);

        if (nearer < near || (nearer == near && code % 2 == 0 && !isinf(magnitude)))
            best = code;
    }
    return sign | (isinf(magnitude) ? 0x7e : best);
}

static double largest(fsdp_dtype dtype, const void *p, int64_t first, int64_t numel)
{
    double amax = 0.0;

    for (int64_t i = first; i < first + numel; i++) {
        double x = fabs(oracle_get(dtype, p, i));

        amax = isnan(x) || x > amax ? x : amax;
        if (isnan(amax))
            return amax;
    }
    return amax;
}

void oracle_amax(const fsdp__amax_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        *(float *)k->spans[s].dst = (float)largest(k->dtype, k->spans[s].src, 0, k->spans[s].numel);
}

static void quantize_float8(const fsdp__coded_span *s, fsdp_dtype dtype)
{
    double amax = (double)*s->amax;
    float scale = (float)(448.0 / (amax < 1e-12 ? 1e-12 : amax));

    if (s->keep && *s->scales == scale)
        return;
    *s->scales = scale;
    for (int64_t i = 0; i < s->runs * s->run; i++)
        s->codes[i] = oracle_float8_code((double)(float)(oracle_get(dtype, s->values, i) * (double)scale));
}

static void quantize_int8(const fsdp__coded_span *s, fsdp_dtype dtype)
{
    int64_t numel = s->runs * s->run;

    for (int64_t i = 0; i < numel; i++) {
        int64_t block = i / FSDP__CODE_BLOCK, first = block * FSDP__CODE_BLOCK, left = numel - first;
        double amax = largest(dtype, s->values, first, left < FSDP__CODE_BLOCK ? left : FSDP__CODE_BLOCK);
        float inverse = amax < 1e-30 ? 0.0f : (float)(127.0 / amax);

        s->scales[block] = amax < 1e-30 ? 0.0f : (float)(amax / 127.0);
        s->codes[i] = (uint8_t)(int8_t)nearbyint((double)(float)(oracle_get(dtype, s->values, i) * (double)inverse));
    }
}

void oracle_quantize(const fsdp__quantize_args *k)
{
    for (int64_t s = 0; s < k->count; s++)
        if (k->code == FSDP__CODE_FLOAT8)
            quantize_float8(&k->spans[s], k->dtype);
        else
            quantize_int8(&k->spans[s], k->dtype);
}

void oracle_dequantize(const fsdp__dequantize_args *k)
{
    for (int64_t s = 0; s < k->count; s++) {
        const fsdp__coded_span *span = &k->spans[s];

        for (int64_t i = 0; i < span->runs * span->run; i++) {
            double x = k->code == FSDP__CODE_FLOAT8
                           ? oracle_float8_value(span->codes[i]) / (double)*span->scales
                           : (double)(int8_t)span->codes[i] * (double)span->scales[i / FSDP__CODE_BLOCK];

            oracle_put(k->dtype, span->values, i / span->run * span->stride + i % span->run, (double)(float)x);
        }
    }
}

static double decoded(const fsdp__decode_weight_args *k, int64_t i)
{
    static const float levels[16] = FSDP__NF4_LEVELS;
    const uint8_t *row = k->rows + i / k->row_numel * k->row_bytes, *codes = row + sizeof(float);
    int64_t at = i % k->row_numel;
    float scale;

    memcpy(&scale, row, sizeof scale);
    if (k->code == FSDP__WEIGHT_INT8)
        return (double)((float)(int8_t)codes[at] * scale) * (double)FSDP__INT8_STEP;
    return (double)scale * (double)levels[at % 2 == 0 ? codes[at / 2] / 16 : codes[at / 2] % 16];
}

void oracle_decode_weight(const fsdp__decode_weight_args *k)
{
    for (int64_t i = 0; i < k->numel; i++)
        oracle_put(k->dtype, k->values, i, (double)(float)decoded(k, i));
}
