/* forward.c - the schedule of a forward. */
#include "shard/state/forward.h"

#include "autograd/autograd.h"
#include "base/compiler.h"
#include "shard/state/backward.h"
#include "shard/state/give_back.h"
#include "shard/state/iteration.h"
#include "shard/state/lazy_init.h"
#include "shard/state/prefetch.h"
#include "shard/state/trained_parameters.h"

/* ---- casts and moves of inputs and outputs ---- */

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

/* Cast floating inputs, and outputs, to the dtypes that the state's policy asks for. */
static fsdp_status cast_inputs(fsdp__module_state *state, fsdp_tensor **inputs, int count)
{
    fsdp_dtype dtype = state->full_precision ? own_dtype(state) : state->policy.param_dtype;
    bool casts = !state->policy.keep_forward_inputs || (state->casts_root_inputs && state->root->state == state);

    if (state->full_precision && count > 0)
        state->came_in = fsdp_dtype_is_floating(inputs[0]->dtype) ? inputs[0]->dtype : FSDP_DTYPE_NONE;
    for (int i = 0; i < count && (casts || state->full_precision); i++)
        FSDP_TRY(cast_floating(&inputs[i], dtype));
    return FSDP_OK;
}

static fsdp_status cast_outputs(const fsdp__module_state *state, fsdp_tensor **outputs, int count)
{
    fsdp_dtype dtype = state->full_precision ? state->came_in : state->policy.output_dtype;

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
        FSDP__TRY_MADE(inputs[i] = fsdp_to_device(inputs[i], device));
    }
    return FSDP_OK;
}

/* ---- forwards ---- */

/* Drops the reference of a graph that was to call the state. */
static void unref_state(void *state)
{
    fsdp__module_state_unref(state);
}

/* Unshards, which all ranks do together. If this rank may be alone here, the parent has done it. */
static fsdp_status unshard_for_forward(fsdp__module_state *state)
{
    if (!fsdp__module_state_is_alone(state))
        FSDP_TRY(fsdp__module_state_unshard(state));
    return fsdp__module_state_wait(state);
}

/* Returns whether the forward runs again for a backward, inside it (fsdp_recompute). */
static bool is_recomputed(const fsdp__module_state *state)
{
    const fsdp_context *context = state->root->context;

    return state->training == FSDP__PRE_BACKWARD || (fsdp_recomputing(context) && fsdp_grad_enabled(context));
}

static fsdp_status enter_forward(fsdp__module_state *state, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    bool first = state->training != FSDP__FORWARD, recorded = false, alone = fsdp__module_state_is_alone(state);

    if (is_recomputed(state)) {
        FSDP_TRY(unshard_for_forward(state));
        return cast_inputs(state, inputs, count);
    }
    if (!state->root->agreed) /* it ran, or had values, before it was sharded */
        FSDP_TRY(fsdp__begin_together(state, module, FSDP_OK));
    if (!alone)
        FSDP_TRY(fsdp__begin_iteration(state->root, state));
    if (state->door->begin_forward && state->root->forward_root == state && first)
        FSDP_TRY(state->door->begin_forward(state, fsdp_grad_enabled(state->root->context)));
    state->training = FSDP__FORWARD;
    state->used_in = state->root->iteration;
    fsdp__module_state_notify(state, FSDP_EVENT_PRE_FORWARD);
    if (state->root->forward_root == state && state->depth == 1)
        FSDP_TRY(move_inputs(state->root, inputs, count));
    FSDP_TRY(cast_inputs(state, inputs, count));
    FSDP_TRY(unshard_for_forward(state));
    state->entered = fsdp__recorded(state->root->context);
    if (first) /* the first of several modules: the backward comes to it last */
        FSDP_TRY(fsdp__boundary(
            inputs, count, &(fsdp__crossing){fsdp__leave_backward, fsdp__will_leave_backward, state, unref_state, NULL},
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

/* Ends the forward of a state when all of its modules have run, and those of the conditional states below it that this
 * rank entered. */
static fsdp_status leave_forward(fsdp__module_state *state)
{
    fsdp__root *root = state->root;
    fsdp__module_state *child;
    fsdp_status status;

    for (int64_t at = 0; (child = fsdp__module_state_next_child(state, &at));)
        if (child->training == FSDP__FORWARD)
            FSDP_TRY(leave_forward(child));
    fsdp__module_state_forget_ran(state);
    state->leaving = true;
    status = fsdp__module_state_reshard_after_forward(state);
    state->leaving = false;
    FSDP_TRY(status);
    fsdp__give_back(root);
    state->training = FSDP__IDLE;
    if (state->door->end_forward)
        state->door->end_forward(state, fsdp_grad_enabled(root->context));
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
    FSDP__SCOPED(fsdp__trained_unref_at) fsdp__trained *trained = NULL;

    FSDP_TRY(fsdp__trained_now(state, &trained));
    return require_gradient(trained, outputs, count);
}

/* Makes the backward call fsdp__enter_backward at `output`. The graph gets a reference to `trained`. */
static fsdp_status make_passage(fsdp__module_state *state, fsdp__trained *trained, fsdp_tensor *output)
{
    fsdp_status status;

    if (!output || !fsdp_tensor_requires_grad(output))
        return FSDP_OK;
    trained->refs++;
    (void)fsdp__module_state_ref(state);
    status = fsdp__add_grad_hook(output, fsdp__enter_backward, trained, unref_passage);
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
    FSDP__SCOPED(fsdp__trained_unref_at) fsdp__trained *trained = NULL;

    if (!fsdp_grad_enabled(state->root->context))
        return FSDP_OK;
    FSDP_TRY(fsdp__trained_now(state, &trained));
    for (int i = 0; i < count; i++)
        if (outputs[i] && (count > 1 || !is_last(state, outputs[i])))
            FSDP_TRY(fsdp__anchor(&outputs[i], NULL, 0));
    FSDP_TRY(require_gradient(trained, outputs, count));
    for (int i = 0; i < count; i++)
        FSDP_TRY(make_passage(state, trained, outputs[i]));
    return FSDP_OK;
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

/* Ends a second run. What is gathered stays until the backward has come through the modules, if it will. */
static void leave_recomputation(fsdp__module_state *state, bool will_come)
{
    if (state->training == FSDP__POST_BACKWARD && state->to_come == 0)
        will_come = false;
    /* A state with a parent is resharded with it, on all ranks. */
    if (!will_come && state->depth == 0 && !state->parent)
        fsdp__module_state_reshard_after_backward(state);
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
    /* This comes before the cast: then the gradient that its hook sees has been through the cast's backward. */
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
