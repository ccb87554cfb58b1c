/* reshape.c - other shapes on the same bytes; copies are made only if the strides do not allow a view. */
#include "ops/broadcast.h"

#include "base/alloc.h"

#include <string.h>

static const fsdp__traits no_traits = {0};

/* Records a view under `op` and gives it to the scope. Takes ownership of `view`. */
static fsdp_tensor *finish(const fsdp__traits *traits, const fsdp__op *op, fsdp_tensor *x, fsdp_tensor *view,
                           const void *state, size_t state_bytes)
{
    fsdp_tensor *y = fsdp__scope_adopt(view);

    if (!y || fsdp__record_with(traits, op, &x, 1, &y, 1, NULL, 0, state, state_bytes) != FSDP_OK)
        return NULL;
    return y;
}

/* ---- reshape ---- */

typedef struct reshape_state {
    fsdp__shape from, to;
    const fsdp__storage *placed; /* where the gradient's place is, to be passed on as it lies there; or NULL */
} reshape_state;

static fsdp_status reshape_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    reshape_state *state = fsdp__node_state(node);
    bool placed = grads[0]->storage == state->placed;
    fsdp_tensor *dy = placed ? grads[0] : fsdp__op_contiguous(grads[0]), *dx = NULL;
    fsdp_status status;

    state->placed = NULL;
    FSDP__TRY_MADE(dy);
    FSDP_TRY(fsdp__view_reshape(dy, state->from.ndim, state->from.sizes, &dx));
    status = fsdp__node_give(node, 0, dx);
    fsdp_tensor_unref(dx);
    return status;
}

/* Gives the input's place in the output's shape. */
static fsdp_status reshape_place(fsdp__node *node, int output, fsdp_tensor **out)
{
    reshape_state *state = fsdp__node_state(node);
    fsdp_tensor *place;
    fsdp_status status;

    (void)output;
    FSDP_TRY(fsdp__node_place(node, 0, &place));
    if (!place)
        return FSDP_OK;
    status = fsdp__view_reshape(place, state->to.ndim, state->to.sizes, out);
    if (status == FSDP_OK)
        state->placed = place->storage;
    if (status != FSDP_INVALID)
        return status;
    fsdp_clear_error(); /* its strides do not allow that */
    return FSDP_OK;
}

static const fsdp__op reshape_op = {.name = "reshape", .backward = reshape_backward};
static const fsdp__traits reshape_traits = {.place = reshape_place};

static fsdp_tensor *finish_reshape(fsdp_tensor *x, fsdp_tensor *view)
{
    const reshape_state state = {.from = fsdp__shape_of(x), .to = fsdp__shape_of(view)};

    return finish(&reshape_traits, &reshape_op, x, view, &state, sizeof state);
}

static fsdp_tensor *global_reshape(fsdp_tensor *x, int ndim, const int64_t *shape)
{
    fsdp__global_call call = {.name = "reshape", .rule = FSDP__RULE_RESHAPE, .inputs = &x, .count = 1, .ndim = ndim};

    memcpy(call.sizes, shape, (size_t)FSDP__MIN(FSDP__MAX(ndim, 0), FSDP_MAX_DIMS) * sizeof *shape);
    return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_reshape(call.parts[0], ndim, call.sizes)) : NULL;
}

fsdp_tensor *fsdp_reshape(fsdp_tensor *x, int ndim, const int64_t *shape)
{
    fsdp_tensor *view = NULL, *copy;

    if (!x || !fsdp__op_has_list("reshape", ndim, shape))
        return NULL;
    if (fsdp__is_global(&x, 1))
        return global_reshape(x, ndim, shape);
    if (!x || !fsdp__op_inputs("reshape", &x, 1))
        return NULL;
    if (fsdp__view_reshape(x, ndim, shape, &view) == FSDP_OK)
        return finish_reshape(x, view);
    if (fsdp_tensor_is_contiguous(x)) /* then the strides were not the reason */
        return NULL;
    copy = fsdp__op_contiguous(x);
    if (!copy || fsdp__view_reshape(copy, ndim, shape, &view) != FSDP_OK)
        return NULL;
    return finish_reshape(x, view);
}

