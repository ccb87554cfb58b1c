/* config.json: what is read from it, what is written, and what a broken or foreign one is told. */
#include "base/compiler.h"
#include "hub/config_keep.h"
#include "hub/hub.h"
#include "support/test.h"

static fsdp_status parse(const char *text, fsdp_model_config *out)
{
    return fsdp__config_parse("config.json", text, strlen(text), out);
}

#define LLAMA_SIZES                                                                           \
    "\"model_type\":\"llama\",\"vocab_size\":100,\"hidden_size\":32,\"num_hidden_layers\":2," \
    "\"num_attention_heads\":4,\"intermediate_size\":48"
#define LLAMA3                                                                          \
    "{\"rope_type\":\"llama3\",\"type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1," \
    "\"high_freq_factor\":4,\"original_max_position_embeddings\":512}"
#define LLAMA3_REST "\"rope_type\":\"llama3\",\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4"
#define GPT2_SIZES "\"model_type\":\"gpt2\",\"vocab_size\":100,\"n_embd\":32,\"n_layer\":2,\"n_head\":4"

TEST(gpt2_defaults_are_those_of_transformers)
{
    fsdp_model_config config;

    CHECK_OK(parse("{" GPT2_SIZES ",\"n_inner\":null,\"bos_token_id\":7}", &config));
    CHECK_EQ(config.architecture, FSDP_GPT2);
    CHECK_EQ(config.dim, 32);
    CHECK_EQ(config.head_dim, 8);
    CHECK_EQ(config.n_kv_heads, 4);
    CHECK_EQ(config.ffn_dim, 128);
    CHECK_EQ(config.max_seq_len, 1024);
    CHECK(config.norm_eps == 1e-5f);
    CHECK(config.tie_word_embeddings);
    CHECK(config.dropout == 0.1f && config.embd_dropout == 0.1f && config.attention_dropout == 0.1f);
    CHECK(!config.gelu_erf);
    CHECK(config.has_bos_token && config.bos_token == 7 && config.eos_token_count == 0);
    CHECK(!config.has_pad_token && !config.has_unk_token);
    CHECK_OK(parse("{" GPT2_SIZES ",\"n_inner\":50,\"activation_function\":\"gelu\",\"tie_word_embeddings\":false}",
                   &config));
    CHECK_EQ(config.ffn_dim, 50);
    CHECK(config.gelu_erf && !config.tie_word_embeddings);
}

TEST(llama_is_read_in_the_older_and_the_newer_style)
{
    static const char *const styles[] = {
        "{" LLAMA_SIZES ",\"num_key_value_heads\":2,\"rope_theta\":5e5,\"rope_scaling\":{\"rope_type\":\"llama3\","
        "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":512}}",
        "{" LLAMA_SIZES ",\"num_key_value_heads\":2,\"rope_parameters\":{\"rope_theta\":5e5,\"rope_type\":\"llama3\","
        "\"factor\":8,\"low_freq_factor\":1,\"high_freq_factor\":4.0,\"original_max_position_embeddings\":512}}",
        /* both, as files for all versions have it */
        "{" LLAMA_SIZES ",\"num_key_value_heads\":2,\"rope_theta\":5e5,\"rope_parameters\":" LLAMA3
        ",\"rope_scaling\":" LLAMA3 "}",
    };
    fsdp_model_config config;

    for (size_t i = 0; i < sizeof styles / sizeof styles[0]; i++) {
        CHECK_OK(parse(styles[i], &config));
        CHECK_EQ(config.architecture, FSDP_LLAMA);
        CHECK_EQ(config.n_kv_heads, 2);
        CHECK(config.rope_theta == 5e5f && config.rope_type == FSDP_ROPE_LLAMA3 && config.rope_factor == 8);
        CHECK(config.rope_low_freq_factor == 1 && config.rope_high_freq_factor == 4);
        CHECK_EQ(config.rope_original_max_seq_len, 512);
    }
    CHECK_OK(parse("{" LLAMA_SIZES ",\"rope_scaling\":null,\"head_dim\":10,\"eos_token_id\":[5,6],\"mlp_bias\":true}",
                   &config));
    CHECK(config.rope_theta == 1e4f && config.rope_type == FSDP_ROPE_DEFAULT && !config.tie_word_embeddings);
    CHECK(config.mlp_bias && !config.attention_bias);
    CHECK_EQ(config.n_kv_heads, 4);
    CHECK_EQ(config.head_dim, 10);
    CHECK_EQ(config.max_seq_len, 2048);
    CHECK(config.norm_eps == 1e-6f && config.eos_token_count == 2);
    CHECK(config.eos_tokens[0] == 5 && config.eos_tokens[1] == 6);
}

