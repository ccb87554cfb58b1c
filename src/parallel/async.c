/* async.c - products beside the collectives before or behind them. */
#include "parallel/async.h"

#include <string.h>

#include "base/compiler.h"
#include "parallel/product_pieces.h"
#include "parallel/wire.h"

typedef struct state {
    fsdp__route route;
    int dim, count;
    int64_t whole;
    bool conv1d;
} state;

/* ---- inputs of the nodes: x, then each layer's weight and bias ---- */

static int input_of(int i, bool bias)
{
    return 1 + 2 * i + bias;
}

/* Gives the matrix (in,out) that a layer's input is multiplied by. */
static fsdp_status matrix_of(fsdp_tensor *weight, bool conv1d, fsdp__matrix *out)
{
    FSDP_TRY(fsdp__matrix_of(weight, out));
    *out = conv1d ? *out : fsdp__matrix_transposed(*out);
    return FSDP_OK;
}

/* Makes a tensor like x whose dimension `dim` is that long, with so many columns. */
static fsdp_tensor *make_like(const fsdp_tensor *x, int dim, int64_t length, int64_t columns)
{
    int64_t shape[FSDP_MAX_DIMS];

    memcpy(shape, x->shape, sizeof shape);
    shape[dim] = length;
    shape[x->ndim - 1] = columns;
    return fsdp_empty(x->storage->device, x->dtype, x->ndim, shape);
}

/* Sets what the node communicates by. */
static fsdp_status take_route(state *s, fsdp__tp_plan *plan, const fsdp_tensor *x)
{
    FSDP_TRY(fsdp__side_stream_open(&plan->side, x->storage->device));
    s->route = (fsdp__route){plan->group, plan->side};
    return FSDP_OK;
}

static int64_t part_length(const state *s)
{
    const fsdp_process_group *group = s->route.group;

    return fsdp_shard_range(s->whole, fsdp_process_group_size(group), fsdp_process_group_rank(group), &(int64_t){0});
}

/* Computes the gradients of a layer's weight, dW [+]= dy^T x, of a Conv1D x^T dy, and of its bias. */
static fsdp_status leaf_gradients(fsdp__node *node, int i, bool conv1d, fsdp_tensor *x, fsdp_tensor *dy)
{
    fsdp_tensor *target;
    fsdp__matrix a, b;
    bool accumulate;

    if (fsdp__node_needs(node, input_of(i, false))) {
        FSDP_TRY(fsdp__matrix_of(conv1d ? x : dy, &a));
        FSDP_TRY(fsdp__matrix_of(conv1d ? dy : x, &b));
        FSDP_TRY(fsdp__node_target_of_any(node, input_of(i, false), &target, &accumulate));
        FSDP_TRY(fsdp__gemm(fsdp__matrix_transposed(a), b, NULL, target, accumulate));
    }
    if (!fsdp__node_needs(node, input_of(i, true)))
        return FSDP_OK;
    FSDP_TRY(fsdp__node_target_of_any(node, input_of(i, true), &target, &accumulate));
    return fsdp__op_reduce(dy, 1, fsdp__op_rows(dy), fsdp__op_last(dy), target, accumulate);
}

/* Makes `*dim` one of the dimensions from 0 on; the last one cannot be cut, since products add it up. */
static bool find_dim(const fsdp__op *op, const fsdp_tensor *x, int *dim)
{
    if (!fsdp__op_dim(op->name, x, x->ndim, dim))
        return false;
    if (*dim < x->ndim - 1)
        return true;
    FSDP_FAIL(FSDP_INVALID, "%s: dimension %d of %s is the last: an asynchronous style needs another one that is cut",
              op->name, *dim, FSDP__SHAPE_OF(x));
    return false;
}

/* ---- gather, then products ---- */

/* Lists the products of the gradients that have come, last layer first, as a tape would come through them. */
static fsdp_status list_gradients(fsdp__node *node, const state *s, fsdp_tensor *const *dy, fsdp__factor *factors,
                                  int *count)
{
    *count = 0;
    for (int i = s->count - 1; i >= 0; i--) {
        if (!dy[i])
            continue;
        factors[*count] = (fsdp__factor){.full = dy[i]};
        FSDP_TRY(matrix_of(fsdp__node_saved(node, 1 + i), s->conv1d, &factors[*count].weight));
        factors[*count].weight = fsdp__matrix_transposed(factors[*count].weight);
        (*count)++;
    }
    return FSDP_OK;
}

static fsdp_status all_leaf_gradients(fsdp__node *node, const state *s, fsdp_tensor *const *dy)
{
    for (int i = s->count - 1; i >= 0; i--)
        if (dy[i])
            FSDP_TRY(leaf_gradients(node, i, s->conv1d, fsdp__node_saved(node, 0), dy[i]));
    return FSDP_OK;
}

