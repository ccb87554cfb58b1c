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

/* Copies, or adds, elements [first, n) of a head, which do not rotate. */
FSDP__INLINE void keep_rest(fsdp_dtype dtype, const void *x, void *y, int64_t first, int64_t n, bool accumulate)
{
    if (accumulate)
        for (int64_t i = first; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__load(dtype, y, i) + fsdp__load(dtype, x, i));
    else if (x != y)
        for (int64_t i = first; i < n; i++)
            fsdp__store(dtype, y, i, fsdp__load(dtype, x, i));
}

/* Holds the angles of the pairs [first, first + n) at a position. */
typedef struct angles {
    int64_t first, n;
    float cosine[PAIRS], sine[PAIRS];
} angles;

static void turn(const fsdp__rope_args *k, int64_t position, angles *a)
{
    float at = (float)position, scale = k->scale != 0 ? k->scale : 1.0f, direction = k->inverse ? -scale : scale;

#pragma omp simd
    for (int64_t i = 0; i < a->n; i++) {
        fsdp__sincosf(at * k->frequency[a->first + i], &a->sine[i], &a->cosine[i]);
        a->sine[i] *= direction;
        a->cosine[i] *= scale;
    }
}

/* Rotates those pairs of all heads of a token. */
static void rotate_heads(const fsdp__rope_args *k, int64_t rotated, int64_t b, int64_t t, const angles *a)
{
    for (int64_t h = 0; h < k->heads; h++) {
        int64_t from = b * k->x_batch + t * k->x_time + h * k->x_head;
        int64_t to = b * k->y_batch + t * k->y_time + h * k->y_head;
#define ROTATE(T)                                                                                              \
    rotate(T, fsdp__at(T, k->x, from), fsdp__at(T, k->y, to), a->cosine, a->sine, a->first, a->n, rotated / 2, \
           k->accumulate);                                                                                     \
    if (a->first == 0 && rotated < k->head_dim)                                                                \
    keep_rest(T, fsdp__at(T, k->x, from), fsdp__at(T, k->y, to), rotated, k->head_dim, k->accumulate)
        FSDP__EACH_FLOAT(k->dtype, T, ROTATE(T));
#undef ROTATE
    }
}

/* Rotates all batches and heads of the times [begin, end): the angles are computed once for all batches that have the
 * same position. */
static void times(const void *args, int64_t begin, int64_t end)
{
    const fsdp__rope_args *k = args;
    int64_t rotated = k->rotated > 0 ? k->rotated : k->head_dim;
    angles a;

    for (int64_t t = begin; t < end; t++) {
        for (a.first = 0; a.first < rotated / 2; a.first += PAIRS) {
            int64_t known = -1;

            a.n = FSDP__MIN(rotated / 2 - a.first, PAIRS);
            for (int64_t b = 0; b < k->batch; b++) {
                int64_t position = k->positions ? k->positions[b * k->time + t] : k->position0 + t;

                if (b == 0 || position != known)
                    turn(k, position, &a);
                known = position;
                rotate_heads(k, rotated, b, t, &a);
            }
        }
    }
}

FSDP__KERNEL(rope, k)
{
    fsdp__for_ranges(k->time, k->batch * k->heads * k->head_dim, times, k);
    return FSDP_OK;
}
