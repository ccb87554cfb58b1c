/* broadcast.c - shapes that fit each other. */
#include "ops/broadcast.h"

#include "base/compiler.h"

#include <string.h>

fsdp__shape fsdp__shape_of(const fsdp_tensor *tensor)
{
    fsdp__shape shape = {.ndim = tensor->ndim};

    memcpy(shape.sizes, tensor->shape, sizeof shape.sizes);
    return shape;
}

bool fsdp__broadcast(int ndim, const int64_t *sizes, fsdp__shape *shape)
{
    fsdp__shape out = {.ndim = FSDP__MAX(shape->ndim, ndim)};

    for (int d = 0; d < out.ndim; d++) { /* from the last dimension */
        int64_t a = d < shape->ndim ? shape->sizes[shape->ndim - 1 - d] : 1;
        int64_t b = d < ndim ? sizes[ndim - 1 - d] : 1;

        if (a != b && a != 1 && b != 1)
            return false;
        out.sizes[out.ndim - 1 - d] = a == 1 ? b : a;
    }
    *shape = out;
    return true;
}

bool fsdp__broadcast_with(const char *op, const fsdp_tensor *first, const fsdp_tensor *tensor, fsdp__shape *shape)
{
    if (fsdp__broadcast(tensor->ndim, tensor->shape, shape))
        return true;
    fsdp__op_misfit(op, "second", tensor, "first", first);
    return false;
}

void fsdp__broadcast_strides(const fsdp_tensor *tensor, const fsdp_tensor *over, int64_t *strides)
{
    int missing = over->ndim - tensor->ndim;

    for (int d = 0; d < over->ndim; d++)
        strides[d] = d < missing || tensor->shape[d - missing] == 1 ? 0 : tensor->strides[d - missing];
}

fsdp_tensor *fsdp__by_rows(fsdp_tensor *tensor)
{
    int last = tensor ? tensor->ndim - 1 : -1;

    while (last >= 0 && tensor->shape[last] == 1)
        last--;
    return last < 0 || tensor->strides[last] <= 1 ? tensor : fsdp__op_contiguous(tensor);
}

fsdp_status fsdp__give_summed(fsdp__node *node, int input, fsdp_tensor *grad, const fsdp__shape *shape)
{
    int missing = grad->ndim - shape->ndim;
    bool repeated[FSDP_MAX_DIMS], any = false, accumulate;
    fsdp_tensor *view = NULL, *target;
    fsdp_status status;

    if (!fsdp__node_needs(node, input))
        return FSDP_OK;
    for (int d = 0; d < grad->ndim; d++) {
        repeated[d] = grad->shape[d] != 1 && (d < missing || shape->sizes[d - missing] == 1);
        any = any || repeated[d];
    }
    if (!any && missing == 0)
        return fsdp__node_give(node, input, grad);
    FSDP__TRY_MADE(grad = fsdp__op_contiguous(grad));
    if (any) {
        FSDP_TRY(fsdp__node_target(node, input, &target, &accumulate));
        return fsdp__op_reduce_dims(grad, repeated, FSDP__REDUCE_SUM, 1.0f, target, accumulate);
    }
    FSDP_TRY(fsdp__view_reshape(grad, shape->ndim, shape->sizes, &view));
    status = fsdp__node_give(node, input, view);
    fsdp_tensor_unref(view);
    return status;
}
