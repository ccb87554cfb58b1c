/* job.c - what all styles need: the plan that modules share, messages, hooks. */
#include "base/alloc.h"
#include "base/status.h"
#include "dist/dist.h"
#include "parallel/plan.h"

/* ---- what modules share ---- */

fsdp_status fsdp__tp_create(fsdp_module *module, fsdp_mesh *mesh, fsdp__tp_plan **out)
{
    fsdp__tp_plan *plan;
    char text[FSDP__MESH_TEXT];

    *out = NULL;
    if (!module || !mesh)
        return FSDP__FAIL_NULL("tensor parallelism needs a module and a mesh");
    if (fsdp_mesh_context(mesh) != module->context)
        return FSDP_FAIL(FSDP_INVALID, "tensor parallelism was given a mesh of another context than the module's");
    if (fsdp_mesh_ndim(mesh) != 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "tensor parallelism needs a mesh of one dimension, not %s: take one of them with "
                         "fsdp_mesh_slice",
                         fsdp__mesh_text(mesh, text));
    FSDP__TRY_NEW(plan = fsdp__calloc(1, sizeof *plan));
    *plan = (fsdp__tp_plan){.refs = 1,
                            .mesh = fsdp_mesh_ref(mesh),
                            .group = fsdp_mesh_process_group(mesh, 0),
                            .rank = fsdp_mesh_coordinate(mesh, 0),
                            .ranks = (int)fsdp_mesh_size(mesh, 0),
                            .context = module->context};
    *out = plan;
    return FSDP_OK;
}

fsdp__tp_plan *fsdp__tp_ref(fsdp__tp_plan *plan)
{
    plan->refs++;
    return plan;
}

void fsdp__tp_unref(fsdp__tp_plan *plan)
{
    if (!plan || --plan->refs > 0)
        return;
    fsdp__lane_close(&plan->lane);
    fsdp_mesh_unref(plan->mesh);
    fsdp__free(plan);
}

/* ---- one module ---- */

fsdp_status fsdp__style_misfit(const fsdp__job *job, const char *wants)
{
    return FSDP_FAIL(FSDP_INVALID, "the pattern '%s' makes '%s' %s, which is a %s: that style is for %s", job->pattern,
                     job->name, job->kind->name, job->module->type->name, wants);
}

static void forget(void *arg, fsdp_module *module)
{
    fsdp__applied *a = arg;

    (void)module;
    fsdp__tp_unref(a->plan);
    fsdp__free(a);
}

fsdp_status fsdp__apply_hooks(const fsdp__job *job, fsdp__tp_plan *plan, int64_t whole, const fsdp__module_hooks *hooks)
{
    fsdp__module_hooks mine = *hooks;
    fsdp__applied *a;

    FSDP__TRY_NEW(a = fsdp__calloc(1, sizeof *a));
    *a = (fsdp__applied){.plan = fsdp__tp_ref(plan), .style = job->style, .whole = whole};
    (void)fsdp_shard_range(whole, plan->ranks, plan->rank, &a->first);
    mine.arg = a;
    mine.free_arg = forget;
    return fsdp__module_add_hooks(job->module, &mine);
}
