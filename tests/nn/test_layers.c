/* The standard layers: what they compute and how they begin. */
#include "nn/module.h"

#include <math.h>

#include "autograd/tools.h"
#include "support/scope.h"

static void read_all(const fsdp_tensor *tensor, float *values)
{
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(tensor), FSDP_F32, values));
}

/* A layer's output equals the operation on its parameters. */
static void same(fsdp_module *module, fsdp_tensor *x, fsdp_tensor *expected)
{
    float left[256], right[256];
    fsdp_tensor *y = CHECK_PTR(fsdp_call(module, x));

    CHECK(fsdp_tensor_numel(y) <= 256 && fsdp_tensor_numel(y) == fsdp_tensor_numel(CHECK_PTR(expected)));
    read_all(y, left);
    read_all(expected, right);
    CHECK_BYTES(left, right, (size_t)fsdp_tensor_numel(y) * sizeof(float));
    fsdp_module_unref(module);
}

SCOPE_TEST(layers_compute_their_operations)
{
    fsdp_tensor *x = make_random(device, 1, 2, (const int64_t[]){4, 3});
    fsdp_module *m = CHECK_PTR(fsdp_linear_create(context, device, 3, 5, NULL));
    fsdp_layer *layer = (fsdp_layer *)m;
    const int32_t ids[] = {4, 0, 6};
    fsdp_tensor *tokens = make_ids(device, 1, (const int64_t[]){3}, ids);

    same(m, x, fsdp_linear(x, layer->weight, layer->bias));
    m = fsdp_linear_create(context, device, 3, 5, &(fsdp_linear_options){.no_bias = true});
    CHECK_NULL(((fsdp_layer *)m)->bias);
    same(m, x, fsdp_linear(x, ((fsdp_layer *)m)->weight, FSDP_NO_BIAS));
    m = fsdp_conv1d_create(context, device, 3, 5, NULL);
    same(m, x, fsdp_conv1d(x, ((fsdp_layer *)m)->weight, ((fsdp_layer *)m)->bias));
    m = fsdp_embedding_create(context, device, 7, 3, NULL);
    same(m, tokens, fsdp_embedding(((fsdp_layer *)m)->weight, tokens));
    m = fsdp_layernorm_create(context, device, 3, 1e-5f);
    same(m, x, fsdp_layernorm(x, ((fsdp_layer *)m)->weight, ((fsdp_layer *)m)->bias, 1e-5f));
    m = fsdp_rmsnorm_create(context, device, 3, 1e-6f);
    same(m, x, fsdp_rmsnorm(x, ((fsdp_layer *)m)->weight, 1e-6f));
    same(fsdp_gelu_create(context, true), x, fsdp_gelu_tanh(x));
    same(fsdp_gelu_create(context, false), x, fsdp_gelu(x));
    same(fsdp_silu_create(context), x, fsdp_silu(x));
    same(fsdp_relu_create(context), x, fsdp_relu(x));
}

SCOPE_TEST(sequential_calls_its_children_in_order)
{
    fsdp_module *parts[] = {fsdp_silu_create(context), fsdp_relu_create(context), fsdp_gelu_create(context, true)};
    fsdp_tensor *x = make_random(device, 1, 2, (const int64_t[]){4, 3});
    fsdp_module *broken[] = {fsdp_relu_create(context), NULL, fsdp_relu_create(context)};

    same(fsdp_sequential_create(context, parts, 3), x, fsdp_gelu_tanh(fsdp_relu(fsdp_silu(x))));
    CHECK_NULL(fsdp_sequential_create(context, broken, 3)); /* and nothing leaks */
}

SCOPE_TEST(dropout_differs_from_call_to_call_and_rests_in_eval)
{
    fsdp_module *m = CHECK_PTR(fsdp_dropout_create(context, 0.5f, 42)), *twin = fsdp_dropout_create(context, 0.5f, 42);
    fsdp_tensor *x = CHECK_PTR(fsdp_full(device, FSDP_F32, FSDP_SHAPE(200), 1));
    float first[200], second[200], other[200];
    int kept = 0;

    read_all(fsdp_call(m, x), first);
    read_all(fsdp_call(m, x), second);
    read_all(fsdp_call(twin, x), other);
    CHECK(memcmp(first, second, sizeof first) != 0);
    CHECK_BYTES(first, other, sizeof first);
    for (int i = 0; i < 200; i++) {
        CHECK(first[i] == 0.0f || first[i] == 2.0f);
        kept += first[i] != 0.0f;
    }
    CHECK(kept > 70 && kept < 130);
    fsdp_module_train(m, false);
    CHECK(fsdp_call(m, x) == x);
    CHECK_NULL(fsdp_dropout_create(context, -0.1f, 0));
    fsdp_module_unref(m);
    fsdp_module_unref(twin);
}

