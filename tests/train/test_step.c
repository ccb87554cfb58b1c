/* A step whose loss or gradient norm is not finite: what becomes of it, on all ranks alike, also where the values of
 * one rank alone are the cause. And what a device hears of steps. */
#include <math.h>

#include "device/impl.h"
#include "device/segments.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

enum {
    STEPS = 3,
    SEQUENCES = 8, /* a step */
    LENGTH = 16,
    VOCABULARY = 256,
    POISON = 'Z', /* a token whose embedding is not finite, in one sequence of the data */
    MOST_RANKS = 4
};

typedef struct fixture {
    char *directory, *data, *metrics, *model;
    fsdp_train_config *config;
    float value; /* in the embedding of POISON */
    /* Of fsdp_train, by rank. */
    fsdp_status status[MOST_RANKS];
    int exported[MOST_RANKS], warned[MOST_RANKS], failed[MOST_RANKS];
    char message[MOST_RANKS][512];
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    f->model = test_path(f->directory, "model");
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=50 model.tie_word_embeddings=false data.workers=0 training.steps=3 "
                            "training.seq_len=16 training.global_batch_size=8 training.local_batch_size=1 "
                            "data.path=%s metrics.jsonl=%s",
                            f->data, f->metrics);
    f->value = NAN;
    *state = f;
    return 0;
}

/* Three steps of data; in step `step` the sequence that the last rank reads first has the token. */
static void write_data(const fixture *f, int world, int step)
{
    char text[STEPS * SEQUENCES * LENGTH + 1];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * 7 % 26);
    text[((step - 1) * SEQUENCES + world - 1) * LENGTH + 3] = POISON;
    test_write_file(f->data, text, sizeof text);
}

/* Each rank has VOCABULARY / world rows of the embedding. */
static void poison(fsdp_context *context, fsdp_module *model, float value)
{
    fsdp_tensor *embedding = CHECK_PTR(fsdp_module_parameter(model, "model.embed_tokens.weight"));
    int64_t rows = VOCABULARY / fsdp_context_world_size(context), numel = fsdp_tensor_numel(embedding);
    float *values = malloc((size_t)numel * sizeof *values);

    CHECK_OK(fsdp_tensor_read(embedding, FSDP_F32, values));
    if (POISON / rows == fsdp_context_rank(context))
        values[POISON % rows * (numel / rows)] = value;
    CHECK_OK(fsdp_tensor_write(embedding, FSDP_F32, values));
    free(values);
}

/* Sum of what this rank has of a parameter: NaN when a part of it is. */
static double sum_of(fsdp_module *model, const char *name)
{
    fsdp_tensor *tensor = CHECK_PTR(fsdp_module_parameter(model, name));
    int64_t numel = fsdp_tensor_numel(tensor);
    float *values = malloc((size_t)numel * sizeof *values + 1);
    double sum = 0;

    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    for (int64_t i = 0; i < numel; i++)
        sum += values[i];
    free(values);
    return sum;
}

/* ---- step by step ---- */

typedef struct plan {
    fixture *f;
    int on_nan, bad; /* the step with the token */
} plan;

static void count_line(void *arg, fsdp_log_level level, const char *line)
{
    CHECK_EQ(level, FSDP_LOG_WARNING);
    CHECK_CONTAINS(line, "loss nan, gradient norm nan: ");
    ++*(int *)arg;
}

