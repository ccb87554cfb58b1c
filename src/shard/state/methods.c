/* methods.c - methods of a sharded module, whichever front door it came through. */
#include "shard/state/methods.h"

#include "shard/reduce/gradients.h"
#include "shard/reduce/owner.h"
#include "shard/state/prefetch.h"

fsdp_status fsdp__method_state(fsdp_module *module, fsdp__module_state **out)
{
    if (!module)
        return FSDP_FAIL(FSDP_INVALID, "a module is required");
    *out = fsdp__module_state_of(module);
    if (!*out)
        return FSDP_FAIL(FSDP_STATE, "this %s was not given to fully_shard, nor to fsdp_fsdp1_wrap or fsdp_replicate",
                         module->type->name);
    return FSDP_OK;
}

typedef struct visit {
    fsdp_status (*function)(void *arg, fsdp__module_state *state);
    void *arg;
} visit;

static fsdp_status visit_module(void *arg, fsdp_module *module, const char *name)
{
    fsdp__module_state *state = fsdp__module_state_of(module);
    const visit *v = arg;

    (void)name;
    return state ? v->function(v->arg, state) : FSDP_OK;
}

fsdp_status fsdp__each_state(fsdp_module *module, bool recurse,
                             fsdp_status (*function)(void *arg, fsdp__module_state *state), void *arg)
{
    visit v = {function, arg};

    return recurse ? fsdp__module_walk(module, visit_module, &v) : visit_module(&v, module, "");
}

typedef struct change {
    void (*apply)(fsdp__module_state *state, int value);
    int value;
} change;

static fsdp_status apply_change(void *arg, fsdp__module_state *state)
{
    const change *c = arg;

    c->apply(state, c->value);
    return FSDP_OK;
}

/* Applies a change to the module's state and, with `recurse`, to the states of the modules below. */
static fsdp_status change_states(fsdp_module *module, bool recurse, void (*apply)(fsdp__module_state *, int), int value)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    return fsdp__each_state(module, recurse, apply_change, &(change){apply, value});
}

static fsdp_status set_prefetch(fsdp_module *module, bool forward, fsdp_module *const *modules, int count)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (state->parent && count > 0)
        return FSDP_FAIL(
            FSDP_UNSUPPORTED,
            "'%s' is conditional: ranks that do not enter it would not gather what it prefetches: list it for '%s'",
            state->name, *state->parent->name ? state->parent->name : "the root");
    return fsdp__prefetch_set(state, forward ? &state->forward_prefetch : &state->backward_prefetch, modules, count);
}

fsdp_status fsdp_module_set_modules_to_forward_prefetch(fsdp_module *module, fsdp_module *const *modules, int count)
{
    return set_prefetch(module, true, modules, count);
}

fsdp_status fsdp_module_set_modules_to_backward_prefetch(fsdp_module *module, fsdp_module *const *modules, int count)
{
    return set_prefetch(module, false, modules, count);
}

fsdp_status fsdp_module_set_post_optim_event(fsdp_module *module, fsdp_event *event)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (state->root->state != state)
        return FSDP_FAIL(FSDP_STATE, "only the outermost sharded module takes the event after the optimizer");
    state->comm->after_optim = event;
    return FSDP_OK;
}

static void set_max_inputs(fsdp__module_state *state, int most)
{
    state->max_inputs = most;
    fsdp__root_choose_max_inputs(state->root);
}

fsdp_status fsdp_module_set_reduce_scatter_max_inputs(fsdp_module *module, int most, bool recurse)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (most < 1)
        return FSDP_FAIL(FSDP_INVALID, "%d reductions in flight: expected at least 1", most);
    return change_states(module, recurse, set_max_inputs, most);
}

static void set_gradient_sync(fsdp__module_state *state, int sync)
{
    state->reduce_grads = state->reduction.all_reduce = sync;
}

fsdp_status fsdp_module_set_requires_gradient_sync(fsdp_module *module, bool sync, bool recurse)
{
    return change_states(module, recurse, set_gradient_sync, sync);
}

