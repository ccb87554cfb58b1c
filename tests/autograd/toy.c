/* toy.c - the operations, and their gradients. */
#include "autograd/toy.h"

fsdp_tensor *toy_scaled(const fsdp_tensor *x, float factor)
{
    fsdp_tensor *y = fsdp__empty_like(x, x->dtype);
    const fsdp__scale_args args = {.x = fsdp_tensor_data(x),
                                   .y = y ? fsdp_tensor_data(y) : NULL,
                                   .alpha = factor,
                                   .numel = fsdp_tensor_numel(x),
                                   .dtype = x->dtype};

    if (!y || fsdp__launch_scale(fsdp_device_stream(x->storage->device), &args) != FSDP_OK)
        return NULL;
    return y;
}

static fsdp_status toy_scale_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    return fsdp__node_give(node, 0, toy_scaled(grads[0], *(const float *)fsdp__node_state(node)));
}

static const fsdp__op toy_scale_op = {.name = "toy_scale", .backward = toy_scale_backward};

fsdp_tensor *toy_scale(fsdp_tensor *x, float factor)
{
    fsdp_tensor *y = x ? toy_scaled(x, factor) : NULL;

    if (!y || fsdp__record(&toy_scale_op, &x, 1, &y, 1, &x, 1, &factor, sizeof factor) != FSDP_OK)
        return NULL;
    return y;
}

/* Two inputs, one gradient for both, passed on as it is. */
static fsdp_status toy_add_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    FSDP_TRY(fsdp__node_give(node, 0, grads[0]));
    return fsdp__node_give(node, 1, grads[0]);
}

static const fsdp__op toy_add_op = {.name = "toy_add", .backward = toy_add_backward};

fsdp_tensor *toy_add(fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *y = a && b ? toy_scaled(a, 1.0f) : NULL;

    if (!y || fsdp__tensor_copy(y, b, true) != FSDP_OK ||
        fsdp__record(&toy_add_op, inputs, 2, &y, 1, NULL, 0, NULL, 0) != FSDP_OK)
        return NULL;
    return y;
}

/* As toy_scale, writing to the target. */
static fsdp_status toy_target_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    float factor = *(const float *)fsdp__node_state(node);
    fsdp_tensor *target, *dx = toy_scaled(grads[0], factor);
    bool accumulate;

    FSDP_TRY(fsdp__node_target(node, 0, &target, &accumulate));
    if (!dx)
        return fsdp_last_status();
    FSDP_TRY(fsdp__tensor_copy(target, dx, accumulate));
    return factor == 13.0f ? FSDP_FAIL(FSDP_IO, "thirteen") : FSDP_OK;
}

static const fsdp__op toy_target_op = {.name = "toy_target", .backward = toy_target_backward};

fsdp_tensor *toy_target(fsdp_tensor *x, float factor)
{
    fsdp_tensor *y = x ? toy_scaled(x, factor) : NULL;

    if (!y || fsdp__record(&toy_target_op, &x, 1, &y, 1, NULL, 0, &factor, sizeof factor) != FSDP_OK)
        return NULL;
    return y;
}

/* Two outputs: x and 2 x. A gradient for either may be missing. */
static fsdp_status toy_split_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dx = grads[1] ? toy_scaled(grads[1], 2.0f) : grads[0];

    if (!dx)
        return fsdp_last_status();
    if (grads[0] && grads[1])
        FSDP_TRY(fsdp__tensor_copy(dx, grads[0], true));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op toy_split_op = {.name = "toy_split", .backward = toy_split_backward};

fsdp_tensor *toy_split(fsdp_tensor *x, fsdp_tensor **twice)
{
    fsdp_tensor *outputs[] = {toy_scaled(x, 1.0f), toy_scaled(x, 2.0f)};

    if (!outputs[0] || !outputs[1] || fsdp__record(&toy_split_op, &x, 1, outputs, 2, NULL, 0, NULL, 0) != FSDP_OK)
        return NULL;
    *twice = outputs[1];
    return outputs[0];
}

fsdp_context *toy_begin(void)
{
    fsdp_context *context = test_context();

    CHECK_OK(fsdp_scope_begin(context));
    return context;
}

void toy_end(fsdp_context *context)
{
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
}

fsdp_tensor *toy_leaf(fsdp_context *context, float value)
{
    fsdp_tensor *leaf = make_floats(test_device(context), 1, &value);

    CHECK_OK(fsdp_tensor_set_requires_grad(leaf, true));
    return leaf;
}

double toy_grad(const fsdp_tensor *leaf)
{
    return first_of(fsdp_tensor_grad(leaf));
}
