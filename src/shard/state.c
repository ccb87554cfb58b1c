/* state.c - what happens when: a fully_shard call as hooks on its modules.
 *
 *     pre_forward    gather and wait; mark where the backward leaves this module again
 *     post_forward   reshard; remember the order; watch for the gradient of the output
 *     pre_backward   gather and wait; gather the one that comes next
 *     post_backward  reshard; reduce the gradients
 *     end of backward: whoever has not been through post_backward (inputs without gradient, the root), and the rest
 */
#include "base/alloc.h"
#include "shard/shard.h"

fsdp__shard_state *fsdp__state_of(const fsdp_module *module)
{
    return module->parts->shard_state;
}

void fsdp__state_unref(fsdp__shard_state *state)
{
    if (!state || --state->refs > 0)
        return;
    fsdp__group_release(&state->group);
    if (state->tree)
        fsdp__tree_leave(state->tree, state);
    fsdp__free(state->modules);
    fsdp__free(state->ran);
    fsdp__free(state->order_marks);
    fsdp__free(state->name);
    fsdp__free(state);
}

fsdp_status fsdp__state_unshard(fsdp__shard_state *state)
{
    bool sharded = state->group.state == FSDP_SHARDED && state->group.param_count > 0;

    FSDP_TRY(fsdp__group_unshard(&state->group, state->tree));
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

    fsdp__group_reshard(&state->group);
    if (whole)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_RESHARD);
}

/* ---- backward ---- */

static fsdp_status post_backward(void *arg)
{
    fsdp__shard_state *state = arg;
    fsdp__shard_group *group = &state->group;
    bool reduced;

    state->training = FSDP__POST_BACKWARD;
    fsdp__tree_notify(state->tree, state, FSDP_EVENT_POST_BACKWARD);
    if (group->param_count == 0)
        return FSDP_OK;
    fsdp__group_used(group);
    if (group->reshard_after_backward)
        fsdp__state_reshard(state);
    if (!group->reduce_grads)
        return fsdp__group_keep_gradients(group);
    FSDP_TRY(fsdp__group_reduce(group, state->tree, &reduced));
    if (reduced)
        fsdp__tree_notify(state->tree, state, FSDP_EVENT_REDUCE);
    return FSDP_OK;
}

/* Reductions are complete, nothing is gathered that should not be, and this rank may change its shards. */
static fsdp_status finish(fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_group *group = &tree->states[i]->group;

        if (group->device)
            FSDP_TRY(fsdp__tree_finish_reduction(tree, group->device));
        if (group->state == FSDP_GATHERING) /* a prefetch that this backward did not need */
            fsdp__state_reshard(tree->states[i]);
    }
    for (int64_t i = 0; i < tree->state_count; i++)
        FSDP_TRY(fsdp__group_take_turn(&tree->states[i]->group, tree));
    fsdp__tree_forget_order(tree);
    return FSDP_OK;
}

static fsdp_status end_of_backward(void *arg, fsdp_status walked)
{
    fsdp__shard_tree *tree = arg;

    tree->callback_queued = false;
    if (walked != FSDP_OK) {
        (void)fsdp__tree_reset(tree);
        return FSDP_OK; /* the walk's own failure is the one to report */
    }
    for (int64_t i = tree->state_count - 1; i >= 0; i--) {
        fsdp__shard_state *state = tree->states[i];

        if (state->training != FSDP__POST_BACKWARD)
            FSDP_TRY(post_backward(state));
        state->training = FSDP__IDLE;
    }
    return tree->last_backward ? finish(tree) : FSDP_OK;
}

