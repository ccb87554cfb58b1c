/* compare.c - masks: comparisons that make them, and operations that choose by them. */
#include "ops/broadcast.h"

#include <string.h>

/* ---- making masks ---- */

/* Checks that both have one dtype, of any kind. */
static bool same_kind(const char *op, const fsdp_tensor *a, const fsdp_tensor *b)
{
    if (a->dtype == b->dtype)
        return true;
    FSDP_FAIL(FSDP_INVALID, "%s: inputs are %s and %s: cast one", op, fsdp_dtype_name(a->dtype),
              fsdp_dtype_name(b->dtype));
    return false;
}

static fsdp_tensor *compare(const char *op, fsdp__binary_op kind, fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *inputs[] = {a, b}, *y;
    fsdp__shape shape;

    if (a && b && fsdp__is_global(inputs, 2)) {
        fsdp__global_call call = {.name = op, .rule = FSDP__RULE_POINTWISE, .inputs = inputs, .count = 2};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, compare(op, kind, call.parts[0], call.parts[1]))
                                         : NULL;
    }
    if (!a || !b || !fsdp__op_inputs(op, inputs, 2) || !same_kind(op, a, b))
        return NULL;
    shape = fsdp__shape_of(a);
    if (!fsdp__broadcast_with(op, a, b, &shape))
        return NULL;
    a = fsdp__by_rows(a);
    b = fsdp__by_rows(b);
    y = a ? fsdp_empty(a->storage->device, FSDP_BOOL, shape.ndim, shape.sizes) : NULL;
    if (!b || !y || fsdp__binary_compute(kind, a, b, 0.0f, 0.0f, y) != FSDP_OK)
        return NULL;
    fsdp__origin_made(y, fsdp__origin_of((fsdp_tensor *[]){a, b}, 2));
    return y;
}

#define COMPARE(function, KIND)                                  \
    fsdp_tensor *fsdp_##function(fsdp_tensor *a, fsdp_tensor *b) \
    {                                                            \
        return compare(#function, FSDP__##KIND, a, b);           \
    }

COMPARE(eq, EQ)
COMPARE(ne, NE)
COMPARE(lt, LT)
COMPARE(le, LE)
COMPARE(gt, GT)
COMPARE(ge, GE)
COMPARE(logical_and, AND)
COMPARE(logical_or, OR)

fsdp_tensor *fsdp_logical_not(fsdp_tensor *x)
{
    return compare("logical_not", FSDP__EQ, x, fsdp_scalar(x, 0.0));
}

/* ---- choosing by masks ---- */

fsdp_status fsdp__where_compute(const fsdp_tensor *mask, const fsdp_tensor *a, double a_scalar, const fsdp_tensor *b,
                                fsdp_tensor *y)
{
    fsdp__where_args args = {.mask = fsdp_tensor_data(mask),
                             .a = a ? fsdp_tensor_data(a) : NULL,
                             .b = b ? fsdp_tensor_data(b) : NULL,
                             .y = fsdp_tensor_data(y),
                             .ndim = y->ndim,
                             .a_scalar = a_scalar,
                             .dtype = y->dtype};

    memcpy(args.shape, y->shape, sizeof args.shape);
    fsdp__broadcast_strides(mask, y, args.mask_strides);
    if (a)
        fsdp__broadcast_strides(a, y, args.a_strides);
    if (b)
        fsdp__broadcast_strides(b, y, args.b_strides);
    return fsdp__launch_where(fsdp__op_stream(y), &args);
}

typedef struct where_state {
    fsdp__shape shapes[2]; /* shapes of a and b */
} where_state;

/* Gives each side dy where it was chosen, else 0. */
static fsdp_status where_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const where_state *state = fsdp__node_state(node);
    fsdp_tensor *mask = fsdp__by_rows(fsdp__node_saved(node, 0)), *dy = fsdp__by_rows(grads[0]), *out;

    FSDP__TRY_MADE(mask && dy);
    if (fsdp__node_needs(node, 1)) { /* do this before dy may be overwritten */
        out = fsdp__node_needs(node, 0) ? fsdp__empty_like(dy, dy->dtype) : fsdp__op_reuse(dy);
        FSDP__TRY_MADE(out);
        FSDP_TRY(fsdp__where_compute(mask, NULL, 0.0, dy, out));
        FSDP_TRY(fsdp__give_summed(node, 1, out, &state->shapes[1]));
    }
    if (fsdp__node_needs(node, 0)) {
        FSDP__TRY_MADE(out = fsdp__op_reuse(dy));
        FSDP_TRY(fsdp__where_compute(mask, dy, 0.0, NULL, out));
        FSDP_TRY(fsdp__give_summed(node, 0, out, &state->shapes[0]));
    }
    return FSDP_OK;
}

static const fsdp__op where_op = {.name = "where", .backward = where_backward};
static const fsdp__op masked_fill_op = {.name = "masked_fill", .backward = where_backward};

static bool is_mask(const char *op, const fsdp_tensor *mask)
{
    if (mask->dtype == FSDP_BOOL)
        return true;
    fsdp__op_bad(op, "mask", "bool", mask);
    return false;
}

/* Computes mask ? a : b; if a is NULL, `value` takes its place. The inputs of the node are a and b. */
static fsdp_tensor *choose(const fsdp__op *op, fsdp_tensor *mask, fsdp_tensor *a, double value, fsdp_tensor *b)
{
    where_state state = {.shapes = {[1] = fsdp__shape_of(b)}};
    fsdp_tensor *inputs[] = {a, b, mask}, *y;
    fsdp__shape shape = state.shapes[1];

    if (fsdp__is_global(inputs, 3)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_POINTWISE, .inputs = inputs, .count = 3};

        return fsdp__global_begin(&call)
                   ? fsdp__global_end(&call, choose(op, call.parts[2], call.parts[0], value, call.parts[1]))
                   : NULL;
    }
    if (!fsdp__op_inputs(op->name, inputs, 3) || !is_mask(op->name, mask))
        return NULL;
    if (a) {
        state.shapes[0] = shape = fsdp__shape_of(a);
        if (!same_kind(op->name, a, b) || !fsdp__broadcast_with(op->name, a, b, &shape))
            return NULL;
    }
    if (!fsdp__broadcast_with(op->name, b, mask, &shape))
        return NULL;
    y = fsdp_empty(b->storage->device, b->dtype, shape.ndim, shape.sizes);
    b = fsdp__by_rows(b);
    mask = fsdp__by_rows(mask);
    if (!y || !b || !mask || (a && !(a = fsdp__by_rows(a))) || fsdp__where_compute(mask, a, value, b, y) != FSDP_OK ||
        fsdp__record(op, inputs, 2, &y, 1, &mask, 1, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_where(fsdp_tensor *mask, fsdp_tensor *a, fsdp_tensor *b)
{
    return mask && a && b ? choose(&where_op, mask, a, 0.0, b) : NULL;
}

fsdp_tensor *fsdp_masked_fill(fsdp_tensor *x, fsdp_tensor *mask, double value)
{
    if (!x || !mask)
        return NULL;
    if (fsdp__check_number(x->dtype, value) != FSDP_OK) {
        (void)fsdp_fail_prefix(FSDP_INVALID, "masked_fill");
        return NULL;
    }
    return choose(&masked_fill_op, mask, NULL, value, x);
}
