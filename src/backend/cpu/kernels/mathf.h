/* mathf.h - elementary functions that the compiler can put into vectors: no branches, no calls, no tables. */
#ifndef BACKEND_CPU_MATHF_H
#define BACKEND_CPU_MATHF_H

#include "backend/cpu/kernels/dtype.h"

/* e^x for x that is not above 88: within 2 ulp, 0 below -87.3, NaN for NaN. */
FSDP__INLINE float fsdp__expf_low(float x)
{
    float c = x < -88.0f ? -88.0f : x;
    /* Adding 1.5 * 2^23 rounds to an integer, which then is in the low bits. */
    float shifted = c * 1.44269504f + 12582912.0f;
    float n = shifted - 12582912.0f;
    float r = c - n * 0.693359375f;
    r = r - n * -2.12194440e-4f;
    float p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * (r * r) + r + 1.0f;
    return p * fsdp__bits_float((fsdp__float_bits(shifted) - 0x4b400000u + 127u) << 23);
}

/* The same for every x: infinity above 88.3. */
FSDP__INLINE float fsdp__expf(float x)
{
    return fsdp__expf_low(x > 89.0f ? 89.0f : x);
}

FSDP__INLINE float fsdp__sigmoidf(float x)
{
    return 1.0f / (1.0f + fsdp__expf(-x));
}

/* Within 2 ulp: near 0 a polynomial, since there the quotient has lost the digits. */
FSDP__INLINE float fsdp__tanhf(float x)
{
    float t = x < 0.0f ? -x : x, s = x * x;
    float far = 1.0f - 2.0f / (fsdp__expf(2.0f * t) + 1.0f);
    float p = -5.70498872745e-3f;

    p = p * s + 2.06390887954e-2f;
    p = p * s - 5.37397155531e-2f;
    p = p * s + 1.33314422036e-1f;
    p = p * s - 3.33332819422e-1f;
    return t < 0.625f ? x + x * s * p : x < 0.0f ? -far : far;
}

/* m of x = m 2^e with m in [sqrt(1/2), sqrt(2)), for a normal x above 0. */
FSDP__INLINE float fsdp__mantissa(float x, int32_t *exponent)
{
    uint32_t bits = fsdp__float_bits(x) - 0x3f3504f3u; /* sqrt(1/2) */

    *exponent = (int32_t)bits >> 23;
    return fsdp__bits_float((bits & 0x7fffffu) + 0x3f3504f3u);
}

/* Natural logarithm within 2 ulp; -infinity of 0, NaN below. */
FSDP__INLINE float fsdp__logf(float x)
{
    int32_t e;
    bool small = x < 0x1p-126f;
    float r = fsdp__mantissa(small ? x * 0x1p23f : x, &e) - 1.0f, s = r * r;
    float n = (float)(small ? e - 23 : e);
    float p = 7.0376836292e-2f;

    p = p * r - 1.1514610310e-1f;
    p = p * r + 1.1676998740e-1f;
    p = p * r - 1.2420140846e-1f;
    p = p * r + 1.4249322787e-1f;
    p = p * r - 1.6668057665e-1f;
    p = p * r + 2.0000714765e-1f;
    p = p * r - 2.4999993993e-1f;
    p = p * r + 3.3333331174e-1f;
    p = r * s * p - 2.12194440e-4f * n - 0.5f * s + r + 0.693359375f * n;
    p = x > 3.4028235e38f ? x : p;
    p = x == 0.0f ? -__builtin_inff() : p;
    return x < 0.0f || x != x ? __builtin_nanf("") : p;
}

/* log(1 + x): what 1 + x has lost of x is put back. */
FSDP__INLINE float fsdp__log1pf(float x)
{
    float u = 1.0f + x, lost = (u - 1.0f) - x;
    float y = fsdp__logf(u);

    return u > 0.0f && u <= 3.4028235e38f ? y - lost / u : y;
}

