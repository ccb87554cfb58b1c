/* create.c - tensors that belong to the scope. */
#include "tensor/tensor.h"

fsdp_tensor *fsdp_empty(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = NULL;

    if (fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(tensor);
}

fsdp_tensor *fsdp_zeros(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape)
{
    return fsdp_full(device, dtype, ndim, shape, 0.0);
}

fsdp_tensor *fsdp_full(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, double value)
{
    fsdp_tensor *tensor = NULL;

    if (fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor) != FSDP_OK)
        return NULL;
    if (fsdp_tensor_fill_(tensor, value) != FSDP_OK) {
        fsdp_tensor_unref(tensor);
        return NULL;
    }
    return fsdp__scope_adopt(tensor);
}

fsdp_tensor *fsdp_from_data(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, const void *data)
{
    fsdp_tensor *tensor = NULL;

    if (fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor) != FSDP_OK)
        return NULL;
    if (fsdp_tensor_write(tensor, dtype, data) != FSDP_OK) {
        fsdp_tensor_unref(tensor);
        return NULL;
    }
    return fsdp__scope_adopt(tensor);
}

fsdp_tensor *fsdp__empty_like(const fsdp_tensor *like, fsdp_dtype dtype)
{
    if (!like)
        return NULL;
    return fsdp_empty(like->storage->device, dtype, like->ndim, like->shape);
}
