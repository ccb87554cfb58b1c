/* Presets, checks and counts of model configs. */
#include <math.h>

#include "base/compiler.h"
#include "models/models.h"
#include "support/test.h"

static fsdp_model_config preset(const char *name)
{
    fsdp_model_config config;

    CHECK_OK(fsdp_model_preset(name, &config));
    return config;
}

TEST(presets_have_the_published_sizes)
{
    /* Counted by PyTorch for the same architectures. */
    static const struct {
        const char *name;
        int64_t parameters;
    } expected[] = {
        {"gpt-10m", 10942464},     {"gpt2-124m", 124475904}, {"llama-1m", 1000576},
        {"llama-100m", 124668672}, {"llama-1b", 1498482688}, {"llama-8b", 8030261248},
    };
    const char *const *names = fsdp_model_preset_names();
    size_t i = 0;

    for (; names[i]; i++) {
        fsdp_model_config config = preset(expected[i].name);

        CHECK_STRING(names[i], expected[i].name);
        CHECK_OK(fsdp_model_config_check(&config));
        CHECK_EQ(fsdp_model_config_parameters(&config), expected[i].parameters);
    }
    CHECK_EQ(i, sizeof expected / sizeof expected[0]);
}

TEST(an_unknown_preset_is_answered_with_the_known_ones)
{
    fsdp_model_config config;

    CHECK_ERROR(fsdp_model_preset("gpt5", &config), FSDP_NOT_FOUND,
                "no model preset 'gpt5', only gpt-10m, gpt2-124m, llama-1m, llama-100m, llama-1b, llama-8b");
    CHECK_ERROR(fsdp_model_preset(NULL, &config), FSDP_NOT_FOUND, "no model preset ''");
}

static int64_t parameters_of(fsdp_module *model)
{
    fsdp_parameters parameters = {0};
    int64_t numel = 0;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        numel += fsdp_tensor_numel(parameters.items[i].tensor);
    fsdp_parameters_release(&parameters);
    return numel;
}

TEST(the_count_is_that_of_the_modules_parameters)
{
    static const struct {
        bool tied, attention_bias, mlp_bias;
        bool qwen2;
    } variants[] = {{false, false, false, false},
                    {true, true, false, false},
                    {true, false, true, false},
                    {false, false, false, true}};

    for (const char *const *name = fsdp_model_preset_names(); *name; name++) {
        for (size_t v = 0; v < FSDP__COUNT_OF(variants); v++) {
            fsdp_context *context = test_context();
            fsdp_model_config config = preset(*name);
            fsdp_module *model;

            if (variants[v].qwen2 && config.architecture == FSDP_LLAMA)
                config.architecture = FSDP_QWEN2;
            config.tie_word_embeddings = variants[v].tied;
            config.attention_bias = variants[v].attention_bias;
            config.mlp_bias = variants[v].mlp_bias;
            model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
            CHECK_EQ(parameters_of(model), fsdp_model_config_parameters(&config));
            CHECK_EQ(fsdp_model_block_count(model), config.n_layers);
            fsdp_module_unref(model);
            CHECK_EQ(test_live_bytes(context), 0);
            fsdp_context_free(context);
        }
    }
}

TEST(the_count_is_that_of_each_family)
{
    for (int architecture = FSDP_LLAMA; architecture <= FSDP_GEMMA3; architecture++) {
        fsdp_context *context = test_context();
        fsdp_model_config config = preset("llama-1m");
        fsdp_module *model;

        config.architecture = (fsdp_architecture)architecture;
        config.head_dim = 48; /* not dim / n_heads */
        config.attention_bias = fsdp__family_of(config.architecture)->may_bias;
        model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
        CHECK_EQ(parameters_of(model), fsdp_model_config_parameters(&config));
        fsdp_module_unref(model);
        fsdp_context_free(context);
    }
}

TEST(local_layers_see_fewer_keys)
{
    fsdp_model_config config = preset("llama-1m");
    double full = fsdp_model_config_flops_per_token(&config, 100);

    config.window = 40;
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 100), full, 0);
    config.local_layers[0] = 1; /* sees 40 - 40 * 40 / 200 = 32 keys instead of 50 */
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 100), full - 12.0 * 128 * (50 - 32), 1e-6);
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 40), fsdp_model_config_flops_per_token(&config, 40), 0);
    CHECK(fsdp_model_layer_is_local(&config, 0) && !fsdp_model_layer_is_local(&config, 1));
    CHECK(!fsdp_model_layer_is_local(&config, FSDP_MODEL_MAX_MARKED_LAYERS));
    config.no_rope_layers[1] = 1;
    CHECK(fsdp_model_layer_has_rope(&config, 0) && !fsdp_model_layer_has_rope(&config, 64));
}