static void steps_of_a_rank(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    const char *head = "lm_head.weight";
    int warnings = 0;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    double before;

    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_INFO, count_line, &warnings);
    CHECK_OK(fsdp_train_run_create(context, p->f->config, &run));
    poison(context, fsdp_train_run_model(run), p->f->value);
    for (int step = 1; step <= STEPS; step++) {
        bool bad = step == p->bad, after = step > p->bad && p->on_nan == FSDP_TRAIN_CONTINUE;
        fsdp_status status;

        before = sum_of(fsdp_train_run_model(run), head);
        status = fsdp_train_step(run, &report);
        CHECK_EQ(report.step, step);
        CHECK_EQ(report.not_finite, bad || after);
        CHECK_EQ(isfinite(report.grad_norm), !(bad || after));
        CHECK_EQ(report.tokens, step * SEQUENCES * LENGTH);
        if (p->f->config->metrics.jsonl || bad)
            CHECK_EQ(isfinite(report.loss), !(bad || after));
        CHECK_EQ(report.skipped, p->on_nan != FSDP_TRAIN_CONTINUE && step >= p->bad);
        /* The step before is what remains, bit by bit. */
        CHECK_EQ(before == sum_of(fsdp_train_run_model(run), head), bad && p->on_nan != FSDP_TRAIN_CONTINUE);
        CHECK_EQ(isfinite(sum_of(fsdp_train_run_model(run), head)), p->on_nan != FSDP_TRAIN_CONTINUE || step < p->bad);
        if (bad && p->on_nan == FSDP_TRAIN_STOP) {
            char expected[40];

            snprintf(expected, sizeof expected, "step %d: loss nan, gradient norm nan", step);
            CHECK_EQ(status, FSDP_NOT_FINITE);
            CHECK_CONTAINS(fsdp_last_error(), expected);
            CHECK_CONTAINS(fsdp_last_error(), "nothing is exported");
            CHECK_CONTAINS(fsdp_last_error(), step == 1 ? "drawn by training.seed" : "optimizer.lr (0.0003)");
            CHECK(step > 1 || strstr(fsdp_last_error(), "' holds NaN or infinite values"));
            break;
        }
        CHECK_OK(status);
    }
    CHECK_EQ(warnings, fsdp_context_rank(context) == 0 && p->on_nan != FSDP_TRAIN_STOP);
    CHECK_OK(fsdp_barrier(fsdp_world(context))); /* the world is as it was */
    fsdp_train_run_free(run);
}

/* The lines of steps up to `last`, and that step `bad` has no loss. */
static void check_metrics(const fixture *f, int last, int bad)
{
    char *text = test_read_file(f->metrics, &(size_t){0}), expected[64];

    for (int step = 1; step <= STEPS; step++) {
        snprintf(expected, sizeof expected, "{\"step\": %d, \"loss\": %s", step, step == bad ? "null" : "");
        CHECK_EQ(strstr(text, expected) != NULL, step <= last);
    }
    remove(f->metrics);
}

TEST_OF(every_policy_in_every_world, setup, NULL, fixture *f)
{
    static const char *const policies[] = {"stop", "skip", "continue"};

    for (int world = 1; world <= MOST_RANKS; world *= 2)
        for (int policy = 0; policy < 3; policy++)
            for (int bad = 1; bad <= STEPS; bad++) {
                plan p = {.f = f, .on_nan = policy, .bad = bad};

                if (test_brief() && world != 1 << (bad - 1))
                    continue;
                CHECK_OK(fsdp_train_config_set(f->config, "training.on_nan", policies[policy]));
                write_data(f, world, bad);
                test_run_ranks(world, steps_of_a_rank, &p);
                check_metrics(f, policy == FSDP_TRAIN_STOP ? bad : STEPS, bad);
            }
}

TEST_OF(steps_that_nobody_is_told_of_are_looked_at_too, setup, NULL, fixture *f)
{
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", ""));
    CHECK_OK(fsdp_train_config_set(f->config, "metrics.log_freq", "1000"));
    for (int policy = 0; policy < 3; policy++) {
        plan p = {.f = f, .on_nan = policy, .bad = 2};

        f->config->training.on_nan = policy;
        write_data(f, 2, 2);
        test_run_ranks(2, steps_of_a_rank, &p);
    }
}

typedef struct logged_steps {
    fixture *f;
    int64_t log_freq;
} logged_steps;

static void run_logged(fsdp_context *context, void *arg)
{
    const logged_steps *l = arg;
    fsdp_train_report report;
    fsdp_train_run *run;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, l->f->config, &run));
    for (int64_t step = 1; step <= 24; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        CHECK_EQ(isnan(report.loss), !(step == 1 || step % 10 == 0 || step % l->log_freq == 0 || step == 24));
    }
    fsdp_train_run_free(run);
}

TEST_OF(every_step_that_is_logged_has_a_loss, setup, NULL, fixture *f)
{
    logged_steps l = {f, 12};

    test_set_keys(f->config, "metrics.jsonl= metrics.log_freq=12 training.steps=24");
    write_data(f, 2, 1);
    test_run_ranks(2, run_logged, &l);
}

/* No group of them is stepped in the backward, where one may be left out. */
TEST_OF(steps_of_offloaded_shards_are_left_out_too, setup, NULL, fixture *f)
{
    f->config->training.enable_cpu_offload = true;
    f->config->training.max_norm = 0;
    for (int policy = 0; policy < 3; policy++) {
        plan p = {.f = f, .on_nan = policy, .bad = 2};

        f->config->training.on_nan = policy;
        write_data(f, 2, 2);
        test_run_ranks(2, steps_of_a_rank, &p);
    }
}

