/* channel_norm.c - batch and group normalisation of x (N,C,...), with a weight and a bias for each channel. */
#include "ops/op.h"

enum {
    X,
    WEIGHT,
    BIAS,
    INPUTS
}; /* inputs of the node */
enum {
    SAVED_X,
    SAVED_WEIGHT,
    MEAN,
    RSTD,
    SAVED
}; /* what the node saves */

/* Holds the state of the node. */
typedef struct channel_norm {
    fsdp__channel_norm_sizes sizes;
    bool fixed;
} channel_norm;

static fsdp_status norm_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const channel_norm *n = fsdp__node_state(node);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *weight = fsdp__node_saved(node, SAVED_WEIGHT);
    fsdp_tensor *dx = NULL, *dweight = NULL, *dbias = NULL;
    fsdp__channel_norm_backward_args args = {.sizes = n->sizes, .fixed = n->fixed};

    FSDP__TRY_MADE(dy);
    if (fsdp__node_needs(node, X))
        FSDP_TRY(fsdp__node_target(node, X, &dx, &args.accumulate));
    if (fsdp__node_needs(node, WEIGHT))
        FSDP_TRY(fsdp__node_target(node, WEIGHT, &dweight, &args.accumulate_weight));
    if (fsdp__node_needs(node, BIAS))
        FSDP_TRY(fsdp__node_target(node, BIAS, &dbias, &args.accumulate_bias));
    if (fsdp_tensor_numel(dy) == 0) {
        if (dweight && !args.accumulate_weight)
            FSDP_TRY(fsdp_tensor_fill_(dweight, 0.0));
        return dbias && !args.accumulate_bias ? fsdp_tensor_fill_(dbias, 0.0) : FSDP_OK;
    }
    args.x = fsdp_tensor_data(fsdp__node_saved(node, SAVED_X));
    args.dy = fsdp_tensor_data(dy);
    args.weight = weight ? fsdp_tensor_data(weight) : NULL;
    args.mean = fsdp_tensor_data(fsdp__node_saved(node, MEAN));
    args.rstd = fsdp_tensor_data(fsdp__node_saved(node, RSTD));
    args.dx = dx ? fsdp_tensor_data(dx) : NULL;
    args.dweight = dweight ? fsdp_tensor_data(dweight) : NULL;
    args.dbias = dbias ? fsdp_tensor_data(dbias) : NULL;
    return fsdp__launch_channel_norm_backward(fsdp__op_stream(dy), &args);
}

static const fsdp__op batch_norm_op = {.name = "batch_norm", .backward = norm_backward};
static const fsdp__op group_norm_op = {.name = "group_norm", .backward = norm_backward};

/* ---- forward ---- */

/* Checks a tensor of floats, (C). */
static bool check_row(const char *op, const fsdp_tensor *x, const char *what, const fsdp_tensor *row)
{
    if (!row)
        return true;
    if (!fsdp_dtype_is_floating(row->dtype))
        return fsdp__op_bad(op, what, "floating", row);
    if (row->ndim != 1 || row->shape[0] != x->shape[1])
        return fsdp__op_misfit(op, "input", x, what, row);
    return true;
}

static bool check_running(fsdp_tensor *x, const char *what, fsdp_tensor *row)
{
    if (row && !fsdp_tensor_is_contiguous(row))
        return fsdp__op_bad("batch_norm", what, "contiguous", row);
    return check_row("batch_norm", x, what, row);
}

static bool check(const char *op, fsdp_tensor *const *inputs)
{
    const fsdp_tensor *x = inputs[X], *weight = inputs[WEIGHT], *bias = inputs[BIAS];

    if (!fsdp__op_inputs(op, inputs, INPUTS) || !fsdp__op_same_dtype(op, inputs, 1))
        return false;
    if (x->ndim < 2)
        return fsdp__op_bad(op, "input", "of dimensions (N,C,...)", x);
    if (!check_row(op, x, "weight", weight) || !check_row(op, x, "bias", bias))
        return false;
    if (weight && bias && weight->dtype != bias->dtype)
        return fsdp__op_bad(op, "bias", fsdp_dtype_name(weight->dtype), bias);
    return true;
}

static fsdp__channel_norm_sizes sizes_of(fsdp_tensor *const *inputs, int64_t groups)
{
    const fsdp_tensor *x = inputs[X], *scale = inputs[WEIGHT] ? inputs[WEIGHT] : inputs[BIAS];

    return (fsdp__channel_norm_sizes){.batch = x->shape[0],
                                      .channels = x->shape[1],
                                      .inner = fsdp__shape_numel(x->ndim - 2, x->shape + 2),
                                      .groups = groups,
                                      .dtype = x->dtype,
                                      .weight_dtype = scale ? scale->dtype : FSDP_F32};
}

