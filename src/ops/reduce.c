/* reduce.c - sums and means. */
#include "ops/op.h"

#include <string.h>

/* What x (outer,reduced,inner) is summed over, and by what the sum is multiplied. */
typedef struct reduction {
    int dim; /* -1: over everything */
    bool keep_dim;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS]; /* of x */
    float alpha;
} reduction;

/* dx: the gradient of the sum, repeated. */
static fsdp_status reduce_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const reduction *r = fsdp__node_state(node);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx, *scaled = dy;
    int64_t strides[FSDP_MAX_DIMS] = {0};

    dx = dy ? fsdp_empty(dy->storage->device, dy->dtype, r->ndim, r->shape) : NULL;
    if (!dx)
        return fsdp_last_status();
    if (r->alpha != 1.0f) { /* on the few, not on the many */
        scaled = fsdp__op_reuse(dy);
        if (!scaled)
            return fsdp_last_status();
        FSDP_TRY(fsdp__op_scale(dy, r->alpha, NULL, scaled));
    }
    for (int i = 0, j = 0; r->dim >= 0 && i < r->ndim; i++) {
        strides[i] = i == r->dim ? 0 : scaled->strides[j];
        j += i != r->dim || r->keep_dim;
    }
    FSDP_TRY(fsdp__op_broadcast(dx, scaled, strides));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op sum_op = {.name = "sum", .backward = reduce_backward};
static const fsdp__op mean_op = {.name = "mean", .backward = reduce_backward};
static const fsdp__op sum_dim_op = {.name = "sum_dim", .backward = reduce_backward};

static fsdp_tensor *reduce(const fsdp__op *op, fsdp_tensor *x, reduction r, int ndim, const int64_t *shape)
{
    int64_t outer = 1, reduced = 1, inner = 1;
    fsdp_tensor *from = fsdp__op_contiguous(x), *y;

    for (int i = 0; i < x->ndim; i++) {
        if (r.dim < 0 || i == r.dim)
            reduced *= x->shape[i];
        else if (i < r.dim)
            outer *= x->shape[i];
        else
            inner *= x->shape[i];
    }
    r.ndim = x->ndim;
    memcpy(r.shape, x->shape, sizeof r.shape);
    y = fsdp_empty(x->storage->device, x->dtype, ndim, shape);
    if (!from || !y)
        return NULL;
    if (fsdp_tensor_numel(y) > 0 && fsdp__op_reduce(from, outer, reduced, inner, r.alpha, y, false) != FSDP_OK)
        return NULL;
    if (fsdp__record(op, &x, 1, &y, 1, NULL, 0, &r, sizeof r) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_sum(fsdp_tensor *x)
{
    if (!x || !fsdp__op_inputs("sum", &x, 1) || !fsdp__op_same_dtype("sum", &x, 1))
        return NULL;
    return reduce(&sum_op, x, (reduction){.dim = -1, .alpha = 1.0f}, 0, NULL);
}

fsdp_tensor *fsdp_mean(fsdp_tensor *x)
{
    if (!x || !fsdp__op_inputs("mean", &x, 1) || !fsdp__op_same_dtype("mean", &x, 1))
        return NULL;
    if (fsdp_tensor_numel(x) == 0)
        return fsdp__op_bad("mean", "input", "of at least one element", x);
    return reduce(&mean_op, x, (reduction){.dim = -1, .alpha = (float)(1.0 / (double)fsdp_tensor_numel(x))}, 0, NULL);
}

fsdp_tensor *fsdp_sum_dim(fsdp_tensor *x, int dim, bool keep_dim)
{
    int64_t shape[FSDP_MAX_DIMS];
    char text[FSDP__SHAPE_TEXT];
    int wanted = dim, ndim = 0;

    if (!x || !fsdp__op_inputs("sum_dim", &x, 1) || !fsdp__op_same_dtype("sum_dim", &x, 1))
        return NULL;
    dim += dim < 0 ? x->ndim : 0;
    if (dim < 0 || dim >= x->ndim) {
        FSDP_FAIL(FSDP_INVALID, "sum_dim: input %s has no dimension %d", fsdp__shape_text(x->ndim, x->shape, text),
                  wanted);
        return NULL;
    }
    for (int i = 0; i < x->ndim; i++)
        if (i != dim || keep_dim)
            shape[ndim++] = i == dim ? 1 : x->shape[i];
    return reduce(&sum_dim_op, x, (reduction){.dim = dim, .keep_dim = keep_dim, .alpha = 1.0f}, ndim, shape);
}
