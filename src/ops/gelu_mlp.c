/* gelu_mlp.c - two linears with GELU between them, whose products take it along.
 *
 * h (...,F) is the first linear's result, y = gelu(h), z (...,O) the second's of y. The first product writes h and y.
 * In the backward the product that makes dy multiplies it by gelu'(h): what it writes is dh. So no pass reads h to make
 * y, and none reads h and dy to make dh. */
#include "base/alloc.h"
#include "ops/op.h"

enum {
    X,
    WEIGHT, /* and behind it its bias */
    SECOND = 3,
    INPUTS = 5
};

/* Says what is saved. */
enum {
    SAVED_X,
    SAVED_WEIGHT,
    SAVED_H,
    SAVED_Y,
    SAVED_SECOND,
    SAVED
};

/* ---- which there are ---- */

/* Returns how many columns the result has of an input with `in`; -1: the weight or the bias is not for it. */
static int64_t width_of(const fsdp__gelu_mlp *m, int i, int64_t in)
{
    const fsdp_tensor *weight = m->weights[i], *bias = m->biases[i];
    int64_t out;

    if (!weight || !bias || weight->ndim != 2 || weight->dtype != m->x->dtype ||
        weight->storage->device != m->x->storage->device || weight->shape[m->conv1d ? 0 : 1] != in)
        return -1;
    out = weight->shape[m->conv1d ? 1 : 0];
    if (bias == FSDP_NO_BIAS)
        return out;
    return bias->ndim == 1 && bias->shape[0] == out && bias->dtype == m->x->dtype ? out : -1;
}

static fsdp_tensor *bias_of(const fsdp__gelu_mlp *m, int i)
{
    return m->biases[i] == FSDP_NO_BIAS ? NULL : m->biases[i];
}

bool fsdp__gelu_mlp_joins(const fsdp__gelu_mlp *m)
{
    fsdp_tensor *inputs[] = {m->x, m->weights[0], m->biases[0], m->weights[1], m->biases[1]};
    int64_t inner;

    for (int i = 0; i < INPUTS; i++) {
        if (!inputs[i])
            return false;
        if (inputs[i] == FSDP_NO_BIAS)
            inputs[i] = NULL;
    }
    if (m->x->ndim < 1 || fsdp_tensor_numel(m->x) == 0 || !fsdp__device_gelu_products(m->x->storage->device) ||
        !fsdp_dtype_is_floating(m->x->dtype) || fsdp__is_global(inputs, INPUTS) ||
        fsdp__in_recomputation(fsdp_device_context(m->x->storage->device)))
        return false;
    inner = width_of(m, 0, fsdp__op_last(m->x));
    return inner > 0 && width_of(m, 1, inner) > 0;
}

/* ---- backward ---- */

/* Computes dh = (dz W2^T) * gelu'(h), (...,F). */
static fsdp_status inner_gradient(fsdp__node *node, fsdp_tensor *dz, bool conv1d, fsdp_tensor **out)
{
    fsdp_tensor *h = fsdp__node_saved(node, SAVED_H);
    fsdp__matrix a, weight;

    FSDP__TRY_NEW(*out = fsdp_empty(h->storage->device, h->dtype, h->ndim, h->shape));
    FSDP_TRY(fsdp__matrix_of(dz, &a));
    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, SAVED_SECOND), &weight));
    return fsdp__gemm_gelu_gradient(a, conv1d ? fsdp__matrix_transposed(weight) : weight, *out, h);
}

/* Computes dx [+]= dh W1^T. */
static fsdp_status input_gradient(fsdp__node *node, fsdp_tensor *dh, bool conv1d)
{
    fsdp__matrix a, weight;
    fsdp_tensor *dx;
    bool accumulate;

    FSDP_TRY(fsdp__matrix_of(dh, &a));
    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, SAVED_WEIGHT), &weight));
    FSDP_TRY(fsdp__node_target(node, X, &dx, &accumulate));
    return fsdp__gemm(a, conv1d ? fsdp__matrix_transposed(weight) : weight, NULL, dx, accumulate);
}

