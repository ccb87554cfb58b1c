/* swiglu.c - the gated pair of Llama's feed-forward: silu(gate) * up. */
#include "backend/cpu/kernels/mathf.h"

FSDP__INLINE void forward_row(fsdp_dtype dtype, const void *gate, const void *up, void *y, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = fsdp__load(dtype, gate, i);
        fsdp__store(dtype, y, i, g * fsdp__sigmoidf(g) * fsdp__load(dtype, up, i));
    }
}

FSDP__INLINE void backward_row(fsdp_dtype dtype, const void *gate, const void *up, const void *dy, void *dgate,
                               void *dup, int64_t n)
{
#pragma omp simd
    for (int64_t i = 0; i < n; i++) {
        float g = fsdp__load(dtype, gate, i), u = fsdp__load(dtype, up, i), d = fsdp__load(dtype, dy, i);
        float s = fsdp__sigmoidf(g);
        fsdp__store(dtype, dgate, i, d * u * s * (1.0f + g * (1.0f - s)));
        fsdp__store(dtype, dup, i, d * g * s);
    }
}

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__swiglu_forward_args *a = args;

    for (int64_t r = begin; r < end; r++) {
#define ROW(T)                                                                               \
    forward_row(T, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                fsdp__at(T, a->y, r * a->y_row), a->cols)
        FSDP__EACH_FLOAT(a->dtype, ROW)
#undef ROW
    }
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__swiglu_backward_args *a = args;

    for (int64_t r = begin; r < end; r++) {
#define ROW(T)                                                                                \
    backward_row(T, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                 fsdp__at(T, a->dy, r * a->dy_row), fsdp__at(T, a->dgate, r * a->dgate_row),  \
                 fsdp__at(T, a->dup, r * a->dup_row), a->cols)
        FSDP__EACH_FLOAT(a->dtype, ROW)
#undef ROW
    }
}

fsdp_status KERNEL(swiglu_forward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__swiglu_forward_args *a = args;

    fsdp__for_ranges(a->rows, a->cols, forward_range, a);
    return FSDP_OK;
}

fsdp_status KERNEL(swiglu_backward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__swiglu_backward_args *a = args;

    fsdp__for_ranges(a->rows, a->cols, backward_range, a);
    return FSDP_OK;
}
