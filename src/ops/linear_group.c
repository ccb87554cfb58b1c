/* linear_group.c - several linears of one input, as one product where their weights lie side by side.
 *
 * The joined weight (O,C) is what lies there, O the sum of all O_i, and the joined result y (...,O) has the outputs
 * side by side, as strided views. So has the joined gradient dy: operations that can write there ask for their places
 * in it (fsdp__node_place), and what came elsewhere is copied. dx is one product with dy. Gradients of weights are one
 * product where the places of the gradients lie side by side, too; it may add up those of the biases. */
#include "ops/op.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"

typedef struct group_state {
    int count;
    bool has_bias;
    fsdp_tensor *dy; /* owned; NULL: nobody has asked for a place yet */
    bool placed[FSDP__LINEARS_MOST];
    int64_t at[FSDP__LINEARS_MOST + 1]; /* where each output begins in a row of y, and the end */
    fsdp_device *device;
    fsdp_dtype dtype;
    int ndim;
    int64_t shape[FSDP_MAX_DIMS]; /* y's, and dy's */
} group_state;

/* ---- side by side ---- */

/* Returns whether b begins where a ends, in memory that both lie in. */
static bool touch(const fsdp_tensor *a, const fsdp_tensor *b)
{
    const fsdp__storage *of_a = a->storage, *of_b = b->storage;
    size_t bytes = (size_t)fsdp_tensor_numel(a) * fsdp_dtype_size(a->dtype);

    return of_a->release && of_a->release == of_b->release && of_a->release_arg == of_b->release_arg &&
           a->dtype == b->dtype && fsdp_tensor_is_contiguous(a) && fsdp_tensor_is_contiguous(b) && bytes > 0 &&
           (char *)fsdp_tensor_data(a) + bytes == fsdp_tensor_data(b);
}

/* Returns whether there is a bias for all, side by side, or for none. */
static bool biases_join(int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases)
{
    for (int i = 0; i < count; i++) {
        if ((biases[i] == FSDP_NO_BIAS) != (biases[0] == FSDP_NO_BIAS))
            return false;
        if (biases[i] == FSDP_NO_BIAS)
            continue;
        if (!biases[i] || biases[i]->ndim != 1 || biases[i]->shape[0] != weights[i]->shape[0] ||
            (i > 0 && !touch(biases[i - 1], biases[i])))
            return false;
    }
    return true;
}

static bool weights_join(const fsdp_tensor *x, int count, fsdp_tensor *const *weights)
{
    for (int i = 0; i < count; i++)
        if (!weights[i] || weights[i]->ndim != 2 || weights[i]->dtype != x->dtype ||
            weights[i]->shape[1] != x->shape[x->ndim - 1] || weights[i]->storage->device != x->storage->device ||
            (i > 0 && !touch(weights[i - 1], weights[i])))
            return false;
    return true;
}

bool fsdp__linear_group_joins(const fsdp_tensor *x, int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases)
{
    return x && count >= 2 && count <= FSDP__LINEARS_MOST && x->ndim >= 1 && fsdp_tensor_numel(x) > 0 &&
           fsdp__device_joins_products(x->storage->device) && weights_join(x, count, weights) &&
           biases_join(count, weights, biases);
}

/* ---- backward ---- */

static void free_state(void *state)
{
    fsdp_tensor_unref(((group_state *)state)->dy);
}

/* Makes the joined gradient, still without values, if there is none. */
static fsdp_status make_joined(group_state *s)
{
    return s->dy ? FSDP_OK : fsdp_tensor_create(s->device, s->dtype, s->ndim, s->shape, FSDP_MEMORY_ACTIVATION, &s->dy);
}

static fsdp_status part_of(const fsdp_tensor *joined, const group_state *s, int i, fsdp_tensor **out)
{
    return fsdp__view_narrow(joined, joined->ndim - 1, s->at[i], s->at[i + 1] - s->at[i], out);
}

static fsdp_status group_place(fsdp__node *node, int output, fsdp_tensor **out)
{
    group_state *s = fsdp__node_state(node);

    if (s->placed[output])
        return FSDP_OK;
    FSDP_TRY(make_joined(s));
    s->placed[output] = true;
    return part_of(s->dy, s, output, out);
}

