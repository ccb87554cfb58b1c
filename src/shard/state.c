/* state.c - what happens when: a fully_shard call as hooks on its modules.
 *
 *     pre_forward    gather and wait; mark where the backward leaves this module again
 *     post_forward   reshard; remember the order; watch for the gradient of the output
 *     pre_backward   gather and wait; gather the one that comes next
 *     post_backward  reshard; reduce the gradients
 *     end of backward: whoever has not been through post_backward (inputs without gradient, the root), and the rest
 */
#include <string.h>

#include "base/alloc.h"
#include "comm/internal.h"
#include "shard/shard.h"

fsdp__shard_state *fsdp__state_of(const fsdp_module *module)
{
    return fsdp__module_hooks_arg(module, &fsdp__state_key);
}

fsdp__shard_state *fsdp__state_ref(fsdp__shard_state *state)
{
    state->refs++;
    return state;
}

void fsdp__state_unref(fsdp__shard_state *state)
{
    if (!state || --state->refs > 0)
        return;
    fsdp__group_release(&state->group, state->tree);
    if (state->tree)
        fsdp__tree_leave(state->tree, state);
    fsdp__free(state->modules);
    fsdp__free(state->ran);
    fsdp__free(state->order_marks);
    fsdp__free(state->name);
    fsdp__free(state);
}

/* What the group's collectives are for, until it is taken away: for ranks that disagree. */
static void set_label(const fsdp__shard_state *state, bool on)
{
    const char *name = state->name && !*state->name ? "the root" : state->name;

    fsdp__group_set_label(state->group.comm, on ? name : NULL);
}

fsdp_status fsdp__state_unshard(fsdp__shard_state *state)
{
    bool sharded = state->group.state == FSDP_SHARDED && state->group.param_count > 0;
    fsdp_status st;

    set_label(state, true);
    st = fsdp__group_unshard(&state->group, state->tree);
    set_label(state, false);
    FSDP_TRY(st);
    if (sharded)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_UNSHARD);
    return FSDP_OK;
}

static fsdp_status wait_unsharded(fsdp__shard_state *state)
{
    bool gathering = state->group.state == FSDP_GATHERING;

    FSDP_TRY(fsdp__group_wait(&state->group, state->tree));
    if (gathering)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_WAIT);
    return FSDP_OK;
}

void fsdp__state_reshard(fsdp__shard_state *state)
{
    bool whole = state->group.state != FSDP_SHARDED;

    fsdp__group_reshard(&state->group, state->tree);
    if (whole)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_RESHARD);
}

void fsdp__state_give_up(fsdp__shard_state *state)
{
    fsdp__shard_group *group = &state->group;
    bool whole = group->kept || group->state != FSDP_SHARDED;

    fsdp__state_reshard(state);
    group->kept = whole;
}

/* ---- writes ---- */

static fsdp_status fail_in_use(const fsdp__shard_state *state, const fsdp__storage *storage)
{
    const fsdp__shard_param *param = state->group.params;
    char text[256];

    while (param->sharded->storage != storage && param < &state->group.params[state->group.param_count - 1])
        param++;
    return FSDP_FAIL(FSDP_STATE, "cannot write to parameter %s: a %s of its module is running",
                     fsdp__param_text(param, text, sizeof text),
                     state->training == FSDP__FORWARD ? "forward" : "backward");
}

fsdp_status fsdp__state_begin_write(fsdp__shard_state *state, const fsdp__storage *storage)
{
    fsdp__shard_group *group = &state->group;

    if (state->training == FSDP__FORWARD || state->training == FSDP__PRE_BACKWARD)
        return fail_in_use(state, storage);
    fsdp__state_give_up(state);
    group->written = true;
    if (group->layout == FSDP__LAYOUT_IN_PLACE)
        FSDP_TRY(fsdp__group_await_peers(group, fsdp_device_stream(group->device)));
    return FSDP_OK;
}

/* ---- backward ---- */

static fsdp_status post_backward(void *arg)
{
    fsdp__shard_state *state = arg;
    fsdp__shard_group *group = &state->group;
    bool reduced;
    fsdp_status st;

    state->training = FSDP__POST_BACKWARD;
    fsdp__tree_notify(state->tree, state, FSDP_EVENT_POST_BACKWARD);
    if (group->param_count == 0)
        return FSDP_OK;
    if (group->reshard_after_backward)
        fsdp__state_reshard(state);
    if (!group->reduce_grads)
        return fsdp__group_keep_gradients(group);
    set_label(state, true);
    st = fsdp__group_reduce(group, state->tree, &reduced);
    set_label(state, false);
    FSDP_TRY(st);
    if (reduced)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_REDUCE);
    return FSDP_OK;
}

