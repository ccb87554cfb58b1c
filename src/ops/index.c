/* index.c - reads and writes elements by index along a dimension, and finds the largest of a dimension. */
#include "ops/op.h"

#include <string.h>

/* ---- arguments ---- */

/* Takes an int32 or int64 tensor whose values must be in [0, limit), as contiguous int32. NULL on failure. */
static fsdp_tensor *take_index(const char *op, fsdp_tensor *index, int64_t limit)
{
    fsdp_tensor *narrow;
    int64_t valid;

    if (index->dtype != FSDP_I32 && index->dtype != FSDP_I64)
        return fsdp__op_bad(op, "index", "int32 or int64", index);
    if (limit > INT32_MAX) {
        FSDP_FAIL(FSDP_UNSUPPORTED, "%s: a dimension of %lld elements: at most %d can be indexed", op, (long long)limit,
                  INT32_MAX);
        return NULL;
    }
    if (fsdp__op_check_indices(op, "index", index, limit, limit, &valid) != FSDP_OK)
        return NULL;
    if (index->dtype == FSDP_I32)
        return fsdp__op_contiguous(index);
    narrow = fsdp__empty_like(index, FSDP_I32);
    return narrow && fsdp__tensor_copy(narrow, index, false) == FSDP_OK ? narrow : NULL;
}

/* Makes the map for dimension `dim` of x, and an index of `count` along it. */
static fsdp__index_map map_of(const fsdp_tensor *x, int dim, int64_t count, bool each)
{
    fsdp__index_map map = {.outer = fsdp__shape_numel(dim, x->shape),
                           .size = x->shape[dim],
                           .inner = fsdp__shape_numel(x->ndim - dim - 1, x->shape + dim + 1),
                           .count = count,
                           .index_along = 1};

    if (each) {
        map.index_outer = count * map.inner;
        map.index_along = map.inner;
        map.index_inner = 1;
    }
    return map;
}

static fsdp_status launch_gather(const fsdp_tensor *x, const fsdp_tensor *index, const fsdp__index_map *map,
                                 fsdp_tensor *y)
{
    fsdp__gather_args args = {.x = fsdp_tensor_data(x), .y = fsdp_tensor_data(y), .map = *map, .dtype = x->dtype};

    args.map.index = fsdp_tensor_data(index);
    return fsdp_tensor_numel(y) == 0 ? FSDP_OK : fsdp__launch_gather(fsdp__op_stream(y), &args);
}

static fsdp_status launch_scatter(const fsdp_tensor *x, const fsdp_tensor *index, const fsdp__index_map *map,
                                  fsdp_tensor *y, bool add, bool keep)
{
    fsdp__scatter_args args = {
        .x = fsdp_tensor_data(x), .y = fsdp_tensor_data(y), .map = *map, .dtype = y->dtype, .add = add, .keep = keep};

    args.map.index = fsdp_tensor_data(index);
    return fsdp_tensor_numel(y) == 0 ? FSDP_OK : fsdp__launch_scatter(fsdp__op_stream(y), &args);
}

/* ---- gather, index_select ---- */

static fsdp_status gather_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx;
    bool accumulate;

    FSDP__TRY_MADE(dy);
    FSDP_TRY(fsdp__node_target(node, 0, &dx, &accumulate));
    return launch_scatter(dy, fsdp__node_saved(node, 0), fsdp__node_state(node), dx, true, accumulate);
}

static const fsdp__op gather_op = {.name = "gather", .backward = gather_backward};
static const fsdp__op index_select_op = {.name = "index_select", .backward = gather_backward};

