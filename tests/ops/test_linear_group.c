/* Linears of one input as one product: how many products a step of sharded models has, and that their numbers are those
 * of single products. On a CPU nothing is joined, and the bits are the same. Links: models shard adapter */
#include <math.h>

#include "fsdp/adapter.h"
#include "fsdp/models.h"
#include "fsdp/shard.h"
#include "ops/op.h"
#include "ops/two_backwards.h"
#include "support/models.h"

enum {
    LAYERS = 2
};

typedef struct counts {
    int forward, backward;
} counts;

typedef struct variant {
    const char *name;
    fsdp_architecture architecture;
    counts joined, apart; /* products of a step */
    bool bias;            /* of all projections */
    fsdp_shard_options options;
    fsdp_recompute_mode recompute;
    const char *frozen;  /* parameters whose name has it */
    const char *adapted; /* a module that has an adapter */
} variant;

typedef struct outcome {
    const variant *v;
    bool apart; /* a hook on a projection has it called by itself */
    bool dry;
    two_backwards of;
} outcome;

static fsdp_model_config tiny(const variant *v)
{
    return MODEL_CONFIG(.architecture = v->architecture, .n_layers = LAYERS, .dim = 16, .n_heads = 4, .n_kv_heads = 2,
                        .head_dim = 8, .ffn_dim = 32, .vocab_size = 16, .max_seq_len = 32, .rope_theta = 1000,
                        .attention_bias = v->bias, .mlp_bias = v->bias);
}

static void freeze(fsdp_module *model, const char *word)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t p = 0; p < parameters.count; p++)
        if (word && strstr(parameters.items[p].name, word))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[p].tensor, false));
    fsdp_parameters_release(&parameters);
}

static fsdp_module *build(fsdp_context *context, const outcome *o, fsdp_adapter **adapter)
{
    const fsdp_lora_options lora = {.rank = 2, .targets = &o->v->adapted, .target_count = 1};
    const fsdp_model_config config = tiny(o->v);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, o->of.device, &config));

    *adapter = NULL;
    if (o->v->adapted)
        CHECK_OK(fsdp_adapter_add(model, &lora, adapter));
    two_fill(model, "norm");
    freeze(model, o->v->frozen);
    for (int64_t i = 0; i < LAYERS; i++) {
        fsdp_module *block = fsdp_model_block(model, i);

        if (o->apart) {
            two_hook(block, "self_attn.k_proj");
            two_hook(block, "mlp.up_proj");
        }
        CHECK_OK(fsdp_module_set_recompute(block, o->v->recompute));
        CHECK_OK(fsdp_fully_shard(block, &o->v->options));
    }
    CHECK_OK(fsdp_fully_shard(model, &o->v->options));
    return model;
}

static void take(fsdp_context *context, outcome *o)
{
    fsdp_adapter *adapter;
    fsdp_module *model;

    o->of.device = two_device(context, o->dry);
    model = build(context, o, &adapter);
    two_take(context, model, adapter, &o->of);
}

static bool joins(fsdp_context *context)
{
    return fsdp__device_joins_products(test_device(context));
}

static void check_close(const outcome *a, const outcome *b, bool same_bits)
{
    double tolerance = a->v->options.mp_policy.param_dtype == FSDP_BF16 ? 2e-2 : 1e-5;

    two_check_close(&a->of, &b->of, same_bits ? 0 : tolerance);
}

static counts products_of(const outcome *o)
{
    return (counts){o->of.forward[FSDP__KERNEL_MATMUL], o->of.backward[FSDP__KERNEL_MATMUL]};
}

static void check_counts(const char *what, const outcome *o, counts expected)
{
    counts products = products_of(o);

    if (products.forward != expected.forward || products.backward != expected.backward)
        TEST_FAIL("%s, %s: %d + %d products, expected %d + %d", o->v->name, what, products.forward, products.backward,
                  expected.forward, expected.backward);
}

/* q and k of a block are rotated by one launch where they lie side by side, forward and back, and again where the block
 * runs again. With an adapter the first block's q needs no gradient. */
