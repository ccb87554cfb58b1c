/* Every operation and its gradients against PyTorch's numbers (tests/numbers/ops.py). Links: data */
#include "fsdp/ops.h"

#include <math.h>

#include "autograd/tools.h"
#include "support/numbers.h"

enum {
    MAX_NUMEL = 512
};

/* One case: its device, name, and leaves by the order in which they were asked for. */
typedef struct number_case {
    fsdp_device *device;
    const char *name;
    fsdp_dtype dtype;
    double rtol, atol;
    const char *leaf_names[8];
    fsdp_tensor *leaves[8];
    int leaf_count;
} number_case;

static fsdp_tensor *load(number_case *c, const char *part)
{
    const number_tensor *r = number_get("ops", c->name, part);

    return CHECK_PTR(fsdp_cast(CHECK_PTR(fsdp_from_data(c->device, FSDP_F32, r->ndim, r->shape, r->data)), c->dtype));
}

static fsdp_tensor *leaf(number_case *c, const char *part)
{
    fsdp_tensor *tensor = load(c, part);

    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    c->leaf_names[c->leaf_count] = part;
    c->leaves[c->leaf_count++] = tensor;
    return tensor;
}

static fsdp_tensor *ids(number_case *c, const char *part)
{
    const number_tensor *r = number_get("ops", c->name, part);
    fsdp_tensor *floats = CHECK_PTR(fsdp_from_data(c->device, FSDP_F32, r->ndim, r->shape, r->data));

    return CHECK_PTR(fsdp_cast(floats, FSDP_I32));
}

static void compare(const number_case *c, const char *part, const fsdp_tensor *tensor)
{
    const number_tensor *r = number_get("ops", c->name, part);
    float values[MAX_NUMEL];
    int64_t numel = fsdp_tensor_numel(CHECK_PTR(tensor));

    CHECK(numel <= MAX_NUMEL);
    CHECK_EQ(fsdp_tensor_ndim(tensor), r->ndim);
    for (int i = 0; i < r->ndim; i++)
        CHECK_EQ(fsdp_tensor_shape(tensor)[i], r->shape[i]);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    CHECK_CLOSE(values, r->data, numel, c->rtol, c->atol);
}

typedef void (*number_body)(number_case *c, fsdp_tensor *outputs[2]);

static void run(const char *name, fsdp_dtype dtype, double rtol, double atol, number_body body)
{
    fsdp_context *context = test_context();
    number_case c = {.name = name, .dtype = dtype, .rtol = rtol, .atol = atol};
    fsdp_tensor *outputs[2] = {NULL, NULL}, *weights[2] = {NULL, NULL};
    char part[16];
    int count;

    c.device = test_device(context);
    CHECK_OK(fsdp_scope_begin(context));
    body(&c, outputs);
    compare(&c, "y", outputs[0]);
    weights[0] = load(&c, "w");
    count = outputs[1] ? 2 : 1;
    if (outputs[1]) {
        compare(&c, "y1", outputs[1]);
        weights[1] = load(&c, "w1");
    }
    CHECK_OK(fsdp_backward_from(outputs, weights, count, false));
    for (int i = 0; i < c.leaf_count; i++) {
        snprintf(part, sizeof part, "d%s", c.leaf_names[i]);
        compare(&c, part, fsdp_tensor_grad(c.leaves[i]));
    }
    fsdp_scope_end(context, NULL);
    CHECK_EQ(tensor_bytes(context), 0);
    fsdp_context_free(context);
}

