/* Generation with a model: cache and no cache, the context when it is full, stop tokens, seeds, every rank alike,
 * sharded or not, failures, and what it leaves. Links: hub optim */
#include "fsdp/generate.h"
#include "fsdp/hub.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/ranks.h"

#define FOLDER TEST_SOURCE_DIR "/tests/reference/models/"

enum {
    VOCAB = 259, /* of the larger of them */
    CONTEXT = 12,
    MOST = 40
};

static fsdp_module *load(fsdp_context *context, const char *name)
{
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;
    fsdp_module *model;
    char folder[512];

    snprintf(folder, sizeof folder, FOLDER "%s", name);
    CHECK_OK(fsdp_hub_read_config(folder, &config));
    if (config.architecture == FSDP_LLAMA)
        config.max_seq_len = CONTEXT;
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(folder, state, &config));
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

/* The most likely token after `count` tokens, by a forward over them. */
static int32_t most_likely(fsdp_context *context, fsdp_module *model, const int32_t *tokens, int64_t count)
{
    int64_t vocab_size = fsdp_model_get_config(model)->vocab_size;
    float logits[CONTEXT * VOCAB];
    fsdp_tensor *input;

    CHECK_OK(fsdp_scope_begin(context));
    input = fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(1, count), tokens);
    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_call(model, input)), FSDP_F32, logits));
    fsdp_scope_end(context, NULL);
    return argmax(logits + (count - 1) * vocab_size, (int32_t)vocab_size);
}

/* ---- the context ---- */

/* The tokens that the model sees before each new one: `first` goes on by the half that is given up. */
static void check_greedy(const char *name, int64_t prompt, bool no_cache)
{
    fsdp_context *context = test_context();
    fsdp_module *model = load(context, name);
    bool gpt2 = fsdp_model_get_config(model)->architecture == FSDP_GPT2; /* whose context stays as large as it is */
    int64_t made = gpt2 ? CONTEXT - prompt : 20, count = prompt, first = 0;
    fsdp_generate_options options = {.max_new_tokens = made, .no_cache = no_cache};
    int32_t tokens[MOST] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9};

    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    CHECK_EQ(count, prompt + made);
    CHECK(model->training);
    if (prompt > CONTEXT)
        first = prompt - CONTEXT;
    for (int64_t at = prompt; at < count; at++) {
        if (at - first > CONTEXT)
            first = at - CONTEXT / 2;
        CHECK_EQ(tokens[at], most_likely(context, model, tokens + first, at - first));
    }
    fsdp_module_unref(model);
    CHECK_EQ(test_live_bytes(context), 0);
    fsdp_context_free(context);
}

TEST(greedy_tokens_are_the_most_likely_of_a_forward_over_the_context)
{
    static const char *const names[] = {"tiny-llama", "tiny-llama-tied-st", "tiny-gpt2"};
    static const int64_t prompts[] = {1, 4, 11, 12, 13, 15};

    for (size_t i = 0; i < 3; i++)
        for (size_t j = 0; j < 6; j += test_brief() ? 2 : 1)
            for (int no_cache = 0; no_cache < 2; no_cache++)
                if (i < 2 || prompts[j] < CONTEXT)
                    check_greedy(names[i], prompts[j], no_cache);
}

/* Of 4 tokens or less the positions are others: there all tokens are computed anew. */
CONTEXT_TEST(a_text_grows_longer_than_short_factors_are_for)
{
    fsdp_model_config config;
    fsdp_module *model;
    int32_t tokens[CONTEXT] = {1, 2, 3};
    int64_t count = 3;
    fsdp_generate_options options = {.max_new_tokens = CONTEXT - 3};

    CHECK_OK(fsdp_model_preset("llama-1m", &config));
    config.vocab_size = VOCAB;
    config.init_std = 0.3f;
    config.rope_type = FSDP_ROPE_LONGROPE;
    config.rope_factor = 8;
    config.rope_original_max_seq_len = 4;
    for (int i = 0; i < config.head_dim / 2; i++) {
        config.rope_short_factors[i] = 1;
        config.rope_long_factors[i] = (float)(3 + i);
    }
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_module_initialize(model, 3));
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    for (int64_t at = 3; at < count; at++)
        CHECK_EQ(tokens[at], most_likely(context, model, tokens, at));
    fsdp_module_unref(model);
}

