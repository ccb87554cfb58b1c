/* linear.c - x W^T + b (linear) and x W + b (GPT-2's conv1d), also with a W in fewer bits. */
#include "ops/op.h"

#include "ops/coded_weight.h"

#include <string.h>

typedef struct linear_state {
    bool conv1d;
    fsdp__coded_weight coded;
} linear_state;

/* Gives W as a matrix of `dtype`. `*decoded`, which the caller gives up after the product, may be what it lies in. */
static fsdp_status weight_matrix(const linear_state *state, fsdp_tensor *weight, fsdp_dtype dtype,
                                 fsdp_tensor **decoded, fsdp__matrix *out)
{
    if (!state->coded.code)
        return fsdp__matrix_of(weight, out);
    FSDP_TRY(fsdp__decode_weight(&state->coded, weight, dtype, decoded));
    return fsdp__matrix_of(*decoded, out);
}

/* Computes dW [+]= dy^T x, (O,C); conv1d: x^T dy, (C,O). Accumulates straight into the leaf's gradient. The product may
 * write `*dbias`, if that is not NULL, as well; it is then made NULL. */
static fsdp_status weight_gradient(fsdp__node *node, int weight, fsdp_tensor *input, fsdp__matrix dy, bool conv1d,
                                   fsdp_tensor **dbias)
{
    fsdp_tensor *dweight, *sums = *dbias;
    fsdp__matrix x, a, b; /* (rows,C), (O,rows), (rows,C); conv1d: the last two (C,rows), (rows,O) */
    bool accumulate;

    FSDP_TRY(fsdp__matrix_of(input, &x));
    FSDP_TRY(fsdp__node_target_of_any(node, weight, &dweight, &accumulate));
    a = fsdp__matrix_transposed(conv1d ? x : dy);
    b = conv1d ? dy : x;
    if (!sums || !fsdp__gemm_sums(a, b, dweight, sums, conv1d))
        return fsdp__gemm(a, b, NULL, dweight, accumulate);
    *dbias = NULL;
    return fsdp__gemm_and_sums(a, b, dweight, accumulate, sums, conv1d);
}

fsdp_status fsdp__linear_leaf_gradients(fsdp__node *node, int weight, fsdp_tensor *x, fsdp_tensor *grad, bool conv1d)
{
    fsdp_tensor *dbias = NULL, *fresh; /* (O) */
    bool accumulate = false;
    fsdp__matrix dy; /* (rows,O) */

    FSDP_TRY(fsdp__matrix_of(grad, &dy));
    if (fsdp__node_needs(node, weight + 1))
        FSDP_TRY(fsdp__node_target_of_any(node, weight + 1, &dbias, &accumulate));
    fresh = accumulate ? NULL : dbias;
    if (fsdp__node_needs(node, weight))
        FSDP_TRY(weight_gradient(node, weight, x, dy, conv1d, &fresh));
    dbias = accumulate ? dbias : fresh;
    return dbias ? fsdp__op_reduce(grad, 1, dy.rows, dy.cols, dbias, accumulate) : FSDP_OK;
}

/* Computes dx [+]= dy W, (rows,C); conv1d: dy W^T. */
static fsdp_status input_gradient(fsdp__node *node, fsdp__matrix dy, const linear_state *state)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *decoded = NULL;
    fsdp_tensor *dx;
    fsdp__matrix weight;
    bool accumulate;

    FSDP_TRY(weight_matrix(state, fsdp__node_saved(node, 1), dy.dtype, &decoded, &weight));
    FSDP_TRY(fsdp__node_target(node, 0, &dx, &accumulate));
    return fsdp__gemm(dy, state->conv1d ? fsdp__matrix_transposed(weight) : weight, NULL, dx, accumulate);
}

static fsdp_status linear_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const linear_state *state = fsdp__node_state(node);
    fsdp_tensor *grad = fsdp__op_contiguous(grads[0]); /* (...,O) */
    fsdp__matrix dy;                                   /* (rows,O) */

    FSDP__TRY_MADE(grad);
    FSDP_TRY(fsdp__matrix_of(grad, &dy));
    if (fsdp__node_needs(node, 0))
        FSDP_TRY(input_gradient(node, dy, state));
    return fsdp__linear_leaf_gradients(node, 1, fsdp__node_saved(node, 0), grad, state->conv1d);
}