static void check_ropes(const outcome *o, bool joined)
{
    int launches = LAYERS * (joined ? 1 : 2);

    CHECK_EQ(o->of.forward[FSDP__KERNEL_ROPE], launches);
    CHECK_EQ(o->of.backward[FSDP__KERNEL_ROPE], launches * (o->v->recompute ? 2 : 1) - (o->v->adapted ? 1 : 0));
}

/* Where the ranks do not divide the rows of a weight there is room between it and the next. */
static void compare(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    outcome joined = {.v = v}, apart = {.v = v, .apart = true};
    bool joins_here = joins(context) && fsdp_context_world_size(context) != 3;

    take(context, &joined);
    take(context, &apart);
    check_close(&joined, &apart, !joins_here);
    check_counts("as they are", &joined, joins_here ? v->joined : v->apart);
    check_counts("with hooks", &apart, v->apart);
    check_ropes(&joined, joins_here && v->architecture != FSDP_QWEN3 && !v->adapted);
    check_ropes(&apart, false);
    /* A recomputation does not rotate in place: a block has q and k twice while it runs again. */
    CHECK(joined.of.peak <= apart.of.peak + (v->recompute ? 2 * 6 * (4 + 2) * 8 * (int64_t)sizeof(float) : 0));
    two_free(&joined.of);
    two_free(&apart.of);
}

/* The head and its loss are three products; a block's seven linears one each forward and two each backward. */
static const variant variants[] = {
    {.name = "llama", .architecture = FSDP_LLAMA, .joined = {11, 16}, .apart = {17, 28}},
    {.name = "qwen2", .architecture = FSDP_QWEN2, .joined = {11, 16}, .apart = {17, 28}},
    {.name = "biases", .architecture = FSDP_LLAMA, .bias = true, .joined = {11, 16}, .apart = {17, 28}},
    {.name = "qwen3", .architecture = FSDP_QWEN3, .joined = {15, 24}, .apart = {17, 28}},
    {.name = "bf16",
     .architecture = FSDP_LLAMA,
     .joined = {11, 16},
     .apart = {17, 28},
     .options = {.mp_policy = {.param_dtype = FSDP_BF16, .reduce_dtype = FSDP_F32}}},
    {.name = "stays",
     .architecture = FSDP_LLAMA,
     .joined = {11, 16},
     .apart = {17, 28},
     .options = {.reshard_after_forward = FSDP_RESHARD_NEVER}},
    {.name = "frozen", .architecture = FSDP_LLAMA, .joined = {11, 18}, .apart = {17, 26}, .frozen = "k_proj"},
    {.name = "all frozen", .architecture = FSDP_LLAMA, .joined = {11, 8}, .apart = {17, 14}, .frozen = "_proj"},
    {.name = "full",
     .architecture = FSDP_LLAMA,
     .joined = {11, 22},
     .apart = {17, 40},
     .recompute = FSDP_RECOMPUTE_FULL},
    {.name = "cheap",
     .architecture = FSDP_LLAMA,
     .joined = {11, 16},
     .apart = {17, 28},
     .recompute = FSDP_RECOMPUTE_CHEAP},
    {.name = "selective",
     .architecture = FSDP_LLAMA,
     .joined = {11, 18},
     .apart = {17, 34},
     .recompute = FSDP_RECOMPUTE_SELECTIVE},
    {.name = "adapted", .architecture = FSDP_LLAMA, .joined = {18, 16}, .apart = {20, 18}, .adapted = "k_proj"}};

TEST(linears_of_one_input_are_one_product_where_their_weights_touch)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (int world = 1; world <= 4; world++)
            if (test_takes((int)i + world + 2, 1, 6)) /* each in one world at most */
                test_run_ranks(world, compare, (void *)(uintptr_t)&variants[i]);
}

static void compare_dry(fsdp_context *context, void *arg)
{
    const variant *v = arg;
    outcome real = {.v = v}, dry = {.v = v, .dry = true};

    take(context, &real);
    take(context, &dry);
    check_counts("dry", &dry, products_of(&real));
    CHECK_EQ(dry.of.peak, real.of.peak);
    two_free(&real.of);
    two_free(&dry.of);
}

