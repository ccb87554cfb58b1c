/* A whole run with ranks as threads: what a listener sees, the same training in every world, and what a failing
 * allocation, collective or write at any point of it does. */
#include <math.h>
#include <unistd.h>

#include "device/device.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run_config.h"

enum {
    STEPS = 3,
    MOST_RANKS = 4
};

/* On two ranks a first and a last microbatch of each; those between would fail where the last does. */
#define FAULTY_BATCH "4"

typedef struct seen {
    int started, failed, exported;
    bool offloaded;
    double losses[STEPS];
    int64_t checkpointed;
    size_t peak; /* of the last step */
    int64_t steps, parameters, trained_parameters, local_parameters, collectives;
    fsdp_status status;
} seen;

typedef struct fixture {
    char *directory, *data, *model;
    fsdp_train_config *config;
    seen seen[MOST_RANKS];
    fsdp__fault_kind kind;
    long nth; /* fault of the last rank; 0: none */
    bool fired;
    char message[2000]; /* of the failure */
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    FILE *file;

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->model = test_path(f->directory, "model");
    file = fopen(f->data, "w");
    for (int i = 0; i < 300; i++)
        fprintf(file, "%d bottles of beer on the wall. ", 300 - i);
    fclose(file);
    f->config = test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=3 model.n_kv_heads=1 "
                            "model.ffn_dim=50 data.workers=0 training.steps=3 training.seq_len=16 "
                            "training.global_batch_size=12 training.local_batch_size=1 metrics.log_freq=1 "
                            "data.path=%s",
                            f->data);
    *state = f;
    return 0;
}

/* ---- a run ---- */

static void started(void *arg, const fsdp_train_summary *summary)
{
    seen *s = arg;

    s->started++;
    s->parameters = summary->parameters;
    s->checkpointed = summary->checkpointed;
    s->trained_parameters = summary->trained_parameters;
    s->local_parameters = summary->local_parameters;
    s->offloaded = summary->offloaded;
}

static void stepped(void *arg, const fsdp_train_report *report)
{
    seen *s = arg;

    if (report->step == s->steps + 1 && s->steps < STEPS)
        s->losses[s->steps++] = report->loss;
    s->peak = report->memory_peak_bytes;
    s->collectives = report->all_gather + report->reduce_scatter + report->all_reduce;
}

static void exported(void *arg, const char *path)
{
    seen *s = arg;

    (void)path;
    s->exported++;
}

static void failed(void *arg, fsdp_status status, const char *message)
{
    seen *s = arg;

    (void)status;
    s->failed += message[0] != '\0';
}

static void run_rank(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    int rank = fsdp_context_rank(context);
    bool faulty = f->nth && rank == fsdp_context_world_size(context) - 1;
    seen *s = &f->seen[rank];
    fsdp_train_listener listener = {
        .arg = s, .started = started, .stepped = stepped, .exported = exported, .failed = failed};

    CHECK_PTR(test_device(context));
    if (faulty)
        fsdp__fault_arm(f->kind, f->nth);
    s->status = fsdp_train(context, f->config, &listener);
    if (faulty) {
        f->fired = fsdp__fault_hit(f->kind);
        fsdp__fault_arm(f->kind, 0);
    }
}

static void run(fixture *f, int world)
{
    memset(f->seen, 0, sizeof f->seen);
    f->fired = false;
    test_run_ranks(world, run_rank, f);
}

/* ---- tests ---- */

TEST_OF(every_world_trains_the_same, setup, NULL, fixture *f)
{
    double alone[STEPS];

    CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
    for (int world = 1; world <= 4; world++) {
        int64_t held = 0;

        run(f, world);
        for (int r = 0; r < world; r++) {
            CHECK_OK(f->seen[r].status);
            CHECK_EQ(f->seen[r].started, 1);
            CHECK_EQ(f->seen[r].steps, STEPS);
            CHECK_EQ(f->seen[r].exported, 1);
            CHECK_EQ(f->seen[r].failed, 0);
            CHECK_EQ(f->seen[r].collectives == 0, world == 1);
            held += f->seen[r].local_parameters;
            for (int i = 0; i < STEPS; i++)
                CHECK_NEAR(f->seen[r].losses[i], world == 1 ? f->seen[r].losses[i] : alone[i], 1e-4);
        }
        CHECK_EQ(held, f->seen[0].parameters); /* each row is held once */
        CHECK_EQ(f->seen[0].trained_parameters, f->seen[0].parameters);
        if (world == 1)
            memcpy(alone, f->seen[0].losses, sizeof alone);
    }
    CHECK(alone[STEPS - 1] < alone[0]);
}

