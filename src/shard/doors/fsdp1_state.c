/* fsdp1_state.c - state dicts of a model as FSDP1 gives them: whole, by rows, or each unit's flat vector as it is cut.
 * Tied parameters appear under each of their names. */
#include <string.h>

#include "base/alloc.h"
#include "fsdp/fsdp1.h"
#include "shard/reduce/owner.h"
#include "shard/state/methods.h"
#include "state/entry.h"

#define FLAT_PARAM "_flat_param"

/* ---- names ---- */

typedef struct naming {
    const fsdp_state_dict *distinct; /* of the module: each tensor once */
    const fsdp_state_dict *made;     /* what was made of `distinct`, under the same names */
    fsdp_state_dict *out;
} naming;

static fsdp_status add_joined(fsdp_state_dict *out, const char *module, const char *name, fsdp_tensor *tensor)
{
    FSDP__FREED char *full = fsdp__dotted(module, name);

    return full ? fsdp_state_dict_add(out, full, tensor) : FSDP_NO_MEMORY;
}

static fsdp_status add_name(const naming *n, const char *module, const char *name, const fsdp_tensor *tensor)
{
    for (int64_t i = 0; tensor && i < n->distinct->count; i++) {
        const fsdp_state_dict_entry *made = NULL;

        if (n->distinct->entries[i].tensor == tensor)
            made = fsdp_state_dict_find(n->made, n->distinct->entries[i].name);
        if (made)
            return add_joined(n->out, module, name, made->tensor);
    }
    return FSDP_OK;
}

static fsdp_status add_names(void *arg, fsdp_module *module, const char *name)
{
    const struct fsdp__module_parts *parts = module->parts;

    for (int64_t i = 0; i < parts->parameter_count; i++)
        FSDP_TRY(add_name(arg, name, parts->parameters[i].name, *parts->parameters[i].slot));
    for (int64_t i = 0; i < parts->buffer_count; i++)
        if (parts->buffers[i].persistent)
            FSDP_TRY(add_name(arg, name, parts->buffers[i].name, *parts->buffers[i].slot));
    return FSDP_OK;
}

/* Gives what was made of each tensor, if this rank got anything, under all names of the tensor. */
static fsdp_status name_all(fsdp_module *module, const fsdp_state_dict *distinct, const fsdp_state_dict *made,
                            fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *named = NULL;
    naming n = {.distinct = distinct, .made = made};

    FSDP_TRY(fsdp__state_dict_create_in(module->context, &named));
    n.out = named;
    FSDP_TRY(fsdp__module_walk(module, add_names, &n));
    *out = fsdp__take(&named);
    return FSDP_OK;
}

/* Returns the one of a tensor's names that `distinct` has. A name that the module does not know stays. */
static const char *first_name(const fsdp_state_dict *distinct, const fsdp_state_dict *all, const char *name)
{
    const fsdp_state_dict_entry *entry = fsdp_state_dict_find(all, name);

    for (int64_t i = 0; entry && i < distinct->count; i++)
        if (distinct->entries[i].tensor == entry->tensor)
            return distinct->entries[i].name;
    return name;
}

/* Gives `given` with each tensor once, under its first name. */
static fsdp_status drop_tied(fsdp_module *module, const fsdp_state_dict *distinct, const fsdp_state_dict *given,
                             fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *kept = NULL, *all = NULL;

    FSDP_TRY(name_all(module, distinct, distinct, &all));
    FSDP_TRY(fsdp__state_dict_create_in(module->context, &kept));
    for (int64_t i = 0; i < given->count; i++) {
        const char *name = given->entries[i].name, *first = first_name(distinct, all, name);

        if (strcmp(first, name) != 0 && (fsdp_state_dict_find(given, first) || fsdp_state_dict_find(kept, first)))
            continue;
        FSDP_TRY(fsdp_state_dict_add(kept, first, given->entries[i].tensor));
    }
    *out = fsdp__take(&kept);
    return FSDP_OK;
}

/* ---- local state dicts ---- */

/* Returns whether the group is a flat vector that is cut into several parts. */
static bool is_cut(const fsdp__param_group *group)
{
    return group->params[0].placement.kind == FSDP_FLAT && group->residence.mesh.ranks > 1;
}

/* Returns the length of PyTorch's vector, which includes the padding if it has original parameters. */
static int64_t vector_numel(const fsdp__param_group *group)
{
    const fsdp__param *last = &group->params[group->param_count - 1];

    return group->flat.align > 0 ? group->vector.extent.rows : last->placement.first + fsdp__param_numel(last);
}

/* Makes a tensor of this rank's part of the vector: it shares the live bytes. */
static fsdp_status make_flat_param(const fsdp__param_group *group, fsdp_tensor **out)
{
    FSDP_TRY(fsdp__flat_tensor(group, group->residence.shard_device, vector_numel(group), out));
    fsdp__residence_lend_shard(&group->residence, &group->vector, (*out)->storage);
    return FSDP_OK;
}

