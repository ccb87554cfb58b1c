/* When a run is validated, what it tells of that, when it ends by itself, and what becomes of a validation that fails.
 */
#include <math.h>

#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"

enum {
    MOST_RANKS = 3,
    MOST = 12 /* validations */
};

typedef struct fixture {
    char *directory, *data, *metrics, *model;
    fsdp_train_config *config;
    /* Of the run, by rank. */
    fsdp_status status[MOST_RANKS];
    fsdp_train_validation seen[MOST_RANKS][MOST];
    int count[MOST_RANKS], exported[MOST_RANKS], progress[MOST_RANKS];
    int64_t trained[MOST_RANKS]; /* steps at the end */
    long n;                      /* allocation that fails */
    bool hit;                    /* there was such a one */
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    f->metrics = test_path(f->directory, "metrics.jsonl");
    f->model = test_path(f->directory, "model");
    test_write_letters(f->data, 400, 19);
    f->config = test_config("model.preset=llama-1m model.n_layers=1 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=50 data.workers=0 training.steps=7 training.seq_len=8 "
                            "training.local_batch_size=1 training.global_batch_size=6 validation.share=0.2 "
                            "data.path=%s",
                            f->data);
    *state = f;
    return 0;
}

/* ---- whole runs ---- */

typedef struct rank_of {
    fixture *f;
    int rank;
} rank_of;

static void validating(void *arg, int64_t done, int64_t all)
{
    const rank_of *r = arg;

    CHECK(done > 0 && done <= all);
    r->f->progress[r->rank] += done == all;
}

static void validated(void *arg, const fsdp_train_validation *validation)
{
    const rank_of *r = arg;

    CHECK(r->f->count[r->rank] < MOST);
    r->f->seen[r->rank][r->f->count[r->rank]++] = *validation;
}

static void trained(void *arg, int64_t step)
{
    const rank_of *r = arg;

    r->f->trained[r->rank] = step;
}

static void exported(void *arg, const char *path)
{
    const rank_of *r = arg;

    (void)path;
    r->f->exported[r->rank]++;
}

/* That a loss is not finite is told, and is no failure here. */
static void keep_quiet(void *arg, fsdp_log_level level, const char *line)
{
    (void)arg, (void)level, (void)line;
}

static void run_whole(fsdp_context *context, void *arg)
{
    rank_of r = {.f = arg, .rank = fsdp_context_rank(context)};
    fsdp_train_listener listener = {
        .arg = &r, .validating = validating, .validated = validated, .trained = trained, .exported = exported};

    CHECK_PTR(test_device(context));
    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_quiet, NULL);
    r.f->count[r.rank] = r.f->exported[r.rank] = r.f->progress[r.rank] = 0;
    r.f->trained[r.rank] = -1;
    r.f->status[r.rank] = fsdp_train(context, r.f->config, &listener);
}

/* All ranks have seen the same. */
static void run(fixture *f, int world)
{
    test_run_ranks(world, run_whole, f);
    for (int r = 0; r < world; r++) {
        CHECK_OK(f->status[r]);
        CHECK_EQ(f->trained[r], f->trained[0]);
        CHECK_EQ(f->count[r], f->count[0]);
        CHECK_EQ(f->progress[r], f->count[0]);
        for (int i = 0; i < f->count[0]; i++) {
            CHECK_EQ(f->seen[r][i].step, f->seen[0][i].step);
            CHECK_BYTES(&f->seen[r][i].loss, &f->seen[0][i].loss, sizeof f->seen[0][i].loss);
            CHECK_EQ(f->seen[r][i].without_improvement, f->seen[0][i].without_improvement);
        }
    }
}

TEST_OF(validations_come_every_so_many_steps_and_at_the_end, setup, NULL, fixture *f)
{
    static const struct {
        const char *freq;
        int64_t steps[8];
    } cases[] = {{"3", {3, 6, 7}}, {"7", {7}}, {"100", {7}}, {"1", {1, 2, 3, 4, 5, 6, 7}}};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        int count = 0;

        SET(f, "validation.freq", cases[i].freq);
        run(f, 1 + (int)i % MOST_RANKS);
        while (cases[i].steps[count])
            count++;
        CHECK_EQ(f->count[0], count);
        for (int k = 0; k < count; k++)
            CHECK_EQ(f->seen[0][k].step, cases[i].steps[k]);
        CHECK_EQ(f->trained[0], 7);
    }
}

