/* set_collectives.c - methods of a sharded module that choose who runs its collectives, and in which process groups. */
#include "base/alloc.h"
#include "shard/group/default_groups.h"
#include "shard/reduce/gradients.h"
#include "shard/state/methods.h"

/* ---- a channel for reductions ---- */

/* The groups that change, and what they get. All are set once nothing can fail any more. */
typedef struct channels {
    struct channel {
        fsdp__param_group *group;
        fsdp_process_group *pg;
    } * items;
    int64_t count, capacity;
} channels;

static fsdp_status add_groups(void *arg, fsdp__module_state *state)
{
    channels *c = arg;

    for (int64_t i = 0; i < state->group_count; i++) {
        FSDP_TRY(fsdp__grow(&c->items, c->count, &c->capacity, sizeof *c->items));
        c->items[c->count++] = (struct channel){.group = state->groups[i]};
    }
    return FSDP_OK;
}

static fsdp_status check_reduced(const fsdp__param_group *group)
{
    char text[256];

    for (int64_t i = 0; i < group->param_count; i++)
        if (group->params[i].unsharded && fsdp__param_unreduced(&group->params[i]))
            return FSDP_FAIL(FSDP_STATE,
                             "cannot give reductions a group of their own while a gradient of %s waits to be reduced",
                             fsdp__param_text(&group->params[i], text, sizeof text));
    return FSDP_OK;
}

/* Agrees with all ranks, since a gradient may wait on some ranks only. */
static fsdp_status agree_reduced(const channels *c, fsdp_context *context)
{
    fsdp_status status = FSDP_OK;

    for (int64_t i = 0; i < c->count && status == FSDP_OK; i++)
        status = check_reduced(c->items[i].group);
    return fsdp_agree(fsdp_world(context), status);
}

static fsdp_status prepare(const channels *c, fsdp_context *context, bool on)
{
    FSDP_TRY(agree_reduced(c, context));
    for (int64_t i = 0; i < c->count && on; i++) {
        const fsdp__mesh_info *mesh = &c->items[i].group->residence.mesh;

        if (mesh->ranks > 1)
            FSDP_TRY(fsdp__default_subgroup(mesh, mesh->ranks, &c->items[i].pg));
    }
    for (int64_t i = 0; i < c->count; i++) /* all reductions of one group run in one order */
        FSDP_TRY(fsdp__comm_context_finish_reduction(c->items[i].group->state->comm));
    return FSDP_OK;
}

fsdp_status fsdp_module_set_separate_reduce_scatter_group(fsdp_module *module, bool on, bool recurse)
{
    fsdp__module_state *state;
    channels c = {0};
    fsdp_status status;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY_GOTO(status, fsdp__each_state(module, recurse, add_groups, &c), out);
    FSDP_TRY_GOTO(status, prepare(&c, module->context, on), out);
    for (int64_t i = 0; i < c.count; i++)
        c.items[i].group->reduce_pg = c.items[i].pg;
out:
    fsdp__free(c.items);
    return status;
}

/* ---- collectives of the caller's ---- */

fsdp_status fsdp__check_custom(const fsdp_custom_collective *collective)
{
    if (collective && !collective->run)
        return FSDP_FAIL(FSDP_INVALID, "a custom collective needs `run`: give NULL for the library's own");
    if (collective && !collective->allocate != !collective->release)
        return FSDP_FAIL(FSDP_INVALID, "a custom collective has allocate and release, or neither");
    return FSDP_OK;
}

/* Checks that the groups share no memory: that is chosen when they get their bytes. */
static fsdp_status check_gathers(const fsdp__module_state *state)
{
    char text[256];

    for (int64_t i = 0; i < state->group_count; i++)
        if (fsdp__residence_is_shared(&state->groups[i]->residence) || state->groups[i]->encoded.shared)
            return FSDP_FAIL(FSDP_STATE,
                             "parameter %s lies in memory that ranks share, where nothing is gathered: set a custom "
                             "all-gather before the parameters have bytes, or give options.no_shared_memory",
                             fsdp__param_text(&state->groups[i]->params[0], text, sizeof text));
    return FSDP_OK;
}

fsdp_status fsdp_module_set_custom_all_gather(fsdp_module *module, const fsdp_custom_collective *collective)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(fsdp__check_custom(collective));
    if (collective)
        FSDP_TRY(check_gathers(state));
    for (int64_t i = 0; i < state->group_count; i++)
        state->groups[i]->all_gather = collective ? *collective : (fsdp_custom_collective){0};
    return FSDP_OK;
}