static bool same_place(const fsdp_tensor *a, const fsdp_tensor *b)
{
    bool same = a->storage == b->storage && a->offset == b->offset;

    for (int d = 0; d < a->ndim; d++)
        same = same && (a->strides[d] == b->strides[d] || a->shape[d] == 1);
    return same;
}

/* Copies the gradients that lie elsewhere to their places. */
static fsdp_status join(group_state *s, fsdp_tensor *const *grads)
{
    FSDP_TRY(make_joined(s));
    for (int i = 0; i < s->count; i++) {
        FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

        if (!grads[i])
            continue;
        FSDP_TRY(part_of(s->dy, s, i, &part));
        if (!same_place(grads[i], part))
            FSDP_TRY(fsdp__tensor_copy(part, grads[i], false));
    }
    return FSDP_OK;
}

/* Views columns [from, to) of the joined gradient as a matrix. */
static fsdp_status columns(const group_state *s, int from, int to, fsdp__matrix *out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;

    FSDP_TRY(fsdp__view_narrow(s->dy, s->dy->ndim - 1, s->at[from], s->at[to] - s->at[from], &part));
    return fsdp__matrix_of(part, out);
}

/* Returns which input of the node is weight i, or bias i. */
static int input_of(int i, bool bias)
{
    return 1 + 2 * i + bias;
}

static fsdp__matrix joined_weight(const fsdp_tensor *first, int64_t rows)
{
    return (fsdp__matrix){.data = fsdp_tensor_data(first),
                          .batch = 1,
                          .rows = rows,
                          .cols = first->shape[1],
                          .row = first->shape[1],
                          .col = 1,
                          .dtype = first->dtype};
}

/* Returns where a run of linears that begins with `from` ends: those whose gradients have come, and whose tensors in
 * `list`, none of them NULL, touch. */
static int run_end(const group_state *s, fsdp_tensor *const *grads, fsdp_tensor *const *list, const bool *accumulate,
                   int from)
{
    int to = from + 1;

    while (to < s->count && grads[to] && list[to] && accumulate[to] == accumulate[from] &&
           touch(list[to - 1], list[to]))
        to++;
    return to;
}

/* Computes dx [+]= dy W, (rows,C), by as few products as there are runs of weights. */
static fsdp_status input_gradient(fsdp__node *node, const group_state *s, fsdp_tensor *const *grads)
{
    const bool no[FSDP__LINEARS_MOST] = {false};
    fsdp_tensor *weights[FSDP__LINEARS_MOST], *dx;
    bool accumulate;

    for (int i = 0; i < s->count; i++)
        weights[i] = fsdp__node_saved(node, 1 + i);
    FSDP_TRY(fsdp__node_target(node, 0, &dx, &accumulate));
    for (int from = 0, to; from < s->count; from = to) {
        fsdp__matrix dy;

        to = from + 1;
        if (!grads[from])
            continue;
        to = run_end(s, grads, weights, no, from);
        FSDP_TRY(columns(s, from, to, &dy));
        FSDP_TRY(fsdp__gemm(dy, joined_weight(weights[from], dy.cols), NULL, dx, accumulate));
        accumulate = true;
    }
    return FSDP_OK;
}

/* Adds the rows of the joined gradient's columns up. */
static fsdp_status bias_gradient(const group_state *s, int from, int to, fsdp_tensor *dbias, bool accumulate)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;
    fsdp_tensor *dy;

    FSDP_TRY(fsdp__view_narrow(s->dy, s->dy->ndim - 1, s->at[from], s->at[to] - s->at[from], &part));
    dy = fsdp__op_contiguous(part);
    return dy ? fsdp__op_reduce(dy, 1, fsdp__op_rows(dy), fsdp__op_last(dy), dbias, accumulate) : fsdp_last_status();
}

/* Says where the gradients of the weights go, or of the biases; NULL: nowhere. */
typedef struct leaf_targets {
    fsdp_tensor *tensors[FSDP__LINEARS_MOST];
    bool accumulate[FSDP__LINEARS_MOST];
} leaf_targets;