/* The sizes above as those of another Llama, with `rest`. */
static fsdp_status parse_as(const char *model_type, const char *rest, fsdp_model_config *out)
{
    char text[1024];

    snprintf(text, sizeof text, "{\"model_type\":\"%s\"%s%s}", model_type, strchr(LLAMA_SIZES, ','), rest);
    return parse(text, out);
}

TEST(mistral_and_qwen2_are_llamas_with_defaults_of_their_own)
{
    fsdp_model_config config;

    CHECK_OK(parse_as("mistral", ",\"num_key_value_heads\":2,\"sliding_window\":null", &config));
    CHECK_EQ(config.architecture, FSDP_MISTRAL);
    CHECK_EQ(config.max_seq_len, 131072);
    CHECK_EQ(config.n_kv_heads, 2);
    CHECK_OK(parse_as("mistral", ",\"num_key_value_heads\":null,\"max_position_embeddings\":4096", &config));
    CHECK_EQ(config.n_kv_heads, 4);
    CHECK_ERROR(parse_as("mistral", ",\"sliding_window\":null", &config), FSDP_INVALID, "n_kv_heads is 8");
    CHECK_OK(parse_as("qwen2", ",\"num_key_value_heads\":2,\"attention_bias\":true,\"head_dim\":6", &config));
    CHECK_EQ(config.architecture, FSDP_QWEN2);
    CHECK_EQ(config.max_seq_len, 32768);
    CHECK_EQ(config.head_dim, 6);
    CHECK(!config.attention_bias);
    CHECK_ERROR(parse_as("qwen2", "", &config), FSDP_INVALID, "n_kv_heads is 32");
}

/* The sizes above with four key heads and 512 positions, if the rest does not say otherwise. */
static fsdp_status parse_layers(const char *model_type, const char *rest, fsdp_model_config *out)
{
    char text[1024];

    snprintf(text, sizeof text, ",\"num_key_value_heads\":4%s%s",
             strstr(rest, "max_position") ? "" : ",\"max_position_embeddings\":512", rest);
    return parse_as(model_type, text, out);
}

TEST(local_layers_are_found_as_transformers_does)
{
    static const struct {
        const char *model_type, *rest;
        int64_t window;
        uint64_t local; /* of the first six layers */
    } cases[] = {
        {"mistral", ",\"sliding_window\":null", 0, 0},
        {"mistral", ",\"sliding_window\":512", 512, 63},
        {"mistral", "", 4096, 63},
        {"qwen2", "", 0, 0},
        {"qwen2", ",\"use_sliding_window\":true,\"sliding_window\":600", 0, 0}, /* from layer 28 on */
        {"qwen3", ",\"use_sliding_window\":true,\"max_window_layers\":1,\"sliding_window\":600", 600, 62},
        {"qwen2",
         ",\"layer_types\":[\"full_attention\",\"full_attention\"],\"use_sliding_window\":true,"
         "\"max_window_layers\":0,\"sliding_window\":8",
         0, 0},
        {"llama", ",\"layer_types\":[\"full_attention\"],\"sliding_window\":8", 0, 0},
        {"smollm3", ",\"sliding_window\":8", 0, 0},
        {"smollm3", ",\"use_sliding_window\":true,\"sliding_window\":512,\"no_rope_layers\":[1,0]", 512, 2},
        {"phi3", "", 0, 0},
        {"phi3", ",\"sliding_window\":2047", 2047, 63},
        {"gemma2", "", 4096, 21},
        {"gemma3_text", "", 4096, 31},
        {"gemma3_text", ",\"sliding_window\":8", 8, 31},
        {"gemma3_text", ",\"sliding_window_pattern\":2,\"sliding_window\":512", 512, 21},
        {"gemma3_text", ",\"layer_types\":[\"full_attention\",\"sliding_attention\"]", 4096, 2},
    };
    static const char *const bad[][3] = {
        {"qwen2", ",\"layer_types\":[\"full_attention\",\"sliding_attention\"],\"sliding_window\":8",
         "layer_types 'sliding_attention' is not supported: use_sliding_window is not true"},
        {"olmo2", ",\"layer_types\":[\"sliding_attention\"],\"sliding_window\":8",
         "this model_type has no such layers"},
        {"llama", ",\"layer_types\":[\"chunked_attention\"]", "layer type 'chunked_attention' is not supported"},
        {"llama", ",\"layer_types\":[3]", "layer type '(no string)'"},
    };
    fsdp_model_config config;

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        CHECK_OK(parse_layers(cases[i].model_type, cases[i].rest, &config));
        CHECK_EQ(config.window, cases[i].window);
        CHECK_EQ(config.local_layers[0] & 63, cases[i].local);
    }
    for (size_t i = 0; i < FSDP__COUNT_OF(bad); i++)
        CHECK_ERROR(parse_layers(bad[i][0], bad[i][1], &config), FSDP_UNSUPPORTED, bad[i][2]);
    CHECK_ERROR(parse_layers("smollm3", ",\"no_rope_layers\":[1]", &config), FSDP_FORMAT,
                "'no_rope_layers' must be a list with 0 or 1 for each layer");
    CHECK_ERROR(parse_layers("gemma3_text", ",\"sliding_window_pattern\":0", &config), FSDP_FORMAT,
                "'sliding_window_pattern' must be at least 1");
}