CONTEXT_TEST(a_context_of_one_token_goes_on)
{
    fsdp_model_config config;
    fsdp_module *model;
    fsdp_generate_options options = {.max_new_tokens = 3};
    int32_t tokens[6] = {1, 2, 3};
    int64_t count = 3;

    CHECK_OK(fsdp_model_preset("llama-1m", &config));
    config.n_layers = config.max_seq_len = 1;
    model = CHECK_PTR(fsdp_model_create(context, test_device(context), &config));
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    CHECK_EQ(count, 6);
    fsdp_module_unref(model);
}

/* ---- where it ends ---- */

static bool stop_at_third(void *arg, int32_t token)
{
    int *calls = arg;

    (void)token;
    return ++*calls < 3;
}

CONTEXT_TEST(the_seed_decides_and_each_can_end_it)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options options = {.max_new_tokens = 10, .temperature = 1.5f, .top_k = 50, .top_p = 0.9f, .seed = 7};
    int32_t first[11] = {5}, second[11] = {5}, other[11] = {5};
    int64_t count = 1;
    int calls = 0;

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
}

static bool count_calls(void *arg, int32_t token)
{
    (void)token;
    ++*(int *)arg;
    return true;
}

CONTEXT_TEST(a_stop_token_is_the_last_one)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options options = {.max_new_tokens = 8, .temperature = 1, .seed = 5};
    int32_t all[9] = {5}, tokens[9], stops[2] = {VOCAB - 1};
    int64_t count = 1, end = 1;
    int calls = 0;

    CHECK_OK(fsdp_generate(model, all, &count, &options, NULL, NULL));
    stops[1] = all[5];
    while (all[end] != stops[1] && all[end] != stops[0])
        end++;
    CHECK(end > 1);
    memset(tokens, 0, sizeof tokens);
    tokens[0] = 5;
    count = 1;
    options.stop_tokens = stops;
    options.stop_token_count = 2;
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, count_calls, &calls));
    CHECK_EQ(count, end + 1);
    CHECK_EQ(calls, end - 1);
    CHECK_BYTES(tokens, all, (size_t)count * sizeof *all);
    fsdp_module_unref(model);
}

/* A cache of another model keeps what it has. */
static void check_wrong_caches(fsdp_context *context, fsdp_module *model, int32_t *tokens)
{
    fsdp_module *other = load(context, "tiny-llama");
    fsdp_generate_options bad = {.max_new_tokens = 1};
    int64_t count = 1;

    CHECK_OK(fsdp_kv_cache_create(other, 1, 4, &bad.cache));
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "made for another model");
    CHECK_OK(fsdp_generate(other, tokens, &count, &bad, NULL, NULL));
    CHECK_EQ(fsdp_kv_cache_length(bad.cache), 1);
    count = 1;
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "made for another model");
    CHECK_EQ(fsdp_kv_cache_length(bad.cache), 1);
    bad.no_cache = true;
    CHECK_ERROR(fsdp_generate(other, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "and no_cache is set");
    fsdp_kv_cache_free(bad.cache);
    fsdp_module_unref(other);
}

CONTEXT_TEST(wrong_options_are_refused)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options good = {.max_new_tokens = 1}, bad;
    int32_t tokens[4] = {5};
    int64_t count = 1, none = 0;

    CHECK_ERROR(fsdp_generate(model, tokens, &none, &good, NULL, NULL), FSDP_INVALID, "the prompt is empty");
    bad = (fsdp_generate_options){.max_new_tokens = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "cannot generate -1 tokens");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .temperature = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "temperature -1");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .top_k = -1};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "top_k -1");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .top_p = 1.5f};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "top_p 1.5 is not between");
    bad = (fsdp_generate_options){.max_new_tokens = 1, .stop_token_count = 2};
    CHECK_ERROR(fsdp_generate(model, tokens, &count, &bad, NULL, NULL), FSDP_INVALID, "number of stop tokens is 2");
    CHECK_ERROR(fsdp_generate(fsdp_model_block(model, 0), tokens, &count, &good, NULL, NULL), FSDP_INVALID,
                "cannot generate with a LlamaDecoderLayer");
    check_wrong_caches(context, model, tokens);
    tokens[0] = VOCAB;
    CHECK(fsdp_generate(model, tokens, &count, &good, NULL, NULL) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "259");
    CHECK_EQ(count, 1);
    fsdp_module_unref(model);
}