/* ---- transpose ---- */

static fsdp_status transpose_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const int *dims = fsdp__node_state(node);
    fsdp_tensor *dx = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__view_transpose(grads[0], dims[0], dims[1], &dx));
    status = fsdp__node_give(node, 0, dx);
    fsdp_tensor_unref(dx);
    return status;
}

static const fsdp__op transpose_op = {.name = "transpose", .backward = transpose_backward};

fsdp_tensor *fsdp_transpose(fsdp_tensor *x, int dim0, int dim1)
{
    const int dims[] = {dim0, dim1};
    fsdp_tensor *view = NULL;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = "transpose",
                                  .rule = FSDP__RULE_TRANSPOSE,
                                  .inputs = &x,
                                  .count = 1,
                                  .dims = {dim0, dim1},
                                  .dim_count = 2};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_transpose(call.parts[0], dim0, dim1)) : NULL;
    }
    if (!x || !fsdp__op_inputs("transpose", &x, 1) || fsdp__view_transpose(x, dim0, dim1, &view) != FSDP_OK)
        return NULL;
    return finish(&no_traits, &transpose_op, x, view, dims, sizeof dims);
}

/* ---- slice ---- */

typedef struct slice_state {
    int dim;
    int64_t start, length;
} slice_state;

/* Writes the gradient into that of the full tensor, which is zero outside the slice. Slices of one tensor share it: the
 * later ones only add. */
static fsdp_status slice_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const slice_state *state = fsdp__node_state(node);
    fsdp_tensor *full, *part = NULL;
    fsdp_status status;
    bool accumulate;

    FSDP_TRY(fsdp__node_target(node, 0, &full, &accumulate));
    if (!accumulate)
        FSDP_TRY(fsdp_tensor_fill_(full, 0.0));
    FSDP_TRY(fsdp__view_narrow(full, state->dim, state->start, state->length, &part));
    status = fsdp__tensor_copy(part, grads[0], accumulate);
    fsdp_tensor_unref(part);
    return status;
}

static const fsdp__op slice_op = {.name = "slice", .backward = slice_backward};

fsdp_tensor *fsdp_slice(fsdp_tensor *x, int dim, int64_t start, int64_t length)
{
    const slice_state state = {dim, start, length};
    fsdp_tensor *view = NULL;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = "slice",
                                  .rule = FSDP__RULE_SLICE,
                                  .inputs = &x,
                                  .count = 1,
                                  .dims = {dim},
                                  .dim_count = 1,
                                  .ndim = 2,
                                  .sizes = {start, length}};

        return fsdp__global_begin(&call)
                   ? fsdp__global_end(&call, fsdp_slice(call.parts[0], dim, call.sizes[0], call.sizes[1]))
                   : NULL;
    }
    if (!x || !fsdp__op_inputs("slice", &x, 1) || fsdp__view_narrow(x, dim, start, length, &view) != FSDP_OK)
        return NULL;
    return finish(&no_traits, &slice_op, x, view, &state, sizeof state);
}

/* ---- concat ---- */

