/* Every operation's gradient against difference quotients, on uneven shapes, views and repeated inputs. */
#include "fsdp/ops.h"

#include "autograd/tools.h"
#include "ops/gradient.h"

static const fsdp_attention_options causal = {.causal = true};
static const fsdp_cross_entropy_options scaled_sum = {.reduction = FSDP_LOSS_SUM, .scale = 0.3};
static const fsdp_cross_entropy_options capped = {.reduction = FSDP_LOSS_SUM, .softcap = 0.8f};

static const fsdp_attention_options windowed = {.causal = true, .window = 2};

static fsdp_tensor *positions_of(fsdp_tensor *like)
{
    static const int32_t positions[] = {0, 1, 2, 0, 1, 0, 0, 1, 2, 3};

    return make_ids(fsdp_tensor_device(like), 2, (const int64_t[]){2, 5}, positions);
}

/* Documents in two rows of five, seen through a window, with capped scores. */
static const fsdp_attention_options *narrow(fsdp_tensor *like)
{
    static fsdp_attention_options options = {.causal = true, .window = 3, .softcap = 0.9f, .scale = 0.8f};

    options.positions = positions_of(like);
    return &options;
}

static fsdp_tensor *ids_of(fsdp_tensor *like)
{
    static const int32_t ids[] = {4, 0, -100, 4, 2, 1};

    return make_ids(fsdp_tensor_device(like), 2, (const int64_t[]){2, 3}, ids);
}

static fsdp_tensor *rows_of(fsdp_tensor *like)
{
    static const int32_t ids[] = {4, 0, 3, 4, 2, 1};

    return make_ids(fsdp_tensor_device(like), 2, (const int64_t[]){2, 3}, ids);
}

static fsdp_tensor *frequencies(fsdp_tensor *like)
{
    static const float values[] = {1.0f, 0.21f, 0.046f};

    return make_floats(fsdp_tensor_device(like), 3, values);
}

static fsdp_tensor *both(fsdp_tensor *a, fsdp_tensor *b)
{
    return fsdp_add(a, fsdp_scale(b, 0.7));
}

static fsdp_tensor *added_norm(tensors in)
{
    fsdp_tensor *sum, *y = fsdp_add_layernorm(in[0], in[1], in[2], in[3], 1e-5f, &sum);

    return both(y, sum);
}

static fsdp_tensor *added_rms(tensors in)
{
    fsdp_tensor *sum, *y = fsdp_add_rmsnorm(in[0], in[1], in[2], 1e-6f, &sum);

    return both(y, fsdp_mul(sum, sum));
}

static fsdp_tensor *only_sum(tensors in)
{
    fsdp_tensor *sum, *y = fsdp_add_rmsnorm(in[0], in[1], in[2], 1e-6f, &sum);

    return y ? fsdp_mul(sum, sum) : NULL;
}

/* Heads that are strided views of one tensor, as a fused projection gives them. */
static fsdp_tensor *strided_attention(fsdp_tensor *qkv)
{
    fsdp_tensor *heads = fsdp_reshape(qkv, FSDP_SHAPE(2, 4, 4, 4));

    return fsdp_attention(fsdp_rope(fsdp_slice(heads, 2, 0, 2), fsdp_slice(frequencies(qkv), 0, 0, 2), 1),
                          fsdp_slice(heads, 2, 2, 1), fsdp_slice(heads, 2, 3, 1), &causal);
}

/* A pre-norm block with a residual stream: gradients of one tensor from several consumers. */
static fsdp_tensor *residual_block(tensors in)
{
    fsdp_tensor *x = in[0], *h = fsdp_layernorm(x, in[1], in[2], 1e-5f);
    fsdp_tensor *y = fsdp_add(x, fsdp_linear(fsdp_gelu_tanh(fsdp_linear(h, in[3], FSDP_NO_BIAS)), in[3], FSDP_NO_BIAS));

    return fsdp_add(y, fsdp_mul(fsdp_rmsnorm(y, in[1], 1e-6f), h));
}

static fsdp_tensor *cat(fsdp_tensor *a, fsdp_tensor *b)
{
    fsdp_tensor *parts[] = {a, b, fsdp_slice(a, 1, 1, 1)};

    return fsdp_concat(parts, 3, -2);
}

static fsdp_tensor *positive(fsdp_tensor *x)
{
    return fsdp_add_scalar(fsdp_abs(x), 0.5);
}

static fsdp_tensor *above(fsdp_tensor *a, fsdp_tensor *b)
{
    return fsdp_gt(a, b);
}

