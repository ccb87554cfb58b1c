/* cross_entropy.c - the mean of log(sum(exp(logits))) - logits[target]. */
#include "ops/loss.h"

#include <float.h>
#include <math.h>
#include <string.h>

/* ---- shared by the losses ---- */

void fsdp__loss_state_free(void *pointer)
{
    fsdp__loss_state *state = pointer;

    for (int i = 0; i < 2; i++)
        fsdp_tensor_unref(state->gradients[i]);
}

float fsdp__loss_unit(fsdp_dtype dtype)
{
    return dtype == FSDP_F16 ? 1024.0f : 1.0f;
}

/* Multiplies the gradient by the upstream one, in place unless the graph must stay as it is. The upstream gradient is
 * usually one, and known to be. */
static fsdp_tensor *scaled(fsdp__node *node, fsdp_tensor *gradient, float unit, const fsdp_tensor *upstream)
{
    fsdp_tensor *out = gradient;

    if (fsdp__node_keeps(node))
        out = fsdp__empty_like(gradient, gradient->dtype);
    else if (unit == 1.0f && fsdp__grad_is_one(upstream))
        return gradient;
    if (!out || fsdp__op_scale(gradient, 1.0f / unit, upstream, out) != FSDP_OK)
        return NULL;
    return out;
}

fsdp_status fsdp__loss_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const fsdp__loss_state *state = fsdp__node_state(node);
    fsdp_tensor *upstream = fsdp__op_contiguous(grads[0]); /* () f32 */

    for (int i = 0; i < 2; i++) {
        fsdp_tensor *gradient;

        if (!state->gradients[i])
            continue;
        FSDP__TRY_MADE(gradient = upstream ? scaled(node, state->gradients[i], state->unit, upstream) : NULL);
        FSDP_TRY(fsdp__node_give(node, i, gradient));
    }
    return FSDP_OK;
}

fsdp_status fsdp__loss_of_unit(fsdp_tensor *loss, float unit)
{
    return unit == 1.0f ? FSDP_OK : fsdp__op_scale(loss, 1.0f / unit, NULL, loss);
}

fsdp_status fsdp__loss_targets(const char *op, const fsdp_tensor *x, int64_t classes, fsdp_tensor *targets,
                               fsdp_tensor **contiguous, int64_t *count)
{
    if (targets->dtype != FSDP_I32) {
        fsdp__op_bad(op, "targets", "int32", targets);
        return FSDP_INVALID;
    }
    if (x->ndim < 1 || targets->ndim != x->ndim - 1 ||
        memcmp(x->shape, targets->shape, (size_t)targets->ndim * sizeof *x->shape) != 0) {
        fsdp__op_misfit(op, "input", x, "targets", targets);
        return FSDP_INVALID;
    }
    FSDP_TRY(fsdp__op_check_indices(op, "target", targets, classes, FSDP_IGNORE_TARGET, count));
    *contiguous = fsdp__op_contiguous(targets);
    return *contiguous ? FSDP_OK : fsdp_last_status();
}

fsdp_status fsdp__loss_scale(const char *op, const fsdp_cross_entropy_options *options, int64_t count, float *scale)
{
    fsdp_loss_reduction reduction = options ? options->reduction : FSDP_LOSS_MEAN;

    if (reduction != FSDP_LOSS_MEAN && reduction != FSDP_LOSS_SUM)
        return FSDP_FAIL(FSDP_INVALID, "%s: reduction %d: expected FSDP_LOSS_MEAN or FSDP_LOSS_SUM", op,
                         (int)reduction);
    if (reduction == FSDP_LOSS_MEAN && options && options->scale != 0)
        return FSDP_FAIL(FSDP_INVALID, "%s: a mean has no scale, but %g is given: take FSDP_LOSS_SUM", op,
                         options->scale);
    if (options && !(fabs(options->scale) <= FLT_MAX))
        return FSDP_FAIL(FSDP_INVALID, "%s: scale %g must be finite in f32", op, options->scale);
    if (options && !(options->softcap >= 0 && isfinite(options->softcap)))
        return FSDP_FAIL(FSDP_INVALID, "%s: softcap %g must not be negative", op, (double)options->softcap);
    if (reduction == FSDP_LOSS_SUM)
        *scale = options->scale != 0 ? (float)options->scale : 1.0f;
    else
        *scale = count > 0 ? (float)(1.0 / (double)count) : NAN; /* no target's gradient is multiplied by it */
    return FSDP_OK;
}

const fsdp__traits fsdp__loss_traits = {.dear = FSDP__DEAR_LOSS};

bool fsdp__loss_recall(const fsdp__op *op, fsdp_tensor *x, fsdp_tensor *other, fsdp_tensor **loss)
{
    fsdp_tensor *inputs[] = {x, other};
    const fsdp__loss_state state = {.unit = 1.0f};

    if (!x || !other || !fsdp__recall(op, inputs, 2, loss, 1))
        return false;
    if (fsdp__record_with(&fsdp__loss_traits, op, inputs, 2, loss, 1, NULL, 0, &state, sizeof state) != FSDP_OK)
        *loss = NULL;
    return true;
}

