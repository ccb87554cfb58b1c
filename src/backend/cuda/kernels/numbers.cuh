/* numbers.cuh - elements of any dtypes, one by one. */
#pragma once

#include "backend/cuda/kernels/kernel.cuh"

/* Holds a number of any dtype: integers are exact. */
struct number {
    float real;
    int64_t integer;
    bool exact;
};

DEVICE number number_at(fsdp_dtype dtype, const void *p, int64_t i)
{
    switch (dtype) {
    case FSDP_F32:
        return number{((const float *)p)[i], 0, false};
    case FSDP_BF16:
        return number{load((const bf16 *)p, i), 0, false};
    case FSDP_F16:
        return number{load((const f16 *)p, i), 0, false};
    case FSDP_I32:
        return number{0.0f, ((const int32_t *)p)[i], true};
    case FSDP_I64:
        return number{0.0f, ((const int64_t *)p)[i], true};
    case FSDP_U8:
        return number{0.0f, ((const uint8_t *)p)[i], true};
    default:
        return number{0.0f, ((const uint8_t *)p)[i] != 0, true};
    }
}

DEVICE void put_number(fsdp_dtype dtype, void *p, int64_t i, number x)
{
    float real = x.exact ? (float)x.integer : x.real;

    if (!x.exact) /* what no integer can hold becomes the smallest */
        x.integer = x.real >= -0x1p63f && x.real < 0x1p63f ? (int64_t)x.real : INT64_MIN;
    switch (dtype) {
    case FSDP_F32:
        ((float *)p)[i] = real;
        break;
    case FSDP_BF16:
        store((bf16 *)p, i, real);
        break;
    case FSDP_F16:
        store((f16 *)p, i, real);
        break;
    case FSDP_I32:
        ((int32_t *)p)[i] = (int32_t)x.integer;
        break;
    case FSDP_I64:
        ((int64_t *)p)[i] = x.integer;
        break;
    case FSDP_U8:
        ((uint8_t *)p)[i] = (uint8_t)x.integer;
        break;
    default:
        ((uint8_t *)p)[i] = x.exact ? x.integer != 0 : x.real != 0.0f;
    }
}
