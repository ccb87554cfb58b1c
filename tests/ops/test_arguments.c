/* Bad arguments: a NULL result and a message that names the operation and what does not fit. */
#include <math.h>

#include "fsdp/ops.h"

#include "autograd/tools.h"
#include "base/probe.h"
#include "device/device.h"
#include "support/scope.h"
#include "tensor/tensor.h"

#define ZEROS(...) fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(__VA_ARGS__))
#define INTS(...) fsdp_zeros(device, FSDP_I32, FSDP_SHAPE(__VA_ARGS__))
#define MASK(...) fsdp_zeros(device, FSDP_BOOL, FSDP_SHAPE(__VA_ARGS__))
#define HALF(...) fsdp_zeros(device, FSDP_BF16, FSDP_SHAPE(__VA_ARGS__))

SCOPE_TEST(shapes_that_do_not_fit_are_named)
{
    fsdp_tensor *sum, *parts[2];

    CHECK_INVALID(fsdp_linear(ZEROS(2, 3), ZEROS(4, 5), FSDP_NO_BIAS),
                  "linear: input (2, 3) does not fit weight (4, 5)");
    CHECK_INVALID(fsdp_linear(ZEROS(2, 5), ZEROS(4, 5), ZEROS(5)), "linear: bias (5,) does not fit weight (4, 5)");
    CHECK_INVALID(fsdp_linear(ZEROS(2, 5), ZEROS(5), FSDP_NO_BIAS), "linear: weight must be a matrix");
    CHECK_INVALID(fsdp_conv1d(ZEROS(2, 5), ZEROS(4, 5), FSDP_NO_BIAS),
                  "conv1d: input (2, 5) does not fit weight (4, 5)");
    CHECK_INVALID(fsdp_matmul(ZEROS(2, 3, 4), ZEROS(3, 4, 5)), "matmul: left (2, 3, 4) does not fit right (3, 4, 5)");
    CHECK_INVALID(fsdp_matmul(ZEROS(3), ZEROS(4, 5)), "matmul: left (3,) does not fit right (4, 5)");
    CHECK_INVALID(fsdp_add(ZEROS(2, 3), ZEROS(2)), "add: second (2,) does not fit first (2, 3)");
    CHECK_INVALID(fsdp_mul(ZEROS(3), ZEROS(2, 4)), "mul: second (2, 4) does not fit first (3,)");
    CHECK_INVALID(fsdp_swiglu(ZEROS(2, 3), ZEROS(2, 4)), "swiglu: gate (2, 3) does not fit up (2, 4)");
    CHECK_INVALID(fsdp_layernorm(ZEROS(2, 3), ZEROS(4), ZEROS(4), 1e-5f),
                  "layernorm: input (2, 3) does not fit weight");
    CHECK_INVALID(fsdp_layernorm(ZEROS(2, 3), ZEROS(3), ZEROS(4), 1e-5f),
                  "layernorm: input (2, 3) does not fit bias (4,)");
    CHECK_INVALID(fsdp_add_rmsnorm(ZEROS(2, 3), ZEROS(3, 2), ZEROS(3), 1e-5f, &sum), "does not fit residual (3, 2)");
    CHECK_NULL(sum);
    CHECK_INVALID(fsdp_attention(ZEROS(1, 2, 3, 4), ZEROS(1, 2, 2, 4), ZEROS(1, 2, 2, 4), NULL), "attention: query");
    CHECK_INVALID(fsdp_attention(ZEROS(1, 2, 2, 4), ZEROS(1, 2, 2, 4), ZEROS(1, 3, 2, 4), NULL), "attention: key");
    CHECK_INVALID(fsdp_attention(ZEROS(1, 3, 2, 4), ZEROS(1, 2, 2, 4), ZEROS(1, 2, 2, 4),
                                 &(fsdp_attention_options){.causal = true}),
                  "3 queries and only 2 keys");
    CHECK_INVALID(fsdp_attention_packed(ZEROS(1, 2, 10), 2, 1, NULL),
                  "attention_packed: input (1, 2, 10) does not hold");
    CHECK_INVALID(fsdp_rope(ZEROS(1, 2, 3, 5), ZEROS(2), 0), "rope: input must be");
    CHECK_INVALID(fsdp_rope(ZEROS(1, 2, 3, 6), ZEROS(4), 0), "does not fit frequencies (4,)");
    CHECK_INVALID(fsdp_cross_entropy(ZEROS(2, 3, 4), INTS(2, 4)),
                  "cross_entropy: input (2, 3, 4) does not fit targets");
    CHECK_INVALID(fsdp_linear_cross_entropy(ZEROS(2, 3), ZEROS(7, 4), INTS(2)), "does not fit weight (7, 4)");
    CHECK_INVALID(
        fsdp_cross_entropy_with(ZEROS(2, 3), INTS(2), &(const fsdp_cross_entropy_options){.reduction = FSDP_LOSS_NONE}),
        "reduction 2: expected FSDP_LOSS_MEAN or FSDP_LOSS_SUM");
    CHECK_INVALID(fsdp_cross_entropy_with(ZEROS(2, 3), INTS(2), &(const fsdp_cross_entropy_options){.scale = 0.5}),
                  "a mean has no scale, but 0.5 is given");
    CHECK_INVALID(fsdp_cross_entropy_with(ZEROS(2, 3), INTS(2), &(const fsdp_cross_entropy_options){.softcap = -1}),
                  "softcap -1 must not be negative");
    CHECK_INVALID(fsdp_sum_dim(ZEROS(2, 3), 2, false), "sum_dim: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_reshape(ZEROS(2, 3), FSDP_SHAPE(4, -1)), "cannot reshape (2, 3) to (4, -1)");
    CHECK_INVALID(fsdp_transpose(ZEROS(2, 3), 0, 2), "dimension 2");
    CHECK_INVALID(fsdp_slice(ZEROS(2, 3), 1, 2, 2), "cannot narrow");
    parts[0] = ZEROS(2, 3), parts[1] = ZEROS(3, 3);
    CHECK_INVALID(fsdp_concat(parts, 2, 1), "concat: tensor (3, 3) does not fit the first (2, 3)");
    CHECK_INVALID(fsdp_concat(parts, 0, 1), "concat: at least one tensor is needed");
    CHECK_INVALID(fsdp_concat(parts, 2, -3), "concat: input (2, 3) has no dimension -3");
}

SCOPE_TEST(operands_and_dimensions_that_do_not_fit_are_named)
{
    fsdp_tensor *indices;

    CHECK_INVALID(fsdp_sub(ZEROS(2, 3), ZEROS(3, 3)), "sub: second (3, 3) does not fit first (2, 3)");
    CHECK_INVALID(fsdp_div(ZEROS(2), ZEROS(0)), "div: second (0,) does not fit first (2,)");
    CHECK_INVALID(fsdp_pow(ZEROS(2), ZEROS(3)), "pow: second (3,) does not fit first (2,)");
    CHECK_INVALID(fsdp_maximum(ZEROS(2), ZEROS(3)), "maximum: second");
    CHECK_INVALID(fsdp_minimum(ZEROS(2), ZEROS(3)), "minimum: second");
    CHECK_INVALID(fsdp_lt(INTS(2), INTS(3)), "lt: second (3,) does not fit first (2,)");
    CHECK_INVALID(fsdp_where(MASK(3), ZEROS(2), ZEROS(2)), "where: second (3,) does not fit first (2,)");
    CHECK_INVALID(fsdp_masked_fill(ZEROS(2, 3), MASK(2), 0.0), "masked_fill: second (2,) does not fit first (2, 3)");
    CHECK_INVALID(fsdp_sum_dims(ZEROS(2, 3), FSDP_DIMS(0, -3), false), "sum_dims: input (2, 3) has no dimension -3");
    CHECK_INVALID(fsdp_mean_dims(ZEROS(2, 3), FSDP_DIMS(1, -1), false), "mean_dims: dimension 1 is named twice");
    CHECK_INVALID(fsdp_var(ZEROS(2, 3), FSDP_DIMS(2), 1.0, false), "var: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_std(ZEROS(2, 3), FSDP_DIMS(2), 1.0, false), "std: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_amax(ZEROS(0, 3), FSDP_DIMS(0), false), "amax: input must be of at least one element");
    CHECK_INVALID(fsdp_amin(ZEROS(2, 3), FSDP_DIMS(2), false), "amin: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_max(ZEROS(2, 0), 1, false, &indices), "max: input must be of at least one element");
    CHECK_NULL(indices);
    CHECK_INVALID(fsdp_min(ZEROS(2, 3), 2, false, NULL), "min: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_argmax(ZEROS(2, 3), -3, false), "argmax: input (2, 3) has no dimension -3");
    CHECK_INVALID(fsdp_argmin(ZEROS(2, 3), 2, false), "argmin: input (2, 3) has no dimension 2");
    CHECK_INVALID(fsdp_mse_loss(ZEROS(2, 3), ZEROS(2), FSDP_LOSS_MEAN),
                  "mse_loss: second (2,) does not fit first (2, 3)");
    CHECK_INVALID(fsdp_l1_loss(ZEROS(2), ZEROS(2), (fsdp_loss_reduction)7),
                  "l1_loss: there is no reduction with number 7");
    CHECK_INVALID(fsdp_smooth_l1_loss(ZEROS(2), ZEROS(2), FSDP_LOSS_SUM, -1.0), "smooth_l1_loss: beta -1 is negative");
    CHECK_INVALID(fsdp_nll_loss(ZEROS(2, 3), INTS(3), FSDP_LOSS_MEAN), "nll_loss: input (2, 3) does not fit targets");
}

SCOPE_TEST(dtypes_that_do_not_fit_are_named)
{
    CHECK_INVALID(fsdp_linear(ZEROS(2, 3), HALF(4, 3), FSDP_NO_BIAS), "linear: inputs are float32 and bfloat16");
    CHECK_INVALID(fsdp_gelu(INTS(2, 3)), "gelu: input must be floating, not int32 (2, 3)");
    CHECK_INVALID(fsdp_sub(INTS(2, 3), INTS(2, 3)), "sub: input must be floating, not int32 (2, 3)");
    CHECK_INVALID(fsdp_div(ZEROS(2), HALF(2)), "div: inputs are float32 and bfloat16: cast one");
    CHECK_INVALID(fsdp_tanh(INTS(2)), "tanh: input must be floating");
    CHECK_INVALID(fsdp_clamp(INTS(2), 0, 1), "clamp: input must be floating");
    CHECK_INVALID(fsdp_neg(INTS(2)), "neg: input must be floating");
    CHECK_INVALID(fsdp_add_scalar(INTS(2), 1), "add_scalar: input must be floating");
    CHECK_INVALID(fsdp_eq(ZEROS(2), INTS(2)), "eq: inputs are float32 and int32: cast one");
    CHECK_INVALID(fsdp_where(ZEROS(2), ZEROS(2), ZEROS(2)), "where: mask must be bool, not float32 (2,)");
    CHECK_INVALID(fsdp_where(MASK(2), ZEROS(2), INTS(2)), "where: inputs are float32 and int32: cast one");
    CHECK_INVALID(fsdp_masked_fill(ZEROS(2), INTS(2), 0), "masked_fill: mask must be bool");
    CHECK_INVALID(fsdp_masked_fill(INTS(2), MASK(2), NAN), "masked_fill: int32 cannot be nan");
    CHECK_INVALID(fsdp_masked_fill(INTS(2), MASK(2), -2147483649.0), "masked_fill: int32 cannot be -2.14748e+09");
    CHECK_PTR(fsdp_masked_fill(INTS(2), MASK(2), -2147483648.5));
    CHECK_PTR(fsdp_masked_fill(MASK(2), MASK(2), NAN));
    CHECK_INVALID(fsdp_var(INTS(2), 0, NULL, 1.0, false), "var: input must be floating, not int32 (2,)");
    CHECK_INVALID(fsdp_log_softmax(INTS(2)), "log_softmax: input must be floating");
    CHECK_INVALID(fsdp_binary_cross_entropy(ZEROS(2), HALF(2), FSDP_LOSS_MEAN),
                  "binary_cross_entropy: inputs are float32");
    CHECK_INVALID(fsdp_binary_cross_entropy_with_logits(ZEROS(2), INTS(2), FSDP_LOSS_MEAN),
                  "binary_cross_entropy_with_logits: input must be floating, not int32");
    CHECK_INVALID(fsdp_nll_loss(ZEROS(2, 3), ZEROS(2), FSDP_LOSS_SUM), "nll_loss: targets must be int32");
    CHECK_INVALID(fsdp_embedding(ZEROS(2, 3), ZEROS(2)), "embedding: ids must be int32");
    CHECK_INVALID(fsdp_cross_entropy(ZEROS(2, 3), ZEROS(2)), "cross_entropy: targets must be int32");
    CHECK_INVALID(fsdp_layernorm(ZEROS(2, 3), ZEROS(3), HALF(3), 1e-5f),
                  "layernorm: bias must be float32, not bfloat16");
    CHECK_INVALID(fsdp_dropout(ZEROS(2, 3), 1.0f, 0), "dropout: probability 1 is outside [0, 1)");
    CHECK_INVALID(fsdp_cast(make_leaf(device, 1, 1, (const int64_t[]){2}), FSDP_I32), "it requires a gradient");
    CHECK_INVALID(fsdp_add(ZEROS(2), fsdp_zeros(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2))), "add: inputs are on");
}

SCOPE_TEST(devices_of_two_contexts_are_told_apart)
{
    fsdp_context *other = test_context();

    CHECK_OK(fsdp_scope_begin(other));
    CHECK_INVALID(fsdp_add(ZEROS(2), fsdp_zeros(test_device(other), FSDP_F32, FSDP_SHAPE(2))), " of another context");
    fsdp_scope_end(other, NULL);
    fsdp_context_free(other);
}

SCOPE_TEST(bad_indices_are_named_with_their_position)
{
    static const int32_t ids[] = {0, 1, 2, 1, 5, 0}, targets[] = {0, -100, 2, 1, -1, 0};
    const int64_t shape[] = {2, 3};

    CHECK_INVALID(fsdp_embedding(ZEROS(5, 2), make_ids(device, 2, shape, ids)),
                  "embedding: id 5 at position (1, 1) is outside [0, 5)");
    CHECK_INVALID(fsdp_embedding(ZEROS(5, 2), make_ids(device, 2, shape, targets)), "id -100 at position (0, 1)");
    CHECK_INVALID(fsdp_cross_entropy(ZEROS(2, 3, 5), make_ids(device, 2, shape, targets)),
                  "cross_entropy: target -1 at position (1, 1) is outside [0, 5)");
    CHECK_INVALID(fsdp_nll_loss(ZEROS(2, 3, 5), make_ids(device, 2, shape, targets), FSDP_LOSS_NONE),
                  "nll_loss: target -1 at position (1, 1) is outside [0, 5)");
    CHECK_INVALID(fsdp_linear_cross_entropy(ZEROS(2, 3, 4), ZEROS(5, 4), make_ids(device, 2, shape, ids)),
                  "linear_cross_entropy: target 5 at position (1, 1)");
}

static fsdp_status count_wait(void *arg, fsdp__probe_event *event)
{
    (void)event;
    ++*(int *)arg;
    return FSDP_OK;
}

/* The host waits so often to make the tensor; on the CPU it looks at the indices each time. */
#define CHECK_WAITS(expected, tensor)                                       \
    do {                                                                    \
        waits = 0;                                                          \
        CHECK_PTR(tensor);                                                  \
        CHECK_EQ(waits, fsdp__device_host_access(device) ? 1 : (expected)); \
    } while (0)

SCOPE_TEST(indices_that_came_from_the_host_are_not_read_back)
{
    static const int32_t values[] = {0, -100, 4, 1, -100, 3}, some[] = {0, 4, 4, 1, 2, 3};
    const int64_t shape[] = {2, 3};
    fsdp_tensor *targets = make_ids(device, 2, shape, values), *ids = make_ids(device, 2, shape, some);
    fsdp_tensor *positions = make_ids(device, 2, shape, (const int32_t[]){0, 1, 2, 0, 0, 1});
    fsdp_tensor *flat = CHECK_PTR(fsdp_reshape(targets, FSDP_SHAPE(6)));
    int waits = 0;
    fsdp__subscriber *subscriber =
        CHECK_PTR(fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_STREAM_REACHED), count_wait, &waits));

    CHECK_WAITS(0, fsdp_embedding(ZEROS(5, 2), ids));
    CHECK_WAITS(0, fsdp_index_select(ZEROS(5, 2), 0, fsdp_slice(fsdp_reshape(ids, FSDP_SHAPE(6)), 0, 2, 3)));
    CHECK_WAITS(0, fsdp_cross_entropy(ZEROS(2, 3, 5), targets));
    CHECK_WAITS(0, fsdp_cross_entropy(ZEROS(6, 5), flat));
    CHECK_WAITS(0, fsdp_rope_at(ZEROS(2, 3, 1, 4), ZEROS(2), positions));
    CHECK(fabs(first_of(fsdp_cross_entropy(ZEROS(6, 5), flat)) - log(5)) < 1e-6); /* the mean over four */
    /* How many of a part are ignored is not known, nor which of them is too large, nor what the device has written. */
    CHECK_WAITS(1, fsdp_cross_entropy(ZEROS(3, 5), fsdp_slice(flat, 0, 3, 3)));
    CHECK_WAITS(1, fsdp_embedding(ZEROS(4, 2), fsdp_slice(ids, 0, 1, 1)));
    CHECK_INVALID(fsdp_embedding(ZEROS(4, 2), ids), "embedding: id 4 at position (0, 1) is outside [0, 4)");
    CHECK_OK(fsdp_tensor_fill_(ids, 6));
    CHECK_INVALID(fsdp_embedding(ZEROS(5, 2), ids), "embedding: id 6 at position (0, 0) is outside [0, 5)");
    fsdp__unsubscribe(subscriber);
}

