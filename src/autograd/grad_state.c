/* grad_state.c - what a tensor knows about gradients: whether it requires one, its gradient, its hooks, its history. */
#include "autograd/node.h"
#include "base/alloc.h"

static void grad_state_free(void *pointer)
{
    fsdp__grad_state *state = pointer;

    if (state->reserved)
        state->reserved->reserved_for = NULL;
    if (state->reserved_for)
        state->reserved_for->reserved = NULL;
    if (state->producer) {
        state->producer->outputs[state->output].state = NULL;
        fsdp__node_unref(state->producer);
    }
    fsdp_tensor_unref(state->grad);
    fsdp__hooks_free(state->hooks);
    fsdp__free(state);
}

fsdp__grad_state *fsdp__grad_state_get(const fsdp_tensor *tensor)
{
    return tensor->autograd.state;
}

fsdp_status fsdp__grad_state_make(fsdp_tensor *tensor, fsdp__grad_state **out)
{
    fsdp__grad_state *state = tensor->autograd.state;

    if (!state) {
        FSDP__TRY_NEW(state = fsdp__calloc(1, sizeof *state));
        state->tensor = tensor;
        tensor->autograd = (fsdp__attachment){.state = state, .free_state = grad_state_free};
    }
    *out = state;
    return FSDP_OK;
}

/* ---- hooks ---- */

static fsdp_status add_hook(fsdp_tensor *tensor, fsdp__hook made)
{
    fsdp__grad_state *state = tensor ? fsdp__grad_state_get(tensor) : NULL;

    if (!tensor || !made.call)
        return FSDP_FAIL(FSDP_INVALID, "a gradient hook needs a tensor and a function");
    if (!state || !state->requires_grad)
        return FSDP_FAIL(FSDP_INVALID, "cannot add a gradient hook: the tensor does not require a gradient");
    if (state->recomputed) { /* the node of the first run has the hook already */
        if (made.free_arg)
            made.free_arg(made.arg);
        return FSDP_OK;
    }
    /* On the node they live as long as the graph, even if the tensor itself is freed. */
    return fsdp__hooks_append(state->producer ? &state->producer->outputs[state->output].hooks : &state->hooks, &made);
}

fsdp_status fsdp__add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg, void (*free_arg)(void *arg))
{
    return add_hook(tensor, (fsdp__hook){.call = hook, .arg = arg, .free_arg = free_arg, .always = true});
}

fsdp_status fsdp_tensor_add_grad_hook(fsdp_tensor *tensor, fsdp_grad_hook hook, void *arg)
{
    return add_hook(tensor, (fsdp__hook){.call = hook, .arg = arg});
}

bool fsdp__has_grad_hooks(const fsdp_tensor *leaf)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->hooks;
}

bool fsdp__has_lasting_hooks(const fsdp_tensor *tensor)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(tensor);
    const fsdp__hook *hook = NULL;

    if (state)
        hook = state->producer ? state->producer->outputs[state->output].hooks : state->hooks;
    while (hook && !hook->always)
        hook = hook->next;
    return hook != NULL;
}

void fsdp__drop_lasting_hooks(fsdp_tensor *leaf)
{
    fsdp__grad_state *state = fsdp__grad_state_get(leaf);
    fsdp__hook **link = state ? &state->hooks : NULL;

    while (link && *link) {
        fsdp__hook *hook = *link;

        if (!hook->always) {
            link = &hook->next;
            continue;
        }
        *link = hook->next;
        hook->next = NULL;
        fsdp__hooks_free(hook);
    }
}

/* ---- owners ---- */

fsdp_status fsdp__set_leaf_owner(fsdp_tensor *leaf, const fsdp__leaf_owner *owner, void *arg)
{
    fsdp__grad_state *state;

    FSDP_TRY(fsdp__grad_state_make(leaf, &state));
    state->owner = owner;
    state->owner_arg = arg;
    return FSDP_OK;
}

void *fsdp__leaf_owner_arg(const fsdp_tensor *leaf, const fsdp__leaf_owner *owner)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->owner == owner ? state->owner_arg : NULL;
}

bool fsdp__leaf_is_owned(const fsdp_tensor *leaf)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->owner;
}

bool fsdp__leaf_is_part(const fsdp_tensor *leaf)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->owner && state->owner->is_part && state->owner->is_part(state->owner_arg, leaf);
}

bool fsdp__leaf_part_at(const fsdp_tensor *leaf, int64_t index, fsdp__leaf_part *out)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->owner && state->owner->part && state->owner->part(state->owner_arg, index, out);
}

/* ---- properties ---- */