/* ---- ranks ---- */

typedef struct told {
    int32_t tokens[4][CONTEXT + 9];
    int64_t counts[4];
    const char *name;
    bool shards, reshard;
} told;

static bool only_rank_0_stops(void *arg, int32_t token)
{
    (void)token;
    return *(int *)arg != 0 || --((int *)arg)[1] > 0;
}

static void shard(fsdp_module *model)
{
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), NULL));
    CHECK_OK(fsdp_fully_shard(model, NULL));
}

static void generate_on_rank(fsdp_context *context, void *arg)
{
    told *t = arg;
    int rank = fsdp_context_rank(context), mine[2] = {rank, CONTEXT + 5};
    fsdp_generate_options options = {.max_new_tokens = CONTEXT + 8, .temperature = 1, .seed = 3, .reshard = t->reshard};
    fsdp_module *model = load(context, t->name);
    fsdp_shard_info info;

    if (t->shards)
        shard(model);
    t->tokens[rank][0] = 9;
    t->counts[rank] = 1;
    CHECK_OK(fsdp_generate(model, t->tokens[rank], &t->counts[rank], &options, only_rank_0_stops, mine));
    CHECK(model->training);
    if (t->shards) {
        CHECK_OK(fsdp_module_shard_info(fsdp_model_block(model, 0), &info));
        CHECK_EQ(info.state, FSDP_SHARDED);
    }
    fsdp_module_unref(model);
}

TEST(every_rank_gets_the_same_tokens_sharded_or_not)
{
    static const char *const names[] = {"tiny-llama", "tiny-gpt2"};

    for (int kind = 0; kind < 2; kind++) {
        told alone = {.name = names[kind]};

        test_run_ranks(1, generate_on_rank, &alone);
        CHECK_EQ(alone.counts[0], CONTEXT + 6);
        for (int world = 2; world <= (kind ? 2 : 4); world++)
            for (int way = 0; way < 3; way++) {
                told t = {.name = names[kind], .shards = way > 0, .reshard = way > 1};

                test_run_ranks(world, generate_on_rank, &t);
                for (int rank = 0; rank < world; rank++) {
                    CHECK_EQ(t.counts[rank], alone.counts[0]);
                    CHECK_BYTES(t.tokens[rank], alone.tokens[0], sizeof alone.tokens[0]);
                }
            }
    }
}

static void count_gathers(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    (void)module;
    *(int *)arg += event == FSDP_EVENT_UNSHARD;
}

/* A group is gathered once, or once for each token. */
static void check_gathers(fsdp_context *context, void *arg)
{
    const bool *reshard = arg;
    fsdp_generate_options options = {.max_new_tokens = 5, .reshard = *reshard};
    fsdp_module *model = load(context, "tiny-llama");
    int32_t tokens[6] = {9};
    int64_t count = 1;
    int gathers = 0;

    shard(model);
    CHECK_OK(fsdp_module_set_reshard_after_forward(model, true, true));
    CHECK_OK(fsdp_module_set_shard_listener(model, count_gathers, &gathers));
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    CHECK_EQ(gathers, (fsdp_model_block_count(model) + 1) * (*reshard ? 5 : 1));
    fsdp_module_unref(model);
}

TEST(a_sharded_model_is_gathered_once_unless_it_is_to_reshard)
{
    bool reshard = false;

    test_run_ranks(2, check_gathers, &reshard);
    reshard = true;
    test_run_ranks(2, check_gathers, &reshard);
}

/* ---- what it leaves ---- */

CONTEXT_TEST(every_module_is_in_the_mode_in_which_it_was)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options options = {.max_new_tokens = 2};
    int32_t tokens[3] = {5};
    int64_t count = 1;

    fsdp_module_train(fsdp_model_block(model, 0), false);
    CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
    CHECK(model->training && fsdp_model_block(model, 1)->training);
    CHECK(!fsdp_model_block(model, 0)->training);
    fsdp_module_unref(model);
}

static bool keeps(fsdp_module *module)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK(info.keeps_unsharded || info.state == FSDP_SHARDED);
    return info.keeps_unsharded;
}