SCOPE_TEST(null_goes_through_everything_and_keeps_the_first_error)
{
    fsdp_tensor *x = ZEROS(2, 3), *sum, *bad, *parts[2];

    CHECK_NULL(fsdp_linear(x, ZEROS(4, 5), FSDP_NO_BIAS));
    bad = NULL;
    parts[0] = x, parts[1] = bad;
    CHECK_NULL(fsdp_add(fsdp_gelu(fsdp_linear(bad, x, x)), x));
    CHECK_NULL(fsdp_linear(x, x, NULL)); /* a bias that was not made, unlike one left out */
    CHECK_NULL(fsdp_matmul(x, bad));
    CHECK_NULL(fsdp_embedding(bad, x));
    CHECK_NULL(fsdp_scale(bad, 2));
    CHECK_NULL(fsdp_sub(fsdp_div(fsdp_pow(bad, x), x), fsdp_maximum(x, fsdp_minimum(x, bad))));
    CHECK_NULL(fsdp_pow_scalar(fsdp_add_scalar(fsdp_neg(fsdp_tanh(fsdp_clamp(bad, 0, 1))), 1), 3));
    CHECK_NULL(fsdp_pow_scalar(fsdp_scalar(bad, 1), 2));
    CHECK_NULL(fsdp_masked_fill(x, fsdp_logical_and(fsdp_lt(x, bad), fsdp_logical_not(bad)), 0));
    CHECK_NULL(fsdp_where(bad, x, x));
    CHECK_NULL(fsdp_where(x, bad, x));
    CHECK_NULL(fsdp_swiglu(x, bad));
    CHECK_NULL(fsdp_dropout(bad, 0.5f, 1));
    CHECK_NULL(fsdp_cast(bad, FSDP_BF16));
    CHECK_NULL(fsdp_layernorm(x, bad, x, 1));
    CHECK_NULL(fsdp_add_layernorm(x, bad, x, x, 1, &sum));
    CHECK_NULL(fsdp_softmax(bad));
    CHECK_NULL(fsdp_attention(bad, x, x, NULL));
    CHECK_NULL(fsdp_attention_packed(bad, 1, 1, NULL));
    CHECK_NULL(fsdp_rope(bad, x, 0));
    CHECK_NULL(fsdp_cross_entropy(bad, x));
    CHECK_NULL(fsdp_linear_cross_entropy(x, x, bad));
    CHECK_NULL(fsdp_sum(fsdp_mean(fsdp_sum_dim(bad, 0, false))));
    CHECK_NULL(fsdp_var(fsdp_std(fsdp_amax(fsdp_amin(bad, 0, NULL, false), 0, NULL, false), 0, NULL, 0.0, false), 0,
                        NULL, 0.0, false));
    CHECK_NULL(fsdp_argmax(fsdp_max(fsdp_sum_dims(fsdp_mean_dims(bad, 0, NULL, false), 0, NULL, false), 0, false, NULL),
                           0, false));
    CHECK_NULL(fsdp_mse_loss(fsdp_log_softmax(bad), x, FSDP_LOSS_MEAN));
    CHECK_NULL(fsdp_nll_loss(x, bad, FSDP_LOSS_MEAN));
    CHECK_NULL(fsdp_reshape(fsdp_transpose(fsdp_slice(fsdp_contiguous(bad), 0, 0, 1), 0, 1), FSDP_SHAPE(1)));
    CHECK_NULL(fsdp_concat(parts, 2, 0));
    CHECK_CONTAINS(fsdp_last_error(), "linear: input (2, 3) does not fit weight (4, 5)");
}