fsdp_status fsdp_tensor_set_requires_grad(fsdp_tensor *tensor, bool requires_grad)
{
    fsdp__grad_state *state;

    if (!tensor)
        return FSDP_FAIL(FSDP_INVALID, "set_requires_grad: no tensor");
    if (requires_grad && !fsdp_dtype_is_floating(tensor->dtype))
        return FSDP_FAIL(FSDP_INVALID, "only floating tensors can require a gradient, not %s",
                         fsdp_dtype_name(tensor->dtype));
    state = fsdp__grad_state_get(tensor);
    if (!state && !requires_grad)
        return FSDP_OK;
    if (state && state->producer && !requires_grad)
        return FSDP_FAIL(FSDP_STATE, "cannot switch off the gradient of what %s made: use fsdp_detach",
                         state->producer->op->name);
    FSDP_TRY(fsdp__grad_state_make(tensor, &state));
    state->requires_grad = requires_grad;
    if (state->owner)
        state->owner->requires_grad_set(state->owner_arg, requires_grad);
    return FSDP_OK;
}

void fsdp__mirror_requires_grad(fsdp_tensor *leaf, bool requires_grad)
{
    fsdp__grad_state_get(leaf)->requires_grad = requires_grad;
}

bool fsdp_tensor_requires_grad(const fsdp_tensor *tensor)
{
    const fsdp__grad_state *state = tensor ? fsdp__grad_state_get(tensor) : NULL;

    return state && state->requires_grad;
}

bool fsdp__will_record(fsdp_tensor *const *inputs, int input_count)
{
    for (int i = 0; i < input_count; i++)
        if (inputs[i] && fsdp_tensor_requires_grad(inputs[i]))
            return fsdp_grad_enabled(fsdp__tensor_context(inputs[i]));
    return false;
}

bool fsdp_tensor_is_leaf(const fsdp_tensor *tensor)
{
    const fsdp__grad_state *state = tensor ? fsdp__grad_state_get(tensor) : NULL;

    return !state || (!state->producer && !state->recomputed);
}

fsdp_tensor *fsdp_tensor_grad(const fsdp_tensor *tensor)
{
    const fsdp__grad_state *state = tensor ? fsdp__grad_state_get(tensor) : NULL;

    return state ? state->grad : NULL;
}

void fsdp__put_grad(fsdp_tensor *leaf, fsdp_tensor *grad)
{
    fsdp__grad_state *state = fsdp__grad_state_get(leaf);
    fsdp_tensor *before = state ? state->grad : NULL;

    if (state)
        state->grad = fsdp_tensor_ref(grad);
    fsdp_tensor_unref(before); /* last, since it may be the same */
}

fsdp_status fsdp_tensor_set_grad(fsdp_tensor *tensor, fsdp_tensor *grad)
{
    fsdp__grad_state *state;

    if (!tensor)
        return FSDP_FAIL(FSDP_INVALID, "set_grad: no tensor");
    if (!grad && !fsdp__grad_state_get(tensor))
        return FSDP_OK;
    if (grad && (!fsdp__shape_equal(tensor, grad) || tensor->dtype != grad->dtype ||
                 tensor->storage->device != grad->storage->device))
        return FSDP_FAIL(FSDP_INVALID, "a %s tensor %s on %s cannot have a %s gradient %s on %s%s",
                         fsdp_dtype_name(tensor->dtype), FSDP__SHAPE_OF(tensor),
                         fsdp_device_name(tensor->storage->device), fsdp_dtype_name(grad->dtype), FSDP__SHAPE_OF(grad),
                         fsdp_device_name(grad->storage->device),
                         fsdp__device_elsewhere(grad->storage->device, tensor->storage->device));
    for (const fsdp_tensor *held = grad; held; held = fsdp_tensor_grad(held))
        if (held == tensor)
            return FSDP_FAIL(FSDP_INVALID,
                             "a tensor cannot be its own gradient, or that of its gradient: it would never be freed");
    FSDP_TRY(fsdp__grad_state_make(tensor, &state));
    if (state->producer)
        return FSDP_FAIL(FSDP_STATE, "only leaves keep a gradient; this tensor was made by %s",
                         state->producer->op->name);
    if (grad && state->owner)
        FSDP_TRY(state->owner->grad_made(state->owner_arg, tensor, grad));
    fsdp__put_grad(tensor, grad);
    if (state->owner)
        state->owner->grad_set(state->owner_arg, tensor);
    return FSDP_OK;
}

fsdp_tensor *fsdp_detach(fsdp_tensor *tensor)
{
    fsdp_tensor *alias = NULL;

    if (!tensor || fsdp__tensor_alias(tensor, &alias) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(alias);
}

bool fsdp__grad_exclusive(const fsdp_tensor *grad)
{
    return grad->refs == 1 && grad->storage->refs == 1 && fsdp_tensor_is_contiguous(grad) && !fsdp__grad_is_one(grad);
}

bool fsdp__grad_is_one(const fsdp_tensor *grad)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(grad);

    return state && state->is_one;
}

fsdp_dtype fsdp__leaf_grad_dtype(const fsdp_tensor *leaf, const fsdp__grad_state *state)
{
    return state && state->source && state->source_dtype != FSDP_DTYPE_NONE ? state->source_dtype : leaf->dtype;
}

bool fsdp__leaf_takes(const fsdp_tensor *leaf, const fsdp_tensor *grad)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return grad->dtype == leaf->dtype || grad->dtype == fsdp__leaf_grad_dtype(leaf, state) ||
           (state && state->reserved && state->reserved->tensor == grad);
}
