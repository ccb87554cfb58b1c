/* Generation: sampling rules, determinism, windows, every rank alike. Links: hub */
#include <math.h>

#include "fsdp/hub.h"
#include "generate/generate.h"
#include "support/ranks.h"

#define FOLDER TEST_SOURCE_DIR "/tests/reference/models/tiny-llama"

static int32_t sample(const float *logits, int64_t count, float temperature, int64_t top_k, float draw)
{
    fsdp__candidate scratch[16];
    int32_t token = -1;

    CHECK_OK(fsdp__sample(logits, count, temperature, top_k, draw, scratch, &token));
    return token;
}

static void the_most_likely_token_with_the_lowest_id_wins(void **state)
{
    static const float logits[] = {-2, 3, 3, 1, 3, -INFINITY};

    (void)state;
    CHECK_EQ(sample(logits, 6, 0, 0, 0.9f), 1);
    CHECK_EQ(sample(logits, 6, 1, 1, 0.99f), 1);
    CHECK_EQ(sample(logits, 1, 0, 0, 0), 0);
}

static void draws_fall_in_proportion_to_the_probabilities(void **state)
{
    const float logits[] = {logf(1), logf(2), -INFINITY, logf(5)};
    const float squared[] = {logf(1), logf(4), -INFINITY, logf(25)};
    int counts[4] = {0};

    (void)state;
    for (int i = 0; i < 800; i++)
        counts[sample(logits, 4, 1, 0, (float)i / 800)]++;
    CHECK_NEAR(counts[0], 100, 1);
    CHECK_NEAR(counts[1], 200, 1);
    CHECK_EQ(counts[2], 0);
    CHECK_NEAR(counts[3], 500, 1);
    for (int i = 0; i < 100; i++) /* temperature 2 takes the square root */
        CHECK_EQ(sample(squared, 4, 2, 0, (float)i / 100 + 0.001f), sample(logits, 4, 1, 0, (float)i / 100 + 0.001f));
}

static void top_k_leaves_the_k_most_likely(void **state)
{
    static const float logits[] = {1, 0, 2, 2, 0.5f};
    bool seen[5] = {false};

    (void)state;
    for (int i = 0; i < 100; i++)
        seen[sample(logits, 5, 1, 3, (float)i / 100)] = true;
    CHECK(seen[0] && !seen[1] && seen[2] && seen[3] && !seen[4]);
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 100; i++)
        seen[sample(logits, 5, 1, 99, (float)i / 100)] = true;
    CHECK(seen[0] && seen[1] && seen[2] && seen[3] && seen[4]);
}

static void broken_logits_are_an_error(void **state)
{
    const float logits[] = {0, -NAN};
    fsdp__candidate scratch[2];
    int32_t token;

    (void)state;
    CHECK_ERROR(fsdp__sample(logits, 2, 0, 0, 0, scratch, &token), FSDP_STATE, "logit of token 1 is nan");
}

/* ---- with a model ---- */

static fsdp_module *load(fsdp_context *context)
{
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(FOLDER, &config));
    config.max_seq_len = 12;
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(FOLDER, state, &config));
    fsdp_state_dict_free(state);
    return model;
}

static int32_t argmax(const float *logits, int32_t count)
{
    int32_t best = 0;

    for (int32_t i = 1; i < count; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

static void greedy_tokens_are_the_argmax_of_a_forward_over_the_window(void **state)
{
    fsdp_context *context = test_context();
    fsdp_module *model = load(context);
    fsdp_generate_options options = {.max_new_tokens = 20};
    int32_t tokens[24] = {3, 1, 4, 1};
    int64_t count = 4;
    float logits[12 * 259];

    (void)state;
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    CHECK_EQ(count, 24);
    CHECK(model->training);
    for (int64_t at = 4; at < 24; at++) {
        int64_t window = at < 12 ? at : 12;
        fsdp_tensor *input;

        CHECK_OK(fsdp_scope_begin(context));
        input = fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, window), tokens + at - window);
        CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, input)), FSDP_F32, logits));
        fsdp_scope_end(context, NULL);
        CHECK_EQ(tokens[at], argmax(logits + (window - 1) * 259, 259));
    }
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

