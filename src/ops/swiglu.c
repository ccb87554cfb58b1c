/* swiglu.c - gated pairs: silu(gate) * up and gelu_tanh(gate) * up. */
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
    *grad = fsdp__op_gradient(node, input, like);
    if (!*grad)
        return fsdp_last_status();
    FSDP_TRY(fsdp__matrix_of(*grad, out));
    if (out->data == fsdp_tensor_data(*grad) && out->col == 1)
        return FSDP_OK;
    *grad = fsdp__empty_like(like, like->dtype); /* the place's rows are not evenly spaced */
    return *grad ? fsdp__matrix_of(*grad, out) : fsdp_last_status();
}

static fsdp_status swiglu_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dgate, *dup;
    bool needs_up = fsdp__node_needs(node, 0);
    fsdp__matrix gate, up, dy, to_gate, to_up; /* (rows,C) */

    FSDP_TRY(gradient_rows(node, 0, grads[0], &dgate, &to_gate));
    FSDP_TRY(gradient_rows(node, 1, grads[0], &dup, &to_up));
    FSDP_TRY(rows_of(fsdp__node_saved(node, 0), &gate));
    FSDP_TRY(rows_of(fsdp__node_saved(node, needs_up ? 1 : 0), &up)); /* if up was not saved, any numbers will do */
    FSDP_TRY(rows_of(grads[0], &dy));
    const fsdp__swiglu_backward_args args = {.gate = gate.data,
                                             .up = up.data,
                                             .dy = dy.data,
                                             .dgate = fsdp_tensor_data(dgate),
                                             .dup = fsdp_tensor_data(dup),
                                             .rows = gate.rows,
                                             .cols = gate.cols,
                                             .gate_row = gate.row,
                                             .up_row = up.row,
                                             .dy_row = dy.row,
                                             .dgate_row = to_gate.row,
                                             .dup_row = to_up.row,
                                             .dtype = grads[0]->dtype,
                                             .gelu = *(const bool *)fsdp__node_state(node)};
    FSDP_TRY(fsdp__launch_swiglu_backward(fsdp__op_stream(dgate), &args));
    FSDP_TRY(fsdp__node_give(node, 0, dgate));
    return fsdp__node_give(node, 1, dup);
}

static const fsdp__op swiglu_op = {.name = "swiglu", .backward = swiglu_backward};
static const fsdp__op geglu_op = {.name = "geglu_tanh", .backward = swiglu_backward};

static fsdp_tensor *gated(const fsdp__op *op, bool gelu, fsdp_tensor *gate, fsdp_tensor *up)
{
    fsdp_tensor *inputs[] = {gate, up}, *saved[] = {gate, NULL}, *y;
    fsdp__matrix left, right;

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
    if (!y)
        return NULL;
    if (rows_of(gate, &left) != FSDP_OK || rows_of(up, &right) != FSDP_OK)
        return NULL;
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
    if (fsdp__launch_swiglu_forward(fsdp__op_stream(y), &args) != FSDP_OK ||
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