TEST(each_family_has_its_defaults)
{
    fsdp_model_config config;

    CHECK_OK(parse_layers("qwen3", ",\"attention_bias\":true", &config));
    CHECK(config.head_dim == 128 && config.attention_bias && config.rope_theta == 1e4f);
    CHECK_OK(parse_layers("olmo2", "", &config));
    CHECK(config.head_dim == 8 && config.norm_eps == 1e-5f);
    CHECK_OK(parse_layers("smollm3", "", &config));
    CHECK(config.tie_word_embeddings && config.rope_theta == 2e6f && config.no_rope_layers[0] == 0x8888888888888888u);
    CHECK_OK(parse_layers("smollm3", ",\"no_rope_layer_interval\":3", &config));
    CHECK_EQ(config.no_rope_layers[0] & 63, 36);
    CHECK_OK(parse_layers("gemma2", "", &config));
    CHECK(config.attention_softcap == 50 && config.logits_softcap == 30 && config.local_rope_theta == 0);
    CHECK_OK(parse_layers("gemma2", ",\"final_logit_softcapping\":null,\"attn_logit_softcapping\":20", &config));
    CHECK(config.attention_softcap == 20 && config.logits_softcap == 0 && config.rope_theta == 1e4f);
    CHECK_OK(parse_layers("phi3", ",\"partial_rotary_factor\":0.75", &config));
    CHECK(config.rotary_fraction == 0.75f);
    CHECK_ERROR(parse_layers("phi3", ",\"partial_rotary_factor\":0.9", &config), FSDP_INVALID,
                "rotary_fraction is 0.9 of a head_dim of 8");
    CHECK_OK(parse_layers("gemma3_text", ",\"rope_scaling\":{\"rope_type\":\"linear\",\"factor\":8}", &config));
    CHECK(config.head_dim == 256 && config.query_scalar == 256 && config.tie_word_embeddings);
    CHECK(config.rope_theta == 1e6f && config.local_rope_theta == 1e4f && config.rope_factor == 8);
    CHECK(config.attention_softcap == 0 && config.logits_softcap == 0);
    CHECK_OK(parse_layers("gemma3_text",
                          ",\"rope_parameters\":{\"full_attention\":{\"rope_theta\":7,\"rope_type\":\"default\"},"
                          "\"sliding_attention\":{\"rope_theta\":5}}",
                          &config));
    CHECK(config.rope_theta == 7 && config.local_rope_theta == 5 && config.rope_type == FSDP_ROPE_DEFAULT);
    CHECK_OK(parse_layers("gemma3_text", ",\"rope_local_base_freq\":5,\"rope_theta\":7", &config));
    CHECK(config.rope_theta == 7 && config.local_rope_theta == 5);
    CHECK_ERROR(parse_layers("gemma3_text",
                             ",\"rope_parameters\":{\"sliding_attention\":{\"rope_type\":\"linear\",\"factor\":2}}",
                             &config),
                FSDP_UNSUPPORTED, "sliding_attention's rope type 'linear'");
    CHECK_ERROR(parse_layers("gemma3_text", ",\"hidden_activation\":\"silu\"", &config), FSDP_UNSUPPORTED,
                "hidden_activation 'silu' is not supported: only gelu_pytorch_tanh is");
    CHECK_ERROR(parse_layers("gemma3_text", ",\"use_bidirectional_attention\":true", &config), FSDP_UNSUPPORTED,
                "use_bidirectional_attention 'true'");
    CHECK_ERROR(parse_layers("phi3", ",\"rope_scaling\":{\"type\":\"yarn\",\"factor\":2}", &config), FSDP_UNSUPPORTED,
                "rope type 'yarn' is not supported: of a phi3 default and longrope are");
}

typedef struct fault {
    const char *text;
    fsdp_status status;
    const char *part;
} fault;

static void check_faults(const fault *cases, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        fsdp_model_config config = {.dim = 99};

        CHECK_ERROR(parse(cases[i].text, &config), cases[i].status, cases[i].part);
        CHECK_EQ(config.dim, 99);
    }
}

