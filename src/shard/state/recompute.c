/* recompute.c - forwards that run a second time, inside a backward. */
#include "shard/state/recompute.h"

bool fsdp__is_recomputed(const fsdp__module_state *state)
{
    const fsdp_context *context = state->root->context;

    return state->training == FSDP__PRE_BACKWARD || (fsdp_recomputing(context) && fsdp_grad_enabled(context));
}

void fsdp__leave_recomputation(fsdp__module_state *state, bool will_come)
{
    if (state->training == FSDP__POST_BACKWARD && state->to_come == 0)
        will_come = false;
    /* A state with a parent is resharded with it, on all ranks. */
    if (!will_come && state->depth == 0 && !state->parent)
        fsdp__module_state_reshard_after_backward(state);
}

fsdp_status fsdp__recompute_check(const fsdp__module_state *state)
{
    uint64_t written = 0;
    bool same;

    for (int64_t g = 0; g < state->group_count; g++)
        for (int64_t i = 0; i < state->groups[g]->param_count; i++)
            written += state->groups[g]->params[i].sharded->storage->version;
    FSDP_TRY(fsdp__checkpoint_compare(state->root->context, written, &same));
    if (!same)
        return FSDP_FAIL(FSDP_STATE,
                         "a parameter of %s was written to between the forward of a checkpoint and its backward, "
                         "which computes from it again: run the backward before the write",
                         *state->name ? state->name : "the outermost module");
    return FSDP_OK;
}
