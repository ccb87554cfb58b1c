/* The models as modules: tree, names, shapes, randomness, errors. Their values are held to PyTorch's in tests/hub.
 */
#include "fsdp/models.h"
#include "support/models.h"
#include "support/test.h"

static fsdp_model_config tiny(fsdp_architecture architecture, bool tied)
{
    return MODEL_CONFIG(.architecture = architecture, .n_layers = 2, .dim = 12, .n_heads = 3,
                        .n_kv_heads = architecture == FSDP_GPT2 ? 3 : 1, .head_dim = 4, .ffn_dim = 20, .vocab_size = 17,
                        .max_seq_len = 9, .rope_theta = 10000, .init_std = 0.02f, .tie_word_embeddings = tied);
}

/* But for the kernels' workspace, which streams keep. */
static int64_t live_bytes(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    return (int64_t)(stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE]);
}

static fsdp_module *create(fsdp_context *context, const fsdp_model_config *config)
{
    return CHECK_PTR(fsdp_model_create(context, test_device(context), config));
}

static void check_printed(fsdp_architecture architecture, const char *expected)
{
    fsdp_context *context = test_context();
    fsdp_model_config config = tiny(architecture, false);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    FILE *stream = test_begin_text();

    CHECK_OK(fsdp_module_print(model, stream));
    CHECK_CONTAINS(test_end_text(stream), expected);
    fsdp_module_unref(model);
    CHECK_EQ(live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(the_tree_prints_as_transformers_prints_it)
{
    check_printed(FSDP_GPT2, "GPT2LMHeadModel(\n"
                             "  (transformer): GPT2Model(\n"
                             "    (wte): Embedding(17, 12)\n"
                             "    (wpe): Embedding(9, 12)\n"
                             "    (drop): Dropout(p=0.0, inplace=False)\n"
                             "    (h): ModuleList(\n"
                             "      (0-1): 2 x GPT2Block(\n"
                             "        (ln_1): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                             "        (attn): GPT2Attention(\n"
                             "          (c_attn): Conv1D(nf=36, nx=12)\n"
                             "          (c_proj): Conv1D(nf=12, nx=12)\n"
                             "          (attn_dropout): Dropout(p=0.0, inplace=False)\n"
                             "          (resid_dropout): Dropout(p=0.0, inplace=False)\n"
                             "        )\n"
                             "        (ln_2): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                             "        (mlp): GPT2MLP(\n"
                             "          (c_fc): Conv1D(nf=20, nx=12)\n"
                             "          (c_proj): Conv1D(nf=12, nx=20)\n");
    check_printed(FSDP_GPT2, "    (ln_f): LayerNorm((12,), eps=1e-05, elementwise_affine=True, bias=True)\n"
                             "  )\n"
                             "  (lm_head): Linear(in_features=12, out_features=17, bias=False)\n"
                             ")");
    check_printed(FSDP_LLAMA, "LlamaForCausalLM(\n"
                              "  (model): LlamaModel(\n"
                              "    (embed_tokens): Embedding(17, 12)\n"
                              "    (layers): ModuleList(\n"
                              "      (0-1): 2 x LlamaDecoderLayer(\n"
                              "        (self_attn): LlamaAttention(\n"
                              "          (q_proj): Linear(in_features=12, out_features=12, bias=False)\n"
                              "          (k_proj): Linear(in_features=12, out_features=4, bias=False)\n"
                              "          (v_proj): Linear(in_features=12, out_features=4, bias=False)\n"
                              "          (o_proj): Linear(in_features=12, out_features=12, bias=False)\n"
                              "        )\n"
                              "        (mlp): LlamaMLP(\n"
                              "          (gate_proj): Linear(in_features=12, out_features=20, bias=False)\n"
                              "          (up_proj): Linear(in_features=12, out_features=20, bias=False)\n"
                              "          (down_proj): Linear(in_features=20, out_features=12, bias=False)\n");
    check_printed(FSDP_LLAMA, "    (rotary_emb): LlamaRotaryEmbedding()\n"
                              "  )\n"
                              "  (lm_head): Linear(in_features=12, out_features=17, bias=False)\n"
                              ")");
}

TEST(a_llama_by_another_name_prints_as_what_it_is)
{
    check_printed(FSDP_QWEN2, "Qwen2ForCausalLM(\n  (model): Qwen2Model(\n");
    check_printed(FSDP_QWEN2, "      (0-1): 2 x Qwen2DecoderLayer(\n"
                              "        (self_attn): Qwen2Attention(\n"
                              "          (q_proj): Linear(in_features=12, out_features=12, bias=True)\n"
                              "          (k_proj): Linear(in_features=12, out_features=4, bias=True)\n"
                              "          (v_proj): Linear(in_features=12, out_features=4, bias=True)\n"
                              "          (o_proj): Linear(in_features=12, out_features=12, bias=False)\n"
                              "        )\n"
                              "        (mlp): Qwen2MLP(\n");
    check_printed(FSDP_MISTRAL, "        (self_attn): MistralAttention(\n"
                                "          (q_proj): Linear(in_features=12, out_features=12, bias=False)\n");
    check_printed(FSDP_MISTRAL, "    (rotary_emb): MistralRotaryEmbedding()\n");
}

CONTEXT_TEST(a_tied_head_is_the_embedding)
{
    fsdp_model_config config = tiny(FSDP_LLAMA, true);
    fsdp_module *model = create(context, &config);
    fsdp_parameters parameters = {0};

    CHECK(fsdp_module_parameter(model, "lm_head.weight") == fsdp_module_parameter(model, "model.embed_tokens.weight"));
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_STRING(parameters.items[0].name, "model.embed_tokens.weight");
    for (int64_t i = 0; i < parameters.count; i++)
        CHECK(strcmp(parameters.items[i].name, "lm_head.weight") != 0);
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(model);
    CHECK_EQ(live_bytes(context), 0);
}

static fsdp_tensor *some_tokens(fsdp_context *context, int64_t B, int64_t T, int first)
{
    int32_t ids[64];

    for (int64_t i = 0; i < B * T; i++)
        ids[i] = (int32_t)((first + 5 * i) % 17);
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(B, T), ids));
}

TEST(the_loss_is_the_cross_entropy_of_the_logits)
{
    for (int variant = 0; variant < 4; variant++) {
        fsdp_context *context = test_context();
        fsdp_model_config config = tiny(variant % 2 ? FSDP_GPT2 : FSDP_LLAMA, variant / 2);
        fsdp_module *model = create(context, &config);
        fsdp_tensor *tokens, *targets, *logits;
        double direct = 0, fused = 1;

        CHECK_OK(fsdp_module_initialize(model, 3));
        CHECK_OK(fsdp_scope_begin(context));
        tokens = some_tokens(context, 2, 7, 1);
        targets = some_tokens(context, 2, 7, 4);
        logits = CHECK_PTR(fsdp_call(model, tokens));
        CHECK_EQ(fsdp_tensor_ndim(logits), 3);
        CHECK_EQ(fsdp_tensor_size(logits, 1), 7);
        CHECK_EQ(fsdp_tensor_size(logits, 2), 17);
        CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_cross_entropy(logits, targets)), &direct));
        CHECK_OK(fsdp_tensor_item(CHECK_PTR(fsdp_call(model, tokens, targets)), &fused));
        CHECK_NEAR(fused, direct, 1e-5);
        fsdp_scope_end(context, NULL);
        fsdp_module_unref(model);
        CHECK_EQ(live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

CONTEXT_TEST(last_logits_only_are_the_last_of_all)
{
    fsdp_model_config config = tiny(FSDP_LLAMA, false);
    fsdp_module *model = create(context, &config);
    fsdp_tensor *tokens, *all, *last;
    float some[2 * 5 * 17], few[2 * 17];

    CHECK_OK(fsdp_module_initialize(model, 3));
    CHECK_OK(fsdp_scope_begin(context));
    tokens = some_tokens(context, 2, 5, 1);
    all = CHECK_PTR(fsdp_call(model, tokens));
    CHECK_OK(fsdp_model_set_last_logits_only(model, true));
    last = CHECK_PTR(fsdp_call(model, tokens));
    CHECK_EQ(fsdp_tensor_size(last, 1), 1);
    CHECK_OK(fsdp_tensor_read(all, FSDP_F32, some));
    CHECK_OK(fsdp_tensor_read(last, FSDP_F32, few));
    CHECK_CLOSE(few, some + 4 * 17, 17, 1e-5, 1e-6);
    CHECK_CLOSE(few + 17, some + 9 * 17, 17, 1e-5, 1e-6);
    CHECK_NULL(fsdp_call(model, CHECK_PTR(fsdp_zeros(test_device(context), FSDP_I32, FSDP_SHAPE(2, 0)))));
    CHECK_CONTAINS(fsdp_last_error(), "there is no last position of rows without tokens");
    fsdp_scope_end(context, NULL);
    CHECK_ERROR(fsdp_model_set_last_logits_only(fsdp_model_block(model, 0), true), FSDP_INVALID, "not a model");
    fsdp_module_unref(model);
}

TEST(every_parameter_gets_a_gradient)
{
    for (int variant = 0; variant < 8; variant++) {
        fsdp_context *context = test_context();
        fsdp_model_config config = tiny((fsdp_architecture)(variant / 2), variant % 2);
        fsdp_parameters parameters = {0};
        fsdp_module *model;

        config.attention_bias = config.mlp_bias = config.architecture <= FSDP_LLAMA;
        model = create(context, &config);
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(
            fsdp_backward(CHECK_PTR(fsdp_call(model, some_tokens(context, 1, 9, 1), some_tokens(context, 1, 9, 2)))));
        fsdp_scope_end(context, NULL);
        CHECK_OK(fsdp_module_parameters(model, &parameters));
        for (int64_t i = 0; i < parameters.count; i++)
            if (!fsdp_tensor_grad(parameters.items[i].tensor))
                TEST_FAIL("'%s' has no gradient", parameters.items[i].name);
        fsdp_parameters_release(&parameters);
        fsdp_module_unref(model);
        CHECK_EQ(live_bytes(context), 0);
        fsdp_context_free(context);
    }
}

CONTEXT_TEST(dropout_acts_only_in_training)
{
    fsdp_model_config config = tiny(FSDP_GPT2, false);
    float first[17 * 4], second[17 * 4];
    fsdp_tensor *tokens;
    fsdp_module *model;

    config.dropout = config.embd_dropout = 0.5f;
    model = create(context, &config);
    CHECK_OK(fsdp_module_initialize(model, 3));
    CHECK_OK(fsdp_scope_begin(context));
    tokens = some_tokens(context, 1, 4, 1);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens)), FSDP_F32, first));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens)), FSDP_F32, second));
    CHECK(memcmp(first, second, sizeof first) != 0);
    fsdp_module_train(model, false);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens)), FSDP_F32, first));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens)), FSDP_F32, second));
    CHECK_BYTES(first, second, sizeof first);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
}