TEST(every_fault_of_a_config_is_named)
{
    static const fault cases[] = {
        {"{", FSDP_FORMAT, "'config.json': line 1 column 2"},
        {"3", FSDP_FORMAT, "cannot read 'config.json'"},
        {"{}", FSDP_FORMAT, "key 'model_type' is missing"},
        {"{\"model_type\":3}", FSDP_FORMAT, "key 'model_type' is an integer, not a string"},
        {"{\"model_type\":\"bert\"}", FSDP_UNSUPPORTED,
         "model_type 'bert' is not supported: gpt2, llama, mistral, qwen2, qwen3, olmo2, smollm3, phi3, gemma2 and "
         "gemma3_text are"},
        {"{\"model_type\":\"mixtral\"}", FSDP_UNSUPPORTED, "gemma3_text are, and of a mixture of experts none"},
        {"{\"model_type\":\"gemma3\"}", FSDP_UNSUPPORTED, "its text_config alone, as a gemma3_text"},
        {"{" LLAMA_SIZES ",\"resid_pdrop\":0.1}", FSDP_UNSUPPORTED, "resid_pdrop '0.1' is not supported"},
        {"{\"model_type\":\"gpt2\"}", FSDP_FORMAT, "key 'vocab_size' is missing"},
        {"{" GPT2_SIZES ",\"n_inner\":1.5}", FSDP_FORMAT, "key 'n_inner' is a fraction, not an integer"},
        {"{" GPT2_SIZES ",\"n_inner\":-4}", FSDP_INVALID, "cannot use 'config.json': bad model config: ffn_dim is -4"},
        {"{" GPT2_SIZES ",\"n_layer\":\"3\"}", FSDP_FORMAT, "key 'n_layer' is a string"}, /* given twice */
        {"{" GPT2_SIZES ",\"n_positions\":0}", FSDP_INVALID, "max_seq_len is 0"},
        {"{" GPT2_SIZES ",\"activation_function\":\"relu\"}", FSDP_UNSUPPORTED,
         "activation_function 'relu' is not supported: gelu, gelu_new and other names of the two are"},
        {"{" GPT2_SIZES ",\"scale_attn_weights\":false}", FSDP_UNSUPPORTED, "scale_attn_weights 'false'"},
        {"{" GPT2_SIZES ",\"scale_attn_by_inverse_layer_idx\":true}", FSDP_UNSUPPORTED, "only false is"},
        {"{" GPT2_SIZES ",\"resid_pdrop\":\"no\"}", FSDP_FORMAT, "key 'resid_pdrop' is a string, not a number"},
        {"{" GPT2_SIZES ",\"resid_pdrop\":1e300}", FSDP_FORMAT, "key 'resid_pdrop' is out of range"},
        {"{" GPT2_SIZES ",\"tie_word_embeddings\":1}", FSDP_FORMAT, "is an integer, not true or false"},
        {"{" GPT2_SIZES ",\"bos_token_id\":\"x\"}", FSDP_FORMAT, "key 'bos_token_id' is neither"},
        {"{" GPT2_SIZES ",\"eos_token_id\":[1,null]}", FSDP_FORMAT, "key 'eos_token_id' is neither"},
        {"{" GPT2_SIZES ",\"pad_token_id\":1.5}", FSDP_FORMAT, "key 'pad_token_id' is neither"},
        {"{" GPT2_SIZES ",\"quantization_config\":{}}", FSDP_UNSUPPORTED,
         "quantization_config '(no quant_method)' is not supported: weights must be float32, bfloat16 or float16"},
        {"{" LLAMA_SIZES ",\"hidden_act\":\"gelu\"}", FSDP_UNSUPPORTED,
         "hidden_act 'gelu' is not supported: only silu is"},
        {"{" LLAMA_SIZES ",\"num_key_value_heads\":3}", FSDP_INVALID, "n_heads 4 is not a multiple of n_kv_heads 3"},
        {"{" LLAMA_SIZES ",\"hidden_act\":\"\\u001b[2J\"}", FSDP_UNSUPPORTED, "hidden_act '\\x1b[2J' is not supported"},
    };

    check_faults(cases, sizeof cases / sizeof cases[0]);
}