TEST_OF(offloaded_or_not_it_trains_the_same, setup, NULL, fixture *f)
{
    seen plain[MOST_RANKS];

    for (int world = 1; world <= 3; world += 2) {
        /* Gradients of four microbatches add up on the device, or on the host. */
        CHECK_OK(fsdp_train_config_set(f->config, "training.no_sync", world == 1 ? "true" : "false"));
        if (world > 1) { /* groups are stepped in the backward */
            CHECK_OK(fsdp_train_config_set(f->config, "training.max_norm", "0"));
            CHECK_OK(fsdp_train_config_set(f->config, "training.on_nan", "continue"));
        }
        CHECK_OK(fsdp_train_config_set(f->config, "training.enable_cpu_offload", "false"));
        run(f, world);
        memcpy(plain, f->seen, sizeof plain);
        test_set_keys(f->config, "training.enable_cpu_offload=true export.path=%s export.overwrite=true", f->model);
        run(f, world);
        for (int r = 0; r < world; r++) {
            CHECK_OK(plain[r].status);
            CHECK_OK(f->seen[r].status);
            CHECK(!plain[r].offloaded && f->seen[r].offloaded == !test_on_cpu());
            CHECK_BYTES(f->seen[r].losses, plain[r].losses, sizeof plain[r].losses);
        }
    }
}

/* The same losses and collectives for less memory. */
TEST_OF(checkpoints_change_only_what_is_kept, setup, NULL, fixture *f)
{
    static const struct {
        const char *mode, *option;
        int64_t blocks;
    } cases[] = {{"none", "2", 0}, {"cheap", "2", 4}, {"selective", "2", 2}, {"selective", "op", 4}, {"full", "2", 4}};
    seen plain = {0};
    size_t peaks[5];

    CHECK_OK(fsdp_train_config_set(f->config, "model.n_layers", "4"));
    CHECK_OK(fsdp_train_config_set(f->config, "training.local_batch_size", "6"));
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_OK(fsdp_train_config_set(f->config, "activation_checkpoint.mode", cases[i].mode));
        CHECK_OK(fsdp_train_config_set(f->config, "activation_checkpoint.selective_ac_option", cases[i].option));
        run(f, 2);
        plain = i == 0 ? f->seen[0] : plain;
        CHECK_EQ(f->seen[0].status, FSDP_OK);
        CHECK_EQ(f->seen[0].checkpointed, cases[i].blocks);
        CHECK_EQ(f->seen[0].collectives, plain.collectives);
        CHECK_BYTES(f->seen[0].losses, plain.losses, sizeof plain.losses);
        peaks[i] = f->seen[0].peak;
    }
    if (test_on_cpu()) {
        CHECK(peaks[1] < peaks[0] && peaks[2] < peaks[0] && peaks[3] < peaks[1]);
        CHECK(peaks[4] < peaks[1] && peaks[4] < peaks[2] && peaks[4] < peaks[3]);
    }
}

TEST_OF(what_all_ranks_know_is_told_by_rank_0_alone, setup, NULL, fixture *f)
{
    CHECK_OK(fsdp_train_config_set(f->config, "data.path", "/nonexistent"));
    run(f, 3);
    for (int r = 0; r < 3; r++) {
        CHECK_EQ(f->seen[r].status, FSDP_NOT_FOUND);
        CHECK_EQ(f->seen[r].failed, r == 0);
        CHECK_EQ(f->seen[r].started, 0);
    }
}

/* ---- runs on several devices ---- */

enum {
    RUNS = 2,
    RUN_STEPS = 2
};

typedef struct several {
    fixture *f;
    const char *devices[RUNS];
    bool together; /* all are there at once */
    double losses[RUNS][RUN_STEPS], validated[RUNS];
} several;

static fsdp_train_run *open_run(fsdp_context *context, const several *s, int number, fsdp_train_config **config)
{
    fsdp_train_run *run;

    CHECK_OK(fsdp__train_config_copy(s->f->config, config));
    CHECK_OK(fsdp_train_config_set(*config, "training.device", s->devices[number]));
    CHECK_OK(fsdp_train_run_create(context, *config, &run));
    return run;
}