static void set_all_reduce(fsdp__module_state *state, int on)
{
    state->reduction.all_reduce = on;
}

fsdp_status fsdp_module_set_requires_all_reduce(fsdp_module *module, bool on, bool recurse)
{
    return change_states(module, recurse, set_all_reduce, on);
}

fsdp_status fsdp_module_set_is_last_backward(fsdp_module *module, bool last)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    fsdp__root_set_last_backward(state->root, last);
    return FSDP_OK;
}

static void set_reshard_after_forward(fsdp__module_state *state, int on)
{
    state->reshard = on ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_NEVER; /* no longer automatic */
    state->reshard_after_forward = on;
    state->slice_ranks = 0;
}

fsdp_status fsdp_module_set_reshard_after_forward(fsdp_module *module, bool on, bool recurse)
{
    return change_states(module, recurse, set_reshard_after_forward, on);
}

fsdp_status fsdp_module_set_conditional(fsdp_module *module, bool conditional)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (state->initialised)
        return FSDP_FAIL(FSDP_STATE, "'%s' has run: whether it is conditional must be set before the first forward",
                         state->name);
    state->conditional = conditional;
    return FSDP_OK;
}

static void set_reshard_after_backward(fsdp__module_state *state, int on)
{
    state->reshard_after_backward = on;
}

fsdp_status fsdp_module_set_reshard_after_backward(fsdp_module *module, bool on, bool recurse)
{
    return change_states(module, recurse, set_reshard_after_backward, on);
}

fsdp_status fsdp_module_set_unshard_in_backward(fsdp_module *module, bool unshard)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    state->unshard_in_backward = unshard;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_gradient_divide_factor(fsdp_module *module, float factor)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (!(factor >= 0))
        return FSDP_FAIL(FSDP_INVALID, "gradient divide factor %g: expected a positive number, or 0 for the default",
                         (double)factor);
    state->reduction.divide_factor = factor;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_force_sum_reduction(fsdp_module *module, bool on)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    state->reduction.force_sum = on;
    return FSDP_OK;
}

fsdp_status fsdp_module_set_all_reduce_hook(fsdp_module *module, fsdp_all_reduce_hook hook, void *arg)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    state->reduction.hook = hook;
    state->reduction.hook_arg = arg;
    return FSDP_OK;
}

typedef struct landed_hook {
    fsdp_post_accumulate_grad_hook function;
    void *arg;
} landed_hook;

static fsdp_status set_landed(void *arg, fsdp__module_state *state)
{
    const landed_hook *hook = arg;

    return fsdp__landed_hook_set(&state->reduction.landed, hook->function, hook->arg);
}

fsdp_status fsdp_module_set_post_accumulate_grad_hook(fsdp_module *module, fsdp_post_accumulate_grad_hook hook,
                                                      void *arg, bool recurse)
{
    landed_hook set = {hook, arg};
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    return fsdp__each_state(module, recurse, set_landed, &set);
}

int fsdp_parameter_pending_gradients(const fsdp_tensor *parameter)
{
    const fsdp__param *param = parameter ? fsdp__param_of(parameter) : NULL;

    if (!param || !param->unsharded)
        return 0;
    return (fsdp__param_unreduced(param) ? FSDP_PENDING_UNREDUCED : 0) |
           (param->partial_used ? FSDP_PENDING_PARTIAL : 0);
}

/* Reduces what is pending. For the second and later modules of one state nothing is left. */
static fsdp_status reduce_pending(void *unused, fsdp__module_state *state)
{
    (void)unused;
    return fsdp__module_state_reduce_pending(state);
}

static fsdp_status check_idle(const fsdp__root *root)
{
    for (int64_t i = 0; i < root->state_count; i++)
        if (root->states[i]->training != FSDP__IDLE)
            return FSDP_FAIL(FSDP_STATE, "cannot synchronize gradients while a %s runs",
                             root->states[i]->training == FSDP__FORWARD ? "forward" : "backward");
    return FSDP_OK;
}

