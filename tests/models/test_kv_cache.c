/* A cache of keys and values: logits as those of all tokens, however these are cut; on one rank and sharded; what is
 * refused, and that a failure leaves the cache as it was. Links: shard */
#include "fsdp/models.h"
#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    VOCAB = 17,
    LENGTH = 9
};

static const int32_t text[2 * LENGTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 16, 0, 7, 7, 11, 2, 0, 13, 8};

typedef struct variant {
    const char *name;
    fsdp_architecture architecture;
    int64_t kv_heads;
    bool tied, bias;
} variant;

static const variant variants[] = {
    {"gpt2", FSDP_GPT2, 4, true, true},
    {"gpt2, untied", FSDP_GPT2, 4, false, true},
    {"llama", FSDP_LLAMA, 4, false, false},
    {"llama, tied, grouped", FSDP_LLAMA, 2, true, false},
    {"llama, one key head, biases", FSDP_LLAMA, 1, false, true},
    {"mistral, local", FSDP_MISTRAL, 2, false, false},
    {"qwen3", FSDP_QWEN3, 2, false, false},
    {"olmo2", FSDP_OLMO2, 2, false, false},
    {"smollm3", FSDP_SMOLLM3, 2, true, false},
    {"phi3", FSDP_PHI3, 2, false, false},
    {"gemma2", FSDP_GEMMA2, 2, true, false},
    {"gemma3", FSDP_GEMMA3, 2, true, false},
};

/* Gives a family what it may have: local layers, layers without positions, soft caps. */
static void complete(fsdp_model_config *config)
{
    if (config->architecture == FSDP_MISTRAL || config->architecture >= FSDP_PHI3) {
        config->window = 3;
        config->local_layers[0] = config->architecture >= FSDP_GEMMA2 ? 1 : 3;
    }
    if (config->architecture == FSDP_SMOLLM3)
        config->no_rope_layers[0] = 2;
    if (config->architecture == FSDP_PHI3)
        config->rotary_fraction = 0.5f;
    if (config->architecture == FSDP_GEMMA2) {
        config->query_scalar = 5;
        config->attention_softcap = 2;
        config->logits_softcap = 3;
    }
    if (config->architecture == FSDP_GEMMA3)
        config->local_rope_theta = 20;
}

static fsdp_module *create(fsdp_context *context, const variant *v, fsdp_dtype dtype)
{
    fsdp_model_config config =
        MODEL_CONFIG(.architecture = v->architecture, .n_layers = 2, .dim = 16, .n_heads = 4, .n_kv_heads = v->kv_heads,
                     .head_dim = 4, .ffn_dim = 20, .vocab_size = VOCAB, .max_seq_len = LENGTH, .rope_theta = 100,
                     .init_std = 0.3f, .tie_word_embeddings = v->tied, .attention_bias = v->bias, .mlp_bias = v->bias);
    fsdp_module *model;

    complete(&config);
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_module_initialize(model, 5));
    CHECK_OK(fsdp_module_to(model, dtype));
    fsdp_module_train(model, false);
    return model;
}

/* Of columns [first, first + count) of the text, `batch` rows of it. */
static fsdp_tensor *tokens(fsdp_context *context, int64_t batch, int64_t first, int64_t count)
{
    int32_t data[2 * LENGTH];

    for (int64_t b = 0; b < batch; b++)
        memcpy(data + b * count, text + b * LENGTH + first, (size_t)count * sizeof *data);
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(batch, count), data));
}

/* (batch, LENGTH, VOCAB), by one call without a cache. */
static void all_logits(fsdp_context *context, fsdp_module *model, int64_t batch, float *out)
{
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, tokens(context, batch, 0, LENGTH))), FSDP_F32, out));
    fsdp_scope_end(context, NULL);
}

/* Calls with the next `count` columns, and holds their logits to those of all. */
static void check_next(fsdp_context *context, fsdp_module *model, fsdp_kv_cache *cache, int64_t batch, int64_t count,
                       const float *all, float tolerance)
{
    int64_t first = fsdp_kv_cache_length(cache);
    float logits[2 * LENGTH * VOCAB];

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_model_call_cached(model, cache, tokens(context, batch, first, count))),
                              FSDP_F32, logits));
    fsdp_scope_end(context, NULL);
    for (int64_t b = 0; b < batch; b++)
        CHECK_CLOSE(logits + b * count * VOCAB, all + (b * LENGTH + first) * VOCAB, count * VOCAB, tolerance,
                    tolerance);
    CHECK_EQ(fsdp_kv_cache_length(cache), first + count);
}

