/* attach.c - attaches a state to its modules: their hooks, and the bytes and first values of their parameters. */
#include "shard/state/attach.h"

#include <stdio.h>

#include "autograd/autograd.h"
#include "base/alloc.h"
#include "base/text.h"
#include "shard/reduce/owner.h"
#include "shard/state/allocate.h"
#include "shard/state/forward.h"
#include "shard/state/lazy_init.h"
#include "shard/state/prefetch.h"
#include "shard/state/retype.h"
#include "shard/state/write.h"

/* ---- bytes and values ---- */

/* Gives all groups their memory: see fsdp__param_groups_allocate. [collective] */
static fsdp_status allocate(fsdp__module_state *state, fsdp_device *device)
{
    if (!fsdp__module_state_is_meta(state))
        return FSDP_OK;
    if (fsdp_device_is_meta(device))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot materialize sharded parameters on the meta device");
    return fsdp__param_groups_allocate(state->groups, state->group_count, device, fsdp__begin_write);
}

static fsdp_status materialize(void *arg, fsdp_module *module, fsdp_device *device)
{
    fsdp__module_state *state = arg;

    (void)module;
    return allocate(state, device);
}

static bool manages(void *arg, const fsdp_tensor *parameter)
{
    const fsdp__param *param = fsdp__param_of(parameter);

    return param && param->group->state == arg;
}

static fsdp_tensor *flat_parameter(void *arg, const fsdp_module *module)
{
    const fsdp__module_state *state = arg;

    if (state->group_count == 0 || state->modules[0] != module || state->groups[0]->params[0].summoned)
        return NULL;
    return state->groups[0]->vector.sharded;
}

typedef struct initialization {
    fsdp__module_state *state;
    const fsdp_module *module; /* the state's module that the walk starts from */
    uint64_t seed;
    const char *prefix; /* dotted name of that module */
} initialization;

/* Gives this rank's part of one parameter its first values. */
static fsdp_status initialize_param(const initialization *in, const fsdp__param *param, fsdp_init init,
                                    const char *module_name, const char *name)
{
    FSDP__FREED char *full =
        fsdp__sprintf("%s%s%s%s%s", in->prefix, *in->prefix ? "." : "", module_name, *module_name ? "." : "", name);

    FSDP__TRY_NEW(full);
    if (param->group->residence.kind == FSDP__RESIDENCE_NONE)
        return FSDP_FAIL(FSDP_STATE, "cannot initialize '%s': call fsdp_module_materialize first", full);
    FSDP_TRY(fsdp_tensor_begin_write(param->sharded));
    return fsdp__init_tensor(param->sharded, init, in->seed, full);
}

/* Returns whether `state` initializes the slot's parameter: whichever state owns it, that is done where it was
 * registered. */
static bool initializes(const fsdp__module_state *state, const fsdp__parameter_slot *slot)
{
    const fsdp__param *p = *slot->slot && !slot->tied ? fsdp__param_of(*slot->slot) : NULL;
    bool has = false;

    for (int64_t i = 0; p && i < p->field_count; i++)
        has = has || (p->fields[i].field == slot->slot &&
                      (p->fields[i].user ? p->fields[i].user == state : p->group->state == state));
    return has;
}

/* Initializes the parameters that were registered in `module`. */
static fsdp_status initialize_module(void *arg, fsdp_module *module, const char *name)
{
    const initialization *in = arg;

    for (int64_t i = 0; i < module->parts->parameter_count; i++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[i];
        fsdp__param *p;

        if (!initializes(in->state, slot))
            continue;
        p = fsdp__param_of(*slot->slot);
        if (!p->named_in) /* below several modules of the state: the first asked names it */
            p->named_in = in->module;
        if (p->named_in == in->module)
            FSDP_TRY(initialize_param(in, p, slot->init, name, slot->name));
    }
    return FSDP_OK;
}

static fsdp_status initialize(void *arg, fsdp_module *module, uint64_t seed, const char *module_name)
{
    fsdp__module_state *state = arg;
    initialization in = {.state = state, .module = module, .seed = seed, .prefix = module_name};

    if (fsdp__module_state_is_meta(state))
        return FSDP_FAIL(FSDP_STATE, "cannot initialize '%s': call fsdp_module_materialize first",
                         *module_name ? module_name : module->type->name);
    return fsdp__module_walk(module, initialize_module, &in);
}