CONTEXT_TEST(attention_dropout_can_be_run_but_not_trained)
{
    fsdp_model_config config = tiny(FSDP_GPT2, false);
    fsdp_module *model;

    config.attention_dropout = 0.1f;
    model = create(context, &config);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_call(model, some_tokens(context, 1, 4, 1)));
    CHECK_CONTAINS(fsdp_last_error(), "cannot train with attention dropout 0.1: set attn_pdrop to 0");
    fsdp_module_train(model, false);
    CHECK_PTR(fsdp_call(model, some_tokens(context, 1, 4, 1)));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
}

CONTEXT_TEST(wrong_calls_say_what_is_wrong)
{
    fsdp_model_config config = tiny(FSDP_GPT2, false);
    fsdp_module *model = create(context, &config);
    fsdp_tensor *tokens;

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_call(model, some_tokens(context, 1, 10, 1)));
    CHECK_CONTAINS(fsdp_last_error(), "sequence of 10 tokens is longer than the model's 9 positions");
    CHECK_NULL(fsdp_call(model, CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4)))));
    CHECK_CONTAINS(fsdp_last_error(), "takes tokens as int32 (B,T)");
    tokens = some_tokens(context, 1, 4, 1);
    CHECK_NULL(fsdp_call(model, tokens, tokens, tokens, tokens));
    CHECK_CONTAINS(fsdp_last_error(), "not 4 inputs");
    fsdp_scope_end(context, NULL);
    CHECK_NULL(fsdp_model_block(model, 2));
    CHECK_CONTAINS(fsdp_last_error(), "no block 2: the model has 2");
    CHECK_EQ(fsdp_model_block_count(fsdp_model_block(model, 0)), 0);
    CHECK_NULL(fsdp_model_get_config(fsdp_model_block(model, 0)));
    fsdp_module_unref(model);
    config.dim = 13;
    CHECK_NULL(fsdp_model_create(context, test_device(context), &config));
    CHECK_CONTAINS(fsdp_last_error(), "dim 13 is not a multiple of n_heads 3");
}