GRADIENT(linear, fsdp_linear(in[0], in[1], in[2]), 3, 2, 3, 5, 2, 4, 5, 1, 4)
GRADIENT(linear_of_a_vector, fsdp_linear(in[0], in[1], FSDP_NO_BIAS), 1, 5, 2, 4, 5)
GRADIENT(linear_of_views, fsdp_linear(fsdp_transpose(in[0], 0, 1), fsdp_transpose(in[1], 0, 1), in[2]), 2, 5, 3, 2, 5,
         4, 1, 4)
GRADIENT(linear_of_a_slice, fsdp_linear(fsdp_slice(in[0], 2, 1, 3), in[1], FSDP_NO_BIAS), 3, 2, 3, 5, 2, 4, 3)
GRADIENT(linear_of_itself, fsdp_linear(in[0], in[0], FSDP_NO_BIAS), 2, 3, 3)
GRADIENT(conv1d, fsdp_conv1d(in[0], in[1], in[2]), 3, 2, 3, 5, 2, 5, 4, 1, 4)
GRADIENT(matmul, fsdp_matmul(in[0], in[1]), 4, 2, 3, 4, 5, 4, 2, 3, 5, 2)
GRADIENT(matmul_of_views, fsdp_matmul(fsdp_transpose(in[0], 1, 2), fsdp_transpose(in[1], 0, 2)), 3, 2, 4, 3, 3, 5, 4, 2)
GRADIENT(matmul_shared, fsdp_matmul(in[0], in[1]), 3, 2, 3, 5, 2, 5, 4)
GRADIENT(embedding, fsdp_embedding(in[0], rows_of(in[0])), 2, 5, 3)
GRADIENT(add, fsdp_add(in[0], in[1]), 3, 2, 3, 5, 2, 3, 5)
GRADIENT(add_to_itself, fsdp_add(in[0], in[0]), 2, 3, 5)
GRADIENT(add_of_a_column, fsdp_add(in[0], in[1]), 3, 2, 3, 5, 0)
GRADIENT(mul, fsdp_mul(in[0], in[1]), 3, 2, 3, 5, 1, 5)
GRADIENT(square, fsdp_mul(in[0], in[0]), 2, 3, 5)
GRADIENT(mul_of_views, fsdp_mul(fsdp_transpose(in[0], 0, 1), in[1]), 2, 3, 5, 2, 5, 3)
GRADIENT(add_of_a_row_and_a_column, fsdp_add(in[0], in[1]), 3, 2, 1, 5, 2, 3, 1)
GRADIENT(mul_of_the_smaller_first, fsdp_mul(in[0], in[1]), 1, 5, 3, 2, 3, 5)
GRADIENT(mul_over_two_dimensions, fsdp_mul(in[0], in[1]), 4, 2, 3, 4, 2, 3, 3, 1, 2)
GRADIENT(add_of_a_view, fsdp_add(in[0], fsdp_transpose(in[1], 0, 1)), 2, 3, 5, 2, 1, 3)
GRADIENT(sub, fsdp_sub(in[0], in[1]), 3, 2, 3, 5, 2, 3, 1)
GRADIENT(sub_from_the_smaller, fsdp_sub(in[0], fsdp_mul(in[1], in[1])), 1, 5, 2, 3, 5)
GRADIENT(sub_of_itself, fsdp_sub(fsdp_square(in[0]), in[0]), 2, 3, 5)
GRADIENT(div, fsdp_div(in[0], positive(in[1])), 3, 2, 3, 5, 2, 3, 1)
GRADIENT(div_of_the_smaller, fsdp_div(in[0], positive(in[1])), 1, 3, 2, 4, 3)
GRADIENT(pow, fsdp_pow(positive(in[0]), in[1]), 3, 2, 3, 5, 2, 3, 5)
GRADIENT(pow_of_the_smaller, fsdp_pow(positive(in[0]), in[1]), 2, 3, 1, 2, 1, 4)
GRADIENT(pow_scalar, fsdp_pow_scalar(positive(in[0]), 2.7), 2, 3, 5)
GRADIENT(pow_scalar_that_is_whole, fsdp_pow_scalar(in[0], 3.0), 2, 3, 5)
GRADIENT(pow_scalar_of_two, fsdp_pow_scalar(in[0], 2.0), 2, 3, 5)
GRADIENT(maximum, fsdp_maximum(in[0], in[1]), 3, 2, 3, 5, 2, 3, 1)
GRADIENT(minimum, fsdp_minimum(in[0], in[1]), 1, 5, 3, 2, 3, 5)
GRADIENT(add_scalar, fsdp_square(fsdp_add_scalar(in[0], 1.5)), 2, 3, 5)
GRADIENT(scalar, fsdp_div(fsdp_scalar(in[0], 1.0), positive(in[0])), 2, 3, 5)
GRADIENT(where, fsdp_where(above(in[0], in[1]), in[0], fsdp_scale(in[1], 2.0)), 3, 2, 3, 5, 2, 3, 1)
GRADIENT(where_of_the_smaller, fsdp_where(above(in[0], in[1]), in[1], fsdp_scale(in[1], 2.0)), 2, 3, 5, 1, 5)
GRADIENT(masked_fill, fsdp_masked_fill(in[0], above(in[0], fsdp_scalar(in[0], 0.0)), 3.0), 2, 3, 5)
GRADIENT(neg, fsdp_neg(in[0]), 2, 3, 5)
GRADIENT(exp, fsdp_exp(in[0]), 2, 3, 5)
GRADIENT(ln, fsdp_ln(positive(in[0])), 2, 3, 5)
GRADIENT(sqrt, fsdp_sqrt(positive(in[0])), 2, 3, 5)
GRADIENT(rsqrt, fsdp_rsqrt(positive(in[0])), 2, 3, 5)
GRADIENT(reciprocal, fsdp_reciprocal(positive(in[0])), 2, 3, 5)
GRADIENT(abs, fsdp_abs(in[0]), 2, 3, 5)
GRADIENT(tanh, fsdp_tanh(fsdp_transpose(in[0], 0, 1)), 2, 3, 5)
GRADIENT(sigmoid, fsdp_sigmoid(in[0]), 2, 3, 5)
GRADIENT(clamp, fsdp_clamp(in[0], -0.5, 0.7), 2, 3, 5)
GRADIENT(scale, fsdp_scale(in[0], -2.5), 2, 3, 5)
GRADIENT(gelu, fsdp_gelu(in[0]), 2, 3, 5)
GRADIENT(gelu_tanh, fsdp_gelu_tanh(in[0]), 2, 3, 5)
GRADIENT(silu, fsdp_silu(fsdp_transpose(in[0], 0, 1)), 2, 3, 5)
GRADIENT(relu, fsdp_relu(in[0]), 2, 3, 5)
GRADIENT(swiglu, fsdp_swiglu(in[0], in[1]), 3, 2, 3, 5, 3, 2, 3, 5)
GRADIENT(swiglu_of_halves, fsdp_swiglu(fsdp_slice(in[0], 1, 0, 3), fsdp_slice(in[0], 1, 3, 3)), 2, 4, 6)
GRADIENT(dropout, fsdp_dropout(in[0], 0.4f, 7), 2, 5, 7)
GRADIENT(layernorm, fsdp_layernorm(in[0], in[1], in[2], 1e-5f), 3, 2, 3, 5, 1, 5, 1, 5)
GRADIENT(layernorm_without_bias, fsdp_layernorm(in[0], in[1], FSDP_NO_BIAS, 1e-5f), 2, 3, 5, 1, 5)
GRADIENT(rmsnorm, fsdp_rmsnorm(in[0], in[1], 1e-6f), 3, 2, 3, 5, 1, 5)
GRADIENT(add_layernorm, added_norm(in), 2, 3, 5, 2, 3, 5, 1, 5, 1, 5)
GRADIENT(add_rmsnorm, added_rms(in), 2, 3, 5, 2, 3, 5, 1, 5)
GRADIENT(the_sum_of_add_rmsnorm, only_sum(in), 2, 3, 5, 2, 3, 5, 1, 5)
GRADIENT(softmax, fsdp_softmax(in[0]), 3, 2, 3, 5)
GRADIENT(attention, fsdp_attention(in[0], in[1], in[2], NULL), 4, 2, 3, 2, 3, 4, 2, 5, 1, 3, 4, 2, 5, 1, 3)
GRADIENT(causal_attention, fsdp_attention(in[0], in[1], in[2], &causal), 4, 1, 3, 2, 2, 4, 1, 5, 2, 2, 4, 1, 5, 2, 2)
GRADIENT(attention_of_views, strided_attention(in[0]), 3, 2, 4, 16)
GRADIENT(attention_packed, fsdp_attention_packed(in[0], 2, 1, &causal), 3, 2, 4, 12)
GRADIENT(narrow_attention, fsdp_attention(in[0], in[1], in[2], narrow(in[0])), 4, 2, 5, 2, 3, 4, 2, 5, 1, 3, 4, 2, 5, 1,
         3)