static void go_on_after_a_stop(fsdp_context *context, void *arg)
{
    const plan *p = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    fsdp_module *model;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, p->f->config, &run));
    model = fsdp_train_run_model(run);
    poison(context, model, p->f->value);
    CHECK_ERROR(fsdp_train_step(run, &report), FSDP_NOT_FINITE, "step 1: loss nan");
    /* Whoever wants to look at what it was gathers the parameters, or not. */
    if (p->bad)
        CHECK_OK(fsdp_module_unshard(model));
    for (int step = 2; step <= STEPS; step++) {
        double before = sum_of(model, "lm_head.weight");

        CHECK_OK(fsdp_train_step(run, &report));
        CHECK_EQ(report.step, step);
        CHECK(isfinite(report.loss) && isfinite(report.grad_norm));
        CHECK_EQ(report.skipped, 1);
        CHECK(sum_of(model, "lm_head.weight") != before);
    }
    fsdp_train_run_free(run);
}

TEST_OF(a_run_that_was_stopped_can_go_on, setup, NULL, fixture *f)
{
    f->config->training.on_nan = FSDP_TRAIN_STOP;
    for (int reshard = FSDP_RESHARD_AUTO; reshard <= FSDP_RESHARD_NEVER; reshard++)
        for (int world = 1; world <= MOST_RANKS; world *= 2)
            for (int gathers = 0; gathers < 2; gathers++) {
                plan p = {.f = f, .bad = gathers};

                if (test_brief() && world != 1 << reshard)
                    continue;
                f->config->parallelism.reshard_after_forward = -reshard;
                write_data(f, world, 1);
                test_run_ranks(world, go_on_after_a_stop, &p);
            }
}

/* ---- a whole run ---- */

typedef struct rank_of {
    fixture *f;
    int rank;
} rank_of;

static void on_exported(void *arg, const char *path)
{
    const rank_of *r = arg;

    (void)path;
    r->f->exported[r->rank]++;
}

static void on_warned(void *arg, fsdp_log_level level, const char *message)
{
    const rank_of *r = arg;

    CHECK_EQ(level, FSDP_LOG_WARNING);
    r->f->warned[r->rank]++;
    snprintf(r->f->message[r->rank], sizeof r->f->message[0], "%s", message);
}

static void on_failed(void *arg, fsdp_status status, const char *message)
{
    const rank_of *r = arg;

    CHECK_EQ(status, FSDP_NOT_FINITE);
    r->f->failed[r->rank]++;
    snprintf(r->f->message[r->rank], sizeof r->f->message[0], "%s", message);
}

static void whole_run(fsdp_context *context, void *arg)
{
    rank_of r = {.f = arg, .rank = fsdp_context_rank(context)};
    fsdp_train_listener listener = {.arg = &r, .exported = on_exported, .failed = on_failed};

    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_INFO, on_warned, &r);
    r.f->status[r.rank] = fsdp_train(context, r.f->config, &listener);
}

/* A rate that throws the weights far out in the first step. */
TEST_OF(a_run_that_diverges_says_so_once, setup, NULL, fixture *f)
{
    write_data(f, 1, 1);
    test_set_keys(f->config, "optimizer.lr=1e30 export.path=%s training.on_nan=stop", f->model);
    test_run_ranks(2, whole_run, f);
    for (int r = 0; r < 2; r++) {
        CHECK_EQ(f->status[r], FSDP_NOT_FINITE);
        CHECK_EQ(f->exported[r] + f->warned[r], 0);
        CHECK_EQ(f->failed[r], r == 0);
    }
    CHECK_CONTAINS(f->message[0], "step 2: ");
    CHECK_CONTAINS(f->message[0], "or a smaller training.max_norm (1)");
    CHECK(remove(f->model) != 0);

    CHECK_OK(fsdp_train_config_set(f->config, "training.max_norm", "0"));
    test_run_ranks(2, whole_run, f);
    CHECK_CONTAINS(f->message[0], "or clipping by training.max_norm (0)");
    CHECK_OK(fsdp_train_config_set(f->config, "training.max_norm", "1"));

    CHECK_OK(fsdp_train_config_set(f->config, "training.on_nan", "continue"));
    test_run_ranks(2, whole_run, f);
    for (int r = 0; r < 2; r++) {
        CHECK_OK(f->status[r]);
        CHECK_EQ(f->exported[r], 1);
        CHECK_EQ(f->warned[r], r == 0); /* not in every step */
    }
    CHECK_CONTAINS(f->message[0], "step 2: ");
    CHECK_CONTAINS(f->message[0], "training.on_nan: continue");
}

