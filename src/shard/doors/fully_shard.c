/* fully_shard.c - the front door of FSDP2: chooses the parameters that make a group. */
#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "nn/managers.h"
#include "shard/doors/fully_shard.h"
#include "shard/doors/zero.h"
#include "shard/group/default_groups.h"
#include "shard/reduce/owner.h"
#include "shard/state/attach.h"

const fsdp__door fsdp__door_fully_shard = {
    .kind = FSDP_DOOR_FULLY_SHARD, .call = "fully_shard", .title = "fully_shard"};

/* ---- choosing the parameters ---- */

typedef struct selection {
    const fsdp__door *door;
    fsdp__module_state *state;
    fsdp_mesh *mesh;
    bool share;
    const fsdp__flat *flat; /* NULL: none */
    const fsdp_shard_options *options;
    const char *path;   /* of the module at hand, from the module of the call */
    fsdp_module **seen; /* modules already visited: shared ones count once */
    int64_t seen_count, seen_capacity;
} selection;

fsdp_status fsdp__check_parameter(const char *what, const char *name, const fsdp_tensor *t, const fsdp_tensor *first)
{
    const fsdp_device *device = fsdp_tensor_device(t), *other = first ? fsdp_tensor_device(first) : device;

    if (t->ndim == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s '%s': it has no dimensions: give it shape (1)", what, name);
    if (!fsdp_tensor_is_contiguous(t))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot %s '%s': it is not contiguous", what, name);
    if (!fsdp_dtype_is_floating(t->dtype) && t->dtype != FSDP_U8)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot %s '%s': its dtype %s is not floating", what, name,
                         fsdp_dtype_name(t->dtype));
    FSDP_TRY(fsdp__check_not_gathered(t, what, "", name));
    if (fsdp_tensor_grad(t))
        return FSDP_FAIL(FSDP_STATE, "cannot %s '%s': it has a gradient of this rank's own: call zero_grad first", what,
                         name);
    if (device != other)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot %s '%s': it is on device '%s', but other parameters of the group are on '%s': all of "
                         "them must be on one device, or on meta%s",
                         what, name, fsdp_device_name(device), fsdp_device_name(other),
                         fsdp_device_is_meta(device) || fsdp_device_is_meta(other)
                             ? "; call fsdp_module_materialize for the whole module first"
                             : "");
    return FSDP_OK;
}

/* Makes the state that owns the parameter accompany this one, since the parameter is tied to one of an earlier call, or
 * its module is shared. The owner must not be an outer module that was given first. */
static fsdp_status join_owner(selection *sel, fsdp_module *module, const fsdp__parameter_slot *slot, fsdp__param *owner)
{
    const fsdp_mp_policy *policy = &sel->state->policy;
    fsdp_dtype dtype = policy->param_dtype ? policy->param_dtype : owner->orig_dtype;

    for (int64_t i = 0; i < sel->state->module_count; i++)
        if (fsdp__module_state_reaches(owner->group->state, sel->state->modules[i]))
            return FSDP_FAIL(FSDP_INVALID, "cannot shard '%s' of a %s: %s of an outer module took it: %s", slot->name,
                             module->type->name, owner->group->state->door->call,
                             owner->group->state->door->kind == FSDP_DOOR_REPLICATE
                                 ? "to shard and replicate, give a mesh of two dimensions"
                                 : "shard from the bottom up, children before their parents");
    if (dtype != owner->param_dtype)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot shard '%s' of a %s: it is tied to a parameter that is gathered in %s, and this call's "
                         "mp_policy computes in %s: give both calls the same param_dtype",
                         slot->name, module->type->name, fsdp_dtype_name(owner->param_dtype), fsdp_dtype_name(dtype));
    FSDP_TRY(fsdp__module_state_accompany(owner->group->state, sel->state));
    owner->group->state->tied = true;
    return fsdp__param_add_field(owner, (fsdp__param_field){module, slot->slot, sel->state});
}