/* Every prompt length, then one token at a time; then pieces of 1, 2, ... tokens. */
static void check_cuts(fsdp_context *context, fsdp_module *model, int64_t batch, float tolerance)
{
    float all[2 * LENGTH * VOCAB];
    fsdp_kv_cache *cache;

    CHECK_OK(fsdp_kv_cache_create(model, batch, LENGTH, &cache));
    all_logits(context, model, batch, all);
    for (int64_t prompt = 1; prompt <= LENGTH; prompt++) {
        CHECK_OK(fsdp_kv_cache_truncate(cache, 0));
        check_next(context, model, cache, batch, prompt, all, tolerance);
        while (fsdp_kv_cache_length(cache) < LENGTH)
            check_next(context, model, cache, batch, 1, all, tolerance);
    }
    CHECK_OK(fsdp_kv_cache_truncate(cache, 0));
    for (int64_t count = 1; fsdp_kv_cache_length(cache) + count <= LENGTH; count++)
        check_next(context, model, cache, batch, count, all, tolerance);
    CHECK_OK(fsdp_kv_cache_truncate(cache, 2)); /* what was forgotten is written over */
    check_next(context, model, cache, batch, LENGTH - 2, all, tolerance);
    fsdp_kv_cache_free(cache);
}

CONTEXT_TEST(logits_are_those_of_all_tokens_however_they_are_cut)
{
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
        for (int64_t batch = 1; batch <= 2; batch++) {
            fsdp_module *model = create(context, &variants[i], FSDP_F32);

            fsdp_no_grad_begin(context);
            check_cuts(context, model, batch, 1e-5f);
            fsdp_no_grad_end(context);
            fsdp_module_unref(model);
        }
}

CONTEXT_TEST(in_bfloat16_they_are_within_its_rounding)
{
    fsdp_no_grad_begin(context);
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        fsdp_module *model = create(context, &variants[i], FSDP_BF16);

        check_cuts(context, model, 1, 0.05f);
        fsdp_module_unref(model);
    }
    fsdp_no_grad_end(context);
}

/* A cache that was forgotten is one for the model as it is then. */
CONTEXT_TEST(after_a_change_of_dtype_it_is_forgotten_first)
{
    fsdp_module *model = create(context, &variants[1], FSDP_F32);
    fsdp_kv_cache *cache;

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_kv_cache_create(model, 1, LENGTH, &cache));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_PTR(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 3)));
    CHECK_OK(fsdp_module_to(model, FSDP_BF16));
    CHECK_FAILS(fsdp_model_call_cached(model, cache, tokens(context, 1, 3, 1)), FSDP_STATE,
                "the cache has 3 tokens in float32, but the model computes in bfloat16 now");
    CHECK_EQ(fsdp_kv_cache_length(cache), 3);
    CHECK_OK(fsdp_kv_cache_truncate(cache, 0));
    CHECK_PTR(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 4)));
    fsdp_scope_end(context, NULL);
    fsdp_kv_cache_free(cache);
    check_cuts(context, model, 1, 0.05f);
    fsdp_no_grad_end(context);
    fsdp_module_unref(model);
}

/* ---- sharded ---- */

static void check_sharded(fsdp_context *context, void *arg)
{
    fsdp_module *model = create(context, arg, FSDP_F32);

    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    CHECK_OK(fsdp_fully_shard(model, NULL));
    fsdp_no_grad_begin(context);
    check_cuts(context, model, 1, 1e-5f);
    fsdp_no_grad_end(context);
    fsdp_module_unref(model);
}

TEST(sharded_models_take_one_too)
{
    for (int world = 2; world <= 4; world++)
        for (size_t i = 1; i < sizeof variants / sizeof *variants; i += 2)
            test_run_ranks(world, check_sharded, (void *)&variants[i]);
}

/* ---- refusals and failures ---- */

