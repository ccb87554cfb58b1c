/* elementwise.c - functions of one tensor, element by element. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "ops/op.h"

/* ---- scale ---- */

static fsdp_status scale_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    double factor = *(const double *)fsdp__node_state(node);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx = fsdp__op_reuse(dy);

    FSDP__TRY_MADE(dx);
    FSDP_TRY(fsdp__op_scale(dy, (float)factor, NULL, dx));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op scale_op = {.name = "scale", .backward = scale_backward};
static const fsdp__op neg_op = {.name = "neg", .backward = scale_backward};

static fsdp_tensor *times(const fsdp__op *op, fsdp_tensor *x, double factor)
{
    fsdp_tensor *y, *from;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_LINEAR, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, times(op, call.parts[0], factor)) : NULL;
    }
    from = fsdp__op_of_one(op, x, &y);
    if (!from || fsdp__op_scale(from, (float)factor, NULL, y) != FSDP_OK ||
        fsdp__record(op, &x, 1, &y, 1, NULL, 0, &factor, sizeof factor) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_scale(fsdp_tensor *x, double factor)
{
    return times(&scale_op, x, factor);
}

fsdp_tensor *fsdp_neg(fsdp_tensor *x)
{
    return times(&neg_op, x, -1.0);
}

/* ---- activations: only the input is saved, and the result may be made again from it ---- */

static fsdp_status activate(fsdp__activation kind, const fsdp_tensor *x, fsdp_tensor *y)
{
    const fsdp__activation_forward_args args = {.x = fsdp_tensor_data(x),
                                                .y = fsdp_tensor_data(y),
                                                .rows = fsdp__op_rows(x),
                                                .cols = fsdp__op_last(x),
                                                .kind = kind,
                                                .dtype = x->dtype};

    return fsdp__launch_activation_forward(fsdp__op_stream(y), &args);
}

static fsdp_status activation_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp__activation kind = *(const fsdp__activation *)fsdp__node_state(node);
    fsdp_tensor *x = fsdp__node_saved(node, 0);
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx = fsdp__op_reuse(dy);

    FSDP__TRY_MADE(dx);
    const fsdp__activation_backward_args args = {.x = fsdp_tensor_data(x),
                                                 .dy = fsdp_tensor_data(dy),
                                                 .dx = fsdp_tensor_data(dx),
                                                 .rows = fsdp__op_rows(x),
                                                 .cols = fsdp__op_last(x),
                                                 .kind = kind,
                                                 .dtype = x->dtype};
    FSDP_TRY(fsdp__launch_activation_backward(fsdp__op_stream(x), &args));
    return fsdp__node_give(node, 0, dx);
}

static fsdp_status activation_remake(fsdp__node *node, fsdp_tensor **out)
{
    const fsdp_tensor *x = fsdp__node_saved(node, 0);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *y = NULL;

    FSDP_TRY(fsdp_tensor_create(x->storage->device, x->dtype, x->ndim, x->shape, FSDP_MEMORY_ACTIVATION, &y));
    FSDP_TRY(activate(*(const fsdp__activation *)fsdp__node_state(node), x, y));
    *out = fsdp__take(&y);
    return FSDP_OK;
}

static const fsdp__traits activation_traits = {.remake = activation_remake};
static const fsdp__op gelu_op = {.name = "gelu", .backward = activation_backward};
static const fsdp__op gelu_tanh_op = {.name = "gelu_tanh", .backward = activation_backward};
static const fsdp__op silu_op = {.name = "silu", .backward = activation_backward};
static const fsdp__op relu_op = {.name = "relu", .backward = activation_backward};

