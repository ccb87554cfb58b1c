/* hooks.c - the schedule of a forward and a backward. */
#include "shard/state/hooks.h"

#include "autograd/autograd.h"
#include "base/compiler.h"
#include "shard/reduce/bucket_reduce.h"
#include "shard/state/give_back.h"
#include "shard/state/join.h"
#include "shard/state/prefetch.h"
#include "shard/state/trained.h"

/* ---- backward ---- */

/* Ends the backward of conditional states below `parent`. It ends with the parent's, on all ranks, even if their inputs
 * need no gradient. */
static void leave_with_parent(const fsdp__module_state *parent)
{
    for (int64_t i = 0; i < parent->companion_count; i++) {
        fsdp__module_state *state = parent->companions[i];

        if (state->parent != parent || state->training != FSDP__PRE_BACKWARD)
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
    if (state->fsdp1.on && state->to_come > 0)
        return FSDP_OK;
    /* Reshard first: that frees memory before the reduction asks for some, and the reduction reads other memory. */
    fsdp__module_state_reshard_after_backward(state);
    fsdp__give_back(state->root);
    if (entered)
        FSDP_TRY(fsdp__prefetch_post_backward(state));
    /* Otherwise the last of several uses reduces, or the parent, or the end of the backward: [Note: companions] in
     * state.h. */
    if (state->to_come == 0 && !state->tied && !state->parent)
        FSDP_TRY(fsdp__module_state_reduce(state));
    fsdp__module_state_notify(state, FSDP_EVENT_POST_BACKWARD);
    return FSDP_OK;
}

/* Counts a use of the modules that this backward will leave again. */
static void will_leave(void *arg)
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

static fsdp_status leave_backward(void *arg)
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
    /* From the end, since states that only this reference kept leave the list. */
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

static fsdp_status find_checkpoint(void *arg, fsdp_module *module, const char *name)
{
    bool *found = arg;

    (void)name;
    *found = *found || fsdp_module_recompute(module) != FSDP_RECOMPUTE_NONE;
    return FSDP_OK;
}

/* Unshards as the state is set to. What runs again (checkpointing) needs its parameters in any case. */
static fsdp_status unshard_for_backward(fsdp__module_state *state)
{
    bool again = false;

    for (int64_t i = 0; i < state->module_count && !state->unshard_in_backward; i++)
        if (state->modules[i])
            FSDP_TRY(fsdp__module_walk(state->modules[i], find_checkpoint, &again));
    return again ? fsdp__module_state_unshard(state) : fsdp__module_state_unshard_in_backward(state);
}

static fsdp_status pre_backward(void *arg, fsdp_tensor *output, fsdp_tensor **grad)
{
    const fsdp__trained *trained = arg;
    fsdp__module_state *state = trained->state;

    (void)output;
    (void)grad;
    FSDP_TRY(begin_backward(state->root));
    fsdp__trained_are_due(trained);
    for (int64_t i = 0; i < state->group_count; i++)
        if (state->groups[i]->buckets)
            FSDP_TRY(fsdp__buckets_begin_backward(state->groups[i]));
    if (state->training == FSDP__PRE_BACKWARD) /* another output of the same modules came first */
        return FSDP_OK;
    state->training = FSDP__PRE_BACKWARD;
    fsdp__module_state_notify(state, FSDP_EVENT_PRE_BACKWARD);
    if (fsdp__module_state_is_alone(state))
        return fsdp__module_state_wait(state);
    FSDP_TRY(unshard_for_backward(state));
    FSDP_TRY(fsdp__module_state_wait(state));
    /* Only now: this state's gather had to be issued before the next one's, since both run on one stream. */
    return fsdp__prefetch_backward(state);
}

/* ---- forward ---- */

static fsdp_status cast_floating(fsdp_tensor **tensor, fsdp_dtype dtype)
{
    if (dtype == FSDP_DTYPE_NONE || !fsdp_dtype_is_floating((*tensor)->dtype))
        return FSDP_OK;
    *tensor = fsdp_cast(*tensor, dtype);
    return *tensor ? FSDP_OK : fsdp_last_status();
}

/* Returns the dtype of its shards, for a state that computes in full precision. */
static fsdp_dtype own_dtype(const fsdp__module_state *state)
{
    return state->group_count > 0 ? state->groups[0]->params[0].orig_dtype : FSDP_F32;
}

static fsdp_status cast_inputs(fsdp__module_state *state, fsdp_tensor **inputs, int count)
{
    fsdp_dtype dtype = state->fsdp1.full_precision ? own_dtype(state) : state->policy.param_dtype;
    bool casts = !state->policy.keep_forward_inputs || (state->fsdp1.casts_root_inputs && state->root->state == state);

    if (state->fsdp1.full_precision && count > 0)
        state->fsdp1.came_in = fsdp_dtype_is_floating(inputs[0]->dtype) ? inputs[0]->dtype : FSDP_DTYPE_NONE;
    for (int i = 0; i < count && (casts || state->fsdp1.full_precision); i++)
        FSDP_TRY(cast_floating(&inputs[i], dtype));
    return FSDP_OK;
}

static fsdp_status cast_outputs(const fsdp__module_state *state, fsdp_tensor **outputs, int count)
{
    fsdp_dtype dtype = state->fsdp1.full_precision ? state->fsdp1.came_in : state->policy.output_dtype;

    for (int i = 0; i < count; i++)
        if (outputs[i])
            FSDP_TRY(cast_floating(&outputs[i], dtype));
    return FSDP_OK;
}

/* Moves inputs of the outermost module to the parameters' device. Tensors without bytes, which ask for shapes, stay. */
static fsdp_status move_inputs(const fsdp__root *root, fsdp_tensor **inputs, int count)
{
    fsdp_device *device = root->comm->stream ? fsdp__stream_device(root->comm->stream) : NULL;

    for (int i = 0; i < count && device; i++) {
        fsdp_device *from = inputs[i]->storage->device;

        if (from == device || fsdp_device_is_meta(from))
            continue;
        inputs[i] = fsdp_to_device(inputs[i], device);
        if (!inputs[i])
            return fsdp_last_status();
    }
    return FSDP_OK;
}

/* Drops the reference of a graph that was to call the state. */
static void unref_state(void *state)
{
    fsdp__module_state_unref(state);
}

/* Returns whether the forward runs again for a backward, inside it. */
static bool is_recomputed(const fsdp__module_state *state)
{
    const fsdp_context *context = state->root->context;

    return state->training == FSDP__PRE_BACKWARD || (fsdp_recomputing(context) && fsdp_grad_enabled(context));
}

/* Ends a recomputation. What is gathered stays until the backward has come through the modules, if it will. */
static void leave_recomputation(fsdp__module_state *state, bool will_come)
{
    if (state->training == FSDP__POST_BACKWARD && state->to_come == 0)
        will_come = false;
    /* A state with a parent is resharded with it, on all ranks. */
    if (!will_come && state->depth == 0 && !state->parent)
        fsdp__module_state_reshard_after_backward(state);
}

/* Checks that no shard was written since a checkpoint's forward: its second run gathers the shards as they are then. */
static fsdp_status check_shards(const fsdp__module_state *state)
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

/* Unshards, which all ranks do together. If this rank may be alone here, the parent has done it. */
static fsdp_status unshard_for_forward(fsdp__module_state *state)
{
    FSDP_TRY(check_shards(state));
    if (!fsdp__module_state_is_alone(state))
        FSDP_TRY(fsdp__module_state_unshard(state));
    return fsdp__module_state_wait(state);
}

/* Begins an iteration of a replicated module, before the parameters of the outermost module are used. */
static fsdp_status begin_replica(fsdp__module_state *state)
{
    bool recording = fsdp_grad_enabled(state->root->context);

    FSDP_TRY(fsdp__join_announce(state, recording, fsdp__replica_check(state, recording)));
    return fsdp__replica_prepare(state, recording);
}

static fsdp_status enter_forward(fsdp__module_state *state, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    bool first = state->training != FSDP__FORWARD, recorded = false, alone = fsdp__module_state_is_alone(state);

    if (is_recomputed(state)) {
        FSDP_TRY(unshard_for_forward(state));
        return cast_inputs(state, inputs, count);
    }
    if (!state->root->agreed) /* it ran, or had values, before it was sharded */
        FSDP_TRY(fsdp__join_begin_together(state, module, FSDP_OK));
    if (!alone)
        FSDP_TRY(fsdp__root_begin_iteration(state->root, state));
    if (fsdp__replica_of(state) && state->root->forward_root == state && first)
        FSDP_TRY(begin_replica(state));
    state->training = FSDP__FORWARD;
    state->used_in = state->root->iteration;
    fsdp__module_state_notify(state, FSDP_EVENT_PRE_FORWARD);
    if (state->root->forward_root == state && state->depth == 1)
        FSDP_TRY(move_inputs(state->root, inputs, count));
    FSDP_TRY(cast_inputs(state, inputs, count));
    FSDP_TRY(unshard_for_forward(state));
    state->entered = fsdp__recorded(state->root->context);
    if (first) /* the first of several modules: the backward comes to it last */
        FSDP_TRY(fsdp__boundary(inputs, count, &(fsdp__crossing){leave_backward, will_leave, state, unref_state, NULL},
                                &recorded));
    if (recorded) /* the graph's own reference: the modules may be freed before the backward */
        (void)fsdp__module_state_ref(state);
    return alone ? FSDP_OK : fsdp__prefetch_forward(state);
}

fsdp_status fsdp__hook_pre_forward(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    fsdp__module_state *state = arg;
    fsdp_status status;

    state->depth++;
    status = enter_forward(state, module, inputs, count);
    if (status != FSDP_OK) /* a hook that fails is not told that its module failed */
        fsdp__hook_failed(arg, module);
    return status;
}

/* Ends the forward of a state all of whose modules have run, and with it the forwards of conditional states below, as
 * far as this rank entered them. */
static fsdp_status leave_forward(fsdp__module_state *state)
{
    fsdp__root *root = state->root;
    fsdp_status status;

    for (int64_t i = 0; i < state->companion_count; i++)
        if (state->companions[i]->parent == state && state->companions[i]->training == FSDP__FORWARD)
            FSDP_TRY(leave_forward(state->companions[i]));
    fsdp__module_state_forget_ran(state);
    state->leaving = true;
    status = fsdp__module_state_reshard_after_forward(state);
    state->leaving = false;
    FSDP_TRY(status);
    fsdp__give_back(root);
    state->training = FSDP__IDLE;
    if (fsdp__replica_of(state))
        fsdp__replica_settle(state, state->reduce_grads && fsdp_grad_enabled(root->context));
    /* No backward follows an evaluation; and the order must be the same on all ranks. */
    if (fsdp_grad_enabled(root->context) && !state->parent)
        FSDP_TRY(fsdp__root_record_order(root, state));
    fsdp__module_state_notify(state, FSDP_EVENT_POST_FORWARD);
    return FSDP_OK;
}

/* Ends the outermost forward: states with a module that did not run are done as well, and fields name shards again. A
 * backward around this forward goes on undisturbed. */
static fsdp_status end_iteration(fsdp__root *root)
{
    for (int64_t i = 0; i < root->state_count; i++) {
        fsdp__module_state *state = root->states[i];

        if (state->training == FSDP__PRE_BACKWARD)
            continue;
        if (state->training == FSDP__FORWARD)
            FSDP_TRY(leave_forward(state));
        if (!root->in_backward && fsdp__module_state_is_ahead(state)) /* this forward did not use its module */
            fsdp__module_state_drop_gather(state);
        fsdp__module_state_leave(state);
    }
    root->forward_root = NULL;
    /* Before a backward the memory of gathers is kept for its gathers; after an evaluation nobody needs it. */
    if (!fsdp_grad_enabled(root->context) && !root->in_backward) {
        fsdp__comm_context_drop_memory(root->comm);
        fsdp__give_back(root);
    }
    return FSDP_OK;
}

/* Drops the references that the graph holds at an output. */
static void unref_passage(void *arg)
{
    fsdp__trained *trained = arg;
    fsdp__module_state *state = trained->state;

    fsdp__trained_unref(trained);
    fsdp__module_state_unref(state);
}

static bool any_requires_grad(fsdp_tensor *const *outputs, int count)
{
    bool any = false;

    for (int i = 0; i < count; i++)
        any = any || fsdp_tensor_requires_grad(outputs[i]);
    return any;
}

/* Makes the outputs require a gradient. Other ranks may have used parameters where this one has not, and their backward
 * comes here, so this rank's must too. */
static fsdp_status require_gradient(const fsdp__trained *trained, fsdp_tensor **outputs, int count)
{
    if (trained->count == 0 || any_requires_grad(outputs, count))
        return FSDP_OK;
    for (int i = 0; i < count; i++)
        if (outputs[i])
            FSDP_TRY(fsdp__require_gradient(&outputs[i]));
    return FSDP_OK;
}

/* Marks what is recomputed as it was marked the first time; its hooks are there already. */
static fsdp_status mark_recomputed(fsdp__module_state *state, fsdp_tensor **outputs, int count)
{
    fsdp__trained *trained;
    fsdp_status status;

    FSDP_TRY(fsdp__trained_now(state, &trained));
    status = require_gradient(trained, outputs, count);
    fsdp__trained_unref(trained);
    return status;
}

/* Makes the backward call pre_backward at `output`. The graph gets a reference to `trained`. */
static fsdp_status make_passage(fsdp__module_state *state, fsdp__trained *trained, fsdp_tensor *output)
{
    fsdp_status status;

    if (!output || !fsdp_tensor_requires_grad(output))
        return FSDP_OK;
    trained->refs++;
    (void)fsdp__module_state_ref(state);
    status = fsdp__add_grad_hook(output, pre_backward, trained, unref_passage);
    if (status != FSDP_OK)
        unref_passage(trained);
    return status;
}

/* Returns whether the producer of `output` was recorded after this module was entered, and after the sharded modules
 * inside had ended: then the backward comes to it before it comes to them. */
static bool is_last(const fsdp__module_state *state, const fsdp_tensor *output)
{
    return !fsdp__has_lasting_hooks(output) &&
           fsdp__recorded_since(output, FSDP__MAX(state->entered, state->root->left));
}

/* Makes the backward come here before it comes to what the module was given, or to a module inside, whether its output
 * is passed on or not used. All ranks come at the same place, whichever of several outputs it is. */
static fsdp_status make_passages(fsdp__module_state *state, fsdp_tensor **outputs, int count)
{
    fsdp__trained *trained;
    fsdp_status status = FSDP_OK;

    if (!fsdp_grad_enabled(state->root->context))
        return FSDP_OK;
    FSDP_TRY(fsdp__trained_now(state, &trained));
    for (int i = 0; i < count; i++)
        if (outputs[i] && (count > 1 || !is_last(state, outputs[i])))
            FSDP_TRY_GOTO(status, fsdp__anchor(&outputs[i], NULL, 0), out);
    FSDP_TRY_GOTO(status, require_gradient(trained, outputs, count), out);
    for (int i = 0; i < count && status == FSDP_OK; i++)
        status = make_passage(state, trained, outputs[i]);
out:
    fsdp__trained_unref(trained);
    return status;
}

/* Records that a module of the state has run; the state's forward ends with the last of them. */
static fsdp_status end_module(fsdp__module_state *state, const fsdp_module *module)
{
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i] == module && !state->ran[i]) {
            state->ran[i] = true;
            state->ran_count++;
        }
    /* A module may call itself. */
    return state->ran_count == state->module_count && state->depth == 0 ? leave_forward(state) : FSDP_OK;
}