SCOPE_TEST(a_parameter_without_bytes_is_an_error_and_not_a_crash)
{
    fsdp_tensor *weight = ZEROS(4, 3);

    fsdp__storage_drop(weight->storage);
    CHECK_NULL(fsdp_linear(ZEROS(2, 3), weight, FSDP_NO_BIAS));
    CHECK_EQ(fsdp_last_status(), FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(), "linear: input (4, 3) has no bytes now");
}

SCOPE_TEST(tensors_without_elements_are_accepted)
{
    static const fsdp_cross_entropy_options sum = {.reduction = FSDP_LOSS_SUM};
    fsdp_tensor *x = ZEROS(0, 3), *weight = make_leaf(device, 1, 2, (const int64_t[]){4, 3}), *y, *none = ZEROS(0, 4);
    double loss;

    y = CHECK_PTR(fsdp_linear(x, weight, FSDP_NO_BIAS));
    CHECK_EQ(fsdp_tensor_size(y, 0), 0);
    CHECK_OK(fsdp_backward_from(&y, &none, 1, false));
    CHECK_NEAR(first_of(fsdp_tensor_grad(weight)), 0, 0);
    CHECK_PTR(fsdp_softmax(fsdp_add(fsdp_gelu(x), x)));
    CHECK_PTR(fsdp_where(fsdp_gt(x, fsdp_scalar(x, 0)), fsdp_tanh(x), fsdp_div(x, ZEROS(1, 3))));
    weight = make_leaf(device, 1, 2, (const int64_t[]){1, 3}), y = fsdp_pow(x, weight); /* repeated no times */
    CHECK_OK(fsdp_backward_from(&y, &x, 1, false));
    CHECK_NEAR(first_of(fsdp_tensor_grad(weight)), 0, 0);
    weight = make_leaf(device, 1, 2, (const int64_t[]){4, 3});
    CHECK_PTR(fsdp_embedding(weight, INTS(0)));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_sum(x)), &loss));
    CHECK_NEAR(loss, 0, 0);
    CHECK(isnan(first_of(fsdp_linear_cross_entropy(x, weight, INTS(0)))));
    CHECK_NEAR(first_of(fsdp_linear_cross_entropy_with(x, weight, INTS(0), &sum)), 0, 0);
    CHECK_OK(fsdp_tensor_item(
        CHECK_PTR(fsdp_nll_loss(ZEROS(2, 3), fsdp_full(device, FSDP_I32, FSDP_SHAPE(2), -100), FSDP_LOSS_MEAN)),
        &loss));
    CHECK_NEAR(loss, 0, 0);
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_var(ZEROS(2, 0), FSDP_DIMS(0), 1.0, false)), 0), 0);
    CHECK_EQ(fsdp_tensor_size(CHECK_PTR(fsdp_amax(ZEROS(2, 0), FSDP_DIMS(0), false)), 0), 0);
}

