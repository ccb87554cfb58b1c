/* Logits and gradients of Llama's like, held to those of transformers (tests/numbers/llamas.py). Links: data */
#include <math.h>

#include "fsdp/models.h"
#include "support/models.h"
#include "support/numbers.h"

enum {
    MOST = 512 /* elements of a tensor */
};

static fsdp_model_config tiny(fsdp_architecture architecture)
{
    return MODEL_CONFIG(.architecture = architecture, .n_layers = 1, .dim = 4, .n_heads = 2, .n_kv_heads = 1,
                        .head_dim = 6, .ffn_dim = 5, .vocab_size = 7, .max_seq_len = 64, .rope_theta = 1000);
}

/* As fill() of the script. */
static void fill(const fsdp_parameters *parameters)
{
    for (int64_t p = 0; p < parameters->count; p++) {
        float values[MOST], base = strstr(parameters->items[p].name, "norm") ? 1 : 0;
        int64_t numel = fsdp_tensor_numel(parameters->items[p].tensor);

        CHECK(numel <= MOST);
        for (int64_t i = 0; i < numel; i++)
            values[i] = (float)(0.6 * sin(0.7 * (double)i + 1.3 * (double)p)) + base;
        CHECK_OK(fsdp_tensor_write(parameters->items[p].tensor, FSDP_F32, values));
    }
}

static fsdp_tensor *ids(fsdp_context *context, int step, int first)
{
    int32_t values[2 * 6];

    for (int b = 0; b < 2; b++)
        for (int t = 0; t < 6; t++)
            values[b * 6 + t] = (step * t + b + first) % 7;
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(2, 6), values));
}

/* The numbers are exact. In Gemma, whose norms multiply by up to 2.6 here, gradients are sums of large numbers that
 * cancel each other: float32 is off by 1e-4 of the largest of them here, and by 4e-5 in PyTorch. */
static double slack_of(const char *prefix)
{
    return strcmp(prefix, "gemma2") == 0 ? 2e-4 : strcmp(prefix, "gemma3") == 0 ? 3e-5 : 0;
}

static void check(const char *prefix, const char *name, const fsdp_tensor *tensor)
{
    const number_tensor *expected = number_get("llamas", prefix, name);
    float values[MOST], most = 0;

    CHECK_EQ(fsdp_tensor_ndim(tensor), expected->ndim);
    for (int d = 0; d < expected->ndim; d++)
        CHECK_EQ(fsdp_tensor_size(tensor, d), expected->shape[d]);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    for (int64_t i = 0; i < fsdp_tensor_numel(tensor); i++)
        most = fmaxf(most, fabsf(expected->data[i]));
    CHECK_CLOSE(values, expected->data, fsdp_tensor_numel(tensor), 1e-5, 1e-6 + slack_of(prefix) * (double)most);
}

static void check_model(const char *prefix, const fsdp_model_config *config)
{
    fsdp_context *context = test_context();
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), config));
    fsdp_parameters parameters = {0};

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    fill(&parameters);
    CHECK_OK(fsdp_scope_begin(context));
    check(prefix, "logits", CHECK_PTR(fsdp_call(model, ids(context, 5, 0))));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(model, ids(context, 5, 0), ids(context, 3, 1)))));
    for (int64_t i = 0; i < parameters.count; i++)
        check(prefix, parameters.items[i].name, CHECK_PTR(fsdp_tensor_grad(parameters.items[i].tensor)));
    fsdp_scope_end(context, NULL);
    CHECK_EQ(parameters.count + 1, number_count("llamas", prefix)); /* and the logits */
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

TEST(qwen2_has_biases_of_query_key_and_value)
{
    fsdp_model_config config = tiny(FSDP_QWEN2);

    config.tie_word_embeddings = true;
    check_model("qwen2", &config);
}

TEST(mistral_is_a_llama)
{
    fsdp_model_config config = tiny(FSDP_MISTRAL);

    check_model("mistral", &config);
}

TEST(linear_scaling_with_all_biases)
{
    fsdp_model_config config = tiny(FSDP_LLAMA);

    config.attention_bias = config.mlp_bias = true;
    config.rope_type = FSDP_ROPE_LINEAR;
    config.rope_factor = 2.5f;
    check_model("linear", &config);
}

TEST(llama3_scaling)
{
    fsdp_model_config config = tiny(FSDP_LLAMA);

    config.tie_word_embeddings = true;
    config.rope_theta = 100;
    config.rope_type = FSDP_ROPE_LLAMA3;
    config.rope_factor = config.rope_high_freq_factor = 4;
    config.rope_low_freq_factor = 1;
    config.rope_original_max_seq_len = 32;
    check_model("llama3", &config);
}

/* The same with two layers. */
static fsdp_model_config two(fsdp_architecture architecture)
{
    fsdp_model_config config = tiny(architecture);

    config.n_layers = 2;
    return config;
}