static const fsdp__op linear_op = {.name = "linear", .backward = linear_backward};
static const fsdp__op conv1d_op = {.name = "conv1d", .backward = linear_backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT, .last_leaf_first = true};

/* Computes y (...,O). */
static fsdp_tensor *product(const linear_state *state, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                            const int64_t *shape)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *decoded = NULL;
    fsdp_tensor *y = fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
    fsdp__matrix a, b;

    if (!y || fsdp__matrix_of(x, &a) != FSDP_OK || weight_matrix(state, weight, x->dtype, &decoded, &b) != FSDP_OK ||
        fsdp__gemm(a, state->conv1d ? b : fsdp__matrix_transposed(b), bias, y, false) != FSDP_OK)
        return NULL;
    return y;
}

/* Sets W's sizes (in,out). Returns false, with a last error, if the tensor does not have the shape for it. */
static bool find_sizes(const fsdp__op *op, const linear_state *state, const fsdp_tensor *weight, int64_t *sizes)
{
    const fsdp__coded_weight *coded = &state->coded;
    bool matrix = weight->ndim == 2;
    int64_t rows = coded->rows, cols = coded->cols;

    if (matrix && !coded->code) {
        rows = weight->shape[0];
        cols = weight->shape[1];
    } else if (!matrix || weight->dtype != FSDP_U8 || weight->shape[0] != fsdp__coded_rows(coded) ||
               weight->shape[1] != fsdp__coded_row_bytes(coded)) {
        fsdp__op_bad(op->name, "weight", coded->code ? "the bytes of all codes" : "a matrix", weight);
        return false;
    }
    sizes[0] = state->conv1d ? rows : cols;
    sizes[1] = state->conv1d ? cols : rows;
    return true;
}

static fsdp_tensor *apply(const fsdp__op *op, linear_state state, fsdp_tensor *x, fsdp_tensor *weight,
                          fsdp_tensor *bias)
{
    fsdp_tensor *inputs[] = {x, weight, bias == FSDP_NO_BIAS ? NULL : bias}, *saved[2], *y;
    fsdp_tensor *floating[] = {x, state.coded.code ? NULL : weight, inputs[2]};
    int64_t shape[FSDP_MAX_DIMS], sizes[2] = {0};

    if (x && weight && bias && !state.coded.code && fsdp__is_global(inputs, 3)) {
        fsdp__rule rule = state.conv1d ? FSDP__RULE_CONV1D : FSDP__RULE_WEIGHT;
        fsdp__global_call call = {.name = op->name, .rule = rule, .inputs = inputs, .count = 3};

        if (!fsdp__global_begin(&call))
            return NULL;
        y = apply(op, state, call.parts[0], call.parts[1], call.parts[2] ? call.parts[2] : FSDP_NO_BIAS);
        return fsdp__global_end(&call, y);
    }
    if (!x || !weight || !bias || !fsdp__op_inputs(op->name, inputs, 3) ||
        !fsdp__op_same_dtype(op->name, floating, 3) || !find_sizes(op, &state, weight, sizes))
        return NULL;
    if (x->ndim < 1 || fsdp__op_last(x) != sizes[0])
        return fsdp__op_misfit(op->name, "input", x, "weight", weight);
    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = sizes[1];
    if (inputs[2] && (bias->ndim != 1 || bias->shape[0] != sizes[1]))
        return fsdp__op_misfit(op->name, "bias", bias, "weight", weight);
    if (!fsdp__recall(op, inputs, 3, &y, 1)) {
        y = product(&state, x, weight, inputs[2], shape);
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
    return apply(&linear_op, (linear_state){.conv1d = false}, x, weight, bias);
}

fsdp_tensor *fsdp_conv1d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    return apply(&conv1d_op, (linear_state){.conv1d = true}, x, weight, bias);
}

fsdp_tensor *fsdp__coded_linear(fsdp_tensor *x, const fsdp__coded_weight *weight, fsdp_tensor *bytes, fsdp_tensor *bias,
                                bool conv1d)
{
    return apply(conv1d ? &conv1d_op : &linear_op, (linear_state){conv1d, *weight}, x, bytes, bias);
}
