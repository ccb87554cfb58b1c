/* boundary.c - nodes that compute nothing and notify somebody when the backward reaches them.
 *
 * [Note: anchors]
 * A backward walks what its roots were made from. An anchor is an identity with other nodes beside it. They are walked
 * too, at their places in the order, as if they had been used and no gradient had come. A node that is reached only in
 * this way is not used up by it: a later backward may go through it for its gradients. */
#include "autograd/node.h"
#include "base/alloc.h"

static fsdp_status give_all(fsdp__node *node, fsdp_tensor *const *grads)
{
    for (int i = 0; i < node->output_count; i++)
        if (grads[i])
            FSDP_TRY(fsdp__node_give(node, i, grads[i]));
    return FSDP_OK;
}

static fsdp_status show_gradients(fsdp__node *node, const fsdp__crossing *crossing, fsdp_tensor *const *grads)
{
    int count = node->output_count;
    FSDP__FREED fsdp_tensor **shown = fsdp__malloc((size_t)count * sizeof *shown);
    bool any = false;

    FSDP__TRY_NEW(shown);
    for (int i = 0; i < count; i++) {
        shown[i] = grads[i];
        any = any || grads[i];
    }
    if (any)
        FSDP_TRY(crossing->gradients(crossing->arg, shown, count));
    return give_all(node, shown);
}

static fsdp_status boundary_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const fsdp__crossing *state = fsdp__node_state(node);

    if (state->callback)
        FSDP_TRY(state->callback(state->arg));
    return state->gradients ? show_gradients(node, state, grads) : give_all(node, grads);
}

static void boundary_free(void *pointer)
{
    const fsdp__crossing *state = pointer;

    if (state->free_arg)
        state->free_arg(state->arg);
}

static void boundary_reached(fsdp__node *node)
{
    const fsdp__crossing *state = fsdp__node_state(node);

    if (state->reached)
        state->reached(state->arg);
}

static const fsdp__op boundary_op = {.name = "boundary", .backward = boundary_backward, .free_state = boundary_free};
static const fsdp__traits boundary_traits = {.always = true, .reached = boundary_reached};

fsdp_status fsdp__boundary(fsdp_tensor **tensors, int count, const fsdp__crossing *crossing, bool *recorded)
{
    FSDP__FREED fsdp_tensor **inputs = NULL;
    fsdp_tensor **outputs;
    int wanted = 0;

    *recorded = false;
    if (!fsdp__will_record(tensors, count))
        return FSDP_OK;
    FSDP__TRY_NEW(inputs = fsdp__malloc(2 * (size_t)count * sizeof(fsdp_tensor *)));
    outputs = inputs + count;
    for (int i = 0; i < count; i++) {
        fsdp_tensor *alias = NULL;

        if (!tensors[i] || !fsdp_tensor_requires_grad(tensors[i]))
            continue;
        FSDP_TRY(fsdp__tensor_alias(tensors[i], &alias));
        inputs[wanted] = tensors[i];
        FSDP__TRY_NEW(outputs[wanted++] = fsdp__scope_adopt(alias));
    }
    FSDP_TRY(fsdp__record_with(&boundary_traits, &boundary_op, inputs, wanted, outputs, wanted, NULL, 0, crossing,
                               sizeof *crossing));
    for (int i = 0, j = 0; j < wanted; i++)
        if (tensors[i] == inputs[j])
            tensors[i] = outputs[j++];
    *recorded = true;
    return FSDP_OK;
}

/* ---- anchors ---- */

static const fsdp__op anchor_op = {.name = "anchor", .backward = fsdp__node_pass_on};
static const fsdp__traits anchor_traits = {.aside = 1};

fsdp__node *fsdp__producer(const fsdp_tensor *tensor)
{
    const fsdp__grad_state *state = fsdp__grad_state_get(tensor);

    return state && state->producer ? fsdp__node_ref(state->producer) : NULL;
}

fsdp_status fsdp__anchor(fsdp_tensor **tensor, fsdp__node *const *nodes, int count)
{
    FSDP__FREED fsdp_tensor **inputs = NULL;
    fsdp_tensor *alias = NULL;

    if (!fsdp__will_record(tensor, 1))
        return FSDP_OK;
    inputs = fsdp__calloc((size_t)count + 1, sizeof *inputs); /* for the nodes there are no tensors */
    FSDP__TRY_NEW(inputs);
    inputs[0] = *tensor;
    FSDP_TRY(fsdp__tensor_alias(*tensor, &alias));
    FSDP__TRY_NEW(alias = fsdp__scope_adopt(alias));
    FSDP_TRY(fsdp__record_with(&anchor_traits, &anchor_op, inputs, count + 1, &alias, 1, NULL, 0, NULL, 0));
    fsdp__node_set_aside(fsdp__grad_state_get(alias)->producer, nodes, count);
    *tensor = alias;
    return FSDP_OK;
}

/* ---- ends ---- */

static fsdp_status end_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    (void)node, (void)grads;
    return FSDP_OK;
}

static const fsdp__op end_op = {.name = "end", .backward = end_backward};

fsdp_status fsdp__require_gradient(fsdp_tensor **tensor)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *leaf = NULL;
    fsdp_tensor *alias = NULL;

    if (!fsdp_grad_enabled(fsdp__tensor_context(*tensor)) || !fsdp_dtype_is_floating((*tensor)->dtype))
        return FSDP_OK;
    /* A node is recorded only for an input that requires a gradient; end_backward gives this leaf none. */
    FSDP_TRY(fsdp__tensor_alias(*tensor, &leaf));
    FSDP_TRY(fsdp_tensor_set_requires_grad(leaf, true));
    FSDP_TRY(fsdp__tensor_alias(*tensor, &alias));
    FSDP__TRY_NEW(alias = fsdp__scope_adopt(alias));
    FSDP_TRY(fsdp__record(&end_op, &leaf, 1, &alias, 1, NULL, 0, NULL, 0));
    *tensor = alias;
    return FSDP_OK;
}
