/* binary.c - add and mul: equal shapes, or the second repeated over the leading dimensions of the first. */
#include "ops/op.h"

#include <string.h>

/* Whether b's shape is a's trailing dimensions. */
static bool fits(const fsdp_tensor *a, const fsdp_tensor *b)
{
    return b->ndim <= a->ndim &&
           memcmp(a->shape + (a->ndim - b->ndim), b->shape, (size_t)b->ndim * sizeof *b->shape) == 0;
}

/* y = a op b, all contiguous. */
static fsdp_status compute(fsdp__binary_op op, const fsdp_tensor *a, const fsdp_tensor *b, fsdp_tensor *y)
{
    int64_t numel = fsdp_tensor_numel(a), cols = fsdp_tensor_numel(b);
    const fsdp__binary_args args = {.a = fsdp_tensor_data(a),
                                    .b = fsdp_tensor_data(b),
                                    .y = fsdp_tensor_data(y),
                                    .rows = cols > 0 ? numel / cols : 0,
                                    .cols = cols,
                                    .b_is_row = numel != cols,
                                    .op = op,
                                    .dtype = a->dtype};

    return fsdp__launch_binary(fsdp__op_stream(y), &args);
}

typedef struct binary_state {
    int b_ndim;
    int64_t b_numel;
} binary_state;

/* Gives `grad` (shape of a) to input 1, summed over the dimensions that b was repeated over. */
static fsdp_status give_second(fsdp__node *node, fsdp_tensor *grad)
{
    const binary_state *state = fsdp__node_state(node);
    int64_t numel = fsdp_tensor_numel(grad), cols = state->b_numel;
    fsdp_tensor *db;
    bool accumulate;

    if (grad->ndim == state->b_ndim)
        return fsdp__node_give(node, 1, grad);
    grad = fsdp__op_contiguous(grad);
    if (!grad)
        return fsdp_last_status();
    FSDP_TRY(fsdp__node_target(node, 1, &db, &accumulate));
    return fsdp__op_reduce(grad, 1, cols > 0 ? numel / cols : 0, cols, 1.0f, db, accumulate);
}

/* ---- add ---- */

static fsdp_status add_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    if (fsdp__node_needs(node, 1))
        FSDP_TRY(give_second(node, grads[0]));
    return fsdp__node_give(node, 0, grads[0]);
}

/* ---- mul ---- */

static fsdp_status mul_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *a = fsdp__op_contiguous(fsdp__node_saved(node, 0));
    fsdp_tensor *b = fsdp__op_contiguous(fsdp__node_saved(node, 1));
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]); /* shape of a */
    fsdp_tensor *out;

    if (!dy)
        return fsdp_last_status();
    if (fsdp__node_needs(node, 1)) { /* before dy may be overwritten */
        out = fsdp__node_needs(node, 0) ? fsdp__empty_like(dy, dy->dtype) : fsdp__op_reuse(dy);
        if (!a || !out)
            return fsdp_last_status();
        FSDP_TRY(compute(FSDP__MUL, dy, a, out));
        FSDP_TRY(give_second(node, out));
    }
    if (fsdp__node_needs(node, 0)) {
        out = fsdp__op_reuse(dy);
        if (!b || !out)
            return fsdp_last_status();
        FSDP_TRY(compute(FSDP__MUL, dy, b, out));
        FSDP_TRY(fsdp__node_give(node, 0, out));
    }
    return FSDP_OK;
}

static const fsdp__op add_op = {.name = "add", .backward = add_backward};
static const fsdp__op mul_op = {.name = "mul", .backward = mul_backward};

static fsdp_tensor *apply(const fsdp__op *op, fsdp__binary_op kind, fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *saved[] = {NULL, NULL}, *left, *right, *y;
    binary_state state;

    if (!a || !b || !fsdp__op_inputs(op->name, inputs, 2) || !fsdp__op_same_dtype(op->name, inputs, 2))
        return NULL;
    if (!fits(a, b))
        return fsdp__op_misfit(op->name, "second", b, "first", a);
    left = fsdp__op_contiguous(a);
    right = fsdp__op_contiguous(b);
    y = fsdp__empty_like(a, a->dtype);
    if (!left || !right || !y || compute(kind, left, right, y) != FSDP_OK)
        return NULL;
    if (kind == FSDP__MUL) {
        saved[0] = fsdp_tensor_requires_grad(b) ? a : NULL;
        saved[1] = fsdp_tensor_requires_grad(a) ? b : NULL;
    }
    state = (binary_state){b->ndim, fsdp_tensor_numel(b)};
    if (fsdp__record(op, inputs, 2, &y, 1, saved, 2, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_add(fsdp_tensor *a, fsdp_tensor *b)
{
    return apply(&add_op, FSDP__ADD, a, b);
}

fsdp_tensor *fsdp_mul(fsdp_tensor *a, fsdp_tensor *b)
{
    return apply(&mul_op, FSDP__MUL, a, b);
}