/* |x|^p in double: 2^(p log2 |x|), right to f32 however large the exponent is. */
FSDP__INLINE double fsdp__pow_magnitude(float x, float p)
{
    int32_t e;
    bool small = x < 0x1p-126f;
    double m = (double)fsdp__mantissa(small ? x * 0x1p23f : x, &e);
    double s = (m - 1.0) / (m + 1.0), t = s * s, log2 = 1.0 / 13.0;

    log2 = log2 * t + 1.0 / 11.0;
    log2 = log2 * t + 1.0 / 9.0;
    log2 = log2 * t + 1.0 / 7.0;
    log2 = log2 * t + 1.0 / 5.0;
    log2 = log2 * t + 1.0 / 3.0;
    log2 = (log2 * t * s + s) * 2.88539008177792681472 + (double)(small ? e - 23 : e);
    log2 = x > 3.4028235e38f ? 1e30 : x == 0.0f ? -1e30 : log2;
    double y = (double)p * log2;
    y = y > 200.0 ? 200.0 : y < -200.0 ? -200.0 : y; /* past what f32 holds */
    double shifted = y + 6755399441055744.0;         /* 1.5 * 2^52 rounds to an integer, in the low bits */
    double r = (y - (shifted - 6755399441055744.0)) * 0.69314718055994530942, exp = 1.0 / 5040.0;
    uint64_t bits;

    exp = exp * r + 1.0 / 720.0;
    exp = exp * r + 1.0 / 120.0;
    exp = exp * r + 1.0 / 24.0;
    exp = exp * r + 1.0 / 6.0;
    exp = exp * r + 0.5;
    exp = (exp * r + 1.0) * r + 1.0;
    memcpy(&bits, &shifted, sizeof bits);
    bits = (bits + 1023u) << 52;
    memcpy(&m, &bits, sizeof m);
    return exp * m;
}

/* x^p as C's powf: within 1 ulp. */
FSDP__INLINE float fsdp__powf(float x, float p)
{
    float a = x < 0.0f ? -x : x, q = p < 0.0f ? -p : p;
    int32_t k = (int32_t)(q < 0x1p24f ? q : 0.0f); /* larger ones are even; infinity, too */
    float rest = q < 0x1p24f ? q - (float)k : 0.0f;
    uint32_t sign = rest == 0.0f ? fsdp__float_bits(x) & (uint32_t)k << 31 : 0u;
    float y = (float)fsdp__pow_magnitude(a, p);

    y = x != x ? x : y;
    y = a == 1.0f ? 1.0f : y;
    y = p != p && x != 1.0f ? p : y;
    y = p == 0.0f ? 1.0f : y;
    float root = x < 0.0f ? __builtin_nanf("") : y; /* of a number below 0, but for -infinity */
    root = a > 3.4028235e38f ? y : root;
    return rest != 0.0f ? root : fsdp__bits_float(fsdp__float_bits(y) ^ sign);
}

/* Error function within 2 ulp. */
FSDP__INLINE float fsdp__erff(float x)
{
    float t = x < 0.0f ? -x : x, s = x * x;

    float r = -1.72853470e-5f * t + 3.83197126e-4f;
    float u = -3.88396438e-3f * t + 2.42546219e-2f;
    r = r * s + u;
    r = r * t - 1.06777877e-1f;
    r = r * t - 6.34846687e-1f;
    r = r * t - 1.28717512e-1f;
    r = r * t - t;
    r = 1.0f - fsdp__expf(t > 4.0f ? -18.0f : r);
    float large = x < 0.0f ? -r : r;

    float q = -5.96761703e-4f;
    q = q * s + 4.99119423e-3f;
    q = q * s - 2.67681349e-2f;
    q = q * s + 1.12819925e-1f;
    q = q * s - 3.76125336e-1f;
    q = q * s + 1.28379166e-1f;
    float small = q * x + x;

    return t > 0.927734375f ? large : small;
}

/* Sine and cosine within 2 ulp for |x| < 1e6: the angle is reduced in double. */
FSDP__INLINE void fsdp__sincosf(float x, float *sine, float *cosine)
{
    double q = (double)x * 0.63661977236758134308 + 6755399441055744.0; /* 1.5 * 2^52 rounds to an integer */
    double n = q - 6755399441055744.0;
    float r = (float)((double)x - n * 1.57079632679489661923), s = r * r;
    int32_t quadrant = (int32_t)n;

    float sin_r = ((-1.9515295891e-4f * s + 8.3321608736e-3f) * s - 1.6666654611e-1f) * s * r + r;
    float cos_r =
        ((2.443315711809948e-5f * s - 1.388731625493765e-3f) * s + 4.166664568298827e-2f) * s * s - 0.5f * s + 1.0f;
    float a = quadrant & 1 ? cos_r : sin_r, b = quadrant & 1 ? sin_r : cos_r;
    *sine = quadrant & 2 ? -a : a;
    *cosine = (quadrant + 1) & 2 ? -b : b;
}

#endif