GRADIENT(narrow_attention_packed, fsdp_attention_packed(in[0], 2, 1, narrow(in[0])), 3, 2, 5, 12)
GRADIENT(windowed_attention, fsdp_attention(in[0], in[1], in[2], &windowed), 4, 1, 3, 2, 2, 4, 1, 5, 2, 2, 4, 1, 5, 2,
         2)
GRADIENT(rope_at, fsdp_rope_at(in[0], frequencies(in[0]), positions_of(in[0])), 4, 2, 5, 2, 6)
GRADIENT(rope_of_a_part, fsdp_rope(in[0], frequencies(in[0]), 2), 4, 2, 3, 2, 8)
GRADIENT(rope, fsdp_rope(in[0], frequencies(in[0]), 2), 4, 2, 3, 2, 6)
GRADIENT(cross_entropy, fsdp_cross_entropy(in[0], ids_of(in[0])), 3, 2, 3, 5)
GRADIENT(scaled_cross_entropy, fsdp_scale(fsdp_cross_entropy(in[0], ids_of(in[0])), 3.0), 3, 2, 3, 5)
GRADIENT(geglu_tanh, fsdp_geglu_tanh(in[0], in[1]), 3, 2, 3, 5, 3, 2, 3, 5)
GRADIENT(sum_of_cross_entropy, fsdp_cross_entropy_with(in[0], ids_of(in[0]), &scaled_sum), 3, 2, 3, 5)
GRADIENT(capped_cross_entropy, fsdp_cross_entropy_with(in[0], ids_of(in[0]), &capped), 3, 2, 3, 5)
GRADIENT(capped_linear_cross_entropy, fsdp_linear_cross_entropy_with(in[0], in[1], ids_of(in[0]), &capped), 3, 2, 3, 4,
         2, 5, 4)