static void step(several *s, int number, int step, fsdp_train_run *run, bool writes)
{
    fsdp_train_validation validation;
    fsdp_train_report report;

    CHECK_OK(fsdp_train_step(run, &report));
    if (writes)
        s->losses[number][step] = report.loss;
    if (step == 0)
        return;
    CHECK_OK(fsdp_train_validate(run, &validation));
    if (writes)
        s->validated[number] = validation.loss;
}

static void run_several(fsdp_context *context, void *arg)
{
    several *s = arg;
    bool writes = fsdp_context_rank(context) == 0;
    fsdp_device *front = fsdp__front_device(context);
    fsdp_train_config *configs[RUNS];
    fsdp_train_run *runs[RUNS];

    for (int i = 0; i < RUNS && s->together; i++)
        runs[i] = open_run(context, s, i, &configs[i]);
    for (int n = 0; n < RUN_STEPS && s->together; n++)
        for (int i = 0; i < RUNS; i++)
            step(s, i, n, runs[i], writes);
    for (int i = 0; i < RUNS; i++) {
        if (!s->together)
            runs[i] = open_run(context, s, i, &configs[i]);
        for (int n = 0; n < RUN_STEPS && !s->together; n++)
            step(s, i, n, runs[i], writes);
        fsdp_train_run_free(runs[i]);
        fsdp_train_config_free(configs[i]);
    }
    CHECK(fsdp__front_device(context) == front); /* what names no device is where it was */
}

/* One after the other and both at once, a GPU first or last: each has the losses that it has alone. */
TEST_OF(runs_on_several_devices_share_a_context, setup, NULL, fixture *f)
{
    static const struct {
        const char *devices[RUNS];
        bool together;
        int world;
    } cases[] = {{{"cpu", "cuda"}, false, 1},
                 {{"cpu", "cuda"}, true, 1},
                 {{"cuda", "cpu"}, false, 1},
                 {{"cuda", "cpu"}, true, 2},
                 {{"cuda:0", "cuda:1"}, true, 1}};
    double first[RUN_STEPS] = {0}, validated = 0;

    test_need_gpu();
    test_set_keys(f->config, "validation.share=0.1 optimizer.name=sgd training.global_batch_size=2 validation.steps=1 "
                             "model.n_layers=1");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i += test_brief() ? 3 : 1) {
        several s = {.f = f, .devices = {cases[i].devices[0], cases[i].devices[1]}, .together = cases[i].together};

        test_run_ranks(cases[i].world, run_several, &s);
        if (i == 0) {
            memcpy(first, s.losses[0], sizeof first);
            validated = s.validated[0];
        }
        for (int r = 0; r < RUNS; r++) {
            for (int n = 0; n < RUN_STEPS; n++)
                CHECK_NEAR(s.losses[r][n], first[n], 1e-5);
            CHECK_NEAR(s.validated[r], validated, 1e-5);
        }
    }
}

/* Trains on one device, and evaluates a module of another, that was there before or is made now. */
static void evaluate_elsewhere(fsdp_context *context, void *arg)
{
    static const fsdp_train_listener nobody;
    const several *s = arg;
    fsdp_evaluate_options options = {.seq_len = 8, .local_batch = 2, .steps = 2};
    fsdp_model_config config;
    fsdp_evaluation evaluation[2];
    fsdp_tokens *tokens;
    fsdp_status failed;

    CHECK_OK(fsdp__train_model_config(s->f->config, &config));
    CHECK_OK(fsdp_tokens_open((const char *const[]){s->f->data}, 1, FSDP_TOKENS_TEXT, &tokens));
    for (int i = 0; i < 2; i++) {
        fsdp_module *model =
            CHECK_PTR(fsdp_model_create(context, CHECK_PTR(fsdp_device_open(context, s->devices[1])), &config));

        CHECK_OK(fsdp_module_initialize(model, 7));
        if (i == 0) {
            CHECK_OK(fsdp_evaluate(model, tokens, &options, &evaluation[0]));
            failed = fsdp_train(context, s->f->config, &nobody);
            CHECK_EQ(failed, s->together ? FSDP_OK : FSDP_NOT_FOUND);
        }
        CHECK_OK(fsdp_evaluate(model, tokens, &options, &evaluation[1]));
        CHECK_EQ(evaluation[0].loss, evaluation[1].loss);
        fsdp_module_unref(model);
    }
    fsdp_tokens_close(tokens);
}