static fsdp_status mlp_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    bool conv1d = *(const bool *)fsdp__node_state(node);
    bool inner = fsdp__node_needs(node, X) || fsdp__node_needs(node, WEIGHT) || fsdp__node_needs(node, WEIGHT + 1);
    fsdp_tensor *dz = fsdp__op_contiguous(grads[0]), *dh = NULL;

    FSDP__TRY_MADE(dz);
    if ((inner && !fsdp__node_saved(node, SAVED_H)) ||
        (fsdp__node_needs(node, SECOND) && !fsdp__node_saved(node, SAVED_Y)))
        return FSDP_FAIL(FSDP_STATE,
                         "gelu_mlp: a backward that failed has dropped what it had saved: run a new forward");
    if (inner)
        FSDP_TRY(inner_gradient(node, dz, conv1d, &dh));
    FSDP_TRY(fsdp__linear_leaf_gradients(node, SECOND, fsdp__node_saved(node, SAVED_Y), dz, conv1d));
    fsdp__node_drop_saved(node, SAVED_H);
    fsdp__node_drop_saved(node, SAVED_Y);
    if (!dh)
        return FSDP_OK;
    if (fsdp__node_needs(node, X))
        FSDP_TRY(input_gradient(node, dh, conv1d));
    FSDP_TRY(fsdp__node_remake(node)); /* x, beside which the inner activations are no more */
    return fsdp__linear_leaf_gradients(node, WEIGHT, fsdp__node_saved(node, SAVED_X), dh, conv1d);
}

static const fsdp__op mlp_op = {.name = "gelu_mlp", .backward = mlp_backward};
static const fsdp__traits traits = {.remakes_late = true, .last_leaf_first = true};

/* ---- forward ---- */

static fsdp_tensor *empty_with(const fsdp_tensor *x, int64_t cols)
{
    fsdp_tensor *out = NULL;

    return fsdp__op_wide(x, cols, &out) == FSDP_OK ? fsdp__scope_adopt(out) : NULL;
}

static fsdp_status products(const fsdp__gelu_mlp *m, fsdp_tensor *h, fsdp_tensor *y, fsdp_tensor *z)
{
    fsdp__matrix a, weights[2];

    FSDP_TRY(fsdp__matrix_of(m->x, &a));
    for (int i = 0; i < 2; i++) {
        FSDP_TRY(fsdp__matrix_of(m->weights[i], &weights[i]));
        if (!m->conv1d)
            weights[i] = fsdp__matrix_transposed(weights[i]);
    }
    FSDP_TRY(fsdp__gemm_gelu(a, weights[0], bias_of(m, 0), y, h));
    FSDP_TRY(fsdp__matrix_of(y, &a));
    return fsdp__gemm(a, weights[1], bias_of(m, 1), z, false);
}

fsdp_tensor *fsdp__gelu_mlp_apply(const fsdp__gelu_mlp *m)
{
    fsdp_tensor *inputs[INPUTS] = {m->x, m->weights[0], bias_of(m, 0), m->weights[1], bias_of(m, 1)};
    fsdp_tensor *saved[SAVED] = {NULL}, *y, *z;
    bool inner = fsdp__will_record(inputs, SECOND); /* somebody wants dh */
    int out = m->conv1d ? 1 : 0;

    if (!fsdp__op_inputs(mlp_op.name, inputs, INPUTS) || !fsdp__op_same_dtype(mlp_op.name, inputs, INPUTS))
        return NULL;
    y = empty_with(m->x, m->weights[0]->shape[out]);
    z = empty_with(m->x, m->weights[1]->shape[out]);
    saved[SAVED_H] = inner ? empty_with(m->x, m->weights[0]->shape[out]) : NULL;
    if (!y || !z || (inner && !saved[SAVED_H]) || products(m, saved[SAVED_H], y, z) != FSDP_OK)
        return NULL;
    saved[SAVED_X] = fsdp_tensor_requires_grad(inputs[WEIGHT]) ? m->x : NULL;
    saved[SAVED_WEIGHT] = fsdp_tensor_requires_grad(m->x) ? inputs[WEIGHT] : NULL;
    saved[SAVED_Y] = fsdp_tensor_requires_grad(inputs[SECOND]) ? y : NULL;
    saved[SAVED_SECOND] = inner ? inputs[SECOND] : NULL;
    if (fsdp__record_with(&traits, &mlp_op, inputs, INPUTS, &z, 1, saved, SAVED, &m->conv1d, sizeof m->conv1d) !=
        FSDP_OK)
        return NULL;
    return z;
}