/* The loss and the norm of the only step are finite, its result is not. */
TEST_OF(what_the_last_step_threw_out_of_range_is_not_exported, setup, NULL, fixture *f)
{
    write_data(f, 1, 1);
    CHECK_OK(fsdp_train_config_set(f->config, "training.steps", "1"));
    CHECK_OK(fsdp_train_config_set(f->config, "optimizer.lr", "1e39")); /* infinite as a float */
    CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
    for (int policy = FSDP_TRAIN_STOP; policy <= FSDP_TRAIN_SKIP; policy++) {
        f->config->training.on_nan = policy;
        test_run_ranks(2, whole_run, f);
        for (int r = 0; r < 2; r++) {
            CHECK_EQ(f->status[r], FSDP_NOT_FINITE);
            CHECK_EQ(f->exported[r], 0);
        }
        CHECK_CONTAINS(f->message[0], "after step 1 'model.embed_tokens.weight' holds NaN or infinite values");
    }
    f->config->training.on_nan = FSDP_TRAIN_CONTINUE;
    test_run_ranks(2, whole_run, f);
    CHECK_OK(f->status[0]);
    CHECK_EQ(f->exported[1], 1);
}

TEST_OF(an_infinite_loss_is_seen_by_ranks_whose_own_is_not, setup, NULL, fixture *f)
{
    plan p = {.f = f, .on_nan = FSDP_TRAIN_SKIP, .bad = 2};

    f->value = INFINITY;
    f->config->training.on_nan = FSDP_TRAIN_SKIP;
    write_data(f, 4, 2);
    test_run_ranks(4, steps_of_a_rank, &p);
}

enum {
    PLACED = 6
};

typedef struct outcome {
    double losses[PLACED], validated, norm;
} outcome;

/* Trains with blocks of 512 KiB and more. Every second step is followed by a validation, and the third and sixth ask
 * for more than the others, because their gradients and weights are looked at. */
static outcome train_on_gpu(const char *directory, const char *mapping)
{
    char *data = test_path(directory, "letters.txt"), *board = test_path(directory, "board");
    fsdp_context *context = test_context();
    fsdp_train_run *run = NULL;
    fsdp_train_validation validation = {.loss = 0};
    fsdp_train_report report;
    outcome out;

    setenv("FSDP_FAKECUDA_MAPPING", mapping, 1);
    test_write_letters(data, 16384, 26);
    CHECK_OK(fsdp_train_run_create(
        context,
        test_config("model.preset=llama-1m model.n_layers=2 model.dim=32 model.n_heads=2 model.n_kv_heads=1 "
                    "model.ffn_dim=520 model.vocab_size=1024 data.workers=0 training.device=cuda training.steps=%d "
                    "training.seq_len=64 training.local_batch_size=4 validation.share=0.1 validation.freq=2 "
                    "validation.steps=1 metrics.histogram_freq=3 metrics.tensorboard=%s data.path=%s",
                    PLACED, board, data),
        &run));
    for (int i = 0; i < PLACED; i++) {
        CHECK_OK(fsdp_train_step(run, &report));
        out.losses[i] = report.loss;
        out.norm = report.grad_norm;
        if (i % 2)
            CHECK_OK(fsdp_train_validate(run, &validation));
    }
    out.validated = validation.loss;
    CHECK_EQ(fsdp_cuda(context, 0)->allocator->places.steps, mapping[0] == '1' ? PLACED : 0);
    fsdp_train_run_free(run);
    fsdp_context_free(context);
    unsetenv("FSDP_FAKECUDA_MAPPING");
    return out;
}

TEST(where_memory_lies_changes_no_bit)
{
    outcome placed, anywhere;

    test_need_gpu();
    if (test_brief() || test_machines_of(2) > 1) /* one rank, whose bits are compared */
        skip();
    placed = train_on_gpu(test_directory(), "1");
    anywhere = train_on_gpu(test_directory(), "0");
    CHECK_BYTES(&placed, &anywhere, sizeof placed);
    CHECK(placed.losses[PLACED - 1] < placed.losses[0]);
}
