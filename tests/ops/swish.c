/* swish.c - two kernels, a state with memory of its own, a gradient that is given and one that is written in place. */
#include "ops/swish.h"

#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

static atomic_int forward_runs; /* of a test program */

typedef struct sizes {
    int64_t rows, cols;
    bool accumulate;
} sizes;

/* What the backward needs to know, in memory that free_state has to release. */
typedef struct kept {
    sizes *sizes;
} kept;

int swish_runs(void)
{
    return atomic_load(&forward_runs);
}

static float sigmoid(float x)
{
    return 1.0f / (1.0f + expf(-x));
}

static fsdp_status forward_kernel(const void *arg, void *const *data)
{
    const sizes *s = arg;
    const float *x = data[0], *slope = data[1];
    float *y = data[2];

    atomic_fetch_add(&forward_runs, 1);
    for (int64_t i = 0; i < s->rows * s->cols; i++)
        y[i] = x[i] * sigmoid(slope[i % s->cols] * x[i]);
    return FSDP_OK;
}

static fsdp_status dx_kernel(const void *arg, void *const *data)
{
    const sizes *s = arg;
    const float *x = data[0], *slope = data[1], *dy = data[2];
    float *dx = data[3];

    for (int64_t i = 0; i < s->rows * s->cols; i++) {
        float a = slope[i % s->cols], p = sigmoid(a * x[i]);

        dx[i] = dy[i] * (p + a * x[i] * p * (1.0f - p));
    }
    return FSDP_OK;
}

static fsdp_status dslope_kernel(const void *arg, void *const *data)
{
    const sizes *s = arg;
    const float *x = data[0], *slope = data[1], *dy = data[2];
    float *dslope = data[s->accumulate ? 4 : 3]; /* then it is among those that are read, too */

    for (int64_t c = 0; c < s->cols; c++) {
        float sum = s->accumulate ? dslope[c] : 0.0f;

        for (int64_t i = c; i < s->rows * s->cols; i += s->cols) {
            float p = sigmoid(slope[c] * x[i]);

            sum += dy[i] * x[i] * x[i] * p * (1.0f - p);
        }
        dslope[c] = sum;
    }
    return FSDP_OK;
}

/* For kernels that know f32 alone. */
static fsdp_tensor *plain(fsdp_tensor *tensor)
{
    return fsdp_contiguous(fsdp_cast(tensor, FSDP_F32));
}

static fsdp_tensor *like(fsdp_tensor *tensor)
{
    return fsdp_empty(fsdp_tensor_device(tensor), FSDP_F32, fsdp_tensor_ndim(tensor), fsdp_tensor_shape(tensor));
}

static fsdp_status give_dx(fsdp_node *node, const sizes *s, fsdp_tensor *const *from)
{
    fsdp_tensor *dx = like(from[0]);

    if (!dx)
        return fsdp_last_status();
    FSDP_TRY(fsdp_launch_kernel("swish dx", dx_kernel, s, sizeof *s, from, 3, &dx, 1));
    return fsdp_node_give(node, 0, fsdp_cast(dx, fsdp_tensor_dtype(fsdp_node_saved(node, 0))));
}

/* Where it belongs at once, if the kernel knows the dtype. */
static fsdp_status give_dslope(fsdp_node *node, sizes s, fsdp_tensor *const *from)
{
    fsdp_tensor *reads[4] = {from[0], from[1], from[2], NULL}, *slope = fsdp_node_saved(node, 1), *out;
    bool in_place = fsdp_tensor_dtype(slope) == FSDP_F32;

    out = in_place ? NULL : like(slope);
    if (in_place)
        FSDP_TRY(fsdp_node_target(node, 1, &out, &s.accumulate));
    if (!out)
        return fsdp_last_status();
    reads[3] = out;
    FSDP_TRY(fsdp_launch_kernel("swish dslope", dslope_kernel, &s, sizeof s, reads, s.accumulate ? 4 : 3, &out, 1));
    return in_place ? FSDP_OK : fsdp_node_give(node, 1, fsdp_cast(out, fsdp_tensor_dtype(slope)));
}

static fsdp_status swish_backward(fsdp_node *node, fsdp_tensor *const *grads)
{
    const kept *state = fsdp_node_state(node);
    fsdp_tensor *from[] = {plain(fsdp_node_saved(node, 0)), plain(fsdp_node_saved(node, 1)), plain(grads[0])};

    if (!state || !from[0] || !from[1] || !from[2])
        return fsdp_last_status();
    if (fsdp_node_needs(node, 0))
        FSDP_TRY(give_dx(node, state->sizes, from));
    if (fsdp_node_needs(node, 1))
        FSDP_TRY(give_dslope(node, *state->sizes, from));
    return FSDP_OK;
}

static void free_kept(void *state)
{
    free(((kept *)state)->sizes);
}

static const fsdp_operation swish_operation = {.name = "swish", .backward = swish_backward, .free_state = free_kept};

static fsdp_tensor *compute(fsdp_tensor *x, fsdp_tensor *slope, const sizes *s)
{
    fsdp_context *context = fsdp_device_context(fsdp_tensor_device(x));
    fsdp_tensor *from[2], *y;

    fsdp_no_grad_begin(context);
    from[0] = plain(x);
    from[1] = plain(slope);
    y = like(x);
    if (!from[0] || !from[1] || !y ||
        fsdp_launch_kernel("swish", forward_kernel, s, sizeof *s, from, 2, &y, 1) != FSDP_OK)
        y = NULL;
    y = fsdp_cast(y, fsdp_tensor_dtype(x));
    fsdp_no_grad_end(context);
    return y;
}

fsdp_tensor *swish(fsdp_tensor *x, fsdp_tensor *slope)
{
    fsdp_tensor *inputs[] = {x, slope}, *y;
    kept state = {NULL};
    sizes s;

    if (!x || !slope)
        return NULL;
    s = (sizes){.cols = fsdp_tensor_size(x, -1)};
    s.rows = s.cols > 0 ? fsdp_tensor_numel(x) / s.cols : 0;
    y = compute(x, slope, &s);
    if (!y || !fsdp_will_record(inputs, 2))
        return y;
    state.sizes = malloc(sizeof s);
    if (!state.sizes)
        return NULL;
    *state.sizes = s;
    if (fsdp_record(&swish_operation, inputs, 2, &y, 1, inputs, 2, &state, sizeof state) == FSDP_OK)
        return y;
    free(state.sizes);
    return NULL;
}
