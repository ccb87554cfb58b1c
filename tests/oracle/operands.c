/* operands.c - functions of one, two and three operands, the latter of any strides. */
#include "oracle/oracle.h"

#include <math.h>

/* Where element i of a row-major result finds its operand. */
static int64_t place(int ndim, const int64_t *shape, const int64_t *strides, int64_t i)
{
    int64_t at = 0;

    for (int d = ndim - 1; d >= 0; d--) {
        at += i % shape[d] * strides[d];
        i /= shape[d];
    }
    return at;
}

static int64_t count(int ndim, const int64_t *shape)
{
    int64_t numel = 1;

    for (int d = 0; d < ndim; d++)
        numel *= shape[d];
    return numel;
}

static double bce(double p, double t)
{
    return (t - 1.0) * fmax(log1p(-p), -100.0) - t * fmax(log(p), -100.0);
}

static double value(const fsdp__binary_args *k, double a, double b)
{
    double d = fabs(a - b), beta = (double)k->beta;

    switch (k->op) {
    case FSDP__ADD:
        return a + b;
    case FSDP__MUL:
        return a * b;
    case FSDP__SUB:
        return a - b;
    case FSDP__DIV:
        return a / b;
    case FSDP__POW:
        return pow(a, b);
    case FSDP__MAXIMUM:
        return a > b ? a : b;
    case FSDP__MINIMUM:
        return a < b ? a : b;
    case FSDP__SQUARED_ERROR:
        return d * d;
    case FSDP__ABSOLUTE_ERROR:
        return d;
    case FSDP__SMOOTH_ERROR:
        return d < beta ? 0.5 * d * d / beta : d - 0.5 * beta;
    case FSDP__BCE:
        return bce(a, b);
    case FSDP__BCE_LOGITS:
        return (1.0 - b) * a + log1p(exp(-fabs(a))) + fmax(-a, 0.0);
    case FSDP__EQ:
        return a == b;
    case FSDP__NE:
        return a != b;
    case FSDP__LT:
        return a < b;
    case FSDP__LE:
        return a <= b;
    case FSDP__GT:
        return a > b;
    case FSDP__GE:
        return a >= b;
    case FSDP__AND:
        return a != 0.0 && b != 0.0;
    default:
        return a != 0.0 || b != 0.0;
    }
}

void oracle_binary(const fsdp__binary_args *k)
{
    for (int64_t i = 0; i < count(k->ndim, k->shape); i++) {
        double a = oracle_get(k->dtype, k->a, place(k->ndim, k->shape, k->a_strides, i));
        double b = k->b ? oracle_get(k->dtype, k->b, place(k->ndim, k->shape, k->b_strides, i)) : (double)k->scalar;

        oracle_put(k->op >= FSDP__EQ ? FSDP_BOOL : k->dtype, k->y, i, value(k, a, b));
    }
}

/* The derivatives by a and by b. */
static void slopes(const fsdp__binary_args *k, double a, double b, double *da, double *db)
{
    double d = a - b, sign = d > 0.0 ? 1.0 : d < 0.0 ? -1.0 : 0.0, beta = (double)k->beta;

    switch (k->op) {
    case FSDP__MUL:
        *da = b, *db = a;
        break;
    case FSDP__DIV:
        *da = 1.0 / b, *db = -a / (b * b);
        break;
    case FSDP__POW:
        *da = b == 0.0 ? 0.0 : b * pow(a, b - 1.0);
        *db = a == 0.0 && b >= 0.0 ? 0.0 : pow(a, b) * log(a);
        break;
    case FSDP__MAXIMUM:
        *da = 0.5 + 0.5 * sign, *db = 1.0 - *da;
        break;
    case FSDP__MINIMUM:
        *da = 0.5 - 0.5 * sign, *db = 1.0 - *da;
        break;
    case FSDP__SQUARED_ERROR:
        *da = 2.0 * d, *db = -*da;
        break;
    case FSDP__ABSOLUTE_ERROR:
        *da = sign, *db = -*da;
        break;
    case FSDP__SMOOTH_ERROR:
        *da = fabs(d) < beta ? d / beta : sign, *db = -*da;
        break;
    case FSDP__BCE:
        *da = (a - b) / fmax((1.0 - a) * a, 1e-12), *db = log1p(-a) - log(a);
        break;
    default:
        *da = 1.0 / (1.0 + exp(-a)) - b, *db = -a;
    }
}

