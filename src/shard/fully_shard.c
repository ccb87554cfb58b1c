/* fully_shard.c - the front door: which parameters make a group, and the methods of a sharded module. */
#include <string.h>

#include "base/alloc.h"
#include "shard/shard.h"

/* ---- choosing the parameters ---- */

typedef struct selection {
    fsdp__shard_state *state;
    fsdp_module **seen; /* modules already visited: shared ones count once */
    int64_t seen_count, seen_capacity;
} selection;

static fsdp_status check_parameter(const fsdp__shard_group *group, const char *name, const fsdp_tensor *t)
{
    if (t->ndim == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot shard '%s': a parameter without dimensions, make it one of shape (1)",
                         name);
    if (!fsdp_tensor_is_contiguous(t))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot shard '%s': not contiguous", name);
    if (!fsdp_dtype_is_floating(t->dtype))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot shard '%s': %s is not a floating dtype", name,
                         fsdp_dtype_name(t->dtype));
    if (fsdp_tensor_grad(t))
        return FSDP_FAIL(FSDP_STATE, "cannot shard '%s': it has a gradient of its whole shape; zero_grad first", name);
    if (group->param_count > 0) {
        const fsdp_tensor *first = group->params[0].sharded;

        if (t->dtype != first->dtype)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot shard '%s': it is %s, other parameters of the group are %s",
                             name, fsdp_dtype_name(t->dtype), fsdp_dtype_name(first->dtype));
        if (fsdp_tensor_device(t) != fsdp_tensor_device(first))
            return FSDP_FAIL(FSDP_INVALID,
                             "cannot shard '%s': it is on device '%s', other parameters of the group are "
                             "on '%s'",
                             name, fsdp_device_name(fsdp_tensor_device(t)),
                             fsdp_device_name(fsdp_tensor_device(first)));
    }
    return FSDP_OK;
}

/* The parameter is in a group already: by this very field (an outer module was given first) or by another (a tie). */
static fsdp_status fail_taken(const fsdp__parameter_slot *slot, const fsdp__shard_param *owner)
{
    bool same_field = false;

    for (int64_t i = 0; owner && i < owner->slot_count; i++)
        same_field = same_field || owner->slots[i].field == slot->slot;
    if (same_field)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot shard '%s': a fully_shard call on an outer module took it: shard from the bottom up, "
                         "children before their parents, and before all of them what several parents share",
                         slot->name);
    return FSDP_FAIL(FSDP_INVALID,
                     "cannot shard '%s': it shares its tensor with a parameter that an earlier fully_shard call took: "
                     "give tied modules to one call",
                     slot->name);
}

/* Adds a parameter, or a further field of one that the group has. `sharded` is what the first one will become. */
static fsdp_status select_parameter(fsdp__shard_group *group, fsdp_module *module, const fsdp__parameter_slot *slot)
{
    fsdp_tensor *t = *slot->slot;
    fsdp__shard_param *p = NULL;

    if (!t)
        return FSDP_OK;
    for (int64_t i = 0; i < group->param_count && !p; i++)
        if (group->params[i].sharded == t)
            p = &group->params[i];
    if (!p) {
        if (fsdp_tensor_distribution(t) || fsdp__param_of(t))
            return fail_taken(slot, fsdp__param_of(t));
        FSDP_TRY(check_parameter(group, slot->name, t));
        if (fsdp__grow(&group->params, group->param_count, &group->param_capacity, sizeof *group->params))
            return FSDP_NO_MEMORY;
        p = &group->params[group->param_count++];
        *p = (fsdp__shard_param){.sharded = fsdp_tensor_ref(t)};
    }
    return fsdp__param_add_slot(p, module, slot->slot);
}

