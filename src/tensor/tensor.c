/* tensor.c - life cycle and properties of a tensor. */
#include "tensor/tensor.h"

#include <string.h>

#include "base/alloc.h"
#include "base/status.h"
#include "base/text.h"

/* Computes numel, after checking everything that a caller can get wrong. */
static fsdp_status check_shape(const char *what, fsdp_dtype dtype, int ndim, const int64_t *shape, int64_t *numel)
{
    if (fsdp_dtype_size(dtype) == 0)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a %s: unknown dtype %d", what, (int)dtype);
    if (ndim < 0 || ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a %s of %d dimensions: 0 to %d are possible", what, ndim,
                         FSDP_MAX_DIMS);
    if (ndim > 0 && !shape)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a %s of %d dimensions: the shape is NULL", what, ndim);
    *numel = fsdp__shape_numel(ndim, shape);
    if (*numel < 0 || *numel > INT64_MAX / (int64_t)fsdp_dtype_size(dtype))
        return FSDP_FAIL(FSDP_INVALID, "cannot create a %s of shape %s: %s", what, FSDP__SHOWN_SHAPE(ndim, shape),
                         *numel < 0 ? "sizes are negative or too large" : "too many bytes");
    return FSDP_OK;
}

/* Counts the elements from the first to one past the last that the view can reach; -1 if a stride is negative or too
 * large. */
static int64_t view_extent(int ndim, const int64_t *shape, const int64_t *strides)
{
    int64_t extent = 1, step;

    for (int d = 0; d < ndim; d++)
        if (strides[d] < 0 || __builtin_mul_overflow(shape[d] - 1, strides[d], &step) ||
            __builtin_add_overflow(extent, step, &extent))
            return -1;
    return extent;
}

static fsdp_status check_bounds(const fsdp__storage *storage, const fsdp_tensor *view, int64_t numel)
{
    int64_t capacity = (int64_t)(storage->bytes / fsdp_dtype_size(view->dtype));
    int64_t extent = numel == 0 ? 0 : view_extent(view->ndim, view->shape, view->strides);

    if (numel == 0 && view->offset >= 0) /* the view reaches nothing, wherever it begins */
        return FSDP_OK;
    if (view->offset < 0 || extent < 0 || extent > capacity || view->offset > capacity - extent)
        return FSDP_FAIL(FSDP_INVALID,
                         "cannot create a view of shape %s at element %lld: it leaves the %lld elements of the storage",
                         FSDP__SHAPE_OF(view), (long long)view->offset, (long long)capacity);
    return FSDP_OK;
}

fsdp_status fsdp__tensor_create_view(fsdp__storage *storage, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                     const int64_t *strides, int64_t offset, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *tensor = NULL;
    int64_t numel;

    FSDP_TRY(check_shape("view", dtype, ndim, shape, &numel));
    tensor = fsdp__calloc(1, sizeof *tensor);
    if (!tensor)
        return fsdp_fail_prefix(FSDP_NO_MEMORY, "cannot create a view");
    tensor->refs = 1;
    tensor->offset = offset;
    tensor->dtype = dtype;
    tensor->ndim = ndim;
    if (ndim > 0)
        memcpy(tensor->shape, shape, (size_t)ndim * sizeof *shape);
    if (ndim > 0 && strides)
        memcpy(tensor->strides, strides, (size_t)ndim * sizeof *strides);
    else
        fsdp__shape_contiguous_strides(ndim, tensor->shape, tensor->strides);
    FSDP_TRY(check_bounds(storage, tensor, numel));
    tensor->storage = storage;
    storage->refs++;
    *out = fsdp__take(&tensor);
    return FSDP_OK;
}

fsdp_status fsdp__tensor_alias(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *alias = NULL;

    FSDP_TRY(fsdp__tensor_create_view(tensor->storage, tensor->dtype, tensor->ndim, tensor->shape, tensor->strides,
                                      tensor->offset, &alias));
    if (tensor->global) {
        alias->distribution = tensor->distribution;
        FSDP__TRY_NEW(alias->distribution.state = tensor->distribution.share(tensor->distribution.state));
        alias->global = true;
    }
    *out = fsdp__take(&alias);
    return FSDP_OK;
}

