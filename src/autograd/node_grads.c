/* node_grads.c - the gradients that an operation's backward gives to its inputs. */
#include "autograd/node.h"
#include "base/alloc.h"
#include "base/status.h"

#include <string.h>

/* Makes *out = a + b, a fresh tensor. */
static fsdp_status sum_of(const fsdp_tensor *a, const fsdp_tensor *b, fsdp_tensor **out)
{
    fsdp_device *device = a->storage->device;
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *sum = NULL;

    FSDP_TRY(fsdp_tensor_create(device, a->dtype, a->ndim, a->shape, FSDP_MEMORY_ACTIVATION, &sum));
    if (fsdp_tensor_is_contiguous(a) && fsdp_tensor_is_contiguous(b)) {
        const fsdp__binary_args args = {.a = fsdp_tensor_data(a),
                                        .b = fsdp_tensor_data(b),
                                        .y = fsdp_tensor_data(sum),
                                        .ndim = 1,
                                        .shape = {fsdp_tensor_numel(a)},
                                        .a_strides = {1},
                                        .b_strides = {1},
                                        .op = FSDP__ADD,
                                        .dtype = a->dtype};
        FSDP_TRY(fsdp__launch_binary(fsdp_device_stream(device), &args));
    } else {
        FSDP_TRY(fsdp__tensor_copy(sum, a, false));
        FSDP_TRY(fsdp__tensor_copy(sum, b, true));
    }
    *out = fsdp__take(&sum);
    return FSDP_OK;
}

fsdp_status fsdp__node_add_grad(fsdp__node *node, int output, fsdp_tensor *grad)
{
    fsdp_tensor **have = &node->grads[output];
    fsdp_tensor *sum = NULL;

    if (!*have) {
        *have = fsdp_tensor_ref(grad);
        return FSDP_OK;
    }
    if (*have != grad && fsdp__grad_exclusive(*have)) /* see [Note: exclusive gradients] */
        return fsdp__tensor_copy(*have, grad, true);
    FSDP_TRY(sum_of(*have, grad, &sum));
    fsdp_tensor_unref(*have);
    *have = sum;
    return FSDP_OK;
}

fsdp_status fsdp__node_give(fsdp__node *node, int input, fsdp_tensor *grad)
{
    fsdp__edge *edge = &node->inputs[input];

    if (!edge->node && !edge->leaf)
        return FSDP_OK;
    if (!grad) /* an operation in the backward has failed and said why */
        return FSDP__FAIL_NULL("no gradient was given");
    if (grad->storage->device != edge->device)
        return FSDP_FAIL(FSDP_INVALID, "a gradient on %s does not fit input %d, which is on %s%s",
                         fsdp_device_name(grad->storage->device), input, fsdp_device_name(edge->device),
                         fsdp__device_elsewhere(edge->device, grad->storage->device));
    if ((edge->leaf ? grad->dtype != edge->dtype && !fsdp__leaf_takes(edge->leaf, grad) : grad->dtype != edge->dtype) ||
        grad->ndim != edge->ndim || memcmp(grad->shape, edge->shape, (size_t)edge->ndim * sizeof *edge->shape) != 0)
        return FSDP_FAIL(FSDP_INVALID, "a %s gradient %s does not fit input %d, which is %s %s",
                         fsdp_dtype_name(grad->dtype), FSDP__SHAPE_OF(grad), input, fsdp_dtype_name(edge->dtype),
                         FSDP__SHAPE_OF(edge));
    if (edge->node)
        return fsdp__node_add_grad(edge->node, edge->output, grad);
    if (edge->given)
        return FSDP_FAIL(FSDP_STATE, "the gradient of input %d was given twice", input);
    edge->given = fsdp_tensor_ref(grad); /* whether it can be adopted shows once the node has dropped it */
    return FSDP_OK;
}

fsdp_status fsdp__node_pass_on(fsdp__node *node, fsdp_tensor *const *grads)
{
    return fsdp__node_give(node, 0, grads[0]);
}

fsdp_status fsdp__node_place(fsdp__node *node, int input, fsdp_tensor **out)
{
    const fsdp__edge *edge = &node->inputs[input];
    fsdp__node *producer = edge->node;

    *out = NULL;
    if (!producer || !producer->traits->place || producer->grads[edge->output] || producer->outputs[edge->output].hooks)
        return FSDP_OK;
    FSDP_TRY(producer->traits->place(producer, edge->output, out));
    if (*out)
        FSDP__TRY_NEW(*out = fsdp__scope_adopt(*out));
    return FSDP_OK;
}
