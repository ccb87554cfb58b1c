/* binary.c - functions of two tensors, element by element; either of them is repeated where it is smaller. */
#include "ops/broadcast.h"

#include <string.h>

fsdp_status fsdp__binary_compute(fsdp__binary_op op, const fsdp_tensor *a, const fsdp_tensor *b, float scalar,
                                 float beta, fsdp_tensor *y)
{
    fsdp__binary_args args = {.a = fsdp_tensor_data(a),
                              .b = b ? fsdp_tensor_data(b) : NULL,
                              .y = fsdp_tensor_data(y),
                              .ndim = y->ndim,
                              .scalar = scalar,
                              .beta = beta,
                              .op = op,
                              .dtype = a->dtype};

    memcpy(args.shape, y->shape, sizeof args.shape);
    fsdp__broadcast_strides(a, y, args.a_strides);
    if (b)
        fsdp__broadcast_strides(b, y, args.b_strides);
    return fsdp__launch_binary(fsdp__op_stream(y), &args);
}

/* Holds the state of a node: the function, and what its inputs look like. */
typedef struct binary_state {
    fsdp__binary_op kind;
    float scalar, beta;
    fsdp__shape shapes[2];
} binary_state;

/* ---- add, sub ---- */

static fsdp_status add_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const binary_state *state = fsdp__node_state(node);
    fsdp_tensor *dy = grads[0];

    if (fsdp__node_needs(node, 1) && state->kind == FSDP__SUB) {
        fsdp_tensor *from = fsdp__op_contiguous(dy), *negative;

        FSDP__TRY_MADE(negative = !from                       ? NULL
                                  : fsdp__node_needs(node, 0) ? fsdp__empty_like(from, from->dtype)
                                                              : fsdp__op_reuse(from));
        FSDP_TRY(fsdp__op_scale(from, -1.0f, NULL, negative));
        FSDP_TRY(fsdp__give_summed(node, 1, negative, &state->shapes[1]));
    } else {
        FSDP_TRY(fsdp__give_summed(node, 1, dy, &state->shapes[1]));
    }
    return fsdp__give_summed(node, 0, dy, &state->shapes[0]);
}

/* ---- mul ---- */

/* Gives dy * other to input `input`. */
static fsdp_status mul_give(fsdp__node *node, int input, fsdp_tensor *dy, const fsdp_tensor *other, bool last)
{
    const binary_state *state = fsdp__node_state(node);
    fsdp_tensor *out;

    if (!fsdp__node_needs(node, input))
        return FSDP_OK;
    FSDP__TRY_MADE(out = last ? fsdp__op_reuse(dy) : fsdp__empty_like(dy, dy->dtype));
    FSDP_TRY(fsdp__binary_compute(FSDP__MUL, dy, other, 0.0f, 0.0f, out));
    return fsdp__give_summed(node, input, out, &state->shapes[input]);
}

static fsdp_status mul_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *a = fsdp__by_rows(fsdp__node_saved(node, 0)), *b = fsdp__by_rows(fsdp__node_saved(node, 1));
    fsdp_tensor *dy = fsdp__by_rows(grads[0]);

    if (!dy || (!a && fsdp__node_needs(node, 1)) || (!b && fsdp__node_needs(node, 0)))
        return fsdp_last_status();
    FSDP_TRY(mul_give(node, 1, dy, a, !fsdp__node_needs(node, 0)));
    return mul_give(node, 0, dy, b, true);
}

/* ---- the other functions ---- */

