/* fsdp1.c - the front door of FSDP1: wraps units under their strategy, with the schedule that its users know. */
#include "fsdp/fsdp1.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "dist/dist.h"
#include "shard/doors/fsdp1_mesh.h"
#include "shard/doors/fsdp1_prepare.h"
#include "shard/doors/fully_shard.h"
#include "shard/doors/wrap_policy.h"
#include "shard/state/lazy_init.h"
#include "shard/state/methods.h"

enum {
    ORIG_PARAMS_ALIGN = 16 /* bytes of the gathered dtype, as in PyTorch */
};

/* ---- the door ---- */

static const char *strategy_of(const fsdp__module_state *state)
{
    return fsdp__fsdp1_strategy_name(state->fsdp1.strategy);
}

/* Checks what FSDP1 wants to be the same in all of its units. */
static fsdp_status check_tree(const fsdp__root *root, const fsdp__module_state *state, const char *name)
{
    const fsdp__fsdp1 *own = &state->fsdp1, *first;
    const char *what;
    int64_t i = 0;

    while (root->states[i]->door != state->door)
        i++;
    first = &root->states[i]->fsdp1;
    what = own->use_orig_params != first->use_orig_params             ? "use_orig_params"
           : own->no_limit_all_gathers != first->no_limit_all_gathers ? "no_limit_all_gathers"
                                                                      : NULL;
    if (what)
        return FSDP_FAIL(FSDP_STATE, "'%s' was wrapped with another %s than units before it: give all the same", name,
                         what);
    return FSDP_OK;
}

static const fsdp__door door = {.kind = FSDP_DOOR_FSDP1,
                                .call = "fsdp_fsdp1_wrap",
                                .title = "FSDP1",
                                .strategy = strategy_of,
                                .check_tree = check_tree};

typedef struct wrapping {
    const fsdp_fsdp1_options *options; /* of the call */
    fsdp_mesh *mesh;                   /* that the options ask for; a reference */
    fsdp_sharding_strategy strategy;
    fsdp_wrap_policy policy; /* with everything that is ignored */
    fsdp_wrap_units units;
} wrapping;

/* ---- units ---- */

static bool is_mixed(const fsdp_fsdp1_mixed_precision *mp)
{
    return mp->param_dtype || mp->reduce_dtype || mp->buffer_dtype;
}