/* Of ones: an element of a product over k is k, and one of the gradient of the weight how many rows there are. */
static void check_products(int64_t batch, int64_t m, int64_t k, int64_t n, bool turned)
{
    fsdp_tensor *x = fsdp_full(device, FSDP_F32, 3, (const int64_t[]){batch, turned ? k : m, turned ? m : k}, 1);
    fsdp_tensor *y = fsdp_full(device, FSDP_F32, 3, (const int64_t[]){batch, k, n}, 1);
    fsdp_tensor *w = fsdp_full(device, FSDP_F32, 2, (const int64_t[]){n, k}, 1), *product;
    float values[8];

    x = turned ? fsdp_transpose(x, 1, 2) : x;
    CHECK_OK(fsdp_tensor_set_requires_grad(w, true));
    product = CHECK_PTR(fsdp_matmul(x, y));
    CHECK_OK(fsdp_tensor_read(product, FSDP_F32, values));
    for (int64_t i = 0; i < batch * m * n; i++)
        CHECK(values[i] == (float)k);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(CHECK_PTR(fsdp_linear(x, w, FSDP_NO_BIAS))))));
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(w), FSDP_F32, values));
    for (int64_t i = 0; i < n * k; i++)
        CHECK(values[i] == (float)(batch * m));
}

