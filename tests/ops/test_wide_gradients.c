/* Leaves of 16 bits whose gradients are f32: operations that can write them so do, unrounded; those of others are
 * converted. */
#include <math.h>

#include "autograd/autograd.h"
#include "autograd/tools.h"
#include "fsdp/ops.h"

enum {
    ROWS = 150, /* a head takes them in two parts */
    IN = 6,
    OUT = 5,
    MOST = OUT * IN
};

typedef enum operation {
    LINEAR,
    CONV1D,
    NORM,
    EMBEDDING,
    HEAD,
    PRODUCT, /* of elements, whose kernel writes the dtype of its operands */
    OPERATIONS
} operation;

typedef struct leaves {
    fsdp_tensor *x, *weight, *bias, *ids;
} leaves;

static fsdp_status give_f32(void *asked, fsdp_tensor *leaf, fsdp_tensor **out)
{
    ++*(int *)asked;
    return fsdp_tensor_create(fsdp_tensor_device(leaf), FSDP_F32, leaf->ndim, leaf->shape, FSDP_MEMORY_GRADIENT, out);
}

static fsdp_tensor *make(fsdp_context *context, uint64_t key, int ndim, const int64_t *shape)
{
    fsdp_tensor *tensor = CHECK_PTR(fsdp_empty(test_device(context), FSDP_BF16, ndim, shape));
    float values[ROWS * IN];

    for (int64_t i = 0; i < fsdp_tensor_numel(tensor); i++)
        values[i] = (float)sin(0.9 * (double)i + (double)key);
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    return tensor;
}

static leaves make_leaves(fsdp_context *context, operation op)
{
    bool vector = op == NORM || op == PRODUCT;
    int64_t shape[] = {op == CONV1D || vector ? IN : OUT, op == CONV1D ? OUT : IN};
    leaves l = {.x = make(context, 1, FSDP_SHAPE(ROWS, IN)),
                .weight = make(context, 2, vector ? 1 : 2, shape),
                .bias = make(context, 3, FSDP_SHAPE(op == NORM ? IN : OUT))};
    int32_t ids[ROWS];

    for (int i = 0; i < ROWS; i++)
        ids[i] = i * 7 % OUT;
    l.ids = make_ids(test_device(context), FSDP_SHAPE(ROWS), ids);
    CHECK_OK(fsdp_tensor_set_requires_grad(l.weight, true));
    CHECK_OK(fsdp_tensor_set_requires_grad(l.bias, op <= NORM));
    return l;
}

static fsdp_tensor *apply(operation op, const leaves *l)
{
    switch (op) {
    case LINEAR:
        return fsdp_linear(l->x, l->weight, l->bias);
    case CONV1D:
        return fsdp_conv1d(l->x, l->weight, l->bias);
    case NORM:
        return fsdp_layernorm(l->x, l->weight, l->bias, 1e-5f);
    case EMBEDDING:
        return fsdp_embedding(l->weight, l->ids);
    case HEAD:
        return fsdp_linear_cross_entropy(l->x, l->weight, l->ids);
    default:
        return fsdp_mul(l->x, l->weight);
    }
}

static fsdp_tensor *forward(fsdp_context *context, operation op, const leaves *l)
{
    fsdp_tensor *y = CHECK_PTR(apply(op, l));

    if (op == HEAD)
        return y;
    y = CHECK_PTR(fsdp_mul(y, make(context, 4, FSDP_SHAPE(ROWS, fsdp_tensor_size(y, 1)))));
    return CHECK_PTR(fsdp_cast(fsdp_sum(y), FSDP_F32));
}

static void backward(fsdp_context *context, operation op, const leaves *l)
{
    CHECK_OK(fsdp_backward(forward(context, op, l)));
}

/* Checks that a f32 gradient is `times` the one of 16 bits, but for its rounding. */
static void check_grad(operation op, const fsdp_tensor *wide, const fsdp_tensor *narrow, float times)
{
    float a[MOST], b[MOST], largest = 0;
    const fsdp_tensor *grad = CHECK_PTR(fsdp_tensor_grad(wide));
    int64_t numel = fsdp_tensor_numel(grad);
    bool rounded = true;

    CHECK_EQ(fsdp_tensor_dtype(grad), FSDP_F32);
    CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, a));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(narrow)), FSDP_F32, b));
    for (int64_t i = 0; i < numel; i++) {
        uint32_t bits;

        memcpy(&bits, &a[i], sizeof bits);
        rounded = rounded && (bits & 0xffff) == 0;
        largest = fmaxf(largest, fabsf(b[i]));
    }
    for (int64_t i = 0; i < numel; i++)
        CHECK_NEAR(a[i], times * b[i], times * (0.01 * fabs((double)b[i]) + 0.005 * (double)largest));
    CHECK_EQ(rounded, op == PRODUCT);
}

static fsdp_status look_on(void *seen, fsdp_tensor *leaf, fsdp_tensor **grad)
{
    (void)leaf, (void)grad;
    ++*(int *)seen;
    return FSDP_OK;
}

/* With a hook on the bias its gradient is a temporary of 16 bits. */
static void compare(fsdp_context *context, operation op, bool hooked)
{
    leaves wide = make_leaves(context, op), narrow = make_leaves(context, op);
    int asked = 0, seen = 0;

    CHECK_OK(fsdp__set_grad_source(wide.weight, give_f32, &asked));
    CHECK_OK(fsdp__set_grad_dtype(wide.weight, FSDP_F32));
    CHECK_OK(fsdp__set_grad_source(wide.bias, give_f32, &asked));
    CHECK_OK(fsdp__set_grad_dtype(wide.bias, FSDP_F32));
    if (hooked)
        CHECK_OK(fsdp_tensor_add_grad_hook(wide.bias, look_on, &seen));
    backward(context, op, &narrow);
    for (int step = 1; step <= 2; step++) {
        backward(context, op, &wide);
        check_grad(op, wide.weight, narrow.weight, (float)step);
        if (op <= NORM && !hooked)
            check_grad(op, wide.bias, narrow.bias, (float)step);
    }
    CHECK_EQ(asked, op <= NORM ? 2 : 1);
    CHECK_EQ(seen, hooked ? 2 : 0);
}

CONTEXT_TEST(gradients_of_16_bit_leaves_may_be_f32)
{
    for (int op = 0; op < OPERATIONS; op++)
        for (int hooked = 0; hooked <= (op <= NORM); hooked++) {
            CHECK_OK(fsdp_scope_begin(context));
            compare(context, (operation)op, hooked);
            fsdp_scope_end(context, NULL);
        }
}

/* The gradient of a head lies at the leaf's place since the forward, and must stay there for the next backward. */
CONTEXT_TEST(a_graph_that_is_kept_gives_them_again)
{
    for (int op = 0; op < OPERATIONS; op++) {
        leaves wide, narrow;
        fsdp_tensor *y;
        int asked = 0;

        CHECK_OK(fsdp_scope_begin(context));
        wide = make_leaves(context, op);
        narrow = make_leaves(context, op);
        CHECK_OK(fsdp__set_grad_source(wide.weight, give_f32, &asked));
        CHECK_OK(fsdp__set_grad_dtype(wide.weight, FSDP_F32));
        backward(context, op, &narrow);
        y = forward(context, op, &wide);
        for (int time = 1; time <= 2; time++) {
            CHECK_OK(fsdp_backward_from(&y, NULL, 1, time < 2));
            check_grad(op, wide.weight, narrow.weight, (float)time);
        }
        fsdp_scope_end(context, NULL);
    }
}