TEST(flops_are_six_per_weight_and_those_of_attention)
{
    fsdp_model_config config = preset("gpt-10m");
    double matrices = 6.0 * (4 * 384 * 384 + 2 * 384 * 1536) + 256 * 384;

    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 100), 6 * matrices + 6.0 * 6 * 384 * 100, 1);
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 256), 67829760, 0.5); /* by hand in docs/performance.md */
    config.tie_word_embeddings = true;                                          /* the head multiplies either way */
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 100), 6 * matrices + 6.0 * 6 * 384 * 100, 1);
    config = preset("llama-100m");
    matrices = 12.0 * (2 * 768 * 768 + 2 * 768 * 256 + 3 * 768 * 2048) + 32000 * 768;
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 0), 6 * matrices, 1);
}

TEST(sizes_that_no_model_has_are_not_counted)
{
    fsdp_model_config config = preset("gpt2-124m");

    config.n_layers = INT64_MAX; /* no loop over them, and no product that overflows */
    CHECK_EQ(fsdp_model_config_parameters(&config), 0);
    CHECK_CONTAINS(fsdp_last_error(), "n_layers");
    CHECK_NEAR(fsdp_model_config_flops_per_token(&config, 8), 0, 0);
    CHECK_NEAR(fsdp_model_config_mfu_flops_per_token(&config, 8), 0, 0);
}

/* By hand, from the shapes of Llama 3 8B (8.03e9 parameters, 525,336,576 in the table) and GPT-2 (tied). */
TEST(flops_of_mfu_leave_out_tables_that_are_only_looked_up)
{
    fsdp_model_config config = preset("llama-8b");

    CHECK_EQ(fsdp_model_config_parameters(&config), 8030261248);
    CHECK_NEAR(fsdp_model_config_mfu_flops_per_token(&config, 8192),
               6 * (8030261248.0 - 525336576.0) + 12 * 32.0 * 4096 * 8192, 1);
    config = preset("gpt2-124m");
    CHECK_EQ(fsdp_model_config_parameters(&config), 124475904);
    CHECK_NEAR(fsdp_model_config_mfu_flops_per_token(&config, 1024),
               6 * (124475904.0 - 1024 * 768) + 12 * 12.0 * 768 * 1024, 1);
    config.tie_word_embeddings = false; /* the head is one more table, and the embedding counts no more */
    CHECK_NEAR(fsdp_model_config_mfu_flops_per_token(&config, 1024),
               6 * (124475904.0 - 1024 * 768) + 12 * 12.0 * 768 * 1024, 1);
}

#define WRONG(name, field, value, part)                                    \
    do {                                                                   \
        config = preset(name);                                             \
        config.field = (value);                                            \
        CHECK_ERROR(fsdp_model_config_check(&config), FSDP_INVALID, part); \
    } while (0)

TEST(each_wrong_field_is_named)
{
    fsdp_model_config config;

    WRONG("gpt-10m", n_layers, 0, "n_layers is 0");
    WRONG("gpt-10m", n_layers, 1 << 20, "n_layers is 1048576: it must be between 1 and 16384");
    WRONG("gpt-10m", dim, -3, "dim is -3");
    WRONG("gpt-10m", dim, 385, "dim 385 is not a multiple of n_heads 6");
    WRONG("gpt-10m", dim, 768, "head_dim is 64: in GPT-2 it is dim / n_heads = 128");
    WRONG("gpt-10m", n_kv_heads, 3, "n_kv_heads is 3");
    WRONG("gpt-10m", ffn_dim, 0, "ffn_dim is 0");
    WRONG("gpt-10m", vocab_size, (int64_t)1 << 40, "vocab_size is 1099511627776");
    WRONG("gpt-10m", max_seq_len, 0, "max_seq_len is 0");
    WRONG("gpt-10m", norm_eps, 0, "norm_eps is 0");
    WRONG("gpt-10m", norm_eps, NAN, "norm_eps is nan");
    WRONG("gpt-10m", dropout, 1, "dropout is 1");
    WRONG("gpt-10m", embd_dropout, -0.5f, "embd_dropout is -0.5");
    WRONG("gpt-10m", init_std, -1, "init_std is -1");
    WRONG("gpt-10m", architecture, (fsdp_architecture)99, "architecture is 99");
    WRONG("gpt-10m", logits_softcap, 3, "logits_softcap is 3: GPT-2 has none");
    WRONG("gpt-10m", logits_softcap, NAN, "logits_softcap is nan");
    WRONG("gpt-10m", eos_token_count, 65, "eos_token_count is 65: it must be between 0 and 64");
}

