/* reduce.c - reductions over some dimensions: sums, means, variances, the largest and the smallest. */
#include "ops/broadcast.h"

#include <math.h>
#include <string.h>

/* Holds what x is reduced over. */
typedef struct reduction {
    bool reduced[FSDP_MAX_DIMS];
    fsdp__shape from; /* x */
    fsdp__shape kept; /* the same number of dimensions; those that are reduced have size 1 */
    fsdp__shape to;   /* the result */
    int64_t count;    /* how many elements make one of the result */
    float alpha;
    bool root; /* it is std, not var */
} reduction;

/* Checks the arguments and plans a reduction. `count` 0: over everything. */
static bool plan(const char *op, fsdp_tensor *x, int count, const int *dims, bool keep_dim, reduction *r)
{
    *r = (reduction){.from = fsdp__shape_of(x), .kept = fsdp__shape_of(x), .count = 1, .alpha = 1.0f};
    if (!fsdp__op_inputs(op, &x, 1) || !fsdp__op_same_dtype(op, &x, 1))
        return false;
    for (int i = 0; i < count; i++) {
        int dim = dims[i];

        if (!fsdp__op_dim(op, x, x->ndim, &dim))
            return false;
        if (r->reduced[dim]) {
            FSDP_FAIL(FSDP_INVALID, "%s: dimension %d is named twice", op, dim);
            return false;
        }
        r->reduced[dim] = true;
    }
    for (int d = 0; d < x->ndim; d++) {
        r->reduced[d] = r->reduced[d] || count == 0;
        if (r->reduced[d]) {
            r->count *= x->shape[d];
            r->kept.sizes[d] = 1;
        }
        if (!r->reduced[d] || keep_dim)
            r->to.sizes[r->to.ndim++] = r->kept.sizes[d];
    }
    return true;
}