static fsdp_status concat_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const int64_t *state = fsdp__node_state(node); /* dimension, count, then where each part begins, and the end */
    int count = (int)state[1];

    for (int i = 0; i < count; i++) {
        fsdp_tensor *part = NULL;
        fsdp_status status;

        if (!fsdp__node_needs(node, i))
            continue;
        FSDP_TRY(fsdp__view_narrow(grads[0], (int)state[0], state[2 + i], state[3 + i] - state[2 + i], &part));
        status = fsdp__node_give(node, i, part);
        fsdp_tensor_unref(part);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static const fsdp__op concat_op = {.name = "concat", .backward = concat_backward};

/* Checks that all tensors fit the first outside `dim`, and sets `state` as concat_backward reads it. */
static bool plan_concat(fsdp_tensor *const *tensors, int count, int dim, int64_t *state)
{
    const fsdp_tensor *first = tensors[0];

    state[0] = dim;
    state[1] = count;
    state[2] = 0;
    for (int i = 0; i < count; i++) {
        const fsdp_tensor *t = tensors[i];
        bool fits = t->ndim == first->ndim && t->dtype == first->dtype;

        for (int d = 0; fits && d < t->ndim; d++)
            fits = d == dim || t->shape[d] == first->shape[d];
        if (!fits) {
            fsdp__op_misfit("concat", "tensor", t, "the first", first);
            return false;
        }
        state[3 + i] = state[2 + i] + t->shape[dim];
    }
    return true;
}

static fsdp_status fill_concat(fsdp_tensor *y, fsdp_tensor *const *tensors, int count, int dim, const int64_t *state)
{
    for (int i = 0; i < count; i++) {
        fsdp_tensor *part = NULL;
        fsdp_status status;

        FSDP_TRY(fsdp__view_narrow(y, dim, state[2 + i], state[3 + i] - state[2 + i], &part));
        status = fsdp__tensor_copy(part, tensors[i], false);
        fsdp_tensor_unref(part);
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

static bool can_concat(fsdp_tensor *const *tensors, int count, int *dim)
{
    if (!tensors || count < 1) {
        FSDP_FAIL(FSDP_INVALID, "concat: at least one tensor is needed");
        return false;
    }
    for (int i = 0; i < count; i++)
        if (!tensors[i])
            return false;
    return fsdp__op_dim("concat", tensors[0], tensors[0]->ndim, dim) && fsdp__op_inputs("concat", tensors, count);
}

fsdp_tensor *fsdp_concat(fsdp_tensor *const *tensors, int count, int dim)
{
    int64_t shape[FSDP_MAX_DIMS], *state;
    fsdp_tensor *y = NULL;

    if (tensors && fsdp__is_global(tensors, count)) {
        fsdp__global_call call = {.name = "concat",
                                  .rule = FSDP__RULE_CONCAT,
                                  .inputs = tensors,
                                  .count = count,
                                  .dims = {dim},
                                  .dim_count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_concat(call.parts, count, dim)) : NULL;
    }
    if (!can_concat(tensors, count, &dim))
        return NULL;
    state = fsdp__malloc((size_t)(count + 3) * sizeof *state);
    if (!state)
        return NULL;
    if (plan_concat(tensors, count, dim, state)) {
        memcpy(shape, tensors[0]->shape, sizeof shape);
        shape[dim] = state[2 + count];
        y = fsdp_empty(tensors[0]->storage->device, tensors[0]->dtype, tensors[0]->ndim, shape);
    }
    if (y && (fill_concat(y, tensors, count, dim, state) != FSDP_OK ||
              fsdp__record(&concat_op, tensors, count, &y, 1, NULL, 0, state, (size_t)(count + 3) * sizeof *state) !=
                  FSDP_OK))
        y = NULL;
    fsdp__free(state);
    return y;
}

/* ---- contiguous ---- */

static const fsdp__op contiguous_op = {.name = "contiguous", .backward = fsdp__node_pass_on};

fsdp_tensor *fsdp_contiguous(fsdp_tensor *x)
{
    fsdp_tensor *y;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = "contiguous", .rule = FSDP__RULE_LINEAR, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_contiguous(call.parts[0])) : NULL;
    }
    if (!x || !fsdp__op_inputs("contiguous", &x, 1))
        return NULL;
    y = fsdp__op_contiguous(x);
    if (!y || y == x)
        return y;
    return fsdp__record(&contiguous_op, &x, 1, &y, 1, NULL, 0, NULL, 0) == FSDP_OK ? y : NULL;
}