static fsdp_status find_targets(fsdp__node *node, const group_state *s, fsdp_tensor *const *grads, bool bias,
                                leaf_targets *out)
{
    for (int i = 0; i < s->count; i++)
        if (grads[i] && fsdp__node_needs(node, input_of(i, bias)))
            FSDP_TRY(fsdp__node_target_of_any(node, input_of(i, bias), &out->tensors[i], &out->accumulate[i]));
    return FSDP_OK;
}

/* Computes dW [+]= dy^T x, (O,C), for a run of weights. The product may add up the columns of dy, too, if those
 * gradients of biases are new and lie as the weights' do; they are then taken from `biases`. */
static fsdp_status weight_gradients(const group_state *s, fsdp_tensor *const *grads, const leaf_targets *weights,
                                    int from, int to, fsdp__matrix x, leaf_targets *biases)
{
    fsdp_tensor *dweight = weights->tensors[from], *sums = biases->tensors[from];
    fsdp__matrix dy; /* (rows,O) */

    FSDP_TRY(columns(s, from, to, &dy));
    dy = fsdp__matrix_transposed(dy);
    if (!sums || biases->accumulate[from] || run_end(s, grads, biases->tensors, biases->accumulate, from) < to ||
        !fsdp__gemm_sums(dy, x, dweight, sums, false))
        return fsdp__gemm(dy, x, NULL, dweight, weights->accumulate[from]);
    FSDP_TRY(fsdp__gemm_and_sums(dy, x, dweight, weights->accumulate[from], sums, false));
    for (int i = from; i < to; i++)
        biases->tensors[i] = NULL;
    return FSDP_OK;
}

/* Computes the gradients of the weights and biases, straight into those of the leaves. */
static fsdp_status leaf_gradients(fsdp__node *node, const group_state *s, fsdp_tensor *const *grads)
{
    leaf_targets weights = {0}, biases = {0};
    fsdp__matrix x = {0}; /* (rows,C) */

    FSDP_TRY(find_targets(node, s, grads, false, &weights));
    if (s->has_bias)
        FSDP_TRY(find_targets(node, s, grads, true, &biases));
    if (fsdp__node_saved(node, 0))
        FSDP_TRY(fsdp__matrix_of(fsdp__node_saved(node, 0), &x));
    for (int from = 0, to; from < s->count; from = to) {
        to = weights.tensors[from] ? run_end(s, grads, weights.tensors, weights.accumulate, from) : from + 1;
        if (weights.tensors[from])
            FSDP_TRY(weight_gradients(s, grads, &weights, from, to, x, &biases));
    }
    for (int from = 0, to; from < s->count; from = to) {
        to = biases.tensors[from] ? run_end(s, grads, biases.tensors, biases.accumulate, from) : from + 1;
        if (biases.tensors[from])
            FSDP_TRY(bias_gradient(s, from, to, biases.tensors[from], biases.accumulate[from]));
    }
    return FSDP_OK;
}

static fsdp_status backward(fsdp__node *node, group_state *s, fsdp_tensor *const *grads)
{
    FSDP_TRY(join(s, grads));
    if (fsdp__node_needs(node, 0))
        FSDP_TRY(input_gradient(node, s, grads));
    return leaf_gradients(node, s, grads);
}

static fsdp_status group_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    group_state *s = fsdp__node_state(node);
    fsdp_status status = backward(node, s, grads);

    fsdp_tensor_unref(fsdp__take(&s->dy));
    memset(s->placed, 0, sizeof s->placed);
    return status;
}

static const fsdp__op group_op = {.name = "linear_group", .backward = group_backward, .free_state = free_state};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT, .last_leaf_first = true, .place = group_place};

/* ---- forward ---- */