fsdp_status fsdp_module_set_custom_reduce_scatter(fsdp_module *module, const fsdp_custom_collective *collective)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(fsdp__check_custom(collective));
    for (int64_t i = 0; i < state->group_count; i++)
        state->groups[i]->reduce_scatter = collective ? *collective : (fsdp_custom_collective){0};
    return FSDP_OK;
}

fsdp_status fsdp__fail_replicated(const fsdp__module_state *state, const char *instead)
{
    return FSDP_FAIL(FSDP_UNSUPPORTED, "this %s is replicated, and its gradients are sent in buckets: see %s",
                     state->modules[0]->type->name, instead);
}

fsdp_status fsdp_module_set_custom_all_reduce(fsdp_module *module, const fsdp_custom_collective *collective)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(fsdp__check_custom(collective));
    if (collective && collective->allocate)
        return FSDP_FAIL(FSDP_INVALID, "a custom all-reduce works in place: without allocate");
    if (state->group_count > 0 && state->groups[0]->buckets)
        return fsdp__fail_replicated(state, "fsdp_module_set_bucket_hook");
    for (int64_t i = 0; i < state->group_count; i++)
        state->groups[i]->all_reduce = collective ? *collective : (fsdp_custom_collective){0};
    return FSDP_OK;
}

/* ---- gradients in fewer bits ---- */

static fsdp_status check_compression(void *unused, fsdp__module_state *state)
{
    char text[256];

    (void)unused;
    for (int64_t i = 0; i < state->group_count; i++) {
        const fsdp__param_group *group = state->groups[i];

        if (group->buckets)
            return fsdp__fail_replicated(state, "fsdp_replicate_options.compress");
        if (group->partial.storage)
            return FSDP_FAIL(
                FSDP_STATE,
                "cannot change the dtype in which gradients are sent: the gradient of %s waits for other replicas",
                fsdp__param_text(group->params, text, sizeof text));
    }
    return FSDP_OK;
}

static fsdp_status set_compression(void *arg, fsdp__module_state *state)
{
    for (int64_t i = 0; i < state->group_count; i++)
        state->groups[i]->compress = *(const fsdp_dtype *)arg;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_gradient_compression(fsdp_module *module, fsdp_dtype dtype, bool recurse)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(fsdp__check_compression(dtype));
    FSDP_TRY(fsdp__each_state(module, recurse, check_compression, NULL));
    return fsdp__each_state(module, recurse, set_compression, &dtype);
}

/* ---- several roots with one communication context ---- */

/* Checks that nothing is in the communication context that a root is to give up. */
static fsdp_status check_unused(const fsdp__module_state *state)
{
    const fsdp__root *r = state->root;

    do {
        const fsdp__module_state *outermost = r->state;

        if (outermost && outermost->initialised)
            return FSDP_FAIL(FSDP_STATE, "'%s' has already run: share communication contexts before the first forward",
                             outermost->modules[0] ? outermost->modules[0]->type->name : "a module");
        for (int64_t i = 0; outermost && i < outermost->group_count; i++)
            if (outermost->groups[i]->sharded_state != FSDP_SHARDED)
                return FSDP_FAIL(FSDP_STATE, "a module that is to share a communication context is unsharded: reshard "
                                             "it first");
        r = r->sharing;
    } while (r != state->root);
    return FSDP_OK;
}

fsdp_status fsdp_share_comm_context(fsdp_module *const *modules, int count)
{
    fsdp__module_state *first, *state;

    if (!modules || count < 1)
        return FSDP_FAIL(FSDP_INVALID, "no modules are given that could share a communication context");
    FSDP_TRY(fsdp__method_state(modules[0], &first));
    for (int i = 0; i < count; i++) {
        FSDP_TRY(fsdp__method_state(modules[i], &state));
        if (state->root->state != state)
            return FSDP_FAIL(FSDP_STATE, "only outermost sharded modules share a communication context");
        if (state->comm->context != first->comm->context)
            return FSDP_FAIL(FSDP_INVALID, "modules of several contexts cannot share a communication context");
        if (state->comm != first->comm)
            FSDP_TRY(check_unused(state));
    }
    for (int i = 1; i < count; i++) {
        FSDP_TRY(fsdp__method_state(modules[i], &state));
        fsdp__root_share_comm(first->root, state->root);
    }
    return FSDP_OK;
}
