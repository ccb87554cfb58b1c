/* places.cuh - operands of any strides: where each has the element that belongs to an element of the result. */
#pragma once

#include "backend/cuda/kernels/pack.cuh"

/* The elements of a row-major result and the strides of COUNT operands; dimensions that continue each other in all of
 * them are joined, and those of one element dropped. */
template <int COUNT>
struct places {
    int ndim; /* at least 1 */
    int64_t numel, shape[6], strides[COUNT][6];
    divisor by[6];
};

template <int COUNT>
static places<COUNT> places_of(int ndim, const int64_t *shape, const int64_t *const (&strides)[COUNT])
{
    places<COUNT> p = {};

    p.numel = 1;
    for (int d = 0; d < ndim; d++) {
        int last = p.ndim - 1;
        bool joins = last >= 0;

        p.numel *= shape[d];
        if (shape[d] == 1)
            continue;
        for (int s = 0; s < COUNT; s++)
            joins = joins && p.strides[s][last] == shape[d] * strides[s][d];
        last = joins ? last : p.ndim++;
        p.shape[last] = joins ? p.shape[last] * shape[d] : shape[d];
        for (int s = 0; s < COUNT; s++)
            p.strides[s][last] = strides[s][d];
    }
    if (p.ndim == 0)
        p.ndim = 1, p.shape[0] = p.numel;
    for (int d = 0; d < p.ndim && p.numel > 0; d++)
        p.by[d] = divisor_of(p.shape[d], p.numel);
    return p;
}

/* Sets `at` to the places of element i. */
template <int COUNT>
DEVICE void find_places(const places<COUNT> &p, int64_t i, int64_t *at)
{
    UNROLL
    for (int s = 0; s < COUNT; s++)
        at[s] = 0;
    for (int d = p.ndim - 1; d >= 0; d--) {
        int64_t rest = d > 0 ? quotient(i, p.by[d]) : 0, index = i - rest * p.shape[d];

        UNROLL
        for (int s = 0; s < COUNT; s++)
            at[s] += index * p.strides[s][d];
        i = rest;
    }
}
