/* gelu_mlp.c - two linears with GELU between them, whose products take it along.
 *
 * h (...,F) is the first linear's result, y = gelu(h), z (...,O) the second's of y. In the backward the product that
 * makes dy multiplies it by gelu'(h): what it writes is dh, and no pass reads h and dy to make that.
 *
 * Where the backward needs both h and y, only h is kept. A pass makes y of it, in the forward and, with the same bits,
 * in the backward, where dh then takes its place. Where it needs one of them, or none, the first product writes y, and
 * h beside it: it does not round what GELU is of, so y's last bits could not be made of h. */
#include "base/alloc.h"
#include "ops/op.h"

enum {
    X,
    WEIGHT, /* and behind it its bias */
    SECOND = 3,
    INPUTS = 5
};

/* What is saved. */
enum {
    SAVED_X,
    SAVED_WEIGHT,
    SAVED_H,
    SAVED_Y, /* only without h */
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
static fsdp_status inner_gradient(fsdp__node *node, fsdp_tensor *dz, bool conv1d, fsdp_tensor *dh)
{
    fsdp__matrix a, weight;

    FSDP_TRY(fsdp__matrix_of(dz, &a));
    FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, SAVED_SECOND), &weight));
    return fsdp__gemm_gelu_gradient(a, conv1d ? fsdp__matrix_transposed(weight) : weight, dh,
                                    fsdp__node_saved(node, SAVED_H));
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

/* Computes the gradients of the second weight and its bias. If y was not kept, it is made in `room`. */
static fsdp_status second_gradients(fsdp__node *node, fsdp_tensor *dz, bool conv1d, fsdp_tensor *room)
{
    fsdp_tensor *h = fsdp__node_saved(node, SAVED_H), *y = h ? room : fsdp__node_saved(node, SAVED_Y);

    if (h && fsdp__node_needs(node, SECOND))
        FSDP_TRY(fsdp__op_activate(FSDP__GELU_TANH, h, y));
    FSDP_TRY(fsdp__linear_leaf_gradients(node, SECOND, y, dz, conv1d));
    fsdp__node_drop_saved(node, SAVED_Y);
    return FSDP_OK;
}

static fsdp_status mlp_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    bool conv1d = *(const bool *)fsdp__node_state(node);
    bool inner = fsdp__node_needs(node, X) || fsdp__node_needs(node, WEIGHT) || fsdp__node_needs(node, WEIGHT + 1);
    fsdp_tensor *dz = fsdp__op_contiguous(grads[0]), *h = fsdp__node_saved(node, SAVED_H), *dh = NULL;

    if (!dz)
        return fsdp_last_status();
    if (!h && (inner || (fsdp__node_needs(node, SECOND) && !fsdp__node_saved(node, SAVED_Y))))
        return FSDP_FAIL(FSDP_STATE,
                         "gelu_mlp: a backward that failed has dropped what it had saved: run a new forward");
    if (h)
        FSDP__TRY_NEW(dh = fsdp__empty_like(h, h->dtype));
    FSDP_TRY(second_gradients(node, dz, conv1d, dh));
    if (!inner)
        return FSDP_OK;
    FSDP_TRY(inner_gradient(node, dz, conv1d, dh));
    fsdp__node_drop_saved(node, SAVED_H);
    if (fsdp__node_needs(node, X))
        FSDP_TRY(input_gradient(node, dh, conv1d));
    FSDP_TRY(fsdp__node_remake(node)); /* x, beside which the inner activations are no more */
    return fsdp__linear_leaf_gradients(node, WEIGHT, fsdp__node_saved(node, SAVED_X), dh, conv1d);
}

static const fsdp__op mlp_op = {.name = "gelu_mlp", .backward = mlp_backward};
static const fsdp__traits traits = {.remakes_late = true, .last_leaf_first = true};

/* ---- forward ---- */

/* Says which of h and y a backward will need. */
typedef struct needs {
    bool h, y;
} needs;

static fsdp__matrix weight_of(const fsdp__gelu_mlp *m, fsdp__matrix weight)
{
    return m->conv1d ? weight : fsdp__matrix_transposed(weight);
}

/* Computes h, unless it is NULL, and y. */
static fsdp_status first_product(const fsdp__gelu_mlp *m, needs kept, fsdp_tensor *h, fsdp_tensor *y)
{
    fsdp_tensor *bias = bias_of(m, 0);
    fsdp__matrix a, weight;

    FSDP_TRY(fsdp__matrix_of(m->x, &a));
    FSDP_TRY(fsdp__matrix_of(m->weights[0], &weight));
    if (!kept.h || !kept.y)
        return fsdp__gemm_gelu(a, weight_of(m, weight), bias, y, h);
    FSDP_TRY(fsdp__gemm(a, weight_of(m, weight), bias, h, false));
    return fsdp__op_activate(FSDP__GELU_TANH, h, y);
}

static fsdp_status second_product(const fsdp__gelu_mlp *m, fsdp_tensor *y, fsdp_tensor *z)
{
    fsdp__matrix a, weight;

    FSDP_TRY(fsdp__matrix_of(y, &a));
    FSDP_TRY(fsdp__matrix_of(m->weights[1], &weight));
    return fsdp__gemm(a, weight_of(m, weight), bias_of(m, 1), z, false);
}

static fsdp_status forward(const fsdp__gelu_mlp *m, fsdp_tensor *const *inputs, fsdp_tensor *z)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *h = NULL, *y = NULL;
    /* Somebody wants dh; somebody wants the gradient of the second weight. */
    const needs kept = {fsdp__will_record(inputs, SECOND), fsdp__will_record(inputs + SECOND, 1)};
    fsdp_tensor *saved[SAVED] = {NULL};
    int64_t inner = m->weights[0]->shape[m->conv1d ? 1 : 0];

    if (kept.h)
        FSDP_TRY(fsdp__op_wide(m->x, inner, &h));
    FSDP_TRY(fsdp__op_wide(m->x, inner, &y));
    FSDP_TRY(first_product(m, kept, h, y));
    FSDP_TRY(second_product(m, y, z));
    saved[SAVED_X] = fsdp_tensor_requires_grad(inputs[WEIGHT]) ? m->x : NULL;
    saved[SAVED_WEIGHT] = fsdp_tensor_requires_grad(m->x) ? inputs[WEIGHT] : NULL;
    saved[SAVED_H] = h;
    saved[SAVED_Y] = kept.y && !h ? y : NULL;
    saved[SAVED_SECOND] = h ? inputs[SECOND] : NULL;
    return fsdp__record_with(&traits, &mlp_op, inputs, INPUTS, &z, 1, saved, SAVED, &m->conv1d, sizeof m->conv1d);
}

fsdp_tensor *fsdp__gelu_mlp_apply(const fsdp__gelu_mlp *m)
{
    fsdp_tensor *inputs[INPUTS] = {m->x, m->weights[0], bias_of(m, 0), m->weights[1], bias_of(m, 1)}, *z = NULL;

    if (!fsdp__op_inputs(mlp_op.name, inputs, INPUTS) || !fsdp__op_same_dtype(mlp_op.name, inputs, INPUTS) ||
        fsdp__op_wide(m->x, m->weights[1]->shape[m->conv1d ? 1 : 0], &z) != FSDP_OK)
        return NULL;
    z = fsdp__scope_adopt(z);
    return z && forward(m, inputs, z) == FSDP_OK ? z : NULL;
}
