/* elementwise.c - scale, fill. */
#include "backend/cpu/kernels/dtype.h"

FSDP__INLINE void scale_row(fsdp_dtype dtype, const void *x, void *y, float factor, bool accumulate, int64_t n)
{
    if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, factor * fsdp__load(dtype, x, i) + fsdp__load(dtype, y, i));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, factor * fsdp__load(dtype, x, i));
    }
}

FSDP__RANGE_KERNEL(scale, k, k->numel, 1)
{
    float factor = k->scalar ? k->alpha * *k->scalar : k->alpha;

    FSDP__EACH_FLOAT(
        k->dtype, T,
        scale_row(T, fsdp__at(T, k->x, begin), fsdp__at(T, k->y, begin), factor, k->accumulate, end - begin));
}

FSDP__RANGE_KERNEL(fill, k, k->numel, 1)
{
    uint16_t half;

#define FILL(type, value)                     \
    do {                                      \
        type v = (type)(value);               \
        for (int64_t i = begin; i < end; i++) \
            ((type *)k->dst)[i] = v;          \
    } while (0)
    switch (k->dtype) {
    case FSDP_F32:
        FILL(float, k->value);
        break;
    case FSDP_BF16:
    case FSDP_F16:
        half = k->dtype == FSDP_BF16 ? fsdp__to_bf16((float)k->value) : fsdp__to_f16((float)k->value);
        FILL(uint16_t, half);
        break;
    case FSDP_I32:
        FILL(int32_t, k->value);
        break;
    case FSDP_I64:
        FILL(int64_t, k->value);
        break;
    case FSDP_U8:
        FILL(uint8_t, (int64_t)k->value);
        break;
    default:
        FILL(uint8_t, k->value != 0.0);
    }
#undef FILL
}