void oracle_binary_backward(const fsdp__binary_backward_args *args)
{
    const fsdp__binary_args *k = &args->forward;

    for (int64_t i = 0; i < count(k->ndim, k->shape); i++) {
        double a = oracle_get(k->dtype, k->a, place(k->ndim, k->shape, k->a_strides, i)), da, db;
        double b = k->b ? oracle_get(k->dtype, k->b, place(k->ndim, k->shape, k->b_strides, i)) : (double)k->scalar;
        double dy = oracle_get(k->dtype, args->dy, place(k->ndim, k->shape, args->dy_strides, i));

        slopes(k, a, b, &da, &db);
        if (args->db)
            oracle_put(k->dtype, args->db, i, dy * db);
        if (args->da)
            oracle_put(k->dtype, args->da, i, dy * da);
    }
}

void oracle_where(const fsdp__where_args *k)
{
    for (int64_t i = 0; i < count(k->ndim, k->shape); i++) {
        bool mask = oracle_get(FSDP_BOOL, k->mask, place(k->ndim, k->shape, k->mask_strides, i)) != 0.0;
        const void *from = mask ? k->a : k->b;
        const int64_t *strides = mask ? k->a_strides : k->b_strides;

        oracle_put(k->dtype, k->y, i,
                   from   ? oracle_get(k->dtype, from, place(k->ndim, k->shape, strides, i))
                   : mask ? k->a_scalar
                          : k->b_scalar);
    }
}

void oracle_unary_forward(const fsdp__unary_forward_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double x = oracle_get(k->dtype, k->x, i);
        const double values[] = {
            [FSDP__EXP] = exp(x),          [FSDP__SQRT] = sqrt(x),
            [FSDP__RSQRT] = 1.0 / sqrt(x), [FSDP__RECIPROCAL] = 1.0 / x,
            [FSDP__TANH] = tanh(x),        [FSDP__SIGMOID] = 1.0 / (1.0 + exp(-x)),
            [FSDP__LOG] = log(x),          [FSDP__ABS] = fabs(x),
            [FSDP__SQUARE] = x * x,        [FSDP__CLAMP] = fmin(fmax(x, (double)k->low), (double)k->high)};

        oracle_put(k->dtype, k->y, i, values[k->op]);
    }
}

void oracle_unary_backward(const fsdp__unary_backward_args *k)
{
    for (int64_t i = 0; i < k->numel; i++) {
        double s = oracle_get(k->dtype, k->saved, i);
        bool inside = s > (double)k->low && s < (double)k->high;
        const double slope[] = {[FSDP__EXP] = s,
                                [FSDP__SQRT] = 0.5 / s,
                                [FSDP__RSQRT] = -0.5 * s * s * s,
                                [FSDP__RECIPROCAL] = -s * s,
                                [FSDP__TANH] = 1.0 - s * s,
                                [FSDP__SIGMOID] = s * (1.0 - s),
                                [FSDP__LOG] = 1.0 / s,
                                [FSDP__ABS] = s > 0.0   ? 1.0
                                              : s < 0.0 ? -1.0
                                                        : 0.0,
                                [FSDP__SQUARE] = 2.0 * s,
                                [FSDP__CLAMP] = inside ? 1.0 : 0.0};

        oracle_put(k->dtype, k->dx, i, oracle_get(k->dtype, k->dy, i) * slope[k->op]);
    }
}
