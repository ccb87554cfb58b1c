/* losses.c - losses element by element, and their mean or sum. */
#include "ops/broadcast.h"
#include "ops/loss.h"

static fsdp_tensor *reduced(const char *op, fsdp_tensor *loss, fsdp_loss_reduction reduction)
{
    switch (reduction) {
    case FSDP_LOSS_MEAN:
        return fsdp_mean(loss);
    case FSDP_LOSS_SUM:
        return fsdp_sum(loss);
    case FSDP_LOSS_NONE:
        return loss;
    }
    FSDP_FAIL(FSDP_INVALID, "%s: there is no reduction with number %d", op, (int)reduction);
    return NULL;
}

#define LOSS(function, KIND)                                                                                   \
    static const fsdp__op function##_op = {.name = #function, .backward = fsdp__binary_backward};              \
    fsdp_tensor *fsdp_##function(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction)       \
    {                                                                                                          \
        return reduced(#function, fsdp__binary(&function##_op, FSDP__##KIND, input, target, 0.0f), reduction); \
    }

LOSS(mse_loss, SQUARED_ERROR)
LOSS(l1_loss, ABSOLUTE_ERROR)
LOSS(binary_cross_entropy, BCE)
LOSS(binary_cross_entropy_with_logits, BCE_LOGITS)

static const fsdp__op smooth_l1_loss_op = {.name = "smooth_l1_loss", .backward = fsdp__binary_backward};

fsdp_tensor *fsdp_smooth_l1_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction, double beta)
{
    fsdp__binary_op kind = beta > 0.0 ? FSDP__SMOOTH_ERROR : FSDP__ABSOLUTE_ERROR;

    if (!(beta >= 0.0)) {
        FSDP_FAIL(FSDP_INVALID, "smooth_l1_loss: beta %g is negative", beta);
        return NULL;
    }
    return reduced("smooth_l1_loss", fsdp__binary(&smooth_l1_loss_op, kind, input, target, (float)beta), reduction);
}

/* ---- nll_loss: the negative of what the targets pick, nothing where they are to be ignored ---- */

fsdp_tensor *fsdp_nll_loss(fsdp_tensor *input, fsdp_tensor *target, fsdp_loss_reduction reduction)
{
    fsdp_tensor *inputs[] = {input, target}, *wanted, *ignored, *loss;
    int64_t shape[FSDP_MAX_DIMS] = {0};
    int64_t count;

    if (!input || !target || !fsdp__op_inputs("nll_loss", inputs, 2) || !fsdp__op_same_dtype("nll_loss", &input, 1) ||
        fsdp__loss_targets("nll_loss", input, fsdp__op_last(input), target, &wanted, &count) != FSDP_OK)
        return NULL;
    for (int d = 0; d < input->ndim; d++)
        shape[d] = d < target->ndim ? target->shape[d] : 1;
    ignored = fsdp_eq(wanted, fsdp_scalar(wanted, FSDP_IGNORE_TARGET));
    wanted = fsdp_masked_fill(wanted, ignored, 0.0);
    loss = fsdp_gather(input, -1, fsdp_reshape(wanted, input->ndim, shape));
    loss = fsdp_masked_fill(fsdp_neg(fsdp_reshape(loss, target->ndim, shape)), ignored, 0.0);
    if (reduction == FSDP_LOSS_MEAN) /* sum in f32: the sum over thousands of targets is too large for float16 */
        return fsdp_cast(fsdp_scale(fsdp_sum(fsdp_cast(loss, FSDP_F32)), count > 0 ? 1.0 / (double)count : 0.0),
                         input->dtype);
    return reduced("nll_loss", loss, reduction);
}
