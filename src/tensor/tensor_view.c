/* tensor_view.c - other shapes on the same bytes. */
#include <string.h>

#include "tensor/tensor.h"

static fsdp_status check_dim(const fsdp_tensor *tensor, const char *what, int *dim)
{
    int given = *dim;

    *dim += given < 0 ? tensor->ndim : 0;
    if (*dim < 0 || *dim >= tensor->ndim)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s dimension %d of a tensor of shape %s", what, given,
                         FSDP__SHAPE_OF(tensor));
    return FSDP_OK;
}

/* Replaces one -1 in `shape` by what is left over. */
static fsdp_status infer_shape(const fsdp_tensor *tensor, int ndim, const int64_t *shape, int64_t *out)
{
    int64_t numel = fsdp_tensor_numel(tensor), known;
    int unknown = -1;

    for (int d = 0; d < ndim; d++) {
        out[d] = shape[d];
        if (shape[d] == -1 && unknown < 0) {
            unknown = d;
            out[d] = 1;
        }
    }
    known = fsdp__shape_numel(ndim, out);
    if (unknown >= 0 && known > 0 && numel % known == 0) {
        out[unknown] = numel / known;
        known = numel;
    }
    if (known != numel || (unknown >= 0 && numel == 0 && out[unknown] != 0))
        return FSDP_FAIL(FSDP_INVALID, "cannot reshape %s to %s: the number of elements differs",
                         FSDP__SHAPE_OF(tensor), FSDP__SHOWN_SHAPE(ndim, shape));
    return FSDP_OK;
}

/* Computes strides for `shape` on the elements of `tensor`; returns false if there are none. Walks both from the last
 * dimension: old dimensions that are contiguous become one chunk, and the new dimensions must divide the chunks
 * evenly. */
static bool view_strides(const fsdp_tensor *tensor, int ndim, const int64_t *shape, int64_t *strides)
{
    int view_d = ndim - 1;
    int64_t chunk_stride, old_numel = 1, view_numel = 1;

    if (fsdp_tensor_numel(tensor) == 0 || tensor->ndim == 0) {
        fsdp__shape_contiguous_strides(ndim, shape, strides);
        return true;
    }
    chunk_stride = tensor->strides[tensor->ndim - 1];
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        old_numel *= tensor->shape[d];
        if (d > 0 && (tensor->shape[d - 1] == 1 || tensor->strides[d - 1] == old_numel * chunk_stride))
            continue;
        while (view_d >= 0 && (view_numel < old_numel || shape[view_d] == 1)) {
            strides[view_d] = view_numel * chunk_stride;
            view_numel *= shape[view_d--];
        }
        if (view_numel != old_numel)
            return false;
        if (d > 0) {
            chunk_stride = tensor->strides[d - 1];
            old_numel = view_numel = 1;
        }
    }
    return view_d == -1;
}

fsdp_status fsdp__view_reshape(const fsdp_tensor *tensor, int ndim, const int64_t *shape, fsdp_tensor **out)
{
    int64_t sizes[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];

    if (ndim < 0 || ndim > FSDP_MAX_DIMS)
        return FSDP_FAIL(FSDP_INVALID, "cannot reshape to %d dimensions: 0 to %d are possible", ndim, FSDP_MAX_DIMS);
    FSDP_TRY(infer_shape(tensor, ndim, shape, sizes));
    if (!view_strides(tensor, ndim, sizes, strides))
        return FSDP_FAIL(FSDP_INVALID, "cannot view %s with strides %s as %s: make it contiguous first",
                         FSDP__SHAPE_OF(tensor), FSDP__SHOWN_SHAPE(tensor->ndim, tensor->strides),
                         FSDP__SHOWN_SHAPE(ndim, shape));
    return fsdp__tensor_create_view(tensor->storage, tensor->dtype, ndim, sizes, strides, tensor->offset, out);
}

fsdp_status fsdp__view_transpose(const fsdp_tensor *tensor, int dim0, int dim1, fsdp_tensor **out)
{
    int64_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];

    FSDP_TRY(check_dim(tensor, "transpose", &dim0));
    FSDP_TRY(check_dim(tensor, "transpose", &dim1));
    memcpy(shape, tensor->shape, sizeof shape);
    memcpy(strides, tensor->strides, sizeof strides);
    shape[dim0] = tensor->shape[dim1];
    shape[dim1] = tensor->shape[dim0];
    strides[dim0] = tensor->strides[dim1];
    strides[dim1] = tensor->strides[dim0];
    return fsdp__tensor_create_view(tensor->storage, tensor->dtype, tensor->ndim, shape, strides, tensor->offset, out);
}

fsdp_status fsdp__view_narrow(const fsdp_tensor *tensor, int dim, int64_t start, int64_t length, fsdp_tensor **out)
{
    int64_t shape[FSDP_MAX_DIMS], offset;

    FSDP_TRY(check_dim(tensor, "narrow", &dim));
    if (start < 0 || length < 0 || start > tensor->shape[dim] || length > tensor->shape[dim] - start)
        return FSDP_FAIL(FSDP_INVALID, "cannot narrow dimension %d of %s to %lld elements from %lld", dim,
                         FSDP__SHAPE_OF(tensor), (long long)length, (long long)start);
    memcpy(shape, tensor->shape, sizeof shape);
    shape[dim] = length;
    /* Without elements nothing is read, but stay inside the storage. */
    offset =
        fsdp__shape_numel(tensor->ndim, shape) == 0 ? tensor->offset : tensor->offset + start * tensor->strides[dim];
    return fsdp__tensor_create_view(tensor->storage, tensor->dtype, tensor->ndim, shape, tensor->strides, offset, out);
}
