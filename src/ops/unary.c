/* unary.c - functions of one tensor, element by element, that save what their derivative depends on. */
#include "ops/op.h"

typedef struct unary_state {
    fsdp__unary_op kind;
    float low, high;
} unary_state;

static fsdp_status unary_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const unary_state *state = fsdp__node_state(node);
    const fsdp_tensor *saved = fsdp__node_saved(node, 0);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx = fsdp__op_reuse(dy);

    FSDP__TRY_MADE(dx);
    const fsdp__unary_backward_args args = {.saved = fsdp_tensor_data(saved),
                                            .dy = fsdp_tensor_data(dy),
                                            .dx = fsdp_tensor_data(dx),
                                            .numel = fsdp_tensor_numel(dy),
                                            .low = state->low,
                                            .high = state->high,
                                            .op = state->kind,
                                            .dtype = dy->dtype};
    FSDP_TRY(fsdp__launch_unary_backward(fsdp__op_stream(dy), &args));
    return fsdp__node_give(node, 0, dx);
}

static fsdp_tensor *unary(const fsdp__op *op, fsdp_tensor *x, unary_state state)
{
    fsdp_tensor *y, *saved, *from;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_POINTWISE, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, unary(op, call.parts[0], state)) : NULL;
    }
    from = fsdp__op_of_one(op, x, &y);
    if (!from)
        return NULL;
    const fsdp__unary_forward_args args = {.x = fsdp_tensor_data(from),
                                           .y = fsdp_tensor_data(y),
                                           .numel = fsdp_tensor_numel(x),
                                           .low = state.low,
                                           .high = state.high,
                                           .op = state.kind,
                                           .dtype = x->dtype};
    saved = state.kind >= FSDP__LOG ? from : y;
    if (fsdp__launch_unary_forward(fsdp__op_stream(y), &args) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, &saved, 1, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

#define UNARY(function, KIND)                                                              \
    static const fsdp__op function##_op = {.name = #function, .backward = unary_backward}; \
    fsdp_tensor *fsdp_##function(fsdp_tensor *x)                                           \
    {                                                                                      \
        return unary(&function##_op, x, (unary_state){.kind = FSDP__##KIND});              \
    }

UNARY(exp, EXP)
UNARY(ln, LOG)
UNARY(sqrt, SQRT)
UNARY(rsqrt, RSQRT)
UNARY(reciprocal, RECIPROCAL)
UNARY(abs, ABS)
UNARY(square, SQUARE)
UNARY(tanh, TANH)
UNARY(sigmoid, SIGMOID)

static const fsdp__op clamp_op = {.name = "clamp", .backward = unary_backward};

fsdp_tensor *fsdp_clamp(fsdp_tensor *x, double low, double high)
{
    return unary(&clamp_op, x, (unary_state){FSDP__CLAMP, (float)low, (float)high});
}
