/* Operations on images: gradients against difference quotients, what is refused, empty batches, shapes alone. */
#include "fsdp/ops.h"

#include "autograd/tools.h"
#include "tensor/tensor.h"

typedef fsdp_tensor *const *tensors;

static fsdp_context *context;
static fsdp_device *device;

static int setup(void **state)
{
    (void)state;
    context = test_context();
    device = test_device(context);
    CHECK_OK(fsdp_scope_begin(context));
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
    return 0;
}

/* ---- gradients ---- */

/* Leaves of the given shapes (ndim first, -1 ends), then the check. */
static void check(fsdp_gradcheck_function function, const int64_t *shapes)
{
    fsdp_tensor *inputs[4];
    int count = 0;

    for (; shapes[0] >= 0; shapes += shapes[0] + 1, count++)
        inputs[count] = make_leaf(device, (uint64_t)count + 1, (int)shapes[0], shapes + 1);
    CHECK_OK(fsdp_gradcheck(function, NULL, inputs, count, 4e-3, 2e-3, 1e-2));
}

#define GRADIENT(name, expression, ...)                             \
    static fsdp_tensor *name##_of(void *arg, tensors in, int count) \
    {                                                               \
        (void)arg, (void)count;                                     \
        return (expression);                                        \
    }                                                               \
    static void name##_has_the_right_gradient(void **state)         \
    {                                                               \
        (void)state;                                                \
        check(name##_of, (const int64_t[]){__VA_ARGS__, -1});       \
    }

#define CONV(...) (&(fsdp_conv2d_options){__VA_ARGS__})

GRADIENT(conv2d, fsdp_conv2d(in[0], in[1], in[2], NULL), 4, 2, 3, 5, 4, 4, 2, 3, 3, 2, 1, 2)
GRADIENT(conv2d_with_padding, fsdp_conv2d(in[0], in[1], FSDP_NO_BIAS, CONV(.padding = {1, 2}, .stride = {2, 1})), 4, 3,
         2, 4, 3, 4, 3, 2, 3, 2)
GRADIENT(conv2d_with_holes, fsdp_conv2d(in[0], in[1], in[2], CONV(.dilation = {2, 1}, .padding = {1, 0})), 4, 1, 2, 5,
         4, 4, 2, 2, 2, 2, 1, 2)
GRADIENT(conv2d_in_groups, fsdp_conv2d(in[0], in[1], in[2], CONV(.groups = 2)), 4, 2, 4, 3, 3, 4, 6, 2, 2, 2, 1, 6)
GRADIENT(conv2d_by_channel, fsdp_conv2d(in[0], in[1], in[2], CONV(.groups = 3)), 4, 2, 3, 3, 4, 4, 3, 1, 2, 2, 1, 3)
GRADIENT(conv2d_of_views, fsdp_conv2d(fsdp_transpose(in[0], 2, 3), fsdp_transpose(in[1], 0, 1), in[2], NULL), 4, 2, 2,
         4, 3, 4, 2, 3, 2, 2, 1, 3)
GRADIENT(conv2d_twice, fsdp_conv2d(fsdp_conv2d(in[0], in[1], in[2], CONV(.padding = {1, 1})), in[1], in[2], NULL), 4, 1,
         2, 3, 3, 4, 2, 2, 3, 3, 1, 2)

/* ---- what is refused ---- */

#define ZEROS(...) fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(__VA_ARGS__))
#define HALF(...) fsdp_zeros(device, FSDP_BF16, FSDP_SHAPE(__VA_ARGS__))

#define CHECK_FAILS(call, part)                     \
    do {                                            \
        fsdp_clear_error();                         \
        CHECK_NULL(call);                           \
        CHECK_EQ(fsdp_last_status(), FSDP_INVALID); \
        CHECK_CONTAINS(fsdp_last_error(), part);    \
    } while (0)

static void convolutions_that_do_not_fit_are_refused(void **state)
{
    fsdp_tensor *x = ZEROS(2, 4, 5, 5), *w = ZEROS(6, 4, 3, 3), *none = FSDP_NO_BIAS;

    (void)state;
    CHECK_FAILS(fsdp_conv2d(ZEROS(4, 5, 5), w, none, NULL), "conv2d: input must be of dimensions (N,C,H,W), not");
    CHECK_FAILS(fsdp_conv2d(x, ZEROS(6, 4), none, NULL), "conv2d: weight must be of dimensions (O,C/groups,kh,kw)");
    CHECK_FAILS(fsdp_conv2d(x, ZEROS(0, 4, 3, 3), none, NULL), "none of them 0");
    CHECK_FAILS(fsdp_conv2d(x, ZEROS(6, 3, 3, 3), none, NULL), "input (2, 4, 5, 5) does not fit weight (6, 3, 3, 3)");
    CHECK_FAILS(fsdp_conv2d(x, w, ZEROS(4), NULL), "bias (4,) does not fit weight (6, 4, 3, 3)");
    CHECK_FAILS(fsdp_conv2d(x, w, none, CONV(.groups = 4)), "4 channels in and 6 out cannot be divided into 4 groups");
    CHECK_FAILS(fsdp_conv2d(x, w, none, CONV(.groups = -1)), "into -1 groups");
    CHECK_FAILS(fsdp_conv2d(x, w, none, CONV(.stride = {1, -1})), "stride -1");
    CHECK_FAILS(fsdp_conv2d(x, w, none, CONV(.padding = {-1, 0})), "padding -1");
    CHECK_FAILS(fsdp_conv2d(x, w, none, CONV(.dilation = {1, 3})),
                "the kernel spans 7 of the width of input (2, 4, 5, 5), which has 5 with its padding");
    CHECK_FAILS(fsdp_conv2d(HALF(2, 4, 5, 5), w, none, NULL), "inputs are bfloat16 and float32");
    CHECK_NULL(fsdp_conv2d(NULL, w, none, NULL));
}

/* ---- nothing, and shapes alone ---- */

static void an_empty_batch_gives_zero_gradients(void **state)
{
    fsdp_tensor *x = ZEROS(0, 2, 4, 4), *y;
    fsdp_tensor *w = make_leaf(device, 1, 4, (int64_t[]){3, 2, 3, 3}), *b = make_leaf(device, 2, 1, (int64_t[]){3});
    float values[54];

    (void)state;
    y = CHECK_PTR(fsdp_conv2d(x, w, b, NULL));
    CHECK_EQ(fsdp_tensor_shape(y)[3], 2);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, values));
    for (int i = 0; i < 54; i++)
        CHECK(values[i] == 0.0f);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(b), FSDP_F32, values));
    CHECK(values[0] == 0.0f && values[2] == 0.0f);
}

