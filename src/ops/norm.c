/* norm.c - LayerNorm and RMSNorm over the last dimension, alone or after adding a residual. */
#include "ops/op.h"

#include <string.h>

#include "base/alloc.h"

enum {
    X,
    RESIDUAL,
    WEIGHT,
    BIAS,
    INPUTS
}; /* inputs of the node */
enum {
    SUM,
    SAVED_WEIGHT,
    SAVED_BIAS, /* only where y is made again */
    MEAN,
    RSTD,
    SAVED
}; /* what the node saves */
enum {
    Y,
    ADDED,
    OUTPUTS
}; /* outputs of the node; ADDED only with a residual */

typedef struct norm {
    const char *name;
    const fsdp__op *op;
    fsdp_tensor *inputs[INPUTS]; /* x, residual (...,C), weight, bias (C); NULL if absent */
    float eps;
    bool rms, plus_one;
} norm;

/* Holds what its node knows. */
typedef struct norm_state {
    float eps;
    bool rms, plus_one;
} norm_state;

/* Finds where the gradient of x goes. `*dsum` is what it must be added to. With a residual, x and the residual get the
 * same gradient. */
static fsdp_status gradient_place(fsdp__node *node, fsdp_tensor *dy, fsdp_tensor **dsum, fsdp_tensor **dx, bool *give)
{
    bool accumulate = false;

    *give = false;
    if (!*dsum && !fsdp__node_needs(node, RESIDUAL)) {
        if (!fsdp__node_needs(node, X))
            return FSDP_OK;
        FSDP_TRY(fsdp__node_target(node, X, dx, &accumulate));
        *dsum = accumulate ? *dx : NULL;
        return FSDP_OK;
    }
    *give = true;
    *dx = *dsum && fsdp__grad_exclusive(*dsum) ? *dsum : fsdp__op_reuse(dy);
    return *dx ? FSDP_OK : fsdp_last_status();
}

static fsdp_status give_both(fsdp__node *node, fsdp_tensor *dx)
{
    FSDP_TRY(fsdp__node_give(node, X, dx));
    return fsdp__node_give(node, RESIDUAL, dx);
}

/* Gives the target of the weight or bias, if it has a gradient. */
static fsdp_status scale_target(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate)
{
    return fsdp__node_needs(node, input) ? fsdp__node_target_of_any(node, input, out, accumulate) : FSDP_OK;
}

/* Runs the kernel, which gives the gradients of weight and bias one dtype. Where they have two, the bias has a launch
 * of its own, before dx takes the place of what both read. */
static fsdp_status launch_backward(fsdp_stream *stream, fsdp__norm_backward_args *args, const fsdp_tensor *dweight,
                                   const fsdp_tensor *dbias)
{
    const fsdp_tensor *first = dweight ? dweight : dbias;

    args->dweight_dtype = first ? first->dtype : args->weight_dtype;
    if (dweight && dbias && dweight->dtype != dbias->dtype) {
        fsdp__norm_backward_args of_bias = *args;

        of_bias.dx = of_bias.dweight = NULL;
        of_bias.dsum = NULL;
        of_bias.dweight_dtype = dbias->dtype;
        FSDP_TRY(fsdp__launch_norm_backward(stream, &of_bias));
        args->dbias = NULL;
    }
    return fsdp__launch_norm_backward(stream, args);
}

static fsdp_status backward(fsdp__node *node, fsdp_tensor *const *grads, int output_count)
{
    fsdp_tensor *s = fsdp__node_saved(node, SUM), *weight = fsdp__node_saved(node, SAVED_WEIGHT);
    fsdp_tensor *mean = fsdp__node_saved(node, MEAN), *rstd = fsdp__node_saved(node, RSTD);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[Y]);
    fsdp_tensor *dsum = output_count > ADDED ? fsdp__op_contiguous(grads[ADDED]) : NULL;
    fsdp_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
    bool give, accumulate_weight = false, accumulate_bias = false;

    if (!dy)
        return dsum ? give_both(node, dsum) : fsdp_last_status();
    FSDP_TRY(gradient_place(node, dy, &dsum, &dx, &give));
    FSDP_TRY(scale_target(node, WEIGHT, &dweight, &accumulate_weight));
    FSDP_TRY(scale_target(node, BIAS, &dbias, &accumulate_bias));
    fsdp__norm_backward_args args = {.s = fsdp_tensor_data(s),
                                     .dy = fsdp_tensor_data(dy),
                                     .dsum = dsum ? fsdp_tensor_data(dsum) : NULL,
                                     .weight = fsdp_tensor_data(weight),
                                     .mean = mean ? fsdp_tensor_data(mean) : NULL,
                                     .rstd = fsdp_tensor_data(rstd),
                                     .dx = dx ? fsdp_tensor_data(dx) : NULL,
                                     .dweight = dweight ? fsdp_tensor_data(dweight) : NULL,
                                     .dbias = dbias ? fsdp_tensor_data(dbias) : NULL,
                                     .rows = fsdp__op_rows(s),
                                     .cols = fsdp__op_last(s),
                                     .rms = !mean,
                                     .accumulate_weight = accumulate_weight,
                                     .accumulate_bias = accumulate_bias,
                                     .dtype = s->dtype,
                                     .weight_dtype = weight->dtype,
                                     .plus_one = ((const norm_state *)fsdp__node_state(node))->plus_one};
    FSDP_TRY(launch_backward(fsdp__op_stream(s), &args, dweight, dbias));
    return give ? give_both(node, dx) : FSDP_OK;
}