/* ---- cross_entropy ---- */

static const fsdp__op cross_entropy_op = {
    .name = "cross_entropy", .backward = fsdp__loss_backward, .free_state = fsdp__loss_state_free};

/* Returns sum / total; if nothing counts, NaN without a gradient, as a mean of plain rows is. */
static fsdp_tensor *mean_of(fsdp_tensor *sum, fsdp_tensor *total)
{
    fsdp_tensor *nothing = fsdp_div(fsdp_scale(total, 0), total); /* 0, or NaN */

    return fsdp_add(fsdp_div(sum, fsdp_maximum(total, fsdp_scalar(total, 1))), nothing);
}

/* If ranks have different rows, a mean is the sum of all divided by all targets that count. */
static fsdp_tensor *global_loss(fsdp_tensor *const *inputs, const fsdp_cross_entropy_options *options)
{
    fsdp__global_call call = {.name = "cross_entropy", .rule = FSDP__RULE_LOSS, .inputs = inputs, .count = 2};
    fsdp_cross_entropy_options sums = options ? *options : (fsdp_cross_entropy_options){0};
    fsdp_tensor *loss, *targets;
    float scale;

    if (fsdp__loss_scale(call.name, options, 1, &scale) != FSDP_OK || !fsdp__global_begin(&call))
        return NULL;
    targets = call.parts[1];
    if (!call.counted || sums.reduction != FSDP_LOSS_MEAN)
        return fsdp__global_end(&call, fsdp_cross_entropy_with(call.parts[0], targets, options));
    sums.reduction = FSDP_LOSS_SUM;
    loss = fsdp_cross_entropy_with(call.parts[0], targets, &sums);
    targets = fsdp_cast(fsdp_ne(targets, fsdp_scalar(targets, FSDP_IGNORE_TARGET)), FSDP_F32);
    return fsdp__global_end(&call, mean_of(loss, fsdp__global_total(&call, fsdp_sum(targets))));
}

fsdp_tensor *fsdp_cross_entropy_with(fsdp_tensor *logits, fsdp_tensor *targets,
                                     const fsdp_cross_entropy_options *options)
{
    fsdp_tensor *inputs[] = {logits, targets}, *from, *wanted, *loss, *dlogits = NULL;
    fsdp__loss_state state = {.unit = 1.0f};
    int64_t count;
    float scale;

    if (logits && targets && fsdp__is_global(inputs, 2))
        return global_loss(inputs, options);
    if (fsdp__loss_recall(&cross_entropy_op, logits, targets, &loss))
        return loss;
    if (!logits || !targets || !fsdp__op_inputs("cross_entropy", inputs, 2) ||
        !fsdp__op_same_dtype("cross_entropy", &logits, 1) ||
        fsdp__loss_targets("cross_entropy", logits, fsdp__op_last(logits), targets, &wanted, &count) != FSDP_OK ||
        fsdp__loss_scale("cross_entropy", options, count, &scale) != FSDP_OK)
        return NULL;
    from = fsdp__op_contiguous(logits);                            /* (...,V) */
    loss = fsdp_empty(logits->storage->device, FSDP_F32, 0, NULL); /* () */
    if (fsdp__will_record(&logits, 1))
        dlogits = fsdp__empty_like(logits, logits->dtype);
    if (!from || !loss || (fsdp__will_record(&logits, 1) && !dlogits))
        return NULL;
    state.unit = fsdp__loss_unit(logits->dtype);
    const fsdp__cross_entropy_args args = {.logits = fsdp_tensor_data(from),
                                           .targets = fsdp_tensor_data(wanted),
                                           .dlogits = dlogits ? fsdp_tensor_data(dlogits) : NULL,
                                           .loss = fsdp_tensor_data(loss),
                                           .rows = fsdp__op_rows(logits),
                                           .cols = fsdp__op_last(logits),
                                           .loss_scale = scale * state.unit,
                                           .ignore_index = FSDP_IGNORE_TARGET,
                                           .dtype = logits->dtype,
                                           .dlogits_dtype = logits->dtype,
                                           .softcap = options ? options->softcap : 0.0f};
    if (fsdp__launch_cross_entropy(fsdp__op_stream(loss), &args) != FSDP_OK ||
        fsdp__loss_of_unit(loss, state.unit) != FSDP_OK)
        return NULL;
    if (!dlogits)
        return loss;
    state.gradients[0] = fsdp_tensor_ref(dlogits);
    if (fsdp__record_with(&fsdp__loss_traits, &cross_entropy_op, &logits, 1, &loss, 1, NULL, 0, &state, sizeof state) !=
        FSDP_OK) {
        fsdp__loss_state_free(&state);
        return NULL;
    }
    return loss;
}

fsdp_tensor *fsdp_cross_entropy(fsdp_tensor *logits, fsdp_tensor *targets)
{
    return fsdp_cross_entropy_with(logits, targets, NULL);
}
