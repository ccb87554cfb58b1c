/* Rotary positions that follow from a call's length: of rows of several documents, and with a cache of keys. */
#include <math.h>
#include <string.h>

#include "fsdp/models.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    VOCAB = 17,
    LENGTH = 12,
    LAST = (LENGTH - 1) * VOCAB
};

static const int32_t text[LENGTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 16, 0, 7};
static const int32_t answers[LENGTH] = {1, 4, 1, 5, -100, -100, 6, 5, -100, 0, 7, -100};
/* Documents of 5, 1 and 6 tokens. */
static const int32_t positions[LENGTH] = {0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5};
static const int lengths[] = {5, 1, 6};

/* A model in which calls of more than `shortest` tokens are long. */
static fsdp_model_config config_of(fsdp_rope_type type, int64_t shortest)
{
    fsdp_model_config config =
        MODEL_CONFIG(.architecture = type == FSDP_ROPE_LONGROPE ? FSDP_PHI3 : FSDP_LLAMA, .n_layers = 2, .dim = 16,
                     .n_heads = 4, .n_kv_heads = 2, .head_dim = 8, .ffn_dim = 20, .vocab_size = VOCAB,
                     .max_seq_len = type == FSDP_ROPE_LONGROPE ? 64 : shortest, .rope_theta = 100, .rope_type = type,
                     .rope_factor = 4, .rope_original_max_seq_len = shortest,
                     .rotary_fraction = type == FSDP_ROPE_LONGROPE ? 0.75f : 0, .rope_short_factors = {1, 1.5f, 2.25f},
                     .rope_long_factors = {1.25f, 4, 9.5f}, .init_std = 0.3f);

    return config;
}

static fsdp_module *create(fsdp_context *context, const fsdp_model_config *config)
{
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), config));

    CHECK_OK(fsdp_module_initialize(model, 5));
    CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_SUM, 1));
    return model;
}

static fsdp_tensor *part(fsdp_context *context, const int32_t *of, int64_t first, int64_t count)
{
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, count), of + first));
}

/* ---- documents ---- */

/* Returns the loss of the documents in one row, or that of each alone added up. */
static double loss_of(const fsdp_model_config *config, bool packed, fsdp_recompute_mode mode)
{
    fsdp_context *context = test_context();
    fsdp_module *model = create(context, config);
    double all = 0, loss;
    int first = 0;

    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), mode));
    for (int i = 0; i < (packed ? 1 : 3); first += lengths[i++]) {
        int count = packed ? LENGTH : lengths[i];
        fsdp_tensor *tokens, *targets, *result;

        CHECK_OK(fsdp_scope_begin(context));
        tokens = part(context, text, first, count), targets = part(context, answers, first, count);
        result = packed ? fsdp_call(model, tokens, targets, part(context, positions, 0, LENGTH))
                        : fsdp_call(model, tokens, targets);
        CHECK_OK(fsdp_tensor_item(CHECK_PTR(result), &loss));
        CHECK_OK(fsdp_backward(result));
        fsdp_scope_end(context, NULL);
        all += loss;
    }
    fsdp_module_unref(model);
    fsdp_context_free(context);
    return all;
}

TEST(the_longest_document_decides_for_all_of_a_row)
{
    for (int type = FSDP_ROPE_DYNAMIC; type <= FSDP_ROPE_LONGROPE; type += FSDP_ROPE_LONGROPE - FSDP_ROPE_DYNAMIC) {
        fsdp_model_config all_short = config_of((fsdp_rope_type)type, 6),
                          some_long = config_of((fsdp_rope_type)type, 5);
        double alone = loss_of(&all_short, false, FSDP_RECOMPUTE_NONE);

        CHECK_NEAR(loss_of(&all_short, true, FSDP_RECOMPUTE_NONE), alone, 1e-5);
        CHECK_NEAR(loss_of(&all_short, true, FSDP_RECOMPUTE_FULL), alone, 1e-5);
        CHECK(fabs(loss_of(&some_long, true, FSDP_RECOMPUTE_NONE) - alone) > 1e-3);
    }
}

