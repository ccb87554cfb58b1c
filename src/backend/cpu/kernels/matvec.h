/* matvec.h - the matrix product with one row: a vector and a matrix, which is read once and never copied.
 *
 * It takes as long as reading the matrix from memory, so elements of 16 bits are widened in registers. Every element of
 * C is one sum, made by one thread in an order that does not depend on the number of threads. */
#pragma once

#include "backend/cpu/kernels/dtype.h"

enum {
    FSDP__VEC_RUNS = 4,    /* runs of the matrix that are read at the same time */
    FSDP__VEC_COLS = 1024, /* columns of C that are summed at the same time if rows of the matrix are runs */
    FSDP__VEC_UNIT = 16    /* a thread's columns are a multiple of this */
};

typedef struct fsdp__matvec {
    const fsdp__matmul_args *k;
    const float *x; /* the row of A, as f32 */
} fsdp__matvec;

/* Returns whether the product is one that this file computes. */
FSDP__INLINE bool fsdp__is_matvec(const fsdp__matmul_args *k)
{
    return k->m == 1 && k->batch == 1 && k->k > 0 && (k->b_row == 1 || k->b_col == 1);
}

/* Puts a sum into C, with the factor, the bias and what C already has. */
FSDP__INLINE void fsdp__matvec_store(const fsdp__matmul_args *k, int64_t j, float sum)
{
    sum *= k->alpha;
    if (k->bias) {
        FSDP__EACH_FLOAT(k->bias_dtype, T, sum += fsdp__load(T, k->bias, j));
    }
#define STORE(T)                       \
    if (k->accumulate)                 \
        sum += fsdp__load(T, k->c, j); \
    fsdp__store(T, k->c, j, sum)
    FSDP__EACH_FLOAT(k->c_dtype, T, STORE(T));
#undef STORE
}

/* ---- columns of the matrix are runs: a dot product for each ---- */

FSDP__INLINE void fsdp__dot_four(fsdp_dtype dtype, const float *restrict x, const void *b, int64_t run, int64_t n,
                                 float out[FSDP__VEC_RUNS])
{
    const void *b1 = fsdp__at(dtype, b, run), *b2 = fsdp__at(dtype, b, 2 * run), *b3 = fsdp__at(dtype, b, 3 * run);
    float s0 = 0.0f, s1 = 0.0f, s2 = 0.0f, s3 = 0.0f;

#pragma omp simd reduction(+ : s0, s1, s2, s3)
    for (int64_t p = 0; p < n; p++) {
        s0 += x[p] * fsdp__load(dtype, b, p);
        s1 += x[p] * fsdp__load(dtype, b1, p);
        s2 += x[p] * fsdp__load(dtype, b2, p);
        s3 += x[p] * fsdp__load(dtype, b3, p);
    }
    out[0] = s0, out[1] = s1, out[2] = s2, out[3] = s3;
}

FSDP__INLINE float fsdp__dot(fsdp_dtype dtype, const float *restrict x, const void *b, int64_t n)
{
    float sum = 0.0f;

#pragma omp simd reduction(+ : sum)
    for (int64_t p = 0; p < n; p++)
        sum += x[p] * fsdp__load(dtype, b, p);
    return sum;
}

/* Computes elements [first, first + count) of C. */
static inline void fsdp__matvec_dots(const fsdp__matvec *v, int64_t first, int64_t count)
{
    const fsdp__matmul_args *k = v->k;
    float sums[FSDP__VEC_RUNS];
    int64_t j = first;

    for (; j + FSDP__VEC_RUNS <= first + count; j += FSDP__VEC_RUNS) {
        const void *b = fsdp__at(k->b_dtype, k->b, j * k->b_col);
        FSDP__EACH_FLOAT(k->b_dtype, T, fsdp__dot_four(T, v->x, b, k->b_col, k->k, sums));
        for (int i = 0; i < FSDP__VEC_RUNS; i++)
            fsdp__matvec_store(k, j + i, sums[i]);
    }
    for (; j < first + count; j++) {
        const void *b = fsdp__at(k->b_dtype, k->b, j * k->b_col);
        FSDP__EACH_FLOAT(k->b_dtype, T, sums[0] = fsdp__dot(T, v->x, b, k->k));
        fsdp__matvec_store(k, j, sums[0]);
    }
}

/* ---- rows of the matrix are runs: they are added, each times an element of the vector ---- */

FSDP__INLINE void fsdp__add_four(fsdp_dtype dtype, const float *restrict x, const void *b, int64_t run, int64_t n,
                                 float *restrict sums)
{
    const void *b1 = fsdp__at(dtype, b, run), *b2 = fsdp__at(dtype, b, 2 * run), *b3 = fsdp__at(dtype, b, 3 * run);
    float x0 = x[0], x1 = x[1], x2 = x[2], x3 = x[3];

#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        sums[j] += (x0 * fsdp__load(dtype, b, j) + x1 * fsdp__load(dtype, b1, j)) +
                   (x2 * fsdp__load(dtype, b2, j) + x3 * fsdp__load(dtype, b3, j));
}

FSDP__INLINE void fsdp__add_one(fsdp_dtype dtype, float x, const void *b, int64_t n, float *restrict sums)
{
#pragma omp simd
    for (int64_t j = 0; j < n; j++)
        sums[j] += x * fsdp__load(dtype, b, j);
}

/* Computes the same elements of C; at most VEC_COLS. */
static inline void fsdp__matvec_sums(const fsdp__matvec *v, int64_t first, int64_t count)
{
    const fsdp__matmul_args *k = v->k;
    float sums[FSDP__VEC_COLS];
    int64_t p = 0;

    memset(sums, 0, (size_t)count * sizeof *sums);
    for (; p + FSDP__VEC_RUNS <= k->k; p += FSDP__VEC_RUNS) {
        const void *b = fsdp__at(k->b_dtype, k->b, p * k->b_row + first);
        FSDP__EACH_FLOAT(k->b_dtype, T, fsdp__add_four(T, v->x + p, b, k->b_row, count, sums));
    }
    for (; p < k->k; p++) {
        const void *b = fsdp__at(k->b_dtype, k->b, p * k->b_row + first);
        FSDP__EACH_FLOAT(k->b_dtype, T, fsdp__add_one(T, v->x[p], b, count, sums));
    }
    for (int64_t j = 0; j < count; j++)
        fsdp__matvec_store(k, first + j, sums[j]);
}

/* ---- the whole product ---- */

static fsdp_status fsdp__matvec_run(fsdp_stream *stream, const fsdp__matmul_args *k)
{
    float *x = fsdp__stream_workspace(stream, (size_t)k->k * sizeof *x);
    fsdp__matvec v = {.k = k, .x = x};
    int64_t part = fsdp__round_up(fsdp__ceil_div(k->n, fsdp__threads()), FSDP__VEC_UNIT);
    bool dots = k->b_row == 1;

    if (!x)
        return FSDP_NO_MEMORY;
    for (int64_t p = 0; p < k->k; p++) {
        FSDP__EACH_FLOAT(k->a_dtype, T, x[p] = fsdp__load(T, k->a, p * k->a_col));
    }
    part = FSDP__MIN(part, FSDP__VEC_COLS);
#pragma omp parallel for schedule(static) if (k->k * k->n > FSDP__PARALLEL_MIN)
    for (int64_t first = 0; first < k->n; first += part) {
        int64_t count = FSDP__MIN(k->n - first, part);

        (dots ? fsdp__matvec_dots : fsdp__matvec_sums)(&v, first, count);
    }
    return FSDP_OK;
}
