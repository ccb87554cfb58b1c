/* halves.cuh - packs of f32 that lie in halves: [Note: split numbers] in device/formulas.h. */
#pragma once

#include "backend/cuda/kernels/formulas.cuh"
#include "backend/cuda/kernels/pack.cuh"

enum {
    HALVES = ACCESS / sizeof(uint16_t) /* of a pack */
};

DEVICE void load_halves(const uint16_t *high, const uint16_t *low, int64_t n, float (&x)[HALVES])
{
    pack<uint16_t, HALVES> h = get<HALVES>(high, n), l = get<HALVES>(low, n);

    UNROLL
    for (int i = 0; i < HALVES; i++)
        x[i] = fsdp__bits_float(fsdp__split_whole(h.at[i], l.at[i]));
}

DEVICE void store_halves(uint16_t *high, uint16_t *low, int64_t n, const float (&x)[HALVES])
{
    pack<uint16_t, HALVES> h, l;

    UNROLL
    for (int i = 0; i < HALVES; i++) {
        h.at[i] = (uint16_t)fsdp__split_high(fsdp__float_bits(x[i]));
        l.at[i] = (uint16_t)fsdp__split_low(fsdp__float_bits(x[i]));
    }
    put(high, n, h);
    put(low, n, l);
}
