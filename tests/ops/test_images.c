/* Operations on images: gradients against difference quotients, what is refused, empty batches, shapes alone. */
#include "fsdp/ops.h"

#include "autograd/autograd.h"
#include "autograd/tools.h"
#include "ops/gradient.h"
#include "tensor/tensor.h"

/* ---- gradients ---- */

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

#define POOL(...) (&(fsdp_pool2d_options){__VA_ARGS__})

/* Values that are far apart, in no order: a step of the difference quotient changes no maximum. */
static fsdp_tensor *apart(fsdp_tensor *x)
{
    int64_t numel = fsdp_tensor_numel(x);
    float values[256];

    CHECK(numel <= 256);
    for (int64_t i = 0; i < numel; i++)
        values[i] = (float)(i * 101 % 257);
    return fsdp_add(x, fsdp_from_data(device, FSDP_F32, fsdp_tensor_ndim(x), fsdp_tensor_shape(x), values));
}

GRADIENT(max_pool2d, fsdp_max_pool2d(apart(in[0]), POOL(.kernel = {2, 3})), 4, 2, 2, 5, 7)
GRADIENT(max_pool2d_that_overlaps,
         fsdp_max_pool2d(apart(in[0]), POOL(.kernel = {3, 2}, .stride = {1, 2}, .padding = {1, 1}, .dilation = {1, 2})),
         4, 2, 1, 5, 6)
GRADIENT(max_pool2d_of_a_view, fsdp_max_pool2d(fsdp_transpose(apart(in[0]), 2, 3), POOL(.kernel = {2, 2})), 4, 1, 2, 5,
         4)
GRADIENT(avg_pool2d, fsdp_avg_pool2d(in[0], POOL(.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1})), 4, 2, 2, 5, 4)
GRADIENT(avg_pool2d_without_padding,
         fsdp_avg_pool2d(in[0], POOL(.kernel = {3, 2}, .padding = {1, 1}, .exclude_padding = true)), 4, 1, 2, 5, 4)
GRADIENT(adaptive_avg_pool2d, fsdp_adaptive_avg_pool2d(in[0], 3, 0), 4, 2, 2, 5, 4)
GRADIENT(pooled_twice, fsdp_add(fsdp_avg_pool2d(in[0], POOL(.kernel = {2, 2})), fsdp_adaptive_avg_pool2d(in[0], 2, 2)),
         4, 1, 2, 4, 5)

static fsdp_tensor *in_training(fsdp_tensor *x, fsdp_tensor *weight, fsdp_tensor *bias)
{
    return fsdp_batch_norm(x, weight, bias, &(fsdp_batch_norm_options){.training = true, .eps = 1e-2f});
}

static fsdp_tensor *in_evaluation(tensors in)
{
    return fsdp_batch_norm(in[0], in[1], in[2],
                           &(fsdp_batch_norm_options){.running_mean = make_floats(device, 3, (float[]){0.5f, -1, 2}),
                                                      .running_var = make_floats(device, 3, (float[]){1.5f, 1, 2}),
                                                      .eps = 1e-2f});
}

GRADIENT(batch_norm, in_training(in[0], in[1], in[2]), 4, 3, 3, 2, 3, 1, 3, 1, 3)
GRADIENT(batch_norm_of_rows, in_training(in[0], in[1], FSDP_NO_BIAS), 2, 7, 3, 1, 3)
GRADIENT(batch_norm_of_a_view, in_training(fsdp_transpose(in[0], 0, 1), FSDP_NO_BIAS, in[1]), 3, 3, 4, 5, 1, 3)
GRADIENT(batch_norm_in_evaluation, in_evaluation(in), 3, 2, 3, 4, 1, 3, 1, 3)
GRADIENT(group_norm, fsdp_group_norm(in[0], 2, in[1], in[2], 1e-2f), 4, 2, 6, 2, 3, 1, 6, 1, 6)
GRADIENT(group_norm_without_a_weight,
         fsdp_add(fsdp_group_norm(in[0], 3, FSDP_NO_BIAS, FSDP_NO_BIAS, 1e-2f), fsdp_scale(in[0], 0.5)), 3, 2, 6, 2)

/* ---- what is refused ---- */

#define ZEROS(...) fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(__VA_ARGS__))
#define HALF(...) fsdp_zeros(device, FSDP_BF16, FSDP_SHAPE(__VA_ARGS__))

