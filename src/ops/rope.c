/* rope.c - rotary position embedding, of one tensor or of queries and keys. The backward rotates back.
 *
 * If the heads of queries and keys lie side by side in each token, as a joint product writes them, one launch rotates
 * both: to the kernel they are heads of one tensor. The backward does the same if their gradients lie side by side. It
 * passes the places of these on to the operations that make them (traits->place); they are then written where they are
 * read after the rotation, which moves nothing. */
#include "ops/op.h"

#include <string.h>

#include "base/alloc.h"

enum {
    MOST = 2 /* tensors that are rotated alike */
};

typedef struct rope_state {
    int64_t position0;
    float scale;
    int count;
    bool asked[MOST];         /* for the gradient's place */
    fsdp_tensor *place[MOST]; /* owned; NULL: any will do */
} rope_state;

/* Holds what all tensors of a call are rotated by. */
typedef struct turn {
    const rope_state *state;
    const fsdp_tensor *frequencies, *positions; /* positions (B,T), or NULL */
    bool inverse;
} turn;

/* Computes y = x rotated, of `heads` heads; both (B,T,H,D) with D contiguous. */
static fsdp_status rotate(const turn *how, const fsdp_tensor *x, const fsdp_tensor *y, int64_t heads)
{
    const fsdp__rope_args args = {.x = fsdp_tensor_data(x),
                                  .y = fsdp_tensor_data(y),
                                  .frequency = fsdp_tensor_data(how->frequencies),
                                  .batch = x->shape[0],
                                  .time = x->shape[1],
                                  .heads = heads,
                                  .head_dim = x->shape[3],
                                  .position0 = how->state->position0,
                                  .x_batch = x->strides[0],
                                  .x_time = x->strides[1],
                                  .x_head = x->strides[2],
                                  .y_batch = y->strides[0],
                                  .y_time = y->strides[1],
                                  .y_head = y->strides[2],
                                  .dtype = x->dtype,
                                  .inverse = how->inverse,
                                  .positions = how->positions ? fsdp_tensor_data(how->positions) : NULL,
                                  .rotated = 2 * how->frequencies->shape[0],
                                  .scale = how->state->scale};

    return fsdp_tensor_numel(x) == 0 ? FSDP_OK : fsdp__launch_rope(fsdp__op_stream(x), &args);
}

/* Returns whether b's heads follow those of a in each token. */
static bool follows(const fsdp_tensor *a, const fsdp_tensor *b)
{
    return a->storage == b->storage && a->offset + a->shape[2] * a->strides[2] == b->offset &&
           memcmp(a->strides, b->strides, 4 * sizeof *a->strides) == 0 && a->shape[0] == b->shape[0] &&
           a->shape[1] == b->shape[1] && a->shape[3] == b->shape[3];
}

/* Rotates x[i] into y[i], both if there are two, in as few launches as their places allow. */
static fsdp_status rotate_all(const turn *how, int count, fsdp_tensor *const *x, fsdp_tensor *const *y)
{
    if (count == 2 && follows(x[0], x[1]) && follows(y[0], y[1]))
        return rotate(how, x[0], y[0], x[0]->shape[2] + x[1]->shape[2]);
    for (int i = 0; i < count; i++)
        FSDP_TRY(rotate(how, x[i], y[i], x[i]->shape[2]));
    return FSDP_OK;
}

/* ---- backward ---- */

static void free_state(void *state)
{
    rope_state *s = state;

    for (int i = 0; i < MOST; i++) {
        fsdp_tensor_unref(fsdp__take(&s->place[i]));
        s->asked[i] = false;
    }
}

static fsdp_status ask(fsdp__node *node, int i)
{
    rope_state *s = fsdp__node_state(node);

    if (s->asked[i])
        return FSDP_OK;
    FSDP_TRY(fsdp__node_place(node, i, &s->place[i]));
    s->asked[i] = true;
    s->place[i] = s->place[i] ? fsdp_tensor_ref(s->place[i]) : NULL;
    return FSDP_OK;
}

static fsdp_status rope_place(fsdp__node *node, int output, fsdp_tensor **out)
{
    rope_state *s = fsdp__node_state(node);

    FSDP_TRY(ask(node, output));
    *out = s->place[output] ? fsdp_tensor_ref(s->place[output]) : NULL;
    return FSDP_OK;
}

/* Finds where the gradient of input i goes: over the output's gradient, if nobody else sees that. */
static fsdp_status find_place(fsdp__node *node, int i, fsdp_tensor *grad, fsdp_tensor **dy, fsdp_tensor **dx)
{
    rope_state *s = fsdp__node_state(node);
    bool has_come = s->place[i] == grad;

    *dy = has_come ? grad : fsdp__op_contiguous(grad);
    FSDP_TRY(ask(node, i));
    if (has_come)
        *dx = grad->refs == 2 ? grad : fsdp__empty_like(grad, grad->dtype); /* the node's, and the state's */
    else
        *dx = s->place[i] ? s->place[i] : fsdp__op_reuse(*dy);
    return *dy && *dx ? FSDP_OK : fsdp_last_status();
}

static fsdp_status turn_back(fsdp__node *node, fsdp_tensor *const *grads)
{
    const rope_state *s = fsdp__node_state(node);
    const turn how = {s, fsdp__node_saved(node, 0), fsdp__node_saved(node, 1), true};
    fsdp_tensor *dy[MOST] = {NULL}, *dx[MOST] = {NULL};
    int input[MOST], count = 0;

    for (int i = 0; i < s->count; i++)
        if (grads[i] && fsdp__node_needs(node, i)) {
            FSDP_TRY(find_place(node, i, grads[i], &dy[count], &dx[count]));
            input[count++] = i;
        }
    FSDP_TRY(rotate_all(&how, count, dy, dx));
    for (int i = 0; i < count; i++)
        FSDP_TRY(fsdp__node_give(node, input[i], dx[i]));
    return FSDP_OK;
}

