/* boundary.c - a node that computes nothing: a place in the backward where something can be told. */
#include "autograd/node.h"
#include "base/alloc.h"

typedef struct boundary {
    fsdp_status (*callback)(void *arg);
    void *arg;
    void (*free_arg)(void *arg);
} boundary;

static fsdp_status boundary_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const boundary *state = fsdp__node_state(node);

    FSDP_TRY(state->callback(state->arg));
    for (int i = 0; i < node->output_count; i++)
        if (grads[i])
            FSDP_TRY(fsdp__node_give(node, i, grads[i]));
    return FSDP_OK;
}

static void boundary_free(void *pointer)
{
    const boundary *state = pointer;

    if (state->free_arg)
        state->free_arg(state->arg);
}

static const fsdp__op boundary_op = {.name = "boundary", .backward = boundary_backward, .free_state = boundary_free};

fsdp_status fsdp__boundary(fsdp_tensor **tensors, int count, fsdp_status (*callback)(void *arg), void *arg,
                           void (*free_arg)(void *arg), bool *recorded)
{
    const boundary state = {callback, arg, free_arg};
    fsdp_tensor **inputs, **outputs;
    fsdp_status status = FSDP_OK;
    int wanted = 0;

    *recorded = false;
    if (!fsdp__will_record(tensors, count))
        return FSDP_OK;
    inputs = fsdp__malloc(2 * (size_t)count * sizeof(fsdp_tensor *));
    if (!inputs)
        return FSDP_NO_MEMORY;
    outputs = inputs + count;
    for (int i = 0; i < count; i++) {
        fsdp_tensor *alias = NULL;

        if (!tensors[i] || !fsdp_tensor_requires_grad(tensors[i]))
            continue;
        FSDP_TRY_GOTO(status, fsdp__tensor_alias(tensors[i], &alias), out);
        inputs[wanted] = tensors[i];
        outputs[wanted] = fsdp__scope_adopt(alias);
        if (!outputs[wanted++]) {
            status = FSDP_NO_MEMORY;
            goto out;
        }
    }
    FSDP_TRY_GOTO(status, fsdp__record(&boundary_op, inputs, wanted, outputs, wanted, NULL, 0, &state, sizeof state),
                  out);
    for (int i = 0, j = 0; j < wanted; i++)
        if (tensors[i] == inputs[j])
            tensors[i] = outputs[j++];
    *recorded = true;
out:
    fsdp__free(inputs);
    return status;
}