SCOPE_TEST(any_size_of_a_product_may_be_0)
{
    for (int i = 0; i < 3 * 3 * 3 * 3 * 2; i++)
        check_products(i / 54, i / 18 % 3, i / 6 % 3, i / 2 % 3, i % 2);
}

SCOPE_TEST(a_product_of_nothing_is_its_bias)
{
    fsdp_tensor *bias = fsdp_full(device, FSDP_F32, FSDP_SHAPE(3), 7), *y;
    float values[2 * 3];

    for (int conv1d = 0; conv1d < 2; conv1d++) {
        y = CHECK_PTR(conv1d ? fsdp_conv1d(ZEROS(2, 0), ZEROS(0, 3), bias)
                             : fsdp_linear(ZEROS(2, 0), ZEROS(3, 0), bias));
        CHECK_OK(fsdp_tensor_read(y, FSDP_F32, values));
        for (int i = 0; i < 2 * 3; i++)
            CHECK_EQ(values[i], 7);
    }
}

SCOPE_TEST(a_bias_that_cannot_be_copied_is_not_left_out)
{
    fsdp_tensor *x = ZEROS(2, 3), *weight = ZEROS(4, 3);
    fsdp_tensor *bias = fsdp_squeeze(fsdp_slice(fsdp_full(device, FSDP_F32, FSDP_SHAPE(4, 2), 7), 1, 0, 1), 1);

    CHECK(!fsdp_tensor_is_contiguous(CHECK_PTR(bias)));
    CHECK_PTR(fsdp_linear(x, weight, bias)); /* kernels have their scratch */
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_tensor *y = fsdp_linear(x, weight, bias);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, y ? FSDP_OK : fsdp_last_status());
    }
}
