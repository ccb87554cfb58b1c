/* linear.c - x W^T + b (linear) and x W + b (GPT-2's conv1d). */
#include "ops/op.h"

#include <string.h>

typedef struct linear_state {
    bool conv1d;
} linear_state;

/* Computes dW [+]= dy^T x, (O,C); conv1d: x^T dy, (C,O). Accumulates straight into the leaf's gradient. */
static fsdp_status weight_gradient(fsdp__node *node, fsdp__matrix dy, bool conv1d)
{
    fsdp_tensor *dweight;
    fsdp__matrix x; /* (rows,C) */
    bool accumulate;

    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, 0), &x));
    FSDP_TRY(fsdp__node_target(node, 1, &dweight, &accumulate));
    return conv1d ? fsdp__gemm(fsdp__matrix_transposed(x), dy, NULL, dweight, accumulate)
                  : fsdp__gemm(fsdp__matrix_transposed(dy), x, NULL, dweight, accumulate);
}

/* Computes dx [+]= dy W, (rows,C); conv1d: dy W^T. */
static fsdp_status input_gradient(fsdp__node *node, fsdp__matrix dy, bool conv1d)
{
    fsdp_tensor *dx;
    fsdp__matrix weight;
    bool accumulate;

    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, 1), &weight));
    FSDP_TRY(fsdp__node_target(node, 0, &dx, &accumulate));
    return fsdp__gemm(dy, conv1d ? fsdp__matrix_transposed(weight) : weight, NULL, dx, accumulate);
}

static fsdp_status linear_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const linear_state *state = fsdp__node_state(node);
    fsdp_tensor *grad = fsdp__op_contiguous(grads[0]); /* (...,O) */
    fsdp__matrix dy;                                   /* (rows,O) */

    if (!grad)
        return fsdp_last_status();
    FSDP_TRY(fsdp__matrix_of(grad, &dy));
    if (fsdp__node_needs(node, 0))
        FSDP_TRY(input_gradient(node, dy, state->conv1d));
    if (fsdp__node_needs(node, 1))
        FSDP_TRY(weight_gradient(node, dy, state->conv1d));
    if (fsdp__node_needs(node, 2)) {
        fsdp_tensor *dbias; /* (O) */
        bool accumulate;

        FSDP_TRY(fsdp__node_target(node, 2, &dbias, &accumulate));
        FSDP_TRY(fsdp__op_reduce(grad, 1, dy.rows, dy.cols, 1.0f, dbias, accumulate));
    }
    return FSDP_OK;
}

static const fsdp__op linear_op = {.name = "linear", .backward = linear_backward};
static const fsdp__op conv1d_op = {.name = "conv1d", .backward = linear_backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT, .last_leaf_first = true};

/* Computes y (...,O). */
static fsdp_tensor *product(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, const int64_t *shape, bool conv1d)
{
    fsdp_tensor *y = fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
    fsdp__matrix a, b;

    if (!y || fsdp__matrix_of(x, &a) != FSDP_OK || fsdp__matrix_of(weight, &b) != FSDP_OK ||
        fsdp__gemm(a, conv1d ? b : fsdp__matrix_transposed(b), fsdp__op_contiguous(bias), y, false) != FSDP_OK)
        return NULL;
    return y;
}

static fsdp_tensor *apply(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, bool conv1d)
{
    fsdp_tensor *inputs[] = {x, weight, bias == FSDP_NO_BIAS ? NULL : bias}, *saved[2], *y;
    const linear_state state = {conv1d};
    int64_t shape[FSDP_MAX_DIMS];

    if (!x || !weight || !bias || !fsdp__op_inputs(op->name, inputs, 3) || !fsdp__op_same_dtype(op->name, inputs, 3))
        return NULL;
    if (weight->ndim != 2)
        return fsdp__op_bad(op->name, "weight", "a matrix", weight);
    if (x->ndim < 1 || fsdp__op_last(x) != weight->shape[conv1d ? 0 : 1])
        return fsdp__op_misfit(op->name, "input", x, "weight", weight);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = weight->shape[conv1d ? 1 : 0];
    if (inputs[2] && (bias->ndim != 1 || bias->shape[0] != shape[x->ndim - 1]))
        return fsdp__op_misfit(op->name, "bias", bias, "weight", weight);
    if (!fsdp__recall(op, inputs, 3, &y, 1)) {
        y = product(x, weight, inputs[2], shape, conv1d);
        if (!y)
            return NULL;
    }
    saved[0] = fsdp_tensor_requires_grad(weight) ? x : NULL;
    saved[1] = fsdp_tensor_requires_grad(x) ? weight : NULL;
    if (fsdp__record_with(&traits, op, inputs, 3, &y, 1, saved, 2, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_linear(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    return apply(&linear_op, x, weight, bias, false);
}

fsdp_tensor *fsdp_conv1d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    return apply(&conv1d_op, x, weight, bias, true);
}
