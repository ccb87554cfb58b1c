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

/* ---- one element ---- */

/* Bounds a logarithm from below by -100, as PyTorch does. */
FSDP__INLINE float bounded(float log)
{
    return log < -100.0f ? -100.0f : log;
}

FSDP__INLINE float value(fsdp__binary_op op, float a, float b, float beta)
{
    float d = a - b;

    switch (op) {
    case FSDP__ADD:
        return a + b;
    case FSDP__MUL:
        return a * b;
    case FSDP__SUB:
        return d;
    case FSDP__DIV:
        return a / b;
    case FSDP__MAXIMUM:
        return a > b || a != a ? a : b;
    case FSDP__MINIMUM:
        return a < b || a != a ? a : b;
    case FSDP__SQUARED_ERROR:
        return d * d;
    case FSDP__ABSOLUTE_ERROR:
        return fabsf(d);
    case FSDP__SMOOTH_ERROR:
        d = fabsf(d);
        return d < beta ? 0.5f * d * d / beta : d - 0.5f * beta;
    case FSDP__BCE:
        return (b - 1.0f) * bounded(fsdp__log1pf(-a)) - b * bounded(fsdp__logf(a));
    default: /* FSDP__BCE_LOGITS */
        return (1.0f - b) * a + fsdp__log1pf(fsdp__expf(-fabsf(a))) + (a < 0.0f ? -a : 0.0f);
    }
}

FSDP__INLINE float sign(float x)
{
    return x > 0.0f ? 1.0f : x < 0.0f ? -1.0f : x;
}

/* Computes the gradient of a. `power` is used by POW only: a^(b - 1). */
FSDP__INLINE float left(fsdp__binary_op op, float a, float b, float power, float dy, float beta)
{
    float d = a - b;

    switch (op) {
    case FSDP__MUL:
        return dy * b;
    case FSDP__DIV:
        return dy / b;
    case FSDP__POW:
        return b == 0.0f ? 0.0f : dy * (b * power);
    case FSDP__MAXIMUM:
        return a == b ? 0.5f * dy : a < b ? 0.0f : dy;
    case FSDP__MINIMUM:
        return a == b ? 0.5f * dy : a > b ? 0.0f : dy;
    case FSDP__SQUARED_ERROR:
        return 2.0f * d * dy;
    case FSDP__ABSOLUTE_ERROR:
        return sign(d) * dy;
    case FSDP__SMOOTH_ERROR:
        return (d >= beta ? 1.0f : d <= -beta ? -1.0f : d / beta) * dy;
    case FSDP__BCE:
        d *= dy;
        a = (1.0f - a) * a;
        return d / (a < 1e-12f ? 1e-12f : a);
    default: /* FSDP__BCE_LOGITS */
        return (fsdp__sigmoidf(a) - b) * dy;
    }
}

/* Computes the gradient of b. `power` is used by POW only: a^b. */
FSDP__INLINE float right(fsdp__binary_op op, float a, float b, float power, float dy, float beta)
{
    float y;

    switch (op) {
    case FSDP__MUL:
        return dy * a;
    case FSDP__DIV:
        return -dy * (a / b / b);
    case FSDP__POW: /* 0 for 0 to a power that is not negative */
        y = dy * (power * fsdp__logf(a));
        return a == 0.0f && b >= 0.0f ? 0.0f : y;
    case FSDP__MAXIMUM:
        return a == b ? 0.5f * dy : a > b ? 0.0f : dy;
    case FSDP__MINIMUM:
        return a == b ? 0.5f * dy : a < b ? 0.0f : dy;
    case FSDP__BCE:
        return dy * (fsdp__log1pf(-a) - fsdp__logf(a));
    case FSDP__BCE_LOGITS:
        return -dy * a;
    default: /* functions of the difference alone */
        return -left(op, a, b, 0.0f, dy, beta);
    }
}

FSDP__INLINE void value_loop(fsdp__binary_op op, const float *a, const float *b, float beta, float *y, int64_t n)
{
    if (op == FSDP__POW) {
        powers(a, b, 0.0f, y, n);
        return;
    }
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        y[i] = value(op, a[i], b[i], beta);
}