GRADIENT(linear_cross_entropy, fsdp_linear_cross_entropy(in[0], in[1], ids_of(in[0])), 3, 2, 3, 4, 2, 5, 4)
GRADIENT(tied_head, fsdp_linear_cross_entropy(fsdp_embedding(in[0], rows_of(in[0])), in[0], ids_of(in[0])), 2, 5, 4)
GRADIENT(two_heads,
         fsdp_add(fsdp_linear_cross_entropy(in[0], in[1], ids_of(in[0])),
                  fsdp_scale(fsdp_linear_cross_entropy(in[0], in[1], rows_of(in[0])), 0.3)),
         3, 2, 3, 4, 2, 5, 4)
GRADIENT(sum, fsdp_sum(in[0]), 2, 3, 5)
GRADIENT(mean, fsdp_mean(fsdp_mul(in[0], in[0])), 2, 3, 5)
GRADIENT(sum_dim, fsdp_sum_dim(in[0], 1, true), 3, 2, 3, 5)
GRADIENT(sum_of_the_last, fsdp_sum_dim(in[0], -1, false), 3, 2, 3, 5)
GRADIENT(sum_dims, fsdp_sum_dims(in[0], FSDP_DIMS(0, 2), false), 3, 2, 3, 5)
GRADIENT(sum_dims_of_all, fsdp_square(fsdp_sum_dims(in[0], 0, NULL, true)), 3, 2, 1, 5)
GRADIENT(mean_dims, fsdp_square(fsdp_mean_dims(in[0], FSDP_DIMS(-1, 1), true)), 4, 2, 3, 2, 3)
GRADIENT(mean_dims_of_a_view, fsdp_mean_dims(fsdp_transpose(in[0], 0, 2), FSDP_DIMS(0), false), 3, 2, 3, 4)
GRADIENT(var, fsdp_var(in[0], FSDP_DIMS(0, 2), 1.0, false), 3, 3, 2, 4)
GRADIENT(var_of_all, fsdp_var(in[0], 0, NULL, 0.0, false), 2, 3, 4)
GRADIENT(std, fsdp_std(fsdp_transpose(in[0], 0, 1), FSDP_DIMS(-1), 1.0, true), 2, 4, 3)
GRADIENT(amax, fsdp_amax(in[0], FSDP_DIMS(1, 2), false), 3, 2, 3, 5)
GRADIENT(amin, fsdp_amin(in[0], FSDP_DIMS(0), true), 2, 3, 4)
GRADIENT(max, fsdp_max(in[0], 1, false, NULL), 3, 2, 3, 5)
GRADIENT(min, fsdp_min(in[0], -1, true, NULL), 2, 3, 5)
GRADIENT(log_softmax, fsdp_log_softmax(in[0]), 3, 2, 3, 5)
GRADIENT(mse_loss, fsdp_mse_loss(in[0], in[1], FSDP_LOSS_MEAN), 2, 3, 5, 2, 3, 5)
GRADIENT(mse_loss_of_a_row, fsdp_mse_loss(in[0], in[1], FSDP_LOSS_NONE), 1, 5, 2, 3, 5)
GRADIENT(l1_loss, fsdp_l1_loss(in[0], in[1], FSDP_LOSS_SUM), 2, 3, 5, 2, 3, 5)
GRADIENT(smooth_l1_loss, fsdp_smooth_l1_loss(in[0], in[1], FSDP_LOSS_NONE, 0.7), 2, 3, 5, 2, 3, 5)
GRADIENT(binary_cross_entropy, fsdp_binary_cross_entropy(fsdp_sigmoid(in[0]), fsdp_sigmoid(in[1]), FSDP_LOSS_NONE), 2,
         3, 5, 2, 3, 5)
