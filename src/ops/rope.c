/* rope.c - rotary position embedding. The backward rotates back. */
#include "ops/op.h"

/* How x is rotated. */
typedef struct turn {
    int64_t position0;
    float scale;
} turn;

/* Computes y = x rotated; both (B,T,H,D) with D contiguous. Positions are (B,T), or NULL. */
static fsdp_status rotate(const fsdp_tensor *x, const fsdp_tensor *frequencies, const fsdp_tensor *positions,
                          fsdp_tensor *y, const turn *how, bool inverse)
{
    const fsdp__rope_args args = {.x = fsdp_tensor_data(x),
                                  .y = fsdp_tensor_data(y),
                                  .frequency = fsdp_tensor_data(frequencies),
                                  .batch = x->shape[0],
                                  .time = x->shape[1],
                                  .heads = x->shape[2],
                                  .head_dim = x->shape[3],
                                  .position0 = how->position0,
                                  .x_batch = x->strides[0],
                                  .x_time = x->strides[1],
                                  .x_head = x->strides[2],
                                  .y_batch = y->strides[0],
                                  .y_time = y->strides[1],
                                  .y_head = y->strides[2],
                                  .dtype = x->dtype,
                                  .inverse = inverse,
                                  .positions = positions ? fsdp_tensor_data(positions) : NULL,
                                  .rotated = 2 * frequencies->shape[0],
                                  .scale = how->scale};

    return fsdp_tensor_numel(x) == 0 ? FSDP_OK : fsdp__launch_rope(fsdp__op_stream(x), &args);
}

static fsdp_status rope_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_tensor *dy = fsdp__op_contiguous(grads[0]), *dx; /* (B,T,H,D) */

    FSDP_TRY(fsdp__node_place(node, 0, &dx));
    dx = dx ? dx : fsdp__op_reuse(dy);
    if (!dy || !dx)
        return fsdp_last_status();
    FSDP_TRY(rotate(dy, fsdp__node_saved(node, 0), fsdp__node_saved(node, 1), dx, fsdp__node_state(node), true));
    return fsdp__node_give(node, 0, dx);
}

static const fsdp__op rope_op = {.name = "rope", .backward = rope_backward};

/* Makes the result: new, or on the bytes of x. */
static fsdp_tensor *make_result(fsdp_tensor *x, bool over)
{
    fsdp_tensor *y;

    if (!over)
        return fsdp__empty_like(x, x->dtype);
    if (fsdp_tensor_begin_write(x) != FSDP_OK || fsdp__tensor_alias(x, &y) != FSDP_OK)
        return NULL;
    return fsdp__scope_adopt(y);
}

fsdp_tensor *fsdp__op_rope(fsdp_tensor *x, fsdp_tensor *frequencies, fsdp_tensor *positions, int64_t position0,
                           float scale, bool over)
{
    const turn how = {.position0 = position0, .scale = scale};
    fsdp_tensor *inputs[] = {x, frequencies, positions}, *saved[] = {frequencies, NULL}, *from, *y;
    int64_t pairs;

    if (!x || !frequencies || !fsdp__op_inputs("rope", inputs, 3) || !fsdp__op_same_dtype("rope", &x, 1))
        return NULL;
    if (x->ndim != 4 || x->shape[3] % 2 != 0)
        return fsdp__op_bad("rope", "input", "(batch, time, heads, even dimension)", x);
    if (frequencies->dtype != FSDP_F32 || !fsdp_tensor_is_contiguous(frequencies))
        return fsdp__op_bad("rope", "frequencies", "contiguous float32", frequencies);
    if (frequencies->ndim != 1 || frequencies->shape[0] < 1 || frequencies->shape[0] > x->shape[3] / 2)
        return fsdp__op_misfit("rope", "input", x, "frequencies", frequencies);
    if (positions &&
        fsdp__op_check_positions("rope", positions, x->shape[0], x->shape[1], &saved[1], &pairs) != FSDP_OK)
        return NULL;
    from = x->strides[3] == 1 ? x : fsdp__op_contiguous(x);
    /* A recomputation may have kept x, and would rotate it again. */
    y = make_result(x, over && from == x && !fsdp__origin_runs(x->storage));
    if (!from || !y || rotate(from, frequencies, saved[1], y, &how, false) != FSDP_OK ||
        fsdp__record(&rope_op, &x, 1, &y, 1, saved, 2, &how, sizeof how) != FSDP_OK)
        return NULL;
    return y;
}

fsdp_tensor *fsdp_rope(fsdp_tensor *x, fsdp_tensor *frequencies, int64_t position0)
{
    return fsdp__op_rope(x, frequencies, NULL, position0, 1, false);
}

fsdp_tensor *fsdp_rope_at(fsdp_tensor *x, fsdp_tensor *frequencies, fsdp_tensor *positions)
{
    return positions ? fsdp__op_rope(x, frequencies, positions, 0, 1, false) : NULL;
}