FSDP__INLINE void left_loop(fsdp__binary_op op, const float *a, const float *b, const float *dy, float beta, float *out,
                            int64_t n)
{
    float power[FSDP__PIECE];

    if (op == FSDP__POW)
        powers(a, b, 1.0f, power, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = left(op, a[i], b[i], op == FSDP__POW ? power[i] : 0.0f, dy[i], beta);
}

FSDP__INLINE void right_loop(fsdp__binary_op op, const float *a, const float *b, const float *dy, float beta,
                             float *out, int64_t n)
{
    float power[FSDP__PIECE];

    if (op == FSDP__POW)
        powers(a, b, 0.0f, power, n);
#pragma omp simd
    for (int64_t i = 0; i < n; i++)
        out[i] = right(op, a[i], b[i], op == FSDP__POW ? power[i] : 0.0f, dy[i], beta);
}

/* Expands to CALL(op) with op constant, for functions that have a derivative of their own. */
#define EACH_CURVE(op, CALL)        \
    case FSDP__MUL:                 \
        CALL(FSDP__MUL);            \
        break;                      \
    case FSDP__DIV:                 \
        CALL(FSDP__DIV);            \
        break;                      \
    case FSDP__POW:                 \
        CALL(FSDP__POW);            \
        break;                      \
    case FSDP__MAXIMUM:             \
        CALL(FSDP__MAXIMUM);        \
        break;                      \
    case FSDP__MINIMUM:             \
        CALL(FSDP__MINIMUM);        \
        break;                      \
    case FSDP__SQUARED_ERROR:       \
        CALL(FSDP__SQUARED_ERROR);  \
        break;                      \
    case FSDP__ABSOLUTE_ERROR:      \
        CALL(FSDP__ABSOLUTE_ERROR); \
        break;                      \
    case FSDP__SMOOTH_ERROR:        \
        CALL(FSDP__SMOOTH_ERROR);   \
        break;                      \
    case FSDP__BCE:                 \
        CALL(FSDP__BCE);            \
        break;                      \
    default:                        \
        CALL(FSDP__BCE_LOGITS);

static void value_piece(const fsdp__binary_args *k, const float *a, const float *b, float *y, int64_t n)
{
#define LOOP(op) value_loop(op, a, b, k->beta, y, n)
    switch (k->op) {
    case FSDP__ADD:
        LOOP(FSDP__ADD);
        break;
    case FSDP__SUB:
        LOOP(FSDP__SUB);
        break;
        EACH_CURVE(k->op, LOOP)
    }
#undef LOOP
}

/* ---- comparisons: of floats, and of integers ---- */

#define COMPARE(expression)             \
    do {                                \
        for (int64_t i = 0; i < n; i++) \
            y[i] = (expression);        \
    } while (0)
#define COMPARISONS(op)                               \
    switch (op) {                                     \
    case FSDP__EQ:                                    \
        COMPARE(a[i] == b[i]);                        \
        break;                                        \
    case FSDP__NE:                                    \
        COMPARE(a[i] != b[i]);                        \
        break;                                        \
    case FSDP__LT:                                    \
        COMPARE(a[i] < b[i]);                         \
        break;                                        \
    case FSDP__LE:                                    \
        COMPARE(a[i] <= b[i]);                        \
        break;                                        \
    case FSDP__GT:                                    \
        COMPARE(a[i] > b[i]);                         \
        break;                                        \
    case FSDP__GE:                                    \
        COMPARE(a[i] >= b[i]);                        \
        break;                                        \
    case FSDP__AND:                                   \
        COMPARE((unsigned)(a[i] != 0) & (b[i] != 0)); \
        break;                                        \
    default:                                          \
        COMPARE((unsigned)(a[i] != 0) | (b[i] != 0)); \
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

/* Adds, multiplies, subtracts or divides contiguous operands. Numbers of 16 bits are converted in registers: by pieces
 * in the cache it takes half as long again. */
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
            ys[i] = fsdp__pair_of(dtype, value(op, fsdp__low(dtype, as[i]), fsdp__low(dtype, bs[i]), 0.0f),
                                  value(op, fsdp__high(dtype, as[i]), fsdp__high(dtype, bs[i]), 0.0f));
        begin += 2 * pairs;
    }
#pragma omp simd
    for (int64_t i = begin; i < end; i++)
        fsdp__store(dtype, y, i, value(op, fsdp__load(dtype, a, i), fsdp__load(dtype, b, i), 0.0f));
}

static void packed_range(const void *args, int64_t begin, int64_t end)
{
    const binary_job *j = args;

#define LOOP(T)                                   \
    switch (j->k->op) {                           \
    case FSDP__ADD:                               \
        packed_loop(T, FSDP__ADD, j, begin, end); \
        break;                                    \
    case FSDP__MUL:                               \
        packed_loop(T, FSDP__MUL, j, begin, end); \
        break;                                    \
    case FSDP__SUB:                               \
        packed_loop(T, FSDP__SUB, j, begin, end); \
        break;                                    \
    default:                                      \
        packed_loop(T, FSDP__DIV, j, begin, end); \
    }
    FSDP__EACH_FLOAT(j->k->dtype, LOOP)
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

fsdp_status KERNEL(binary)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    binary_job job = begin_binary(args);
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
#define LEFT(op) left_loop(op, a, b, dy, f->beta, out, n)
#define RIGHT(op) right_loop(op, a, b, dy, f->beta, out, n)
            if (side == 1) {
                switch (f->op) {
                    EACH_CURVE(f->op, LEFT)
                }
            } else {
                switch (f->op) {
                    EACH_CURVE(f->op, RIGHT)
                }
            }
#undef LEFT
#undef RIGHT
            fsdp__put_floats(f->dtype, outs[side], at, n, out);
        }
    }
}

fsdp_status KERNEL(binary_backward)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__binary_backward_args *k = args;
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

fsdp_status KERNEL(where)(fsdp_stream *stream FSDP__UNUSED, const void *args)
{
    const fsdp__where_args *k = args;
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
