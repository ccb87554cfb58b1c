/* Validation: the mean over all tokens in the same bits in any world, and a training that goes on as if there had been
 * none. */
#include <math.h>

#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

enum {
    STEPS = 3,
    LENGTH = 8,
    TOKENS = 8 * 43 + 6, /* the last window is shorter */
    MOST_RANKS = 4
};

typedef struct fixture {
    char *directory, *data, *other, *metrics;
    fsdp_train_config *config;
    fsdp_train_report plain[STEPS], reports[STEPS]; /* without validations, and with them */
    bool validates;
    unsigned seed; /* of when it does */
    double weights[2];
    fsdp_train_validation validation[MOST_RANKS]; /* by rank */
} fixture;

static const char llama[] =
    "model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.n_kv_heads=1 model.ffn_dim=50 "
    "model.vocab_size=256 data.workers=0 training.steps=3 training.seq_len=8 metrics.log_freq=1 "
    "training.local_batch_size=2";

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[TOKENS];

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->other = test_path(f->directory, "other.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    test_write_letters(f->data, TOKENS, 23);
    for (int i = 0; i < TOKENS; i++)
        text[i] = (char)('a' + i * 5 % 26);
    test_write_file(f->other, text, sizeof text);
    f->config = test_config("%s", llama);
    SET(f, "data.path", f->data);
    *state = f;
    return 0;
}

/* ---- the training that goes on ---- */

/* What the parameters of this rank add up to. */
static double sum_of(fsdp_module *model)
{
    fsdp_parameters parameters;
    double sum = 0;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        int64_t numel = fsdp_tensor_numel(parameters.items[i].tensor);
        float *values = malloc((size_t)numel * sizeof *values + 1);

        CHECK_OK(fsdp_tensor_read(parameters.items[i].tensor, FSDP_F32, values));
        for (int64_t k = 0; k < numel; k++)
            sum += (double)values[k] * (double)(1 + k % 7);
        free(values);
    }
    fsdp_parameters_release(&parameters);
    return sum;
}

static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    unsigned drawn = f->seed;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    for (int step = 0; step < STEPS; step++) {
        drawn = drawn * 1103515245u + 12345u;
        for (unsigned i = 0; f->validates && i < (drawn >> 16) % 4; i++)
            CHECK_OK(fsdp_train_validate(run, NULL));
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            (f->validates ? f->reports : f->plain)[step] = report;
    }
    if (fsdp_context_rank(context) == 0)
        f->weights[f->validates] = sum_of(fsdp_train_run_model(run));
    fsdp_train_run_free(run);
}

/* Numbers to the bit, what a step sends, and what it has whole at a time. Buffers of DDP, whose broadcast is that of
 * the next forward, may have been sent by a validation. */
static void check_same_steps(const fixture *f)
{
    for (int step = 0; step < STEPS; step++) {
        const fsdp_train_report *a = &f->plain[step], *b = &f->reports[step];

        CHECK_BYTES(&a->loss, &b->loss, sizeof a->loss);
        CHECK_BYTES(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm);
        CHECK_BYTES(&a->loss_scale, &b->loss_scale, sizeof a->loss_scale);
        CHECK_EQ(a->tokens, b->tokens);
        CHECK_EQ(a->epoch, b->epoch);
        CHECK_EQ(a->skipped, b->skipped);
        CHECK_EQ(a->all_gather, b->all_gather);
        CHECK_EQ(a->reduce_scatter, b->reduce_scatter);
        CHECK_EQ(a->all_reduce, b->all_reduce);
        CHECK_EQ(a->memory.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER],
                 b->memory.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER]);
    }
    CHECK_BYTES(&f->weights[0], &f->weights[1], sizeof f->weights[0]);
}

typedef struct way {
    const char *keys[3][2];
    int least; /* ranks */
} way;