TEST(short_documents_beside_a_long_one_get_its_factors)
{
    fsdp_model_config config = config_of(FSDP_ROPE_LONGROPE, 5), always = config;

    memcpy(always.rope_short_factors, always.rope_long_factors, sizeof always.rope_short_factors);
    CHECK_NEAR(loss_of(&config, true, FSDP_RECOMPUTE_NONE), loss_of(&always, false, FSDP_RECOMPUTE_NONE), 1e-5);
}

/* Positions that are a view of a part are read. */
CONTEXT_TEST(positions_may_be_a_view)
{
    fsdp_model_config config = config_of(FSDP_ROPE_LONGROPE, 6);
    fsdp_module *model = create(context, &config);
    int32_t two[2 * LENGTH];
    double whole, view;
    fsdp_tensor *tokens, *targets;

    memcpy(two, positions, sizeof positions);
    memcpy(two + LENGTH, positions, sizeof positions);
    CHECK_OK(fsdp_scope_begin(context));
    tokens = part(context, text, 0, LENGTH), targets = part(context, answers, 0, LENGTH);
    CHECK_OK(
        fsdp_tensor_item(CHECK_PTR(fsdp_call(model, tokens, targets, part(context, positions, 0, LENGTH))), &whole));
    CHECK_OK(fsdp_tensor_item(
        CHECK_PTR(
            fsdp_call(model, tokens, targets,
                      fsdp_slice(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(2, LENGTH), two), 0, 1, 1))),
        &view));
    CHECK(whole == view);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(model);
}

/* ---- a cache ---- */

static void read_last(fsdp_tensor *logits, float *out)
{
    float all[LENGTH * VOCAB];
    int64_t count = fsdp_tensor_size(CHECK_PTR(logits), 1);

    CHECK_OK(fsdp_tensor_read(logits, FSDP_F32, all));
    memcpy(out, all + (count - 1) * VOCAB, VOCAB * sizeof *out);
}

CONTEXT_TEST(a_cache_of_short_keys_is_emptied_for_a_long_call)
{
    fsdp_model_config config = config_of(FSDP_ROPE_LONGROPE, 8);
    fsdp_module *model = create(context, &config);
    float expected[VOCAB], got[VOCAB];
    fsdp_kv_cache *cache;

    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_kv_cache_create(model, 1, LENGTH, &cache));
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_PTR(fsdp_model_call_cached(model, cache, part(context, text, 0, 5)));
    read_last(fsdp_model_call_cached(model, cache, part(context, text, 5, 3)), got);
    read_last(fsdp_call(model, part(context, text, 0, 8)), expected);
    CHECK_CLOSE(got, expected, VOCAB, 1e-5, 1e-5);
    CHECK_NULL(fsdp_model_call_cached(model, cache, part(context, text, 8, 1)));
    CHECK_EQ(fsdp_last_status(), FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(),
                   "the cache has 8 tokens, and 1 more change the model's rotary positions (longrope)");
    CHECK_OK(fsdp_kv_cache_truncate(cache, 0));
    CHECK_PTR(fsdp_model_call_cached(model, cache, part(context, text, 0, 9)));
    read_last(fsdp_model_call_cached(model, cache, part(context, text, 9, 3)), got);
    read_last(fsdp_call(model, part(context, text, 0, LENGTH)), expected);
    CHECK_CLOSE(got, expected, VOCAB, 1e-5, 1e-5);
    CHECK_OK(fsdp_kv_cache_truncate(cache, 4)); /* keys of a long call, for a short one */
    CHECK_NULL(fsdp_model_call_cached(model, cache, part(context, text, 4, 1)));
    fsdp_scope_end(context, NULL);
    fsdp_kv_cache_free(cache);
    fsdp_no_grad_end(context);
    fsdp_module_unref(model);
}