/* Gives the group of a mesh, and makes it if there is none: one collective belongs to one mesh, so parameters over
 * several meshes need several groups. */
static fsdp_status choose_group(selection *sel, fsdp_mesh *mesh, fsdp__param_group **out)
{
    const fsdp__module_state *state = sel->state;

    for (int64_t i = 0; i < state->group_count; i++)
        if (state->groups[i]->residence.mesh.mesh == mesh) {
            *out = state->groups[i];
            return FSDP_OK;
        }
    FSDP_TRY(fsdp__module_state_add_group(sel->state, mesh, sel->share, out));
    if (sel->flat) {
        (*out)->cut = &fsdp__cut_flat;
        (*out)->flat = *sel->flat;
    }
    return FSDP_OK;
}

static fsdp_status check_placement(const selection *sel, const char *name, const fsdp_tensor *t,
                                   const fsdp_shard_placement *placement)
{
    const fsdp_mesh *mesh = placement->mesh;

    if (placement->dim < -t->ndim || placement->dim >= t->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot shard '%s' in dimension %d: it has %d", name, placement->dim, t->ndim);
    if (!mesh || fsdp_mesh_context(mesh) != sel->state->root->context || fsdp_mesh_ndim(mesh) > 2)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot shard '%s': it needs a mesh of one or two dimensions, of the module's context", name);
    return FSDP_OK;
}

/* Gives the placement that the caller wants, by default dimension 0 of the call's mesh. */
static fsdp_status choose_placement(const selection *sel, const char *name, const fsdp_tensor *t,
                                    fsdp_shard_placement *out)
{
    FSDP__FREED char *full = NULL;

    *out = (fsdp_shard_placement){.mesh = sel->mesh};
    if (!sel->options->placement)
        return FSDP_OK;
    FSDP__TRY_NEW(full = fsdp__dotted(sel->path, name));
    FSDP_TRY(sel->options->placement(sel->options->placement_arg, full, t, out));
    FSDP_TRY(check_placement(sel, full, t, out));
    out->dim += out->dim < 0 ? t->ndim : 0;
    return FSDP_OK;
}

/* Gives the caller's extension if it decides what is sent of the parameter. */
static fsdp_status choose_extension(const selection *sel, const fsdp_module *module, const fsdp__parameter_slot *slot,
                                    fsdp_gather_extension *out)
{
    const fsdp_shard_options *o = sel->options;
    const fsdp_tensor *t = *slot->slot;
    FSDP__FREED char *full = NULL;

    if (!o->gather_extension || !fsdp_dtype_is_floating(t->dtype))
        return FSDP_OK;
    if (!o->extends) {
        bool linear = strcmp(module->type->name, "Linear") == 0 || strcmp(module->type->name, "Conv1D") == 0;

        if (linear && t->ndim >= 2 && !slot->tied && strcmp(slot->name, "weight") == 0)
            *out = *o->gather_extension;
        return FSDP_OK;
    }
    FSDP__TRY_NEW(full = fsdp__dotted(sel->path, slot->name));
    if (o->extends(o->extends_arg, full, t))
        *out = *o->gather_extension;
    return FSDP_OK;
}

/* Takes a parameter that another mesh has cut before: tensor parallel. */
static fsdp_status choose_parallel(const selection *sel, const char *name, fsdp__param *param)
{
    const fsdp_distribution *before = fsdp_tensor_distribution(param->sharded);

    if (!before)
        return FSDP_OK;
    if (sel->door->kind != FSDP_DOOR_FULLY_SHARD)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot shard '%s' by %s: it is a distributed tensor already, over mesh dimension '%s': use "
                         "fsdp_fully_shard",
                         name, sel->door->call, fsdp_mesh_dim_name(before->mesh, 0));
    FSDP_TRY(fsdp_fail_prefix(fsdp__param_join(param, &param->group->residence.mesh),
                              "cannot shard '%s', a distributed tensor already", name));
    if (param->extension.pre)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "cannot shard '%s' with a gather extension: it is cut over mesh dimension '%s' already, and "
                         "its codes would depend on that: leave it out in `extends`",
                         name, fsdp_mesh_dim_name(before->mesh, 0));
    return FSDP_OK;
}

