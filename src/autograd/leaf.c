/* leaf.c - decides where the gradient of a leaf lies.
 *
 * The sharding engine wants gradients in buffers of its own choice, without copies. So an op asks for the place to
 * write to (fsdp__node_target) wherever its kernel can write or accumulate there. */
#include "autograd/node.h"
#include "base/alloc.h"

/* ---- the tensor that becomes the gradient ---- */

static fsdp_status plain_grad(fsdp_tensor *leaf, const fsdp__grad_state *state, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *made = NULL;

    FSDP_TRY(fsdp_tensor_create(leaf->storage->device, fsdp__leaf_grad_dtype(leaf, state), leaf->ndim, leaf->shape,
                                FSDP_MEMORY_GRADIENT, &made));
    if (state->owner)
        FSDP_TRY(state->owner->grad_made(state->owner_arg, leaf, made));
    *out = fsdp__take(&made);
    return FSDP_OK;
}

/* Makes a new gradient, by the source or fresh. A source is not asked again while a tensor of its is reserved: it may
 * well give the same bytes. */
static fsdp_status new_grad(fsdp_tensor *leaf, fsdp__grad_state *state, fsdp_tensor **out)
{
    fsdp_tensor *grad = NULL;

    if (!state->source || state->reserved)
        return plain_grad(leaf, state, out);
    FSDP_TRY(state->source(state->source_arg, leaf, &grad));
    if (!grad || !fsdp__shape_equal(grad, leaf) || grad->dtype != fsdp__leaf_grad_dtype(leaf, state) ||
        !fsdp_tensor_is_contiguous(grad)) {
        fsdp_tensor_unref(grad);
        return FSDP_FAIL(FSDP_STATE, "the gradient source of a leaf gave a tensor that does not fit the leaf");
    }
    *out = grad;
    return FSDP_OK;
}

fsdp_status fsdp__set_grad_source(fsdp_tensor *leaf, fsdp__grad_source source, void *arg)
{
    fsdp__grad_state *state;

    FSDP_TRY(fsdp__grad_state_make(leaf, &state));
    state->source = source;
    state->source_arg = arg;
    return FSDP_OK;
}

fsdp_status fsdp__set_grad_dtype(fsdp_tensor *leaf, fsdp_dtype dtype)
{
    fsdp__grad_state *state;

    FSDP_TRY(fsdp__grad_state_make(leaf, &state));
    state->source_dtype = dtype;
    return FSDP_OK;
}

fsdp_status fsdp__reserve_grad(fsdp_tensor *leaf, fsdp_tensor **out)
{
    fsdp__grad_state *state, *reserved;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *grad = NULL;

    FSDP_TRY(fsdp__grad_state_make(leaf, &state));
    /* A temporary, if it has to be added to something or hooks must see it first. */
    if (state->grad || state->reserved || state->hooks)
        return fsdp_tensor_create(leaf->storage->device, leaf->dtype, leaf->ndim, leaf->shape, FSDP_MEMORY_ACTIVATION,
                                  out);
    FSDP_TRY(new_grad(leaf, state, &grad));
    FSDP_TRY(fsdp__grad_state_make(grad, &reserved));
    state->reserved = reserved;
    reserved->reserved_for = state;
    *out = fsdp__take(&grad);
    return FSDP_OK;
}

bool fsdp__grad_is_reserved(const fsdp_tensor *leaf)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state && state->reserved;
}

/* ---- a gradient arrives ---- */

/* Counts an activation that has become a gradient as one. */
static void become_gradient(fsdp_tensor *tensor)
{
    fsdp__storage *storage = tensor->storage;

    fsdp__device_recount(storage->device, storage->data, FSDP_MEMORY_GRADIENT);
    storage->kind = FSDP_MEMORY_GRADIENT;
}

/* Returns whether `grad` can become the gradient. It must fill a storage of the device's own memory: a gradient lives
 * long, and must not keep more alive than itself. */
static bool adoptable(const fsdp_tensor *leaf, const fsdp_tensor *grad)
{
    return grad->dtype == leaf->dtype && fsdp__grad_exclusive(grad) && !grad->storage->release &&
           grad->storage->bytes == (size_t)fsdp_tensor_numel(grad) * fsdp_dtype_size(grad->dtype);
}

