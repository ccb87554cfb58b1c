/* fsdp1.c - the front door of FSDP1: a unit under its strategy, and the schedule that its users know. */
#include "fsdp/fsdp1.h"

#include "base/alloc.h"
#include "shard/fsdp1_mesh.h"
#include "shard/lazy_init.h"
#include "shard/methods.h"

typedef struct wrapping {
    const fsdp_fsdp1_options *options;
    fsdp_sharding_strategy strategy;
    fsdp_mesh *mesh;       /* a reference */
    fsdp_tensor **ignored; /* parameters that are left alone; borrowed */
    int64_t ignored_count, ignored_capacity;
} wrapping;

/* ---- what is left alone ---- */

static fsdp_status ignore(wrapping *w, fsdp_tensor *t)
{
    if (fsdp__grow(&w->ignored, w->ignored_count, &w->ignored_capacity, sizeof *w->ignored))
        return FSDP_NO_MEMORY;
    w->ignored[w->ignored_count++] = t;
    return FSDP_OK;
}

static fsdp_status ignore_module(void *arg, fsdp_module *module, const char *name)
{
    (void)name;
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        if (*module->parts->parameters[i].slot)
            FSDP_TRY(ignore(arg, *module->parts->parameters[i].slot));
    return FSDP_OK;
}

static fsdp_status collect_ignored(wrapping *w)
{
    const fsdp_fsdp1_options *o = w->options;

    if (o->ignored_param_count < 0 || (o->ignored_param_count > 0 && !o->ignored_params))
        return FSDP_FAIL(FSDP_INVALID, "ignored_params: %lld tensors, and no list of them",
                         (long long)o->ignored_param_count);
    if (o->ignored_module_count < 0 || (o->ignored_module_count > 0 && !o->ignored_modules))
        return FSDP_FAIL(FSDP_INVALID, "ignored_modules: %lld modules, and no list of them",
                         (long long)o->ignored_module_count);
    for (int64_t i = 0; i < o->ignored_param_count; i++)
        FSDP_TRY(ignore(w, o->ignored_params[i]));
    for (int64_t i = 0; i < o->ignored_module_count; i++) {
        if (!o->ignored_modules[i])
            return FSDP_FAIL(FSDP_INVALID, "ignored_modules[%lld] is null", (long long)i);
        if (fsdp_module_is_sharded(o->ignored_modules[i]))
            return FSDP_FAIL(FSDP_INVALID, "ignored_modules[%lld], a %s, has been wrapped", (long long)i,
                             o->ignored_modules[i]->type->name);
        FSDP_TRY(fsdp__module_walk(o->ignored_modules[i], ignore_module, w));
    }
    return FSDP_OK;
}

static bool is_ignored(const wrapping *w, const fsdp_tensor *t)
{
    for (int64_t i = 0; i < w->ignored_count; i++)
        if (w->ignored[i] == t)
            return true;
    return false;
}

/* ---- what a unit may have ---- */

/* `*first` is a parameter of the unit, or NULL so far. */
static fsdp_status check_dtypes(const wrapping *w, const fsdp_module *module, const fsdp_tensor **first)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        const fsdp_tensor *t = *slot->slot;

        if (!t || fsdp__param_of(t) || is_ignored(w, t))
            continue;
        *first = *first ? *first : t;
        if (t->dtype != (*first)->dtype)
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot wrap '%s' of a %s: it is %s, other parameters of the unit are %s: give modules of "
                             "another dtype a unit of their own",
                             slot->name, module->type->name, fsdp_dtype_name(t->dtype),
                             fsdp_dtype_name((*first)->dtype));
    }
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (!fsdp__module_state_of(module->parts->children[i].module))
            FSDP_TRY(check_dtypes(w, module->parts->children[i].module, first));
    return FSDP_OK;
}

/* ---- a unit ---- */

static bool keeps_after_forward(fsdp_sharding_strategy strategy)
{
    return strategy != FSDP_FULL_SHARD && strategy != FSDP_HYBRID_SHARD;
}

