/* attach.c - a state on its modules: their hooks, the bytes and first values of their parameters. */
#include "base/alloc.h"
#include "shard/shard.h"

/* ---- bytes and values ---- */

static fsdp_status materialize(void *arg, fsdp_module *module, fsdp_device *device)
{
    fsdp__shard_state *state = arg;

    (void)module;
    return fsdp__state_allocate(state, device);
}

static bool manages(void *arg, const fsdp_tensor *parameter)
{
    const fsdp__shard_group *group = &((fsdp__shard_state *)arg)->group;

    for (int64_t i = 0; i < group->param_count; i++)
        if (group->params[i].sharded == parameter || group->params[i].unsharded == parameter)
            return true;
    return false;
}

typedef struct initialization {
    fsdp__shard_group *group;
    uint64_t seed;
    const char *prefix; /* dotted name of the module that the walk starts from */
} initialization;

/* First values of this rank's rows of one parameter. */
static fsdp_status initialize_param(const initialization *in, const fsdp__shard_param *param, fsdp_init init,
                                    const char *module_name, const char *name)
{
    const fsdp__shard_group *group = in->group;
    char *full =
        fsdp__sprintf("%s%s%s%s%s", in->prefix, *in->prefix ? "." : "", module_name, *module_name ? "." : "", name);
    fsdp_status st;

    if (!full)
        return FSDP_NO_MEMORY;
    st = fsdp__init_fill(group->device, param->sharded->storage->data, group->orig_dtype,
                         fsdp__param_shard_numel(param), init, in->seed, full, param->first_row * param->row_numel);
    fsdp__free(full);
    return st;
}

/* The parameters of the group that were registered first in `module`. */
static fsdp_status initialize_module(void *arg, fsdp_module *module, const char *name)
{
    const initialization *in = arg;

    for (int64_t s = 0; s < module->parts->parameter_count; s++) {
        const fsdp__parameter_slot *slot = &module->parts->parameters[s];

        for (int64_t i = 0; i < in->group->param_count; i++) {
            const fsdp__shard_param *p = &in->group->params[i];

            if (p->slot_count > 0 && p->slots[0].field == slot->slot)
                FSDP_TRY(initialize_param(in, p, slot->init, name, slot->name));
        }
    }
    return FSDP_OK;
}

static fsdp_status initialize(void *arg, fsdp_module *module, uint64_t seed, const char *module_name)
{
    fsdp__shard_state *state = arg;
    fsdp__shard_group *group = &state->group;
    initialization in = {.group = group, .seed = seed, .prefix = module_name};

    if (group->param_count == 0)
        return FSDP_OK;
    if (group->layout == FSDP__LAYOUT_NONE)
        return FSDP_FAIL(FSDP_STATE, "cannot initialize '%s': call fsdp_module_materialize first", module_name);
    FSDP_TRY(fsdp__state_begin_write(state, group->params[0].sharded->storage));
    return fsdp__module_walk(module, initialize_module, &in);
}

/* ---- coming and going ---- */

static bool is_below(const fsdp_module *root, const fsdp_module *module)
{
    bool below = root == module;

    for (int64_t i = 0; i < root->parts->child_count && !below; i++)
        below = is_below(root->parts->children[i].module, module);
    return below;
}

/* From a module of the state that is still there. */
static bool is_reached(const fsdp__shard_state *state, const fsdp_module *module)
{
    bool reached = false;

    for (int64_t i = 0; i < state->module_count && !reached; i++)
        reached = state->modules[i] && is_below(state->modules[i], module);
    return reached;
}

/* A module goes while a graph, or another module of the state, still needs the state: it must not look there again. */
static void forget_module(void *arg, fsdp_module *module)
{
    fsdp__shard_state *state = arg;

    if (state->group.layout != FSDP__LAYOUT_NONE)
        fsdp__group_reshard(&state->group, state->tree); /* no listener hears of a module that goes */
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i] == module)
            state->modules[i] = NULL;
    for (int64_t i = 0; i < state->group.param_count; i++) {
        fsdp__shard_param *p = &state->group.params[i];
        int64_t kept = 0;

        for (int64_t s = 0; s < p->slot_count; s++)
            if (is_reached(state, p->slots[s].module))
                p->slots[kept++] = p->slots[s];
        p->slot_count = kept;
    }
    fsdp__state_unref(state);
}

const char fsdp__state_key = 0;

fsdp_status fsdp__state_attach(fsdp__shard_state *state)
{
    for (int64_t i = 0; i < state->module_count; i++) {
        fsdp__module_hooks hooks = {.key = &fsdp__state_key,
                                    .arg = state,
                                    .pre_forward = fsdp__state_pre_forward,
                                    .post_forward = fsdp__state_post_forward,
                                    .failed = fsdp__state_failed,
                                    .materialize = materialize,
                                    .manages = manages,
                                    .initialize = initialize,
                                    .free_arg = forget_module};
        fsdp_status st;

        (void)fsdp__state_ref(state);
        st = fsdp__module_add_hooks(state->modules[i], &hooks);
        if (st != FSDP_OK) {
            fsdp__state_detach(state);
            return st;
        }
    }
    return FSDP_OK;
}

void fsdp__state_detach(fsdp__shard_state *state)
{
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i])
            fsdp__module_remove_hooks(state->modules[i], state);
}
