/* to_device.c - copies a tensor to another device. */
#include "ops/op.h"

static fsdp_tensor *moved(const fsdp_tensor *x, fsdp_device *device)
{
    fsdp_tensor *y = fsdp_empty(device, x->dtype, x->ndim, x->shape);

    return y && fsdp__tensor_copy_across(y, x) == FSDP_OK ? y : NULL;
}

static fsdp_status to_device_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dx = moved(grads[0], *(fsdp_device *const *)fsdp__node_state(node));

    return dx ? fsdp__node_give(node, 0, dx) : fsdp_last_status();
}

static const fsdp__op to_device_op = {.name = "to_device", .backward = to_device_backward};

fsdp_tensor *fsdp_to_device(fsdp_tensor *x, fsdp_device *device)
{
    fsdp_tensor *y;

    if (!x || !fsdp__op_inputs("to_device", &x, 1))
        return NULL;
    if (!device || fsdp_device_is_meta(device) != fsdp_device_is_meta(x->storage->device)) {
        FSDP_FAIL(FSDP_INVALID, "to_device: %s", device ? "nothing can be moved from or to meta" : "no device");
        return NULL;
    }
    if (x->storage->device == device)
        return x;
    y = moved(x, device);
    if (!y ||
        fsdp__record(&to_device_op, &x, 1, &y, 1, NULL, 0, &x->storage->device, sizeof x->storage->device) != FSDP_OK)
        return NULL;
    return y;
}