static const way ways[] = {
    {{{"parallelism.strategy", "fsdp2"}}, 1},
    {{{"parallelism.strategy", "fsdp2"}, {"parallelism.fsdp_reshard_after_forward", "never"}}, 1},
    {{{"parallelism.strategy", "fsdp2"}, {"parallelism.fsdp_reshard_after_forward", "2"}}, 4},
    {{{"parallelism.strategy", "fsdp2"}, {"parallelism.prefetch", "1"}}, 1},
    {{{"parallelism.strategy", "fsdp2"}, {"parallelism.gather_dtype", "int8"}}, 1},
    {{{"parallelism.strategy", "zero1"}}, 1},
    {{{"parallelism.strategy", "zero2"}}, 1},
    {{{"parallelism.strategy", "zero3"}}, 1},
    {{{"parallelism.strategy", "hsdp"}, {"parallelism.data_parallel_replicate_degree", "2"}}, 4},
    {{{"parallelism.strategy", "fsdp2"}, {"parallelism.wrap_policy", "root"}}, 1},
    {{{"parallelism.strategy", "zero2"}, {"model.n_layers", "1"}}, 1},
    {{{"parallelism.strategy", "fsdp1"}, {"parallelism.fsdp1_forward_prefetch", "true"}}, 1},
    {{{"parallelism.strategy", "fsdp1"}, {"parallelism.fsdp1_strategy", "shard_grad_op"}}, 1},
    {{{"parallelism.strategy", "fsdp1"}, {"parallelism.fsdp1_use_orig_params", "true"}}, 1},
    {{{"parallelism.strategy", "ddp"}}, 1},
    {{{"parallelism.strategy", "ddp"}, {"parallelism.ddp_static_graph", "true"}}, 1},
    {{{"training.enable_cpu_offload", "true"}}, 1},
    {{{"training.enable_cpu_offload", "true"}, {"training.max_norm", "0"}, {"training.on_nan", "continue"}}, 1},
    {{{"training.mixed_precision_param", "bfloat16"}}, 1},
    {{{"training.mixed_precision_param", "float16"}}, 1},
    {{{"activation_checkpoint.mode", "full"}}, 1},
};

static void compare(fixture *f, const way *w, int world, int micros)
{
    fsdp_train_config *before = f->config;
    char text[24];

    f->config = test_config("%s", llama);
    if (w->least == 1) { /* only GPT-2 has dropout */
        SET(f, "model.preset", "gpt-10m");
        SET(f, "model.n_kv_heads", "2");
        SET(f, "model.dropout", "0.2");
    }
    test_set_keys(f->config, "data.path=%s validation.path=%s validation.steps=3 validation.local_batch_size=3",
                  f->data, f->other);
    for (size_t i = 0; i < sizeof w->keys / sizeof *w->keys && w->keys[i][0]; i++)
        SET(f, w->keys[i][0], w->keys[i][1]);
    snprintf(text, sizeof text, "%d", 2 * world * micros);
    SET(f, "training.global_batch_size", text);
    for (f->validates = false, f->seed++;; f->validates = true) {
        test_run_ranks(world, train, f);
        if (f->validates)
            break;
    }
    check_same_steps(f);
    f->config = before;
}

/* One small world for each way, drawn, and the largest. */
static bool is_drawn(size_t i, int world)
{
    if (ways[i].least > 1 || test_long())
        return world >= ways[i].least;
    return world == 1 + (int)i % 3 || (world == MOST_RANKS && !test_brief());
}

TEST_OF(training_goes_on_as_if_there_had_been_none, setup, NULL, fixture *f)
{
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++)
        for (int world = 1; world <= MOST_RANKS; world++)
            if (is_drawn(i, world))
                compare(f, &ways[i], world, 1 + (int)(i + (size_t)world) % 2);
}

/* ---- the number ---- */

static void validate(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    CHECK_OK(fsdp_train_validate(run, &f->validation[fsdp_context_rank(context)]));
    fsdp_train_run_free(run);
}

/* Window by window, without fsdp_evaluate: the sum of what each token costs. */
static void add_up(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    char *text = test_read_file(f->other, &(size_t){0});
    int32_t ids[TOKENS];
    double sum = 0;

    for (int i = 0; i < TOKENS; i++)
        ids[i] = (unsigned char)text[i];
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    fsdp_no_grad_begin(context);
    for (int at = 0; at < TOKENS - 1; at += LENGTH) {
        int64_t shape[] = {1, TOKENS - 1 - at < LENGTH ? TOKENS - 1 - at : LENGTH};
        fsdp_device *device = test_device(context);
        double loss;

        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_tensor_item(
            CHECK_PTR(fsdp_call(fsdp_train_run_model(run), fsdp_from_data(device, FSDP_I32, 2, shape, ids + at),
                                fsdp_from_data(device, FSDP_I32, 2, shape, ids + at + 1))),
            &loss));
        sum += loss * (double)shape[1];
        fsdp_scope_end(context, NULL);
    }
    fsdp_no_grad_end(context);
    f->weights[0] = sum / (TOKENS - 1);
    fsdp_train_run_free(run);
}