static void set_yarn(fsdp_model_config *config)
{
    config->rope_theta = 100;
    config->rope_type = FSDP_ROPE_YARN;
    config->rope_factor = 4;
    config->rope_original_max_seq_len = 32;
    config->rope_beta_fast = 32;
    config->rope_beta_slow = 1;
}

TEST(yarn_scaling)
{
    fsdp_model_config config = tiny(FSDP_LLAMA);

    set_yarn(&config);
    config.rope_beta_fast = 4;
    config.rope_beta_slow = 0.5f;
    check_model("yarn", &config);
}

TEST(yarn_scaling_whose_factor_and_ramp_are_given)
{
    fsdp_model_config config = tiny(FSDP_LLAMA);

    set_yarn(&config);
    config.rope_mscale = 1.5f;
    config.rope_mscale_all_dim = 0.5f;
    config.rope_keep_ramp = true;
    check_model("exact-yarn", &config);
}

TEST(dynamic_scaling_of_a_call_longer_than_all_positions)
{
    fsdp_model_config config = tiny(FSDP_LLAMA);

    config.max_seq_len = 4;
    config.rope_type = FSDP_ROPE_DYNAMIC;
    config.rope_factor = 3;
    check_model("dynamic", &config);
}

TEST(qwen3_normalises_each_head)
{
    fsdp_model_config config = two(FSDP_QWEN3);

    check_model("qwen3", &config);
}

TEST(olmo2_normalises_after_attention_and_mlp)
{
    fsdp_model_config config = two(FSDP_OLMO2);

    config.attention_bias = true;
    check_model("olmo2", &config);
}

TEST(smollm3_has_layers_without_positions)
{
    fsdp_model_config config = two(FSDP_SMOLLM3);

    set_yarn(&config);
    config.tie_word_embeddings = true;
    config.no_rope_layers[0] = 2;
    check_model("smollm3", &config);
}

TEST(phi3_has_fused_projections)
{
    fsdp_model_config config = tiny(FSDP_PHI3);

    check_model("phi3", &config);
}

TEST(phi3_may_rotate_a_part_of_each_head)
{
    fsdp_model_config config = tiny(FSDP_PHI3);

    config.dim = 16;
    config.head_dim = 8;
    config.rotary_fraction = 0.75f;
    config.window = 4;
    config.local_layers[0] = 1;
    check_model("partial-phi3", &config);
}

/* The factors of the script, for heads of which 6 elements rotate. */
static void set_longrope(fsdp_model_config *config, int64_t original)
{
    static const float each[2][3] = {{1, 1.5f, 2.25f}, {1.25f, 4, 9.5f}};

    config->rope_theta = 100;
    config->rope_type = FSDP_ROPE_LONGROPE;
    config->rope_original_max_seq_len = original;
    config->rope_factor = (float)config->max_seq_len / (float)original;
    memcpy(config->rope_short_factors, each[0], sizeof each[0]);
    memcpy(config->rope_long_factors, each[1], sizeof each[1]);
}

/* Calls have 6 tokens. */
TEST(phi3_has_factors_for_short_and_for_long_calls)
{
    fsdp_model_config config = tiny(FSDP_PHI3);

    config.dim = 16;
    config.head_dim = 8;
    config.rotary_fraction = 0.75f;
    set_longrope(&config, 6);
    check_model("short-phi3", &config);
    set_longrope(&config, 5);
    check_model("long-phi3", &config);
}

TEST(longrope_of_whole_heads)
{
    fsdp_model_config config = tiny(FSDP_PHI3);

    config.dim = 12;
    set_longrope(&config, 4);
    config.rope_attention_factor = 1.375f;
    check_model("whole-phi3", &config);
    config = tiny(FSDP_LLAMA);
    set_longrope(&config, 4);
    config.rope_factor = 8;
    check_model("long-llama", &config);
}

TEST(mistral_has_local_layers)
{
    fsdp_model_config config = tiny(FSDP_MISTRAL);

    config.window = 3;
    config.local_layers[0] = 1;
    check_model("local-mistral", &config);
}

TEST(qwen2_has_local_layers_at_the_end)
{
    fsdp_model_config config = two(FSDP_QWEN2);

    config.window = 3;
    config.local_layers[0] = 2;
    check_model("local-qwen2", &config);
}

TEST(gemma2_has_soft_caps_and_a_local_layer_first)
{
    fsdp_model_config config = two(FSDP_GEMMA2);

    config.tie_word_embeddings = true;
    config.window = 3;
    config.local_layers[0] = 1;
    config.query_scalar = 5;
    config.attention_softcap = 8;
    config.logits_softcap = 5;
    check_model("gemma2", &config);
}

TEST(gemma3_has_two_thetas)
{
    fsdp_model_config config = two(FSDP_GEMMA3);

    config.tie_word_embeddings = true;
    config.window = 3;
    config.local_layers[0] = 1;
    config.query_scalar = 5;
    config.local_rope_theta = 100;
    config.rope_type = FSDP_ROPE_LINEAR;
    config.rope_factor = 2;
    check_model("gemma3", &config);
}