static fsdp_status rope_backward(fsdp__node *node, fsdp_tensor *const *grads)
{
    fsdp_status status = turn_back(node, grads);

    free_state(fsdp__node_state(node));
    return status;
}

static const fsdp__op rope_op = {.name = "rope", .backward = rope_backward, .free_state = free_state};
static const fsdp__traits traits = {.place = rope_place};

/* ---- forward ---- */

static fsdp_status check(const fsdp_tensor *x, const fsdp_tensor *frequencies)
{
    fsdp_tensor *input = (fsdp_tensor *)(uintptr_t)x;

    if (!fsdp__op_same_dtype("rope", &input, 1))
        return fsdp_last_status();
    if (x->ndim != 4 || x->shape[3] % 2 != 0)
        fsdp__op_bad("rope", "input", "(batch, time, heads, even dimension)", x);
    else if (frequencies->dtype != FSDP_F32 || !fsdp_tensor_is_contiguous(frequencies))
        fsdp__op_bad("rope", "frequencies", "contiguous float32", frequencies);
    else if (frequencies->ndim != 1 || frequencies->shape[0] < 1 || frequencies->shape[0] > x->shape[3] / 2)
        fsdp__op_misfit("rope", "input", x, "frequencies", frequencies);
    else
        return FSDP_OK;
    return fsdp_last_status();
}

/* Makes the result on the bytes of x. */
static fsdp_status take_over(fsdp_tensor *x, fsdp_tensor **y)
{
    FSDP_TRY(fsdp_tensor_begin_write(x));
    FSDP_TRY(fsdp__tensor_alias(x, y));
    FSDP__TRY_NEW(*y = fsdp__scope_adopt(*y));
    return FSDP_OK;
}

/* Makes two results side by side, as their inputs are. */
static fsdp_status make_both(fsdp_tensor *const *x, fsdp_tensor **y)
{
    int64_t heads = x[0]->shape[2], shape[] = {x[0]->shape[0], x[0]->shape[1], heads + x[1]->shape[2], x[0]->shape[3]};
    fsdp_tensor *both = fsdp_empty(x[0]->storage->device, x[0]->dtype, 4, shape);

    FSDP__TRY_MADE(both);
    for (int i = 0; i < 2; i++) {
        FSDP_TRY(fsdp__view_narrow(both, 2, i * heads, x[i]->shape[2], &y[i]));
        FSDP__TRY_NEW(y[i] = fsdp__scope_adopt(y[i]));
    }
    return FSDP_OK;
}

/* Makes the results, and gives what they are computed from. */
static fsdp_status make_results(int count, fsdp_tensor *const *x, bool over, fsdp_tensor **from, fsdp_tensor **y)
{
    if (!over && count == 2 && follows(x[0], x[1])) {
        memcpy(from, x, (size_t)count * sizeof *x);
        return make_both(x, y);
    }
    for (int i = 0; i < count; i++) {
        FSDP__TRY_MADE(from[i] = x[i]->strides[3] == 1 ? x[i] : fsdp__op_contiguous(x[i]));
        if (over && from[i] == x[i])
            FSDP_TRY(take_over(x[i], &y[i]));
        else
            FSDP__TRY_NEW(y[i] = fsdp__empty_like(x[i], x[i]->dtype));
    }
    return FSDP_OK;
}

fsdp_status fsdp__op_rope(int count, fsdp_tensor **x, fsdp_tensor *frequencies, fsdp_tensor *positions,
                          int64_t position0, float scale, bool over)
{
    rope_state state = {.position0 = position0, .scale = scale, .count = count};
    fsdp_tensor *inputs[] = {frequencies, positions, x[0], x[count - 1]}, *saved[] = {frequencies, NULL};
    fsdp_tensor *from[MOST] = {NULL}, *y[MOST] = {NULL};
    int64_t pairs;

    if (!x[0] || !x[count - 1] || !frequencies || !fsdp__op_inputs("rope", inputs, 4))
        return fsdp_last_status();
    for (int i = 0; i < count; i++)
        FSDP_TRY(check(x[i], frequencies));
    if (positions)
        FSDP_TRY(fsdp__op_check_positions("rope", positions, x[0]->shape[0], x[0]->shape[1], &saved[1], &pairs));
    /* A recomputation may have kept x, and would rotate it again. */
    FSDP_TRY(make_results(count, x, over && !fsdp__origin_runs(x[0]->storage), from, y));
    FSDP_TRY(rotate_all(&(turn){&state, frequencies, saved[1], false}, count, from, y));
    FSDP_TRY(fsdp__record_with(&traits, &rope_op, x, count, y, count, saved, 2, &state, sizeof state));
    memcpy(x, y, (size_t)count * sizeof *x);
    return FSDP_OK;
}

fsdp_tensor *fsdp_rope(fsdp_tensor *x, fsdp_tensor *frequencies, int64_t position0)
{
    return fsdp__op_rope(1, &x, frequencies, NULL, position0, 1, false) == FSDP_OK ? x : NULL;
}

fsdp_tensor *fsdp_rope_at(fsdp_tensor *x, fsdp_tensor *frequencies, fsdp_tensor *positions)
{
    return positions && fsdp__op_rope(1, &x, frequencies, positions, 0, 1, false) == FSDP_OK ? x : NULL;
}