TEST(a_dry_step_has_the_products_and_the_memory_of_a_step_on_a_gpu)
{
    const char *device = getenv("FSDP_TEST_DEVICE");

    if (!device || strcmp(device, "cuda") != 0)
        skip();
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        if (test_takes((int)i, 1, 3))
            test_run_ranks(1, compare_dry, (void *)(uintptr_t)&variants[i]);
}

/* ---- the operation ---- */

enum {
    ROWS = 5,
    IN = 16,
    OUT = 16, /* of each of three */
    GROUP = 3
};

static void release(void *arg, void *data)
{
    (void)data;
    fsdp_tensor_unref(arg);
}

/* A leaf on the bytes of `all` from element `at` on, as the parameters of a region lie. */
static fsdp_tensor *leaf_in(fsdp_tensor *all, int64_t at, int ndim, const int64_t *shape)
{
    fsdp__storage *storage;
    fsdp_tensor *leaf;
    size_t bytes = (size_t)(ndim == 2 ? OUT * IN : OUT) * sizeof(float);

    CHECK_OK(fsdp__storage_create(all->storage->device, bytes, FSDP_MEMORY_ACTIVATION, false, &storage));
    fsdp__storage_adopt(storage, (float *)fsdp_tensor_data(all) + at, release, fsdp_tensor_ref(all));
    CHECK_OK(fsdp__tensor_create_view(storage, FSDP_F32, ndim, shape, NULL, 0, &leaf));
    fsdp__storage_unref(storage);
    CHECK_OK(fsdp_tensor_set_requires_grad(leaf, true));
    return leaf;
}

/* Of three outputs one is used twice, once through other shapes, one once, and one not at all. */
static void use(fsdp_tensor *x, fsdp_tensor *const *weights, fsdp_tensor *const *biases, bool group, bool again)
{
    fsdp_tensor *y[GROUP], *sum, *loss;

    if (group) {
        CHECK_OK(fsdp_linear_group(x, GROUP, weights, biases, y));
    } else {
        for (int i = 0; i < GROUP; i++)
            y[i] = CHECK_PTR(fsdp_linear(x, weights[i], biases[i]));
    }
    sum = CHECK_PTR(
        fsdp_mul(fsdp_reshape(fsdp_tanh(y[0]), FSDP_SHAPE(ROWS, 4, 4)),
                 fsdp_swiglu(fsdp_reshape(y[0], FSDP_SHAPE(ROWS, 4, 4)), fsdp_reshape(y[2], FSDP_SHAPE(ROWS, 4, 4)))));
    loss = CHECK_PTR(fsdp_mean(sum));
    CHECK_OK(fsdp_backward_from(&loss, NULL, 1, again));
    if (again)
        CHECK_OK(fsdp_backward(loss));
}

/* The gradients of x, and of the weights and biases that have one. */
static int gradients_of(fsdp_tensor *x, fsdp_tensor *const *weights, fsdp_tensor *const *biases, float *out)
{
    int at = ROWS * IN;

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(x)), FSDP_F32, out));
    for (int i = 0; i < GROUP; i++) {
        const fsdp_tensor *both[] = {weights[i], biases[i]};

        for (int b = 0; b < (biases[0] == FSDP_NO_BIAS ? 1 : 2); b++) {
            CHECK_EQ(!fsdp_tensor_grad(both[b]), i == 1);
            if (i == 1)
                continue;
            CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(both[b]), FSDP_F32, out + at));
            at += (int)fsdp_tensor_numel(both[b]);
        }
    }
    return at;
}