static void set_full_precision(fsdp_wrap_policy *policy, const fsdp_fsdp1_mixed_precision *mp)
{
    static const char *const norms[] = {"BatchNorm", "BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "SyncBatchNorm"};

    if (policy->kind == FSDP_WRAP_NONE || policy->full_precision_class_count > 0 || !is_mixed(mp))
        return;
    policy->full_precision_classes = norms;
    policy->full_precision_class_count = FSDP__COUNT_OF(norms);
}

static fsdp_status check_ignored(const fsdp_wrap_policy *policy)
{
    for (int64_t i = 0; i < policy->ignored_module_count; i++)
        if (policy->ignored_modules[i] && fsdp_module_is_sharded(policy->ignored_modules[i]))
            return FSDP_FAIL(FSDP_INVALID, "ignored_modules[%lld], a %s, has been wrapped", (long long)i,
                             policy->ignored_modules[i]->type->name);
    return FSDP_OK;
}

static fsdp_status make_units(wrapping *w, fsdp_module *module)
{
    const fsdp_fsdp1_options *o = w->options;
    FSDP__FREED void *modules = NULL, *params = NULL;

    if (o->auto_wrap_policy) {
        FSDP_TRY(fsdp__wrap_policy_check(o->auto_wrap_policy));
        w->policy = *o->auto_wrap_policy;
    }
    set_full_precision(&w->policy, &o->mixed_precision);
    FSDP_TRY(fsdp__wrap_join("ignored_modules", o->ignored_modules, o->ignored_module_count, w->policy.ignored_modules,
                             w->policy.ignored_module_count, &modules));
    FSDP_TRY(fsdp__wrap_join("ignored_params", o->ignored_params, o->ignored_param_count, w->policy.ignored_params,
                             w->policy.ignored_param_count, &params));
    w->policy.ignored_modules = modules;
    w->policy.ignored_module_count += o->ignored_module_count;
    w->policy.ignored_params = params;
    w->policy.ignored_param_count += o->ignored_param_count;
    FSDP_TRY(check_ignored(&w->policy));
    FSDP_TRY(fsdp_module_wrap_units(module, &w->policy, o, sizeof *o, &w->units));
    return w->policy.kind != FSDP_WRAP_NONE ? fsdp__wrap_units_check(&w->units, &w->policy) : FSDP_OK;
}

/* ---- a unit ---- */

static fsdp_status check_prefetch(const fsdp_fsdp1_options *o)
{
    if (o->backward_prefetch < FSDP_BACKWARD_PRE || o->backward_prefetch > FSDP_BACKWARD_NONE)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1: %d is not a backward prefetch", (int)o->backward_prefetch);
    return FSDP_OK;
}

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

/* Returns the dtype that gradients rest in, as in PyTorch: the one they were computed in, or with NO_SHARD the one they
 * were reduced in. */
static fsdp_dtype low_gradients(const fsdp_mp_policy *policy, const fsdp_fsdp1_options *o,
                                fsdp_sharding_strategy strategy)
{
    if (!o->mixed_precision.keep_low_precision_grads)
        return FSDP_DTYPE_NONE;
    return strategy == FSDP_NO_SHARD ? policy->reduce_dtype : policy->param_dtype;
}

static void set_schedule(const fsdp_wrap_unit *unit, fsdp_sharding_strategy strategy)
{
    const fsdp_fsdp1_options *o = unit->options;
    fsdp__module_state *state = fsdp__module_state_of(unit->module);

    state->fsdp1 = (fsdp__fsdp1){.use_orig_params = o->use_orig_params,
                                 .no_limit_all_gathers = o->no_limit_all_gathers,
                                 .strategy = strategy,
                                 .by_mesh = o->mesh != NULL};
    state->reshards_at_last_use = true;
    state->keeps_unsynced = keeps_after_forward(strategy);
    state->casts_root_inputs = !o->mixed_precision.keep_root_forward_inputs;
    state->full_precision = unit->full_precision;
    state->prefetch = o->backward_prefetch;
    state->prefetches_first_uses = o->forward_prefetch;
    state->reshard_after_backward = strategy != FSDP_NO_SHARD;
    for (int64_t i = 0; i < state->group_count; i++) {
        state->groups[i]->residence.whole = strategy == FSDP_NO_SHARD;
        state->groups[i]->low_gradients = low_gradients(&state->policy, o, strategy);
    }
}

/* Gives the mesh of the call, or the one that the policy has chosen for this unit. `*out` is a reference. */
static fsdp_status mesh_of(const wrapping *w, const fsdp_wrap_unit *unit, fsdp_mesh **out,
                           fsdp_sharding_strategy *strategy)
{
    const fsdp_fsdp1_options *o = unit->options, *call = w->options;
    bool same = o->strategy == call->strategy && o->mesh == call->mesh && o->process_group == call->process_group &&
                o->replicate_group == call->replicate_group;

    if (!same)
        return fsdp__fsdp1_mesh(unit->module->context, o, out, strategy);
    *out = fsdp_mesh_ref(w->mesh);
    *strategy = w->strategy;
    return FSDP_OK;
}

/* Makes sure that the unit's parameters have values, the same on all ranks. */
static fsdp_status prepare_unit(const wrapping *w, const fsdp_wrap_unit *unit, fsdp_mesh *mesh)
{
    const fsdp_fsdp1_options *o = unit->options;
    FSDP__SCOPED(fsdp__mesh_info_release) fsdp__mesh_info info = fsdp__mesh_info_of(mesh);
    fsdp_status status;

    FSDP_TRY_GOTO(status, check_prefetch(o), agree);
    FSDP_TRY_GOTO(status, fsdp__fsdp1_check_unit(unit, o->use_orig_params), agree);
    FSDP_TRY_GOTO(status, fsdp__fsdp1_init_unit(&w->units, unit, o), agree);
    if (o->sync_module_states)
        status = fsdp__fsdp1_sync_unit(&w->units, unit, NULL);
agree:
    status = fsdp__mesh_info_agree(&info, status); /* param_init_fn may have failed on one rank */
    if (status == FSDP_OK && o->sync_module_states)
        status = fsdp__fsdp1_sync_unit(&w->units, unit, &info);
    return status;
}

static fsdp_status wrap_unit(const wrapping *w, const fsdp_wrap_unit *unit)
{
    const fsdp_fsdp1_options *o = unit->options;
    fsdp_shard_options options = {.offload_policy = o->cpu_offload,
                                  .overlap = o->overlap,
                                  .ignored_params = w->units.ignored,
                                  .ignored_param_count = w->units.ignored_count,
                                  .no_shared_memory = o->no_shared_memory};
    const fsdp__flat flat = {.align = o->use_orig_params ? ORIG_PARAMS_ALIGN : 0, .as_one = !o->use_orig_params};
    fsdp_module *module = unit->module;
    fsdp_sharding_strategy strategy;
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *mesh = NULL;

    if (!unit->full_precision)
        options.mp_policy = policy_of(&o->mixed_precision);
    FSDP_TRY(mesh_of(w, unit, &mesh, &strategy));
    options.mesh = mesh;
    if (keeps_after_forward(strategy))
        options.reshard_after_forward = FSDP_RESHARD_NEVER;
    FSDP_TRY(prepare_unit(w, unit, mesh));
    FSDP_TRY(fsdp__fully_shard(&door, &module, 1, &options, &flat));
    set_schedule(unit, strategy);
    return FSDP_OK;
}

static void warn_full_precision(const fsdp_wrap_units *units)
{
    fsdp_context *context = units->items[0].module->context;

    for (int64_t i = 0; i < units->count && fsdp_context_rank(context) == 0; i++)
        if (units->items[i].full_precision)
            fsdp_log(context, FSDP_LOG_WARNING, "FSDP1 wraps the %s '%s' by itself, without mixed precision",
                     units->items[i].module->type->name, units->items[i].name);
}

/* Makes the units, and checks the options. What fails on one rank fails before others wait for it. */
static fsdp_status prepare(wrapping *w, fsdp_module *module)
{
    FSDP_TRY(make_units(w, module));
    FSDP_TRY(fsdp__fsdp1_check(module->context, w->options));
    for (int64_t i = 0; i < w->units.count; i++)
        FSDP_TRY(fsdp__fsdp1_check(module->context, w->units.items[i].options));
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_wrap(fsdp_module *module, const fsdp_fsdp1_options *options)
{
    static const fsdp_fsdp1_options defaults;
    wrapping w = {.options = options ? options : &defaults};
    fsdp_status status;

    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "FSDP1 needs a module");
    status = prepare(&w, module);
    if (fsdp_context_world_size(module->context) > 1)
        status = fsdp_agree(fsdp_world(module->context), status);
    if (status != FSDP_OK)
        goto out;
    FSDP_TRY_GOTO(status, fsdp__fsdp1_mesh(module->context, w.options, &w.mesh, &w.strategy), out);
    warn_full_precision(&w.units);
    for (int64_t i = 0; i < w.units.count && status == FSDP_OK; i++)
        status = wrap_unit(&w, &w.units.items[w.units.bottom_up[i]]);
out:
    fsdp_wrap_units_release(&w.units);
    fsdp_mesh_unref(w.mesh);
    return status;
}

/* ---- no_sync ---- */

static fsdp_status idle_root(fsdp_module *module, const char *call, fsdp__root **out)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (state->door != &door)
        return FSDP_FAIL(FSDP_STATE, "%s is for modules that FSDP1 wrapped: here, set requires_gradient_sync", call);
    FSDP_TRY(fsdp__lazy_init(state));
    if (state->root->state != state)
        return FSDP_FAIL(FSDP_STATE, "%s belongs to the outermost wrapped module, not to '%s'", call, state->name);
    *out = state->root;
    for (int64_t i = 0; i < state->root->state_count; i++)
        if (state->root->states[i]->training != FSDP__IDLE || state->root->in_backward)
            return FSDP_FAIL(FSDP_STATE, "%s while a %s runs", call, state->root->in_backward ? "backward" : "forward");
    return FSDP_OK;
}