static fsdp_status select_module(selection *sel, fsdp_module *module)
{
    for (int64_t i = 0; i < sel->seen_count; i++)
        if (sel->seen[i] == module)
            return FSDP_OK;
    if (fsdp__grow(&sel->seen, sel->seen_count, &sel->seen_capacity, sizeof *sel->seen))
        return FSDP_NO_MEMORY;
    sel->seen[sel->seen_count++] = module;
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(select_parameter(&sel->state->group, module, &module->parts->parameters[i]));
    for (int64_t i = 0; i < module->parts->child_count; i++)
        if (!fsdp__state_of(module->parts->children[i].module))
            FSDP_TRY(select_module(sel, module->parts->children[i].module));
    return FSDP_OK;
}

static fsdp_status check_modules(fsdp_module *const *modules, int count)
{
    if (!modules || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "fully_shard needs at least one module");
    for (int i = 0; i < count; i++) {
        if (!modules[i])
            return FSDP_FAIL(FSDP_INVALID, "fully_shard was given a null module");
        if (!modules[i]->type->forward)
            return FSDP_FAIL(FSDP_INVALID, "cannot shard a %s: it has no forward to gather for, give its children",
                             modules[i]->type->name);
        if (fsdp__state_of(modules[i]))
            return FSDP_FAIL(FSDP_STATE, "fully_shard has already been applied to this %s: only once per module",
                             modules[i]->type->name);
        for (int j = 0; j < i; j++)
            if (modules[j] == modules[i])
                return FSDP_FAIL(FSDP_INVALID, "fully_shard was given the same %s twice", modules[i]->type->name);
    }
    return FSDP_OK;
}

/* ---- building ---- */

static fsdp_status choose_mesh(fsdp__shard_group *group, fsdp_context *context, fsdp_mesh *mesh)
{
    if (!mesh)
        FSDP_TRY(fsdp__default_mesh(context, &mesh));
    if (fsdp_mesh_ndim(mesh) != 1)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "fully_shard needs a mesh of one dimension, this one has %d",
                         fsdp_mesh_ndim(mesh));
    group->mesh = fsdp_mesh_ref(mesh);
    group->comm = fsdp_mesh_group(mesh, 0);
    group->ranks = fsdp_group_size(group->comm);
    group->rank = fsdp_group_rank(group->comm);
    return FSDP_OK;
}

static fsdp_status choose_dtypes(fsdp__shard_group *group, const fsdp_mp_policy *policy)
{
    const fsdp_dtype wanted[] = {policy->param_dtype, policy->reduce_dtype, policy->output_dtype};

    for (int i = 0; i < 3; i++)
        if (wanted[i] != FSDP_DTYPE_NONE && !fsdp_dtype_is_floating(wanted[i]))
            return FSDP_FAIL(FSDP_INVALID, "mixed precision policy: %s is not a floating dtype",
                             fsdp_dtype_name(wanted[i]));
    group->orig_dtype = group->param_count > 0 ? group->params[0].sharded->dtype : FSDP_F32;
    group->param_dtype = policy->param_dtype ? policy->param_dtype : group->orig_dtype;
    group->reduce_dtype = policy->reduce_dtype;
    return FSDP_OK;
}

static fsdp_status state_create(fsdp_module *const *modules, int count, const fsdp_shard_options *options,
                                fsdp__shard_state **out)
{
    fsdp__shard_state *state = fsdp__calloc(1, sizeof *state);
    fsdp_status st = FSDP_OK;

    if (!state)
        return FSDP_NO_MEMORY;
    state->refs = 1;
    state->policy = options->mp_policy;
    state->reshard = options->reshard_after_forward;
    state->overlap = options->overlap;
    state->modules = fsdp__calloc((size_t)count, sizeof *state->modules);
    state->ran = fsdp__calloc((size_t)count, sizeof *state->ran);
    if (!state->modules || !state->ran) {
        st = FSDP_NO_MEMORY;
        goto out;
    }
    memcpy(state->modules, modules, (size_t)count * sizeof *modules);
    state->module_count = count;
    state->group.reduce_grads = state->group.reshard_after_backward = true;
    state->group.reshard_after_forward = options->reshard_after_forward != FSDP_RESHARD_NEVER;
    FSDP_TRY_GOTO(st, fsdp__tree_create(modules[0]->context, state, &state->tree), out);
    FSDP_TRY_GOTO(st, choose_mesh(&state->group, modules[0]->context, options->mesh), out);
    state->group.share = !options->no_shared_memory && fsdp_group_can_share(state->group.comm, FSDP_MEMORY_COMMON) &&
                         fsdp_group_can_share(state->group.comm, FSDP_MEMORY_VISIBLE);
    *out = state;
    return FSDP_OK;
out:
    fsdp__state_unref(state);
    return st;
}