fsdp_status fsdp__binary_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const binary_state *state = fsdp__node_state(node);
    fsdp_tensor *a = fsdp__by_rows(fsdp__node_saved(node, 0)), *b = fsdp__by_rows(fsdp__node_saved(node, 1));
    fsdp_tensor *dy = fsdp__by_rows(grads[0]), *da = NULL, *db = NULL;

    if (!fsdp__node_saved(node, 0)) /* the left gradient of a quotient needs only the right input */
        a = b;
    if (!a || !dy || (!b && fsdp__node_saved(node, 1)))
        return fsdp_last_status();
    fsdp__binary_backward_args args = {.forward = {.a = fsdp_tensor_data(a),
                                                   .b = b ? fsdp_tensor_data(b) : NULL,
                                                   .ndim = dy->ndim,
                                                   .scalar = state->scalar,
                                                   .beta = state->beta,
                                                   .op = state->kind,
                                                   .dtype = dy->dtype},
                                       .dy = fsdp_tensor_data(dy)};

    if (fsdp__node_needs(node, 1) && !(db = fsdp__empty_like(dy, dy->dtype)))
        return fsdp_last_status();
    if (fsdp__node_needs(node, 0) && !(da = fsdp__op_reuse(dy)))
        return fsdp_last_status();
    args.da = da ? fsdp_tensor_data(da) : NULL;
    args.db = db ? fsdp_tensor_data(db) : NULL;
    memcpy(args.forward.shape, dy->shape, sizeof args.forward.shape);
    memcpy(args.dy_strides, dy->strides, sizeof args.dy_strides);
    fsdp__broadcast_strides(a, dy, args.forward.a_strides);
    if (b)
        fsdp__broadcast_strides(b, dy, args.forward.b_strides);
    FSDP_TRY(fsdp__launch_binary_backward(fsdp__op_stream(dy), &args));
    if (db)
        FSDP_TRY(fsdp__give_summed(node, 1, db, &state->shapes[1]));
    return da ? fsdp__give_summed(node, 0, da, &state->shapes[0]) : FSDP_OK;
}

fsdp_status fsdp__binary_slopes(fsdp__binary_op op, const fsdp_tensor *a, const fsdp_tensor *b, const fsdp_tensor *dy,
                                fsdp_tensor *da)
{
    fsdp__binary_backward_args args = {
        .forward = {.a = fsdp_tensor_data(a), .b = fsdp_tensor_data(b), .ndim = da->ndim, .op = op, .dtype = da->dtype},
        .dy = fsdp_tensor_data(dy),
        .da = fsdp_tensor_data(da)};

    memcpy(args.forward.shape, da->shape, sizeof args.forward.shape);
    fsdp__broadcast_strides(dy, da, args.dy_strides);
    fsdp__broadcast_strides(a, da, args.forward.a_strides);
    fsdp__broadcast_strides(b, da, args.forward.b_strides);
    return fsdp__launch_binary_backward(fsdp__op_stream(da), &args);
}

/* Chooses what the gradients of the inputs need. */
static void save(fsdp__binary_op kind, fsdp_tensor *a, fsdp_tensor *b, fsdp_tensor *saved[2])
{
    bool none = kind == FSDP__ADD || kind == FSDP__SUB, product = kind == FSDP__MUL;

    saved[0] = !none && (fsdp_tensor_requires_grad(b) || (!product && kind != FSDP__DIV)) ? a : NULL;
    saved[1] = !none && (fsdp_tensor_requires_grad(a) || !product) ? b : NULL;
}

static fsdp__rule rule_of(fsdp__binary_op kind)
{
    if (kind == FSDP__MUL)
        return FSDP__RULE_PRODUCT;
    return kind == FSDP__ADD || kind == FSDP__SUB ? FSDP__RULE_SUM
           : kind == FSDP__DIV                    ? FSDP__RULE_LINEAR
                                                  : FSDP__RULE_POINTWISE;
}

