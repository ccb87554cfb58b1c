/* unshard.c - methods of a sharded module that gather and reshard it by hand. */
#include "shard/state/iteration.h"
#include "shard/state/methods.h"

/* Reshards after a failure: groups that were gathered before one failed are given up as well. */
static fsdp_status reshard_if_failed(fsdp__module_state *state, fsdp_status status)
{
    if (status != FSDP_OK)
        fsdp__module_state_reshard(state);
    return status;
}

/* Prepares a gather by hand. Before lazy initialisation states that are gathered together have roots of their own. */
static fsdp_status prepare_unshard(void *first, fsdp__module_state *state)
{
    fsdp_device *device = fsdp__module_state_device(state);

    if (device)
        FSDP_TRY(fsdp__comm_context_open(state->comm, device, FSDP_OVERLAP_INLINE));
    if (state->root->forward_root || state->root->in_backward)
        return FSDP_OK;
    if (state == first || state->root != ((const fsdp__module_state *)first)->root)
        FSDP_TRY(fsdp__drop_stale(state->root));
    return fsdp__encode_state(state);
}

static fsdp_status begin_unshard(fsdp__module_state *state)
{
    FSDP_TRY(fsdp__module_state_each(state, prepare_unshard, state));
    return reshard_if_failed(state, fsdp__module_state_unshard(state));
}

typedef struct group_test {
    bool (*test)(fsdp__param_group *group);
    bool all;
} group_test;

static fsdp_status test_groups(void *arg, fsdp__module_state *state)
{
    group_test *t = arg;

    for (int64_t i = 0; i < state->group_count; i++)
        t->all = t->test(state->groups[i]) && t->all;
    return FSDP_OK;
}

/* Calls `test` for all groups that are gathered with the state; returns whether all calls returned true. */
static bool each_group(fsdp__module_state *state, bool (*test)(fsdp__param_group *group))
{
    group_test t = {test, true};

    (void)fsdp__module_state_each(state, test_groups, &t);
    return t.all;
}

static bool mark_explicit(fsdp__param_group *group)
{
    group->explicit = group->sharded_state == FSDP_UNSHARDED;
    return true;
}

static fsdp_status end_unshard(fsdp__module_state *state)
{
    fsdp_status status = reshard_if_failed(state, fsdp__module_state_wait(state));

    (void)each_group(state, mark_explicit);
    return status;
}

/* Marks what an unshard_async was asked for, tied weights included: it is not to be given up until somebody waits. */
static bool mark_requested(fsdp__param_group *group)
{
    group->requested = true;
    return true;
}

static bool is_not_requested(fsdp__param_group *group)
{
    return !group->requested;
}

/* Returns whether the group is being gathered, or has been. If a use, a reshard or a write has taken something away in
 * between, there is nothing left to wait for. */
static bool is_on_its_way(fsdp__param_group *group)
{
    return group->sharded_state >= FSDP_GATHERING;
}

fsdp_status fsdp_module_unshard(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(begin_unshard(state));
    return end_unshard(state);
}

fsdp_status fsdp_module_unshard_async(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(begin_unshard(state));
    (void)each_group(state, mark_requested);
    return FSDP_OK;
}

fsdp_status fsdp_module_wait_unshard(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    return each_group(state, is_not_requested) || !each_group(state, is_on_its_way) ? FSDP_OK : end_unshard(state);
}

static void drop_gather_memory(const fsdp__module_state *state)
{
    if (!state->root->forward_root && !state->root->in_backward)
        fsdp__comm_context_drop_memory(state->comm);
}

fsdp_status fsdp_module_reshard(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    fsdp__module_state_give_up(state);
    if (state->root->order_count == 0) /* no backward is to come, and the next forward would take memory beside that */
        drop_gather_memory(state);
    return FSDP_OK;
}

/* Reshards, and drops the memory of gathers, which otherwise stays for the backward of a forward. */
static fsdp_status reshard_for_good(void *unused, fsdp__module_state *state)
{
    (void)unused;
    fsdp__module_state_give_up(state);
    drop_gather_memory(state);
    return FSDP_OK;
}

fsdp_status fsdp_module_reshard_all(fsdp_module *module)
{
    return fsdp__each_state(module, true, reshard_for_good, NULL);
}

static fsdp_status check_keeps(void *unused, fsdp__module_state *state)
{
    (void)unused;
    if (state->root->forward_root || state->root->in_backward)
        return FSDP_FAIL(FSDP_STATE,
                         "a forward or backward runs: what is kept unsharded can only be set before or after");
    return FSDP_OK;
}

static fsdp_status set_keep_unsharded(void *arg, fsdp__module_state *state)
{
    state->keeps_unsharded = *(const bool *)arg;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_keep_unsharded(fsdp_module *module, bool keep)
{
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "a module is required");
    FSDP_TRY(fsdp__each_state(module, true, check_keeps, NULL));
    FSDP_TRY(fsdp__each_state(module, true, set_keep_unsharded, &keep));
    return keep ? FSDP_OK : fsdp_module_reshard_all(module);
}