static bool stop_at_third(void *arg, int32_t token)
{
    int *calls = arg;

    (void)token;
    return ++*calls < 3;
}

static void the_seed_decides_and_each_can_end_it(void **state)
{
    fsdp_context *context = test_context();
    fsdp_module *model = load(context);
    fsdp_generate_options options = {.max_new_tokens = 10, .temperature = 1.5f, .top_k = 50, .seed = 7};
    int32_t first[11] = {5}, second[11] = {5}, other[11] = {5};
    int64_t count = 1;
    int calls = 0;

    (void)state;
    CHECK_OK(fsdp_generate(model, first, &count, &options, NULL, NULL));
    CHECK_EQ(count, 11);
    count = 1;
    CHECK_OK(fsdp_generate(model, second, &count, &options, stop_at_third, &calls));
    CHECK_EQ(count, 4);
    CHECK_EQ(calls, 3);
    CHECK_BYTES(first, second, 4 * sizeof(int32_t));
    count = 1;
    options.seed = 8;
    CHECK_OK(fsdp_generate(model, other, &count, &options, NULL, NULL));
    CHECK(memcmp(first, other, sizeof first) != 0);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

static void wrong_options_are_refused(void **state)
{
    fsdp_context *context = test_context();
    fsdp_module *model = load(context);
    fsdp_generate_options good = {.max_new_tokens = 1}, bad;
    int32_t tokens[4] = {5};
    int64_t count = 1, none = 0;

    (void)state;
    CHECK_ERROR(fsdp_generate(model, tokens, &none, &good, NULL, NULL), FSDP_INVALID, "the prompt is empty");
    bad = (fsdp_generate_options){.max_new_tokens = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "cannot generate -1 tokens");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .temperature = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "temperature -1");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .top_k = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "top_k -1");
    CHECK_ERROR(fsdp_generate(fsdp_model_block(model, 0), tokens, &count, &good, NULL, NULL), FSDP_INVALID,
                "cannot generate with a LlamaDecoderLayer");
    tokens[0] = 259;
    CHECK(fsdp_generate(model, tokens, &count, &good, NULL, NULL) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "259");
    CHECK_EQ(count, 1);
    fsdp_module_unref(model);
    fsdp_context_free(context);
}

typedef struct told {
    int32_t tokens[3][9];
    int64_t counts[3];
} told;

static bool only_rank_0_stops(void *arg, int32_t token)
{
    (void)token;
    return *(int *)arg != 0 || --((int *)arg)[1] > 0;
}

static fsdp_status generate_on_rank(fsdp_context *context, void *arg)
{
    told *t = arg;
    int rank = fsdp_context_rank(context), mine[2] = {rank, 5};
    fsdp_generate_options options = {.max_new_tokens = 8, .temperature = 1, .seed = 3};
    fsdp_module *model = load(context);
    fsdp_status status;

    t->tokens[rank][0] = 9;
    t->counts[rank] = 1;
    status = fsdp_generate(model, t->tokens[rank], &t->counts[rank], &options, only_rank_0_stops, mine);
    fsdp_module_unref(model);
    return status;
}

static void every_rank_gets_the_same_tokens(void **state)
{
    fsdp_context_options options = {.threads = 1};
    told t = {0};

    (void)state;
    CHECK_OK(fsdp_run_threads(3, &options, generate_on_rank, &t));
    for (int rank = 0; rank < 3; rank++) {
        CHECK_EQ(t.counts[rank], 6);
        CHECK_BYTES(t.tokens[rank], t.tokens[0], sizeof t.tokens[0]);
    }
}

TEST_MAIN(cmocka_unit_test(the_most_likely_token_with_the_lowest_id_wins),
          cmocka_unit_test(draws_fall_in_proportion_to_the_probabilities),
          cmocka_unit_test(top_k_leaves_the_k_most_likely), cmocka_unit_test(broken_logits_are_an_error),
          cmocka_unit_test(greedy_tokens_are_the_argmax_of_a_forward_over_the_window),
          cmocka_unit_test(the_seed_decides_and_each_can_end_it), cmocka_unit_test(wrong_options_are_refused),
          cmocka_unit_test(every_rank_gets_the_same_tokens))
