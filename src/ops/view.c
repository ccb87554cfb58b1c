/* view.c - more shapes on the same bytes, made from those of reshape.c, under the names that users of tensors expect;
 * and repeated elements. */
#include "base/alloc.h"
#include "base/status.h"
#include "ops/broadcast.h"

#include <string.h>

/* ---- by reshape ---- */

fsdp_tensor *fsdp_unsqueeze(fsdp_tensor *x, int dim)
{
    int64_t shape[FSDP_MAX_DIMS + 1];
    const int64_t *from;

    if (!x || !fsdp__op_dim("unsqueeze", x, x->ndim + 1, &dim))
        return NULL;
    from = fsdp__global_shape(x);
    memcpy(shape, from, (size_t)dim * sizeof *shape);
    shape[dim] = 1;
    memcpy(shape + dim + 1, from + dim, (size_t)(x->ndim - dim) * sizeof *shape);
    return fsdp_reshape(x, x->ndim + 1, shape);
}

fsdp_tensor *fsdp_squeeze(fsdp_tensor *x, int dim)
{
    int64_t shape[FSDP_MAX_DIMS];
    const int64_t *from;

    if (!x || !fsdp__op_dim("squeeze", x, x->ndim, &dim))
        return NULL;
    from = fsdp__global_shape(x);
    if (from[dim] != 1)
        return x;
    memcpy(shape, from, (size_t)dim * sizeof *shape);
    memcpy(shape + dim, from + dim + 1, (size_t)(x->ndim - dim - 1) * sizeof *shape);
    return fsdp_reshape(x, x->ndim - 1, shape);
}

fsdp_tensor *fsdp_flatten(fsdp_tensor *x, int start, int end)
{
    int64_t shape[FSDP_MAX_DIMS], one = 1;
    const int64_t *from;
    int count;

    if (!x)
        return NULL;
    from = fsdp__global_shape(x);
    if (x->ndim == 0)
        return fsdp_reshape(x, 1, &one);
    if (!fsdp__op_dim("flatten", x, x->ndim, &start) || !fsdp__op_dim("flatten", x, x->ndim, &end))
        return NULL;
    if (end < start) {
        FSDP_FAIL(FSDP_INVALID, "flatten: dimension %d comes after dimension %d of %s", start, end,
                  FSDP__SHOWN_SHAPE(x->ndim, from));
        return NULL;
    }
    count = x->ndim - (end - start);
    memcpy(shape, from, (size_t)start * sizeof *shape);
    shape[start] = fsdp__shape_numel(end - start + 1, from + start);
    memcpy(shape + start + 1, from + end + 1, (size_t)(x->ndim - end - 1) * sizeof *shape);
    return fsdp_reshape(x, count, shape);
}

/* ---- by transpose ---- */

fsdp_tensor *fsdp_permute(fsdp_tensor *x, int ndim, const int *dims)
{
    int at[FSDP_MAX_DIMS], to[FSDP_MAX_DIMS]; /* at: which dimension of x is where; to: which is wanted there */
    bool seen[FSDP_MAX_DIMS] = {false}, fits;

    if (!x || !fsdp__op_has_list("permute", ndim, dims))
        return NULL;
    fits = ndim == x->ndim;
    for (int d = 0; fits && d < ndim; d++) {
        at[d] = d;
        to[d] = dims[d] + (dims[d] < 0 ? ndim : 0);
        fits = to[d] >= 0 && to[d] < ndim && !seen[to[d]];
        if (fits)
            seen[to[d]] = true;
    }
    if (!fits) {
        FSDP_FAIL(FSDP_INVALID, "permute: the %d dimensions are not those of %s, each named once", ndim,
                  FSDP__SHAPE_OF(x));
        return NULL;
    }
    for (int d = 0; x && d < ndim; d++)
        for (int other = d + 1; x && other < ndim; other++)
            if (at[other] == to[d]) {
                x = fsdp_transpose(x, d, other);
                at[other] = at[d];
                at[d] = to[d];
            }
    return x;
}

/* ---- by slice and concat ---- */