CONTEXT_TEST(what_does_not_fit_is_refused)
{
    fsdp_module *model = create(context, &variants[0], FSDP_F32), *other = create(context, &variants[2], FSDP_F32);
    fsdp_kv_cache *cache;

    CHECK_ERROR(fsdp_kv_cache_create(fsdp_model_block(model, 0), 1, 4, &cache), FSDP_INVALID, "fsdp_model_create");
    CHECK_ERROR(fsdp_kv_cache_create(model, 0, 4, &cache), FSDP_INVALID, "expected at least 1");
    CHECK_ERROR(fsdp_kv_cache_create(model, 1, 0, &cache), FSDP_INVALID, "expected at least 1");
    CHECK_ERROR(fsdp_kv_cache_create(model, 1, LENGTH + 1, &cache), FSDP_INVALID, "the model has 9 positions");
    CHECK_NULL(cache);
    CHECK_OK(fsdp_kv_cache_create(model, 1, 4, &cache));
    CHECK_FAILS(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 2)), FSDP_STATE, "fsdp_no_grad_begin");
    fsdp_no_grad_begin(context);
    CHECK_INVALID(fsdp_model_call_cached(other, cache, tokens(context, 1, 0, 2)), "another model");
    CHECK_INVALID(fsdp_model_call_cached(model, NULL, tokens(context, 1, 0, 2)), "it is NULL");
    CHECK_INVALID(fsdp_model_call_cached(model, cache, tokens(context, 2, 0, 2)), "(2, 2) do not fit a cache of 1");
    CHECK_INVALID(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 5)), "0 of 4 tokens: 5 more");
    CHECK_PTR(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 3)));
    CHECK_INVALID(fsdp_model_call_cached(model, cache, tokens(context, 1, 0, 2)), "3 of 4 tokens: 2 more");
    CHECK_ERROR(fsdp_kv_cache_truncate(cache, 4), FSDP_INVALID, "cannot leave 4 tokens in a cache of 3");
    CHECK_ERROR(fsdp_kv_cache_truncate(cache, -1), FSDP_INVALID, "cannot leave -1");
    fsdp_no_grad_end(context);
    fsdp_kv_cache_free(cache);
    fsdp_module_unref(other);
    fsdp_module_unref(model);
}

/* Whatever allocation fails, in the prompt or behind it: the same call again goes through, with the right logits. */
CONTEXT_TEST(a_call_that_failed_can_be_made_again)
{
    fsdp_module *model = create(context, &variants[3], FSDP_F32);
    float all[LENGTH * VOCAB];

    fsdp_no_grad_begin(context);
    all_logits(context, model, 1, all);
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_kv_cache *cache = NULL;
        fsdp_status status = fsdp_scope_begin(context);
        bool scope = status == FSDP_OK;
        static const int32_t data[] = {3, 1, 4};

        if (status == FSDP_OK)
            status = fsdp_kv_cache_create(model, 1, LENGTH, &cache);
        for (int call = 0; call < 2 && status == FSDP_OK; call++) {
            fsdp_tensor *input = fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, 1 + call), data + call);

            status = fsdp_model_call_cached(model, cache, input) ? FSDP_OK : fsdp_last_status();
        }
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (scope)
            fsdp_scope_end(context, NULL);
        if (cache && status != FSDP_OK) {
            CHECK(fsdp_kv_cache_length(cache) == 0 || fsdp_kv_cache_length(cache) == 1);
            check_next(context, model, cache, 1, 3, all, 1e-5f);
        }
        fsdp_kv_cache_free(cache);
    }
    fsdp_no_grad_end(context);
    fsdp_module_unref(model);
}

CONTEXT_TEST(null_is_refused_or_empty)
{
    fsdp_module *model = create(context, &variants[2], FSDP_F32);
    fsdp_kv_cache *cache = NULL;

    CHECK_EQ(fsdp_kv_cache_length(NULL), 0);
    CHECK_ERROR(fsdp_kv_cache_create(NULL, 1, 1, &cache), FSDP_INVALID, "needs a model");
    CHECK_ERROR(fsdp_kv_cache_create(model, 1, 1, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_kv_cache_create(model, 1, 0, &cache), FSDP_INVALID, "expected at least 1");
    CHECK_ERROR(fsdp_kv_cache_truncate(NULL, 0), FSDP_INVALID, "it is NULL");
    fsdp_clear_error();
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_model_call_cached(model, NULL, tokens(context, 1, 0, 1)));
    CHECK_CONTAINS(fsdp_last_error(), "it is NULL");
    fsdp_scope_end(context, NULL);
    fsdp_kv_cache_free(NULL);
    fsdp_module_unref(model);
}