TEST_OF(every_token_counts_once_in_any_world, setup, NULL, fixture *f)
{
    static const char *const strategies[] = {"fsdp2", "fsdp1", "ddp", "zero1"};
    double first = NAN;

    SET(f, "validation.path", f->other);
    SET(f, "validation.local_batch_size", "3");
    test_run_ranks(1, add_up, f);
    for (int world = 1; world <= MOST_RANKS; world++)
        for (size_t i = 0; i < sizeof strategies / sizeof *strategies; i++) {
            SET(f, "parallelism.strategy", strategies[i]);
            test_run_ranks(world, validate, f);
            if (isnan(first))
                first = f->validation[0].loss;
            CHECK_NEAR(first, f->weights[0], 1e-6 * first);
            for (int r = 0; r < world; r++) {
                CHECK_EQ(f->validation[r].tokens, TOKENS - 1);
                CHECK_BYTES(&f->validation[r].loss, &first, sizeof first);
                CHECK_NEAR(f->validation[r].perplexity, exp(first), 1e-9 * exp(first));
                CHECK(f->validation[r].best && f->validation[r].tokens_per_second > 0);
            }
        }
}

TEST_OF(steps_are_batches_of_all_ranks, setup, NULL, fixture *f)
{
    static const int64_t expected[][2] = {
        {1, 3 * LENGTH}, {5, 15 * LENGTH}, {14, 42 * LENGTH}, {15, TOKENS - 1}, {1000, TOKENS - 1}};

    SET(f, "validation.path", f->other);
    SET(f, "validation.local_batch_size", "3");
    for (size_t i = 0; i < sizeof expected / sizeof *expected; i++) {
        double loss = NAN;

        f->config->validation.steps = expected[i][0];
        for (int world = 1; world <= MOST_RANKS; world += 2) {
            test_run_ranks(world, validate, f);
            CHECK_EQ(f->validation[0].tokens, expected[i][1]);
            if (world > 1)
                CHECK_BYTES(&loss, &f->validation[0].loss, sizeof loss);
            loss = f->validation[0].loss;
        }
    }
}

/* ---- a share of the data ---- */

static void look_at_shares(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;
    fsdp_train_report report;
    int64_t windows = (TOKENS - 1) / LENGTH, held = (int64_t)ceil((double)windows * f->config->validation.share);

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    fsdp_train_run_summary(run, &summary);
    CHECK_EQ(summary.data_tokens, (windows - held) * LENGTH + 1);
    CHECK_EQ(summary.held_out_tokens, TOKENS - summary.data_tokens);
    CHECK_EQ(summary.validation_tokens, summary.held_out_tokens);
    /* Several epochs never come to the last token, which is beyond the vocabulary. */
    while (fsdp_train_step(run, &report) == FSDP_OK && report.epoch < 3)
        ;
    CHECK_EQ(report.epoch, 3);
    CHECK_ERROR(fsdp_train_validate(run, NULL), FSDP_FORMAT, "validation after step ");
    CHECK_CONTAINS(fsdp_last_error(), "is beyond the vocabulary of 200");
    fsdp_train_run_free(run);
}

TEST_OF(what_is_held_out_is_never_trained_on, setup, NULL, fixture *f)
{
    static const char *const shares[] = {"0.001", "0.1", "0.5", "0.9"};
    char *text = test_read_file(f->data, &(size_t){0});

    text[TOKENS - 1] = (char)201;
    test_write_file(f->data, text, TOKENS);
    SET(f, "model.vocab_size", "200");
    SET(f, "training.local_batch_size", "1");
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++)
        for (int shuffled = 0; shuffled < 2; shuffled++) {
            SET(f, "validation.share", shares[i]);
            f->config->data.shuffle = shuffled;
            test_run_ranks(1, look_at_shares, f);
        }
}