fsdp_status fsdp_split(fsdp_tensor *x, int dim, int count, const int64_t *sizes, fsdp_tensor **parts)
{
    int64_t at = 0, size, whole = 0, from;

    if (!parts)
        return FSDP_FAIL(FSDP_INVALID, "split: there is no place for the parts");
    for (int i = 0; i < count; i++)
        parts[i] = NULL;
    if (!x)
        return FSDP__FAIL_NULL("split: no tensor");
    if (!fsdp__op_dim("split", x, x->ndim, &dim))
        return fsdp_last_status();
    from = fsdp__global_shape(x)[dim];
    for (int i = 0; sizes && i < count; i++)
        if (sizes[i] < 0 || whole < 0 || __builtin_add_overflow(whole, sizes[i], &whole))
            whole = -1;
    if (count < 1 || (sizes && whole != from))
        return FSDP_FAIL(FSDP_INVALID, "split: the %d sizes do not add up to dimension %d of %s", count, dim,
                         FSDP__SHAPE_OF(x));
    size = from / count + (from % count > 0);
    for (int i = 0; i < count; i++) {
        int64_t left = from - at, length = sizes ? sizes[i] : size < left ? size : left;

        FSDP__TRY_MADE(parts[i] = fsdp_slice(x, dim, at, length));
        at += length;
    }
    return FSDP_OK;
}

fsdp_tensor *fsdp_stack(fsdp_tensor *const *tensors, int count, int dim)
{
    fsdp_tensor *stacked = NULL, *made[16], **parts = made;

    if (!tensors || count < 1) {
        FSDP_FAIL(FSDP_INVALID, "stack: at least one tensor is needed");
        return NULL;
    }
    for (int i = 0; i < count; i++)
        if (!tensors[i])
            return NULL;
    if (count > (int)(sizeof made / sizeof *made))
        parts = fsdp__malloc((size_t)count * sizeof *parts);
    if (!parts)
        return NULL;
    if (fsdp__op_dim("stack", tensors[0], tensors[0]->ndim + 1, &dim)) {
        bool made_all = true;

        for (int i = 0; made_all && i < count; i++) {
            parts[i] = tensors[i]->ndim == tensors[0]->ndim
                           ? fsdp_unsqueeze(tensors[i], dim)
                           : fsdp__op_misfit("stack", "tensor", tensors[i], "the first", tensors[0]);
            made_all = parts[i];
        }
        stacked = made_all ? fsdp_concat(parts, count, dim) : NULL;
    }
    if (parts != made)
        fsdp__free(parts);
    return stacked;
}

/* ---- expand ---- */

static fsdp_status expand_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    return fsdp__give_summed(node, 0, grads[0], fsdp__node_state(node));
}

static const fsdp__op expand_op = {.name = "expand", .backward = expand_backward};

static fsdp_tensor *global_expand(fsdp_tensor *x, int ndim, const int64_t *shape)
{
    fsdp__global_call call = {.name = "expand", .rule = FSDP__RULE_EXPAND, .inputs = &x, .count = 1, .ndim = ndim};

    memcpy(call.sizes, shape, (size_t)FSDP__MIN(FSDP__MAX(ndim, 0), FSDP_MAX_DIMS) * sizeof *shape);
    return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_expand(call.parts[0], ndim, call.sizes)) : NULL;
}

fsdp_tensor *fsdp_expand(fsdp_tensor *x, int ndim, const int64_t *shape)
{
    int64_t sizes[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];
    fsdp_tensor *y = NULL;
    fsdp__shape state;
    int added;
    bool fits;

    if (!x || !fsdp__op_has_list("expand", ndim, shape))
        return NULL;
    if (fsdp__is_global(&x, 1))
        return global_expand(x, ndim, shape);
    if (!x || !fsdp__op_inputs("expand", &x, 1))
        return NULL;
    fits = ndim >= x->ndim && ndim <= FSDP_MAX_DIMS;
    added = fits ? ndim - x->ndim : 0;
    for (int d = 0; fits && d < ndim; d++) {
        bool own = d >= added;
        int64_t size = own ? x->shape[d - added] : 1;

        sizes[d] = shape[d] == -1 && own ? size : shape[d];
        strides[d] = own && sizes[d] == size ? x->strides[d - added] : 0;
        fits = sizes[d] == size || (size == 1 && sizes[d] >= 0);
    }
    if (!fits) {
        FSDP_FAIL(FSDP_INVALID, "expand: %s cannot be repeated to %s", FSDP__SHAPE_OF(x),
                  ndim >= 0 && ndim <= FSDP_MAX_DIMS ? FSDP__SHOWN_SHAPE(ndim, shape) : "so many dimensions");
        return NULL;
    }
    if (fsdp__tensor_create_view(x->storage, x->dtype, ndim, sizes, strides, x->offset, &y) != FSDP_OK)
        return NULL;
    y = fsdp__scope_adopt(y);
    state = fsdp__shape_of(x);
    if (!y || fsdp__record(&expand_op, &x, 1, &y, 1, NULL, 0, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}