static int compute(fsdp_context *context, bool bias, bool group, bool again, float *out)
{
    fsdp_device *device = test_device(context);
    fsdp_tensor *x, *all, *weights[GROUP], *biases[GROUP];
    float values[GROUP * OUT * (IN + 1)];
    int count;

    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        values[i] = (float)sin(0.37 * (double)i);
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(ROWS, IN), values + 7));
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    all = CHECK_PTR(fsdp_from_data(device, FSDP_F32, FSDP_SHAPE(GROUP * OUT * (IN + 1)), values));
    for (int i = 0; i < GROUP; i++) {
        weights[i] = leaf_in(all, i * OUT * IN, 2, (const int64_t[]){OUT, IN});
        biases[i] = bias ? leaf_in(all, GROUP * OUT * IN + i * OUT, 1, (const int64_t[]){OUT}) : FSDP_NO_BIAS;
    }
    /* The same bytes: `release_arg` is one tensor. */
    CHECK_EQ(fsdp__linear_group_joins(x, GROUP, weights, biases), joins(context));
    use(x, weights, biases, group, again);
    count = gradients_of(x, weights, biases, out);
    for (int i = 0; i < GROUP; i++) {
        fsdp_tensor_unref(weights[i]);
        if (bias)
            fsdp_tensor_unref(biases[i]);
    }
    fsdp_scope_end(context, NULL);
    return count;
}

CONTEXT_TEST(outputs_may_be_used_twice_or_not_at_all)
{
    float joined[ROWS * IN + GROUP * OUT * (IN + 1)], apart[ROWS * IN + GROUP * OUT * (IN + 1)];

    CHECK_PTR(test_device(context));
    for (int i = 0; i < 4; i++) {
        int count = compute(context, i & 1, true, i & 2, joined);

        CHECK_EQ(compute(context, i & 1, false, i & 2, apart), count);
        CHECK_CLOSE(joined, apart, count, 1e-5, 1e-6);
    }
}

CONTEXT_TEST(a_group_that_does_not_fit_is_an_error_that_says_so)
{
    fsdp_tensor *x, *weights[9], *biases[9], *out[9];

    x = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3), 1));
    for (int i = 0; i < 9; i++) {
        weights[i] = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, i < 2 ? 3 : 4), 1));
        biases[i] = FSDP_NO_BIAS;
    }
    CHECK_STATUS(fsdp_linear_group(x, 9, weights, biases, out), FSDP_INVALID);
    CHECK_CONTAINS(fsdp_last_error(), "linear_group: 9 linears: expected 1 to 8");
    CHECK_STATUS(fsdp_linear_group(x, 0, weights, biases, out), FSDP_INVALID);
    CHECK_OK(fsdp_linear_group(x, 2, weights, biases, out));
    CHECK(fsdp_linear_group(x, 3, weights, biases, out) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "linear: input (2, 3) does not fit weight (2, 4)");
    for (int i = 0; i < 3; i++)
        CHECK_NULL(out[i]);
}

CONTEXT_TEST(null_in_a_group_is_refused)
{
    fsdp_tensor *x, *weights[2], *biases[2] = {FSDP_NO_BIAS, FSDP_NO_BIAS}, *out[2];

    x = CHECK_PTR(fsdp_full(test_device(context), FSDP_F32, FSDP_SHAPE(2, 3), 1));
    weights[0] = weights[1] = x;
    fsdp_clear_error();
    CHECK_ERROR(fsdp_linear_group(NULL, 2, weights, biases, out), FSDP_INVALID, "linear_group: the input is missing");
    CHECK_NULL(out[0]);
    CHECK_ERROR(fsdp_linear_group(x, 2, NULL, biases, out), FSDP_INVALID, "the weights are missing");
    CHECK_ERROR(fsdp_linear_group(x, 2, weights, NULL, out), FSDP_INVALID, "the biases are missing");
    CHECK_ERROR(fsdp_linear_group(x, 2, weights, biases, NULL), FSDP_INVALID, "needs a place for its outputs");
    weights[1] = NULL;
    fsdp_clear_error(); /* it would stand behind the next */
    CHECK_ERROR(fsdp_linear_group(x, 2, weights, biases, out), FSDP_INVALID, "weight 1 of 2 is missing");
    weights[1] = x;
    biases[0] = NULL;
    fsdp_clear_error();
    CHECK_ERROR(fsdp_linear_group(x, 2, weights, biases, out), FSDP_INVALID, "bias 0 of 2 is missing (FSDP_NO_BIAS");
}
