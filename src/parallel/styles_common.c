/* styles_common.c - what all styles need: the plan that modules share, messages, hooks. */
#include "base/alloc.h"
#include "dist/dist.h"
#include "nn/module_path.h"
#include "parallel/plan.h"

/* ---- what modules share ---- */

fsdp_status fsdp__check_mesh(const char *what, const char *of, const fsdp_module *module, const fsdp_mesh *mesh)
{
    if (!module || !mesh)
        return FSDP_FAIL(FSDP_INVALID, "%s needs a %s and a mesh, but the %s is NULL", what, of, module ? "mesh" : of);
    if (fsdp_mesh_context(mesh) != module->context)
        return FSDP_FAIL(FSDP_INVALID, "%s was given a mesh of another context than the %s's", what, of);
    if (fsdp_mesh_ndim(mesh) != 1)
        return FSDP_FAIL(FSDP_INVALID,
                         "%s needs a mesh of one dimension, not %s: take one of them with fsdp_mesh_slice", what,
                         FSDP__MESH(mesh));
    return FSDP_OK;
}

fsdp_status fsdp__tp_create(fsdp_module *module, fsdp_mesh *mesh, fsdp__tp_plan **out)
{
    fsdp__tp_plan *plan;

    *out = NULL;
    FSDP_TRY(fsdp__check_mesh("tensor parallelism", "module", module, mesh));
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
    fsdp__side_stream_unref(plan->side);
    fsdp_mesh_unref(plan->mesh);
    fsdp__free(plan);
}

/* ---- who divides whose work ---- */

static const char *const work_names[] = {"layers", "sequences"};

static void forget_mesh(void *mesh, fsdp_module *module)
{
    (void)module;
    fsdp_mesh_unref(mesh);
}

fsdp_status fsdp__note_work(fsdp_module *module, fsdp__work work, fsdp_mesh *mesh)
{
    return fsdp__module_add_hooks(
        module, &(fsdp__module_hooks){.key = &work_names[work], .arg = fsdp_mesh_ref(mesh), .free_arg = forget_mesh});
}

static int shared_ranks(const fsdp_mesh *a, const fsdp_mesh *b)
{
    int count = 0;

    for (int64_t i = 0; i < fsdp_mesh_size(a, 0); i++)
        for (int64_t j = 0; j < fsdp_mesh_size(b, 0); j++)
            count += a->ranks[i] == b->ranks[j];
    return count;
}

typedef struct division {
    fsdp__work work;
    const fsdp_mesh *mesh;
} division;

static fsdp_status check_one(const division *mine, const fsdp_module *module)
{
    fsdp__work other = mine->work == FSDP__WORK_OF_LAYERS ? FSDP__WORK_OF_SEQUENCES : FSDP__WORK_OF_LAYERS;

    for (int64_t i = 0; i < module->parts->hook_count; i++) {
        const fsdp__module_hooks *hooks = &module->parts->hooks[i];

        if (hooks->key == &work_names[other] && shared_ranks(mine->mesh, hooks->arg) > 1)
            return FSDP_FAIL(FSDP_INVALID,
                             "%s cannot be divided over mesh %s: %s are divided over mesh %s, and %d ranks are in "
                             "both; slice different dimensions of one mesh",
                             work_names[mine->work], FSDP__MESH(mine->mesh), work_names[other], FSDP__MESH(hooks->arg),
                             shared_ranks(mine->mesh, hooks->arg));
    }
    return FSDP_OK;
}

static fsdp_status check_below(void *mine, fsdp_module *module, const char *name)
{
    (void)name;
    return check_one(mine, module);
}

fsdp_status fsdp__check_work(fsdp_module *module, fsdp__work work, fsdp_mesh *mesh)
{
    division mine = {work, mesh};

    for (const fsdp_module *m = fsdp__module_parent(module); m; m = fsdp__module_parent(m))
        FSDP_TRY(check_one(&mine, m));
    return fsdp__module_walk(module, check_below, &mine);
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
    *a = (fsdp__applied){
        .plan = fsdp__tp_ref(plan), .style = job->style, .takes = job->takes, .gives = job->gives, .whole = whole};
    (void)fsdp_shard_range(whole, plan->ranks, plan->rank, &a->first);
    mine.arg = a;
    mine.free_arg = forget;
    return fsdp__module_add_hooks(job->module, &mine);
}

bool fsdp__job_enters(const fsdp__job *job)
{
    return !fsdp__layout_equal(job->style.from[0], job->takes);
}

bool fsdp__job_leaves(const fsdp__job *job)
{
    return !fsdp__layout_equal(job->gives, job->style.to[0]);
}

fsdp_status fsdp__enter(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    const fsdp__applied *a = arg;

    (void)module, (void)count;
    inputs[0] = fsdp__layout_convert(a->plan, inputs[0], a->style.from[0], a->takes);
    return inputs[0] ? FSDP_OK : fsdp_last_status();
}

fsdp_status fsdp__leave(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count, fsdp_tensor **outputs,
                        int output_count)
{
    const fsdp__applied *a = arg;

    (void)module, (void)inputs, (void)count, (void)output_count;
    if (a->whole > 0)
        fsdp__tp_note_cut(a->plan, outputs[0]->ndim - 1, a->whole);
    outputs[0] = fsdp__layout_convert_known(a->plan, outputs[0], a->gives, a->style.to[0], a->whole);
    return outputs[0] ? FSDP_OK : fsdp_last_status();
}