TEST_OF(a_run_leaves_the_devices_of_others_alone, setup, NULL, fixture *f)
{
    several s = {.f = f, .together = true};

    test_need_gpu();
    test_set_keys(f->config, "model.n_layers=1 training.steps=1 training.global_batch_size=1");
    for (int i = 0; i < 4; i++) {
        s.devices[1] = i % 2 ? "cuda" : "cpu";
        s.together = i < 2; /* otherwise the run fails */
        CHECK_OK(fsdp_train_config_set(f->config, "training.device", i % 2 ? "cpu" : "cuda"));
        CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
        CHECK_OK(fsdp_train_config_set(f->config, "export.overwrite", "true"));
        if (!s.together)
            CHECK_OK(fsdp_train_config_set(f->config, "data.path", "/nonexistent"));
        test_run_ranks(1, evaluate_elsewhere, &s);
    }
}

/* ---- frozen parameters ---- */

static void check_whole(fsdp_module *model, const char *name, float *whole, bool compare)
{
    fsdp_tensor *tensor;
    float values[50 * 24];

    CHECK_OK(fsdp_full_tensor(CHECK_PTR(fsdp_module_parameter(model, name)), &tensor));
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, compare ? values : whole));
    if (compare)
        CHECK_BYTES(values, whole, (size_t)fsdp_tensor_numel(tensor) * sizeof *values);
    fsdp_tensor_unref(tensor);
}

static void step_rank(fsdp_context *context, void *arg)
{
    const char *const frozen[] = {"model.layers.1.mlp.up_proj.weight", "model.norm.weight"};
    float before[2][50 * 24];
    fixture *f = arg;
    fsdp_train_summary summary;
    fsdp_train_report report;
    fsdp_train_run *run;
    fsdp_module *model;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    fsdp_train_run_summary(run, &summary);
    CHECK_EQ(summary.parameters - summary.trained_parameters, 50 * 24 + 24);
    model = fsdp_train_run_model(run);
    for (int i = 0; i < 2; i++)
        check_whole(model, frozen[i], before[i], false);
    for (int step = 0; step < 2; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        f->seen[fsdp_context_rank(context)].losses[step] = report.loss;
        CHECK_EQ(report.reduce_scatter, fsdp_context_world_size(context) > 1 ? 3 : 0);
    }
    for (int i = 0; i < 2; i++)
        check_whole(model, frozen[i], before[i], true);
    fsdp_train_run_free(run);
}

TEST_OF(what_is_frozen_stays_as_it_was, setup, NULL, fixture *f)
{
    double alone[2] = {0};

    CHECK_OK(fsdp_train_config_set(f->config, "model.frozen", "[model.norm.*, '*.1.*.up_proj.weight']"));
    for (int world = 1; world <= 4; world++) {
        test_run_ranks(world, step_rank, f);
        for (int i = 0; i < 2; i++) {
            if (world == 1)
                alone[i] = f->seen[0].losses[i];
            CHECK_NEAR(f->seen[world - 1].losses[i], alone[i], 1e-4);
        }
    }
}

static void freeze_wrongly(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_config_set(f->config, "model.frozen", "[model.norm.*, model.layers.*.mpl.*]"));
    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_INVALID,
                "model.frozen: 'model.layers.*.mpl.*' matches no parameter; the nearest is 'model.layers.0.mlp.");
    CHECK_OK(fsdp_train_config_set(f->config, "model.frozen", "lm_heads.weight"));
    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_INVALID, "the nearest is 'lm_head.weight'");
    CHECK_OK(fsdp_train_config_set(f->config, "model.frozen", "['*']"));
    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_INVALID, "leaves no parameter to train");
}

TEST_WITH(a_pattern_that_freezes_nothing_or_all_is_refused, setup, NULL)
{
    test_run_ranks(1, freeze_wrongly, *state);
}

/* The n-th use of `kind` on rank 1 of 2 fails, for n growing until a run has fewer uses. */
static void survives(fixture *f, fsdp__fault_kind kind)
{
    f->kind = kind;
    CHECK_OK(fsdp_train_config_set(f->config, "training.global_batch_size", FAULTY_BATCH));
    for (f->nth = 1;; f->nth += 1 + f->nth / (test_brief() ? 2 : 12)) {
        run(f, 2);
        if (!f->fired)
            break;
        CHECK(f->seen[0].status != FSDP_OK && f->seen[1].status != FSDP_OK);
        CHECK(f->seen[0].failed + f->seen[1].failed >= 1);
    }
    CHECK_OK(f->seen[0].status);
    CHECK_OK(f->seen[1].status);
    CHECK(f->nth > 1);
}