/* Gathers; `wanted` is checked already. */
static fsdp_tensor *gather(const fsdp__op *op, fsdp_tensor *x, int dim, fsdp_tensor *wanted, bool each)
{
    fsdp_tensor *from = fsdp__op_contiguous(x), *y;
    int64_t shape[FSDP_MAX_DIMS], count = wanted->shape[each ? dim : 0];
    fsdp__index_map map = map_of(x, dim, count, each);

    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = count;
    y = fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
    if (!from || !y || launch_gather(from, wanted, &map, y) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, &wanted, 1, &map, sizeof map) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_index_select(fsdp_tensor *x, int dim, fsdp_tensor *index)
{
    fsdp_tensor *inputs[] = {x, index}, *wanted;

    if (!x || !index || !fsdp__op_inputs("index_select", inputs, 2) || !fsdp__op_dim("index_select", x, x->ndim, &dim))
        return NULL;
    if (index->ndim != 1)
        return fsdp__op_bad("index_select", "index", "of one dimension", index);
    wanted = take_index("index_select", index, x->shape[dim]);
    return wanted ? gather(&index_select_op, x, dim, wanted, false) : NULL;
}

/* Checks that `index` is at most as large as `tensor`, except in dimension `dim` (-1: in all dimensions). */
static bool reaches(const char *op, const char *what, const fsdp_tensor *tensor, const fsdp_tensor *index, int dim)
{
    bool fits = tensor->ndim == index->ndim;

    for (int d = 0; fits && d < tensor->ndim; d++)
        fits = d == dim || index->shape[d] <= tensor->shape[d];
    if (!fits)
        fsdp__op_misfit(op, "index", index, what, tensor);
    return fits;
}

/* Returns the part of x that an index of `shape` covers, in all dimensions but `dim`. */
static fsdp_tensor *part_of(fsdp_tensor *x, const int64_t *shape, int dim)
{
    for (int d = 0; x && d < x->ndim; d++)
        if (d != dim && shape[d] < x->shape[d])
            x = fsdp_slice(x, d, 0, shape[d]);
    return x;
}

fsdp_tensor *fsdp_gather(fsdp_tensor *x, int dim, fsdp_tensor *index)
{
    fsdp_tensor *inputs[] = {x, index}, *wanted;

    if (!x || !index || !fsdp__op_inputs("gather", inputs, 2) || !fsdp__op_dim("gather", x, x->ndim, &dim) ||
        !reaches("gather", "input", x, index, dim))
        return NULL;
    wanted = take_index("gather", index, x->shape[dim]);
    x = wanted ? part_of(x, index->shape, dim) : NULL;
    return x ? gather(&gather_op, x, dim, wanted, true) : NULL;
}

/* ---- scatter, scatter_add ---- */

/* Computes the gradients of y = x with source at the index: what was overwritten has no gradient. */
static fsdp_status scatter_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const fsdp__index_map *map = fsdp__node_state(node);
    fsdp_tensor *index = fsdp__node_saved(node, 0), *dy = fsdp__op_contiguous(grads[0]), *zeros, *dx, *out;
    bool accumulate;

    FSDP__TRY_MADE(dy);
    if (fsdp__node_needs(node, 0)) {
        zeros = fsdp_zeros(dy->storage->device, dy->dtype, index->ndim, index->shape);
        dx = fsdp__empty_like(dy, dy->dtype);
        FSDP__TRY_MADE(zeros && dx);
        FSDP_TRY(fsdp__tensor_copy(dx, dy, false));
        FSDP_TRY(launch_scatter(zeros, index, map, dx, false, true));
        FSDP_TRY(fsdp__node_give(node, 0, dx));
    }
    if (!fsdp__node_needs(node, 1))
        return FSDP_OK;
    FSDP_TRY(fsdp__node_target(node, 1, &out, &accumulate));
    if (!accumulate)
        return launch_gather(dy, index, map, out);
    FSDP__TRY_MADE(dx = fsdp__empty_like(out, out->dtype));
    FSDP_TRY(launch_gather(dy, index, map, dx));
    return fsdp__tensor_copy(out, dx, true);
}

static fsdp_status scatter_add_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *index = fsdp__node_saved(node, 0), *dy = fsdp__op_contiguous(grads[0]), *dsource;

    FSDP__TRY_MADE(dy);
    FSDP_TRY(fsdp__node_give(node, 0, dy));
    if (!fsdp__node_needs(node, 1))
        return FSDP_OK;
    FSDP__TRY_MADE(dsource = fsdp_empty(dy->storage->device, dy->dtype, index->ndim, index->shape));
    FSDP_TRY(launch_gather(dy, index, fsdp__node_state(node), dsource));
    return fsdp__node_give(node, 1, dsource);
}

static const fsdp__op scatter_op = {.name = "scatter", .backward = scatter_backward};
static const fsdp__op scatter_add_op = {.name = "scatter_add", .backward = scatter_add_backward};

/* Scatters. If x is larger than the index, the rest of x stays as it is. `wanted` is checked already, and `source` has
 * its shape. */
static fsdp_tensor *scatter(const fsdp__op *op, fsdp_tensor *x, int dim, fsdp_tensor *wanted, fsdp_tensor *source)
{
    fsdp_tensor *inputs[] = {x, source}, *from, *y;
    fsdp__index_map map;

    for (int d = 0; x && d < x->ndim; d++) {
        int64_t used = wanted->shape[d], size = x->shape[d];
        fsdp_tensor *parts[2];

        if (d == dim || used == size)
            continue;
        parts[0] = scatter(op, fsdp_slice(x, d, 0, used), dim, wanted, source);
        parts[1] = fsdp_slice(x, d, used, size - used);
        return parts[0] && parts[1] ? fsdp_concat(parts, 2, d) : NULL;
    }
    if (!x)
        return NULL;
    map = map_of(x, dim, wanted->shape[dim], true);
    from = fsdp__op_contiguous(source);
    y = fsdp__empty_like(x, x->dtype);
    if (!from || !y || (fsdp_tensor_numel(y) > 0 && fsdp__tensor_copy(y, x, false) != FSDP_OK) ||
        launch_scatter(from, wanted, &map, y, op == &scatter_add_op, true) != FSDP_OK ||
        fsdp__record(op, inputs, 2, &y, 1, &wanted, 1, &map, sizeof map) != FSDP_OK)
        return NULL;
    return y;
}