CONTEXT_TEST(residual_projections_start_smaller)
{
    fsdp_model_config config = tiny(FSDP_GPT2, false);
    static float values[48 * 64];
    fsdp_module *model;
    double first = 0, second = 0;

    config.dim = 48;
    config.ffn_dim = 64;
    config.head_dim = 16;
    config.n_layers = 8;
    model = create(context, &config);
    CHECK_OK(fsdp_module_initialize(model, 5));
    CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(model, "transformer.h.3.mlp.c_fc.weight"), FSDP_F32, values));
    for (int i = 0; i < 48 * 64; i++)
        first += values[i] * values[i];
    CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(model, "transformer.h.3.mlp.c_proj.weight"), FSDP_F32, values));
    for (int i = 0; i < 48 * 64; i++)
        second += values[i] * values[i];
    CHECK_NEAR(first / (48 * 64), 0.02 * 0.02, 0.02 * 0.02 * 0.1);
    CHECK_NEAR(second / first, 1.0 / 16, 1.0 / 160); /* 1 / (2 n_layers) */
    fsdp_module_unref(model);
}

TEST(a_failed_allocation_leaves_nothing)
{
    for (int architecture = 0; architecture < 2; architecture++) {
        fsdp_context *context = test_context();
        fsdp_model_config config = tiny(architecture ? FSDP_LLAMA : FSDP_GPT2, true);
        fsdp_device *device = test_device(context);

        config.n_layers = 1;
        for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
            fsdp_module *model = fsdp_model_create(context, device, &config);

            CHECK_FAULT(FSDP__FAULT_ALLOCATION, model ? FSDP_OK : fsdp_last_status());
            fsdp_module_unref(model);
            CHECK_EQ(live_bytes(context), 0);
        }
        fsdp_context_free(context);
    }
}