static fsdp_status select_new(selection *sel, const fsdp_module *module, const fsdp__parameter_slot *slot,
                              fsdp__param **out)
{
    const fsdp_mp_policy *policy = &sel->state->policy;
    fsdp_tensor *t = *slot->slot;
    fsdp_shard_placement placement;
    fsdp__param_group *group;

    FSDP_TRY(fsdp__check_parameter("shard", slot->name, t,
                                   sel->state->group_count > 0 ? sel->state->groups[0]->params[0].sharded : NULL));
    FSDP_TRY(choose_placement(sel, slot->name, t, &placement));
    FSDP_TRY(choose_group(sel, placement.mesh, &group));
    FSDP_TRY(fsdp__param_group_add(group, t, out));
    (*out)->group = group;
    fsdp__param_set_dim(*out, placement.dim);
    (*out)->param_dtype = fsdp__param_dtype_by(policy->param_dtype, t->dtype);
    (*out)->reduce_dtype = fsdp__param_dtype_by(policy->reduce_dtype, t->dtype);
    if (sel->flat) {
        (*out)->unit_name = fsdp__dotted(sel->path, slot->name);
        if (!(*out)->unit_name)
            return FSDP_NO_MEMORY;
    }
    FSDP_TRY(choose_extension(sel, module, slot, &(*out)->extension));
    return choose_parallel(sel, slot->name, *out);
}

static bool is_ignored(const fsdp_shard_options *options, const fsdp_tensor *t)
{
    for (int64_t i = 0; i < options->ignored_param_count; i++)
        if (options->ignored_params[i] == t)
            return true;
    return false;
}

/* Adds a parameter, or another field of one that was added before. */
static fsdp_status select_parameter(selection *sel, fsdp_module *module, const fsdp__parameter_slot *slot)
{
    fsdp__param *p, *owner = *slot->slot ? fsdp__param_of(*slot->slot) : NULL;

    if (!*slot->slot || is_ignored(sel->options, *slot->slot))
        return FSDP_OK;
    if (owner)
        return join_owner(sel, module, slot, owner);
    p = fsdp__module_state_find(sel->state, *slot->slot);
    if (!p && select_new(sel, module, slot, &p) != FSDP_OK)
        return fsdp_fail_prefix(fsdp_last_status(), "%s", module->type->name);
    return fsdp__param_add_field(p, (fsdp__param_field){module, slot->slot, NULL});
}

static fsdp_status select_module(selection *sel, fsdp_module *module);

static fsdp_status select_child(selection *sel, const fsdp__child_slot *child)
{
    const char *path = sel->path;
    FSDP__FREED char *below = NULL;
    fsdp_status status;

    if (fsdp__module_state_of(child->module))
        return FSDP_OK;
    FSDP__TRY_NEW(below = fsdp__dotted(path, child->name));
    sel->path = below;
    status = select_module(sel, child->module);
    sel->path = path;
    return status;
}

static fsdp_status select_module(selection *sel, fsdp_module *module)
{
    for (int64_t i = 0; i < sel->seen_count; i++)
        if (sel->seen[i] == module)
            return FSDP_OK;
    FSDP_TRY(fsdp__grow(&sel->seen, sel->seen_count, &sel->seen_capacity, sizeof *sel->seen));
    sel->seen[sel->seen_count++] = module;
    for (int64_t i = 0; i < module->parts->parameter_count; i++)
        FSDP_TRY(select_parameter(sel, module, &module->parts->parameters[i]));
    for (int64_t i = 0; i < module->parts->child_count; i++)
        FSDP_TRY(select_child(sel, &module->parts->children[i]));
    return FSDP_OK;
}

/* ---- checks ---- */

