/* softmax.c - softmax and its logarithm over the last dimension, and their backward. */
#include "backend/cpu/kernels/mathf.h"

FSDP__INLINE void forward_row(fsdp_dtype dtype, const void *x, void *y, int64_t n)
{
    float top = fsdp__largest(dtype, x, n), sum = 0.0f, factor;

    if (dtype == FSDP_F32) {
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++) {
            float e = fsdp__expf_low(fsdp__load(dtype, x, i) - top);
            fsdp__store(dtype, y, i, e);
            sum += e;
        }
        factor = 1.0f / sum;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__load(dtype, y, i) * factor);
    } else { /* e must not be rounded twice, so it is computed again */
#pragma omp simd reduction(+ : sum)
        for (int64_t i = 0; i < n; i++)
            sum += fsdp__expf_low(fsdp__load(dtype, x, i) - top);
        factor = 1.0f / sum;
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__expf_low(fsdp__load(dtype, x, i) - top) * factor);
    }
}

/* Computes y = x - max - log(sum). */
FSDP__INLINE void log_forward_row(fsdp_dtype dtype, const void *x, void *y, int64_t n)
{
    float top = fsdp__largest(dtype, x, n), sum = 0.0f, shift;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += fsdp__expf_low(fsdp__load(dtype, x, i) - top);
    shift = fsdp__logf(sum);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, y, i, fsdp__load(dtype, x, i) - top - shift);
}

FSDP__INLINE void log_backward_row(fsdp_dtype dtype, const void *y, const void *dy, void *dx, int64_t n)
{
    float sum = 0.0f;

#pragma omp simd reduction(+ : sum)
    for (int64_t i = 0; i < n; i++)
        sum += fsdp__load(dtype, dy, i);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, dx, i, fsdp__load(dtype, dy, i) - fsdp__expf(fsdp__load(dtype, y, i)) * sum);
}

FSDP__INLINE void backward_row(fsdp_dtype dtype, const void *y, const void *dy, void *dx, int64_t n)
{
    float dot = 0.0f;

#pragma omp simd reduction(+ : dot)
    for (int64_t i = 0; i < n; i++)
        dot += fsdp__load(dtype, y, i) * fsdp__load(dtype, dy, i);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        fsdp__store(dtype, dx, i, fsdp__load(dtype, y, i) * (fsdp__load(dtype, dy, i) - dot));
}

FSDP__RANGE_KERNEL(softmax_forward, k, k->rows, k->cols)
{
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * k->cols;
        if (k->log) {
            FSDP__EACH_FLOAT(k->dtype, T, log_forward_row(T, fsdp__at(T, k->x, at), fsdp__at(T, k->y, at), k->cols));
        } else {
            FSDP__EACH_FLOAT(k->dtype, T, forward_row(T, fsdp__at(T, k->x, at), fsdp__at(T, k->y, at), k->cols));
        }
    }
}

FSDP__RANGE_KERNEL(softmax_backward, k, k->rows, k->cols)
{
    for (int64_t r = begin; r < end; r++) {
        int64_t at = r * k->cols;
        if (k->log) {
            FSDP__EACH_FLOAT(
                k->dtype, T,
                log_backward_row(T, fsdp__at(T, k->y, at), fsdp__at(T, k->dy, at), fsdp__at(T, k->dx, at), k->cols));
        } else {
            FSDP__EACH_FLOAT(
                k->dtype, T,
                backward_row(T, fsdp__at(T, k->y, at), fsdp__at(T, k->dy, at), fsdp__at(T, k->dx, at), k->cols));
        }
    }
}
