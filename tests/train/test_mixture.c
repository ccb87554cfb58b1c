/* Runs on mixtures, on rows that are held out, and for a number of epochs: they go on where they stood. */
#include <math.h>

#include "data/row_fixture.h"
#include "support/program.h"
#include "train/config.h"
#include "train/steps.h"

enum {
    KEYS = 48,
    MOST = 12
};

/* Some steps of a run, from where its checkpoint stands up to `until`, and what they report. */
typedef struct course {
    const char *keys[KEYS]; /* pairs; NULL ends them */
    const char *mixture;    /* NULL: none */
    int until;
    int first; /* the step after that of the checkpoint */
    fsdp_train_summary summary;
    fsdp_train_report reports[MOST + 1];
    fsdp_train_validation validation;
    char log[8192];
    fsdp_status status; /* of the start */
} course;

static void note_log(void *arg, fsdp_log_level level, const char *line)
{
    course *c = arg;

    (void)level;
    if (strlen(c->log) + strlen(line) + 2 < sizeof c->log)
        strcat(strcat(c->log, line), "\n");
}

static void go(fsdp_context *context, void *arg)
{
    course *c = arg;
    bool first = fsdp_context_rank(context) == 0;
    fsdp_train_config *config = NULL;
    fsdp_train_report report;
    fsdp_train_run *run = NULL;
    fsdp_status status;

    fsdp_context_set_log(context, first ? FSDP_LOG_INFO : FSDP_LOG_ERROR, first ? note_log : NULL, c);
    config = test_empty_config();
    for (int i = 0; c->keys[i]; i += 2)
        CHECK_OK(fsdp_train_config_set(config, c->keys[i], c->keys[i + 1]));
    if (c->mixture)
        CHECK_OK(fsdp_train_config_set(config, "data.mixture", c->mixture));
    status = fsdp_train_run_create(context, config, &run);
    if (first) {
        c->status = status;
        if (status != FSDP_OK)
            snprintf(c->log, sizeof c->log, "%s", fsdp_last_error());
    }
    if (status == FSDP_OK) {
        fsdp_train_summary summary;

        fsdp_train_run_summary(run, &summary);
        if (first) {
            c->summary = summary;
            c->first = (int)summary.resumed_step + 1;
        }
        for (int64_t step = summary.resumed_step + 1; step <= c->until; step++) {
            CHECK_OK(fsdp_train_step(run, &report));
            if (first)
                c->reports[step] = report;
        }
        if (config->validation.path_count > 0 || config->validation.share > 0) {
            fsdp_train_validation validation;

            CHECK_OK(fsdp_train_validate(run, &validation));
            if (first)
                c->validation = validation;
        }
        if (config->checkpoint.folder)
            CHECK_OK(fsdp_train_save(run));
        fsdp_train_run_free(run);
    }
}

static int add(course *c, const char *key, const char *value)
{
    int at = 0;

    while (c->keys[at])
        at += 2;
    c->keys[at] = key;
    c->keys[at + 1] = value;
    return at;
}

static course small_course(void)
{
    return (course){.keys = {"model.path", REFERENCE "/models/tiny-llama", "training.seq_len", "64",
                             "training.local_batch_size", "2", "training.global_batch_size", "4", "training.steps",
                             "12", "data.order", "shuffled", "data.on_long_row", "split", "metrics.log_freq", "1",
                             "optimizer.lr", "0.01", NULL}};
}

/* Rows and tokens, mixed 2 to 1, in one course, and in two with a checkpoint in between: the same ranks come to the
 * same bits, others to the same numbers. */
TEST(a_mixture_goes_on_where_it_stood)
{
    char mixture[512];
    course whole = small_course();
    row_file rows;

    row_file_of_reference(&rows);
    snprintf(mixture, sizeof mixture, "[{path: '%s', weight: 2}, {path: '%s/tokens.bin'}]", rows.path, REFERENCE);
    whole.mixture = mixture;
    whole.until = MOST;
    test_run_ranks(2, go, &whole);
    CHECK_CONTAINS(whole.log, "data.mixture[0]: ");
    for (int world = 1; world <= 2; world++) {
        char *folder = test_directory();
        course part = small_course();

        part.mixture = mixture;
        add(&part, "checkpoint.folder", folder);
        part.until = 5;
        test_run_ranks(2, go, &part);
        part.until = MOST;
        test_run_ranks(world, go, &part);
        CHECK_EQ(part.first, 6);
        for (int step = 1; step <= MOST; step++) {
            CHECK_EQ(part.reports[step].answer_tokens, whole.reports[step].answer_tokens);
            CHECK_EQ(part.reports[step].tokens, whole.reports[step].tokens);
            CHECK_EQ(part.reports[step].epoch, whole.reports[step].epoch);
            if (world == 2 || step <= 5)
                CHECK(part.reports[step].loss == whole.reports[step].loss);
            CHECK_NEAR(part.reports[step].loss, whole.reports[step].loss, 1e-4 * whole.reports[step].loss);
        }
        test_directory_free(folder);
    }
    row_file_close(&rows);
}

