/* async_styles.c - column-wise and row-wise layers whose collectives run beside their products. */
#include "parallel/async.h"

fsdp_status fsdp__async_check(const fsdp__tp_planning *p, fsdp__job *job, const char *side, fsdp_layout outside)
{
    if (!job->style.async)
        return FSDP_OK;
    if (!fsdp__layer_is_product(job->module))
        return FSDP_FAIL(FSDP_INVALID, "'%s' is a %s: only the products of a Linear or Conv1D can be asynchronous",
                         job->name, job->module->type->name);
    if (outside.kind != FSDP_LAYOUT_SHARDED || outside.dim == -1)
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s' cannot be %s and asynchronous with an %s that is %s: that must be sharded in another "
                         "dimension than the last",
                         job->name, job->kind->name, side, FSDP__LAYOUT(outside));
    if (p->plan->ranks == 1)
        job->style.async = false; /* there is nothing to send */
    return FSDP_OK;
}

static fsdp__linear_weight weight_of(const fsdp_module *module, bool with_bias)
{
    const fsdp_layer *layer = (const fsdp_layer *)module;

    return (fsdp__linear_weight){.weight = layer->weight,
                                 .bias = with_bias ? layer->bias : NULL,
                                 .conv1d = fsdp__layer_form_of(module) == FSDP__LAYER_CONV1D};
}

/* ---- column-wise ---- */

static fsdp_status run_column(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                              fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    const fsdp__linear_weight layer = weight_of(module, true);

    (void)call_arg, (void)count, (void)output_count;
    return fsdp__gathered_linears(a->plan, inputs[0], a->style.from[0].dim, 1, &layer, outputs);
}

/* Computes layers of one input, and does with each output what is done behind its call. */
static fsdp_status run_columns(fsdp_module *const *modules, int count, fsdp_tensor *x, fsdp_tensor **outputs)
{
    const fsdp__applied *first = modules[0]->parts->hooks->arg;
    fsdp__linear_weight layers[FSDP__LINEARS_MOST] = {0};

    for (int i = 0; i < count; i++)
        layers[i] = weight_of(modules[i], true);
    FSDP_TRY(fsdp__gathered_linears(first->plan, x, first->style.from[0].dim, count, layers, outputs));
    for (int i = 0; i < count; i++) {
        const fsdp__module_hooks *hooks = modules[i]->parts->hooks;

        if (hooks->post_forward)
            FSDP_TRY(hooks->post_forward(hooks->arg, modules[i], &x, 1, &outputs[i], 1));
    }
    return FSDP_OK;
}

fsdp_status fsdp__apply_async_column(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole, bool leaves)
{
    return fsdp__apply_hooks(job, plan, whole,
                             &(const fsdp__module_hooks){.forward = run_column,
                                                         .together = run_columns,
                                                         .post_forward = leaves ? fsdp__leave : NULL});
}

/* ---- row-wise ---- */

static fsdp_status run_row(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                           fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    fsdp_tensor *bias = ((const fsdp_layer *)module)->bias;
    fsdp_tensor *x = fsdp__layout_convert(a->plan, inputs[0], a->style.from[0], a->takes), *y;

    (void)call_arg, (void)count, (void)output_count;
    y = fsdp__scattered_linear(a->plan, x, a->style.to[0].dim, weight_of(module, false));
    outputs[0] = bias && y ? fsdp_add(y, fsdp_cast(bias, y->dtype)) : y;
    return FSDP_OK;
}

fsdp_status fsdp__apply_async_row(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole)
{
    return fsdp__apply_hooks(job, plan, whole, &(const fsdp__module_hooks){.forward = run_row});
}