/* Computes y, and gives its parts to the scope. */
static fsdp_status product(fsdp_tensor *x, const group_state *s, const fsdp_tensor *first, fsdp_tensor *bias,
                           fsdp_tensor **outputs)
{
    fsdp_tensor *y = fsdp_empty(s->device, s->dtype, s->ndim, s->shape);
    fsdp__matrix a;

    FSDP__TRY_MADE(y);
    FSDP_TRY(fsdp__matrix_of(x, &a));
    FSDP_TRY(fsdp__gemm(a, fsdp__matrix_transposed(joined_weight(first, s->at[s->count])), bias, y, false));
    for (int i = 0; i < s->count; i++) {
        FSDP_TRY(part_of(y, s, i, &outputs[i]));
        FSDP__TRY_NEW(outputs[i] = fsdp__scope_adopt(outputs[i]));
    }
    return FSDP_OK;
}

static fsdp_status joined(fsdp_tensor *x, int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases,
                          fsdp_tensor **outputs)
{
    fsdp_tensor *inputs[1 + 2 * FSDP__LINEARS_MOST] = {x}, *saved[1 + FSDP__LINEARS_MOST] = {NULL};
    group_state state = {.count = count,
                         .has_bias = biases[0] != FSDP_NO_BIAS,
                         .device = x->storage->device,
                         .dtype = x->dtype,
                         .ndim = x->ndim};

    for (int i = 0; i < count; i++) {
        inputs[input_of(i, false)] = weights[i];
        inputs[input_of(i, true)] = state.has_bias ? biases[i] : NULL;
        state.at[i + 1] = state.at[i] + weights[i]->shape[0];
        if (fsdp_tensor_requires_grad(weights[i]))
            saved[0] = x;
        if (fsdp_tensor_requires_grad(x))
            saved[1 + i] = weights[i];
    }
    if (!fsdp__op_inputs(group_op.name, inputs, 1 + 2 * count) ||
        !fsdp__op_same_dtype(group_op.name, inputs, 1 + 2 * count))
        return fsdp_last_status();
    memcpy(state.shape, x->shape, sizeof state.shape);
    state.shape[x->ndim - 1] = state.at[count];
    if (!fsdp__recall(&group_op, inputs, 1 + 2 * count, outputs, count))
        FSDP_TRY(product(x, &state, weights[0], state.has_bias ? biases[0] : NULL, outputs));
    return fsdp__record_with(&traits, &group_op, inputs, 1 + 2 * count, outputs, count, saved, 1 + count, &state,
                             sizeof state);
}

/* Checks that nothing is NULL: what should have made it may have failed. */
static fsdp_status check_given(const fsdp_tensor *x, int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases)
{
    if (!x)
        return FSDP__FAIL_NULL("linear_group: the input is missing");
    if (!weights || !biases)
        return FSDP_FAIL(FSDP_INVALID, "linear_group: the %s are missing", weights ? "biases" : "weights");
    for (int i = 0; i < count; i++)
        if (!weights[i] || !biases[i])
            return FSDP__FAIL_NULL("linear_group: %s %d of %d is missing%s", weights[i] ? "bias" : "weight", i, count,
                                   weights[i] ? " (FSDP_NO_BIAS: there is none)" : "");
    return FSDP_OK;
}

fsdp_status fsdp_linear_group(fsdp_tensor *x, int count, fsdp_tensor *const *weights, fsdp_tensor *const *biases,
                              fsdp_tensor **outputs)
{
    fsdp_status status = FSDP_OK;

    if (count < 1 || count > FSDP__LINEARS_MOST)
        return FSDP_FAIL(FSDP_INVALID, "linear_group: %d linears: expected 1 to %d", count, FSDP__LINEARS_MOST);
    if (!outputs)
        return FSDP_FAIL(FSDP_INVALID, "linear_group needs a place for its outputs");
    memset(outputs, 0, (size_t)count * sizeof *outputs);
    FSDP_TRY(check_given(x, count, weights, biases));
    if (fsdp__linear_group_joins(x, count, weights, biases)) {
        status = joined(x, count, weights, biases, outputs);
    } else {
        for (int i = 0; i < count && status == FSDP_OK; i++) {
            outputs[i] = fsdp_linear(x, weights[i], biases[i]);
            status = outputs[i] ? FSDP_OK : fsdp_last_status();
        }
    }
    if (status != FSDP_OK)
        memset(outputs, 0, (size_t)count * sizeof *outputs);
    return status;
}