/* Folders that people have, and that would be other models here: one error each, with the key and its value. */
TEST(configs_of_models_that_are_not_done_name_key_and_value)
{
    static const char *const cases[][3] = {
        {"llama", ",\"quantization_config\":{\"quant_method\":\"gptq\",\"bits\":4}", "quantization_config 'gptq'"},
        {"qwen2", ",\"quantization_config\":{\"quant_method\":\"awq\"}", "quantization_config 'awq'"},
        {"mistral", ",\"quantization_config\":{\"quant_method\":\"bitsandbytes\",\"load_in_4bit\":true}",
         "quantization_config 'bitsandbytes' is not supported: weights must be float32"},
        {"llama", ",\"compression_config\":{\"quant_method\":\"compressed-tensors\"}",
         "compression_config 'compressed-tensors'"},
        {"llama", ",\"quantization\":{\"group_size\":64,\"bits\":4}", "quantization '(no quant_method)'"},
        {"mixtral", ",\"num_local_experts\":8", "model_type 'mixtral' is not supported"},
        {"llama", ",\"num_local_experts\":8",
         "num_local_experts '8' is not supported: of a mixture of experts none is"},
        {"qwen3", ",\"num_experts\":128", "num_experts '128'"},
        {"llama", ",\"n_routed_experts\":64", "n_routed_experts '64'"},
        {"mistral", ",\"attention_bias\":true", "attention_bias 'true' is not supported: a Mistral has no such biases"},
        {"phi3", ",\"attention_bias\":true", "attention_bias 'true' is not supported: a Phi3 has no such biases"},
        {"qwen2", ",\"mlp_bias\":true", "mlp_bias 'true' is not supported: a Qwen2 has no such biases"},
        {"gemma2", ",\"mlp_bias\":true", "mlp_bias 'true'"},
        {"llama", ",\"hidden_act\":\"relu2\"", "hidden_act 'relu2' is not supported: only silu is"},
        {"gemma2", ",\"hidden_activation\":\"gelu\"", "hidden_activation 'gelu'"},
        {"llama", ",\"is_causal\":false", "is_causal 'false' is not supported: only true is"},
        {"gemma3_text", ",\"use_bidirectional_attention\":true", "use_bidirectional_attention 'true'"},
        {"qwen3", ",\"layer_types\":[\"linear_attention\"]", "layer type 'linear_attention'"},
        {"qwen2", ",\"sliding_window\":64,\"use_sliding_window\":false,\"layer_types\":[\"sliding_attention\"]",
         "layer_types 'sliding_attention' is not supported: use_sliding_window is not true"},
        {"qwen2", ",\"rope_scaling\":{\"type\":\"mrope\",\"mrope_section\":[2,1,1]}", "rope type 'mrope'"},
        {"llama", ",\"partial_rotary_factor\":0.5", "partial_rotary_factor '0.5'"},
        {"phi3", ",\"lm_head_bias\":true", "lm_head_bias 'true' is not supported: only false is"},
        {"phi3", ",\"resid_pdrop\":0.1", "resid_pdrop '0.1'"},
        {"phi3", ",\"rope_scaling\":{\"type\":\"linear\",\"factor\":2}", "rope type 'linear'"},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        fsdp_model_config config;

        CHECK_ERROR(parse_layers(cases[i][0], cases[i][1], &config), FSDP_UNSUPPORTED, cases[i][2]);
        CHECK_CONTAINS(fsdp_last_error(), "cannot use 'config.json': ");
    }
    /* What is off, or says what is so anyway, is taken. */
    CHECK_OK(parse_layers("qwen2", ",\"attention_bias\":true,\"mlp_bias\":false,\"num_experts\":0",
                          &(fsdp_model_config){0}));
    CHECK_OK(
        parse_layers("mistral", ",\"attention_bias\":false,\"quantization_config\":null", &(fsdp_model_config){0}));
    CHECK_OK(parse_layers("qwen2", ",\"use_sliding_window\":false,\"sliding_window\":64", &(fsdp_model_config){0}));
}

/* What Python writes and reads: in keys that nobody asks for it may be anything. */
TEST(what_transformers_takes_is_taken)
{
    static const struct {
        const char *text;
        int64_t original;
        bool erf;
    } cases[] = {
        {LLAMA_SIZES
         ",\"x\":{\"a\":NaN,\"b\":-Infinity,\"n\":123456789012345678901234567890,\"s\":\"a\\u0000 \\ud83d\"}",
         0, false},
        {LLAMA_SIZES ",\"hidden_act\":\"swish\",\"torch_dtype\":null,\"dtype\":\"auto\",\"rope_scaling\":{}", 0, false},
        {LLAMA_SIZES ",\"max_position_embeddings\":512.0,\"rms_norm_eps\":1,\"rope_theta\":10000", 0, false},
        {LLAMA_SIZES ",\"rope_scaling\":{" LLAMA3_REST "},\"original_max_position_embeddings\":64", 64, false},
        {LLAMA_SIZES ",\"rope_parameters\":{" LLAMA3_REST
                     ",\"rope_theta\":5e5},\"original_max_position_embeddings\":64.0",
         64, false},
        {LLAMA_SIZES ",\"rope_scaling\":{" LLAMA3_REST ",\"original_max_position_embeddings\":64},"
                     "\"original_max_position_embeddings\":64",
         64, false},
        {LLAMA_SIZES ",\"max_position_embeddings\":512,\"rope_scaling\":{" LLAMA3_REST "}", 512, false},
        {LLAMA_SIZES ",\"original_max_position_embeddings\":64", 0, false}, /* there is nothing that it is of */
        {GPT2_SIZES ",\"activation_function\":\"gelu_python\"", 0, true},
        {GPT2_SIZES ",\"activation_function\":\"gelu_fast\"", 0, false},
        {GPT2_SIZES ",\"activation_function\":\"gelu_accurate\"", 0, false},
        {GPT2_SIZES ",\"activation_function\":\"gelu_python_tanh\",\"n_inner\":null", 0, false},
    };
    char text[1000];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        fsdp_model_config config;

        snprintf(text, sizeof text, "{%s}", cases[i].text);
        CHECK_OK(parse(text, &config));
        CHECK_EQ(config.rope_original_max_seq_len, cases[i].original);
        CHECK_EQ(config.gelu_erf, cases[i].erf);
        CHECK_EQ(config.max_seq_len, strstr(text, "512") ? 512 : config.architecture == FSDP_GPT2 ? 1024 : 2048);
    }
}