SCOPE_TEST(convolutions_that_do_not_fit_are_refused)
{
    fsdp_tensor *x = ZEROS(2, 4, 5, 5), *w = ZEROS(6, 4, 3, 3), *none = FSDP_NO_BIAS;

    CHECK_INVALID(fsdp_conv2d(ZEROS(4, 5, 5), w, none, NULL), "conv2d: input must be of dimensions (N,C,H,W), not");
    CHECK_INVALID(fsdp_conv2d(x, ZEROS(6, 4), none, NULL), "conv2d: weight must be of dimensions (O,C/groups,kh,kw)");
    CHECK_INVALID(fsdp_conv2d(x, ZEROS(0, 4, 3, 3), none, NULL), "none of them 0, not float32");
    CHECK_INVALID(fsdp_conv2d(x, ZEROS(6, 3, 3, 3), none, NULL), "input (2, 4, 5, 5) does not fit weight (6, 3, 3, 3)");
    CHECK_INVALID(fsdp_conv2d(x, w, ZEROS(4), NULL), "bias (4,) does not fit weight (6, 4, 3, 3)");
    CHECK_INVALID(fsdp_conv2d(x, w, none, CONV(.groups = 4)),
                  "4 channels in and 6 out cannot be divided into 4 groups");
    CHECK_INVALID(fsdp_conv2d(x, w, none, CONV(.groups = -1)), "into -1 groups");
    CHECK_INVALID(fsdp_conv2d(x, w, none, CONV(.stride = {1, -1})), "stride -1");
    CHECK_INVALID(fsdp_conv2d(x, w, none, CONV(.padding = {-1, 0})), "padding -1");
    CHECK_INVALID(fsdp_conv2d(x, w, none, CONV(.dilation = {1, 3})),
                  "the kernel spans 7 of the width of input (2, 4, 5, 5), which has 5 with its padding");
    CHECK_INVALID(fsdp_conv2d(ZEROS(2, 4, 0, 5), w, none, CONV(.padding = {2, 2})),
                  "conv2d: input must be of a height and width of at least 1, not float32 (2, 4, 0, 5)");
    CHECK_INVALID(fsdp_conv2d(ZEROS(0, 4, INT64_MAX, 5), w, none, CONV(.padding = {2, 2})), "of a height and width");
    CHECK_INVALID(fsdp_conv2d(HALF(2, 4, 5, 5), w, none, NULL), "inputs are bfloat16 and float32");
    CHECK_NULL(fsdp_conv2d(NULL, w, none, NULL));
}

SCOPE_TEST(windows_that_do_not_fit_are_refused)
{
    fsdp_tensor *x = ZEROS(2, 4, 5, 5);

    CHECK_INVALID(fsdp_max_pool2d(x, NULL), "max_pool2d: options with a kernel are required");
    CHECK_INVALID(fsdp_max_pool2d(x, POOL(.kernel = {2})), "max_pool2d: kernel 0");
    CHECK_INVALID(fsdp_max_pool2d(x, POOL(.kernel = {6, 2})), "the kernel spans 6 of the height");
    CHECK_INVALID(fsdp_avg_pool2d(x, POOL(.kernel = {2, 2}, .padding = {2, 0})), "padding 2 is more than half");
    CHECK_INVALID(fsdp_avg_pool2d(ZEROS(4, 5, 5), POOL(.kernel = {2, 2})), "of dimensions (N,C,H,W)");
    CHECK_INVALID(fsdp_adaptive_avg_pool2d(x, -1, 2), "a result of -1 x 2");
    CHECK_INVALID(fsdp_adaptive_avg_pool2d(ZEROS(2, 4, 0, 5), 1, 1), "height and width at least 1");
    CHECK_NULL(fsdp_max_pool2d(NULL, POOL(.kernel = {2, 2})));
}

SCOPE_TEST(norms_that_do_not_fit_are_refused)
{
    fsdp_tensor *x = ZEROS(2, 4, 5), *row = ZEROS(4), *none = FSDP_NO_BIAS;
    fsdp_tensor *count = fsdp_zeros(device, FSDP_I64, 0, NULL);
    fsdp_batch_norm_options o = {.training = true};

    CHECK_INVALID(fsdp_group_norm(x, 3, row, row, 1e-5f), "group_norm: 4 channels cannot be divided into 3 groups");
    CHECK_INVALID(fsdp_group_norm(x, 2, ZEROS(5), row, 1e-5f), "input (2, 4, 5) does not fit weight (5,)");
    CHECK_INVALID(fsdp_group_norm(x, 2, row, HALF(4), 1e-5f), "group_norm: bias must be float32");
    CHECK_INVALID(fsdp_group_norm(ZEROS(4), 2, row, row, 1e-5f), "(N,C,...), not float32");
    CHECK_INVALID(fsdp_batch_norm(ZEROS(1, 4), none, none, &o), "input in training must be of more than one value");
    o.training = false;
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "without training the running mean and variance are required");
    o.running_mean = row;
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "or neither");
    o.running_var = ZEROS(5);
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "does not fit running variance (5,)");
    o.running_var = HALF(4);
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "running variance must be float32");
    o.running_var = row, o.cumulative_average = true, o.training = true;
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "an average over all batches needs their number");
    o.num_batches_tracked = row;
    CHECK_INVALID(fsdp_batch_norm(x, none, none, &o), "number of batches must be one int64");
    o.num_batches_tracked = count;
    CHECK_PTR(fsdp_batch_norm(x, none, none, &o));
}