static fsdp_status norm_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    return backward(node, grads, 1);
}

static fsdp_status add_norm_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    return backward(node, grads, OUTPUTS);
}

static const fsdp__op layernorm_op = {.name = "layernorm", .backward = norm_backward};
static const fsdp__op rmsnorm_op = {.name = "rmsnorm", .backward = norm_backward};
static const fsdp__op add_layernorm_op = {.name = "add_layernorm", .backward = add_norm_backward};
static const fsdp__op add_rmsnorm_op = {.name = "add_rmsnorm", .backward = add_norm_backward};

/* ---- forward ---- */

static bool check_scale(const norm *n, const char *what, const fsdp_tensor *scale)
{
    const fsdp_tensor *x = n->inputs[X];

    if (!fsdp_dtype_is_floating(scale->dtype))
        return fsdp__op_bad(n->name, what, "floating", scale);
    if (x->ndim < 1 || scale->ndim != 1 || scale->shape[0] != fsdp__op_last(x))
        return fsdp__op_misfit(n->name, "input", x, what, scale);
    return true;
}

static bool check(const norm *n)
{
    const fsdp_tensor *x = n->inputs[X], *residual = n->inputs[RESIDUAL];
    const fsdp_tensor *weight = n->inputs[WEIGHT], *bias = n->inputs[BIAS];

    if (!fsdp__op_inputs(n->name, n->inputs, INPUTS) || !fsdp__op_same_dtype(n->name, n->inputs, 2) ||
        !check_scale(n, "weight", weight) || (bias && !check_scale(n, "bias", bias)))
        return false;
    if (residual && !fsdp__shape_equal(x, residual))
        return fsdp__op_misfit(n->name, "input", x, "residual", residual);
    if (bias && bias->dtype != weight->dtype)
        return fsdp__op_bad(n->name, "bias", fsdp_dtype_name(weight->dtype), bias);
    return true;
}

/* Says how y, of the same shape, is computed from contiguous x. */
static fsdp__norm_forward_args args_of(const norm_state *state, const fsdp_tensor *x, const fsdp_tensor *weight,
                                       const fsdp_tensor *bias, const fsdp_tensor *y)
{
    return (fsdp__norm_forward_args){.x = fsdp_tensor_data(x),
                                     .weight = fsdp_tensor_data(weight),
                                     .bias = bias ? fsdp_tensor_data(bias) : NULL,
                                     .y = fsdp_tensor_data(y),
                                     .rows = fsdp__op_rows(x),
                                     .cols = fsdp__op_last(x),
                                     .eps = state->eps,
                                     .rms = state->rms,
                                     .dtype = x->dtype,
                                     .weight_dtype = weight->dtype,
                                     .plus_one = state->plus_one};
}

/* Computes y again, from the sum where there was a residual: the forward takes the sum as it is stored, too. */
static fsdp_status remake(fsdp__node *node, fsdp_tensor **out)
{
    const fsdp_tensor *s = fsdp__node_saved(node, SUM);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *y = NULL;
    fsdp__norm_forward_args args;

    FSDP_TRY(fsdp_tensor_create(s->storage->device, s->dtype, s->ndim, s->shape, FSDP_MEMORY_ACTIVATION, &y));
    args =
        args_of(fsdp__node_state(node), s, fsdp__node_saved(node, SAVED_WEIGHT), fsdp__node_saved(node, SAVED_BIAS), y);
    FSDP_TRY(fsdp__launch_norm_forward(fsdp__op_stream(s), &args));
    *out = fsdp__take(&y);
    return FSDP_OK;
}

static const fsdp__traits traits = {.remake = remake};

