/* operand.h - an operand with any strides, in contiguous pieces of f32 (integers: of i64).
 *
 * Kernels of broadcast operands walk the elements of their result in order, a piece at a time. Each operand gives its
 * elements of the piece: in place if they are contiguous f32, else in a buffer in the first-level cache. So a function
 * is one loop over f32, whatever the dtypes and strides are. */
#pragma once

#include "backend/cpu/kernels/dtype.h"

enum {
    FSDP__PIECE = 1024 /* elements */
};

/* An operand; adjacent dimensions that continue each other are joined. */
typedef struct fsdp__operand {
    const void *data;
    fsdp_dtype dtype;
    int ndim; /* at least 1 */
    int64_t shape[6], strides[6];
} fsdp__operand;

static inline fsdp__operand fsdp__operand_of(const void *data, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                             const int64_t *strides)
{
    fsdp__operand o = {.data = data, .dtype = dtype};

    for (int d = 0; d < ndim; d++) {
        int last = o.ndim - 1;
        if (shape[d] == 1)
            continue;
        if (last >= 0 && o.strides[last] == shape[d] * strides[d]) {
            o.shape[last] *= shape[d];
            o.strides[last] = strides[d];
        } else {
            o.shape[o.ndim] = shape[d];
            o.strides[o.ndim++] = strides[d];
        }
    }
    if (o.ndim == 0) {
        o.shape[0] = o.strides[0] = 1;
        o.ndim = 1;
    }
    return o;
}

/* Makes an operand of the one number at `data`, repeated. */
static inline fsdp__operand fsdp__operand_number(const void *data, fsdp_dtype dtype)
{
    return (fsdp__operand){.data = data, .dtype = dtype, .ndim = 1, .shape = {INT64_MAX}};
}

static inline int64_t fsdp__shape_product(int ndim, const int64_t *shape)
{
    int64_t numel = 1;

    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    return numel;
}

FSDP__INLINE void fsdp__run_floats(fsdp_dtype dtype, const void *p, int64_t stride, int64_t n, float *restrict out)
{
    if (stride == 1) {
        for (int64_t i = 0; i < n; i++)
            out[i] = fsdp__load(dtype, p, i);
    } else if (stride == 0) {
        float x = fsdp__load(dtype, p, 0);
        for (int64_t i = 0; i < n; i++)
            out[i] = x;
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = fsdp__load(dtype, p, i * stride);
    }
}

/* Converts bytes, which are masks, to 0 and 1. */
static inline void fsdp__run_bytes(const uint8_t *p, int64_t stride, int64_t n, float *restrict out)
{
    if (stride == 1) {
        for (int64_t i = 0; i < n; i++)
            out[i] = p[i] != 0 ? 1.0f : 0.0f;
    } else {
        for (int64_t i = 0; i < n; i++)
            out[i] = p[i * stride] != 0 ? 1.0f : 0.0f;
    }
}

static inline void fsdp__run_integers(fsdp_dtype dtype, const void *p, int64_t stride, int64_t n, int64_t *restrict out)
{
#define RUN(type)                   \
    for (int64_t i = 0; i < n; i++) \
    out[i] = ((const type *)p)[i * stride]
    if (dtype == FSDP_I64)
        RUN(int64_t);
    else if (dtype == FSDP_I32)
        RUN(int32_t);
    else
        RUN(uint8_t);
#undef RUN
}

/* Goes through elements [begin, begin + n) run by run: RUN(at, stride, count, done), where `at` is the first one's
 * place in memory. */
#define FSDP__EACH_RUN(o, begin, n, RUN)                                           \
    do {                                                                           \
        int64_t index[6], at = 0, rest = (begin), done = 0;                        \
        int inner = (o)->ndim - 1;                                                 \
        for (int d = inner; d >= 0; d--) {                                         \
            index[d] = d > 0 ? rest % (o)->shape[d] : rest;                        \
            rest /= (o)->shape[d];                                                 \
            at += index[d] * (o)->strides[d];                                      \
        }                                                                          \
        for (;;) {                                                                 \
            int64_t count = FSDP__MIN((o)->shape[inner] - index[inner], (n)-done); \
            RUN(at, (o)->strides[inner], count, done);                             \
            done += count;                                                         \
            if (done >= (n))                                                       \
                break;                                                             \
            at -= index[inner] * (o)->strides[inner];                              \
            index[inner] = 0;                                                      \
            for (int d = inner - 1; d >= 0; d--) {                                 \
                at += (o)->strides[d];                                             \
                if (++index[d] < (o)->shape[d] || d == 0)                          \
                    break;                                                         \
                at -= (o)->shape[d] * (o)->strides[d];                             \
                index[d] = 0;                                                      \
            }                                                                      \
        }                                                                          \
    } while (0)