static fsdp_tensor *activation(const fsdp__op *op, fsdp__activation kind, fsdp_tensor *x)
{
    fsdp_tensor *y, *from;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = op->name, .rule = FSDP__RULE_POINTWISE, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, activation(op, kind, call.parts[0])) : NULL;
    }
    from = fsdp__op_of_one(op, x, &y);
    if (!from)
        return NULL;
    if (activate(kind, from, y) != FSDP_OK ||
        fsdp__record_with(&activation_traits, op, &x, 1, &y, 1, &from, 1, &kind, sizeof kind) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_gelu(fsdp_tensor *x)
{
    return activation(&gelu_op, FSDP__GELU_ERF, x);
}

fsdp_tensor *fsdp_gelu_tanh(fsdp_tensor *x)
{
    return activation(&gelu_tanh_op, FSDP__GELU_TANH, x);
}

fsdp_tensor *fsdp_silu(fsdp_tensor *x)
{
    return activation(&silu_op, FSDP__SILU, x);
}

fsdp_tensor *fsdp_relu(fsdp_tensor *x)
{
    return activation(&relu_op, FSDP__RELU, x);
}

/* ---- dropout: the mask is made again from its key, never saved ---- */

/* The elements are steps of `width`, which draw one after the other; `steps` of them make a row. */
typedef struct dropout_state {
    float p;
    uint64_t key, offset; /* of the draw for the first element, or, with chunks, for the row that it lies in */
    int64_t steps, width;
    int64_t stride;      /* the next step draws so many draws after the first */
    int64_t first, half; /* with chunks: which step of this rank's comes first, and how many a chunk has */
    fsdp__op_chunks chunks;
} dropout_state;

/* Returns which draw is that of a step's first element, and how many steps draw one after the other from there on. */
static uint64_t draw_of(const dropout_state *s, int64_t step, int64_t *count)
{
    int64_t in_row = step % s->steps, own = s->first + in_row, in_chunk, place;

    *count = 1;
    if (s->chunks.count == 0)
        return s->offset + (uint64_t)(step * s->stride);
    in_chunk = own % s->half;
    place = s->chunks.numbers[own / s->half] * s->half + in_chunk;
    if (s->width == s->stride)
        *count = FSDP__MIN(s->half - in_chunk, s->steps - in_row);
    return s->offset + (uint64_t)((step / s->steps * s->chunks.count * s->half + place) * s->stride);
}

static fsdp_status drop(const fsdp_tensor *x, fsdp_tensor *y, const dropout_state *state)
{
    int64_t numel = fsdp_tensor_numel(x), bytes = (int64_t)fsdp_dtype_size(x->dtype), count;
    const char *from = fsdp_tensor_data(x); /* NULL on a device without bytes */
    char *to = fsdp_tensor_data(y);

    for (int64_t at = 0; at < numel; at += count * state->width) {
        uint64_t offset = draw_of(state, at / state->width, &count);
        const fsdp__dropout_args args = {.x = from ? from + at * bytes : NULL,
                                         .y = to ? to + at * bytes : NULL,
                                         .numel = count * state->width,
                                         .key = state->key,
                                         .offset = offset,
                                         .p = state->p,
                                         .dtype = x->dtype};

        FSDP_TRY(fsdp__launch_dropout(fsdp__op_stream(y), &args));
    }
    return FSDP_OK;
}

static fsdp_status dropout_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx = fsdp__op_reuse(dy);

    FSDP__TRY_MADE(dx);
    FSDP_TRY(drop(dy, dx, fsdp__node_state(node)));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op dropout_op = {.name = "dropout", .backward = dropout_backward};

/* Returns how many elements of the batch lie before those of the tensor, where it is said which rows it has. */
static uint64_t elements_before(const fsdp_context *context, int64_t numel)
{
    fsdp__rows_of_batch rows = fsdp__get_rows_of_batch(context);

    return rows.count > 0 ? (uint64_t)rows.first * (uint64_t)(numel / rows.count) : 0;
}

/* Says how the elements of a part are counted in the whole tensor; `state->offset` becomes the place of its begin, and
 * `*numel` the size of the whole one. */
static void place_part(const fsdp_tensor *x, fsdp__op_part part, dropout_state *state, int64_t *numel)
{
    bool whole = part.whole < 0;
    int64_t inner = fsdp__shape_numel(x->ndim - part.dim - 1, x->shape + part.dim + 1);

    state->steps = whole ? 1 : fsdp__shape_numel(part.dim, x->shape);
    state->width = whole ? fsdp_tensor_numel(x) : x->shape[part.dim] * inner;
    state->stride = whole ? state->width : part.whole * inner;
    state->offset = whole ? 0 : (uint64_t)(part.first * inner);
    *numel = state->steps * state->stride;
}

/* Does the same with chunks: x is (B,T,...), and a part of its dimension 1 or 2. */
static fsdp_status place_chunks(const fsdp_tensor *x, fsdp__op_part part, dropout_state *state, int64_t *numel)
{
    bool whole = part.whole < 0, by_steps = !whole && part.dim == 1, by_width = !whole && !by_steps;
    int64_t length = by_steps ? part.whole : x->ndim > 1 ? x->shape[1] : 1;
    int64_t inner = x->ndim > 2 ? fsdp__shape_numel(x->ndim - 3, x->shape + 3) : 1;

    if (x->ndim < 3 || length % 2 != 0)
        return (void)fsdp__op_bad("dropout", "input", "(B,T,...), two chunks of sequences", x), fsdp_last_status();
    state->chunks = part.chunks;
    state->steps = x->shape[1];
    state->half = length / 2;
    state->first = by_steps ? part.first : 0;
    state->width = x->shape[2] * inner;
    state->stride = by_width ? part.whole * inner : state->width;
    state->offset = by_width ? (uint64_t)(part.first * inner) : 0;
    *numel = x->shape[0] * part.chunks.count * state->half * state->stride;
    return FSDP_OK;
}

/* Chooses the draws; in a recomputation those of the first run. */
static fsdp_status choose_draws(const fsdp_tensor *x, fsdp__op_part part, dropout_state *state)
{
    fsdp_context *context = fsdp_device_context(x->storage->device);
    int64_t numel = 0;

    if (part.chunks.count > 0)
        FSDP_TRY(place_chunks(x, part, state, &numel));
    else
        place_part(x, part, state, &numel);
    state->offset += elements_before(context, numel);
    FSDP_TRY(fsdp__recomputation_number(context, &state->key));
    return fsdp__recomputation_number(context, &state->offset);
}

fsdp_tensor *fsdp_dropout(fsdp_tensor *x, float p, uint64_t key)
{
    return fsdp__op_dropout_part(x, p, key, (fsdp__op_part){.dim = x ? x->ndim - 1 : 0, .whole = -1});
}

fsdp_tensor *fsdp__op_dropout_part(fsdp_tensor *x, float p, uint64_t key, fsdp__op_part part)
{
    dropout_state state = {.p = p, .key = key};
    fsdp_tensor *from, *y;

    if (fsdp__is_global(&x, 1)) {
        fsdp__global_call call = {.name = "dropout", .rule = FSDP__RULE_DROPOUT, .inputs = &x, .count = 1, .key = key};

        if (!fsdp__global_begin(&call))
            return NULL;
        part = (fsdp__op_part){.dim = call.dims[0], .first = call.sizes[0], .whole = call.sizes[1]};
        return fsdp__global_end(&call, fsdp__op_dropout_part(call.parts[0], p, call.key, part));
    }
    if (!x || !fsdp__op_inputs("dropout", &x, 1) || !fsdp__op_same_dtype("dropout", &x, 1))
        return NULL;
    if (!(p >= 0.0f && p < 1.0f)) {
        FSDP_FAIL(FSDP_INVALID, "dropout: probability %g is outside [0, 1)", (double)p);
        return NULL;
    }
    if (p == 0.0f)
        return x;
    if (choose_draws(x, part, &state) != FSDP_OK)
        return NULL;
    from = fsdp__op_contiguous(x);
    y = fsdp__empty_like(x, x->dtype);
    if (!from || !y || drop(from, y, &state) != FSDP_OK ||
        fsdp__record(&dropout_op, &x, 1, &y, 1, NULL, 0, &state, sizeof state) != FSDP_OK)
        return NULL;
    return y;
}

/* ---- cast ---- */

static fsdp_status cast_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_dtype dtype = *(const fsdp_dtype *)fsdp__node_state(node);
    fsdp_tensor *dx = fsdp__empty_like(grads[0], dtype);

    FSDP__TRY_MADE(dx);
    FSDP_TRY(fsdp__tensor_copy(dx, grads[0], false));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op cast_op = {.name = "cast", .backward = cast_backward};

fsdp_tensor *fsdp_cast(fsdp_tensor *x, fsdp_dtype dtype)
{
    fsdp_tensor *y;
    fsdp_dtype from;

    if (fsdp__is_global(&x, 1)) {
        bool rounds = !fsdp_dtype_is_floating(dtype) && dtype != x->dtype; /* of a sum it would be another one */
        fsdp__global_call call = {
            .name = "cast", .rule = rounds ? FSDP__RULE_POINTWISE : FSDP__RULE_LINEAR, .inputs = &x, .count = 1};

        return fsdp__global_begin(&call) ? fsdp__global_end(&call, fsdp_cast(call.parts[0], dtype)) : NULL;
    }
    if (!x || !fsdp__op_inputs("cast", &x, 1))
        return NULL;
    from = x->dtype;
    if (from == dtype)
        return x;
    if (fsdp_dtype_size(dtype) == 0 || (fsdp_tensor_requires_grad(x) && !fsdp_dtype_is_floating(dtype))) {
        FSDP_FAIL(FSDP_INVALID, "cast: %s cannot become %s%s", fsdp_dtype_name(from), fsdp_dtype_name(dtype),
                  fsdp_tensor_requires_grad(x) ? ": it requires a gradient" : "");
        return NULL;
    }
    y = fsdp__empty_like(x, dtype);
    if (!y || fsdp__tensor_copy(y, x, false) != FSDP_OK ||
        fsdp__record(&cast_op, &x, 1, &y, 1, NULL, 0, &from, sizeof from) != FSDP_OK)
        return NULL;
    return y;
}
