/* iteration.c - begins iterations. */
#include "shard/state/iteration.h"

#include "comm/group_calls.h"
#include "shard/group/halves.h"

enum {
    EXCHANGED = 256 /* groups in one exchange */
};

/* Calls `exchange` for the groups of the walk that are `concerned`, with as many that share a process group as fit. */
static fsdp_status each_exchange(fsdp__group_walk all, bool (*concerned)(const fsdp__param_group *),
                                 fsdp_status (*exchange)(fsdp__param_group *const *groups, int64_t count))
{
    fsdp__param_group *group, *together[EXCHANGED];

    for (fsdp__group_walk w = all; (group = fsdp__next_group(&w));)
        group->asked = false;
    for (fsdp__group_walk w = all; (group = fsdp__next_group(&w));) {
        fsdp__group_walk rest = w;
        const fsdp_process_group *pg = group->residence.mesh.shard_pg;
        int64_t n = 0;

        for (fsdp__param_group *g = group; g && n<EXCHANGED; g = n> 0 ? fsdp__next_group(&rest) : NULL) {
            if (g->asked || !concerned(g) || g->residence.mesh.shard_pg != pg)
                continue;
            g->asked = true;
            together[n++] = g;
        }
        if (n > 0)
            FSDP_TRY(exchange(together, n));
    }
    return FSDP_OK;
}

/* ---- what stayed unsharded ---- */

static bool may_be_stale(const fsdp__param_group *group)
{
    bool unsharded = group->stays_unsharded || group->explicit || group->sharded_state == FSDP_GATHERING;

    return unsharded && group->residence.mesh.ranks > 1;
}

/* Reshards a stale group, or its whole state if all groups of that have one shard group. Groups of one state over
 * several meshes are decided about by different ranks. */
static void reshard_stale(fsdp__param_group *group)
{
    fsdp__module_state *state = group->state;

    for (int64_t i = 0; i < state->group_count; i++)
        if (state->groups[i]->residence.mesh.shard_pg != group->residence.mesh.shard_pg) {
            fsdp__param_group_reshard(group, state->comm);
            return;
        }
    fsdp__module_state_reshard(state);
}

static fsdp_status exchange_stale(fsdp__param_group *const *groups, int64_t count)
{
    uint8_t stale[EXCHANGED];

    for (int64_t i = 0; i < count; i++) {
        stale[i] = groups[i]->sharded_state == FSDP_SHARDED;
        fsdp__residence_end_read(&groups[i]->residence); /* a late writer may be waiting for that */
    }
    /* Now all ranks decide alike. */
    FSDP_TRY(fsdp__process_group_any(groups[0]->residence.mesh.shard_pg, &(fsdp__any){.flags = stale, .count = count}));
    for (int64_t i = 0; i < count; i++)
        if (stale[i])
            reshard_stale(groups[i]);
    for (int64_t i = 0; i < count; i++)
        if (groups[i]->sharded_state >= FSDP_GATHERING)
            fsdp__residence_begin_read(&groups[i]->residence);
    return FSDP_OK;
}

fsdp_status fsdp__drop_stale(fsdp__root *root)
{
    return each_exchange(fsdp__group_walk_of(root), may_be_stale, exchange_stale);
}

/* ---- what all ranks must know of shards ---- */

static bool is_to_measure(const fsdp__param_group *group)
{
    return group->encoded.measured > 0 && group->residence.kind != FSDP__RESIDENCE_NONE &&
           group->sharded_state == FSDP_SHARDED;
}

static fsdp_status encode(fsdp__param_group *const *groups, int64_t count)
{
    return fsdp__encoded_encode(groups, count, groups[0]->state->comm);
}

fsdp_status fsdp__encode_state(fsdp__module_state *state)
{
    return each_exchange((fsdp__group_walk){.states = &state, .state_count = 1}, is_to_measure, encode);
}

/* ---- the beginning ---- */

/* Makes the gathers of this iteration start after what was written to the shards since the last. Waiting here once
 * saves each of them from waiting for the computing that goes on meanwhile. */
static fsdp_status follow_writes(fsdp__root *root)
{
    fsdp__param_group *group;
    const fsdp_device *followed = NULL;

    for (fsdp__group_walk w = fsdp__group_walk_of(root); (group = fsdp__next_group(&w));)
        /* Once for each device: that of the groups, and the host for offloaded shards. */
        if (group->written && group->residence.shard_device != followed) {
            FSDP_TRY(fsdp__comm_context_follow_writes(root->comm, group->residence.shard_device));
            followed = group->residence.shard_device;
        }
    for (fsdp__group_walk w = fsdp__group_walk_of(root); (group = fsdp__next_group(&w)); group->written = false)
        if (group->written)
            FSDP_TRY(fsdp__halves_follow(group, root->comm->after_optim));
    return FSDP_OK;
}

fsdp_status fsdp__begin_iteration(fsdp__root *root, fsdp__module_state *state)
{
    fsdp__param_group *group;

    if (root->forward_root)
        return FSDP_OK;
    for (fsdp__group_walk w = fsdp__group_walk_of(root); (group = fsdp__next_group(&w));)
        FSDP_TRY(fsdp__param_group_check_summon(group, "run a forward with"));
    FSDP_TRY(fsdp__drop_stale(root)); /* first: it decides what is gathered at all */
    FSDP_TRY(follow_writes(root));
    FSDP_TRY(each_exchange(fsdp__group_walk_of(root), is_to_measure, encode));
    root->comm->after_optim = NULL; /* it was for one step */
    root->forward_root = state;
    root->iteration++;
    if (state == root->state)
        fsdp__forward_order_begin(&root->forward_order);
    return FSDP_OK;
}