/* Of all, of one block alone, of none. */
RANKS_TEST(what_was_set_before_holds_again, 2)
{
    fsdp_module *model = load(context, "tiny-llama");
    int32_t tokens[20] = {5};
    int64_t count = 1;

    shard(model);
    for (int round = 0; round < 6; round++) {
        fsdp_generate_options options = {.max_new_tokens = 2, .reshard = round > 2};
        bool all = round % 3 == 0, first = round % 3 < 2;

        CHECK_OK(fsdp_module_set_keep_unsharded(model, all));
        CHECK_OK(fsdp_module_set_keep_unsharded(fsdp_model_block(model, 0), first));
        CHECK_OK(fsdp_model_set_last_logits_only(model, all));
        CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
        CHECK_EQ(keeps(model), all);
        CHECK_EQ(keeps(fsdp_model_block(model, 0)), first);
        CHECK_EQ(keeps(fsdp_model_block(model, 1)), all);
        CHECK_EQ(fsdp_model_last_logits_only(model), all);
    }
    CHECK(!fsdp_model_last_logits_only(fsdp_model_block(model, 0)));
    fsdp_module_unref(model);
}

static bool generate_inside(void *arg, int32_t token)
{
    fsdp_generate_options options = {.max_new_tokens = 1};
    int32_t tokens[2] = {token};
    int64_t count = 1;

    CHECK_OK(fsdp_generate(arg, tokens, &count, &options, NULL, NULL));
    return true;
}

CONTEXT_TEST(a_text_may_be_made_while_another_is)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options options = {.max_new_tokens = 5};
    int32_t alone[9] = {3, 1, 4, 1}, with[9] = {3, 1, 4, 1};
    int64_t count;

    for (int no_cache = 0; no_cache < 2; no_cache++) {
        options.no_cache = no_cache;
        count = 4;
        CHECK_OK(fsdp_generate(model, alone, &count, &options, NULL, NULL));
        count = 4;
        CHECK_OK(fsdp_generate(model, with, &count, &options, generate_inside, model));
        CHECK_BYTES(with, alone, sizeof alone);
    }
    fsdp_module_unref(model);
}

static fsdp_tensor *loss_of(fsdp_context *context, fsdp_module *model)
{
    static const int32_t inputs[4] = {3, 1, 4, 1}, targets[4] = {1, 4, 1, 5};
    fsdp_device *device = test_device(context);

    return fsdp_call(model, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 4), inputs),
                     fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 4), targets));
}

static fsdp_optimizer *optimizer_of(fsdp_module *model)
{
    fsdp_parameters parameters = {0};
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.1}, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

/* Norm of the gradients of two backwards, with texts in every place between them. */
RANKS_TEST(gradients_that_add_up_are_the_same, 2)
{
    fsdp_generate_options options = {.max_new_tokens = 2};
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_optimizer *optimizer;
    double norms[2];

    shard(model);
    optimizer = optimizer_of(model);
    for (int with = 0; with < 2; with++) {
        for (int micro = 0; micro < 2; micro++) {
            int32_t tokens[5] = {5};
            int64_t count = 1;
            fsdp_tensor *loss;

            CHECK_OK(fsdp_module_set_requires_gradient_sync(model, micro == 1, true));
            CHECK_OK(fsdp_scope_begin(context));
            loss = CHECK_PTR(loss_of(context, model));
            if (with)
                CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
            CHECK_OK(fsdp_backward(loss));
            fsdp_scope_end(context, NULL);
            if (with)
                CHECK_OK(fsdp_generate(model, tokens, &count, &options, NULL, NULL));
        }
        CHECK_OK(fsdp_clip_grad_norm(optimizer, 0, &norms[with]));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    }
    CHECK(norms[0] == norms[1] && norms[0] > 0);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
}

/* ---- failures ---- */

CONTEXT_TEST(whatever_allocation_fails_the_model_can_be_used_again)
{
    fsdp_module *model = load(context, "tiny-llama");
    fsdp_generate_options options = {.max_new_tokens = 3, .temperature = 1};
    int32_t right[4] = {9}, tokens[4];
    int64_t count = 1;

    CHECK_OK(fsdp_generate(model, right, &count, &options, NULL, NULL));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status;

        tokens[0] = 9;
        count = 1;
        status = fsdp_generate(model, tokens, &count, &options, NULL, NULL);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        CHECK(count >= 1 && memcmp(tokens, right, (size_t)count * sizeof *tokens) == 0);
        CHECK(model->training && fsdp_grad_enabled(context));
    }
    CHECK_EQ(count, 4);
    fsdp_module_unref(model);
}
