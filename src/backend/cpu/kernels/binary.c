/* binary.c - functions of two numbers, their derivatives, and the choice between two, with broadcasting. */
#include "backend/cpu/kernels/mathf.h"
#include "backend/cpu/kernels/operand.h"

#include <math.h>

/* ---- powers ---- */

/* Computes y = a^(b - less) in two loops: a processor overlaps two short chains of operations better than one long
 * one. */
static void powers(const float *a, const float *b, float less, float *y, int64_t n)
{
    float high[FSDP__PIECE], low[FSDP__PIECE];

#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        high[i] = fsdp__log2_times(fabsf(a[i]), b[i] - less, &low[i]);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fsdp__pow_of(a[i], b[i] - less, fsdp__exp2f(high[i], low[i]));
}

FSDP__INLINE void value_loop(fsdp__binary_op op, const float *a, const float *b, float beta, float *y, int64_t n)
{
    if (op == FSDP__POW) {
        powers(a, b, 0.0f, y, n);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = fsdp__binary_value(op, a[i], b[i], beta);
}

FSDP__INLINE void left_loop(fsdp__binary_op op, const float *a, const float *b, const float *dy, float beta, float *out,
                            int64_t n)
{
    float power[FSDP__PIECE];

    if (op == FSDP__POW)
        powers(a, b, 1.0f, power, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = fsdp__left_gradient(op, a[i], b[i], op == FSDP__POW ? power[i] : 0.0f, dy[i], beta);
}

FSDP__INLINE void right_loop(fsdp__binary_op op, const float *a, const float *b, const float *dy, float beta,
                             float *out, int64_t n)
{
    float power[FSDP__PIECE];

    if (op == FSDP__POW)
        powers(a, b, 0.0f, power, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = fsdp__right_gradient(op, a[i], b[i], op == FSDP__POW ? power[i] : 0.0f, dy[i], beta);
}

/* Expands to CASE(op) for each function that has a derivative of its own. */
#define EACH_CURVE(CASE) \
    CASE(FSDP__MUL)      \
    CASE(FSDP__DIV)      \
    CASE(FSDP__POW)      \
    CASE(FSDP__MAXIMUM)  \
    CASE(FSDP__MINIMUM)  \
    CASE(FSDP__SQUARED_ERROR) CASE(FSDP__ABSOLUTE_ERROR) CASE(FSDP__SMOOTH_ERROR) CASE(FSDP__BCE) CASE(FSDP__BCE_LOGITS)

static void value_piece(const fsdp__binary_args *k, const float *a, const float *b, float *y, int64_t n)
{
#define LOOP(op)                             \
    case op:                                 \
        value_loop(op, a, b, k->beta, y, n); \
        break;
    switch (k->op) {
        EACH_CURVE(LOOP)
        LOOP(FSDP__ADD)
        LOOP(FSDP__SUB)
    default:
        break;
    }
#undef LOOP
}

/* ---- comparisons: of floats, and of integers ---- */

#define COMPARE(op, expression)         \
    case op:                            \
        for (int64_t i = 0; i < n; i++) \
            y[i] = (expression);        \
        break;
#define COMPARISONS(op)                                         \
    switch (op) {                                               \
        COMPARE(FSDP__EQ, a[i] == b[i])                         \
        COMPARE(FSDP__NE, a[i] != b[i])                         \
        COMPARE(FSDP__LT, a[i] < b[i])                          \
        COMPARE(FSDP__LE, a[i] <= b[i])                         \
        COMPARE(FSDP__GT, a[i] > b[i])                          \
        COMPARE(FSDP__GE, a[i] >= b[i])                         \
        COMPARE(FSDP__AND, (unsigned)(a[i] != 0) & (b[i] != 0)) \
        COMPARE(FSDP__OR, (unsigned)(a[i] != 0) | (b[i] != 0))  \
    default:                                                    \
        break;                                                  \
    }

static void compare_floats(fsdp__binary_op op, const float *a, const float *b, uint8_t *y, int64_t n)
{
    COMPARISONS(op)
}

static void compare_integers(fsdp__binary_op op, const int64_t *a, const int64_t *b, uint8_t *y, int64_t n)
{
    COMPARISONS(op)
}

/* ---- the kernels ---- */

static bool floating(fsdp_dtype dtype)
{
    return dtype == FSDP_F32 || dtype == FSDP_BF16 || dtype == FSDP_F16;
}

typedef struct binary_job {
    const fsdp__binary_args *k;
    fsdp__operand a, b;
} binary_job;

static binary_job begin_binary(const fsdp__binary_args *k)
{
    return (binary_job){.k = k,
                        .a = fsdp__operand_of(k->a, k->dtype, k->ndim, k->shape, k->a_strides),
                        .b = k->b ? fsdp__operand_of(k->b, k->dtype, k->ndim, k->shape, k->b_strides)
                                  : fsdp__operand_number(&k->scalar, FSDP_F32)};
}

static void integer_range(const void *args, int64_t begin, int64_t end)
{
    const binary_job *j = args;
    int64_t a[FSDP__PIECE], b[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        compare_integers(j->k->op, fsdp__operand_integers(&j->a, at, n, a), fsdp__operand_integers(&j->b, at, n, b),
                         (uint8_t *)j->k->y + at, n);
    }
}

/* Adds, multiplies, subtracts or divides contiguous operands. Numbers of 16 bits are converted in registers; converting
 * pieces in the cache takes 1.5 times as long. */
FSDP__INLINE void packed_loop(fsdp_dtype dtype, fsdp__binary_op op, const binary_job *j, int64_t begin, int64_t end)
{
    const void *a = j->a.data, *b = j->b.data;
    void *y = j->k->y;

    if (dtype != FSDP_F32) {
        const fsdp__pair *as = fsdp__at(dtype, a, begin), *bs = fsdp__at(dtype, b, begin);
        fsdp__pair *ys = fsdp__at(dtype, y, begin);
        int64_t pairs = (end - begin) / 2;
#pragma omp simd
        for (int64_t i = 0; i < pairs; i++)
            ys[i] = fsdp__pair_of(dtype, fsdp__binary_value(op, fsdp__low(dtype, as[i]), fsdp__low(dtype, bs[i]), 0.0f),
                                  fsdp__binary_value(op, fsdp__high(dtype, as[i]), fsdp__high(dtype, bs[i]), 0.0f));
        begin += 2 * pairs;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        fsdp__store(dtype, y, i, fsdp__binary_value(op, fsdp__load(dtype, a, i), fsdp__load(dtype, b, i), 0.0f));
}

static void packed_range(const void *args, int64_t begin, int64_t end)
{
    const binary_job *j = args;

#define LOOP(op)                           \
    case op:                               \
        packed_loop(T, op, j, begin, end); \
        break;
    FSDP__EACH_FLOAT(
        j->k->dtype, T, switch (j->k->op) {
            LOOP(FSDP__ADD)
            LOOP(FSDP__MUL)
            LOOP(FSDP__SUB)
            LOOP(FSDP__DIV)
        default:
            break;
        });
#undef LOOP
}

static bool is_packed(const fsdp__operand *o)
{
    return o->ndim == 1 && o->strides[0] == 1;
}

static void float_range(const void *args, int64_t begin, int64_t end)
{
    const binary_job *j = args;
    const fsdp__binary_args *k = j->k;
    float a_buffer[FSDP__PIECE], b_buffer[FSDP__PIECE], y_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const float *a = fsdp__operand_floats(&j->a, at, n, a_buffer);
        const float *b = fsdp__operand_floats(&j->b, at, n, b_buffer);
        if (k->op >= FSDP__EQ) {
            compare_floats(k->op, a, b, (uint8_t *)k->y + at, n);
        } else {
            float *y = fsdp__place_floats(k->dtype, k->y, at, y_buffer);
            value_piece(k, a, b, y, n);
            fsdp__put_floats(k->dtype, k->y, at, n, y);
        }
    }
}

FSDP__KERNEL(binary, k)
{
    binary_job job = begin_binary(k);
    fsdp__range_body body = floating(job.k->dtype) ? float_range : integer_range;

    if (job.k->op <= FSDP__DIV && is_packed(&job.a) && is_packed(&job.b))
        body = packed_range;
    fsdp__for_operands(fsdp__shape_product(job.k->ndim, job.k->shape), (const fsdp__operand *[]){&job.a, &job.b}, 2,
                       body, &job);
    return FSDP_OK;
}

typedef struct backward_job {
    binary_job forward;
    const fsdp__binary_backward_args *k;
    fsdp__operand dy;
} backward_job;

static void backward_range(const void *args, int64_t begin, int64_t end)
{
    const backward_job *j = args;
    const fsdp__binary_args *f = j->forward.k;
    void *outs[] = {j->k->db, j->k->da}; /* da last: it may be in the place of dy */
    float a_buffer[FSDP__PIECE], b_buffer[FSDP__PIECE], dy_buffer[FSDP__PIECE], out_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const float *a = fsdp__operand_floats(&j->forward.a, at, n, a_buffer);
        const float *b = fsdp__operand_floats(&j->forward.b, at, n, b_buffer);
        const float *dy = fsdp__operand_floats(&j->dy, at, n, dy_buffer);
        for (int side = 0; side < 2; side++) {
            if (!outs[side])
                continue;
            float *out = fsdp__place_floats(f->dtype, outs[side], at, out_buffer);
#define CURVE(op)                                      \
    case op:                                           \
        if (side == 1)                                 \
            left_loop(op, a, b, dy, f->beta, out, n);  \
        else                                           \
            right_loop(op, a, b, dy, f->beta, out, n); \
        break;
            switch (f->op) {
                EACH_CURVE(CURVE)
            default:
                break;
            }
#undef CURVE
            fsdp__put_floats(f->dtype, outs[side], at, n, out);
        }
    }
}

FSDP__KERNEL(binary_backward, k)
{
    const fsdp__binary_args *f = &k->forward;
    backward_job job = {
        .forward = begin_binary(f), .k = k, .dy = fsdp__operand_of(k->dy, f->dtype, f->ndim, f->shape, k->dy_strides)};

    fsdp__for_operands(fsdp__shape_product(f->ndim, f->shape),
                       (const fsdp__operand *[]){&job.forward.a, &job.forward.b, &job.dy}, 3, backward_range, &job);
    return FSDP_OK;
}

/* ---- where ---- */

typedef struct where_job {
    const fsdp__where_args *k;
    fsdp__operand mask, a, b;
    float floats[2];
    int64_t integers[2];
} where_job;

static void where_floats(const void *args, int64_t begin, int64_t end)
{
    const where_job *j = args;
    fsdp_dtype dtype = j->k->dtype;
    float mask_buffer[FSDP__PIECE], a_buffer[FSDP__PIECE], b_buffer[FSDP__PIECE], y_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const float *mask = fsdp__operand_floats(&j->mask, at, n, mask_buffer);
        const float *a = fsdp__operand_floats(&j->a, at, n, a_buffer);
        const float *b = fsdp__operand_floats(&j->b, at, n, b_buffer);
        float *y = fsdp__place_floats(dtype, j->k->y, at, y_buffer);
#pragma omp simd
        for (int64_t i = 0; i < n; i++)
            y[i] = mask[i] != 0.0f ? a[i] : b[i];
        fsdp__put_floats(dtype, j->k->y, at, n, y);
    }
}

static void where_integers(const void *args, int64_t begin, int64_t end)
{
    const where_job *j = args;
    int64_t mask_buffer[FSDP__PIECE], a_buffer[FSDP__PIECE], b_buffer[FSDP__PIECE];

    for (int64_t at = begin; at < end; at += FSDP__PIECE) {
        int64_t n = FSDP__MIN(end - at, FSDP__PIECE);
        const int64_t *mask = fsdp__operand_integers(&j->mask, at, n, mask_buffer);
        const int64_t *a = fsdp__operand_integers(&j->a, at, n, a_buffer);
        const int64_t *b = fsdp__operand_integers(&j->b, at, n, b_buffer);
#define CHOOSE(type)                \
    for (int64_t i = 0; i < n; i++) \
    ((type *)j->k->y)[at + i] = (type)(mask[i] != 0 ? a[i] : b[i])
        if (j->k->dtype == FSDP_I64)
            CHOOSE(int64_t);
        else if (j->k->dtype == FSDP_I32)
            CHOOSE(int32_t);
        else
            CHOOSE(uint8_t);
#undef CHOOSE
    }
}

FSDP__KERNEL(where, k)
{
    bool is_float = floating(k->dtype);
    where_job job = {.k = k,
                     .mask = fsdp__operand_of(k->mask, FSDP_BOOL, k->ndim, k->shape, k->mask_strides),
                     .a = fsdp__operand_of(k->a, k->dtype, k->ndim, k->shape, k->a_strides),
                     .b = fsdp__operand_of(k->b, k->dtype, k->ndim, k->shape, k->b_strides)};

    for (int side = 0; side < 2; side++) {
        double scalar = side == 0 ? k->a_scalar : k->b_scalar;
        job.floats[side] = (float)scalar;
        job.integers[side] = is_float ? 0 : k->dtype == FSDP_BOOL ? scalar != 0.0 : (int64_t)scalar;
        if (!(side == 0 ? k->a : k->b))
            *(side == 0 ? &job.a : &job.b) = is_float ? fsdp__operand_number(&job.floats[side], FSDP_F32)
                                                      : fsdp__operand_number(&job.integers[side], FSDP_I64);
    }
    fsdp__for_operands(fsdp__shape_product(k->ndim, k->shape), (const fsdp__operand *[]){&job.mask, &job.a, &job.b}, 3,
                       is_float ? where_floats : where_integers, &job);
    return FSDP_OK;
}