fsdp_tensor *fsdp__binary(const fsdp__op *op, fsdp__binary_op kind, fsdp_tensor *a, fsdp_tensor *b, float beta)
{
    static const fsdp__traits others, sum = {.sums = true};
    fsdp_tensor *inputs[] = {a, b}, *saved[2], *left, *right, *y;
    binary_state state = {.kind = kind, .beta = beta};
    fsdp__shape shape;

    if (a && b && fsdp__is_global(inputs, 2)) {
        fsdp__global_call call = {.name = op->name, .rule = rule_of(kind), .inputs = inputs, .count = 2};

        return fsdp__global_begin(&call)
                   ? fsdp__global_end(&call, fsdp__binary(op, kind, call.parts[0], call.parts[1], beta))
                   : NULL;
    }
    if (!a || !b || !fsdp__op_inputs(op->name, inputs, 2) || !fsdp__op_same_dtype(op->name, inputs, 2))
        return NULL;
    shape = state.shapes[0] = fsdp__shape_of(a);
    state.shapes[1] = fsdp__shape_of(b);
    if (!fsdp__broadcast_with(op->name, a, b, &shape))
        return NULL;
    left = fsdp__by_rows(a);
    right = fsdp__by_rows(b);
    y = fsdp_empty(a->storage->device, a->dtype, shape.ndim, shape.sizes);
    if (!left || !right || !y || fsdp__binary_compute(kind, left, right, 0.0f, beta, y) != FSDP_OK)
        return NULL;
    save(kind, a, b, saved);
    if (fsdp__record_with(kind == FSDP__ADD ? &sum : &others, op, inputs, 2, &y, 1, saved, 2, &state, sizeof state) !=
        FSDP_OK)
        return NULL;
    return y;
}

#define BINARY(function, KIND, backward_of)                                             \
    static const fsdp__op function##_op = {.name = #function, .backward = backward_of}; \
    fsdp_tensor *fsdp_##function(fsdp_tensor *a, fsdp_tensor *b)                        \
    {                                                                                   \
        return fsdp__binary(&function##_op, FSDP__##KIND, a, b, 0.0f);                  \
    }

BINARY(add, ADD, add_backward)
BINARY(sub, SUB, add_backward)
BINARY(mul, MUL, mul_backward)
BINARY(div, DIV, fsdp__binary_backward)
BINARY(pow, POW, fsdp__binary_backward)
BINARY(maximum, MAXIMUM, fsdp__binary_backward)
BINARY(minimum, MINIMUM, fsdp__binary_backward)

/* ---- the second operand is a number ---- */

static const fsdp__op add_scalar_op = {.name = "add_scalar", .backward = add_backward};
static const fsdp__op pow_scalar_op = {.name = "pow_scalar", .backward = fsdp__binary_backward};

static fsdp_tensor *with_number(const fsdp__op *op, fsdp__binary_op kind, fsdp_tensor *x, double number)
{
    binary_state state = {.kind = kind, .scalar = (float)number};
    fsdp_tensor *saved = kind == FSDP__POW ? x : NULL, *from, *y;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_POINTWISE, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, with_number(op, kind, call.parts[0], number)) : NULL;
    }
    if (!x || !fsdp__op_inputs(op->name, &x, 1) || !fsdp__op_same_dtype(op->name, &x, 1))
        return NULL;
    state.shapes[0] = fsdp__shape_of(x);
    from = fsdp__by_rows(x);
    y = fsdp__empty_like(x, x->dtype);
    if (!from || !y || fsdp__binary_compute(kind, from, NULL, (float)number, 0.0f, y) != FSDP_OK)
        return NULL;
    /* the second input, and what is saved of it, are NULL */
    if (fsdp__record(op, (fsdp_tensor *[]){x, NULL}, 2, &y, 1, (fsdp_tensor *[]){saved, NULL}, 2, &state,
                     sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_add_scalar(fsdp_tensor *x, double number)
{
    return with_number(&add_scalar_op, FSDP__ADD, x, number);
}

fsdp_tensor *fsdp_pow_scalar(fsdp_tensor *x, double exponent)
{
    if (exponent == 2.0)
        return fsdp_square(x);
    if (exponent == 0.5)
        return fsdp_sqrt(x);
    if (exponent == -0.5)
        return fsdp_rsqrt(x);
    if (exponent == -1.0)
        return fsdp_reciprocal(x);
    return with_number(&pow_scalar_op, FSDP__POW, x, exponent);
}

fsdp_tensor *fsdp_scalar(fsdp_tensor *like, double value)
{
    return like ? fsdp_full(like->storage->device, like->dtype, 0, NULL, value) : NULL;
}