TEST(another_packing_is_other_data)
{
    char *folder = test_directory();
    course c = small_course();
    row_file rows;
    int at;

    row_file_of_reference(&rows);
    add(&c, "data.path", rows.path);
    add(&c, "checkpoint.folder", folder);
    at = add(&c, "data.packing", "true");
    c.until = 1;
    test_run_ranks(1, go, &c);
    CHECK_OK(c.status);
    c.keys[at + 1] = "best_fit";
    test_run_ranks(1, go, &c);
    CHECK_EQ(c.status, FSDP_INVALID);
    CHECK_CONTAINS(c.log, "go through different data");
    row_file_close(&rows);
}

/* The steps of two epochs and a half: 60 windows, 4 in a step. */
TEST(epochs_are_steps)
{
    course c = small_course();
    row_file rows;

    row_file_of_reference(&rows);
    add(&c, "data.path", rows.path);
    add(&c, "data.packing", "false");
    add(&c, "training.seq_len", "128");
    add(&c, "training.epochs", "2.5");
    c.until = 1;
    test_run_ranks(2, go, &c);
    CHECK_EQ(c.summary.steps, 38); /* 37.5 */
    CHECK_CONTAINS(
        c.log, "training.epochs 2.5 of 60 windows, 4 of them in a step, are 38 steps, in place of training.steps 12");
    row_file_close(&rows);
}

/* Validates on rows in batches of two at several worlds; the mean is that over all answers, and held-out rows are those
 * of a file of their own. */
TEST(validations_take_the_mean_over_all_answers)
{
    double losses[4];
    row_file rows;

    row_file_of_reference(&rows);
    for (int i = 0; i < 4; i++) {
        course c = small_course();

        add(&c, "data.path", rows.path);
        add(&c, "validation.path", rows.path);
        add(&c, "data.packing", i % 2 ? "best_fit" : "false");
        add(&c, "training.seq_len", "128");
        add(&c, "validation.local_batch_size", i < 2 ? "3" : "1");
        test_run_ranks(i < 2 ? 1 : 2, go, &c);
        losses[i] = c.validation.loss;
        CHECK_EQ(c.validation.tokens, c.summary.validation_tokens);
        CHECK_EQ(c.validation.tokens, rows.rows->learned);
        CHECK_NEAR(losses[i], losses[0], 2e-6 * losses[0]);
    }
    row_file_close(&rows);
}

TEST(some_rows_are_held_out)
{
    course c = small_course();
    row_file rows;

    row_file_of_reference(&rows);
    add(&c, "data.path", rows.path);
    add(&c, "data.packing", "false");
    add(&c, "training.seq_len", "128");
    add(&c, "validation.share", "0.1");
    test_run_ranks(2, go, &c);
    CHECK_CONTAINS(c.log, "data.path: 54 rows of ");
    CHECK_EQ(c.summary.data_tokens + c.summary.held_out_tokens, rows.rows->tokens);
    CHECK(isfinite(c.validation.loss) && c.validation.tokens > 0);
    row_file_close(&rows);
}

typedef struct refused {
    const char *key, *value, *path, *message;
} refused;

TEST(what_does_not_fit_is_refused)
{
    static const char tokens[] = REFERENCE "/tokens.bin";
    static const refused all[] = {
        {"data.train_on", "answers", tokens, "data.train_on is answers, which is for conversations, but data.path is"},
        {"data.packing", "true", tokens, "data.packing is set, which is for conversations"},
        {"data.on_long_row", "skip", tokens, "data.on_long_row is set"},
        {"data.chat_template", "a.jinja", tokens, "data.chat_template is set, which is for conversations"},
        {"data.mixture", "[{path: a.bin}]", tokens, "/tokens.bin' and 1 source: add the file"},
        {"data.on_long_row", "error", NULL, "has 66 tokens, which is more than training.seq_len (--seq-len) 64"},
        {"validation.share", "0.999", NULL, "60 rows, leaves none to train on"},
    };
    row_file rows;

    row_file_of_reference(&rows);
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        course c = small_course();

        c.keys[13] = "error"; /* data.on_long_row */
        if (all[i].path == NULL && strcmp(all[i].key, "data.on_long_row") != 0)
            c.keys[13] = "split";
        add(&c, "data.path", all[i].path ? all[i].path : rows.path);
        add(&c, all[i].key, all[i].value);
        test_run_ranks(2, go, &c);
        CHECK(c.status != FSDP_OK);
        CHECK_CONTAINS(c.log, all[i].message);
    }
    row_file_close(&rows);
}