/* ---- attaching and detaching ---- */

static bool is_below(const fsdp_module *root, const fsdp_module *module)
{
    bool below = root == module;

    for (int64_t i = 0; i < root->parts->child_count && !below; i++)
        below = is_below(root->parts->children[i].module, module);
    return below;
}

bool fsdp__module_state_reaches(const fsdp__module_state *state, const fsdp_module *module)
{
    bool reached = false;

    for (int64_t i = 0; i < state->module_count && !reached; i++)
        reached = state->modules[i] && is_below(state->modules[i], module);
    return reached;
}

static bool has_module(const fsdp__module_state *state)
{
    bool any = false;

    for (int64_t i = 0; i < state->module_count; i++)
        any = any || state->modules[i];
    return any;
}

/* Forgets fields of the state's modules that can no longer be reached. */
static void forget_fields(const fsdp__module_state *state, const fsdp__module_state *owner, const fsdp_module *gone)
{
    const void *user = owner == state ? NULL : state;

    for (int64_t g = 0; g < owner->group_count; g++)
        for (int64_t i = 0; i < owner->groups[g]->param_count; i++) {
            fsdp__param *p = &owner->groups[g]->params[i];
            int64_t kept = 0;

            if (p->named_in == gone)
                p->named_in = NULL;
            for (int64_t f = 0; f < p->field_count; f++)
                if (p->fields[f].user != user || fsdp__module_state_reaches(state, p->fields[f].module))
                    p->fields[kept++] = p->fields[f];
            p->field_count = kept;
        }
}

/* Detaches a module that is freed while a graph, or another module of the state, still needs the state. The state must
 * not use it again. */
static void forget_module(void *arg, fsdp_module *module)
{
    fsdp__module_state *state = arg;

    for (int64_t i = 0; i < state->group_count && !fsdp__module_state_is_meta(state); i++)
        fsdp__param_group_reshard(state->groups[i], state->comm); /* listeners are not told of a module that goes */
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i] == module)
            state->modules[i] = NULL;
    forget_fields(state, state, module);
    for (int64_t i = 0; i < state->companion_count; i++)
        forget_fields(state, state->companions[i], module);
    if (!has_module(state))
        fsdp__prefetch_forget(state);
    fsdp__module_state_unref(state);
}

/* "over 2 ranks", "whole on 2 ranks", "3 replicas, over 2 ranks each" */
static void ranks_text(const fsdp__param_group *group, char *text, size_t bytes)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;

    if (mesh->replicas == 1)
        snprintf(text, bytes, "over %d rank%s", mesh->ranks, fsdp__plural(mesh->ranks));
    else if (mesh->ranks == 1)
        snprintf(text, bytes, "whole on %d ranks", mesh->replicas);
    else
        snprintf(text, bytes, "%d replicas, over %d ranks each", mesh->replicas, mesh->ranks);
}

static void describe(void *arg, char *text, size_t bytes)
{
    const fsdp__module_state *state = arg;
    int64_t parameters = 0, numel = 0;
    char door[40], ranks[80];

    snprintf(door, sizeof door, "%s%s%s", state->door->title, state->door->strategy ? " " : "",
             state->door->strategy ? state->door->strategy(state) : "");
    for (int64_t g = 0; g < state->group_count; g++) {
        parameters += state->groups[g]->param_count;
        for (int64_t i = 0; i < state->groups[g]->param_count; i++)
            numel += fsdp__param_numel(&state->groups[g]->params[i]);
    }
    if (parameters == 0) {
        snprintf(text, bytes, "%s: no parameters", door);
        return;
    }
    ranks_text(state->groups[0], ranks, sizeof ranks);
    snprintf(text, bytes, "%s: %lld parameter%s, %lld element%s, %s%s%s", door, (long long)parameters,
             fsdp__plural(parameters), (long long)numel, fsdp__plural(numel), ranks,
             state->group_count > 1 ? ", and others" : "", state->conditional ? ", conditional" : "");
}