/* ---- running statistics ---- */

static fsdp_tensor *normalise(void *arg, tensors inputs, int count)
{
    (void)count;
    return fsdp_batch_norm(inputs[0], inputs[1], FSDP_NO_BIAS, arg);
}

/* A recomputed function runs twice, and they follow the batch once. */
SCOPE_TEST(a_recomputed_function_leaves_running_statistics_alone_the_second_time)
{
    float mean[2][3], variance[2][3], gradient[2][3];
    int64_t batches[2];

    for (int recomputed = 0; recomputed < 2; recomputed++) {
        fsdp_tensor *in[] = {make_leaf(device, 1, 3, (int64_t[]){4, 3, 5}), make_leaf(device, 2, 1, (int64_t[]){3})};
        fsdp_batch_norm_options o = {.running_mean = ZEROS(3),
                                     .running_var = ZEROS(3),
                                     .num_batches_tracked = fsdp_zeros(device, FSDP_I64, 0, NULL),
                                     .training = true,
                                     .momentum = 0.25,
                                     .eps = 1e-5f};
        fsdp_tensor *y = recomputed ? fsdp_recompute(context, normalise, &o, in, 2, NULL) : normalise(&o, in, 2);

        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_mul(y, y))))));
        CHECK_OK(fsdp_tensor_read(o.running_mean, FSDP_F32, mean[recomputed]));
        CHECK_OK(fsdp_tensor_read(o.running_var, FSDP_F32, variance[recomputed]));
        CHECK_OK(fsdp_tensor_read(o.num_batches_tracked, FSDP_I64, &batches[recomputed]));
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(in[1]), FSDP_F32, gradient[recomputed]));
    }
    CHECK_EQ(batches[0], 1);
    CHECK_EQ(batches[1], 1);
    CHECK(variance[0][1] > 0.0f);
    CHECK_BYTES(mean[1], mean[0], sizeof mean[0]);
    CHECK_BYTES(variance[1], variance[0], sizeof variance[0]);
    CHECK_BYTES(gradient[1], gradient[0], sizeof gradient[0]);
}

static fsdp_tensor *evaluate_the_second_time(void *arg, tensors inputs, int count)
{
    fsdp_batch_norm_options o = *(const fsdp_batch_norm_options *)arg;

    o.training = !fsdp_recomputing(context);
    return normalise(&o, inputs, count);
}

/* Of sum((2 x - 1) w, squared): the derivative by w of an evaluation with mean 0.5 and a deviation of 0.5. */
SCOPE_TEST(a_recomputed_function_keeps_the_running_statistics_of_an_evaluation)
{
    fsdp_tensor *in[] = {fsdp_zeros(device, FSDP_F32, 2, (int64_t[]){2, 2}), make_leaf(device, 2, 1, (int64_t[]){2})};
    fsdp_batch_norm_options o = {.running_mean = ZEROS(2), .running_var = ZEROS(2)};
    float gradient[2];
    fsdp_tensor *y;

    CHECK_OK(fsdp_tensor_write(in[0], FSDP_F32, (float[]){1.0f, 2.0f, 0.0f, -1.0f}));
    CHECK_OK(fsdp_tensor_write(in[1], FSDP_F32, (float[]){1.0f, 10.0f}));
    CHECK_OK(fsdp_tensor_fill_(o.running_mean, 0.5));
    CHECK_OK(fsdp_tensor_fill_(o.running_var, 0.25));
    y = CHECK_PTR(fsdp_recompute(context, normalise, &o, in, 2, NULL));
    y = CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_mul(y, y))));
    CHECK_OK(fsdp_tensor_fill_(o.running_mean, 3.0));
    CHECK_OK(fsdp_tensor_fill_(o.running_var, 16.0));
    CHECK_OK(fsdp_backward(y));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(in[1]), FSDP_F32, gradient));
    CHECK(gradient[0] == 4.0f);   /* 2 w (1^2 + (-1)^2) */
    CHECK(gradient[1] == 360.0f); /* 2 w (3^2 + (-3)^2) */
}

SCOPE_TEST(a_recomputed_function_that_evaluates_only_then_is_an_error)
{
    fsdp_tensor *in[] = {make_leaf(device, 1, 2, (int64_t[]){4, 2}), make_leaf(device, 2, 1, (int64_t[]){2})};
    fsdp_batch_norm_options o = {.running_mean = ZEROS(2), .running_var = ZEROS(2), .eps = 1e-5f};
    fsdp_tensor *y;

    y = CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_recompute(context, evaluate_the_second_time, &o, in, 2, NULL))));
    CHECK_ERROR(fsdp_backward(y), FSDP_STATE, "did something else: operation 0 is one that reads other values");
}