/* Turns the selected tensors into their shards. On failure those already turned are turned back. */
static fsdp_status shard_parameters(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];
        fsdp_status st;

        p->group = group;
        st = fsdp__param_init(p, p->sharded, group->mesh);
        if (st == FSDP_OK)
            continue;
        while (i-- > 0)
            fsdp__param_undo(&group->params[i]);
        return st;
    }
    return FSDP_OK;
}

fsdp_status fsdp_fully_shard_modules(fsdp_module *const *modules, int count, const fsdp_shard_options *options)
{
    static const fsdp_shard_options defaults;
    selection sel = {0};
    fsdp_status st = FSDP_OK;
    fsdp__shard_group *group;

    FSDP_TRY(check_modules(modules, count));
    FSDP_TRY(state_create(modules, count, options ? options : &defaults, &sel.state));
    group = &sel.state->group;
    for (int i = 0; i < count; i++)
        FSDP_TRY_GOTO(st, select_module(&sel, modules[i]), out);
    FSDP_TRY_GOTO(st, choose_dtypes(group, &sel.state->policy), out);
    FSDP_TRY_GOTO(st, fsdp__state_attach(sel.state), out);
    FSDP_TRY_GOTO(st, shard_parameters(group), detach);
    if (group->param_count > 0 && !fsdp_device_is_meta(fsdp_tensor_device(group->params[0].sharded)))
        st = fsdp__state_allocate(sel.state, fsdp_tensor_device(group->params[0].sharded));
    if (st == FSDP_OK)
        goto out;
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_undo(&group->params[i]);
detach:
    fsdp__state_detach(sel.state);
out:
    fsdp__free(sel.seen);
    fsdp__state_unref(sel.state);
    return st;
}

fsdp_status fsdp_fully_shard(fsdp_module *module, const fsdp_shard_options *options)
{
    return fsdp_fully_shard_modules(&module, 1, options);
}

/* ---- methods ---- */

static fsdp_status state_of(fsdp_module *module, fsdp__shard_state **out)
{
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "a module is required");
    *out = fsdp__state_of(module);
    if (!*out)
        return FSDP_FAIL(FSDP_STATE, "this %s was not given to fully_shard", module->type->name);
    return FSDP_OK;
}

/* Applies `change` to the module's state and, with `recurse`, to those of the modules below. */
typedef struct change {
    void (*apply)(fsdp__shard_state *state, bool value);
    bool value;
} change;

static fsdp_status apply_change(void *arg, fsdp_module *module, const char *name)
{
    const change *c = arg;

    (void)name;
    if (fsdp__state_of(module))
        c->apply(fsdp__state_of(module), c->value);
    return FSDP_OK;
}

static fsdp_status change_states(fsdp_module *module, bool recurse, void (*apply)(fsdp__shard_state *, bool),
                                 bool value)
{
    fsdp__shard_state *state;
    change c = {.apply = apply, .value = value};

    FSDP_TRY(state_of(module, &state));
    return recurse ? fsdp__module_walk(module, apply_change, &c) : apply_change(&c, module, "");
}

fsdp_status fsdp_module_unshard(fsdp_module *module)
{
    fsdp__shard_state *state;
    fsdp__shard_group *group;

    FSDP_TRY(state_of(module, &state));
    group = &state->group;
    if (group->device)
        FSDP_TRY(fsdp__tree_open_stream(state->tree, group->device, FSDP_OVERLAP_INLINE));
    if (!state->tree->forward_root && !state->tree->callback_queued)
        FSDP_TRY(fsdp__tree_drop_stale(state->tree));
    FSDP_TRY(fsdp__state_unshard(state));
    FSDP_TRY(fsdp__group_wait(group, state->tree));
    group->explicit = group->state == FSDP_UNSHARDED;
    return FSDP_OK;
}