/* Reductions are complete, and nothing is gathered that should not be. */
static fsdp_status finish(fsdp__shard_tree *tree)
{
    FSDP_TRY(fsdp__tree_finish_reduction(tree));
    for (int64_t i = 0; i < tree->state_count; i++)
        if (tree->states[i]->group.state == FSDP_GATHERING) /* a prefetch that this backward did not need */
            fsdp__state_reshard(tree->states[i]);
    fsdp__tree_drop_spares(tree);
    fsdp__tree_forget_order(tree);
    return FSDP_OK;
}

/* In the order of the backward, whoever has not been through it. What a forward uses, around this backward, goes on. */
static fsdp_status complete_backward(fsdp__shard_tree *tree)
{
    for (int64_t i = tree->state_count - 1; i >= 0; i--)
        if (tree->states[i]->training != FSDP__POST_BACKWARD && tree->states[i]->training != FSDP__FORWARD)
            FSDP_TRY(post_backward(tree->states[i]));
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        if (state->training == FSDP__FORWARD)
            continue;
        state->training = FSDP__IDLE;
        fsdp__group_leave(&state->group);
    }
    return tree->last_backward ? finish(tree) : FSDP_OK;
}

static fsdp_status end_of_backward(void *arg, fsdp_status walked)
{
    fsdp__shard_tree *tree = arg;
    fsdp_status st = FSDP_OK;

    tree->callback_queued = false;
    if (walked == FSDP_OK)
        st = complete_backward(tree);
    if (walked != FSDP_OK || st != FSDP_OK)
        (void)fsdp__tree_reset(tree);
    for (int64_t i = tree->state_count - 1; i >= 0; i--) /* from the end: who was kept only by this leaves the list */
        fsdp__state_unref(tree->states[i]);
    fsdp__tree_unref(tree);
    return st; /* the walk's own failure is reported by the walk */
}

/* The model may be gone, and its graph goes piece by piece as it is walked: all of the tree stays until the end. */
static fsdp_status begin_backward(fsdp__shard_tree *tree)
{
    if (tree->callback_queued)
        return FSDP_OK;
    FSDP_TRY(fsdp_backward_queue_callback(tree->context, end_of_backward, tree));
    tree->callback_queued = true;
    tree->refs++;
    for (int64_t i = 0; i < tree->state_count; i++)
        (void)fsdp__state_ref(tree->states[i]);
    return FSDP_OK;
}

static fsdp_status pre_backward(void *arg, fsdp_tensor *output, fsdp_tensor **grad)
{
    fsdp__shard_state *state = arg, *previous;
    fsdp__shard_tree *tree = state->tree;

    (void)output;
    (void)grad;
    FSDP_TRY(begin_backward(tree));
    if (state->training == FSDP__PRE_BACKWARD)
        return FSDP_OK;
    state->training = FSDP__PRE_BACKWARD;
    fsdp__tree_notify(tree, state, FSDP_EVENT_PRE_BACKWARD);
    FSDP_TRY(fsdp__state_unshard(state));
    FSDP_TRY(wait_unsharded(state));
    previous = fsdp__tree_previous(tree, state);
    return previous ? fsdp__state_unshard(previous) : FSDP_OK;
}

/* ---- forward ---- */

static fsdp_status cast_floating(fsdp_tensor **tensor, fsdp_dtype dtype)
{
    if (dtype == FSDP_DTYPE_NONE || !fsdp_dtype_is_floating((*tensor)->dtype))
        return FSDP_OK;
    *tensor = fsdp_cast(*tensor, dtype);
    return *tensor ? FSDP_OK : fsdp_last_status();
}

static fsdp_status cast_inputs(const fsdp__shard_state *state, fsdp_tensor **inputs, int count)
{
    for (int i = 0; i < count && !state->policy.keep_forward_inputs; i++)
        FSDP_TRY(cast_floating(&inputs[i], state->policy.param_dtype));
    return FSDP_OK;
}

/* The gathers of this iteration start after what was written to the shards since the last: waited for once here, so
 * that none of them has to wait for the computing that goes on meanwhile. */
static fsdp_status follow_writes(fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp_device *device = tree->states[i]->group.device;

        if (!tree->states[i]->group.written)
            continue;
        FSDP_TRY(fsdp__tree_follow_compute(tree, device));
        for (int64_t j = i; j < tree->state_count; j++)
            if (tree->states[j]->group.device == device)
                tree->states[j]->group.written = false;
    }
    return FSDP_OK;
}

/* Once per iteration, by the outermost module. */
static fsdp_status begin_iteration(fsdp__shard_state *state)
{
    fsdp__shard_tree *tree = state->tree;

    FSDP_TRY(fsdp__tree_initialise(state));
    if (tree->forward_root)
        return FSDP_OK;
    FSDP_TRY(fsdp__tree_drop_stale(tree));
    FSDP_TRY(follow_writes(tree));
    tree->forward_root = state;
    return FSDP_OK;
}

/* What a graph that will call the state holds of it. */
static void unref_state(void *state)
{
    fsdp__state_unref(state);
}