/* ---- what is refused ---- */

static void create(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_INVALID, f->metrics);
    CHECK_NULL(run);
}

TEST_OF(data_that_is_too_short_is_refused, setup, NULL, fixture *f)
{
    static const char *const cases[][3] = {
        {"validation.share", "0.99", "leaves none to train on"},
        {"training.seq_len", "256", "of the data, 1 windows of 256 tokens, leaves none to train on"},
        {"training.local_batch_size", "43", " tokens to read, of 350, but one window of 8 for each of 86 sequences"},
    };
    char *metrics = f->metrics;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        SET(f, "validation.share", "0.1");
        SET(f, "training.seq_len", "8");
        SET(f, cases[i][0], cases[i][1]);
        f->metrics = strdup(cases[i][2]);
        test_run_ranks(2, create, f);
        free(f->metrics);
    }
    f->metrics = metrics;
}

TEST_OF(a_path_of_one_token_is_refused, setup, NULL, fixture *f)
{
    char *metrics = f->metrics;

    test_write_file(f->other, "a", 1);
    SET(f, "validation.path", f->other);
    f->metrics = strdup("other.txt' has only one token, and none to predict");
    test_run_ranks(2, create, f);
    free(f->metrics);
    f->metrics = metrics;
}

TEST_OF(keys_that_exclude_each_other_are_refused, setup, NULL, fixture *f)
{
    SET(f, "validation.enable", "true");
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID,
                "validation.enable needs validation.path or validation.share: ");
    SET(f, "validation.share", "0.5");
    CHECK_OK(fsdp_train_config_check(f->config, 1));
    SET(f, "validation.path", f->other);
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID, "validation.path and validation.share exclude");
    SET(f, "validation.share", "0");
    CHECK_OK(fsdp_train_config_check(f->config, 1));
    SET(f, "metrics.jsonl", f->other);
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID, "other.txt' is a file of the data, which the run");
    SET(f, "metrics.jsonl", f->metrics);
    SET(f, "training.early_stop", "3");
    CHECK_OK(fsdp_train_config_check(f->config, 1));
    SET(f, "validation.enable", "false");
    CHECK_ERROR(fsdp_train_config_check(f->config, 1), FSDP_INVALID,
                "training.early_stop needs validation.enable other");
    CHECK_ERROR(fsdp_train_config_set(f->config, "validation.share", "1"), FSDP_INVALID, "from 0 to below 1");
    CHECK_ERROR(fsdp_train_config_set(f->config, "validation.steps", "0"), FSDP_INVALID, "from 1");
}

static void create_and_validate(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    CHECK_ERROR(fsdp_train_validate(run, NULL), FSDP_INVALID, "set validation.path or validation.share before the run");
    CHECK_OK(fsdp_train_step(run, NULL)); /* nobody was told to give up */
    fsdp_train_run_free(run);
}

TEST_OF(a_run_without_a_validation_refuses_one, setup, NULL, fixture *f)
{
    test_run_ranks(2, create_and_validate, f);
    SET(f, "validation.path", f->other);
    SET(f, "validation.enable", "false");
    test_run_ranks(2, create_and_validate, f);
}

TEST_OF(an_evaluation_that_fails_leaves_its_result_alone, setup, NULL, fixture *f)
{
    const char *path = f->data;
    const fsdp_evaluate_options options = {.seq_len = LENGTH, .local_batch = 2, .vocab_size = 'b'};
    fsdp_context *context = test_context();
    fsdp_evaluation found = {.seconds = -1};
    fsdp_tokens *tokens = NULL;
    fsdp_train_run *run = NULL;

    CHECK_OK(fsdp_tokens_open(&path, 1, FSDP_TOKENS_TEXT, &tokens));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    CHECK_ERROR(fsdp_evaluate(fsdp_train_run_model(run), tokens, &options, NULL), FSDP_INVALID,
                "a place for the result");
    CHECK(fsdp_evaluate(fsdp_train_run_model(run), tokens, &options, &found) != FSDP_OK); /* 'c' is no token */
    CHECK_NEAR(found.seconds, -1, 0);
    fsdp_train_run_free(run);
    fsdp_tokens_close(tokens);
    fsdp_context_free(context);
}
