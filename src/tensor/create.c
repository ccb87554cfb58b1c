/* create.c - makes tensors that belong to the scope. */
#include "base/alloc.h"
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
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    if (fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor) != FSDP_OK ||
        fsdp_tensor_fill_(tensor, value) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(fsdp__take(&tensor));
}

fsdp_tensor *fsdp_from_data(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, const void *data)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;

    if (fsdp_tensor_create(device, dtype, ndim, shape, FSDP_MEMORY_ACTIVATION, &tensor) != FSDP_OK ||
        fsdp_tensor_write(tensor, dtype, data) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(fsdp__take(&tensor));
}

/* Makes a tensor of `values`, converted, and frees them. */
static fsdp_tensor *from_values(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape, int64_t *values)
{
    fsdp_tensor *tensor = values ? fsdp_empty(device, dtype, ndim, shape) : NULL;

    if (tensor && fsdp_tensor_write(tensor, FSDP_I64, values) != FSDP_OK)
        tensor = NULL;
    fsdp__free(values);
    return tensor;
}

fsdp_tensor *fsdp_arange(fsdp_device *device, fsdp_dtype dtype, int64_t start, int64_t end, int64_t step)
{
    bool up = step > 0, none = up ? end <= start : end >= start;
    uint64_t distance = none ? 0 : up ? (uint64_t)end - (uint64_t)start : (uint64_t)start - (uint64_t)end;
    uint64_t stride = up ? (uint64_t)step : 0 - (uint64_t)step, count;
    int64_t *values, numel;

    if (step == 0) {
        FSDP_FAIL(FSDP_INVALID, "arange: the step is 0: expected any other");
        return NULL;
    }
    count = distance / stride + (distance % stride != 0);
    if (count > SIZE_MAX / 2 / sizeof *values) {
        FSDP_FAIL(FSDP_INVALID, "arange: %llu numbers are too many", (unsigned long long)count);
        return NULL;
    }
    numel = (int64_t)count;
    values = fsdp__malloc((count + 1) * sizeof *values);
    for (int64_t i = 0; values && i < numel; i++)
        values[i] = start + i * step;
    return from_values(device, dtype, 1, &numel, values);
}

fsdp_tensor *fsdp_eye(fsdp_device *device, fsdp_dtype dtype, int64_t n)
{
    const int64_t shape[] = {n, n};
    int64_t numel = fsdp__shape_numel(2, shape), *values;

    if (numel < 0) {
        FSDP_FAIL(FSDP_INVALID, "eye: shape %s", FSDP__SHOWN_SHAPE(2, shape));
        return NULL;
    }
    values = fsdp__calloc((size_t)numel + 1, sizeof *values);
    for (int64_t i = 0; values && i < n; i++)
        values[i * n + i] = 1;
    return from_values(device, dtype, 2, shape, values);
}

fsdp_tensor *fsdp__empty_like(const fsdp_tensor *like, fsdp_dtype dtype)
{
    if (!like)
        return NULL;
    return fsdp_empty(like->storage->device, dtype, like->ndim, like->shape);
}
