/* place.c - cuts parameters: they stay the same objects and get this rank's part. */
#include <string.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "dist/dist.h"
#include "fsdp/comm.h"
#include "nn/managers.h"
#include "nn/module_path.h"
#include "parallel/plan.h"
#include "parallel/wire.h"

static const fsdp__parameter_slot *find_slot(const fsdp_module *module, const char *name)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        if (strcmp(module->parts->parameters[i].name, name) == 0 && *module->parts->parameters[i].slot)
            return &module->parts->parameters[i];
    return NULL;
}

/* ---- claims ---- */

static fsdp_status check_tensor(const fsdp__claim *claim, const char *name, const fsdp_mesh *mesh)
{
    const fsdp_tensor *t = claim->tensor;
    const fsdp_distribution *d = fsdp_tensor_distribution(t);
    const char *dot = *name ? "." : "";
    bool shards = claim->placement.kind == FSDP_SHARD;

    if (d)
        return FSDP_FAIL(FSDP_STATE,
                         "'%s%s%s' is a distributed tensor already, %s: a parameter is cut once, and before it is "
                         "sharded",
                         name, dot, claim->slot, FSDP__PLACEMENTS(d->placements, d->placement_count));
    FSDP_TRY(fsdp__check_not_gathered(t, "place", name, claim->slot));
    if (fsdp_tensor_grad(t))
        return FSDP_FAIL(FSDP_STATE, "'%s%s%s' has a gradient of all of it: call zero_grad first", name, dot,
                         claim->slot);
    if (t->dtype == FSDP_U8)
        return FSDP_FAIL(
            FSDP_STATE,
            "'%s%s%s' is held in fewer bits, which cannot be cut: leave the base unquantized, or cut nothing", name,
            dot, claim->slot);
    if ((!shards && claim->placement.kind != FSDP_REPLICATE) || (shards && claim->partial))
        return FSDP_FAIL(FSDP_INVALID,
                         "'%s%s%s' cannot be placed as %s%s: a parameter is cut, or it replicates, and only then its "
                         "gradients may be partial",
                         name, dot, claim->slot, FSDP__PLACEMENTS(&claim->placement, 1),
                         claim->partial ? " with partial gradients" : "");
    if (fsdp__placements_check(mesh, &claim->placement, t->ndim, t->shape) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "'%s%s%s'", name, dot, claim->slot);
    return FSDP_OK;
}

/* Checks it against one that the plan has already: a tied parameter is placed twice in the same way, others once. */
static fsdp_status check_twice(const fsdp__claim *a, const fsdp__claim *b)
{
    if (a->module != b->module && fsdp__placement_equal(a->placement, b->placement) && a->partial == b->partial)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_INVALID, "the patterns '%s' and '%s' place the same parameter '%s'%s", a->pattern, b->pattern,
                     b->slot, a->module == b->module ? "" : ", which is tied, in two ways");
}

fsdp_status fsdp__tp_claim(fsdp__tp_planning *planning, const fsdp__job *job, const char *slot,
                           fsdp_placement placement, bool partial)
{
    const fsdp__parameter_slot *found = find_slot(job->module, slot);
    fsdp__claim claim = {.module = job->module,
                         .pattern = job->pattern,
                         .tensor = found ? *found->slot : NULL,
                         .placement = placement,
                         .partial = partial};

    if (!found)
        return FSDP_OK;
    claim.slot = found->name;
    if (partial && planning->plan->ranks == 1)
        claim.partial = false;
    FSDP_TRY(check_tensor(&claim, job->name, planning->plan->mesh));
    for (int64_t i = 0; i < planning->claim_count; i++)
        if (planning->claims[i].tensor == claim.tensor)
            FSDP_TRY(check_twice(&planning->claims[i], &claim));
    FSDP_TRY(fsdp__grow(&planning->claims, planning->claim_count, &planning->claim_capacity, sizeof claim));
    planning->claims[planning->claim_count++] = claim;
    return FSDP_OK;
}

/* ---- placing ---- */

/* Adds up the gradients of all ranks, as each arrives, unless somebody has sharded the parameter since, and does. */
static fsdp_status add_up(void *arg, fsdp_tensor *parameter, fsdp_tensor **grad)
{
    const fsdp__tp_plan *plan = arg;
    const fsdp_distribution *d = parameter ? fsdp_tensor_distribution(parameter) : NULL;

    if (!*grad || !d || d->mesh != plan->mesh)
        return FSDP_OK;
    *grad = fsdp__wire_all_reduce(*grad, FSDP_SUM, false, plan->group);
    return *grad ? FSDP_OK : fsdp_last_status();
}

static void forget_plan(void *plan)
{
    fsdp__tp_unref(plan);
}

/* Has the gradients of all ranks added up, also those that come once a frozen parameter is thawed. */
static fsdp_status add_up_gradients(fsdp_tensor *tensor, fsdp__tp_plan *plan)
{
    bool trained = fsdp_tensor_requires_grad(tensor);
    fsdp_status status = fsdp_tensor_set_requires_grad(tensor, true);

    FSDP_TRY(status);
    status = fsdp__add_grad_hook(tensor, add_up, fsdp__tp_ref(plan), forget_plan);
    if (status != FSDP_OK)
        fsdp__tp_unref(plan);
    FSDP_KEEP_FIRST(status, fsdp_tensor_set_requires_grad(tensor, trained));
    return status;
}

