/* Rows of several documents: the losses and gradients that each document has alone, with any recomputation, on one rank
 * and sharded; sums of losses; what is refused. Links: shard */
#include "fsdp/models.h"

#include <math.h>
#include <string.h>

#include "fsdp/shard.h"
#include "support/models.h"
#include "support/ranks.h"

enum {
    VOCAB = 17,
    LENGTH = 12,
    LONGEST = 6, /* positions of GPT-2: fewer than a row has */
    MOST = VOCAB * 16
};

/* Documents of 5, 1 and 6 tokens. The first token of a document is nobody's target, and one more is not learned. */
static const int32_t text[LENGTH] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 16, 0, 7};
static const int32_t answers[LENGTH] = {1, 4, 1, 5, -100, -100, 6, 5, -100, 0, 7, -100};
static const int32_t positions[LENGTH] = {0, 1, 2, 3, 4, 0, 0, 1, 2, 3, 4, 5};
static const int lengths[] = {5, 1, 6};

static fsdp_module *create(fsdp_context *context, fsdp_architecture architecture)
{
    fsdp_model_config config =
        MODEL_CONFIG(.architecture = architecture, .n_layers = 2, .dim = 16, .n_heads = 4,
                     .n_kv_heads = architecture == FSDP_GPT2 ? 4 : 2, .head_dim = 4, .ffn_dim = 20, .vocab_size = VOCAB,
                     .max_seq_len = LONGEST, .rope_theta = 100, .init_std = 0.3f);
    fsdp_module *model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));

    CHECK_OK(fsdp_module_initialize(model, 5));
    CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_SUM, 0.5));
    return model;
}

static fsdp_tensor *part(fsdp_context *context, const int32_t *of, int first, int count)
{
    return CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, count), of + first));
}

/* Computes the loss of the row, packed or document by document, and adds to gradients. */
static double run(fsdp_context *context, fsdp_module *model, bool packed)
{
    double all = 0, loss;
    int first = 0;

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
    return all;
}

/* Reads the gradient of the embedding, which all others are part of, and drops all. */
static void take_gradient(fsdp_module *model, float *out)
{
    fsdp_tensor *weight = fsdp_module_parameter(model, "transformer.wte.weight");

    if (!weight)
        weight = CHECK_PTR(fsdp_module_parameter(model, "model.embed_tokens.weight"));
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(weight)), FSDP_F32, out));
    fsdp_module_zero_grad(model);
}

/* The losses of each target add up to their sum, with its gradient. */
static void check_each(fsdp_architecture architecture)
{
    fsdp_context *context = test_context();
    fsdp_module *model = create(context, architecture);
    float sum[MOST], each[MOST], values[LENGTH];
    double loss = run(context, model, true), all = 0;
    fsdp_tensor *losses;

    take_gradient(model, sum);
    CHECK_OK(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 0));
    CHECK_OK(fsdp_scope_begin(context));
    losses = CHECK_PTR(fsdp_call(model, part(context, text, 0, LENGTH), part(context, answers, 0, LENGTH),
                                 part(context, positions, 0, LENGTH)));
    CHECK_EQ(fsdp_tensor_ndim(losses), 2);
    CHECK_OK(fsdp_tensor_read(losses, FSDP_F32, values));
    CHECK_OK(fsdp_backward(fsdp_scale(fsdp_sum(losses), 0.5)));
    fsdp_scope_end(context, NULL);
    for (int i = 0; i < LENGTH; i++) {
        all += 0.5 * (double)values[i];
        CHECK((values[i] > 0) == (answers[i] >= 0));
    }
    CHECK_NEAR(all, loss, 1e-5);
    take_gradient(model, each);
    CHECK_CLOSE(each, sum, MOST, 1e-4, 1e-5);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

TEST(the_loss_of_each_target_is_a_part_of_the_sum)
{
    check_each(FSDP_GPT2);
    check_each(FSDP_LLAMA);
}

