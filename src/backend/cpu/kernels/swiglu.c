/* swiglu.c - the gated pair of a feed-forward: silu(gate) * up, Llama's, or gelu(gate) * up, Gemma's. */
#include "backend/cpu/kernels/mathf.h"

FSDP__INLINE void forward_row(fsdp_dtype dtype, bool gelu, const void *gate, const void *up, void *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = fsdp__load(dtype, gate, i);
        fsdp__store(dtype, y, i, g * fsdp__sigmoidf(gelu ? fsdp__gelu_argument(g) : g) * fsdp__load(dtype, up, i));
    }
}

FSDP__INLINE void backward_row(fsdp_dtype dtype, bool gelu, const void *gate, const void *up, const void *dy,
                               void *dgate, void *dup, void *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = fsdp__load(dtype, gate, i), u = fsdp__load(dtype, up, i), d = fsdp__load(dtype, dy, i);
        float s = fsdp__sigmoidf(gelu ? fsdp__gelu_argument(g) : g);
        float slope = gelu ? 1.5957691216f * (1.0f + 3.0f * 0.044715f * g * g) : 1.0f;
        fsdp__store(dtype, dgate, i, d * u * s * (1.0f + g * (1.0f - s) * slope));
        fsdp__store(dtype, dup, i, d * g * s);
        if (y)
            fsdp__store(dtype, y, i, g * s * u);
    }
}

FSDP__RANGE_KERNEL(swiglu_forward, a, a->rows, a->cols)
{
    for (int64_t r = begin; r < end; r++) {
#define ROW(T, gelu)                                                                               \
    forward_row(T, gelu, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                fsdp__at(T, a->y, r * a->y_row), a->cols)
        if (a->gelu)
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, true))
        else
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, false));
#undef ROW
    }
}

FSDP__RANGE_KERNEL(swiglu_backward, a, a->rows, a->cols)
{
    for (int64_t r = begin; r < end; r++) {
#define ROW(T, gelu, y)                                                                             \
    backward_row(T, gelu, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                 fsdp__at(T, a->dy, r * a->dy_row), fsdp__at(T, a->dgate, r * a->dgate_row),        \
                 fsdp__at(T, a->dup, r * a->dup_row), y, a->cols)
        if (a->gelu && a->y)
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, true, fsdp__at(T, a->y, r * a->y_row)))
        else if (a->gelu)
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, true, NULL))
        else if (a->y)
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, false, fsdp__at(T, a->y, r * a->y_row)))
        else
            FSDP__EACH_FLOAT(a->dtype, T, ROW(T, false, NULL));
#undef ROW
    }
}