/* Sends the gradient of x away while those of the weights are computed. */
static fsdp_status gathered_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    fsdp_tensor *dy[FSDP__LINEARS_MOST] = {NULL}, *dx;
    fsdp__factor factors[FSDP__LINEARS_MOST];
    FSDP__SCOPED(fsdp__pieces_close) fsdp__pieces p = {.boxes = NULL};
    fsdp_status status;
    int count;

    for (int i = 0; i < s->count; i++) {
        dy[i] = fsdp__op_contiguous(grads[i]);
        if (grads[i] && !dy[i])
            return fsdp_last_status();
    }
    if (!fsdp__node_needs(node, 0))
        return all_leaf_gradients(node, s, dy);
    FSDP_TRY(list_gradients(node, s, dy, factors, &count));
    FSDP__TRY_MADE(dx = make_like(factors[0].full, s->dim, part_length(s), factors[0].weight.cols));
    p = fsdp__pieces_of(dx, s->dim, s->whole, &s->route);
    FSDP_TRY(fsdp__multiply_and_scatter(&p, factors, count, dx));
    status = all_leaf_gradients(node, s, dy);
    FSDP_KEEP_FIRST(status, fsdp__scattered(&p, dx));
    return status == FSDP_OK ? fsdp__node_give(node, 0, dx) : status;
}

static const fsdp__op gathered_op = {
    .name = "parallel_gather_linear", .backward = gathered_backward, .free_state = fsdp__route_free};
static const fsdp__traits traits = {.dear = FSDP__DEAR_PRODUCT, .last_leaf_first = true};

/* Checks that a layer takes x, (..,C). */
static bool fits(const fsdp__op *op, const fsdp_tensor *x, const fsdp__linear_weight *layer)
{
    const fsdp_tensor *w = layer->weight;

    if (w->ndim != 2)
        return fsdp__op_bad(op->name, "weight", "a matrix", w);
    if (fsdp__op_last(x) != w->shape[!layer->conv1d])
        return fsdp__op_misfit(op->name, "input", x, "weight", w);
    return true;
}

/* Makes outputs and products of the gathered rows; `*gathered` if a backward will want it. */
static fsdp_status compute_gathered(const state *s, fsdp_tensor *x, const fsdp__linear_weight *layers,
                                    fsdp_tensor **outputs, fsdp_tensor *gathered)
{
    fsdp__factor factors[FSDP__LINEARS_MOST];
    FSDP__SCOPED(fsdp__pieces_close) fsdp__pieces p = {.boxes = NULL};

    for (int i = 0; i < s->count; i++) {
        FSDP_TRY(matrix_of(layers[i].weight, s->conv1d, &factors[i].weight));
        outputs[i] = make_like(x, s->dim, s->whole, factors[i].weight.cols);
        factors[i].full = outputs[i];
        factors[i].bias = layers[i].bias ? fsdp__op_contiguous(layers[i].bias) : NULL;
        if (!outputs[i] || (layers[i].bias && !factors[i].bias))
            return fsdp_last_status();
        if (factors[i].weight.rows == 0)
            FSDP_TRY(fsdp_tensor_fill_(outputs[i], 0.0));
    }
    p = fsdp__pieces_of(x, s->dim, s->whole, &s->route);
    return fsdp__gather_and_multiply(&p, x, factors, s->count, gathered);
}

/* Lists the inputs of the node, and checks them. */
static bool list_inputs(const fsdp__op *op, fsdp_tensor *x, int count, const fsdp__linear_weight *layers,
                        fsdp_tensor **inputs)
{
    inputs[0] = x;
    for (int i = 0; i < count; i++) {
        inputs[input_of(i, false)] = layers[i].weight;
        inputs[input_of(i, true)] = layers[i].bias;
    }
    if (!x || !fsdp__op_inputs(op->name, inputs, 1 + 2 * count) ||
        !fsdp__op_same_dtype(op->name, inputs, 1 + 2 * count))
        return false;
    for (int i = 0; i < count; i++)
        if (!fits(op, x, &layers[i]))
            return false;
    return true;
}

/* Computes outputs and what the backward needs of them; in a recomputation that has the outputs, only the latter. */
static fsdp_status run_gathered(const state *s, fsdp_tensor *const *inputs, const fsdp__linear_weight *layers,
                                fsdp_tensor **outputs, fsdp_tensor **saved)
{
    fsdp_tensor *x = fsdp__op_contiguous(inputs[0]);
    bool keeps = false;

    for (int i = 0; i < s->count; i++) {
        keeps = keeps || fsdp_tensor_requires_grad(layers[i].weight);
        saved[1 + i] = fsdp_tensor_requires_grad(inputs[0]) ? layers[i].weight : NULL;
    }
    keeps = keeps && fsdp__will_record(inputs, 1 + 2 * s->count);
    FSDP__TRY_MADE(x);
    if (fsdp__recall(&gathered_op, inputs, 1 + 2 * s->count, outputs, s->count)) {
        saved[0] = keeps ? fsdp__wire_all_gather(x, s->dim, s->whole, s->route.group) : NULL;
        return saved[0] || !keeps ? FSDP_OK : fsdp_last_status();
    }
    saved[0] = keeps ? make_like(x, s->dim, s->whole, fsdp__op_last(x)) : NULL;
    if (keeps && !saved[0])
        return fsdp_last_status();
    return compute_gathered(s, x, layers, outputs, saved[0]);
}