fsdp_status fsdp_module_synchronize_gradients(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    FSDP_TRY(check_idle(state->root));
    FSDP_TRY(fsdp__each_state(module, true, reduce_pending, NULL));
    return fsdp__root_finish_reductions(state->root);
}

fsdp_status fsdp_module_reset_iteration(fsdp_module *module)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (state->root->state != state)
        return FSDP_FAIL(FSDP_STATE, "only the outermost sharded module can reset an iteration");
    return fsdp__root_reset(state->root);
}

bool fsdp_module_is_sharded(fsdp_module *module)
{
    return module && fsdp__module_state_of(module);
}

static void add_group(const fsdp__param_group *group, fsdp_shard_info *out)
{
    int ranks = group->residence.mesh.ranks;

    out->parameter_count += group->param_count;
    out->gather_ns += group->gathers.ns;
    out->offloaded = out->offloaded || fsdp__residence_is_offloaded(&group->residence);
    out->shares_memory = out->shares_memory && group->residence.kind == FSDP__RESIDENCE_IN_PLACE && ranks > 1;
    for (int64_t i = 0; i < group->param_count; i++) {
        out->numel += fsdp__param_numel(&group->params[i]);
        out->shard_numel += fsdp__param_shard_numel(&group->params[i]);
    }
    for (int64_t i = 0; i < group->buffer_count; i++)
        out->padded_numel += group->buffers[i].chunk_numel * ranks;
}

fsdp_status fsdp_module_shard_info(fsdp_module *module, fsdp_shard_info *out)
{
    fsdp__module_state *state;

    FSDP_TRY(fsdp__method_state(module, &state));
    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot describe a module's shards: there is no place for the description");
    *out = (fsdp_shard_info){
        .name = state->name, .shares_memory = state->group_count > 0, .keeps_unsharded = state->keeps_unsharded};
    for (int64_t i = 0; i < state->group_count; i++) {
        fsdp_sharded_state least = state->groups[i]->sharded_state; /* unsharded only if all groups are */

        out->state = i == 0 || least < out->state ? least : out->state;
        add_group(state->groups[i], out);
    }
    return FSDP_OK;
}

fsdp_status fsdp_module_exposed_time(fsdp_module *module, int64_t *gather_ns, int64_t *reduce_ns)
{
    fsdp__module_state *state;
    fsdp__comm_context *comm;

    FSDP_TRY(fsdp__method_state(module, &state));
    comm = state->comm;
    FSDP_TRY(fsdp__root_add_up_gathers(state->root));
    FSDP_TRY(fsdp__exposed_sum(&comm->reductions));
    comm->reductions.asked = true;
    if (gather_ns)
        *gather_ns = comm->gather_ns;
    if (reduce_ns)
        *reduce_ns = comm->reductions.ns;
    return FSDP_OK;
}

/* Passes on what happens to a state of the root, with the first of its modules that there is. */
static fsdp_status pass_on(void *arg, fsdp__probe_event *e)
{
    const fsdp__root *root = arg;
    const fsdp__module_state *state = e->object;

    for (int64_t i = 0; state->root == root && i < state->module_count; i++)
        if (state->modules[i]) {
            root->listener(root->listener_arg, state->modules[i], (fsdp_shard_event)e->kind);
            break;
        }
    return FSDP_OK;
}

fsdp_status fsdp_module_set_shard_listener(fsdp_module *module, fsdp_shard_listener listener, void *arg)
{
    fsdp__module_state *state;
    fsdp__root *root;

    FSDP_TRY(fsdp__method_state(module, &state));
    root = state->root;
    fsdp__unsubscribe(root->subscriber);
    root->listener = listener;
    root->listener_arg = arg;
    root->subscriber =
        listener ? fsdp__context_subscribe(root->context, FSDP__POINT_BIT(FSDP__POINT_SHARD_CHANGED), pass_on, root)
                 : NULL;
    return !listener || root->subscriber ? FSDP_OK : FSDP_NO_MEMORY;
}