/* Takes the tensor reserved for this leaf, which has arrived; something may have come before it. */
static fsdp_status take_reserved(fsdp__grad_state *state, fsdp_tensor *grad)
{
    state->reserved->reserved_for = NULL;
    state->reserved = NULL;
    if (state->grad) {
        FSDP_TRY(fsdp__tensor_copy(grad, state->grad, true));
        fsdp_tensor_unref(state->grad);
    }
    state->grad = fsdp_tensor_ref(grad);
    return FSDP_OK;
}

/* The caller holds the only reference, apart from references that forbid adopting `grad`. A leaf whose dtype has
 * changed since the forward has its gradients in the new dtype. */
fsdp_status fsdp__leaf_accumulate(fsdp_tensor *leaf, fsdp_tensor *grad)
{
    fsdp__grad_state *state = fsdp__grad_state_get(leaf);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *place = NULL;

    FSDP_TRY(fsdp__hooks_run(state->hooks, leaf, &grad));
    if (state->reserved && state->reserved->tensor == grad) {
        if (grad->dtype == fsdp__leaf_grad_dtype(leaf, state))
            return take_reserved(state, grad);
        state->reserved->reserved_for = NULL;
        state->reserved = NULL;
    }
    if (state->grad) {
        FSDP_TRY(fsdp_tensor_begin_write(state->grad));
        return fsdp__tensor_copy(state->grad, grad, true);
    }
    /* If there is a source, the gradient has to lie where the source says: it will be reduced from there. */
    if (!state->source && adoptable(leaf, grad)) {
        if (state->owner)
            FSDP_TRY(state->owner->grad_made(state->owner_arg, leaf, grad));
        if (grad->storage->kind != FSDP_MEMORY_GRADIENT)
            become_gradient(grad);
        state->grad = fsdp_tensor_ref(grad);
        return FSDP_OK;
    }
    FSDP_TRY(new_grad(leaf, state, &place));
    FSDP_TRY(fsdp__tensor_copy(place, grad, false));
    state->grad = fsdp__take(&place);
    return FSDP_OK;
}

/* ---- targets ---- */

/* Returns whether the leaf's gradient is a target already: an op that has the same leaf as two inputs must not get the
 * same place for both. */
static bool handed_out(const fsdp__node *node, const fsdp_tensor *leaf)
{
    for (int i = 0; i < node->input_count; i++)
        if (node->inputs[i].leaf == leaf && node->inputs[i].target_direct)
            return true;
    return false;
}

/* Returns whether the node saved the gradient's storage: what the op reads must not change while it adds to it. */
static bool is_saved(const fsdp__node *node, const fsdp_tensor *grad)
{
    for (int i = 0; i < node->saved_count; i++)
        if (node->saved[i] && node->saved[i]->storage == grad->storage)
            return true;
    return false;
}

static fsdp_status leaf_target(fsdp__node *node, fsdp__edge *edge, bool any, bool *accumulate)
{
    fsdp__grad_state *state = fsdp__grad_state_get(edge->leaf);
    fsdp_dtype dtype = state->grad ? state->grad->dtype : fsdp__leaf_grad_dtype(edge->leaf, state);

    /* A temporary if the op cannot write in place: hooks see each gradient before it is added, and the leaf's dtype may
     * have changed since the forward. */
    if (state->hooks || handed_out(node, edge->leaf) || edge->leaf->dtype != edge->dtype ||
        (!any && dtype != edge->dtype) ||
        (state->grad && (!fsdp_tensor_is_contiguous(state->grad) || is_saved(node, state->grad))))
        return fsdp_tensor_create(edge->device, edge->dtype, edge->ndim, edge->shape, FSDP_MEMORY_ACTIVATION,
                                  &edge->target);
    if (state->grad) {
        FSDP_TRY(fsdp_tensor_begin_write(state->grad));
        *accumulate = true;
    } else {
        FSDP_TRY(new_grad(edge->leaf, state, &state->grad));
        edge->target_installed = true;
    }
    edge->target = fsdp_tensor_ref(state->grad);
    edge->target_direct = true;
    return FSDP_OK;
}