static fsdp_status add_no_sync(fsdp_module *module, const char *call, int by)
{
    fsdp__root *root = NULL;

    FSDP_TRY(idle_root(module, call, &root));
    if (root->state->no_sync + by < 0)
        return FSDP_FAIL(FSDP_STATE, "no_sync ends, but has not begun");
    for (int64_t i = 0; i < root->state_count; i++)
        root->states[i]->no_sync += by;
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_no_sync_begin(fsdp_module *module)
{
    return add_no_sync(module, "no_sync", 1);
}

fsdp_status fsdp_fsdp1_no_sync_end(fsdp_module *module)
{
    return add_no_sync(module, "the end of no_sync", -1);
}

/* ---- the communication hook ---- */

static fsdp_status check_hook(void *unused, fsdp__module_state *state)
{
    (void)unused;
    for (int64_t i = 0; i < state->group_count; i++) {
        const fsdp__mesh_info *mesh = &state->groups[i]->residence.mesh;

        if (state->groups[i]->buckets)
            return fsdp__fail_replicated(state, "fsdp_module_set_bucket_hook");
        if (mesh->ranks > 1 && mesh->replicas > 1)
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "a communication hook takes the place of one collective, and the hybrid strategies have "
                             "two: set a custom reduce-scatter and a custom all-reduce");
    }
    return FSDP_OK;
}

static fsdp_status set_hook(void *arg, fsdp__module_state *state)
{
    const fsdp_custom_collective *hook = arg;

    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp__param_group *group = state->groups[i];

        *(group->residence.mesh.ranks > 1 ? &group->reduce_scatter : &group->all_reduce) =
            hook ? *hook : (fsdp_custom_collective){0};
    }
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_register_comm_hook(fsdp_module *module, const fsdp_custom_collective *hook)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(fsdp__check_custom(hook));
    if (hook && hook->allocate)
        return FSDP_FAIL(FSDP_INVALID, "a communication hook is without allocate: it may work in place");
    if (state->root->state != state)
        return FSDP_FAIL(FSDP_STATE, "a communication hook is registered with the outermost wrapped module");
    FSDP_TRY(fsdp__each_state(module, true, check_hook, NULL));
    return fsdp__each_state(module, true, set_hook, (void *)(uintptr_t)hook);
}
