/* cases_operands.c - the calls of functions of one, two and three operands. */
#include "oracle/cases.h"

#include <math.h>

/* ---- shapes and strides ---- */

typedef struct shape {
    int ndim;
    int64_t sizes[6], numel;
} shape;

static shape draw_shape(test_case *c)
{
    shape s = {.ndim = (int)between(c, 0, 5), .numel = 1};

    for (int d = 0; d < s.ndim; d++) {
        s.sizes[d] = between(c, 0, 40) ? between(c, 1, s.ndim > 2 ? 13 : 150) : 0;
        s.numel *= s.sizes[d];
    }
    return s;
}

/* An operand: row-major, or some dimensions repeated, in another order, with gaps. Gives how many elements it has. */
static int64_t draw_strides(test_case *c, const shape *s, int64_t *strides)
{
    int order[6] = {0, 1, 2, 3, 4, 5};
    bool plain = coin(c), turned = coin(c);
    int64_t numel = 1;

    for (int d = s->ndim - 1; d > 0 && turned && !plain; d--) {
        int other = (int)between(c, 0, d), keep = order[d];
        order[d] = order[other];
        order[other] = keep;
    }
    for (int i = s->ndim - 1; i >= 0; i--) {
        int d = order[i];
        bool repeated = !plain && between(c, 0, 2) == 0;

        strides[d] = repeated ? 0 : numel;
        numel *= repeated ? 1 : s->sizes[d] + (!plain && between(c, 0, 4) == 0);
    }
    return s->numel == 0 ? 0 : numel;
}

/* Row-major over the shape, so that a result may take its place. */
static bool is_whole(const shape *s, const int64_t *strides)
{
    int64_t expected = 1;

    for (int d = s->ndim - 1; d >= 0; d--) {
        if (strides[d] != expected)
            return false;
        expected *= s->sizes[d];
    }
    return true;
}

#define SHAPE_TEXT "%d dimensions %ld %ld %ld %ld %ld"
#define SHAPE_VALUES(s) \
    (s).ndim, (long)(s).sizes[0], (long)(s).sizes[1], (long)(s).sizes[2], (long)(s).sizes[3], (long)(s).sizes[4]

/* ---- two operands ---- */

/* Operands where the function has values: a power of something positive, a loss of what is between 0 and 1. */
static shape draw_operands(test_case *c, fsdp__binary_args *k, bool numbers)
{
    bool positive = k->op == FSDP__POW, share = k->op == FSDP__BCE, integer = !fsdp_dtype_is_floating(k->dtype);
    bool few = k->op >= FSDP__EQ || k->op == FSDP__MAXIMUM || k->op == FSDP__MINIMUM; /* equal ones occur */
    double low = share ? 0.05 : positive ? 0.1 : integer ? 0.0 : -2.0, high = share ? 0.95 : integer ? 3.0 : 2.0;
    shape s = draw_shape(c);

    k->ndim = s.ndim;
    k->scalar = (float)real(c, low, high);
    k->beta = coin(c) ? 1.0f : 0.3f;
    memcpy(k->shape, s.sizes, sizeof k->shape);
    k->a = an_input(c, k->dtype, draw_strides(c, &s, k->a_strides), low, high);
    if (!(numbers && !integer && between(c, 0, 3) == 0)) {
        double b_low = k->op == FSDP__DIV ? 0.5 : k->op == FSDP__POW ? -2.0 : low;
        k->b = an_input(c, k->dtype, draw_strides(c, &s, k->b_strides), b_low, high);
    }
    for (int i = 0; few && !integer && i < c->count; i++) /* halves */
        for (int64_t e = 0; e < c->buffers[i].numel; e++) {
            void *data = data_of(&c->buffers[i]);
            oracle_put(k->dtype, data, e, nearbyint(2.0 * oracle_get(k->dtype, data, e)) / 2.0);
        }
    return s;
}

void binary_case(test_case *c)
{
    static const fsdp_dtype others[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};
    fsdp__binary_args k = {.op = (fsdp__binary_op)between(c, FSDP__ADD, FSDP__OR), .dtype = c->dtype};
    bool compares = k.op >= FSDP__EQ;
    shape s;

    if (compares && coin(c))
        k.dtype = others[between(c, 0, 3)];
    s = draw_operands(c, &k, true);
    if (!compares && is_whole(&s, k.a_strides) && coin(c))
        k.y = (void *)(uintptr_t)k.a;
    else
        k.y = an_output(c, compares ? FSDP_BOOL : k.dtype, s.numel, 0.0, 0.0);
    also_output(c, k.y, k.op > FSDP__DIV ? 2e-6 : 1e-7, k.op > FSDP__MINIMUM ? 1e-6 : 0.0);
    check(c, &k, "op %d, %s, number %d, in place %d, " SHAPE_TEXT, k.op, fsdp_dtype_name(k.dtype), k.b == NULL,
          k.y == k.a, SHAPE_VALUES(s));
}

