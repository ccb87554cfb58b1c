/* softmax.c - softmax and its logarithm over the last dimension. */
#include "ops/op.h"

static fsdp_status softmax_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *y = fsdp__node_saved(node, 0); /* (...,C) */
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]);
    fsdp_tensor *dx = fsdp__empty_like(y, y->dtype);

    FSDP__TRY_MADE(dy && dx);
    const fsdp__softmax_backward_args args = {.y = fsdp_tensor_data(y),
                                              .dy = fsdp_tensor_data(dy),
                                              .dx = fsdp_tensor_data(dx),
                                              .rows = fsdp__op_rows(y),
                                              .cols = fsdp__op_last(y),
                                              .log = *(const bool *)fsdp__node_state(node),
                                              .dtype = y->dtype};
    FSDP_TRY(fsdp__launch_softmax_backward(fsdp__op_stream(y), &args));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op softmax_op = {.name = "softmax", .backward = softmax_backward};
static const fsdp__op log_softmax_op = {.name = "log_softmax", .backward = softmax_backward};

static fsdp_tensor *softmax(const fsdp__op *op, fsdp_tensor *x, bool log)
{
    fsdp_tensor *y, *from;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_ROWS, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, softmax(op, call.parts[0], log)) : NULL;
    }
    from = fsdp__op_of_one(op, x, &y);
    if (!from)
        return NULL;
    const fsdp__softmax_forward_args args = {.x = fsdp_tensor_data(from),
                                             .y = fsdp_tensor_data(y),
                                             .rows = fsdp__op_rows(x),
                                             .cols = fsdp__op_last(x),
                                             .log = log,
                                             .dtype = x->dtype};
    if (fsdp__launch_softmax_forward(fsdp__op_stream(y), &args) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, &y, 1, &log, sizeof log) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_softmax(fsdp_tensor *x)
{
    return softmax(&softmax_op, x, false);
}

fsdp_tensor *fsdp_log_softmax(fsdp_tensor *x)
{
    return softmax(&log_softmax_op, x, true);
}