/* Puts the part in the place of the whole. */
static fsdp_status take_part(fsdp_tensor *tensor, fsdp_mesh *mesh, fsdp_placement placement)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

    if (placement.kind != FSDP_SHARD)
        return FSDP_OK;
    FSDP_TRY(fsdp_distribute_tensor(tensor, mesh, &placement, &part));
    part->storage->unwritten = tensor->storage->unwritten;
    memcpy(tensor->shape, part->shape, sizeof tensor->shape);
    fsdp__tensor_take(tensor, part);
    return FSDP_OK;
}

fsdp_status fsdp__tp_place(fsdp__tp_plan *plan, const fsdp__claim *claim)
{
    fsdp_tensor *tensor = claim->tensor;
    fsdp_distribution distribution = {.mesh = plan->mesh,
                                      .placement_count = 1,
                                      .placements = {claim->placement},
                                      .ndim = tensor->ndim,
                                      .partial_gradients = claim->partial};

    if (fsdp_tensor_distribution(tensor)) /* it is tied, and was placed under its other name */
        return FSDP_OK;
    memcpy(distribution.global_shape, tensor->shape, (size_t)tensor->ndim * sizeof *tensor->shape);
    FSDP_TRY(take_part(tensor, plan->mesh, claim->placement));
    FSDP_TRY(fsdp_tensor_set_distribution(tensor, &distribution));
    return claim->partial ? add_up_gradients(tensor, plan) : FSDP_OK;
}

/* Checks that a parameter that is placed already is so in all respects. What one rank has is all that there is. */
static fsdp_status check_again(const fsdp_distribution *d, const char *parameter, const char *module, bool partial)
{
    bool before = d->partial_gradients != 0;

    if (partial == before || fsdp_mesh_size(d->mesh, -1) == 1)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_STATE, "parallel_place: '%s.%s' was placed with %s gradients, and is to have %s ones", module,
                     parameter, before ? "partial" : "whole", partial ? "partial" : "whole");
}

fsdp_status fsdp_parallel_place(fsdp_module *module, const char *parameter, fsdp_mesh *mesh, fsdp_placement placement,
                                bool partial_gradients)
{
    const fsdp__parameter_slot *slot = module && parameter ? find_slot(module, parameter) : NULL;
    const fsdp_distribution *d = slot ? fsdp_tensor_distribution(*slot->slot) : NULL;
    FSDP__SCOPED(fsdp__tp_unref_at) fsdp__tp_plan *plan = NULL;
    fsdp__claim claim = {.module = module, .placement = placement, .partial = partial_gradients};
    char path[FSDP__PATH_TEXT];
    const char *name;

    if (!module || !parameter)
        return FSDP_FAIL(FSDP_INVALID, "parallel_place: the %s is NULL", module ? "name of the parameter" : "module");
    name = *fsdp__module_path_from_root(module, path) ? path : module->type->name;
    if (!slot)
        return FSDP_FAIL(FSDP_INVALID, "parallel_place: '%s', a %s, has no parameter '%s'", name, module->type->name,
                         parameter);
    if (d && d->mesh == mesh && fsdp__placement_equal(d->placements[0], placement))
        return check_again(d, parameter, name, partial_gradients);
    claim.slot = slot->name;
    claim.tensor = *slot->slot;
    FSDP_TRY(fsdp__tp_create(module, mesh, &plan));
    FSDP_TRY(check_tensor(&claim, name, mesh));
    return fsdp__tp_place(plan, &claim);
}

/* ---- the module that the plan was applied to ---- */

static fsdp_status agree(void *arg, fsdp_module *module, fsdp_status mine)
{
    const fsdp__tp_plan *plan = arg;

    (void)module;
    return fsdp_agree(plan->group, mine);
}

/* Forgets what an earlier call has cut. */
static fsdp_status begin_call(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    fsdp__tp_plan *plan = arg;

    (void)module, (void)inputs, (void)count;
    memset(plan->uneven, 0, sizeof plan->uneven);
    return FSDP_OK;
}

static void describe(void *arg, char *text, size_t bytes)
{
    const fsdp__tp_plan *plan = arg;

    snprintf(text, bytes, "tensor parallel over %d rank%s", plan->ranks, fsdp__plural(plan->ranks));
}

static void leave(void *arg, fsdp_module *module)
{
    (void)module;
    fsdp__tp_unref(arg);
}

fsdp_status fsdp__tp_manage(fsdp_module *module, fsdp__tp_plan *plan)
{
    return fsdp__module_add_hooks(module, &(fsdp__module_hooks){.arg = fsdp__tp_ref(plan),
                                                                .pre_forward = begin_call,
                                                                .agree = agree,
                                                                .describe = describe,
                                                                .free_arg = leave});
}