fsdp_status fsdp__gathered_linears(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, int count,
                                   const fsdp__linear_weight *layers, fsdp_tensor **outputs)
{
    fsdp_tensor *inputs[1 + 2 * FSDP__LINEARS_MOST], *saved[1 + FSDP__LINEARS_MOST] = {NULL};
    state s = {.dim = dim, .count = count, .conv1d = layers[0].conv1d};
    fsdp__op_part part;
    fsdp_status status;

    memset(outputs, 0, (size_t)count * sizeof *outputs);
    if (!list_inputs(&gathered_op, x, count, layers, inputs) || !find_dim(&gathered_op, x, &s.dim))
        return fsdp_last_status();
    FSDP_TRY(fsdp__tp_part(plan, x, s.dim, &part));
    s.whole = part.whole;
    FSDP_TRY(take_route(&s, plan, x));
    status = run_gathered(&s, inputs, layers, outputs, saved);
    if (status == FSDP_OK)
        status = fsdp__route_record(&traits, &gathered_op, inputs, 1 + 2 * count, outputs, count, saved, 1 + count, &s,
                                    sizeof s);
    if (status != FSDP_OK)
        memset(outputs, 0, (size_t)count * sizeof *outputs);
    return status;
}

/* ---- a product, then reduce-scatter ---- */

static fsdp_status scattered_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    const state *s = fsdp__node_state(node);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *x = fsdp__node_saved(node, 0), *whole = NULL;
    bool wants_x = fsdp__node_needs(node, 0);
    fsdp__factor factor = {.full = NULL};
    FSDP__SCOPED(fsdp__pieces_close) fsdp__pieces p = {.boxes = NULL};

    FSDP__TRY_MADE(dy);
    if (fsdp__node_needs(node, 1) && !(whole = make_like(dy, s->dim, s->whole, fsdp__op_last(dy))))
        return fsdp_last_status();
    if (wants_x) {
        FSDP_TRY(matrix_of(fsdp__node_saved(node, 1), s->conv1d, &factor.weight));
        factor.weight = fsdp__matrix_transposed(factor.weight);
        FSDP__TRY_MADE(factor.full = make_like(dy, s->dim, s->whole, factor.weight.cols));
        if (factor.weight.rows == 0)
            FSDP_TRY(fsdp_tensor_fill_(factor.full, 0.0));
    }
    p = fsdp__pieces_of(dy, s->dim, s->whole, &s->route);
    FSDP_TRY(fsdp__gather_and_multiply(&p, dy, &factor, wants_x, whole));
    if (whole)
        FSDP_TRY(leaf_gradients(node, 0, s->conv1d, x, whole));
    return wants_x ? fsdp__node_give(node, 0, factor.full) : FSDP_OK;
}

static const fsdp__op scattered_op = {
    .name = "parallel_linear_scatter", .backward = scattered_backward, .free_state = fsdp__route_free};

static fsdp_tensor *compute_scattered(const state *s, fsdp_tensor *x, const fsdp__linear_weight *layer)
{
    fsdp__factor factor = {.full = fsdp__op_contiguous(x)};
    FSDP__SCOPED(fsdp__pieces_close) fsdp__pieces p = {.boxes = NULL};
    fsdp_tensor *y;

    if (!factor.full || matrix_of(layer->weight, s->conv1d, &factor.weight) != FSDP_OK)
        return NULL;
    y = make_like(x, s->dim, part_length(s), factor.weight.cols);
    if (!y)
        return NULL;
    p = fsdp__pieces_of(y, s->dim, s->whole, &s->route);
    return fsdp__multiply_and_scatter(&p, &factor, 1, y) == FSDP_OK && fsdp__scattered(&p, y) == FSDP_OK ? y : NULL;
}

fsdp_tensor *fsdp__scattered_linear(fsdp__tp_plan *plan, fsdp_tensor *x, int dim, fsdp__linear_weight layer)
{
    fsdp_tensor *inputs[3], *saved[2], *y;
    state s = {.dim = dim, .count = 1, .conv1d = layer.conv1d};

    if (!list_inputs(&scattered_op, x, 1, &layer, inputs) || !find_dim(&scattered_op, x, &s.dim))
        return NULL;
    s.whole = x->shape[s.dim];
    fsdp__tp_note_cut(plan, s.dim, s.whole);
    if (take_route(&s, plan, x) != FSDP_OK)
        return NULL;
    if (!fsdp__recall(&scattered_op, inputs, 3, &y, 1)) {
        y = compute_scattered(&s, x, &layer);
        if (!y)
            return NULL;
    }
    saved[0] = fsdp_tensor_requires_grad(layer.weight) ? x : NULL;
    saved[1] = fsdp_tensor_requires_grad(x) ? layer.weight : NULL;
    return fsdp__route_record(&traits, &scattered_op, inputs, 3, &y, 1, saved, 2, &s, sizeof s) == FSDP_OK ? y : NULL;
}