static void starve_next_step(void *arg, const fsdp_train_report *report)
{
    (void)arg;
    (void)report;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1);
}

static void starve(fsdp_context *context, void *arg)
{
    const fsdp_train_listener listener = {.stepped = starve_next_step};
    fixture *f = arg;
    fsdp_status status;

    CHECK_PTR(test_device(context));
    status = fsdp_train(context, f->config, &listener);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_STATUS(status, FSDP_NO_MEMORY);
    snprintf(f->message, sizeof f->message, "%s", fsdp_last_error());
}

TEST_OF(a_step_without_memory_says_what_takes_less, setup, NULL, fixture *f)
{
    CHECK_OK(fsdp_train_config_set(f->config, "training.local_batch_size", "2"));
    test_run_ranks(1, starve, f);
    CHECK_CONTAINS(f->message, "; a step takes less memory with a smaller training.local_batch_size or "
                               "training.seq_len, activation_checkpoint.mode=full or more ranks");
    CHECK_OK(fsdp_train_config_set(f->config, "training.local_batch_size", "1"));
    CHECK_OK(fsdp_train_config_set(f->config, "activation_checkpoint.mode", "full"));
    test_run_ranks(1, starve, f);
    CHECK_CONTAINS(f->message, "; a step takes less memory with a smaller training.seq_len or more ranks");
}

TEST_WITH(a_failing_allocation_ends_all_ranks_and_leaks_nothing, setup, NULL)
{
    survives(*state, FSDP__FAULT_ALLOCATION);
}

TEST_WITH(a_failing_collective_ends_all_ranks_and_leaks_nothing, setup, NULL)
{
    survives(*state, FSDP__FAULT_COLLECTIVE);
}

TEST_OF(a_failing_write_leaves_no_model_behind, setup, NULL, fixture *f)
{
    char *rescued = test_path(f->directory, "rescued");

    CHECK_OK(fsdp_train_config_set(f->config, "export.path", f->model));
    CHECK_OK(fsdp_train_config_set(f->config, "export.fallback_path", rescued));
    CHECK_OK(fsdp_train_config_set(f->config, "training.global_batch_size", FAULTY_BATCH));
    f->kind = FSDP__FAULT_WRITE;
    for (f->nth = 1;; f->nth += test_brief() ? 7 : 1) {
        run(f, 2);
        if (!f->fired)
            break;
        CHECK(f->seen[0].status != FSDP_OK && f->seen[1].status != FSDP_OK);
        CHECK(access(f->model, F_OK) != 0);
    }
    CHECK_OK(f->seen[0].status);
    CHECK(access(f->model, F_OK) == 0);
}

static void create_without(fsdp_context *context, void *arg)
{
    bool last = fsdp_context_rank(context) == fsdp_context_world_size(context) - 1;
    fsdp_train_config *config;
    fsdp_train_run *run = NULL;

    (void)arg;
    config = test_empty_config();
    CHECK(fsdp_train_run_create(context, last ? NULL : config, &run) != FSDP_OK);
    CHECK_NULL(run);
}

/* What is NULL is said; a rank that misses its config ends the start of all. */
TEST(a_run_that_is_null_is_refused)
{
    fsdp_train_config *config;
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;

    fsdp_clear_error();
    config = test_empty_config();
    CHECK_ERROR(fsdp_train_run_create(NULL, config, &run), FSDP_INVALID, "a context, a config and a place");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_train(NULL, config, NULL), FSDP_INVALID, "a context, a config and a place");
    fsdp_clear_error();
    CHECK_ERROR(fsdp_train_step(NULL, NULL), FSDP_INVALID, "cannot take a step: there is no run");
    CHECK_CONTAINS((fsdp_clear_error(), fsdp_train_validate(NULL, NULL), fsdp_last_error()), "cannot validate");
    CHECK_CONTAINS((fsdp_clear_error(), fsdp_train_export(NULL), fsdp_last_error()), "cannot export");
    CHECK_CONTAINS((fsdp_clear_error(), fsdp_train_save(NULL), fsdp_last_error()), "cannot save a checkpoint");
    CHECK_NULL(fsdp_train_run_model(NULL));
    fsdp_train_run_summary(NULL, &summary);
    CHECK(!summary.model && summary.world_size == 0);
    fsdp_train_run_free(NULL);
    test_run_worlds(1, 3, create_without, NULL);
}