/* A rate so low that nothing changes. */
TEST_OF(a_loss_that_stays_ends_the_run, setup, NULL, fixture *f)
{
    test_set_keys(f->config,
                  "optimizer.lr=1e-30 optimizer.weight_decay=0 training.early_stop=2 validation.freq=2 "
                  "export.path=%s",
                  f->model);
    for (int world = 1; world <= MOST_RANKS; world++) {
        run(f, world);
        CHECK_EQ(f->trained[0], 6);
        CHECK_EQ(f->count[0], 3);
        CHECK_EQ(f->exported[world - 1], 1);
        for (int i = 0; i < 3; i++) {
            CHECK_EQ(f->seen[0][i].best, i == 0);
            CHECK_EQ(f->seen[0][i].best_step, 2);
            CHECK_EQ(f->seen[0][i].without_improvement, i);
            CHECK_EQ(f->seen[0][i].stops, i == 2);
        }
    }
}

/* Each is the lowest, and none by enough. */
TEST_OF(small_improvements_are_none, setup, NULL, fixture *f)
{
    test_set_keys(f->config, "validation.freq=1 training.early_stop=3 training.early_stop_min_delta=100");
    run(f, 2);
    CHECK_EQ(f->trained[0], 4);
    for (int i = 0; i < 4; i++)
        CHECK(f->seen[0][i].best && f->seen[0][i].best_step == i + 1 && f->seen[0][i].without_improvement == i);
    /* Together they are one: what counts is the loss of the last improvement. */
    f->config->training.early_stop_min_delta = 1.5 * (f->seen[0][0].loss - f->seen[0][1].loss);
    run(f, 2);
    CHECK(f->count[0] > 4);
    CHECK_EQ(f->seen[0][1].without_improvement, 1);
    CHECK_EQ(f->seen[0][2].without_improvement, 0);
}

TEST_OF(what_is_not_a_number_is_no_improvement, setup, NULL, fixture *f)
{
    char *text;

    test_set_keys(f->config,
                  "optimizer.lr=1e30 training.on_nan=continue training.early_stop=3 validation.freq=1 "
                  "metrics.jsonl=%s",
                  f->metrics);
    run(f, 2);
    CHECK_EQ(f->seen[0][f->count[0] - 1].without_improvement, 3);
    CHECK(isnan(f->seen[0][f->count[0] - 1].loss) && !f->seen[0][f->count[0] - 1].best);
    text = test_read_file(f->metrics, &(size_t){0});
    CHECK_CONTAINS(text, "\"loss\": null, \"perplexity\": null, \"tokens\": ");
}

TEST_OF(each_has_a_line_behind_that_of_its_step, setup, NULL, fixture *f)
{
    char *at, expected[80];

    SET(f, "validation.freq", "3");
    SET(f, "metrics.jsonl", f->metrics);
    run(f, 2);
    at = test_read_file(f->metrics, NULL);
    for (int i = 0; i < f->count[0]; i++) {
        snprintf(expected, sizeof expected, "\n{\"step\": %d,", (int)f->seen[0][i].step);
        at = CHECK_PTR(strstr(at, expected));
        at = CHECK_PTR(strchr(at + 1, '\n'));
        snprintf(expected, sizeof expected,
                 "\n{\"validation\": %d, \"loss\": %.9g, \"perplexity\": ", (int)f->seen[0][i].step,
                 f->seen[0][i].loss);
        CHECK_EQ(strncmp(at, expected, strlen(expected)), 0);
        CHECK_EQ(f->seen[0][i].tokens, 87);
    }
}

/* ---- validations that fail ---- */

static void fail_alone(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_status status;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->n);
    status = fsdp_train_validate(run, NULL);
    f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_EQ(status != FSDP_OK, f->hit);
    if (f->hit)
        CHECK_CONTAINS(fsdp_last_error(), "validation after step 0: ");
    CHECK(fsdp_grad_enabled(context) && fsdp_train_run_model(run)->training);
    fsdp_train_run_free(run);
}

TEST_OF(an_allocation_that_fails_is_an_error, setup, NULL, fixture *f)
{
    SET(f, "validation.steps", "2");
    for (f->n = 1, f->hit = true; f->hit; f->n += test_long() ? 1 : 5)
        test_run_ranks(1, fail_alone, f);
    CHECK(f->n > 20);
}

/* The peers do not wait for a rank that is out of memory. */
static void fail_together(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    test_meet();
    if (fsdp_context_rank(context) == 1)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->n);
    CHECK(fsdp_train_validate(run, NULL) != FSDP_OK);
    CHECK_CONTAINS(fsdp_last_error(), "validation after step 0");
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    fsdp_train_run_free(run);
}

TEST_OF(one_rank_that_fails_ends_all, setup, NULL, fixture *f)
{
    for (f->n = 1; f->n < 100; f->n += 24)
        test_run_ranks(MOST_RANKS, fail_together, f);
}