/* Returns n elements from `begin` on, in place or in `buffer`. */
static inline const float *fsdp__operand_floats(const fsdp__operand *o, int64_t begin, int64_t n, float *buffer)
{
    if (o->dtype == FSDP_F32 && o->ndim == 1 && o->strides[0] == 1)
        return (const float *)o->data + begin;
#define BYTES(at, stride, count, done) \
    fsdp__run_bytes((const uint8_t *)o->data + (at), (stride), (count), buffer + (done))
#define RUN(at, stride, count, done) fsdp__run_floats(T, fsdp__at(T, o->data, (at)), (stride), (count), buffer + (done))
    if (o->dtype == FSDP_BOOL) {
        FSDP__EACH_RUN(o, begin, n, BYTES);
    } else {
        FSDP__EACH_FLOAT(o->dtype, T, FSDP__EACH_RUN(o, begin, n, RUN));
    }
#undef BYTES
#undef RUN
    return buffer;
}

static inline const int64_t *fsdp__operand_integers(const fsdp__operand *o, int64_t begin, int64_t n, int64_t *buffer)
{
#define RUN(at, stride, count, done)                                                                                   \
    fsdp__run_integers(o->dtype, (const char *)o->data + (at) * (int64_t)fsdp_dtype_size(o->dtype), (stride), (count), \
                       buffer + (done))
    FSDP__EACH_RUN(o, begin, n, RUN);
#undef RUN
    return buffer;
}

/* Returns where a piece of a result is made: in place, or in `buffer`, from which fsdp__put_floats takes it. */
static inline float *fsdp__place_floats(fsdp_dtype dtype, void *y, int64_t begin, float *buffer)
{
    return dtype == FSDP_F32 ? (float *)y + begin : buffer;
}

static inline void fsdp__put_floats(fsdp_dtype dtype, void *y, int64_t begin, int64_t n, const float *buffer)
{
    if (dtype != FSDP_F32)
        fsdp__narrow(dtype, buffer, n, fsdp__at(dtype, y, begin));
}

/* ---- an operand that is read down its columns ----
 *
 * A row of it has one element in each of many cache lines, and the next row has the next one in each. So the result is
 * made in tiles, whose rows share the few lines that a cache keeps. */

enum {
    FSDP__TILE_ROWS = 16, /* a line of f32 */
    FSDP__TILE_COLS = 64
};

typedef struct fsdp__tiles {
    fsdp__range_body body;
    const void *args;
    int64_t rows, cols, across;
} fsdp__tiles;

/* Returns the length of the rows of such an operand; 0 for others. */
static inline int64_t fsdp__operand_turned(const fsdp__operand *o)
{
    int inner = o->ndim - 1;

    return inner > 0 && o->strides[inner] > 1 && o->strides[inner - 1] == 1 ? o->shape[inner] : 0;
}

static inline void fsdp__tile_range(const void *args, int64_t begin, int64_t end)
{
    const fsdp__tiles *t = args;

    for (int64_t tile = begin; tile < end; tile++) {
        int64_t row = tile / t->across * FSDP__TILE_ROWS, col = tile % t->across * FSDP__TILE_COLS;
        int64_t last_row = FSDP__MIN(row + FSDP__TILE_ROWS, t->rows),
                last_col = FSDP__MIN(col + FSDP__TILE_COLS, t->cols);
        for (; row < last_row; row++)
            t->body(t->args, row * t->cols + col, row * t->cols + last_col);
    }
}

/* Calls body(args, begin, end) for ranges of a result of these operands. */
static inline void fsdp__for_operands(int64_t numel, const fsdp__operand *const *operands, int count,
                                      fsdp__range_body body, const void *args)
{
    fsdp__tiles t = {.body = body, .args = args};

    for (int i = 0; i < count; i++)
        t.cols = FSDP__MAX(t.cols, fsdp__operand_turned(operands[i]));
    if (t.cols == 0) {
        fsdp__for_ranges(numel, 1, body, args);
        return;
    }
    t.rows = numel / t.cols;
    t.across = fsdp__ceil_div(t.cols, FSDP__TILE_COLS);
    fsdp__for_ranges(fsdp__ceil_div(t.rows, FSDP__TILE_ROWS) * t.across, FSDP__TILE_ROWS * FSDP__TILE_COLS,
                     fsdp__tile_range, &t);
}
