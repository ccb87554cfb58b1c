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
