/* kernels_elementwise.h - arguments of the kernels that compute element by element, and of sums. It is a part of
 * kernel_args.h, whose conventions hold. */
#pragma once

#include "fsdp/device.h"

typedef enum fsdp__binary_op {
    FSDP__ADD,
    FSDP__MUL,
    FSDP__SUB,
    FSDP__DIV,
    FSDP__POW,
    FSDP__MAXIMUM, /* NaN if either is NaN */
    FSDP__MINIMUM,
    FSDP__SQUARED_ERROR,  /* (a - b)^2 */
    FSDP__ABSOLUTE_ERROR, /* |a - b| */
    FSDP__SMOOTH_ERROR,   /* d = |a - b|: below `beta` d^2 / (2 beta), else d - beta / 2 */
    FSDP__BCE,            /* -(b log a + (1 - b) log(1 - a)), a logarithm being at least -100 */
    FSDP__BCE_LOGITS,     /* the same with sigmoid(a) for a */
    /* The ones below take any dtype and give FSDP_BOOL. */
    FSDP__EQ,
    FSDP__NE,
    FSDP__LT,
    FSDP__LE,
    FSDP__GT,
    FSDP__GE,
    FSDP__AND, /* an operand is true where it is not zero */
    FSDP__OR
} fsdp__binary_op;

/* y = a op b: y is row-major; a stride of 0 repeats. In place when y == a or y == b, with y's strides. */
typedef struct fsdp__binary_args {
    const void *a;
    const void *b; /* NULL: the number `scalar`, and dtype is floating */
    void *y;
    int ndim;
    int64_t shape[6], a_strides[6], b_strides[6];
    float scalar, beta;
    fsdp__binary_op op;
    fsdp_dtype dtype; /* floating, except for the ops that give FSDP_BOOL */
} fsdp__binary_args;

/* da = dy * the derivative by a, and db likewise by b, for each place of `shape`, row-major: nothing is summed over
 * what was repeated. Where maximum and minimum have equal operands each gets half. In place when da == dy, which must
 * then be row-major. */
typedef struct fsdp__binary_backward_args {
    fsdp__binary_args forward; /* y is not used; op is neither ADD nor SUB, and gives no FSDP_BOOL */
    const void *dy;
    int64_t dy_strides[6];
    void *da, *db; /* NULL: not needed */
} fsdp__binary_backward_args;

/* y = mask ? a : b: y is row-major, a stride of 0 repeats. In place when y == a or y == b, with y's strides. */
typedef struct fsdp__where_args {
    const void *mask;  /* FSDP_BOOL */
    const void *a, *b; /* NULL: the number below, rounded to dtype */
    void *y;
    int ndim;
    int64_t shape[6], mask_strides[6], a_strides[6], b_strides[6];
    double a_scalar, b_scalar;
    fsdp_dtype dtype; /* any */
} fsdp__where_args;

typedef enum fsdp__unary_op {
    /* the derivative is a function of y */
    FSDP__EXP,
    FSDP__SQRT,
    FSDP__RSQRT,
    FSDP__RECIPROCAL,
    FSDP__TANH,
    FSDP__SIGMOID,
    /* the derivative is a function of x */
    FSDP__LOG,
    FSDP__ABS, /* derivative at 0: 0 */
    FSDP__SQUARE,
    FSDP__CLAMP /* min(max(x, low), high), where an infinite bound is no bound; derivative at a bound: 0 */
} fsdp__unary_op;

/* y = f(x). In place when y == x. */
typedef struct fsdp__unary_forward_args {
    const void *x;
    void *y;
    int64_t numel;
    float low, high;
    fsdp__unary_op op;
    fsdp_dtype dtype;
} fsdp__unary_forward_args;

/* dx = dy * f'. In place when dx == dy. */
typedef struct fsdp__unary_backward_args {
    const void *saved; /* y or x: see fsdp__unary_op */
    const void *dy;
    void *dx;
    int64_t numel;
    float low, high;
    fsdp__unary_op op;
    fsdp_dtype dtype;
} fsdp__unary_backward_args;

/* y = alpha * x [* device scalar] [+ y]. In place when y == x. `scalar`: NULL, or one f32 read when the kernel runs. */
typedef struct fsdp__scale_args {
    const void *x;
    void *y;
    const float *scalar;
    float alpha;
    int64_t numel;
    fsdp_dtype dtype;
    bool accumulate;
} fsdp__scale_args;

typedef enum fsdp__reduce_op {
    FSDP__REDUCE_SUM,
    FSDP__REDUCE_MAX, /* NaN if any is NaN */
    FSDP__REDUCE_MIN
} fsdp__reduce_op;

/* y (outer,inner) [+]= alpha * sum over r of x (outer,reduced,inner), summed in index order of fixed panels; or the
 * largest or smallest of at least one. With `center` (outer,inner) it is the sum of (x - center)^2. */
typedef struct fsdp__reduce_args {
    const void *x;
    const float *center; /* or NULL */
    void *y;
    int64_t outer, reduced, inner;
    float alpha;
    fsdp__reduce_op op;
    fsdp_dtype x_dtype, y_dtype;
    bool accumulate;
} fsdp__reduce_args;

typedef enum fsdp__activation {
    FSDP__GELU_TANH, /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    FSDP__GELU_ERF,  /* 0.5 x (1 + erf(x / sqrt(2))) */
    FSDP__SILU,      /* x / (1 + exp(-x)) */
    FSDP__RELU,
} fsdp__activation;

/* y = f(x + bias): x (rows,cols), bias (cols) or NULL. In place when y == x. */
typedef struct fsdp__activation_forward_args {
    const void *x, *bias;
    void *y;
    int64_t rows, cols;
    fsdp__activation kind;
    fsdp_dtype dtype;
} fsdp__activation_forward_args;

/* dx = dy * f'(x + bias). In place when dx == dy. */
typedef struct fsdp__activation_backward_args {
    const void *x, *bias, *dy;
    void *dx;
    int64_t rows, cols;
    fsdp__activation kind;
    fsdp_dtype dtype;
} fsdp__activation_backward_args;

/* y = silu(gate) * up, or gelu(gate) * up. Rows may be strided: gate and up can be halves of one (rows, 2 cols) matrix.
 */
typedef struct fsdp__swiglu_forward_args {
    const void *gate, *up;
    void *y;
    int64_t rows, cols, gate_row, up_row, y_row;
    fsdp_dtype dtype;
    bool gelu; /* as FSDP__GELU_TANH */
} fsdp__swiglu_forward_args;

typedef struct fsdp__swiglu_backward_args {
    const void *gate, *up, *dy;
    void *dgate, *dup; /* in place when dgate == gate or dup == up */
    void *y;           /* or NULL. What the forward has written, again; may be dy */
    int64_t rows, cols, gate_row, up_row, dy_row, dgate_row, dup_row, y_row;
    fsdp_dtype dtype;
    bool gelu;
} fsdp__swiglu_backward_args;

/* Many copies with conversion in one pass: span i is `numel` elements from src to dst. */
typedef struct fsdp__span {
    const void *src;
    void *dst;
    int64_t numel;
} fsdp__span;

typedef struct fsdp__cast_spans_args {
    const fsdp__span *spans; /* in host memory: see fsdp__launch */
    int64_t count;
    fsdp_dtype src_dtype, dst_dtype;
} fsdp__cast_spans_args;
