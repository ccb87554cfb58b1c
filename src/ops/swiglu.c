/* swiglu.c - gated pairs: silu(gate) * up and gelu_tanh(gate) * up, alone or with the linear behind them, whose input
 * is then not kept. */
#include "ops/op.h"

/* Views a tensor as a matrix whose rows are contiguous and evenly spaced: in place if the strides allow. */
static fsdp_status rows_of(fsdp_tensor *tensor, fsdp__matrix *out)
{
    FSDP_TRY(fsdp__matrix_of(tensor, out));
    if (out->col == 1)
        return FSDP_OK;
    tensor = fsdp__op_contiguous(tensor); /* it was a transposed matrix */
    return tensor ? fsdp__matrix_of(tensor, out) : fsdp_last_status();
}

/* Makes the tensor for the gradient of an input, and views it in the same way. */
static fsdp_status gradient_rows(fsdp__node *node, int input, const fsdp_tensor *like, fsdp_tensor **grad,
                                 fsdp__matrix *out)
{
    FSDP__TRY_MADE(*grad = fsdp__op_gradient(node, input, like));
    FSDP_TRY(fsdp__matrix_of(*grad, out));
    if (out->data == fsdp_tensor_data(*grad) && out->col == 1)
        return FSDP_OK;
    *grad = fsdp__empty_like(like, like->dtype); /* the place's rows are not evenly spaced */
    return *grad ? fsdp__matrix_of(*grad, out) : fsdp_last_status();
}

/* Gives the gradients of gate and up, for that of their result y. With `again` y takes the place of that gradient. */
static fsdp_status pair_gradients(fsdp__node *node, bool gelu, fsdp_tensor *grad, bool again)
{
    fsdp_tensor *dgate, *dup;
    bool needs_up = fsdp__node_needs(node, 0);
    fsdp__matrix gate, up, dy, to_gate, to_up; /* (rows,C) */

    FSDP_TRY(gradient_rows(node, 0, grad, &dgate, &to_gate));
    FSDP_TRY(gradient_rows(node, 1, grad, &dup, &to_up));
    FSDP_TRY(rows_of(fsdp__node_saved(node, 0), &gate));
    FSDP_TRY(rows_of(fsdp__node_saved(node, needs_up ? 1 : 0), &up)); /* if up was not saved, any numbers will do */
    FSDP_TRY(rows_of(grad, &dy));
    const fsdp__swiglu_backward_args args = {.gate = gate.data,
                                             .up = up.data,
                                             .dy = dy.data,
                                             .dgate = fsdp_tensor_data(dgate),
                                             .dup = fsdp_tensor_data(dup),
                                             .y = again ? fsdp_tensor_data(grad) : NULL,
                                             .rows = gate.rows,
                                             .cols = gate.cols,
                                             .gate_row = gate.row,
                                             .up_row = up.row,
                                             .dy_row = dy.row,
                                             .dgate_row = to_gate.row,
                                             .dup_row = to_up.row,
                                             .y_row = dy.row,
                                             .dtype = grad->dtype,
                                             .gelu = gelu};
    FSDP_TRY(fsdp__launch_swiglu_backward(fsdp__op_stream(dgate), &args));
    FSDP_TRY(fsdp__node_give(node, 0, dgate));
    return fsdp__node_give(node, 1, dup);
}

static fsdp_status swiglu_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    return pair_gradients(node, *(const bool *)fsdp__node_state(node), grads[0], false);
}

static const fsdp__op swiglu_op = {.name = "swiglu", .backward = swiglu_backward};
static const fsdp__op geglu_op = {.name = "geglu_tanh", .backward = swiglu_backward};

/* Computes y = f(gate) * up; y is contiguous. */
static fsdp_status pair(fsdp_tensor *gate, fsdp_tensor *up, bool gelu, fsdp_tensor *y)
{
    fsdp__matrix left, right;

    FSDP_TRY(rows_of(gate, &left));
    FSDP_TRY(rows_of(up, &right));
    const fsdp__swiglu_forward_args args = {.gate = left.data,
                                            .up = right.data,
                                            .y = fsdp_tensor_data(y),
                                            .rows = left.rows,
                                            .cols = left.cols,
                                            .gate_row = left.row,
                                            .up_row = right.row,
                                            .y_row = left.cols,
                                            .dtype = gate->dtype,
                                            .gelu = gelu};
    return fsdp__launch_swiglu_forward(fsdp__op_stream(y), &args);
}