TEST(a_folder_without_config_is_named)
{
    char *folder = test_directory();
    fsdp_model_config config;

    CHECK_ERROR(fsdp_hub_read_config("/nowhere", &config), FSDP_NOT_FOUND, "there is no '/nowhere'");
    CHECK(!strstr(fsdp_last_error(), "hub"));
    CHECK_ERROR(fsdp_hub_read_config("no-such-gpt2", &config), FSDP_NOT_FOUND,
                "there is no 'no-such-gpt2'; if it is a model of the Hugging Face hub, download it first (hf download "
                "no-such-gpt2 --local-dir no-such-gpt2)");
    CHECK_ERROR(fsdp_hub_read_config("no-such-owner/model", &config), FSDP_NOT_FOUND,
                "hf download no-such-owner/model --local-dir model");
    CHECK_ERROR(fsdp_hub_read_config("a/b/c", &config), FSDP_NOT_FOUND, "there is no 'a/b/c'");
    CHECK(!strstr(fsdp_last_error(), "hub"));
    CHECK_ERROR(fsdp_hub_read_config(NULL, &config), FSDP_INVALID, "required");
    CHECK_ERROR(fsdp_hub_read_config(folder, &config), FSDP_NOT_FOUND, "which says what model it holds");
    test_write_text(folder, "step-7", "");
    CHECK_ERROR(fsdp_hub_read_config(folder, &config), FSDP_NOT_FOUND,
                "which says what model it holds: it has checkpoints of a run: checkpoint.initial_load_path takes");
    test_directory_free(folder);
}

static void check_written(const fsdp_model_config *config)
{
    fsdp_model_config back;
    char *text = NULL;

    CHECK_OK(fsdp__config_text(config, FSDP_BF16, &text));
    CHECK_CONTAINS(text, "\"dtype\": \"bfloat16\"");
    CHECK_OK(parse(text, &back));
    /* GPT-2 has no rotary positions; the padding of both is zero. */
    CHECK_EQ(back.rope_theta == config->rope_theta, true);
    CHECK_EQ(back.architecture, config->architecture);
    CHECK_EQ(back.n_layers, config->n_layers);
    CHECK_EQ(back.head_dim, config->head_dim);
    CHECK_EQ(back.ffn_dim, config->ffn_dim);
    CHECK_EQ(back.max_seq_len, config->max_seq_len);
    CHECK_EQ(back.rope_type, config->rope_type);
    CHECK(back.rope_factor == config->rope_factor && back.rope_high_freq_factor == config->rope_high_freq_factor);
    CHECK(back.dropout == config->dropout && back.embd_dropout == config->embd_dropout);
    CHECK(back.attention_dropout == config->attention_dropout && back.norm_eps == config->norm_eps);
    CHECK_EQ(back.gelu_erf, config->gelu_erf);
    CHECK_EQ(back.tie_word_embeddings, config->tie_word_embeddings);
    CHECK_EQ(back.attention_bias, config->attention_bias);
    CHECK_EQ(back.mlp_bias, config->mlp_bias);
    CHECK_EQ(back.has_bos_token, config->has_bos_token);
    CHECK_EQ(back.bos_token, config->bos_token);
    CHECK_EQ(back.has_pad_token, config->has_pad_token);
    CHECK_EQ(back.pad_token, config->pad_token);
    CHECK_EQ(back.has_unk_token, config->has_unk_token);
    CHECK_EQ(back.unk_token, config->unk_token);
    CHECK_EQ(back.eos_token_count, config->eos_token_count);
    CHECK_BYTES(back.eos_tokens, config->eos_tokens, sizeof back.eos_tokens);
    CHECK_EQ(fsdp_model_config_parameters(&back), fsdp_model_config_parameters(config));
    CHECK_EQ(back.window, config->window);
    for (int64_t i = 0; i < config->n_layers; i++) {
        CHECK_EQ(fsdp_model_layer_is_local(&back, i), fsdp_model_layer_is_local(config, i));
        CHECK_EQ(fsdp_model_layer_has_rope(&back, i), fsdp_model_layer_has_rope(config, i));
    }
    CHECK(back.local_rope_theta == config->local_rope_theta && back.query_scalar == config->query_scalar);
    CHECK(back.attention_softcap == config->attention_softcap && back.logits_softcap == config->logits_softcap);
    CHECK(back.rope_attention_factor == config->rope_attention_factor && back.rope_mscale == config->rope_mscale);
    CHECK(back.rope_beta_fast == config->rope_beta_fast && back.rope_keep_ramp == config->rope_keep_ramp);
    CHECK_EQ(back.rope_original_max_seq_len, config->rope_original_max_seq_len);
    CHECK(back.rotary_fraction == config->rotary_fraction);
    CHECK_BYTES(back.rope_short_factors, config->rope_short_factors, sizeof back.rope_short_factors);
    CHECK_BYTES(back.rope_long_factors, config->rope_long_factors, sizeof back.rope_long_factors);
    free(text);
}