/* Computes y (...,C); with a residual also *sum (...,C). */
static fsdp_tensor *apply(const norm *n, fsdp_tensor **sum)
{
    fsdp_tensor *in[INPUTS], *saved[SAVED], *outputs[OUTPUTS] = {NULL, NULL}, *mean = NULL, *rstd = NULL;
    bool recording = fsdp__will_record(n->inputs, INPUTS), residual = n->inputs[RESIDUAL];
    const norm_state state = {n->eps, n->rms, n->plus_one};
    fsdp_tensor *x = n->inputs[X];
    fsdp__norm_forward_args args;
    int64_t rows;

    if (!check(n))
        return NULL;
    rows = fsdp__op_rows(x);
    for (int i = 0; i < INPUTS; i++) {
        in[i] = fsdp__op_contiguous(n->inputs[i]);
        if (n->inputs[i] && !in[i])
            return NULL;
    }
    outputs[Y] = fsdp__empty_like(x, x->dtype);
    outputs[ADDED] = residual ? fsdp__empty_like(x, x->dtype) : NULL;
    if (recording) {
        rstd = fsdp_empty(x->storage->device, FSDP_F32, 1, &rows);
        mean = n->rms ? NULL : fsdp_empty(x->storage->device, FSDP_F32, 1, &rows);
    }
    if (!outputs[Y] || (residual && !outputs[ADDED]) || (recording && (!rstd || (!n->rms && !mean))))
        return NULL;
    args = args_of(&state, in[X], in[WEIGHT], in[BIAS], outputs[Y]);
    args.residual = residual ? fsdp_tensor_data(in[RESIDUAL]) : NULL;
    args.sum = residual ? fsdp_tensor_data(outputs[ADDED]) : NULL;
    args.mean = mean ? fsdp_tensor_data(mean) : NULL;
    args.rstd = rstd ? fsdp_tensor_data(rstd) : NULL;
    if (fsdp__launch_norm_forward(fsdp__op_stream(x), &args) != FSDP_OK)
        return NULL;
    saved[SUM] = residual ? outputs[ADDED] : in[X];
    saved[SAVED_WEIGHT] = in[WEIGHT];
    saved[SAVED_BIAS] = fsdp__device_makes_again(x->storage->device) ? in[BIAS] : NULL;
    saved[MEAN] = mean;
    saved[RSTD] = rstd;
    if (fsdp__record_with(&traits, n->op, n->inputs, INPUTS, outputs, residual ? OUTPUTS : 1, saved, SAVED, &state,
                          sizeof state) != FSDP_OK)
        return NULL;
    if (residual)
        *sum = outputs[ADDED];
    return outputs[Y];
}

static fsdp_tensor *norm_of(const norm *n, fsdp_tensor **sum)
{
    fsdp__global_call call = {.name = n->name, .rule = FSDP__RULE_ROWS, .inputs = n->inputs, .count = INPUTS};
    norm local = *n;
    fsdp_tensor *y;

    if (!fsdp__is_global(n->inputs, INPUTS))
        return apply(n, sum);
    if (!fsdp__global_begin(&call))
        return NULL;
    memcpy(local.inputs, call.parts, sizeof local.inputs);
    y = apply(&local, sum);
    return fsdp__global_end_two(&call, y, y && n->inputs[RESIDUAL] ? *sum : NULL);
}

fsdp_tensor *fsdp_layernorm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias, float eps)
{
    const norm n = {"layernorm", &layernorm_op, {x, NULL, weight, bias == FSDP_NO_BIAS ? NULL : bias},
                    eps,         false,         false};

    return x && weight && bias ? norm_of(&n, NULL) : NULL;
}

fsdp_tensor *fsdp_rmsnorm(fsdp_tensor *x, fsdp_tensor *weight, float eps)
{
    const norm n = {"rmsnorm", &rmsnorm_op, {x, NULL, weight, NULL}, eps, true, false};

    return x && weight ? norm_of(&n, NULL) : NULL;
}

fsdp_tensor *fsdp_rmsnorm_plus_one(fsdp_tensor *x, fsdp_tensor *weight, float eps)
{
    const norm n = {"rmsnorm", &rmsnorm_op, {x, NULL, weight, NULL}, eps, true, true};

    return x && weight ? norm_of(&n, NULL) : NULL;
}

/* Empties the place of the second output. */
static bool has_place(const char *name, fsdp_tensor **sum)
{
    if (sum)
        *sum = NULL;
    else
        FSDP_FAIL(FSDP_INVALID, "%s: there is no place for the sum", name);
    return sum;
}

fsdp_tensor *fsdp_add_layernorm(fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor *weight, fsdp_tensor *bias,
                                float eps, fsdp_tensor **sum)
{
    const norm n = {"add_layernorm",
                    &add_layernorm_op,
                    {x, residual, weight, bias == FSDP_NO_BIAS ? NULL : bias},
                    eps,
                    false,
                    false};

    if (!has_place(n.name, sum))
        return NULL;
    return x && residual && weight && bias ? norm_of(&n, sum) : NULL;
}

fsdp_tensor *fsdp_add_rmsnorm(fsdp_tensor *x, fsdp_tensor *residual, fsdp_tensor *weight, float eps, fsdp_tensor **sum)
{
    const norm n = {"add_rmsnorm", &add_rmsnorm_op, {x, residual, weight, NULL}, eps, true, false};

    if (!has_place(n.name, sum))
        return NULL;
    return x && residual && weight ? norm_of(&n, sum) : NULL;
}