static fsdp_tensor *gated(const fsdp__op *op, bool gelu, fsdp_tensor *gate, fsdp_tensor *up)
{
    fsdp_tensor *inputs[] = {gate, up}, *saved[] = {gate, NULL}, *y;

    if (gate && up && fsdp__is_global(inputs, 2)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_POINTWISE, .inputs = inputs, .count = 2};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, gated(op, gelu, call.parts[0], call.parts[1]))
                                         : NULL;
    }
    if (!gate || !up || !fsdp__op_inputs(op->name, inputs, 2) || !fsdp__op_same_dtype(op->name, inputs, 2))
        return NULL;
    saved[1] = fsdp_tensor_requires_grad(gate) ? up : NULL;
    if (gate->ndim < 1 || !fsdp__shape_equal(gate, up))
        return fsdp__op_misfit(op->name, "gate", gate, "up", up);
    if (fsdp_tensor_numel(gate) == 0) /* nothing, but with a gradient: the backward may communicate before it */
        return fsdp_mul(gate, up);
    y = fsdp__empty_like(gate, gate->dtype); /* (...,C) */
    if (!y || pair(gate, up, gelu, y) != FSDP_OK ||
        fsdp__record(op, inputs, 2, &y, 1, saved, 2, &gelu, sizeof gelu) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_swiglu(fsdp_tensor *gate, fsdp_tensor *up)
{
    return gated(&swiglu_op, false, gate, up);
}

fsdp_tensor *fsdp_geglu_tanh(fsdp_tensor *gate, fsdp_tensor *up)
{
    return gated(&geglu_op, true, gate, up);
}

/* ---- the pair and the linear behind it ---- */

enum {
    WEIGHT = 2, /* and behind it its bias */
    INPUTS = 4
};

static bool linear_fits(const fsdp__gated_linear *m)
{
    const fsdp_tensor *weight = m->weight, *bias = m->bias == FSDP_NO_BIAS ? NULL : m->bias;

    return weight->ndim == 2 && weight->shape[1] == fsdp__op_last(m->gate) && weight->dtype == m->gate->dtype &&
           (!bias || (bias->ndim == 1 && bias->shape[0] == weight->shape[0] && bias->dtype == weight->dtype));
}

bool fsdp__gated_linear_joins(const fsdp__gated_linear *m)
{
    fsdp_tensor *inputs[INPUTS] = {m->gate, m->up, m->weight, m->bias == FSDP_NO_BIAS ? NULL : m->bias};

    if (!m->gate || !m->up || !m->weight || !m->bias || fsdp__is_global(inputs, INPUTS) ||
        !fsdp__device_makes_again(m->gate->storage->device) || !fsdp__will_record(inputs, INPUTS) ||
        fsdp__in_recomputation(fsdp_device_context(m->gate->storage->device)))
        return false;
    for (int i = 0; i <= WEIGHT; i++)
        if (!fsdp_tensor_requires_grad(inputs[i]) || inputs[i]->storage->device != m->gate->storage->device)
            return false;
    return m->gate->ndim >= 1 && fsdp_tensor_numel(m->gate) > 0 && fsdp__shape_equal(m->gate, m->up) &&
           m->up->dtype == m->gate->dtype && fsdp_dtype_is_floating(m->gate->dtype) && linear_fits(m);
}

/* y has the place of its gradient when the product that makes the weight's gradient reads it. */
static fsdp_status gated_linear_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *dy = NULL;
    fsdp_tensor *gate = fsdp__node_saved(node, 0), *dz = fsdp__op_contiguous(grads[0]);
    fsdp__matrix a, weight;

    FSDP__TRY_MADE(dz);
    FSDP_TRY(fsdp__op_wide(gate, fsdp__op_last(gate), &dy));
    FSDP_TRY(fsdp__matrix_of(dz, &a));
    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, WEIGHT), &weight));
    FSDP_TRY(fsdp__gemm(a, weight, NULL, dy, false));
    FSDP_TRY(pair_gradients(node, *(const bool *)fsdp__node_state(node), dy, true));
    return fsdp__linear_leaf_gradients(node, WEIGHT, dy, dz, false);
}

static const fsdp__op gated_linear_op = {.name = "gated_linear", .backward = gated_linear_backward};
static const fsdp__traits gated_linear_traits = {.last_leaf_first = true};

static fsdp_status gated_product(const fsdp__gated_linear *m, fsdp_tensor *z)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *y = NULL;
    fsdp_tensor *bias = m->bias == FSDP_NO_BIAS ? NULL : m->bias;
    fsdp__matrix a, weight;

    FSDP_TRY(fsdp__op_wide(m->gate, fsdp__op_last(m->gate), &y));
    FSDP_TRY(pair(m->gate, m->up, m->gelu, y));
    FSDP_TRY(fsdp__matrix_of(y, &a));
    FSDP_TRY(fsdp__matrix_of(m->weight, &weight));
    return fsdp__gemm(a, fsdp__matrix_transposed(weight), bias, z, false);
}

fsdp_tensor *fsdp__gated_linear_apply(const fsdp__gated_linear *m)
{
    fsdp_tensor *inputs[INPUTS] = {m->gate, m->up, m->weight, m->bias == FSDP_NO_BIAS ? NULL : m->bias};
    fsdp_tensor *z = NULL;

    if (!fsdp__op_inputs(gated_linear_op.name, inputs, INPUTS) ||
        fsdp__op_wide(m->gate, m->weight->shape[0], &z) != FSDP_OK)
        return NULL;
    z = fsdp__scope_adopt(z);
    if (!z || gated_product(m, z) != FSDP_OK ||
        fsdp__record_with(&gated_linear_traits, &gated_linear_op, inputs, INPUTS, &z, 1, inputs, WEIGHT + 1, &m->gelu,
                          sizeof m->gelu) != FSDP_OK)
        return NULL;
    return z;
}
