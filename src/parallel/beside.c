/* beside.c - what is beside a product that is cut, an adapter, is cut with it.
 *
 * Where outputs are cut, B (out,rank) and m (out) are, and A is whole: each rank computes its own outputs with A x, so
 * A's gradient is the sum of the ranks'. Where inputs are cut, A (rank,in) is. Its product is not added up by itself:
 * B A x of this rank's inputs is a part of a sum as W x is, and goes with that. So B and m, which are whole, have
 * gradients that are sums of the ranks'. */
#include "parallel/plan.h"
#include "parallel/wire.h"

static fsdp_status claim(fsdp__tp_planning *p, const fsdp__job *job, fsdp_module *module, fsdp_placement placement)
{
    fsdp__job part = *job;

    part.module = module;
    return module ? fsdp__tp_claim(p, &part, "weight", placement, placement.kind == FSDP_REPLICATE) : FSDP_OK;
}

/* Products whose collectives run beside them leave out what is beside the layer. */
static fsdp_status check_async(const fsdp__job *job)
{
    return job->style.async ? FSDP_FAIL(FSDP_UNSUPPORTED,
                                        "'%s' has an adapter, which asynchronous tensor parallel leaves out: set "
                                        "enable_async_tensor_parallel to false",
                                        job->name)
                            : FSDP_OK;
}

fsdp_status fsdp__tp_claim_outputs_beside(fsdp__tp_planning *p, const fsdp__job *job, fsdp_placement outputs)
{
    const fsdp__layer_beside *beside = fsdp__layer_beside_of(job->module);

    if (!beside)
        return FSDP_OK;
    FSDP_TRY(check_async(job));
    outputs.dim = 0;
    FSDP_TRY(claim(p, job, beside->a, (fsdp_placement){.kind = FSDP_REPLICATE}));
    FSDP_TRY(claim(p, job, beside->b, outputs));
    return claim(p, job, beside->magnitude, outputs);
}

fsdp_status fsdp__tp_claim_inputs_beside(fsdp__tp_planning *p, const fsdp__job *job)
{
    const fsdp_placement whole = {.kind = FSDP_REPLICATE};
    const fsdp__layer_beside *beside = fsdp__layer_beside_of(job->module);

    if (!beside)
        return FSDP_OK;
    FSDP_TRY(check_async(job));
    FSDP_TRY(claim(p, job, beside->a, (fsdp_placement){.kind = FSDP_SHARD, .dim = 1}));
    FSDP_TRY(claim(p, job, beside->b, whole));
    return claim(p, job, beside->magnitude, whole);
}

/* ---- inputs that are cut ---- */

static fsdp_tensor *sum(void *arg, fsdp_tensor *x)
{
    return fsdp__wire_all_reduce(x, FSDP_SUM, false, ((const fsdp__tp_plan *)arg)->group);
}

/* Drops the features that this rank has as one rank drops them. */
static fsdp_status drop(void *arg, fsdp_module *module, void *call_arg, fsdp_tensor *const *inputs, int count,
                        fsdp_tensor **outputs, int output_count)
{
    const fsdp__applied *a = arg;
    fsdp__op_part part = {.dim = inputs[0]->ndim - 1, .first = a->first, .whole = a->whole};

    (void)call_arg, (void)count, (void)output_count;
    outputs[0] = fsdp__dropout_part(module, inputs[0], part);
    return FSDP_OK;
}

fsdp_status fsdp__tp_apply_inputs_beside(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole)
{
    fsdp__layer_beside *beside = fsdp__layer_beside_of(job->module);
    fsdp__job dropout = *job;

    if (!beside)
        return FSDP_OK;
    beside->sum = sum;
    beside->sum_arg = plan; /* which hooks of the layer hold */
    dropout.module = beside->dropout;
    return dropout.module ? fsdp__apply_hooks(&dropout, plan, whole, &(const fsdp__module_hooks){.forward = drop})
                          : FSDP_OK;
}
