/* rope.c - rotary position embedding, rotate_half layout. */
#include "backend/cpu/kernels/mathf.h"

/* Angles are computed for this many pairs at a time, on the stack. */
#define PAIRS 256

FSDP__INLINE void rotate(fsdp_dtype dtype, const void *x, void *y, const float *cosine, const float *sine,
                         int64_t first, int64_t n, int64_t half, bool accumulate)
{
    if (accumulate) {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float a = fsdp__load(dtype, x, first + i), b = fsdp__load(dtype, x, first + i + half);
            float c = a * cosine[i] - b * sine[i], d = b * cosine[i] + a * sine[i];
            fsdp__store(dtype, y, first + i, fsdp__load(dtype, y, first + i) + c);
            fsdp__store(dtype, y, first + i + half, fsdp__load(dtype, y, first + i + half) + d);
        }
    } else {
#pragma omp simd
        for (int64_t i = 0; i < n; i++) {
            float a = fsdp__load(dtype, x, first + i), b = fsdp__load(dtype, x, first + i + half);
            fsdp__store(dtype, y, first + i, a * cosine[i] - b * sine[i]);
            fsdp__store(dtype, y, first + i + half, b * cosine[i] + a * sine[i]);
        }
    }
}

/* Rotates all batches and heads of the times [begin, end): the angles are computed once for all of them. */
static void times(const void *args, int64_t begin, int64_t end)
{
    const fsdp__rope_args *k = args;
    int64_t half = k->head_dim / 2;
    float cosine[PAIRS], sine[PAIRS];

    for (int64_t t = begin; t < end; t++) {
        for (int64_t first = 0; first < half; first += PAIRS) {
            int64_t n = FSDP__MIN(half - first, PAIRS);
            float position = (float)(k->position0 + t), direction = k->inverse ? -1.0f : 1.0f;

#pragma omp simd
            for (int64_t i = 0; i < n; i++) {
                fsdp__sincosf(position * k->frequency[first + i], &sine[i], &cosine[i]);
                sine[i] *= direction;
            }
            for (int64_t b = 0; b < k->batch; b++) {
                for (int64_t h = 0; h < k->heads; h++) {
                    int64_t from = b * k->x_batch + t * k->x_time + h * k->x_head;
                    int64_t to = b * k->y_batch + t * k->y_time + h * k->y_head;
#define ROTATE(T) rotate(T, fsdp__at(T, k->x, from), fsdp__at(T, k->y, to), cosine, sine, first, n, half, k->accumulate)
                    FSDP__EACH_FLOAT(k->dtype, ROTATE)
#undef ROTATE
                }
            }
        }
    }
}

fsdp_status KERNEL(rope)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__rope_args *k = args;

    fsdp__for_ranges(k->time, k->batch * k->heads * k->head_dim, times, k);
    return FSDP_OK;
}