/* Views a result, or its gradient, with as many dimensions as x has. */
static fsdp_tensor *as_kept(const reduction *r, fsdp_tensor *tensor)
{
    fsdp_tensor *view = NULL;

    tensor = fsdp__op_contiguous(tensor);
    if (!tensor || fsdp__view_reshape(tensor, r->kept.ndim, r->kept.sizes, &view) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(view);
}

static fsdp_tensor *empty_of(const fsdp_tensor *like, const fsdp__shape *shape)
{
    return fsdp_empty(like->storage->device, like->dtype, shape->ndim, shape->sizes);
}

/* ---- sum, mean ---- */

/* Gives dx: the gradient of the sum, repeated. */
static fsdp_status sum_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const reduction *r = fsdp__node_state(node);
    fsdp_tensor *dy = as_kept(r, grads[0]), *scaled = dy, *dx;
    int64_t strides[FSDP_MAX_DIMS];

    FSDP__TRY_MADE(dx = dy ? empty_of(dy, &r->from) : NULL);
    if (r->alpha != 1.0f) { /* scale before it is repeated: there are fewer elements */
        scaled = fsdp__empty_like(dy, dy->dtype);
        FSDP__TRY_MADE(scaled);
        FSDP_TRY(fsdp__op_scale(dy, r->alpha, NULL, scaled));
    }
    fsdp__broadcast_strides(scaled, dx, strides);
    FSDP_TRY(fsdp__op_broadcast(dx, scaled, strides));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op sum_op = {.name = "sum", .backward = sum_backward};
static const fsdp__op mean_op = {.name = "mean", .backward = sum_backward};
static const fsdp__op sum_dim_op = {.name = "sum_dim", .backward = sum_backward};
static const fsdp__op sum_dims_op = {.name = "sum_dims", .backward = sum_backward};
static const fsdp__op mean_dims_op = {.name = "mean_dims", .backward = sum_backward};

static fsdp_tensor *sum(const fsdp__op *op, fsdp_tensor *x, int count, const int *dims, bool keep_dim, bool mean);

/* Parts may differ in size, so a mean is the sum divided by the elements of the whole. */
static fsdp_tensor *global_sum(const fsdp__op *op, fsdp_tensor *x, int count, const int *dims, bool keep_dim, bool mean)
{
    fsdp__global_call call = {.name = op->name,
                              .rule = FSDP__RULE_REDUCE,
                              .inputs = &x,
                              .count = 1,
                              .dim_count = count,
                              .keep_dim = keep_dim};
    fsdp_tensor *y;

    if (count < 0 || count > FSDP_MAX_DIMS) {
        FSDP_FAIL(FSDP_INVALID, "%s: %d dimensions", op->name, count);
        return NULL;
    }
    if (count > 0)
        memcpy(call.dims, dims, (size_t)count * sizeof *dims);
    if (!fsdp__global_begin(&call))
        return NULL;
    y = sum(op, call.parts[0], count, dims, keep_dim, false);
    return fsdp__global_end(&call, mean ? fsdp_scale(y, 1.0 / (double)call.reduced) : y);
}

static fsdp_tensor *sum(const fsdp__op *op, fsdp_tensor *x, int count, const int *dims, bool keep_dim, bool mean)
{
    fsdp_tensor *from, *y;
    reduction r;

    if (!x || !fsdp__op_has_list(op->name, count, dims))
        return NULL;
    if (fsdp__is_global(&x, 1))
        return global_sum(op, x, count, dims, keep_dim, mean);
    if (!x || !plan(op->name, x, count, dims, keep_dim, &r))
        return NULL;
    r.alpha = mean ? (float)(1.0 / (double)r.count) : 1.0f;
    from = fsdp__op_contiguous(x);
    y = empty_of(x, &r.to);
    if (!from || !y || fsdp__op_reduce_dims(from, r.reduced, FSDP__REDUCE_SUM, r.alpha, y, false) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, NULL, 0, &r, sizeof r) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_sum(fsdp_tensor *x)
{
    return sum(&sum_op, x, 0, NULL, false, false);
}

fsdp_tensor *fsdp_mean(fsdp_tensor *x)
{
    return sum(&mean_op, x, 0, NULL, false, true);
}

fsdp_tensor *fsdp_sum_dim(fsdp_tensor *x, int dim, bool keep_dim)
{
    return sum(&sum_dim_op, x, 1, &dim, keep_dim, false);
}

fsdp_tensor *fsdp_sum_dims(fsdp_tensor *x, int count, const int *dims, bool keep_dim)
{
    return sum(&sum_dims_op, x, count, dims, keep_dim, false);
}

fsdp_tensor *fsdp_mean_dims(fsdp_tensor *x, int count, const int *dims, bool keep_dim)
{
    return sum(&mean_dims_op, x, count, dims, keep_dim, true);
}

/* ---- amax, amin: the gradient goes to all that are equal to the result, in equal parts ---- */

/* Computes part = dy / count, with the count in f32: float16 cannot count more than 65504 equal elements. */
static fsdp_status divide(fsdp_tensor *dy, const fsdp_tensor *count, fsdp_tensor **part)
{
    fsdp_tensor *wide = fsdp_cast(dy, FSDP_F32), *quotient = fsdp__empty_like(count, FSDP_F32);

    FSDP__TRY_MADE(wide && quotient);
    FSDP_TRY(fsdp__binary_compute(FSDP__DIV, wide, count, 0.0f, 0.0f, quotient));
    *part = fsdp_cast(quotient, dy->dtype);
    return *part ? FSDP_OK : fsdp_last_status();
}

static fsdp_status extreme_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const reduction *r = fsdp__node_state(node);
    fsdp_tensor *x = fsdp__by_rows(fsdp__node_saved(node, 0)), *y = as_kept(r, fsdp__node_saved(node, 1));
    fsdp_tensor *dy = as_kept(r, grads[0]), *mask, *ones, *count, *part;

    FSDP__TRY_MADE(x && y && dy);
    mask = fsdp__empty_like(x, FSDP_BOOL);
    ones = fsdp__empty_like(x, FSDP_F32);
    count = fsdp__empty_like(y, FSDP_F32);
    FSDP__TRY_MADE(mask && ones && count);
    FSDP_TRY(fsdp__binary_compute(FSDP__EQ, x, y, 0.0f, 0.0f, mask));
    FSDP_TRY(fsdp__where_compute(mask, NULL, 1.0, NULL, ones));
    FSDP_TRY(fsdp__op_reduce_dims(ones, r->reduced, FSDP__REDUCE_SUM, 1.0f, count, false));
    FSDP_TRY(divide(dy, count, &part));
    FSDP__TRY_MADE(ones = x->dtype == FSDP_F32 ? ones : fsdp__empty_like(x, x->dtype));
    FSDP_TRY(fsdp__where_compute(mask, part, 0.0, NULL, ones));
    return fsdp__node_give(node, 0, ones);
}

static const fsdp__op amax_op = {.name = "amax", .backward = extreme_backward};
static const fsdp__op amin_op = {.name = "amin", .backward = extreme_backward};

static fsdp_tensor *extreme(const fsdp__op *op, fsdp__reduce_op kind, fsdp_tensor *x, int count, const int *dims,
                            bool keep_dim)
{
    fsdp_tensor *from, *y;
    reduction r;

    if (!x || !fsdp__op_has_list(op->name, count, dims) || !plan(op->name, x, count, dims, keep_dim, &r))
        return NULL;
    if (r.count == 0)
        return fsdp__op_bad(op->name, "input", "of at least one element", x);
    from = fsdp__op_contiguous(x);
    y = empty_of(x, &r.to);
    if (!from || !y || fsdp__op_reduce_dims(from, r.reduced, kind, 1.0f, y, false) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, (fsdp_tensor *[]){from, y}, 2, &r, sizeof r) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_amax(fsdp_tensor *x, int count, const int *dims, bool keep_dim)
{
    return extreme(&amax_op, FSDP__REDUCE_MAX, x, count, dims, keep_dim);
}

fsdp_tensor *fsdp_amin(fsdp_tensor *x, int count, const int *dims, bool keep_dim)
{
    return extreme(&amin_op, FSDP__REDUCE_MIN, x, count, dims, keep_dim);
}

/* ---- var, std ---- */

/* Returns x with the reduced dimensions moved behind the others and contiguous, so that they are one run. */
static fsdp_tensor *reduced_last(const reduction *r, fsdp_tensor *x)
{
    int64_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];
    fsdp_tensor *view = NULL;
    int n = 0;

    for (int side = 0; side < 2; side++)
        for (int d = 0; d < x->ndim; d++) {
            if (r->reduced[d] != (side == 1))
                continue;
            shape[n] = x->shape[d];
            strides[n++] = x->strides[d];
        }
    if (fsdp__tensor_create_view(x->storage, x->dtype, n, shape, strides, x->offset, &view) != FSDP_OK)
        return NULL;
    return fsdp__op_contiguous(fsdp__scope_adopt(view));
}

/* Gives the gradient of the variance: that of (x - mean)^2, whose sum does not depend on the mean to first order. */
static fsdp_status var_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const reduction *r = fsdp__node_state(node);
    fsdp_tensor *x = fsdp__by_rows(fsdp__node_saved(node, 0)), *mean = fsdp__node_saved(node, 1);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *scaled, *dx;

    scaled = dy ? fsdp__empty_like(dy, dy->dtype) : NULL;
    dx = scaled ? empty_of(dy, &r->from) : NULL;
    mean = as_kept(r, mean);
    FSDP__TRY_MADE(x && mean && dx);
    FSDP_TRY(fsdp__op_scale(dy, r->alpha, NULL, scaled));
    if (r->root) { /* by the square root; 0 where the result is 0, which has no derivative */
        const fsdp_tensor *y = fsdp__node_saved(node, 2);
        fsdp_tensor *flat = fsdp__empty_like(y, FSDP_BOOL);
        const fsdp__unary_backward_args args = {.saved = fsdp_tensor_data(y),
                                                .dy = fsdp_tensor_data(scaled),
                                                .dx = fsdp_tensor_data(scaled),
                                                .numel = fsdp_tensor_numel(y),
                                                .op = FSDP__SQRT,
                                                .dtype = y->dtype};

        FSDP__TRY_MADE(flat);
        FSDP_TRY(fsdp__launch_unary_backward(fsdp__op_stream(y), &args));
        FSDP_TRY(fsdp__binary_compute(FSDP__EQ, y, NULL, 0.0f, 0.0f, flat));
        FSDP_TRY(fsdp__where_compute(flat, NULL, 0.0, scaled, scaled));
    }
    FSDP__TRY_MADE(scaled = as_kept(r, scaled));
    FSDP_TRY(fsdp__binary_slopes(FSDP__SQUARED_ERROR, x, mean, scaled, dx));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op var_op = {.name = "var", .backward = var_backward};
static const fsdp__op std_op = {.name = "std", .backward = var_backward};

/* Computes *y = the sum of squared distances from *mean, times r->alpha. */
static fsdp_status moments(const reduction *r, fsdp_tensor *x, fsdp_tensor *mean, fsdp_tensor *y)
{
    fsdp_tensor *from = reduced_last(r, x);
    fsdp__reduce_args args = {.outer = fsdp_tensor_numel(y),
                              .reduced = r->count,
                              .inner = 1,
                              .alpha = (float)(1.0 / (double)r->count),
                              .x_dtype = x->dtype,
                              .y_dtype = FSDP_F32};

    FSDP__TRY_MADE(from);
    if (args.outer == 0)
        return FSDP_OK;
    args.x = fsdp_tensor_data(from);
    args.y = fsdp_tensor_data(mean);
    FSDP_TRY(fsdp__launch_reduce(fsdp__op_stream(y), &args));
    args.center = args.y;
    args.y = fsdp_tensor_data(y);
    args.y_dtype = y->dtype;
    args.alpha = r->alpha;
    return fsdp__launch_reduce(fsdp__op_stream(y), &args);
}

static fsdp_tensor *variance(const fsdp__op *op, fsdp_tensor *x, int count, const int *dims, double correction,
                             bool keep_dim, bool root)
{
    fsdp_tensor *mean, *y, *saved[3];
    reduction r;

    if (!x || !fsdp__op_has_list(op->name, count, dims) || !plan(op->name, x, count, dims, keep_dim, &r))
        return NULL;
    r.root = root;
    /* If there is nothing to divide by this is infinity, and 0 times it NaN. */
    r.alpha = (float)(1.0 / fmax((double)r.count - correction, 0.0));
    y = empty_of(x, &r.to);
    mean = y ? fsdp__empty_like(y, FSDP_F32) : NULL;
    if (!mean || moments(&r, x, mean, y) != FSDP_OK)
        return NULL;
    if (root) {
        const fsdp__unary_forward_args args = {.x = fsdp_tensor_data(y),
                                               .y = fsdp_tensor_data(y),
                                               .numel = fsdp_tensor_numel(y),
                                               .op = FSDP__SQRT,
                                               .dtype = y->dtype};
        if (fsdp__launch_unary_forward(fsdp__op_stream(y), &args) != FSDP_OK)
            return NULL;
    }
    saved[0] = x;
    saved[1] = x->dtype == FSDP_F32 ? mean : fsdp__empty_like(mean, x->dtype);
    saved[2] = root ? y : NULL;
    if (!saved[1] || (saved[1] != mean && fsdp__tensor_copy(saved[1], mean, false) != FSDP_OK) ||
        fsdp__record(op, &x, 1, &y, 1, saved, 3, &r, sizeof r) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_var(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim)
{
    return variance(&var_op, x, count, dims, correction, keep_dim, false);
}

fsdp_tensor *fsdp_std(fsdp_tensor *x, int count, const int *dims, double correction, bool keep_dim)
{
    return variance(&std_op, x, count, dims, correction, keep_dim, true);
}

/* ---- along one dimension, with the index: the first of equals ---- */

static fsdp_tensor *best(const char *op, fsdp_tensor *x, int dim, bool keep_dim, bool largest, fsdp_tensor **indices)
{
    reduction r;
    fsdp_tensor *y;

    *indices = NULL;
    if (!x || !plan(op, x, 1, &dim, keep_dim, &r))
        return NULL;
    if (r.count == 0)
        return fsdp__op_bad(op, "input", "of at least one element", x);
    /* topk takes a NaN for the largest: so the smallest is the largest of the negated values, where a NaN wins as
     * well. */
    y = fsdp_topk(largest ? x : fsdp_neg(x), 1, dim, true, indices);
    y = largest ? y : fsdp_neg(y);
    *indices = y ? fsdp_reshape(*indices, r.to.ndim, r.to.sizes) : NULL;
    return y ? fsdp_reshape(y, r.to.ndim, r.to.sizes) : NULL;
}

fsdp_tensor *fsdp_max(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices)
{
    fsdp_tensor *place;

    return best("max", x, dim, keep_dim, true, indices ? indices : &place);
}

fsdp_tensor *fsdp_min(fsdp_tensor *x, int dim, bool keep_dim, fsdp_tensor **indices)
{
    fsdp_tensor *place;

    return best("min", x, dim, keep_dim, false, indices ? indices : &place);
}

static fsdp_tensor *place_of_best(const char *op, fsdp_tensor *x, int dim, bool keep_dim, bool largest)
{
    fsdp_tensor *detached = fsdp_detach(x), *indices;

    return best(op, detached, dim, keep_dim, largest, &indices) ? indices : NULL;
}

fsdp_tensor *fsdp_argmax(fsdp_tensor *x, int dim, bool keep_dim)
{
    return place_of_best("argmax", x, dim, keep_dim, true);
}

fsdp_tensor *fsdp_argmin(fsdp_tensor *x, int dim, bool keep_dim)
{
    return place_of_best("argmin", x, dim, keep_dim, false);
}