static fsdp_status add_flat_param(void *arg, fsdp_module *module, const char *name)
{
    const fsdp__module_state *state = fsdp__module_state_of(module);
    fsdp_state_dict *out = arg;

    for (int64_t i = 0; state && i < state->group_count; i++) {
        fsdp_tensor *part = NULL;
        fsdp_status status;

        if (!is_cut(state->groups[i]))
            continue;
        if (state->groups[i]->residence.kind == FSDP__RESIDENCE_NONE)
            return FSDP_FAIL(FSDP_STATE, "cannot take the state of '%s': it is still on the meta device", name);
        FSDP_TRY(make_flat_param(state->groups[i], &part));
        status = add_joined(out, name, FLAT_PARAM, part);
        fsdp_tensor_unref(part);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

/* Adds an entry of a local state dict. Without original parameters their vector stands for them. What is not cut is
 * added whole. */
static fsdp_status add_local(const fsdp_state_dict_entry *entry, fsdp_state_dict *out)
{
    const fsdp__param *param = fsdp__param_of(entry->tensor);
    const fsdp_distribution *d = fsdp_tensor_distribution(entry->tensor);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL;

    if (!param || param->placement.kind != FSDP_FLAT)
        return fsdp_state_dict_add(out, entry->name, entry->tensor);
    if (is_cut(param->group))
        return param->group->flat.align > 0 ? fsdp_state_dict_add(out, entry->name, entry->tensor) : FSDP_OK;
    FSDP_TRY(fsdp__tensor_create_view(entry->tensor->storage, entry->tensor->dtype, d->ndim, d->global_shape, NULL,
                                      entry->tensor->offset, &whole));
    return fsdp_state_dict_add(out, entry->name, whole);
}

static fsdp_status check_local(void *unused, fsdp__module_state *state)
{
    (void)unused;
    if (state->fsdp1.by_mesh)
        return FSDP_FAIL(FSDP_UNSUPPORTED,
                         "a local state dict of modules that were wrapped with a mesh: take a sharded "
                         "one, or wrap with process groups");
    return FSDP_OK;
}

/* Makes a local state dict: aliases of live memory, with `tied` under all names. */
static fsdp_status make_local(fsdp_module *module, const fsdp_state_dict *distinct, bool tied, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *local = NULL;
    fsdp_state_dict *named = NULL;

    FSDP_TRY(fsdp__each_state(module, true, check_local, NULL));
    FSDP_TRY(fsdp__state_dict_create_in(module->context, &local));
    for (int64_t i = 0; i < distinct->count; i++)
        FSDP_TRY(add_local(&distinct->entries[i], local));
    if (tied) {
        FSDP_TRY(name_all(module, distinct, local, &named));
        fsdp_state_dict_free(local);
        local = named;
    }
    FSDP_TRY(fsdp__module_walk(module, add_flat_param, local));
    *out = fsdp__take(&local);
    return FSDP_OK;
}

/* ---- the calls ---- */

static const fsdp_state_dict_config *config_of(const fsdp__module_state *state, const fsdp_state_dict_config *config)
{
    return config ? config : &state->fsdp1.state_dict;
}

static fsdp_status check_config(const fsdp_state_dict_config *config)
{
    if (config->type < FSDP_FULL_STATE_DICT || config->type > FSDP_LOCAL_STATE_DICT)
        return FSDP_FAIL(FSDP_INVALID, "%d is not a type of state dict", (int)config->type);
    if (config->rank0_only && config->type != FSDP_FULL_STATE_DICT)
        return FSDP_FAIL(FSDP_INVALID, "rank0_only belongs to full state dicts: in others each rank has its own part");
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_set_state_dict_type(fsdp_module *module, const fsdp_state_dict_config *config)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (!config)
        return FSDP_FAIL(FSDP_INVALID, "the type of a state dict is required");
    FSDP_TRY(check_config(config));
    state->fsdp1.state_dict = *config;
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_state_dict(fsdp_module *module, const fsdp_state_dict_config *config, fsdp_state_dict **out)
{
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *made = NULL, *local = NULL, *distinct = NULL;
    fsdp__module_state *state;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot take the state of a module: there is no place for it");
    *out = NULL;
    FSDP_TRY(fsdp__method_state(module, &state));
    config = config_of(state, config);
    FSDP_TRY(check_config(config));
    FSDP_TRY(fsdp_state_dict_from_module(module, &distinct));
    if (config->type == FSDP_LOCAL_STATE_DICT) {
        FSDP_TRY(make_local(module, distinct, true, &local));
        FSDP_TRY(fsdp_state_dict_of_type(local, config, out));
    } else {
        FSDP_TRY(fsdp_state_dict_of_type(distinct, config, &made));
        FSDP_TRY(name_all(module, distinct, made, out));
    }
    return FSDP_OK;
}

fsdp_status fsdp_fsdp1_load_state_dict(fsdp_module *module, const fsdp_state_dict_config *config,
                                       const fsdp_state_dict *given)
{
    fsdp_full_state_options options = {.from_parts = true};
    FSDP__SCOPED(fsdp_state_dict_free_at) fsdp_state_dict *distinct = NULL, *own = NULL, *kept = NULL;
    fsdp__module_state *state;
    fsdp_status status;

    FSDP_TRY(fsdp__method_state(module, &state));
    config = config_of(state, config);
    FSDP_TRY(check_config(config));
    if (config->rank0_only)
        options = (fsdp_full_state_options){.broadcast_from_rank0 = true};
    FSDP_TRY(fsdp_state_dict_from_module(module, &distinct));
    if (config->type == FSDP_LOCAL_STATE_DICT)
        FSDP_TRY(make_local(module, distinct, false, &own));
    if (given)
        FSDP_TRY(drop_tied(module, distinct, given, &kept));
    status = fsdp_state_dict_load_full(own ? own : distinct, kept, &options);
    if (status != FSDP_OK && own)
        return fsdp_fail_prefix(status, "LOCAL state dicts can only be loaded into units that are wrapped alike");
    return status;
}