static fsdp_status check_list(fsdp_module *const *modules, int count)
{
    if (!modules || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "fully_shard needs at least one module");
    for (int i = 0; i < count; i++)
        if (!modules[i])
            return FSDP_FAIL(FSDP_INVALID, "fully_shard was given a null module");
    return FSDP_OK;
}

static fsdp_status check_modules(fsdp_module *const *modules, int count)
{
    for (int i = 0; i < count; i++) {
        if (!fsdp__module_has_forward(modules[i]))
            return FSDP_FAIL(FSDP_INVALID, "cannot shard a %s: it has no forward to gather for: give its children",
                             modules[i]->type->name);
        if (fsdp__module_state_of(modules[i]))
            return FSDP_FAIL(FSDP_STATE,
                             "%s has already been applied to this %s: it can be applied only once per module",
                             fsdp__module_state_of(modules[i])->door->call, modules[i]->type->name);
        for (int j = 0; j < i; j++)
            if (modules[j] == modules[i])
                return FSDP_FAIL(FSDP_INVALID, "fully_shard was given the same %s twice", modules[i]->type->name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__check_overlap(fsdp_overlap overlap)
{
    return overlap >= FSDP_OVERLAP_AUTO && overlap <= FSDP_OVERLAP_WORKER
               ? FSDP_OK
               : FSDP_FAIL(FSDP_INVALID, "overlap %d: expected FSDP_OVERLAP_AUTO, INLINE or WORKER", (int)overlap);
}

static fsdp_status check_policy(const fsdp_mp_policy *policy)
{
    const fsdp_dtype wanted[] = {policy->param_dtype, policy->reduce_dtype, policy->output_dtype, policy->buffer_dtype};

    for (int i = 0; i < 4; i++)
        if (wanted[i] != FSDP_DTYPE_NONE && !fsdp_dtype_is_floating(wanted[i]))
            return FSDP_FAIL(FSDP_INVALID, "mixed precision policy: %s is not a floating dtype",
                             fsdp_dtype_name(wanted[i]));
    if (policy->split_shards && policy->param_dtype != FSDP_BF16)
        return FSDP_FAIL(FSDP_INVALID, "mixed precision policy: split_shards needs param_dtype FSDP_BF16");
    return FSDP_OK;
}

static fsdp_status check_ignored(const fsdp_shard_options *options)
{
    if (options->ignored_param_count < 0 || (options->ignored_param_count > 0 && !options->ignored_params))
        return FSDP_FAIL(FSDP_INVALID, "ignored_params: %lld tensors, but no list of them",
                         (long long)options->ignored_param_count);
    for (int64_t i = 0; i < options->ignored_param_count; i++)
        if (!options->ignored_params[i])
            return FSDP_FAIL(FSDP_INVALID, "ignored_params[%lld] is null", (long long)i);
    return FSDP_OK;
}

/* ---- the call ---- */

/* Gives sel->mesh, which is a reference. */
static fsdp_status choose_mesh(selection *sel, fsdp_context *context, const fsdp_shard_options *options)
{
    fsdp_mesh *mesh = options->mesh;

    if (!mesh)
        FSDP_TRY(fsdp__default_mesh(context, &mesh));
    if (fsdp_mesh_context(mesh) != context)
        return FSDP_FAIL(FSDP_INVALID, "fully_shard was given a mesh of another context than the module's");
    return fsdp__data_parallel_mesh(mesh, &options->dp_mesh_dims, &sel->mesh);
}

/* Does everything that must be checked before anything is changed. */
static fsdp_status select_all(selection *sel, fsdp_module *const *modules, int count)
{
    const fsdp_shard_options *options = sel->options;

    FSDP_TRY(check_modules(modules, count));
    FSDP_TRY(check_ignored(options));
    FSDP_TRY(fsdp__zero_check(options));
    FSDP_TRY(fsdp__check_overlap(options->overlap));
    if (options->gather_extension)
        FSDP_TRY(fsdp__encoded_check(options->gather_extension));
    FSDP_TRY(fsdp__module_state_create(sel->door, modules, count, options, &sel->state));
    fsdp__zero_set(sel->state, options->zero_stage);
    FSDP_TRY(fsdp__root_create(modules[0]->context, sel->state));
    for (int i = 0; i < count; i++)
        FSDP_TRY(select_module(sel, modules[i]));
    FSDP_TRY(fsdp__module_state_check_slices(sel->state));
    return check_policy(&options->mp_policy);
}

/* Checks that all ranks have something to shard, or none: a rank with nothing to shard would not come where the others
 * wait for it. */
static fsdp_status check_alike(const selection *sel, const fsdp__mesh_info *mesh)
{
    bool any = sel->state->group_count > 0;
    uint8_t has[2] = {any, !any};

    if (mesh->ranks > 1)
        FSDP_TRY(fsdp__process_group_any(mesh->shard_pg, &(fsdp__any){.flags = has, .count = 2}));
    if (mesh->replicas > 1)
        FSDP_TRY(fsdp__process_group_any(mesh->replicate_pg, &(fsdp__any){.flags = has, .count = 2}));
    if (has[0] && has[1])
        return FSDP_FAIL(FSDP_MISMATCH,
                         "ranks do not shard the same modules: the %s has %s to shard on this rank, and %s on another",
                         sel->state->modules[0]->type->name, any ? "parameters" : "no parameters",
                         any ? "none" : "some");
    return FSDP_OK;
}

/* Adds the meshes over which parameters at and below the module were cut before. They are looked for apart from the
 * selection, which may have ended early on this rank. */
static fsdp_status add_parallel(const fsdp_module *module, fsdp__mesh_info *mesh)
{
    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp_tensor *t = *module->parts->parameters[i].slot;

        if (t && !fsdp__param_of(t) && fsdp_tensor_distribution(t))
            FSDP_TRY(fsdp__mesh_info_add_parallel(mesh, fsdp_tensor_distribution(t)->mesh));
    }
    for (int64_t i = 0; i < module->parts->child_count; i++)
        FSDP_TRY(add_parallel(module->parts->children[i].module, mesh));
    return FSDP_OK;
}

/* Agrees with all ranks on what is wrong on one: a parameter that has a gradient, a module that is sharded already. */
static fsdp_status agree(const selection *sel, fsdp_module *const *modules, int count, fsdp_status mine)
{
    FSDP__SCOPED(fsdp__mesh_info_release) fsdp__mesh_info mesh = fsdp__mesh_info_of(sel->mesh);

    for (int i = 0; i < count; i++)
        FSDP_KEEP_FIRST(mine, add_parallel(modules[i], &mesh));
    FSDP_TRY(fsdp__mesh_info_agree(&mesh, mine));
    return check_alike(sel, &mesh);
}

fsdp_status fsdp__fully_shard(const fsdp__door *door, fsdp_module *const *modules, int count,
                              const fsdp_shard_options *options, const fsdp__flat *flat)
{
    selection sel = {.door = door, .path = "", .share = !options->no_shared_memory, .flat = flat, .options = options};
    fsdp_status status;

    FSDP_TRY(check_list(modules, count));
    FSDP_TRY(choose_mesh(&sel, modules[0]->context, options));
    FSDP_TRY_GOTO(status, agree(&sel, modules, count, select_all(&sel, modules, count)), out);
    status = fsdp__module_state_attach(sel.state);
out:
    fsdp__free(sel.seen);
    fsdp_mesh_unref(sel.mesh);
    fsdp__module_state_unref(sel.state);
    return status;
}

fsdp_status fsdp_fully_shard_modules(fsdp_module *const *modules, int count, const fsdp_shard_options *options)
{
    static const fsdp_shard_options defaults;

    return fsdp__fully_shard(&fsdp__door_fully_shard, modules, count, options ? options : &defaults, NULL);
}

fsdp_status fsdp_fully_shard(fsdp_module *module, const fsdp_shard_options *options)
{
    return fsdp_fully_shard_modules(&module, 1, options);
}
