/* shape.c - arithmetic of shapes and strides. */
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "tensor/tensor.h"

int64_t fsdp__shape_numel(int ndim, const int64_t *shape)
{
    int64_t numel = 1;
    bool empty = false;

    for (int d = 0; d < ndim; d++) {
        if (shape[d] < 0)
            return -1;
        empty |= shape[d] == 0;
    }
    if (empty)
        return 0;
    for (int d = 0; d < ndim; d++)
        if (__builtin_mul_overflow(numel, shape[d], &numel))
            return -1;
    return numel;
}

/* Computes strides as PyTorch does: a size of 0 counts as 1, so that strides stay positive. */
void fsdp__shape_contiguous_strides(int ndim, const int64_t *shape, int64_t *strides)
{
    int64_t stride = 1;

    for (int d = ndim - 1; d >= 0; d--) {
        strides[d] = stride;
        if (__builtin_mul_overflow(stride, FSDP__MAX(shape[d], 1), &stride))
            stride = INT64_MAX; /* there are no elements, since another size is 0 */
    }
}

bool fsdp__shape_equal(const fsdp_tensor *a, const fsdp_tensor *b)
{
    return a->ndim == b->ndim && (a->ndim == 0 || memcmp(a->shape, b->shape, (size_t)a->ndim * sizeof(int64_t)) == 0);
}

/* Writes a tuple as Python does: "()", "(2,)", "(2, 3)". */
const char *fsdp__shape_text(int ndim, const int64_t *shape, char text[FSDP__SHAPE_TEXT])
{
    size_t used = 1;

    snprintf(text, FSDP__SHAPE_TEXT, "(");
    for (int d = 0; d < ndim && used < FSDP__SHAPE_TEXT; d++)
        used += (size_t)snprintf(text + used, FSDP__SHAPE_TEXT - used, "%s%lld", d ? ", " : "", (long long)shape[d]);
    if (used < FSDP__SHAPE_TEXT)
        snprintf(text + used, FSDP__SHAPE_TEXT - used, ndim == 1 ? ",)" : ")");
    return text;
}

/* Ignores the strides of dimensions of size 1, and all strides if there are no elements. */
bool fsdp_tensor_is_contiguous(const fsdp_tensor *tensor)
{
    int64_t expected = 1;

    if (!tensor)
        return false;
    if (fsdp__shape_numel(tensor->ndim, tensor->shape) == 0)
        return true;
    for (int d = tensor->ndim - 1; d >= 0; d--) {
        if (tensor->shape[d] != 1 && tensor->strides[d] != expected)
            return false;
        expected *= tensor->shape[d];
    }
    return true;
}
