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