static fsdp_mp_policy policy_of(const fsdp_fsdp1_mixed_precision *mp)
{
    return (fsdp_mp_policy){.param_dtype = mp->param_dtype,
                            .reduce_dtype = mp->reduce_dtype ? mp->reduce_dtype : mp->param_dtype,
                            .buffer_dtype = mp->buffer_dtype,
                            .keep_forward_inputs = !mp->cast_forward_inputs};
}

static void set_schedule(const wrapping *w, fsdp__module_state *state)
{
    const fsdp_fsdp1_options *o = w->options;

    state->fsdp1 = (fsdp__fsdp1){.on = true,
                                 .strategy = w->strategy,
                                 .backward_prefetch = o->backward_prefetch,
                                 .forward_prefetch = o->forward_prefetch,
                                 .keeps_unsynced = keeps_after_forward(w->strategy),
                                 .casts_root_inputs = !o->mixed_precision.keep_root_forward_inputs};
    state->reshard_after_backward = w->strategy != FSDP_NO_SHARD;
}

static fsdp_status wrap_unit(const wrapping *w, fsdp_module *module)
{
    const fsdp_fsdp1_options *o = w->options;
    const fsdp_shard_options options = {.mesh = w->mesh,
                                        .reshard_after_forward =
                                            keeps_after_forward(w->strategy) ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO,
                                        .mp_policy = policy_of(&o->mixed_precision),
                                        .offload_policy = o->cpu_offload,
                                        .overlap = o->overlap,
                                        .ignored_params = w->ignored,
                                        .ignored_param_count = w->ignored_count,
                                        .no_shared_memory = o->no_shared_memory};
    const fsdp_tensor *first = NULL;

    FSDP_TRY(check_dtypes(w, module, &first));
    FSDP_TRY(fsdp_fully_shard(module, &options));
    set_schedule(w, fsdp__module_state_of(module));
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_wrap(fsdp_module *module, const fsdp_fsdp1_options *options)
{
    static const fsdp_fsdp1_options defaults;
    wrapping w = {.options = options ? options : &defaults};
    fsdp_status status;

    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1 needs a module");
    if (w.options->backward_prefetch < FSDP_BACKWARD_PRE || w.options->backward_prefetch > FSDP_BACKWARD_NONE)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1: %d is no backward prefetch", (int)w.options->backward_prefetch);
    FSDP_TRY_GOTO(status, collect_ignored(&w), out);
    FSDP_TRY_GOTO(status, fsdp__fsdp1_mesh(module->context, w.options, &w.mesh, &w.strategy), out);
    status = wrap_unit(&w, module);
out:
    fsdp__free(w.ignored);
    fsdp_mesh_unref(w.mesh);
    return status;
}

/* ---- no_sync ---- */

static fsdp_status idle_root(fsdp_module *module, const char *call, fsdp__root **out)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (!state->fsdp1.on)
        return FSDP_FAIL(FSDP_STATE, "%s is of modules that FSDP1 wrapped: here set requires_gradient_sync", call);
    FSDP_TRY(fsdp__lazy_init(state));
    if (state->root->state != state)
        return FSDP_FAIL(FSDP_STATE, "%s is of the outermost wrapped module, not of '%s'", call, state->name);
    *out = state->root;
    for (int64_t i = 0; i < state->root->state_count; i++)
        if (state->root->states[i]->training != FSDP__IDLE || state->root->in_backward)
            return FSDP_FAIL(FSDP_STATE, "%s while a %s runs", call, state->root->in_backward ? "backward" : "forward");
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_no_sync_begin(fsdp_module *module)
{
    fsdp__root *root;

    FSDP_TRY(idle_root(module, "no_sync", &root));
    for (int64_t i = 0; i < root->state_count; i++)
        root->states[i]->no_sync++;
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_no_sync_end(fsdp_module *module)
{
    fsdp__root *root;

    FSDP_TRY(idle_root(module, "the end of no_sync", &root));
    if (root->state->no_sync == 0)
        return FSDP_FAIL(FSDP_STATE, "no_sync ends, but has not begun");
    for (int64_t i = 0; i < root->state_count; i++)
        root->states[i]->no_sync--;
    return FSDP_OK;
}
