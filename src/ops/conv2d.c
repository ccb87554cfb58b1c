/* conv2d.c - two-dimensional convolution. */
#include "ops/op.h"

#include "ops/moving_window.h"

enum {
    X,
    WEIGHT,
    BIAS,
    INPUTS
};

static bool empty(const fsdp__conv2d_sizes *s)
{
    return s->batch == 0;
}

/* Computes dbias [+]= dy (N,O,H,W) summed over all but O. */
static fsdp_status bias_gradient(fsdp__node *node, const fsdp__conv2d_sizes *s, fsdp_tensor *dy)
{
    fsdp_tensor *by_image, *dbias;
    bool accumulate;

    FSDP_TRY(fsdp__node_target(node, BIAS, &dbias, &accumulate));
    by_image = fsdp_empty(dy->storage->device, FSDP_F32, 2, (const int64_t[]){s->batch, s->out}); /* (N,O) */
    FSDP__TRY_MADE(by_image);
    if (!empty(s))
        FSDP_TRY(fsdp__op_reduce(dy, s->batch * s->out, s->out_height * s->out_width, 1, by_image, false));
    return fsdp__op_reduce(by_image, 1, s->batch, s->out, dbias, accumulate);
}

static fsdp_status input_gradient(fsdp__node *node, const fsdp__conv2d_sizes *s, const fsdp_tensor *dy)
{
    fsdp_tensor *weight = fsdp__op_contiguous(fsdp__node_saved(node, WEIGHT)), *dx;
    fsdp__conv2d_input_args args = {.dy = fsdp_tensor_data(dy), .sizes = *s};

    FSDP__TRY_MADE(weight);
    FSDP_TRY(fsdp__node_target(node, X, &dx, &args.accumulate));
    args.weight = fsdp_tensor_data(weight);
    args.dx = fsdp_tensor_data(dx);
    return empty(s) ? FSDP_OK : fsdp__launch_conv2d_input(fsdp__op_stream(dy), &args);
}

static fsdp_status weight_gradient(fsdp__node *node, const fsdp__conv2d_sizes *s, const fsdp_tensor *dy)
{
    fsdp_tensor *x = fsdp__op_contiguous(fsdp__node_saved(node, X)), *dweight;
    fsdp__conv2d_weight_args args = {.dy = fsdp_tensor_data(dy), .sizes = *s};

    FSDP__TRY_MADE(x);
    FSDP_TRY(fsdp__node_target(node, WEIGHT, &dweight, &args.accumulate));
    args.x = fsdp_tensor_data(x);
    args.dweight = fsdp_tensor_data(dweight);
    if (empty(s))
        return args.accumulate ? FSDP_OK : fsdp_tensor_fill_(dweight, 0.0);
    return fsdp__launch_conv2d_weight(fsdp__op_stream(dy), &args);
}

static fsdp_status conv2d_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const fsdp__conv2d_sizes *s = fsdp__node_state(node);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]);

    FSDP__TRY_MADE(dy);
    if (fsdp__node_needs(node, X))
        FSDP_TRY(input_gradient(node, s, dy));
    if (fsdp__node_needs(node, WEIGHT))
        FSDP_TRY(weight_gradient(node, s, dy));
    return fsdp__node_needs(node, BIAS) ? bias_gradient(node, s, dy) : FSDP_OK;
}

static const fsdp__op conv2d_op = {.name = "conv2d", .backward = conv2d_backward};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT, .last_leaf_first = true};

/* ---- forward ---- */

