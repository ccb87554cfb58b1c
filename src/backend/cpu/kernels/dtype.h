/* dtype.h - converts elements to f32 and back. `dtype` is a constant wherever speed matters. */
#pragma once

#include "backend/cpu/kernels/kernel.h"

#define FSDP__CONVERSION FSDP__INLINE
#include "device/conversions.h"

FSDP__INLINE float fsdp__load(fsdp_dtype dtype, const void *p, int64_t i)
{
    if (dtype == FSDP_F32)
        return ((const float *)p)[i];
    if (dtype == FSDP_BF16)
        return fsdp__from_bf16(((const uint16_t *)p)[i]);
    return fsdp__from_f16(((const uint16_t *)p)[i]);
}

FSDP__INLINE void fsdp__store(fsdp_dtype dtype, void *p, int64_t i, float x)
{
    if (dtype == FSDP_F32)
        ((float *)p)[i] = x;
    else if (dtype == FSDP_BF16)
        ((uint16_t *)p)[i] = fsdp__to_bf16(x);
    else
        ((uint16_t *)p)[i] = fsdp__to_f16(x);
}

/* Two numbers of 16 bits as the halves of a word: a vector of words becomes two vectors of floats, and these become one
 * again, while every number stays in its lane. `dtype` is not F32. */
typedef uint32_t fsdp__pair __attribute__((aligned(2), may_alias));

FSDP__INLINE float fsdp__low(fsdp_dtype dtype, uint32_t pair)
{
    return dtype == FSDP_BF16 ? fsdp__bits_float(pair << 16) : fsdp__from_f16((uint16_t)pair);
}

FSDP__INLINE float fsdp__high(fsdp_dtype dtype, uint32_t pair)
{
    return dtype == FSDP_BF16 ? fsdp__bits_float(pair & 0xffff0000u) : fsdp__from_f16((uint16_t)(pair >> 16));
}

FSDP__INLINE uint32_t fsdp__pair_of(fsdp_dtype dtype, float low, float high)
{
    if (dtype == FSDP_BF16)
        return fsdp__bf16_above(low) >> 16 | (fsdp__bf16_above(high) & 0xffff0000u);
    return fsdp__to_f16(low) | (uint32_t)fsdp__to_f16(high) << 16;
}

/* Returns what a store followed by a load gives. */
FSDP__INLINE float fsdp__rounded(fsdp_dtype dtype, float x)
{
    if (dtype == FSDP_F32)
        return x;
    if (dtype == FSDP_BF16)
        return fsdp__from_bf16(fsdp__to_bf16(x));
    return fsdp__from_f16(fsdp__to_f16(x));
}

FSDP__INLINE size_t fsdp__float_size(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 ? 4 : 2;
}

/* Holds one vector, of elements i, i + 1, ... */
typedef float fsdp__vector __attribute__((vector_size(4 * FSDP__LANES), aligned(4), may_alias));
typedef int32_t fsdp__mask __attribute__((vector_size(4 * FSDP__LANES), aligned(4), may_alias));

FSDP__INLINE fsdp__vector fsdp__load_vector(fsdp_dtype dtype, const void *p, int64_t i)
{
    fsdp__vector v = {0};

    if (dtype == FSDP_F32)
        return *(const fsdp__vector *)((const float *)p + i);
    for (int l = 0; l < FSDP__LANES; l++)
        v[l] = fsdp__load(dtype, p, i + l);
    return v;
}

/* Returns the largest of n elements; -infinity if there is none; NaNs do not count. It is vectorised by hand: compilers
 * do not vectorise a maximum that must respect NaN. */
FSDP__INLINE float fsdp__largest(fsdp_dtype dtype, const void *p, int64_t n)
{
    fsdp__vector a = (fsdp__vector){0} - __builtin_inff(), b = a;
    float largest = -__builtin_inff();
    int64_t i = 0;

    for (; i + 2 * FSDP__LANES <= n; i += 2 * FSDP__LANES) {
        fsdp__vector u = fsdp__load_vector(dtype, p, i), v = fsdp__load_vector(dtype, p, i + FSDP__LANES);
        fsdp__mask more_u = u > a, more_v = v > b;
        a = (fsdp__vector)((more_u & (fsdp__mask)u) | (~more_u & (fsdp__mask)a));
        b = (fsdp__vector)((more_v & (fsdp__mask)v) | (~more_v & (fsdp__mask)b));
    }
    for (int l = 0; l < FSDP__LANES; l++) {
        largest = a[l] > largest ? a[l] : largest;
        largest = b[l] > largest ? b[l] : largest;
    }
    for (; i < n; i++) {
        float x = fsdp__load(dtype, p, i);
        largest = x > largest ? x : largest;
    }
    return largest;
}

/* Returns the address of element `i` of p. */
FSDP__INLINE void *fsdp__at(fsdp_dtype dtype, const void *p, int64_t i)
{
    return (char *)p + i * (int64_t)fsdp__float_size(dtype);
}

/* Convert n contiguous elements to f32 and from f32. */
static inline void fsdp__widen(fsdp_dtype dtype, const void *restrict src, int64_t n, float *restrict dst)
{
    FSDP__EACH_FLOAT(dtype, T, for (int64_t i = 0; i < n; i++) dst[i] = fsdp__load(T, src, i));
}

static inline void fsdp__narrow(fsdp_dtype dtype, const float *restrict src, int64_t n, void *restrict dst)
{
    FSDP__EACH_FLOAT(dtype, T, for (int64_t i = 0; i < n; i++) fsdp__store(T, dst, i, src[i]));
}