/* The numbers of the next call of `m`. */
static void draw(fsdp_module *m, float *out)
{
    read_all(fsdp_call(m, fsdp_full(device, FSDP_F32, FSDP_SHAPE(64), 1)), out);
}

SCOPE_TEST(draws_go_on_where_another_run_stopped)
{
    fsdp_module *parts[3], *net, *again[3], *resumed;
    float numbers[64], others[64];
    uint64_t draws = 9;

    for (int i = 0; i < 3; i++) {
        parts[i] = i == 1 ? fsdp_relu_create(context) : fsdp_dropout_create(context, 0.5f, (uint64_t)i);
        again[i] = i == 1 ? fsdp_relu_create(context) : fsdp_dropout_create(context, 0.5f, (uint64_t)i);
    }
    net = CHECK_PTR(fsdp_sequential_create(context, parts, 3));
    resumed = CHECK_PTR(fsdp_sequential_create(context, again, 3));
    CHECK_OK(fsdp_module_draws(net, &draws));
    CHECK_EQ(draws, 0);
    for (int i = 0; i < 5; i++)
        draw(net, numbers);
    fsdp_module_train(net, false);
    draw(net, numbers); /* nothing */
    fsdp_module_train(net, true);
    CHECK_OK(fsdp_module_draws(net, &draws));
    CHECK_EQ(draws, 5);
    CHECK_OK(fsdp_module_set_draws(resumed, draws));
    for (int i = 0; i < 2; i++) {
        draw(net, numbers);
        draw(resumed, others);
        CHECK_BYTES(others, numbers, sizeof numbers);
    }
    CHECK_ERROR(fsdp_module_draws(NULL, &draws), FSDP_INVALID, "required");
    CHECK_ERROR(fsdp_module_set_draws(NULL, 1), FSDP_INVALID, "required");
    fsdp_module_unref(net);
    fsdp_module_unref(resumed);
}

/* Values depend on seed, name and index alone: a piece filled apart equals the piece of the whole. */
SCOPE_TEST(first_values_are_those_of_pytorch_in_kind_and_independent_of_pieces)
{
    fsdp_module *m = CHECK_PTR(fsdp_linear_create(context, device, 16, 50, NULL));
    fsdp_layer *layer = (fsdp_layer *)m;
    fsdp_tensor *apart;
    float values[800], piece[300];
    const fsdp_init uniform = {FSDP_INIT_UNIFORM, -0.25f, 0.25f};
    double sum = 0, square = 0;

    CHECK_OK(fsdp_module_initialize(m, 5));
    read_all(layer->weight, values);
    for (int i = 0; i < 800; i++) {
        CHECK(values[i] >= -0.25f && values[i] <= 0.25f);
        sum += (double)values[i];
        square += (double)(values[i] * values[i]);
    }
    CHECK_NEAR(sum / 800, 0, 0.02);
    CHECK_NEAR(square / 800, 0.25 * 0.25 / 3, 0.002);
    apart = CHECK_PTR(fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(300)));
    CHECK_OK(fsdp__init_fill(device, fsdp_tensor_data(apart), FSDP_F32, 300, uniform, 5, "weight", 417));
    read_all(apart, piece);
    CHECK_BYTES(piece, values + 417, sizeof piece);
    fsdp_module_unref(m);

    m = fsdp_embedding_create(context, device, 50, 16, NULL);
    read_all(((fsdp_layer *)m)->weight, values);
    square = 0;
    for (int i = 0; i < 800; i++)
        square += (double)(values[i] * values[i]);
    CHECK_NEAR(square / 800, 1, 0.15);
    fsdp_module_unref(m);
}