static bool sizes_of(const fsdp_tensor *x, const fsdp_tensor *weight, const fsdp_conv2d_options *options,
                     fsdp__conv2d_sizes *out)
{
    const fsdp_conv2d_options plain = {.stride = {1, 1}}, *o = options ? options : &plain;
    int64_t groups = o->groups ? o->groups : 1, to[2];
    fsdp__window w;

    if (x->ndim != 4)
        return fsdp__op_bad("conv2d", "input", "of dimensions (N,C,H,W)", x);
    if (weight->ndim != 4 || fsdp_tensor_numel(weight) == 0)
        return fsdp__op_bad("conv2d", "weight", "of dimensions (O,C/groups,kh,kw), none of them 0", weight);
    if (groups < 1 || x->shape[1] % groups != 0 || weight->shape[0] % groups != 0) {
        FSDP_FAIL(FSDP_INVALID, "conv2d: %lld channels in and %lld out cannot be divided into %lld groups",
                  (long long)x->shape[1], (long long)weight->shape[0], (long long)groups);
        return false;
    }
    if (weight->shape[1] != x->shape[1] / groups)
        return fsdp__op_misfit("conv2d", "input", x, "weight", weight);
    if (!fsdp__window_make("conv2d", weight->shape + 2, o->stride, o->padding, o->dilation, &w) ||
        !fsdp__window_result("conv2d", &w, x, to))
        return false;
    *out = (fsdp__conv2d_sizes){.batch = x->shape[0],
                                .groups = groups,
                                .in = x->shape[1],
                                .in_height = x->shape[2],
                                .in_width = x->shape[3],
                                .out = weight->shape[0],
                                .out_height = to[0],
                                .out_width = to[1],
                                .kernel_height = w.kernel[0],
                                .kernel_width = w.kernel[1],
                                .stride = {w.stride[0], w.stride[1]},
                                .padding = {w.padding[0], w.padding[1]},
                                .dilation = {w.dilation[0], w.dilation[1]},
                                .dtype = x->dtype};
    return true;
}

static fsdp_tensor *convolve(fsdp_tensor *const *inputs, const fsdp__conv2d_sizes *s)
{
    fsdp_tensor *in[INPUTS], *y;
    fsdp__conv2d_forward_args args = {.sizes = *s};

    for (int i = 0; i < INPUTS; i++) {
        in[i] = fsdp__op_contiguous(inputs[i]);
        if (inputs[i] && !in[i])
            return NULL;
    }
    y = fsdp_empty(in[X]->storage->device, s->dtype, 4,
                   (const int64_t[]){s->batch, s->out, s->out_height, s->out_width});
    if (!y || empty(s))
        return y;
    args.x = fsdp_tensor_data(in[X]);
    args.weight = fsdp_tensor_data(in[WEIGHT]);
    args.bias = in[BIAS] ? fsdp_tensor_data(in[BIAS]) : NULL;
    args.y = fsdp_tensor_data(y);
    return fsdp__launch_conv2d_forward(fsdp__op_stream(y), &args) == FSDP_OK ? y : NULL;
}

fsdp_tensor *fsdp_conv2d(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, const fsdp_conv2d_options *options)
{
    fsdp_tensor *inputs[] = {x, weight, bias == FSDP_NO_BIAS ? NULL : bias}, *saved[2], *y;
    fsdp__conv2d_sizes sizes;

    if (!x || !weight || !bias || !fsdp__op_inputs("conv2d", inputs, INPUTS) ||
        !fsdp__op_same_dtype("conv2d", inputs, INPUTS) || !sizes_of(x, weight, options, &sizes))
        return NULL;
    if (inputs[BIAS] && (bias->ndim != 1 || bias->shape[0] != sizes.out))
        return fsdp__op_misfit("conv2d", "bias", bias, "weight", weight);
    if (!fsdp__recall(&conv2d_op, inputs, INPUTS, &y, 1)) {
        y = convolve(inputs, &sizes);
        if (!y)
            return NULL;
    }
    saved[X] = fsdp_tensor_requires_grad(weight) ? x : NULL;
    saved[WEIGHT] = fsdp_tensor_requires_grad(x) ? weight : NULL;
    if (fsdp__record_with(&traits, &conv2d_op, inputs, INPUTS, &y, 1, saved, 2, &sizes, sizeof sizes) != FSDP_OK)
        return NULL;
    return y;
}