static fsdp_status evaluate_recomputed(fsdp_batch_norm_options *o, tensors in)
{
    fsdp_status status;

    FSDP_TRY(fsdp_scope_begin(context));
    status = fsdp_backward(fsdp_sum(fsdp_recompute(context, normalise, o, in, 2, NULL)));
    fsdp_scope_end(context, NULL);
    fsdp__put_grad(in[0], NULL);
    fsdp__put_grad(in[1], NULL);
    return status;
}

SCOPE_TEST(a_recomputed_function_whose_evaluation_failed_keeps_nothing)
{
    fsdp_tensor *in[] = {make_leaf(device, 1, 2, (int64_t[]){4, 2}), make_leaf(device, 2, 1, (int64_t[]){2})};
    fsdp_batch_norm_options o = {.running_mean = ZEROS(2), .running_var = ZEROS(2), .eps = 1e-5f};
    int64_t before;

    CHECK_OK(evaluate_recomputed(&o, in)); /* kernels have their scratch */
    before = tensor_bytes(context);
    for (long i = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &i);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, evaluate_recomputed(&o, in));
        CHECK_EQ(tensor_bytes(context), before);
    }
}

/* ---- nothing, and shapes alone ---- */

SCOPE_TEST(an_empty_batch_gives_zero_gradients)
{
    fsdp_tensor *x = ZEROS(0, 2, 4, 4), *y;
    fsdp_tensor *w = make_leaf(device, 1, 4, (int64_t[]){3, 2, 3, 3}), *b = make_leaf(device, 2, 1, (int64_t[]){3});
    float values[54];

    y = CHECK_PTR(fsdp_conv2d(x, w, b, NULL));
    CHECK_EQ(fsdp_tensor_shape(y)[3], 2);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, values));
    for (int i = 0; i < 54; i++)
        CHECK(values[i] == 0.0f);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(b), FSDP_F32, values));
    CHECK(values[0] == 0.0f && values[2] == 0.0f);
}

SCOPE_TEST(an_empty_batch_leaves_statistics_as_they_are)
{
    fsdp_tensor *w = make_leaf(device, 1, 1, (int64_t[]){4}), *b = make_leaf(device, 2, 1, (int64_t[]){4});
    fsdp_batch_norm_options options = {.eps = 1e-5f, .momentum = 0.1, .training = true};
    float values[4];

    options.running_mean = ZEROS(4);
    options.running_var = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(4), 2));
    options.num_batches_tracked = CHECK_PTR(fsdp_zeros(device, FSDP_I64, 0, NULL));
    for (int i = 0; i < 6; i++) { /* without images, without pixels; the second adds to gradients */
        fsdp_tensor *x = i % 2 ? ZEROS(2, 4, 0, 3) : ZEROS(0, 4, 2, 3), *y;

        CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
        options.training = i < 4;
        y = CHECK_PTR(i < 2 ? fsdp_group_norm(x, 2, w, b, 1e-5f) : fsdp_batch_norm(x, w, b, &options));
        CHECK_EQ(fsdp_tensor_numel(y), 0);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
        CHECK_EQ(fsdp_tensor_numel(CHECK_PTR(fsdp_tensor_grad(x))), 0);
        for (int of = 0; of < 2; of++) {
            CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(of ? b : w), FSDP_F32, values));
            CHECK(values[0] == 0.0f && values[3] == 0.0f);
        }
    }
    CHECK_OK(fsdp_tensor_read(options.running_var, FSDP_F32, values));
    CHECK(values[0] == 2.0f && values[3] == 2.0f);
    CHECK(first_of(options.num_batches_tracked) == 0);
}

SCOPE_TEST(shapes_are_known_without_bytes)
{
    fsdp_device *meta = CHECK_PTR(fsdp_meta(context));
    fsdp_tensor *x = CHECK_PTR(fsdp_empty(meta, FSDP_F32, FSDP_SHAPE(2, 3, 9, 8)));
    fsdp_tensor *w = CHECK_PTR(fsdp_empty(meta, FSDP_F32, FSDP_SHAPE(5, 3, 3, 3))), *y;

    CHECK_OK(fsdp_tensor_set_requires_grad(w, true));
    y = CHECK_PTR(fsdp_conv2d(x, w, FSDP_NO_BIAS, CONV(.stride = {2, 2}, .padding = {1, 1})));
    CHECK_EQ(fsdp_tensor_shape(y)[1], 5);
    CHECK_EQ(fsdp_tensor_shape(y)[2], 5);
    CHECK_EQ(fsdp_tensor_shape(y)[3], 4);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(y))));
    CHECK_PTR(fsdp_tensor_grad(w));
}
