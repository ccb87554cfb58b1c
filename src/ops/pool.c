/* pool.c - max and average over windows of (N,C,H,W). */
#include "ops/moving_window.h"

static int64_t planes(const fsdp_tensor *x)
{
    return x->shape[0] * x->shape[1];
}

static fsdp_status pool_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *index = fsdp__node_saved(node, 0), *dx;
    fsdp__pool_backward_args args = {.sizes = *(const fsdp__pool_sizes *)fsdp__node_state(node)};

    FSDP__TRY_MADE(dy);
    FSDP_TRY(fsdp__node_target(node, 0, &dx, &args.accumulate));
    if (args.sizes.planes == 0)
        return FSDP_OK;
    args.dy = fsdp_tensor_data(dy);
    args.index = index ? fsdp_tensor_data(index) : NULL;
    args.dx = fsdp_tensor_data(dx);
    return fsdp__launch_pool_backward(fsdp__op_stream(dy), &args);
}

static const fsdp__op max_op = {.name = "max_pool2d", .backward = pool_backward};
static const fsdp__op avg_op = {.name = "avg_pool2d", .backward = pool_backward};
static const fsdp__op adaptive_op = {.name = "adaptive_avg_pool2d", .backward = pool_backward};

static bool check_input(const char *op, fsdp_tensor *x)
{
    if (!x || !fsdp__op_inputs(op, &x, 1) || !fsdp__op_same_dtype(op, &x, 1))
        return false;
    if (x->ndim != 4 || x->shape[2] < 1 || x->shape[3] < 1 || x->shape[2] * x->shape[3] > INT32_MAX)
        return fsdp__op_bad(op, "input", "of dimensions (N,C,H,W), height and width at least 1,", x);
    return true;
}

/* Computes y (N,C,out); the sizes are complete except for those of x. */
static fsdp_tensor *apply(const fsdp__op *op, fsdp_tensor *x, fsdp__pool_sizes s)
{
    fsdp_tensor *from = fsdp__op_contiguous(x), *y, *index = NULL;
    const int64_t shape[] = {x->shape[0], x->shape[1], s.out[0], s.out[1]};
    fsdp__pool_forward_args args;

    s.planes = planes(x);
    s.in[0] = x->shape[2], s.in[1] = x->shape[3];
    s.dtype = x->dtype;
    y = fsdp_empty(x->storage->device, x->dtype, 4, shape);
    if (!from || !y)
        return NULL;
    if (s.kind == FSDP__POOL_MAX && fsdp__will_record(&x, 1)) {
        index = fsdp_empty(x->storage->device, FSDP_I32, 4, shape);
        if (!index)
            return NULL;
    }
    args = (fsdp__pool_forward_args){.x = fsdp_tensor_data(from),
                                     .y = fsdp_tensor_data(y),
                                     .index = index ? fsdp_tensor_data(index) : NULL,
                                     .sizes = s};
    if (s.planes > 0 && fsdp__launch_pool_forward(fsdp__op_stream(y), &args) != FSDP_OK)
        return NULL;
    return fsdp__record(op, &x, 1, &y, 1, &index, 1, &s, sizeof s) == FSDP_OK ? y : NULL;
}

static fsdp_tensor *pool(const fsdp__op *op, fsdp_tensor *x, const fsdp_pool2d_options *o, fsdp__pooling kind)
{
    fsdp__pool_sizes s = {.kind = kind, .count_padding = o && !o->exclude_padding};
    int64_t stride[2];
    fsdp__window w;

    if (!check_input(op->name, x))
        return NULL;
    if (!o) {
        FSDP_FAIL(FSDP_INVALID, "%s: options with a kernel are required", op->name);
        return NULL;
    }
    for (int i = 0; i < 2; i++)
        stride[i] = o->stride[i] ? o->stride[i] : o->kernel[i];
    if (!fsdp__window_make(op->name, o->kernel, stride, o->padding, kind == FSDP__POOL_MAX ? o->dilation : NULL, &w) ||
        !fsdp__window_result(op->name, &w, x, s.out))
        return NULL;
    for (int i = 0; i < 2; i++) {
        if (w.padding[i] > w.kernel[i] / 2) {
            FSDP_FAIL(FSDP_INVALID, "%s: padding %lld is more than half of the kernel, %lld", op->name,
                      (long long)w.padding[i], (long long)w.kernel[i]);
            return NULL;
        }
        s.kernel[i] = w.kernel[i];
        s.stride[i] = w.stride[i];
        s.padding[i] = w.padding[i];
        s.dilation[i] = w.dilation[i];
    }
    return apply(op, x, s);
}

fsdp_tensor *fsdp_max_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options)
{
    return pool(&max_op, x, options, FSDP__POOL_MAX);
}

fsdp_tensor *fsdp_avg_pool2d(fsdp_tensor *x, const fsdp_pool2d_options *options)
{
    return pool(&avg_op, x, options, FSDP__POOL_AVG);
}

fsdp_tensor *fsdp_adaptive_avg_pool2d(fsdp_tensor *x, int64_t height, int64_t width)
{
    fsdp__pool_sizes s = {.kind = FSDP__POOL_ADAPTIVE};

    if (!check_input("adaptive_avg_pool2d", x))
        return NULL;
    s.out[0] = height ? height : x->shape[2];
    s.out[1] = width ? width : x->shape[3];
    if (s.out[0] < 1 || s.out[1] < 1) {
        FSDP_FAIL(FSDP_INVALID,
                  "adaptive_avg_pool2d: a result of %lld x %lld: both must be at least 1, or 0 to take the input's",
                  (long long)height, (long long)width);
        return NULL;
    }
    return apply(&adaptive_op, x, s);
}