/* Runs the forward and records it. The rest of `args` is set: sizes, and where statistics come from or go to. */
static fsdp_tensor *apply(const fsdp__op *op, fsdp_tensor *const *inputs, fsdp__channel_norm_forward_args *args)
{
    const fsdp__channel_norm_sizes *s = &args->sizes;
    const channel_norm state = {.sizes = *s, .fixed = args->fixed};
    int64_t sets = s->groups == 0 ? s->channels : s->batch * s->groups;
    fsdp_tensor *in[INPUTS], *saved[SAVED], *y, *mean, *rstd;

    for (int i = 0; i < INPUTS; i++) {
        in[i] = fsdp__op_contiguous(inputs[i]);
        if (inputs[i] && !in[i])
            return NULL;
    }
    y = fsdp__empty_like(inputs[X], s->dtype);
    mean = fsdp_empty(in[X]->storage->device, FSDP_F32, 1, &sets);
    rstd = fsdp_empty(in[X]->storage->device, FSDP_F32, 1, &sets);
    if (!y || !mean || !rstd)
        return NULL;
    args->x = fsdp_tensor_data(in[X]);
    args->weight = in[WEIGHT] ? fsdp_tensor_data(in[WEIGHT]) : NULL;
    args->bias = in[BIAS] ? fsdp_tensor_data(in[BIAS]) : NULL;
    args->y = fsdp_tensor_data(y);
    args->mean = fsdp_tensor_data(mean);
    args->rstd = fsdp_tensor_data(rstd);
    if (fsdp_tensor_numel(y) > 0 && fsdp__launch_channel_norm_forward(fsdp__op_stream(y), args) != FSDP_OK)
        return NULL;
    saved[SAVED_X] = in[X];
    saved[SAVED_WEIGHT] = in[WEIGHT];
    saved[MEAN] = mean;
    saved[RSTD] = rstd;
    return fsdp__record(op, inputs, INPUTS, &y, 1, saved, SAVED, &state, sizeof state) == FSDP_OK ? y : NULL;
}

static fsdp_tensor *or_none(fsdp_tensor *tensor)
{
    return tensor == FSDP_NO_BIAS ? NULL : tensor;
}

fsdp_tensor *fsdp_group_norm(fsdp_tensor *x, int64_t groups, fsdp_tensor *weight, fsdp_tensor *bias, float eps)
{
    fsdp_tensor *inputs[] = {x, or_none(weight), or_none(bias)};
    fsdp__channel_norm_forward_args args = {.eps = eps};

    if (!x || !weight || !bias || !check("group_norm", inputs))
        return NULL;
    if (groups < 1 || x->shape[1] % groups != 0) {
        FSDP_FAIL(FSDP_INVALID, "group_norm: %lld channels cannot be divided into %lld groups", (long long)x->shape[1],
                  (long long)groups);
        return NULL;
    }
    args.sizes = sizes_of(inputs, groups);
    return apply(&group_norm_op, inputs, &args);
}

/* ---- batch norm ---- */

static bool check_statistics(fsdp_tensor *x, const fsdp_batch_norm_options *o)
{
    fsdp_tensor *all[] = {x, o->running_mean, o->running_var, o->num_batches_tracked};
    const fsdp_tensor *batches = o->num_batches_tracked;

    if (!fsdp__op_inputs("batch_norm", all, 4) || !check_running(x, "running mean", o->running_mean) ||
        !check_running(x, "running variance", o->running_var))
        return false;
    if (!o->running_mean != !o->running_var) {
        FSDP_FAIL(FSDP_INVALID, "batch_norm: give both running mean and running variance, or neither");
        return false;
    }
    if (o->running_mean && o->running_mean->dtype != o->running_var->dtype)
        return fsdp__op_bad("batch_norm", "running variance", fsdp_dtype_name(o->running_mean->dtype), o->running_var);
    if (batches && (batches->dtype != FSDP_I64 || fsdp_tensor_numel(batches) != 1))
        return fsdp__op_bad("batch_norm", "number of batches", "one int64", batches);
    if (o->cumulative_average && o->running_mean && !batches) {
        FSDP_FAIL(FSDP_INVALID, "batch_norm: an average over all batches needs their number");
        return false;
    }
    if (!o->training && !o->running_mean) {
        FSDP_FAIL(FSDP_INVALID, "batch_norm: without training the running mean and variance are required");
        return false;
    }
    if (o->training && x->shape[0] * fsdp__shape_numel(x->ndim - 2, x->shape + 2) == 1) {
        fsdp__op_bad("batch_norm", "input in training", "of more than one value a channel", x);
        return false;
    }
    return true;
}

/* Points `args` to the running statistics, which are read, or written if `writes`. */
static fsdp_status use_statistics(const fsdp_batch_norm_options *o, bool writes, fsdp__channel_norm_forward_args *args)
{
    fsdp_tensor *mean = o->running_mean, *var = o->running_var, *written[] = {mean, var, o->num_batches_tracked};

    for (int i = 0; writes && i < 3; i++)
        if (written[i])
            FSDP_TRY(fsdp_tensor_begin_write(written[i]));
    if (!writes) {
        FSDP_TRY(fsdp__recomputation_value(&mean));
        FSDP_TRY(fsdp__recomputation_value(&var));
    }
    args->running_mean = fsdp_tensor_data(mean);
    args->running_var = fsdp_tensor_data(var);
    args->running_dtype = o->running_mean->dtype;
    if (writes && o->num_batches_tracked)
        args->batches = fsdp_tensor_data(o->num_batches_tracked);
    return FSDP_OK;
}

fsdp_tensor *fsdp_batch_norm(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias,
                             const fsdp_batch_norm_options *options)
{
    fsdp_tensor *inputs[] = {x, or_none(weight), or_none(bias)};
    fsdp__channel_norm_forward_args args = {0};
    bool writes;

    if (!x || !weight || !bias || !check("batch_norm", inputs) || !check_statistics(x, options))
        return NULL;
    args.eps = options->eps;
    args.momentum = options->momentum;
    args.cumulative = options->cumulative_average;
    args.fixed = !options->training;
    args.sizes = sizes_of(inputs, 0);
    /* A recomputation sees the same batch again, and must not count it twice. */
    writes =
        options->training && fsdp_tensor_numel(x) > 0 && !fsdp_recomputing(fsdp_device_context(x->storage->device));
    if (options->running_mean && (writes || args.fixed) && use_statistics(options, writes, &args) != FSDP_OK)
        return NULL;
    return apply(&batch_norm_op, inputs, &args);
}