/* A config of each family, with what it may have. */
static int add_families(fsdp_model_config *configs)
{
    int count = 0;

    for (int architecture = FSDP_QWEN3; architecture <= FSDP_GEMMA3; architecture++) {
        fsdp_model_config *config = &configs[count++];

        CHECK_OK(fsdp_model_preset("llama-1m", config));
        config->architecture = (fsdp_architecture)architecture;
        config->head_dim = 48;
        if (architecture == FSDP_SMOLLM3)
            config->no_rope_layers[0] = 6;
        if (architecture == FSDP_QWEN3 || architecture == FSDP_PHI3 || architecture == FSDP_GEMMA3) {
            config->window = 17;
            config->local_layers[0] = architecture == FSDP_PHI3 ? 15 : 10;
        }
        if (architecture == FSDP_PHI3) {
            config->rotary_fraction = 0.75f;
            config->rope_type = FSDP_ROPE_LONGROPE;
            config->rope_factor = 32;
            config->rope_original_max_seq_len = 99;
            for (int i = 0; i < 18; i++) {
                config->rope_short_factors[i] = 1 + 0.1f * (float)i;
                config->rope_long_factors[i] = 1.0799999f * (float)(i + 1);
            }
        }
        if (architecture >= FSDP_GEMMA2)
            config->query_scalar = architecture == FSDP_GEMMA2 ? 144 : 7.5f;
        if (architecture == FSDP_GEMMA2) {
            config->attention_softcap = 50;
            config->logits_softcap = 30.5f;
        }
        if (architecture == FSDP_GEMMA3)
            config->local_rope_theta = 300;
    }
    configs[0].rope_type = configs[1].rope_type = FSDP_ROPE_YARN;
    configs[0].rope_factor = configs[1].rope_factor = 2.5f;
    configs[0].rope_beta_fast = configs[1].rope_beta_fast = 16;
    configs[0].rope_beta_slow = configs[1].rope_beta_slow = 2;
    configs[0].rope_original_max_seq_len = configs[1].rope_original_max_seq_len = 99;
    configs[1].rope_attention_factor = 1.25f;
    configs[1].rope_mscale = configs[1].rope_mscale_all_dim = 0.75f;
    configs[1].rope_keep_ramp = true;
    configs[2].rope_type = FSDP_ROPE_DYNAMIC;
    configs[2].rope_factor = 2;
    return count;
}

TEST(what_is_written_reads_back_the_same)
{
    fsdp_model_config configs[20] = {0};
    int count = 0;

    for (const char *const *name = fsdp_model_preset_names(); *name; name++)
        CHECK_OK(fsdp_model_preset(*name, &configs[count++]));
    configs[count] = configs[2]; /* a llama with everything on */
    configs[count].attention_bias = configs[count].mlp_bias = true;
    configs[count].rope_type = FSDP_ROPE_LLAMA3;
    configs[count].rope_factor = 32.5f;
    configs[count].rope_low_freq_factor = 1;
    configs[count].rope_high_freq_factor = 4.1f;
    configs[count].rope_original_max_seq_len = 8192;
    configs[count].eos_token_count = FSDP_MODEL_MAX_EOS_TOKENS;
    for (int i = 0; i < FSDP_MODEL_MAX_EOS_TOKENS; i++)
        configs[count].eos_tokens[i] = 3 + i;
    configs[count].has_pad_token = configs[count].has_unk_token = true;
    configs[count].pad_token = -1; /* of the first Llamas */
    configs[count].unk_token = 2;
    configs[count].attention_dropout = 0.3f;
    configs[count++].tie_word_embeddings = true;
    configs[count] = configs[0]; /* a GPT-2 with everything on */
    configs[count].gelu_erf = configs[count].tie_word_embeddings = configs[count].has_bos_token = true;
    configs[count].dropout = 0.123456789f;
    configs[count].embd_dropout = 1.0f / 3;
    configs[count].eos_token_count = 1;
    configs[count].eos_tokens[0] = 9;
    configs[count++].norm_eps = 1.1754944e-38f;
    configs[count] = configs[2];
    configs[count].rope_type = FSDP_ROPE_LINEAR;
    configs[count].rope_factor = 2.5f;
    configs[count++].architecture = FSDP_MISTRAL;
    configs[count] = configs[3];
    configs[count++].architecture = FSDP_QWEN2;
    count += add_families(&configs[count]);
    for (int i = 0; i < count; i++)
        check_written(&configs[i]);
}