static fsdp_status attach(fsdp__module_state *state)
{
    for (int64_t i = 0; i < state->module_count; i++) {
        fsdp__module_hooks hooks = {.first = true,
                                    .key = &fsdp__module_state_key,
                                    .arg = state,
                                    .pre_forward = fsdp__hook_pre_forward,
                                    .post_forward = fsdp__hook_post_forward,
                                    .failed = fsdp__hook_failed,
                                    .materialize = materialize,
                                    .retype = fsdp__retype,
                                    .agree = fsdp__begin_together,
                                    .manages = manages,
                                    .flat_parameter = flat_parameter,
                                    .describe = describe,
                                    .initialize = initialize,
                                    .free_arg = forget_module};

        (void)fsdp__module_state_ref(state);
        FSDP_TRY(fsdp__module_add_hooks(state->modules[i], &hooks));
    }
    return FSDP_OK;
}

/* Returns where the parameters are; all are on one device. */
static fsdp_device *device_of(const fsdp__module_state *state)
{
    return fsdp_tensor_device(state->groups[0]->params[0].sharded);
}

/* Checks that the group can keep slices of 1/k. */
static fsdp_status check_slices_of(const fsdp__param_group *group, int k)
{
    char text[256];

    if (group->cut->no_slices)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "reshard_after_forward_ranks %d: %s", k, group->cut->no_slices);
    for (int64_t i = 0; i < group->param_count; i++)
        if (group->params[i].parallel)
            return FSDP_FAIL(
                FSDP_UNSUPPORTED,
                "reshard_after_forward_ranks %d: parameter %s is cut over mesh dimension '%s' as well, and "
                "keeps no slices: set reshard_after_forward",
                k, fsdp__param_text(&group->params[i], text, sizeof text),
                fsdp_mesh_dim_name(group->params[i].parallel->mesh, 0));
    return FSDP_OK;
}

fsdp_status fsdp__module_state_check_slices(const fsdp__module_state *state)
{
    int k = state->slice_ranks;

    if (k < 0)
        return FSDP_FAIL(FSDP_INVALID, "reshard_after_forward_ranks %d: expected a number that divides the ranks", k);
    for (int64_t i = 0; i < state->group_count; i++) {
        const fsdp__param_group *group = state->groups[i];
        int ranks = group->residence.mesh.ranks;

        if (k > 0 && ranks % k != 0)
            return FSDP_FAIL(FSDP_INVALID,
                             "reshard_after_forward_ranks %d does not divide the %d ranks of the shard group", k,
                             ranks);
        if (k > 1 && k < ranks)
            FSDP_TRY(check_slices_of(group, k));
    }
    return FSDP_OK;
}

/* Makes the process groups for slices, for groups that keep some after a forward. */
static fsdp_status open_slices(const fsdp__module_state *state)
{
    int k = state->slice_ranks;

    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp__param_group *group = state->groups[i];

        if (k > 1 && k < group->residence.mesh.ranks)
            FSDP_TRY(fsdp__slice_open(group, k));
    }
    return FSDP_OK;
}

/* Removes what has added up partial gradients until now: reductions do, and without hooks they need not land at once.
 */
static void drop_hooks(const fsdp__module_state *state)
{
    for (int64_t g = 0; g < state->group_count; g++)
        for (int64_t i = 0; i < state->groups[g]->param_count; i++)
            if (fsdp__param_is_contributed(&state->groups[g]->params[i]))
                fsdp__drop_lasting_hooks(state->groups[g]->params[i].sharded);
}

fsdp_status fsdp__module_state_attach(fsdp__module_state *state)
{
    int64_t sharded = 0;
    fsdp_status status;

    FSDP_TRY(open_slices(state));
    FSDP_TRY_GOTO(status, attach(state), out);
    for (; sharded < state->group_count; sharded++)
        FSDP_TRY_GOTO(status, fsdp__param_group_shard_parameters(state->groups[sharded]), out);
    if (state->group_count > 0 && !fsdp_device_is_meta(device_of(state)))
        status = allocate(state, device_of(state));
out:
    if (status == FSDP_OK) {
        drop_hooks(state);
        return FSDP_OK;
    }
    while (sharded-- > 0)
        fsdp__param_group_unwrap_parameters(state->groups[sharded]);
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i])
            fsdp__module_remove_hooks(state->modules[i], state);
    return status;
}