static fsdp_status enter_forward(fsdp__shard_state *state, fsdp_tensor **inputs, int count)
{
    bool first = state->training != FSDP__FORWARD, recorded = false;

    if (state->training == FSDP__PRE_BACKWARD) { /* recomputing a forward inside the backward */
        FSDP_TRY(fsdp__state_unshard(state));
        FSDP_TRY(wait_unsharded(state));
        return cast_inputs(state, inputs, count);
    }
    FSDP_TRY(begin_iteration(state));
    state->training = FSDP__FORWARD;
    fsdp__tree_notify(state->tree, state, FSDP_EVENT_PRE_FORWARD);
    FSDP_TRY(cast_inputs(state, inputs, count));
    FSDP_TRY(fsdp__state_unshard(state));
    FSDP_TRY(wait_unsharded(state));
    if (first) /* of several modules the first: the backward comes to it last */
        FSDP_TRY(fsdp__boundary(inputs, count, post_backward, state, unref_state, &recorded));
    if (recorded)
        (void)fsdp__state_ref(state);
    return FSDP_OK;
}

fsdp_status fsdp__state_pre_forward(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    fsdp__shard_state *state = arg;
    fsdp_status st;

    state->depth++;
    st = enter_forward(state, inputs, count);
    if (st != FSDP_OK) /* a hook that fails is not told that its module failed */
        fsdp__state_failed(arg, module);
    return st;
}

void fsdp__state_forget_ran(fsdp__shard_state *state)
{
    memset(state->ran, 0, (size_t)state->module_count * sizeof *state->ran);
    state->ran_count = 0;
}

/* All modules of the state have run. */
static fsdp_status leave_forward(fsdp__shard_state *state)
{
    fsdp__shard_tree *tree = state->tree;

    fsdp__state_forget_ran(state);
    state->training = FSDP__IDLE;
    if (state->group.reshard_after_forward)
        fsdp__state_reshard(state);
    if (fsdp_grad_enabled(tree->context))
        FSDP_TRY(fsdp__tree_record_order(tree, state));
    fsdp__tree_notify(tree, state, FSDP_EVENT_POST_FORWARD);
    return FSDP_OK;
}

/* The outermost forward ends: groups of which a module did not run are done as well, and fields name shards again. What
 * a backward uses, around this forward, goes on. */
static fsdp_status end_iteration(fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        if (state->training == FSDP__PRE_BACKWARD)
            continue;
        if (state->training == FSDP__FORWARD)
            FSDP_TRY(leave_forward(state));
        fsdp__group_leave(&state->group);
    }
    tree->forward_root = NULL;
    if (!fsdp_grad_enabled(tree->context) && !tree->callback_queued)
        fsdp__tree_drop_spares(tree);
    return FSDP_OK;
}

static fsdp_status exit_forward(fsdp__shard_state *state, fsdp_module *module, fsdp_tensor **output)
{
    fsdp__shard_tree *tree = state->tree;

    if (state->training == FSDP__PRE_BACKWARD)
        return cast_floating(output, state->policy.output_dtype);
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i] == module && !state->ran[i]) {
            state->ran[i] = true;
            state->ran_count++;
        }
    if (state->ran_count == state->module_count && state->depth == 0) /* a module may call itself */
        FSDP_TRY(leave_forward(state));
    if (fsdp_tensor_requires_grad(*output)) {
        FSDP_TRY(fsdp__add_grad_hook(*output, pre_backward, state, unref_state));
        (void)fsdp__state_ref(state);
    }
    if (tree->forward_root == state && state->depth == 0)
        FSDP_TRY(end_iteration(tree));
    return cast_floating(output, state->policy.output_dtype);
}

fsdp_status fsdp__state_post_forward(void *arg, fsdp_module *module, fsdp_tensor **output)
{
    fsdp__shard_state *state = arg;
    fsdp_status st;

    state->depth--;
    st = exit_forward(state, module, output);
    if (st != FSDP_OK)
        state->depth++; /* the module has failed, and will say so */
    return st;
}

/* A forward inside a backward has failed: what the backward uses, and the gradients it has made, stay. */
static void abandon_forward(fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_state *state = tree->states[i];

        if (state->training == FSDP__FORWARD) {
            state->training = FSDP__IDLE;
            fsdp__state_forget_ran(state);
            fsdp__state_reshard(state);
        } else if (state->training != FSDP__PRE_BACKWARD) {
            fsdp__group_leave(&state->group);
        }
    }
    tree->forward_root = NULL;
}

void fsdp__state_failed(void *arg, fsdp_module *module)
{
    fsdp__shard_state *state = arg;

    (void)module;
    state->depth--;
    if (state->tree->forward_root != state || state->depth > 0)
        return;
    if (state->tree->callback_queued)
        abandon_forward(state->tree);
    else
        (void)fsdp__tree_reset(state->tree);
}