static void shapes_are_known_without_bytes(void **state)
{
    fsdp_device *meta = CHECK_PTR(fsdp_meta(context));
    fsdp_tensor *x = CHECK_PTR(fsdp_empty(meta, FSDP_F32, FSDP_SHAPE(2, 3, 9, 8)));
    fsdp_tensor *w = CHECK_PTR(fsdp_empty(meta, FSDP_F32, FSDP_SHAPE(5, 3, 3, 3))), *y;

    (void)state;
    CHECK_OK(fsdp_tensor_set_requires_grad(w, true));
    y = CHECK_PTR(fsdp_conv2d(x, w, FSDP_NO_BIAS, CONV(.stride = {2, 2}, .padding = {1, 1})));
    CHECK_EQ(fsdp_tensor_shape(y)[1], 5);
    CHECK_EQ(fsdp_tensor_shape(y)[2], 5);
    CHECK_EQ(fsdp_tensor_shape(y)[3], 4);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
    CHECK_PTR(fsdp_tensor_grad(w));
}

#define T(test) cmocka_unit_test_setup_teardown(test, setup, teardown)
#define G(name) T(name##_has_the_right_gradient)

TEST_MAIN(G(conv2d), G(conv2d_with_padding), G(conv2d_with_holes), G(conv2d_in_groups), G(conv2d_by_channel),
          G(conv2d_of_views), G(conv2d_twice), T(convolutions_that_do_not_fit_are_refused),
          T(an_empty_batch_gives_zero_gradients), T(shapes_are_known_without_bytes))
