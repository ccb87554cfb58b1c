/* vocabulary_head.c - a model's head that is cut in the vocabulary, with its loss. */
#include "fsdp/parallel.h"
#include "models/models.h"
#include "parallel/plan.h"

static const fsdp_layout replicated = {.kind = FSDP_LAYOUT_REPLICATED}, copied = {.kind = FSDP_LAYOUT_COPIED};
static const fsdp_layout last = {.kind = FSDP_LAYOUT_SHARDED, .dim = -1};

static fsdp_status check(fsdp__tp_planning *p, fsdp__job *job)
{
    fsdp_parallel_style *style = &job->style;

    if (!fsdp__head_loss(job->module))
        return fsdp__style_misfit(job, "a model's head");
    style->from[0] = fsdp__layout_or(style->from[0], replicated);
    style->to[0] = fsdp__layout_or(style->to[0], last);
    job->takes = copied;
    job->gives = last;
    if (fsdp__layout_check(style->from[0], copied) != FSDP_OK || fsdp__layout_check(last, style->to[0]) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "'%s'", job->name);
    return fsdp__tp_claim(p, job, "weight", (fsdp_placement){.kind = FSDP_SHARD}, false);
}

/* Returns the loss from logits that are put together. */
static fsdp_tensor *whole_loss(const fsdp__applied *a, fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *targets,
                               const fsdp_cross_entropy_options *loss)
{
    fsdp_tensor *logits = fsdp_parallel_collect(fsdp_linear(x, weight, FSDP_NO_BIAS), -1, a->whole, a->plan->group);

    return loss->reduction == FSDP_LOSS_NONE ? fsdp__loss_of_each(fsdp__softcapped(logits, loss->softcap), targets)
                                             : fsdp_cross_entropy_with(logits, targets, loss);
}

/* Maps hidden (B,T,C) to logits (B,T,V), as to[0] says, or hidden and targets (B,T) to the loss. */
static fsdp_status run(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                       fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    const fsdp_cross_entropy_options *loss = fsdp__head_loss(module);
    fsdp_tensor *weight = ((const fsdp_layer *)module)->weight;
    fsdp_tensor *x = fsdp__layout_convert(a->plan, inputs[0], a->style.from[0], a->takes);

    (void)call_arg;
    if (count == 2) {
        outputs[0] = a->style.loss_parallel ? fsdp__vocabulary_loss(a, x, weight, inputs[1], loss)
                                            : whole_loss(a, x, weight, inputs[1], loss);
        return FSDP_OK;
    }
    outputs[0] = fsdp__softcapped(fsdp_linear(x, weight, FSDP_NO_BIAS), loss->softcap);
    return outputs[0] ? fsdp__leave(arg, module, inputs, count, outputs, output_count) : FSDP_OK;
}

static fsdp_status apply(const fsdp__job *job, fsdp__tp_plan *plan)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(((const fsdp_layer *)job->module)->weight);

    return fsdp__apply_hooks(job, plan, d->global_shape[0], &(const fsdp__module_hooks){.forward = run});
}

const fsdp__style_kind fsdp__model_head = {"column-wise, as the head of a model", check, apply};
