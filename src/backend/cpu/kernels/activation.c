/* activation.c - y = f(x + bias) and its backward. */
#include "backend/cpu/kernels/mathf.h"

FSDP__INLINE void forward_row(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, void *y,
                              int64_t n)
{
    if (bias) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__activate(kind, fsdp__load(dtype, x, i) + fsdp__load(dtype, bias, i)));
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__activate(kind, fsdp__load(dtype, x, i)));
    }
}

FSDP__INLINE void backward_row(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, const void *dy,
                               void *dx, int64_t n)
{
    if (bias) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float v = fsdp__load(dtype, x, i) + fsdp__load(dtype, bias, i);
            fsdp__store(dtype, dx, i, fsdp__load(dtype, dy, i) * fsdp__activation_derivative(kind, v));
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, dx, i,
                        fsdp__load(dtype, dy, i) * fsdp__activation_derivative(kind, fsdp__load(dtype, x, i)));
    }
}

static void forward_any(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, void *y, int64_t n)
{
#define ROW(K)                            \
    case K:                               \
        forward_row(T, K, x, bias, y, n); \
        break;
    FSDP__EACH_FLOAT(dtype, T, switch (kind){FSDP__EACH_ACTIVATION(ROW)});
#undef ROW
}

static void backward_any(fsdp_dtype dtype, fsdp__activation kind, const void *x, const void *bias, const void *dy,
                         void *dx, int64_t n)
{
#define ROW(K)                                  \
    case K:                                     \
        backward_row(T, K, x, bias, dy, dx, n); \
        break;
    FSDP__EACH_FLOAT(dtype, T, switch (kind){FSDP__EACH_ACTIVATION(ROW)});
#undef ROW
}

/* Computes a range. Without a bias rows do not matter: begin and end count elements, otherwise rows. */
static void forward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__activation_forward_args *a = args;

    if (!a->bias) {
        forward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, begin), NULL, fsdp__at(a->dtype, a->y, begin),
                    end - begin);
        return;
    }
    for (int64_t r = begin; r < end; r++)
        forward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, r * a->cols), a->bias,
                    fsdp__at(a->dtype, a->y, r * a->cols), a->cols);
}

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__activation_backward_args *a = args;

    if (!a->bias) {
        backward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, begin), NULL, fsdp__at(a->dtype, a->dy, begin),
                     fsdp__at(a->dtype, a->dx, begin), end - begin);
        return;
    }
    for (int64_t r = begin; r < end; r++)
        backward_any(a->dtype, a->kind, fsdp__at(a->dtype, a->x, r * a->cols), a->bias,
                     fsdp__at(a->dtype, a->dy, r * a->cols), fsdp__at(a->dtype, a->dx, r * a->cols), a->cols);
}

FSDP__KERNEL(activation_forward, a)
{
    if (a->bias)
        fsdp__for_ranges(a->rows, a->cols, forward_range, a);
    else
        fsdp__for_ranges(a->rows * a->cols, 1, forward_range, a);
    return FSDP_OK;
}

FSDP__KERNEL(activation_backward, a)
{
    if (a->bias)
        fsdp__for_ranges(a->rows, a->cols, backward_range, a);
    else
        fsdp__for_ranges(a->rows * a->cols, 1, backward_range, a);
    return FSDP_OK;
}