/* ---- of a model that came from a folder ---- */

/* What becomes of a text, of which the dtype changes and the positions are as many as are said. free() it. */
static char *change(const char *text, int64_t max_seq_len)
{
    fsdp_model_config config;
    char *changed = NULL;

    CHECK_OK(parse(text, &config));
    config.max_seq_len = max_seq_len ? max_seq_len : config.max_seq_len;
    CHECK_OK(fsdp__config_change("config.json", text, strlen(text), &config, FSDP_BF16, &changed));
    return changed;
}

static void check_changed(const char *text, int64_t max_seq_len, const char *expected)
{
    char *changed = change(text, max_seq_len);

    CHECK_STRING(changed, expected);
    free(changed);
}

#define OTHERS \
    "\"auto_map\": {\"AutoModel\": \"m.M\"},\n  \"x\": [NaN, 123456789012345678901234567890, \"\\ud83d\\u0000\"]"
#define CLASS "\"architectures\": [\"LlamaForCausalLM\"]"

TEST(what_is_somebody_else_s_in_a_config_stays_as_it_was_written)
{
    check_changed("{\"torch_dtype\": \"float32\", " LLAMA_SIZES ", " OTHERS ",\n  " CLASS "}\n", 0,
                  "{\"torch_dtype\": \"bfloat16\", " LLAMA_SIZES ", " OTHERS ",\n  " CLASS "}\n");
    /* Both names of the dtype where both are there, and where none is. */
    check_changed("{" CLASS ", " LLAMA_SIZES ", \"dtype\":null,\"torch_dtype\" : \"float16\" }", 0,
                  "{" CLASS ", " LLAMA_SIZES ", \"dtype\":\"bfloat16\",\"torch_dtype\" : \"bfloat16\" }");
    check_changed("{" CLASS ", " LLAMA_SIZES "\n}", 0,
                  "{" CLASS ", " LLAMA_SIZES ",\n  \"dtype\": \"bfloat16\",\n  \"torch_dtype\": \"bfloat16\"\n}");
    /* What has changed, in its place, or at the end. */
    check_changed("{" CLASS ", \"max_position_embeddings\": 512.0, " LLAMA_SIZES ", \"dtype\": \"auto\"}", 64,
                  "{" CLASS ", \"max_position_embeddings\": 64, " LLAMA_SIZES ", \"dtype\": \"bfloat16\"}");
    check_changed("{" CLASS ", " LLAMA_SIZES ", \"dtype\": \"auto\"}", 64,
                  "{" CLASS ", " LLAMA_SIZES ", \"dtype\": \"bfloat16\",\n  \"max_position_embeddings\": 64}");
    /* The class of a body alone would leave out the head; a maker's own has one. */
    check_changed("\xef\xbb\xbf{\"architectures\": [\"LlamaModel\"], " LLAMA_SIZES ", \"dtype\": \"auto\"}", 0,
                  "{\"architectures\": [\"LlamaForCausalLM\"], " LLAMA_SIZES ", \"dtype\": \"bfloat16\"}");
    check_changed("{\"architectures\": [\"OurForCausalLM\"], " LLAMA_SIZES ", \"dtype\": \"auto\"}", 0,
                  "{\"architectures\": [\"OurForCausalLM\"], " LLAMA_SIZES ", \"dtype\": \"bfloat16\"}");
}

/* What stays would say something else of the model as it is now: then nothing stays. */
TEST(what_does_not_fit_a_config_any_more_is_refused)
{
    static const char text[] = "{\"model_type\":\"mistral\",\"vocab_size\":100,\"hidden_size\":32,"
                               "\"num_hidden_layers\":2,\"num_attention_heads\":4,\"intermediate_size\":48,"
                               "\"num_key_value_heads\":4,\"max_position_embeddings\":32,\"sliding_window\":32}";
    fsdp_model_config config;
    char *changed = NULL;

    CHECK_OK(parse(text, &config));
    config.architecture = FSDP_LLAMA;
    CHECK_ERROR(fsdp__config_change("config.json", text, strlen(text), &config, FSDP_F32, &changed), FSDP_UNSUPPORTED,
                "'config.json' belongs to another kind of model");
    CHECK_ERROR(fsdp__config_change("config.json", "{", 1, &config, FSDP_F32, &changed), FSDP_FORMAT, "line 1");
    config.architecture = FSDP_MISTRAL;
    config.max_seq_len = 32;
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        CHECK_FAULT(FSDP__FAULT_ALLOCATION,
                    fsdp__config_change("config.json", text, strlen(text), &config, FSDP_F32, &changed));
        free(changed);
    }
}