GRADIENT(binary_cross_entropy_with_logits, fsdp_binary_cross_entropy_with_logits(in[0], in[1], FSDP_LOSS_NONE), 2, 3, 5,
         2, 3, 5)
GRADIENT(nll_loss, fsdp_nll_loss(fsdp_log_softmax(in[0]), ids_of(in[0]), FSDP_LOSS_MEAN), 3, 2, 3, 5)
GRADIENT(nll_loss_of_each, fsdp_nll_loss(in[0], ids_of(in[0]), FSDP_LOSS_NONE), 3, 2, 3, 5)
GRADIENT(reshape, fsdp_reshape(fsdp_transpose(in[0], 0, 1), FSDP_SHAPE(-1, 2)), 3, 2, 3, 4)
GRADIENT(slices, fsdp_mul(fsdp_slice(in[0], 1, 1, 3), fsdp_slice(in[0], 1, 0, 3)), 2, 3, 5)
GRADIENT(concat, cat(in[0], in[1]), 3, 2, 3, 5, 3, 2, 1, 5)
GRADIENT(contiguous, fsdp_contiguous(fsdp_transpose(in[0], 0, 1)), 2, 3, 5)
GRADIENT(residual_block, residual_block(in), 3, 2, 3, 5, 1, 5, 1, 5, 2, 5, 5)

static fsdp_tensor *wrong(void *arg, tensors in, int count)
{
    (void)arg, (void)count;
    return fsdp_add(fsdp_mul(in[0], in[0]), fsdp_detach(in[0])); /* hides a one from the gradient */
}

SCOPE_TEST(a_wrong_gradient_is_found)
{
    fsdp_tensor *x = make_leaf(device, 1, 1, (const int64_t[]){3});

    CHECK_ERROR(fsdp_gradcheck(wrong, NULL, &x, 1, 1e-2, 1e-3, 1e-2), FSDP_MISMATCH, "input 0 element");
    CHECK_OK(fsdp_tensor_set_requires_grad(x, false));
    CHECK_ERROR(fsdp_gradcheck(wrong, NULL, &x, 1, 1e-2, 1e-3, 1e-2), FSDP_INVALID, "input 0 must be");
}

/* Counts and sums above 65504, the largest of its numbers, are made in float32. */
SCOPE_TEST(many_elements_of_float16_have_the_right_gradient)
{
    const int64_t count = 70000;
    fsdp_tensor *x = CHECK_PTR(fsdp_full(device, FSDP_F16, 1, &count, 0.0)), *y;
    fsdp_tensor *logs = CHECK_PTR(fsdp_full(device, FSDP_F16, FSDP_SHAPE(count, 1), -10.0));
    double value;

    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    y = CHECK_PTR(fsdp_amin(x, 0, NULL, false));
    CHECK_OK(fsdp_backward(y));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_slice(fsdp_tensor_grad(x), 0, 7, 1)), &value));
    CHECK_NEAR(value, 1.0 / 70000.0, 1e-7);
    CHECK_OK(fsdp_tensor_set_requires_grad(logs, true));
    y = CHECK_PTR(fsdp_nll_loss(logs, fsdp_zeros(device, FSDP_I32, 1, &count), FSDP_LOSS_MEAN));
    CHECK_OK(fsdp_tensor_item(y, &value));
    CHECK_NEAR(value, 10.0, 0.0);
    CHECK_OK(
        fsdp_backward_from(&y, (fsdp_tensor *[]){CHECK_PTR(fsdp_full(device, FSDP_F16, 0, NULL, 1024.0))}, 1, false));
    CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_slice(fsdp_tensor_grad(logs), 0, 7, 1)), &value));
    CHECK_NEAR(value, -1024.0 / 70000.0, 1e-5);
}