void binary_backward_case(test_case *c)
{
    static const fsdp__binary_op ops[] = {FSDP__MUL,
                                          FSDP__DIV,
                                          FSDP__POW,
                                          FSDP__MAXIMUM,
                                          FSDP__MINIMUM,
                                          FSDP__SQUARED_ERROR,
                                          FSDP__ABSOLUTE_ERROR,
                                          FSDP__SMOOTH_ERROR,
                                          FSDP__BCE,
                                          FSDP__BCE_LOGITS};
    fsdp__binary_backward_args k = {.forward = {.op = ops[between(c, 0, 9)], .dtype = c->dtype}};
    shape s = draw_operands(c, &k.forward, true);

    k.dy = an_input(c, c->dtype, draw_strides(c, &s, k.dy_strides), -2.0, 2.0);
    if (between(c, 0, 3) > 0) {
        k.da =
            is_whole(&s, k.dy_strides) && coin(c) ? (void *)(uintptr_t)k.dy : an_output(c, c->dtype, s.numel, 0.0, 0.0);
        also_output(c, k.da, 4e-6, 4e-6);
    }
    if (k.forward.b && between(c, 0, 3) > 0)
        k.db = an_output(c, c->dtype, s.numel, 4e-6, 4e-6);
    check(c, &k, "op %d, number %d, da %d, db %d, in place %d, " SHAPE_TEXT, k.forward.op, k.forward.b == NULL,
          k.da != NULL, k.db != NULL, k.da == k.dy, SHAPE_VALUES(s));
}

void where_case(test_case *c)
{
    static const fsdp_dtype others[] = {FSDP_I32, FSDP_I64, FSDP_U8, FSDP_BOOL};
    fsdp__where_args k = {.a_scalar = between(c, 0, 3), .b_scalar = between(c, 0, 3), .dtype = c->dtype};
    shape s = draw_shape(c);

    if (between(c, 0, 3) == 0)
        k.dtype = others[between(c, 0, 3)];
    k.ndim = s.ndim;
    memcpy(k.shape, s.sizes, sizeof k.shape);
    k.mask = an_input(c, FSDP_U8, draw_strides(c, &s, k.mask_strides), 0.0, 1.0);
    k.a = between(c, 0, 3) ? an_input(c, k.dtype, draw_strides(c, &s, k.a_strides), 0.0, 9.0) : NULL;
    k.b = between(c, 0, 3) ? an_input(c, k.dtype, draw_strides(c, &s, k.b_strides), 0.0, 9.0) : NULL;
    k.y =
        k.b && is_whole(&s, k.b_strides) && coin(c) ? (void *)(uintptr_t)k.b : an_output(c, k.dtype, s.numel, 0.0, 0.0);
    also_output(c, k.y, 0.0, 0.0);
    check(c, &k, "%s, numbers %d %d, in place %d, " SHAPE_TEXT, fsdp_dtype_name(k.dtype), k.a == NULL, k.b == NULL,
          k.y == k.b, SHAPE_VALUES(s));
}

/* ---- one operand ---- */

/* Where the function has values, and its derivative no more than a few hundred. */
static void range_of(fsdp__unary_op op, double *low, double *high)
{
    bool positive = op == FSDP__SQRT || op == FSDP__RSQRT || op == FSDP__RECIPROCAL || op == FSDP__LOG;

    *low = positive ? 0.05 : -6.0;
    *high = 6.0;
}

void unary_forward_case(test_case *c)
{
    fsdp__unary_forward_args k = {.numel = a_size(c, 40000),
                                  .op = (fsdp__unary_op)between(c, FSDP__EXP, FSDP__CLAMP),
                                  .low = -1.0f,
                                  .high = coin(c) ? 2.5f : INFINITY,
                                  .dtype = c->dtype};
    double low, high;

    range_of(k.op, &low, &high);
    k.x = an_input(c, c->dtype, k.numel, low, high);
    k.y = coin(c) ? (void *)(uintptr_t)k.x : an_output(c, c->dtype, k.numel, 0.0, 0.0);
    also_output(c, k.y, 1e-6, 1e-7);
    check(c, &k, "op %d, %ld", k.op, (long)k.numel);
}

void unary_backward_case(test_case *c)
{
    fsdp__unary_backward_args k = {.numel = a_size(c, 40000),
                                   .op = (fsdp__unary_op)between(c, FSDP__EXP, FSDP__CLAMP),
                                   .low = -1.0f,
                                   .high = coin(c) ? 2.5f : INFINITY,
                                   .dtype = c->dtype};
    double low, high;

    range_of(k.op, &low, &high);
    if (k.op == FSDP__TANH || k.op == FSDP__SIGMOID)
        low = 0.0, high = 1.0;
    k.saved = an_input(c, c->dtype, k.numel, low, high);
    k.dy = an_input(c, c->dtype, k.numel, -2.0, 2.0);
    k.dx = coin(c) ? (void *)(uintptr_t)k.dy : an_output(c, c->dtype, k.numel, 0.0, 0.0);
    also_output(c, k.dx, 1e-6, 1e-6);
    check(c, &k, "op %d, %ld", k.op, (long)k.numel);
}