static void reshard(fsdp__shard_state *state, bool unused)
{
    (void)unused;
    fsdp__state_give_up(state);
}

fsdp_status fsdp_module_reshard(fsdp_module *module)
{
    return change_states(module, false, reshard, true);
}

fsdp_status fsdp_module_reshard_all(fsdp_module *module)
{
    change c = {.apply = reshard, .value = true};

    return fsdp__module_walk(module, apply_change, &c);
}

static void set_gradient_sync(fsdp__shard_state *state, bool sync)
{
    state->group.reduce_grads = sync;
}

fsdp_status fsdp_module_set_requires_gradient_sync(fsdp_module *module, bool sync, bool recurse)
{
    return change_states(module, recurse, set_gradient_sync, sync);
}

fsdp_status fsdp_module_set_is_last_backward(fsdp_module *module, bool last)
{
    fsdp__shard_state *state;

    FSDP_TRY(state_of(module, &state));
    fsdp__tree_set_last_backward(state->tree, last);
    return FSDP_OK;
}

static void set_reshard_after_forward(fsdp__shard_state *state, bool on)
{
    state->reshard = on ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_NEVER; /* no longer automatic */
    state->group.reshard_after_forward = on;
}

fsdp_status fsdp_module_set_reshard_after_forward(fsdp_module *module, bool on, bool recurse)
{
    return change_states(module, recurse, set_reshard_after_forward, on);
}

static void set_reshard_after_backward(fsdp__shard_state *state, bool on)
{
    state->group.reshard_after_backward = on;
}

fsdp_status fsdp_module_set_reshard_after_backward(fsdp_module *module, bool on, bool recurse)
{
    return change_states(module, recurse, set_reshard_after_backward, on);
}

fsdp_status fsdp_module_set_gradient_divide_factor(fsdp_module *module, float factor)
{
    fsdp__shard_state *state;

    FSDP_TRY(state_of(module, &state));
    if (!(factor >= 0))
        return FSDP_FAIL(FSDP_INVALID, "gradient divide factor %g: expected a positive number, or 0 for the default",
                         (double)factor);
    state->group.divide_factor = factor;
    return FSDP_OK;
}

fsdp_status fsdp_module_reset_iteration(fsdp_module *module)
{
    fsdp__shard_state *state;

    FSDP_TRY(state_of(module, &state));
    if (state->tree->root != state)
        return FSDP_FAIL(FSDP_STATE, "only the outermost sharded module can reset an iteration");
    return fsdp__tree_reset(state->tree);
}

bool fsdp_module_is_sharded(fsdp_module *module)
{
    return module && fsdp__state_of(module);
}

fsdp_status fsdp_module_shard_info(fsdp_module *module, fsdp_shard_info *out)
{
    fsdp__shard_state *state;
    const fsdp__shard_group *group;

    FSDP_TRY(state_of(module, &state));
    group = &state->group;
    *out = (fsdp_shard_info){.name = state->name,
                             .state = group->state,
                             .parameter_count = group->param_count,
                             .shares_memory = group->layout == FSDP__LAYOUT_IN_PLACE && group->ranks > 1};
    for (int64_t i = 0; i < group->param_count; i++) {
        out->numel += fsdp__param_numel(&group->params[i]);
        out->padded_numel += fsdp__param_chunk_numel(&group->params[i]) * group->ranks;
        out->shard_numel += fsdp__param_shard_numel(&group->params[i]);
    }
    return FSDP_OK;
}

fsdp_status fsdp_module_set_shard_listener(fsdp_module *root, fsdp_shard_listener listener, void *arg)
{
    fsdp__shard_state *state;

    FSDP_TRY(state_of(root, &state));
    state->tree->listener = listener;
    state->tree->listener_arg = arg;
    return FSDP_OK;
}
