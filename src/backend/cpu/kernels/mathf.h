/* mathf.h - elementary functions that the compiler can put into vectors: no branches, no calls, no tables. */
#pragma once

#include "backend/cpu/kernels/dtype.h"

/* Computes e^x for x that is not above 88: within 2 ulp, 0 below -87.3, NaN for NaN. */
FSDP__INLINE float fsdp__expf_low(float x)
{
    float c = x < -88.0f ? -88.0f : x;
    /* Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits. */
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

/* Does the same for every x: infinity above 88.3. */
FSDP__INLINE float fsdp__expf(float x)
{
    return fsdp__expf_low(x > 89.0f ? 89.0f : x);
}

/* Computes tanh within 2 ulp: near 0 by a polynomial, since the quotient loses the digits there. */
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

/* Returns m of x = m 2^e with m in [sqrt(1/2), sqrt(2)), for a normal x above 0. */
FSDP__INLINE float fsdp__mantissa(float x, int32_t *exponent)
{
    uint32_t bits = fsdp__float_bits(x) - 0x3f3504f3u; /* sqrt(1/2) */

    *exponent = (int32_t)bits >> 23;
    return fsdp__bits_float((bits & 0x7fffffu) + 0x3f3504f3u);
}

/* Computes the natural logarithm within 2 ulp; -infinity for 0, NaN below. */
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

/* Computes log(1 + x), and puts back what 1 + x has lost of x. */
FSDP__INLINE float fsdp__log1pf(float x)
{
    float u = 1.0f + x, lost = (u - 1.0f) - x;
    float y = fsdp__logf(u);

    return u > 0.0f && u <= 3.4028235e38f ? y - lost / u : y;
}

/* Returns what rounding took from a b when it became `product`. */
FSDP__INLINE float fsdp__product_rest(float a, float b, float product)
{
#if defined(__FMA__) || defined(__FP_FAST_FMAF)
    return __builtin_fmaf(a, b, -product);
#else
    return (float)((double)a * (double)b - (double)product);
#endif
}

/* Computes p log2 a, for a that is not below 0, as a sum of two floats: what rounding takes is put into the second, so
 * that the power is right however large the exponent is. For a of 0 and infinity only the first is a number. */
FSDP__INLINE float fsdp__log2_times(float a, float p, float *low)
{
    int32_t e;
    bool small = a < 0x1p-126f;
    float f = fsdp__mantissa(small ? a * 0x1p23f : a, &e) - 1.0f, n = (float)(small ? e - 23 : e);
    /* log2(1 + f) = s (c1 + t (c3 + t (...))) with s = f / (2 + f), t = s s and c_k = 2 / (k ln 2) */
    const float c1 = 0x1.715476p+1f, c1_low = 0x1.4ae0cp-25f, c3 = 0x1.ec709ep-1f, c3_low = -0x1.e2fe02p-28f;
    float d = f + 2.0f, d_low = f - (d - 2.0f), inverse = 1.0f / d;
    float s = f * inverse, s_low = (fsdp__product_rest(-s, d, -f) - s * d_low) * inverse;
    float t = s * s, t_low = fsdp__product_rest(s, s, t) + 2.0f * s * s_low;
    float tail = 0.26230818f;

    tail = tail * t + 0.32059889f;
    tail = tail * t + 0.41219859f;
    tail = (tail * t + 0.57707802f) * t;
    float q = tail + c3, q_low = (c3 - q) + tail + c3_low;
    float u = t * q, u_low = fsdp__product_rest(t, q, u) + (t * q_low + t_low * q);
    float v = u + c1, v_low = (c1 - v) + u + (u_low + c1_low);
    float l = s * v, l_low = fsdp__product_rest(s, v, l) + (s * v_low + s_low * v);
    float y = n + l, y_low = (n - y) + l + l_low;
    y = a == 0.0f ? -__builtin_inff() : y;
    y = a > 3.4028235e38f ? __builtin_inff() : y;
    float high = p * y;
    *low = fsdp__product_rest(p, y, high) + p * y_low;
    return high;
}

/* Computes 2^(x + low): 0 below 2^-126, infinity from 2^128 on. */
FSDP__INLINE float fsdp__exp2f(float x, float low)
{
    const float c1 = 6.931471825e-1f;
    float shifted = x + 12582912.0f; /* 1.5 * 2^23 rounds to an integer, in the low bits */
    float r = x - (shifted - 12582912.0f), z = r + low;
    float p = 1.547270222e-4f;

    p = p * z + 1.339167007e-3f;
    p = p * z + 9.618019685e-3f;
    p = p * z + 5.550358072e-2f;
    p = p * z + 2.402265072e-1f;
    float b = r * c1, b_low = fsdp__product_rest(r, c1, b) + (low * c1 + z * z * p);
    float y = 1.0f + b;
    y += (1.0f - y) + b + b_low;
    y = fsdp__bits_float(fsdp__float_bits(y) + (fsdp__float_bits(shifted) << 23));
    y = x >= 128.0f ? __builtin_inff() : y;
    return x < -126.0f ? 0.0f : y;
}

/* Returns x^p as C's powf does, given y, which is |x|^p for usual numbers: within 1 ulp; what would be denormal is 0.
 */
FSDP__INLINE float fsdp__pow_of(float x, float p, float y)
{
    float a = fsdp__bits_float(fsdp__float_bits(x) & 0x7fffffffu);
    float q = fsdp__bits_float(fsdp__float_bits(p) & 0x7fffffffu);
    int32_t k = (int32_t)(q < 0x1p24f ? q : 0.0f); /* larger ones are even; infinity, too */
    bool whole = (float)k == q || !(q < 0x1p24f);
    uint32_t sign = whole ? fsdp__float_bits(x) & (uint32_t)k << 31 : 0u;

    y = a == 1.0f ? 1.0f : y;
    y = !whole && x < 0.0f && a <= 3.4028235e38f ? __builtin_nanf("") : y;
    y = __builtin_isunordered(x, p) ? __builtin_nanf("") : y;
    y = x == 1.0f || p == 0.0f ? 1.0f : y;
    return fsdp__bits_float(fsdp__float_bits(y) ^ sign);
}

/* Computes the error function within 2 ulp. */
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

/* Computes sine and cosine within 2 ulp for |x| < 1e6: the angle is reduced in double. */
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

#define FSDP__FORMULA FSDP__INLINE
#define fsdp__dividef(a, b) ((a) / (b))
#include "device/formulas.h"