static void check_packed(fsdp_architecture architecture)
{
    fsdp_context *context = test_context();
    fsdp_module *model = create(context, architecture);
    float alone[MOST], packed[MOST], again[MOST];
    double loss = run(context, model, false);

    take_gradient(model, alone);
    CHECK_NEAR(run(context, model, true), loss, 1e-5);
    take_gradient(model, packed);
    CHECK_CLOSE(packed, alone, MOST, 1e-4, 1e-5);
    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++) {
        for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
            CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), (fsdp_recompute_mode)mode));
        run(context, model, true);
        take_gradient(model, again);
        CHECK(memcmp(packed, again, sizeof packed) == 0);
    }
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

TEST(documents_in_a_row_have_the_losses_they_have_alone)
{
    check_packed(FSDP_GPT2);
    check_packed(FSDP_LLAMA);
}

typedef struct expected {
    fsdp_architecture architecture;
    double loss;
} expected;

static void check_sharded(fsdp_context *context, void *arg)
{
    const expected *e = arg;
    fsdp_module *model = create(context, e->architecture);

    for (int64_t i = 0; i < fsdp_model_block_count(model); i++) {
        CHECK_OK(fsdp_module_set_recompute(fsdp_model_block(model, i), FSDP_RECOMPUTE_CHEAP));
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    }
    CHECK_OK(fsdp_fully_shard(model, NULL));
    CHECK_NEAR(run(context, model, true), e->loss, 1e-5);
    fsdp_module_unref(model);
}

TEST(sharded_models_take_positions_too)
{
    for (int which = 0; which < 2; which++) {
        expected e = {.architecture = which ? FSDP_LLAMA : FSDP_GPT2};
        fsdp_context *context = test_context();
        fsdp_module *model = create(context, e.architecture);

        e.loss = run(context, model, true);
        fsdp_module_unref(model);
        fsdp_context_free(context);
        test_run_worlds(2, 3, check_sharded, &e);
    }
}

CONTEXT_TEST(what_is_wrong_with_a_row_is_said)
{
    fsdp_module *model = create(context, FSDP_GPT2);
    static const int32_t wrong[LENGTH] = {0, 1, 2, 3, 5, 0, 0, 0, 0, 0, 0, 0};
    static const int32_t one[LENGTH] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
    fsdp_tensor *tokens, *x;

    CHECK_OK(fsdp_scope_begin(context));
    tokens = part(context, text, 0, LENGTH);
    x = part(context, text, 0, 5);
    CHECK_INVALID(fsdp_call(model, tokens, tokens, part(context, wrong, 0, LENGTH)),
                  "GPT2LMHeadModel: position 5 at (0, 4) is neither 0");
    CHECK_INVALID(fsdp_call(model, tokens, tokens, part(context, positions, 0, 5)),
                  "positions (1, 5) do not fit a batch of 1 x 12 tokens");
    CHECK_INVALID(fsdp_call(model, tokens, tokens, part(context, one, 0, LENGTH)),
                  "transformer.wpe (Embedding): id 6 at position (0, 6)");
    CHECK_INVALID(fsdp_call(model, x, x, x, x), "takes tokens, targets and positions, not 4 inputs");
    fsdp_scope_end(context, NULL);
    CHECK_EQ(fsdp_model_set_loss(NULL, FSDP_LOSS_SUM, 1), FSDP_INVALID);
    CHECK_ERROR(fsdp_model_set_loss(model, (fsdp_loss_reduction)7, 0), FSDP_INVALID, "or FSDP_LOSS_NONE, not 7");
    CHECK_ERROR(fsdp_model_set_loss(model, FSDP_LOSS_NONE, 2), FSDP_INVALID, "must be 0 without a sum");
    CHECK_ERROR(fsdp_model_set_loss(model, FSDP_LOSS_MEAN, 2), FSDP_INVALID, "must be 0 for a mean");
    CHECK_ERROR(fsdp_model_set_loss(model, FSDP_LOSS_SUM, (double)NAN), FSDP_INVALID, "is nan: it must be finite");
    CHECK_ERROR(fsdp_model_set_loss(model, FSDP_LOSS_SUM, 1e39), FSDP_INVALID, "is 1e+39: it must be finite in f32");
    fsdp_module_unref(model);
}