static fsdp_tensor *check_and_scatter(const fsdp__op *op, fsdp_tensor *x, int dim, fsdp_tensor *index,
                                      fsdp_tensor *source)
{
    fsdp_tensor *inputs[] = {x, index, source}, *wanted;

    if (!x || !index || !source || !fsdp__op_inputs(op->name, inputs, 3) || !fsdp__op_dim(op->name, x, x->ndim, &dim) ||
        !reaches(op->name, "input", x, index, dim) || !reaches(op->name, "source", source, index, -1))
        return NULL;
    if (x->dtype != source->dtype) {
        FSDP_FAIL(FSDP_INVALID, "%s: input is %s and source %s: cast one", op->name, fsdp_dtype_name(x->dtype),
                  fsdp_dtype_name(source->dtype));
        return NULL;
    }
    if (op == &scatter_add_op && !fsdp__op_same_dtype(op->name, &x, 1))
        return NULL;
    wanted = take_index(op->name, index, x->shape[dim]);
    source = wanted ? part_of(source, index->shape, -1) : NULL;
    return source ? scatter(op, x, dim, wanted, source) : NULL;
}

fsdp_tensor *fsdp_scatter(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source)
{
    return check_and_scatter(&scatter_op, x, dim, index, source);
}

fsdp_tensor *fsdp_scatter_add(fsdp_tensor *x, int dim, fsdp_tensor *index, fsdp_tensor *source)
{
    return check_and_scatter(&scatter_add_op, x, dim, index, source);
}

/* ---- the largest ---- */

/* Returns the indices (...,k) of the k best along the last dimension of a contiguous tensor. */
static fsdp_tensor *best(fsdp_tensor *x, int64_t k, bool largest)
{
    fsdp_tensor *indices;
    int64_t shape[FSDP_MAX_DIMS];

    memcpy(shape, x->shape, sizeof shape);
    shape[x->ndim - 1] = k;
    indices = fsdp_empty(x->storage->device, FSDP_I32, x->ndim, shape);
    if (!indices)
        return NULL;
    const fsdp__topk_args args = {.x = fsdp_tensor_data(x),
                                  .indices = fsdp_tensor_data(indices),
                                  .rows = fsdp__op_rows(x),
                                  .cols = fsdp__op_last(x),
                                  .k = k,
                                  .largest = largest,
                                  .dtype = x->dtype};
    if (fsdp_tensor_numel(indices) > 0 && fsdp__launch_topk(fsdp__op_stream(x), &args) != FSDP_OK)
        return NULL;
    fsdp__origin_made(indices, fsdp__origin_of(&x, 1));
    return indices;
}

/* Finds the k best; k below 0: all. `indices` may be NULL. */
static fsdp_tensor *topk(const char *op, fsdp_tensor *x, int64_t k, int dim, bool largest, fsdp_tensor **indices)
{
    fsdp_tensor *chosen, *values;

    if (indices)
        *indices = NULL;
    if (!x || !fsdp__op_inputs(op, &x, 1) || !fsdp__op_same_dtype(op, &x, 1) || !fsdp__op_dim(op, x, x->ndim, &dim))
        return NULL;
    if (k > x->shape[dim] || x->shape[dim] > INT32_MAX) {
        FSDP_FAIL(FSDP_INVALID, "%s: cannot take %lld elements of dimension %d of %s", op, (long long)k, dim,
                  FSDP__SHAPE_OF(x));
        return NULL;
    }
    k = k < 0 ? x->shape[dim] : k;
    x = fsdp_contiguous(fsdp_transpose(x, dim, -1)); /* made once, for the search and for the values */
    chosen = x ? best(x, k, largest) : NULL;
    values = chosen ? fsdp_transpose(gather(&gather_op, x, x->ndim - 1, chosen, true), dim, -1) : NULL;
    chosen = fsdp_contiguous(fsdp_transpose(chosen, dim, -1));
    if (!values || !chosen)
        return NULL;
    if (indices)
        *indices = chosen;
    return values;
}

fsdp_tensor *fsdp_topk(fsdp_tensor *x, int64_t k, int dim, bool largest, fsdp_tensor **indices)
{
    if (k < 0) {
        FSDP_FAIL(FSDP_INVALID, "topk: %lld elements: expected 0 or more", (long long)k);
        return NULL;
    }
    return topk("topk", x, k, dim, largest, indices);
}

fsdp_tensor *fsdp_sort(fsdp_tensor *x, int dim, bool descending, fsdp_tensor **indices)
{
    return topk("sort", x, -1, dim, descending, indices);
}