static fsdp_status exit_forward(fsdp__module_state *state, fsdp_module *module, fsdp_tensor **outputs, int count)
{
    fsdp__root *root = state->root;

    if (is_recomputed(state)) {
        FSDP_TRY(mark_recomputed(state, outputs, count));
        leave_recomputation(state, any_requires_grad(outputs, count));
        return cast_outputs(state, outputs, count);
    }
    FSDP_TRY(end_module(state, module));
    /* Before the cast: then the gradient that its hook sees has been through the cast's backward. */
    FSDP_TRY(make_passages(state, outputs, count));
    root->left = fsdp__recorded(root->context);
    if (root->forward_root && root->forward_root != state)
        FSDP_TRY(fsdp__root_add_exits(root, outputs, count));
    if (root->forward_root == state && state->depth == 0) {
        FSDP_TRY(end_iteration(root));
        FSDP_TRY(fsdp__root_anchor(root, outputs, count));
    }
    return cast_outputs(state, outputs, count);
}

fsdp_status fsdp__hook_post_forward(void *arg, fsdp_module *module, fsdp_tensor *const *inputs, int count,
                                    fsdp_tensor **outputs, int output_count)
{
    fsdp__module_state *state = arg;
    fsdp_status status;

    (void)inputs, (void)count;
    state->depth--;
    status = exit_forward(state, module, outputs, output_count);
    if (status != FSDP_OK)
        state->depth++; /* the module fails now, and calls the hook that ends it */
    return status;
}

/* Abandons a forward that failed inside a backward. What the backward uses stays, and the gradients it has made. */
static void abandon_forward(fsdp__root *root)
{
    for (int64_t i = 0; i < root->state_count; i++) {
        fsdp__module_state *state = root->states[i];

        if (state->training == FSDP__FORWARD) {
            state->training = FSDP__IDLE;
            fsdp__module_state_forget_ran(state);
            fsdp__module_state_reshard(state);
        } else if (state->training != FSDP__PRE_BACKWARD) {
            fsdp__module_state_leave(state);
        }
    }
    fsdp__root_forget_exits(root);
    root->forward_root = NULL;
}

void fsdp__hook_failed(void *arg, fsdp_module *module)
{
    fsdp__module_state *state = arg;

    (void)module;
    state->depth--;
    if (fsdp_recomputing(state->root->context) && is_recomputed(state)) {
        leave_recomputation(state, fsdp__recomputation_done(state->root->context));
        return;
    }
    if (state->root->forward_root != state || state->depth > 0)
        return; /* the outermost module fails too, unless it goes on without this one */
    if (state->root->in_backward)
        abandon_forward(state->root);
    else
        (void)fsdp__root_reset(state->root);
}