static fsdp_status pre_backward(void *arg, fsdp_tensor *output, fsdp_tensor **grad)
{
    fsdp__shard_state *state = arg, *previous;
    fsdp__shard_tree *tree = state->tree;

    (void)output;
    (void)grad;
    if (!tree->callback_queued) {
        FSDP_TRY(fsdp_backward_queue_callback(tree->context, end_of_backward, tree));
        tree->callback_queued = true;
    }
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

/* Once per iteration, by the outermost module. */
static fsdp_status begin_iteration(fsdp__shard_state *state)
{
    fsdp__shard_tree *tree = state->tree;

    FSDP_TRY(fsdp__tree_initialise(state));
    if (tree->forward_root)
        return FSDP_OK;
    /* Whole parameters that stayed over the optimizer's step lie in common memory: everyone's rows must be there. */
    for (int64_t i = 0; i < tree->state_count; i++) {
        fsdp__shard_group *group = &tree->states[i]->group;

        if (group->state == FSDP_UNSHARDED && group->layout == FSDP__LAYOUT_IN_PLACE && group->ranks > 1) {
            group->use_mark = group->lane->issued;
            FSDP_TRY(fsdp__group_take_turn(group, tree));
            break;
        }
    }
    tree->forward_root = state;
    return FSDP_OK;
}

static fsdp_status pre_forward(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    fsdp__shard_state *state = arg;
    bool recorded;

    (void)module;
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
    return fsdp__boundary(inputs, count, post_backward, state, &recorded);
}

/* All modules of the state have run. */
static fsdp_status leave_forward(fsdp__shard_state *state)
{
    fsdp__shard_tree *tree = state->tree;

    for (int64_t i = 0; i < state->module_count; i++)
        state->ran[i] = false;
    state->ran_count = 0;
    state->training = FSDP__IDLE;
    fsdp__group_used(&state->group);
    if (state->group.reshard_after_forward)
        fsdp__state_reshard(state);
    if (fsdp_grad_enabled(tree->context))
        FSDP_TRY(fsdp__tree_record_order(tree, state));
    fsdp__tree_notify(tree, state, FSDP_EVENT_POST_FORWARD);
    return FSDP_OK;
}

/* The outermost forward ends: groups of which a module did not run are done as well. */
static fsdp_status end_iteration(fsdp__shard_tree *tree)
{
    for (int64_t i = 0; i < tree->state_count; i++)
        if (tree->states[i]->ran_count > 0)
            FSDP_TRY(leave_forward(tree->states[i]));
    tree->forward_root = NULL;
    if (fsdp_grad_enabled(tree->context))
        return FSDP_OK;
    for (int64_t i = 0; i < tree->state_count; i++) /* no reduction will follow */
        FSDP_TRY(fsdp__group_take_turn(&tree->states[i]->group, tree));
    return FSDP_OK;
}

static fsdp_status post_forward(void *arg, fsdp_module *module, fsdp_tensor **output)
{
    fsdp__shard_state *state = arg;
    fsdp__shard_tree *tree = state->tree;

    if (state->training == FSDP__PRE_BACKWARD)
        return cast_floating(output, state->policy.output_dtype);
    for (int64_t i = 0; i < state->module_count; i++)
        if (state->modules[i] == module && !state->ran[i]) {
            state->ran[i] = true;
            state->ran_count++;
        }
    if (state->ran_count == state->module_count)
        FSDP_TRY(leave_forward(state));
    if (fsdp_tensor_requires_grad(*output))
        FSDP_TRY(fsdp_tensor_add_grad_hook(*output, pre_backward, state));
    if (tree->forward_root == state)
        FSDP_TRY(end_iteration(tree));
    return cast_floating(output, state->policy.output_dtype);
}

static void failed(void *arg, fsdp_module *module)
{
    fsdp__shard_state *state = arg;

    (void)module;
    if (state->tree->forward_root == state)
        (void)fsdp__tree_reset(state->tree);
}

/* ---- building ---- */

static fsdp_status materialize(void *arg, fsdp_module *module, fsdp_device *device)
{
    fsdp__shard_state *state = arg;

    (void)module;
    return fsdp__group_allocate(&state->group, device);
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

            if (p->slots[0].field == slot->slot)
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
    FSDP_TRY(fsdp__group_take_turn(group, state->tree));
    return fsdp__module_walk(module, initialize_module, &in);
}

fsdp_status fsdp__state_attach(fsdp__shard_state *state)
{
    for (int64_t i = 0; i < state->module_count; i++) {
        fsdp__module_hooks hooks = {.arg = state,
                                    .pre_forward = pre_forward,
                                    .post_forward = post_forward,
                                    .failed = failed,
                                    .materialize = materialize,
                                    .manages = manages,
                                    .initialize = initialize,
                                    .free_arg = (void (*)(void *))fsdp__state_unref};

        fsdp_status st;

        state->refs++;
        st = fsdp__module_add_hooks(state->modules[i], &hooks);
        if (st != FSDP_OK) {
            fsdp__state_detach(state);
            return st;
        }
        state->modules[i]->parts->shard_state = state;
    }
    return FSDP_OK;
}

void fsdp__state_detach(fsdp__shard_state *state)
{
    for (int64_t i = 0; i < state->module_count; i++) {
        if (state->modules[i]->parts->shard_state != state)
            continue;
        state->modules[i]->parts->shard_state = NULL;
        fsdp__module_remove_hooks(state->modules[i], state);
    }
}
