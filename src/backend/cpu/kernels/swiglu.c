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

static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__swiglu_forward_args *a = args;

    for (int64_t r = begin; r < end; r++) {
#define ROW(T, gelu)                                                                               \
    forward_row(T, gelu, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                fsdp__at(T, a->y, r * a->y_row), a->cols)
#define SILU(T) ROW(T, false)
#define GELU(T) ROW(T, true)
        if (a->gelu)
            FSDP__EACH_FLOAT(a->dtype, GELU)
        else
            FSDP__EACH_FLOAT(a->dtype, SILU)
#undef ROW
#undef SILU
#undef GELU
    }
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__swiglu_backward_args *a = args;

    for (int64_t r = begin; r < end; r++) {
#define ROW(T, gelu, y)                                                                             \
    backward_row(T, gelu, fsdp__at(T, a->gate, r * a->gate_row), fsdp__at(T, a->up, r * a->up_row), \
                 fsdp__at(T, a->dy, r * a->dy_row), fsdp__at(T, a->dgate, r * a->dgate_row),        \
                 fsdp__at(T, a->dup, r * a->dup_row), y, a->cols)
#define SILU(T) ROW(T, false, NULL)
#define GELU(T) ROW(T, true, NULL)
#define SILU_AGAIN(T) ROW(T, false, fsdp__at(T, a->y, r * a->y_row))
#define GELU_AGAIN(T) ROW(T, true, fsdp__at(T, a->y, r * a->y_row))
        if (a->gelu && a->y)
            FSDP__EACH_FLOAT(a->dtype, GELU_AGAIN)
        else if (a->gelu)
            FSDP__EACH_FLOAT(a->dtype, GELU)
        else if (a->y)
            FSDP__EACH_FLOAT(a->dtype, SILU_AGAIN)
        else
            FSDP__EACH_FLOAT(a->dtype, SILU)
#undef ROW
#undef SILU
#undef GELU
#undef SILU_AGAIN
#undef GELU_AGAIN
    }
}

FSDP__RANGE_KERNEL(swiglu_forward, forward_range, k->rows, k->cols)
FSDP__RANGE_KERNEL(swiglu_backward, backward_range, k->rows, k->cols)