#define CASE(name, expression)                                       \
    static void name##_body(number_case *c, fsdp_tensor *outputs[2]) \
    {                                                                \
        outputs[0] = (expression);                                   \
    }                                                                \
    TEST(name##_is_as_in_pytorch)                                    \
    {                                                                \
        run(#name, FSDP_F32, 2e-5, 3e-6, name##_body);               \
    }

#define X leaf(c, "x")

static const fsdp_attention_options causal = {.causal = true};

static fsdp_tensor *chosen(fsdp_tensor *a, fsdp_tensor *b)
{
    return fsdp_where(fsdp_gt(a, b), a, fsdp_scale(b, 2.0));
}

static fsdp_tensor *filled(fsdp_tensor *x)
{
    return fsdp_masked_fill(x, fsdp_le(x, fsdp_scalar(x, 0.0)), -INFINITY);
}

CASE(linear, fsdp_linear(X, leaf(c, "weight"), leaf(c, "bias")))
CASE(conv1d, fsdp_conv1d(X, leaf(c, "weight"), leaf(c, "bias")))
CASE(matmul, fsdp_matmul(leaf(c, "a"), leaf(c, "b")))
CASE(matmul_shared, fsdp_matmul(leaf(c, "a"), leaf(c, "b")))
CASE(embedding, fsdp_embedding(leaf(c, "table"), ids(c, "ids")))
CASE(add, fsdp_add(leaf(c, "a"), leaf(c, "b")))
CASE(mul, fsdp_mul(leaf(c, "a"), leaf(c, "b")))
CASE(broadcast_add, fsdp_add(leaf(c, "a"), leaf(c, "b")))
CASE(broadcast_mul, fsdp_mul(leaf(c, "a"), leaf(c, "b")))
CASE(sub, fsdp_sub(leaf(c, "a"), leaf(c, "b")))
CASE(div, fsdp_div(leaf(c, "a"), leaf(c, "b")))
CASE(pow, fsdp_pow(leaf(c, "a"), leaf(c, "b")))
CASE(pow_kinks, fsdp_pow(leaf(c, "a"), leaf(c, "b")))
CASE(pow_ends, fsdp_pow(leaf(c, "a"), leaf(c, "b")))
CASE(pow_scalar, fsdp_pow_scalar(X, 3.0))
CASE(pow_scalar_fraction, fsdp_pow_scalar(X, 2.7))
CASE(pow_scalar_zero, fsdp_pow_scalar(X, 0.0))
CASE(pow_scalar_root, fsdp_pow_scalar(X, 0.5))
CASE(maximum, fsdp_maximum(leaf(c, "a"), leaf(c, "b")))
CASE(minimum, fsdp_minimum(leaf(c, "a"), leaf(c, "b")))
CASE(where, chosen(leaf(c, "a"), leaf(c, "b")))
CASE(masked_fill, filled(X))
CASE(neg, fsdp_neg(X))
CASE(exp, fsdp_exp(X))
CASE(log, fsdp_ln(X))
CASE(sqrt, fsdp_sqrt(X))
CASE(rsqrt, fsdp_rsqrt(X))
CASE(reciprocal, fsdp_reciprocal(X))
CASE(abs, fsdp_abs(X))
CASE(square, fsdp_square(X))
CASE(tanh, fsdp_tanh(X))
CASE(sigmoid, fsdp_sigmoid(X))
CASE(clamp, fsdp_clamp(X, -0.5, 1.0))
CASE(clamp_min, fsdp_clamp(X, 0.0, INFINITY))
CASE(gelu, fsdp_gelu(X))
CASE(gelu_tanh, fsdp_gelu_tanh(X))
CASE(silu, fsdp_silu(X))
CASE(relu, fsdp_relu(X))
CASE(swiglu, fsdp_swiglu(leaf(c, "gate"), leaf(c, "up")))
CASE(layernorm, fsdp_layernorm(X, leaf(c, "weight"), leaf(c, "bias"), 1e-5f))
CASE(rmsnorm, fsdp_rmsnorm(X, leaf(c, "weight"), 1e-6f))
CASE(add_layernorm, fsdp_add_layernorm(X, leaf(c, "residual"), leaf(c, "weight"), leaf(c, "bias"), 1e-5f, &outputs[1]))
CASE(add_rmsnorm, fsdp_add_rmsnorm(X, leaf(c, "residual"), leaf(c, "weight"), 1e-6f, &outputs[1]))
CASE(softmax, fsdp_softmax(X))
CASE(attention, fsdp_attention(leaf(c, "q"), leaf(c, "k"), leaf(c, "v"), NULL))
CASE(attention_causal, fsdp_attention(leaf(c, "q"), leaf(c, "k"), leaf(c, "v"), &causal))
CASE(attention_packed, fsdp_attention_packed(leaf(c, "qkv"), 4, 2, &causal))
CASE(rope, fsdp_rope(X, load(c, "frequencies"), 3))
CASE(cross_entropy, fsdp_cross_entropy(X, ids(c, "targets")))
CASE(linear_cross_entropy, fsdp_linear_cross_entropy(X, leaf(c, "weight"), ids(c, "targets")))
CASE(sum, fsdp_sum(X))
CASE(mean, fsdp_mean(X))
CASE(sum_dim, fsdp_sum_dim(X, -2, false))

CASE(sum_dims, fsdp_sum_dims(X, FSDP_DIMS(2, 0), false))
CASE(mean_dims, fsdp_mean_dims(X, FSDP_DIMS(1, -1), true))
CASE(var, fsdp_var(X, FSDP_DIMS(0, 2, 3), 1.0, false))
CASE(var_biased, fsdp_var(X, FSDP_DIMS(-1), 0.0, true))
CASE(std, fsdp_std(X, FSDP_DIMS(1), 1.0, false))
CASE(var_of_one, fsdp_var(X, FSDP_DIMS(1), 1.0, false))
CASE(amax, fsdp_amax(X, 0, NULL, false))
CASE(amax_rows, fsdp_amax(X, FSDP_DIMS(1), true))
CASE(amin, fsdp_amin(X, FSDP_DIMS(0), false))
CASE(max, fsdp_max(X, 1, false, NULL))
CASE(min, fsdp_min(X, 0, true, NULL))
CASE(log_softmax, fsdp_log_softmax(X))
CASE(mse_loss, fsdp_mse_loss(leaf(c, "a"), leaf(c, "b"), FSDP_LOSS_MEAN))
CASE(l1_loss, fsdp_l1_loss(leaf(c, "a"), leaf(c, "b"), FSDP_LOSS_SUM))
CASE(smooth_l1_loss, fsdp_smooth_l1_loss(leaf(c, "a"), leaf(c, "b"), FSDP_LOSS_NONE, 2.0))
CASE(smooth_l1_loss_sharp, fsdp_smooth_l1_loss(leaf(c, "a"), leaf(c, "b"), FSDP_LOSS_MEAN, 0.0))
CASE(binary_cross_entropy, fsdp_binary_cross_entropy(leaf(c, "a"), load(c, "b"), FSDP_LOSS_NONE))
CASE(binary_cross_entropy_with_logits,
     fsdp_binary_cross_entropy_with_logits(leaf(c, "a"), leaf(c, "b"), FSDP_LOSS_MEAN))
CASE(nll_loss_mean, fsdp_nll_loss(X, ids(c, "targets"), FSDP_LOSS_MEAN))
CASE(nll_loss_sum, fsdp_nll_loss(X, ids(c, "targets"), FSDP_LOSS_SUM))
CASE(nll_loss_none, fsdp_nll_loss(X, ids(c, "targets"), FSDP_LOSS_NONE))

/* cat(transpose-reshape-slice, z, slice) squared: views of views, and one tensor used twice. */
static fsdp_tensor *shapes(fsdp_tensor *x, fsdp_tensor *z)
{
    fsdp_tensor *turned = fsdp_reshape(fsdp_transpose(x, 1, -1), FSDP_SHAPE(2, 15));
    fsdp_tensor *parts[] = {fsdp_slice(turned, 1, 2, 9), z, fsdp_slice(fsdp_reshape(x, FSDP_SHAPE(2, -1)), -1, 4, 2)};
    fsdp_tensor *whole = fsdp_concat(parts, 3, 1);

    return fsdp_mul(whole, whole);
}

CASE(shapes, shapes(X, leaf(c, "z")))

/* The first of equals; a NaN is the largest, and the smallest of a row that has one, too. */
CONTEXT_TEST(places_are_as_in_pytorch)
{
    number_case c = {.name = "places", .dtype = FSDP_F32};
    fsdp_tensor *x, *parts[2];

    c.device = test_device(context);
    x = load(&c, "x");
    parts[0] = CHECK_PTR(fsdp_argmax(x, 1, false));
    parts[1] = CHECK_PTR(fsdp_argmin(x, -1, false));
    CHECK_EQ(fsdp_tensor_dtype(parts[0]), FSDP_I32);
    compare(&c, "y", fsdp_concat(parts, 2, 0));
    CHECK_NULL(fsdp_tensor_grad(x));
}

static void linear_bf16_body(number_case *c, fsdp_tensor *outputs[2])
{
    outputs[0] = fsdp_linear(X, leaf(c, "weight"), leaf(c, "bias"));
}

static void rmsnorm_bf16_body(number_case *c, fsdp_tensor *outputs[2])
{
    outputs[0] = fsdp_rmsnorm(X, leaf(c, "weight"), 1e-6f);
}

TEST(bfloat16_is_within_its_rounding_of_pytorch)
{
    run("linear_bf16", FSDP_BF16, 1e-2, 1e-2, linear_bf16_body);
    run("rmsnorm_bf16", FSDP_BF16, 2e-2, 2e-2, rmsnorm_bf16_body);
}

/* All comparisons of the same numbers; the functions of masks are those of bits. */
CONTEXT_TEST(masks_are_as_in_pytorch)
{
    static const float bounds[] = {0.5f, NAN};
    fsdp_tensor *(*const functions[])(fsdp_tensor *, fsdp_tensor *) = {fsdp_eq, fsdp_ne, fsdp_lt,
                                                                       fsdp_le, fsdp_gt, fsdp_ge};
    number_case c = {.name = "masks", .dtype = FSDP_F32};
    fsdp_tensor *x, *bound, *y[6], *all, *not_either;

    c.device = test_device(context);
    x = load(&c, "x");
    bound = CHECK_PTR(fsdp_from_data(c.device, FSDP_F32, FSDP_SHAPE(2, 1), bounds));
    for (int i = 0; i < 6; i++) {
        y[i] = CHECK_PTR(functions[i](x, bound));
        CHECK_EQ(fsdp_tensor_dtype(y[i]), FSDP_BOOL);
    }
    all = fsdp_concat(y, 6, 0);
    compare(&c, "y", fsdp_reshape(all, FSDP_SHAPE(6, 2, -1)));
    not_either = fsdp_logical_and(fsdp_logical_not(y[2]), fsdp_logical_not(y[5])); /* neither less nor not less */
    not_either = fsdp_logical_or(fsdp_eq(not_either, fsdp_ne(x, x)), fsdp_ne(bound, bound));
    for (int i = 0; i < 32; i++)
        CHECK_NEAR(first_of(fsdp_slice(fsdp_reshape(not_either, FSDP_SHAPE(32)), 0, i, 1)), 1, 0);
}