TEST(each_wrong_field_of_a_llama_is_named)
{
    fsdp_model_config config;

    WRONG("llama-1m", eos_token_count, -1, "eos_token_count is -1");
    WRONG("llama-1m", n_kv_heads, 3, "n_heads 4 is not a multiple of n_kv_heads 3");
    WRONG("llama-1m", n_kv_heads, 8, "n_kv_heads is 8: it must be between 1 and 4");
    WRONG("llama-1m", head_dim, 33, "head_dim is 33: rotary positions need an even number");
    WRONG("llama-1m", n_heads, 1 << 20, "n_heads * head_dim");
    WRONG("llama-1m", rope_theta, 0, "rope_theta is 0");
    WRONG("llama-1m", rope_type, FSDP_ROPE_LINEAR, "rope_factor is 0");
    WRONG("llama-1m", rope_type, FSDP_ROPE_LONGROPE, "rope_factor is 0");
    WRONG("llama-1m", rope_type, (fsdp_rope_type)6, "rope_type is 6: it must be between 0 and 5");
    WRONG("llama-1m", rotary_fraction, 2, "rotary_fraction is 2 of a head_dim of 32");
    WRONG("llama-1m", rotary_fraction, 0.1f, "rotary_fraction is 0.1 of a head_dim of 32");
    WRONG("llama-1m", window, -1, "window is -1");
    WRONG("llama-1m", query_scalar, -1, "query_scalar is -1");
    WRONG("llama-1m", attention_softcap, NAN, "attention_softcap is nan");
    WRONG("llama-1m", logits_softcap, -1, "logits_softcap is -1");
    WRONG("llama-1m", local_rope_theta, -1, "local_rope_theta is -1");
}

TEST(biases_that_a_family_has_not_are_named)
{
    fsdp_model_config config = preset("llama-1m");

    config.architecture = FSDP_QWEN2;
    CHECK_OK(fsdp_model_config_check(&config));
    config.attention_bias = true;
    CHECK_ERROR(fsdp_model_config_check(&config), FSDP_INVALID, "attention_bias is true: Qwen2 has no such biases");
    config.architecture = FSDP_MISTRAL;
    config.attention_bias = false;
    config.mlp_bias = true;
    CHECK_ERROR(fsdp_model_config_check(&config), FSDP_INVALID, "mlp_bias is true: Mistral has no such biases");
    CHECK_ERROR(fsdp_model_config_check(NULL), FSDP_INVALID, "no model config");
}
#undef WRONG

/* What transformers computes for theta 500000, 16 dimensions, Llama 3.1's scaling of 8, 1, 4, 256. */
TEST(rotary_frequencies_follow_transformers)
{
    static const float plain[] = {1.0f,           0.193922758f,    0.0376060307f,   0.00729266508f,
                                  0.00141421345f, 0.000274248188f, 5.31829573e-05f, 1.03133852e-05f};
    static const float scaled[] = {
        1.0f,           0.193922758f, 0.0105382307f, 0.000911583134f, 0.000176776681f, 3.42810235e-05f, 6.64786967e-06f,
        1.28917316e-06f};
    fsdp_model_config config = preset("llama-1m");
    float got[8];

    config.head_dim = 16;
    fsdp__rope_frequencies(&config, 0, false, got);
    CHECK_CLOSE(got, plain, 8, 1e-6, 0);
    config.rope_type = FSDP_ROPE_LLAMA3;
    config.rope_factor = 8;
    config.rope_low_freq_factor = 1;
    config.rope_high_freq_factor = 4;
    config.rope_original_max_seq_len = 256;
    fsdp__rope_frequencies(&config, 0, false, got);
    CHECK_CLOSE(got, scaled, 8, 1e-6, 0);
    config.rope_type = FSDP_ROPE_LINEAR;
    fsdp__rope_frequencies(&config, 0, false, got);
    for (int i = 0; i < 8; i++)
        CHECK_NEAR(got[i], plain[i] / 8, 1e-6 * plain[i]);
}

TEST(every_value_has_a_name)
{
    CHECK_STRING(fsdp_architecture_name(FSDP_GPT2), "GPT-2");
    CHECK_STRING(fsdp_architecture_name(FSDP_QWEN2), "Qwen2");
    CHECK_STRING(fsdp_architecture_name(FSDP_GEMMA3), "Gemma3");
    CHECK_STRING(fsdp_architecture_name((fsdp_architecture)-1), "unknown");
    CHECK_STRING(fsdp_rope_type_name(FSDP_ROPE_LLAMA3), "llama3");
    CHECK_STRING(fsdp_rope_type_name(FSDP_ROPE_YARN), "yarn");
    CHECK_STRING(fsdp_rope_type_name(FSDP_ROPE_LONGROPE), "longrope");
    CHECK_STRING(fsdp_rope_type_name((fsdp_rope_type)6), "unknown");
}