static fsdp_status target_of(fsdp__node *node, int input, bool any, fsdp_tensor **out, bool *accumulate)
{
    fsdp__edge *edge = &node->inputs[input];

    *accumulate = false;
    if (edge->target || edge->given || (!edge->leaf && !edge->node))
        return FSDP_FAIL(FSDP_STATE,
                         "there is no target for the gradient of input %d: it is not wanted, or was given already",
                         input);
    if (edge->leaf) {
        FSDP_TRY(leaf_target(node, edge, any, accumulate));
    } else if (edge->node->grads[edge->output] && fsdp__grad_exclusive(edge->node->grads[edge->output])) {
        edge->target = fsdp_tensor_ref(edge->node->grads[edge->output]);
        edge->target_direct = true;
        *accumulate = true;
    } else {
        FSDP_TRY(fsdp_tensor_create(edge->device, edge->dtype, edge->ndim, edge->shape, FSDP_MEMORY_ACTIVATION,
                                    &edge->target));
    }
    *out = edge->target;
    return FSDP_OK;
}

fsdp_status fsdp__node_target(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate)
{
    return target_of(node, input, false, out, accumulate);
}

fsdp_status fsdp__node_target_of_any(fsdp__node *node, int input, fsdp_tensor **out, bool *accumulate)
{
    return target_of(node, input, true, out, accumulate);
}

fsdp_status fsdp__node_commit_targets(fsdp__node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        fsdp__edge *edge = &node->inputs[i];
        fsdp_tensor *target = edge->target;
        bool direct = edge->target_direct;

        if (!target)
            continue;
        edge->target = NULL;
        edge->target_direct = edge->target_installed = false;
        if (direct) {
            fsdp_tensor_unref(target);
        } else if (edge->leaf) {
            edge->given = target;
        } else {
            fsdp_status status = fsdp__node_add_grad(edge->node, edge->output, target);

            fsdp_tensor_unref(target);
            FSDP_TRY(status);
        }
    }
    return FSDP_OK;
}

fsdp_status fsdp__node_commit_leaves(fsdp__node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        fsdp__edge *edge = &node->inputs[i];
        fsdp_tensor *given = edge->given;
        fsdp_status status;

        if (!given)
            continue;
        edge->given = NULL;
        status = fsdp__leaf_accumulate(edge->leaf, given);
        fsdp_tensor_unref(given);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

void fsdp__node_rollback(fsdp__node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        fsdp__edge *edge = &node->inputs[i];

        if (edge->target_installed)
            fsdp__put_grad(edge->leaf, NULL);
        fsdp_tensor_unref(edge->target);
        fsdp_tensor_unref(edge->given);
        edge->target = edge->given = NULL;
        edge->target_direct = edge->target_installed = false;
    }
}

/* ---- uses ---- */

static fsdp__grad_state *asking(const fsdp__edge *edge)
{
    fsdp__grad_state *state = edge->leaf ? fsdp__grad_state_get(edge->leaf) : NULL;

    return state && state->owner && state->owner->grad_complete ? state : NULL;
}

void fsdp__node_count_leaves(fsdp__node *node)
{
    for (int i = 0; i < node->input_count; i++) {
        fsdp__grad_state *state = asking(&node->inputs[i]);

        if (state) {
            state->uses++;
            node->counted = true;
        }
    }
}

void fsdp__node_uncount_leaves(fsdp__node *node)
{
    for (int i = 0; i < node->input_count && node->counted; i++) {
        fsdp__grad_state *state = asking(&node->inputs[i]);

        if (state && state->uses > 0)
            state->uses--;
    }
    node->counted = false;
}

fsdp_status fsdp__node_complete_leaves(fsdp__node *node)
{
    int count = node->input_count;

    if (!node->counted)
        return FSDP_OK;
    fsdp__node_uncount_leaves(node);
    for (int i = 0; i < count; i++) {
        fsdp__edge *edge = &node->inputs[node->traits->last_leaf_first ? count - 1 - i : i];
        fsdp__grad_state *state = asking(edge);

        if (state && state->uses == 0)
            FSDP_TRY(state->owner->grad_complete(state->owner_arg, edge->leaf));
    }
    return FSDP_OK;
}

int64_t fsdp__leaf_uses(const fsdp_tensor *leaf)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(leaf);

    return state ? state->uses : 0;
}
