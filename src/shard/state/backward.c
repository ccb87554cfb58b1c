/* backward.c - the schedule of a backward. */
#include "shard/state/backward.h"

#include "shard/reduce/bucket_order.h"
#include "shard/state/give_back.h"
#include "shard/state/prefetch.h"
#include "shard/state/trained_parameters.h"

/* Ends the backward of conditional states below `parent`. It ends with the parent's, on all ranks, even if their inputs
 * need no gradient. */
static void leave_with_parent(const fsdp__module_state *parent)
{
    fsdp__module_state *state;

    for (int64_t at = 0; (state = fsdp__module_state_next_child(parent, &at));) {
        if (state->training != FSDP__PRE_BACKWARD)
            continue;
        leave_with_parent(state);
        state->training = FSDP__POST_BACKWARD;
        fsdp__module_state_notify(state, FSDP_EVENT_POST_BACKWARD);
    }
}

static fsdp_status post_backward(fsdp__module_state *state)
{
    bool entered = state->training == FSDP__PRE_BACKWARD;

    leave_with_parent(state);
    state->training = FSDP__POST_BACKWARD;
    if (state->reshards_at_last_use && state->to_come > 0)
        return FSDP_OK;
    /* Reshard first: that frees memory before the reduction asks for some, and the reduction reads other memory. */
    fsdp__module_state_reshard_after_backward(state);
    fsdp__give_back(state->root);
    if (entered)
        FSDP_TRY(fsdp__prefetch_post_backward(state));
    /* Otherwise the last of several uses reduces, or the parent, or the end of the backward. */
    if (state->to_come == 0 && !state->tied && !state->parent)
        FSDP_TRY(fsdp__module_state_reduce(state));
    fsdp__module_state_notify(state, FSDP_EVENT_POST_BACKWARD);
    return FSDP_OK;
}

void fsdp__will_leave_backward(void *arg)
{
    fsdp__module_state *state = arg;
    fsdp__root *root = state->root;
    uint64_t number = fsdp__backwards(root->context);

    /* A backward that failed before it came here has left its count. */
    if (!root->in_backward && root->counted != number) {
        for (int64_t i = 0; i < root->state_count; i++)
            root->states[i]->to_come = 0;
        root->counted = number;
    }
    state->to_come++;
}

fsdp_status fsdp__leave_backward(void *arg)
{
    fsdp__module_state *state = arg;

    state->to_come -= state->to_come > 0; /* if a backward inside this one has failed, the count is unknown */
    return post_backward(state);
}

/* Completes reductions, and gives up gathers and memory that are not needed any more. */
static fsdp_status finish(fsdp__root *root)
{
    FSDP_TRY(fsdp__root_finish_reductions(root));
    for (int64_t i = 0; i < root->state_count; i++) /* of prefetches that this backward did not need */
        fsdp__module_state_drop_gather(root->states[i]);
    fsdp__comm_context_drop_memory(root->comm);
    fsdp__give_back(root);
    fsdp__root_forget_order(root);
    root->first_uses_known = root->first_use_count > 0;
    return FSDP_OK;
}

/* Ends the backward of all states that have not been through it. A forward around this backward goes on undisturbed. */
static fsdp_status complete_backward(fsdp__root *root)
{
    /* These are collectives, so the order must be the same on all ranks: the order of the module walk is. */
    for (int64_t i = 0; i < root->state_count; i++)
        if (root->states[i]->training != FSDP__POST_BACKWARD && root->states[i]->training != FSDP__FORWARD)
            FSDP_TRY(post_backward(root->states[i]));
    for (int64_t i = 0; i < root->state_count; i++)
        if ((root->states[i]->tied || root->states[i]->parent) && root->states[i]->training != FSDP__FORWARD)
            FSDP_TRY(fsdp__module_state_reduce(root->states[i]));
    for (int64_t i = 0; i < root->state_count; i++) {
        fsdp__module_state *state = root->states[i];

        if (state->training == FSDP__FORWARD)
            continue;
        state->training = FSDP__IDLE;
        fsdp__module_state_leave(state);
    }
    return root->last_backward ? finish(root) : fsdp__comm_context_end_backward(root->comm);
}

static fsdp_status end_of_backward(void *arg, fsdp_status walked)
{
    fsdp__root *root = arg;
    fsdp_status status = FSDP_OK;

    root->in_backward = false;
    for (int64_t i = 0; i < root->state_count; i++)
        root->states[i]->to_come = 0;
    if (walked == FSDP_OK)
        status = complete_backward(root);
    if (walked != FSDP_OK || status != FSDP_OK)
        (void)fsdp__root_reset(root);
    /* Go from the end, since a state that only this reference kept leaves the list. */
    for (int64_t i = root->state_count - 1; i >= 0; i--)
        fsdp__module_state_unref(root->states[i]);
    fsdp__root_unref(root);
    return status; /* the walk reports its own failure */
}

/* Begins a backward, and holds the root and its states until it ends: the model may be gone, and its graph goes piece
 * by piece as it is walked. */
static fsdp_status begin_backward(fsdp__root *root)
{
    if (root->in_backward)
        return FSDP_OK;
    FSDP_TRY(fsdp_backward_queue_callback(root->context, end_of_backward, root));
    root->in_backward = true;
    (void)fsdp__root_ref(root);
    for (int64_t i = 0; i < root->state_count; i++)
        (void)fsdp__module_state_ref(root->states[i]);
    return FSDP_OK;
}

static fsdp_status find_recomputed(void *arg, fsdp_module *module, const char *name)
{
    bool *found = arg;

    (void)name;
    *found = *found || fsdp_module_recompute(module) != FSDP_RECOMPUTE_NONE;
    return FSDP_OK;
}

/* Unshards as the state is set to. What runs again (fsdp_recompute) needs its parameters in any case. */
static fsdp_status unshard_for_backward(fsdp__module_state *state)
{
    bool again = false;

    for (int64_t i = 0; i < state->module_count && !state->unshard_in_backward; i++)
        if (state->modules[i])
            FSDP_TRY(fsdp__module_walk(state->modules[i], find_recomputed, &again));
    return again ? fsdp__module_state_unshard(state) : fsdp__module_state_unshard_in_backward(state);
}

fsdp_status fsdp__enter_backward(void *arg, fsdp_tensor *output, fsdp_tensor **grad)
{
    const fsdp__trained *trained = arg;
    fsdp__module_state *state = trained->state;

    (void)output;
    (void)grad;
    FSDP_TRY(begin_backward(state->root));
    fsdp__trained_are_due(trained);
    for (int64_t i = 0; i < state->group_count; i++)
        if (state->groups[i]->buckets)
            FSDP_TRY(fsdp__buckets_begin_backward(state->groups[i], state->comm,
                                                  state->reduce_grads ? &state->reduction : NULL));
    if (state->training == FSDP__PRE_BACKWARD) /* another output of the same modules came first */
        return FSDP_OK;
    state->training = FSDP__PRE_BACKWARD;
    fsdp__module_state_notify(state, FSDP_EVENT_PRE_BACKWARD);
    if (fsdp__module_state_is_alone(state))
        return fsdp__module_state_wait(state);
    FSDP_TRY(unshard_for_backward(state));
    FSDP_TRY(fsdp__module_state_wait(state));
    /* This comes only now: this state's gather had to be issued before the next one's, since both run on one stream. */
    return fsdp__prefetch_backward(state);
}