fsdp_status fsdp_tensor_create(fsdp_device *device, fsdp_dtype dtype, int ndim, const int64_t *shape,
                               fsdp_memory_kind kind, fsdp_tensor **out)
{
    fsdp_status status;
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;
    int64_t numel;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a tensor: there is no place for it");
    if (!device)
        return FSDP__FAIL_NULL("cannot create a tensor: the device is NULL");
    if (kind < 0 || kind >= FSDP_MEMORY_KINDS)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a tensor: there is no kind %d of memory", (int)kind);
    FSDP_TRY(check_shape("tensor", dtype, ndim, shape, &numel));
    status = fsdp__storage_create(device, (size_t)numel * fsdp_dtype_size(dtype), kind, true, &storage);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot create a tensor of shape %s", FSDP__SHOWN_SHAPE(ndim, shape));
    return fsdp__tensor_create_view(storage, dtype, ndim, shape, NULL, 0, out);
}

fsdp_tensor *fsdp_tensor_ref(fsdp_tensor *tensor)
{
    if (tensor)
        tensor->refs++;
    return tensor;
}

static void detach(fsdp__attachment *attachment)
{
    if (attachment->state && attachment->free_state)
        attachment->free_state(attachment->state);
}

void fsdp_tensor_unref(fsdp_tensor *tensor)
{
    if (!tensor || --tensor->refs > 0)
        return;
    detach(&tensor->autograd);
    detach(&tensor->distribution);
    fsdp__storage_unref(tensor->storage);
    fsdp__free(tensor);
}

/* ---- properties ---- */

int fsdp_tensor_ndim(const fsdp_tensor *tensor)
{
    return tensor ? tensor->ndim : 0;
}

const int64_t *fsdp_tensor_shape(const fsdp_tensor *tensor)
{
    return tensor ? tensor->shape : NULL;
}

const int64_t *fsdp_tensor_strides(const fsdp_tensor *tensor)
{
    return tensor ? tensor->strides : NULL;
}

int64_t fsdp_tensor_size(const fsdp_tensor *tensor, int dim)
{
    if (!tensor)
        return -1;
    dim += dim < 0 ? tensor->ndim : 0;
    return dim >= 0 && dim < tensor->ndim ? tensor->shape[dim] : -1;
}

int64_t fsdp_tensor_numel(const fsdp_tensor *tensor)
{
    return tensor ? fsdp__shape_numel(tensor->ndim, tensor->shape) : 0;
}

fsdp_dtype fsdp_tensor_dtype(const fsdp_tensor *tensor)
{
    return tensor ? tensor->dtype : FSDP_DTYPE_NONE;
}

fsdp_device *fsdp_tensor_device(const fsdp_tensor *tensor)
{
    return tensor ? tensor->storage->device : NULL;
}

void *fsdp_tensor_data(const fsdp_tensor *tensor)
{
    fsdp__storage *storage = tensor ? tensor->storage : NULL;

    if (!storage)
        return NULL;
    /* Whoever asks is about to queue an access, which must come after what another stream still writes. */
    if (storage->written)
        fsdp__storage_await(storage);
    if (fsdp__storage_bring(storage) != FSDP_OK || !storage->data || fsdp_device_is_meta(storage->device) ||
        fsdp_tensor_numel(tensor) == 0)
        return NULL;
    return (char *)storage->data + (size_t)tensor->offset * fsdp_dtype_size(tensor->dtype);
}

bool fsdp__tensor_has_bytes(const fsdp_tensor *tensor)
{
    return fsdp__tensor_low_place(tensor) || fsdp_tensor_data(tensor);
}

void fsdp__name_without_values(const fsdp_tensor *tensor, const char *name, fsdp__names *meta, fsdp__names *unwritten)
{
    if (fsdp_device_is_meta(tensor->storage->device))
        fsdp__names_add(meta, name);
    else if (unwritten && tensor->storage->unwritten && fsdp_tensor_numel(tensor) > 0)
        fsdp__names_add(unwritten, name);
}
