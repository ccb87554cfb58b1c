/* Which checkpoints a run writes, and what it does about one that it cannot write. */
#include <math.h>
#include <sys/stat.h>
#include <unistd.h>

#include "train/config.h"
#include "train/run.h"
#include "train/story.h"

static void check_saved(const story *s, const int *steps, int count)
{
    CHECK_EQ(s->saved_count, count);
    for (int i = 0; i < count; i++)
        CHECK_EQ(s->saved[i], steps[i]);
}

/* Which of step-1 ... step-6 are there, as digits. */
static const char *there(const story *s, char text[STORY_STEPS + 1])
{
    int length = 0;

    for (int step = 1; step <= STORY_STEPS; step++) {
        char name[24];

        snprintf(name, sizeof name, "step-%d", step);
        if (story_has(s, name))
            text[length++] = (char)('0' + step);
    }
    text[length] = '\0';
    return text;
}

/* ---- when ---- */

STORY_TEST(it_saves_at_intervals_at_its_end_and_when_it_is_asked)
{
    char text[STORY_STEPS + 1];

    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.interval", "4");
    s->save_after = 3;
    for (int async = 0; async < 2; async++) {
        story_set(s, "checkpoint.async_mode", async ? "async" : "disabled");
        story_go(s, 2);
        check_saved(s, (int[]){3, 4, 6}, 3);
        CHECK_STRING(there(s, text), "346");
        CHECK(!story_has(s, ".run"));
        test_directory_free(strdup(s->folder));
    }
    story_set(s, "checkpoint.enable", "false");
    story_go(s, 2);
    check_saved(s, NULL, 0);
    CHECK(!story_has(s, ""));
}

/* A run that was killed in a save leaves a folder that takes room. */
STORY_TEST(what_a_dead_run_has_left_is_removed_at_the_start)
{
    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=100 training.steps=4", s->folder);
    CHECK_EQ(mkdir(s->folder, 0700), 0);
    CHECK_EQ(mkdir(test_path(s->folder, "step-9.saving"), 0700), 0);
    story_set(s, "data.path", "/none"); /* not before the run is known to start */
    story_run(s, 2);
    CHECK(s->status != FSDP_OK && story_has(s, "step-9.saving"));
    story_set(s, "data.path", test_path(s->directory, "data.txt"));
    story_go(s, 2);
    CHECK(!story_has(s, "step-9.saving"));
    CHECK_CONTAINS(s->log, "/step-9.saving' is removed: a run has left it that died in a save");
}

STORY_TEST(it_keeps_the_newest_and_multiples)
{
    char text[STORY_STEPS + 1];

    test_set_keys(s->config,
                  "checkpoint.folder=%s checkpoint.interval=1 checkpoint.keep_latest_k=2 "
                  "checkpoint.keep_every=3",
                  s->folder);
    story_go(s, 2);
    CHECK_EQ(s->saved_count, 6);
    CHECK_STRING(there(s, text), "356");
}

/* The best validation is not the last here: the learning rate is absurd. */
STORY_TEST(the_best_checkpoint_stays)
{
    char text[STORY_STEPS + 1], expected[3] = "";

    test_set_keys(s->config,
                  "checkpoint.folder=%s checkpoint.interval=100 checkpoint.keep_latest_k=1 "
                  "validation.enable=true validation.share=0.2 validation.freq=1 training.early_stop=2 "
                  "lr_scheduler.warmup_steps=0 optimizer.lr=100 training.max_norm=0",
                  s->folder);
    story_run(s, 2);
    CHECK_STRING(s->message, "");
    CHECK(s->last_step < STORY_STEPS && s->best_step == s->last_step - 2);
    expected[0] = (char)('0' + s->best_step);
    expected[1] = (char)('0' + s->last_step);
    CHECK_STRING(there(s, text), expected);
    story_go(s, 1);
    CHECK_EQ(s->resumed_step, s->last_step);
    CHECK_EQ(s->saved_count, 0);
    CHECK(isnan(s->losses[s->last_step + 1])); /* stopped it is */
}

/* The first step throws the weights so far that the next ones are NaN. */
STORY_TEST(what_is_not_finite_is_said_and_does_not_replace_what_is)
{
    char text[STORY_STEPS + 1];

    test_set_keys(s->config,
                  "checkpoint.folder=%s checkpoint.interval=1 checkpoint.keep_latest_k=1 "
                  "lr_scheduler.warmup_steps=0 optimizer.lr=1e30 training.on_nan=continue",
                  s->folder);
    for (int async = 0; async < 2; async++) {
        story_set(s, "checkpoint.async_mode", async ? "async" : "disabled");
        story_set(s, "training.steps", "3");
        story_go(s, 3);
        CHECK_STRING(there(s, text), "13");
        CHECK_CONTAINS(s->log, "the checkpoint of step 3 has NaN or infinite values in '");
        CHECK_CONTAINS(s->log, "'; step-1, whose weights are finite, is kept beside it");
        CHECK_NULL(strstr(s->log, "checkpoint of step 1"));
        story_set(s, "training.steps", "5"); /* one that goes on from it knows */
        story_go(s, 2);
        CHECK_EQ(s->resumed_step, 3);
        CHECK_STRING(there(s, text), "15");
        test_directory_free(strdup(s->folder));
    }
}

STORY_TEST(the_best_checkpoint_stays_where_nobody_validates_any_more)
{
    char text[STORY_STEPS + 1], expected[3] = "", *data = test_path(s->directory, "data.txt");

    test_set_keys(s->config,
                  "checkpoint.folder=%s checkpoint.interval=1 checkpoint.keep_latest_k=1 "
                  "validation.path=%s validation.freq=1 lr_scheduler.warmup_steps=0 optimizer.lr=100 "
                  "training.max_norm=0 training.steps=3",
                  s->folder, data);
    story_go(s, 2);
    CHECK(s->best_step > 0 && s->best_step < 3);
    expected[0] = (char)('0' + s->best_step);
    story_set(s, "validation.enable", "false");
    story_set(s, "training.steps", "6");
    story_go(s, 1);
    expected[1] = '6';
    CHECK_STRING(there(s, text), expected);
}

/* ---- the best by name ---- */

static void check_export(const story *s, const char *weights, size_t bytes, bool same)
{
    size_t now_bytes;
    char *now = story_weights(s, &now_bytes);

    CHECK_EQ(now_bytes, bytes);
    CHECK((memcmp(now, weights, bytes) == 0) == same);
}

/* From a copy in memory, from a checkpoint, and from one of an earlier piece: the model of a run that ended there. */
static void check_best(story *s, int world)
{
    char steps[8], *weights;
    int64_t best;
    size_t bytes;

    story_get_worse(s);
    test_set_keys(s->config,
                  "training.global_batch_size=24 training.local_batch_size=2"); /* fewer: losses rise at once */
    story_go(s, world);                                                         /* which step is it? */
    best = s->best_step;
    CHECK(best > 0 && best < STORY_STEPS);
    snprintf(steps, sizeof steps, "%d", (int)best);
    story_set(s, "training.steps", steps);
    story_go(s, world);
    weights = story_weights(s, &bytes);
    story_set(s, "training.steps", "6");
    story_go(s, world);
    check_export(s, weights, bytes, false);
    story_set(s, "export.which", "best");
    story_go(s, world);
    check_export(s, weights, bytes, true);
    CHECK_CONTAINS(s->log, "of the best validation (loss ");
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.keep_latest_k", "1");
    story_stop(s, world, 5);
    story_go_on(s, world);
    check_export(s, weights, bytes, true);
    story_set(s, "export.which", "last");
    story_go(s, world);
    check_export(s, weights, bytes, false);
    story_set(s, "export.which", "");
    story_set(s, "training.early_stop", "5");
    story_go(s, world == 4 ? 2 : world + 1); /* all steps are done; at any number of ranks */
    check_export(s, weights, bytes, true);
}

STORY_TEST(the_best_is_exported_where_it_is_asked_for)
{
    static const char *const strategies[] = {"fsdp2", "fsdp1", "ddp", "zero1", "zero2", "zero3", "hsdp"};

#if FSDP__TSAN
    skip(); /* what was stopped early exports the best on the same threads */
#endif
    for (int i = 0; i < 7; i += test_brief() ? 7 : 1) {
        int world = i == 6 ? 4 : 1 + (i + 1) % 4;

        s = story_new();
        story_set(s, "parallelism.strategy", strategies[i]);
        story_set(s, "parallelism.data_parallel_replicate_degree", i == 6 ? "2" : "1");
        check_best(s, world);
    }
}

/* With early stopping nobody has to ask; who does not want it says so. */
STORY_TEST(what_was_stopped_early_exports_the_best)
{
    char steps[8], *weights;
    size_t bytes;

    story_get_worse(s);
    story_set(s, "training.early_stop", "2");
    story_go(s, 2);
    CHECK(s->last_step == s->best_step + 2 && s->last_step < STORY_STEPS);
    weights = story_weights(s, &bytes);
    story_set(s, "export.which", "last");
    story_go(s, 2);
    check_export(s, weights, bytes, false);
    story_set(s, "training.early_stop", "0");
    snprintf(steps, sizeof steps, "%d", (int)s->best_step);
    story_set(s, "training.steps", steps);
    story_go(s, 2);
    check_export(s, weights, bytes, true);
}

STORY_TEST(a_best_that_cannot_be_is_told_at_the_start)
{
    char path[600];

    test_set_keys(s->config, "export.which=best export.path=%s", s->model);
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "export.which is best, but there is no validation to tell which is");
    story_get_worse(s);
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "validation.keep_best", "false");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "export.which is best, but validation.keep_best is false");
    story_set(s, "validation.keep_best", "true");
    story_set(s, "checkpoint.interval", "1");
    story_stop(s, 2, 5);
    s->end_after = 0;
    snprintf(path, sizeof path, "%s/step-%d", s->folder, (int)s->best_step);
    test_directory_free(strdup(path));
    story_run(s, 3);
    CHECK_EQ(s->resumed_step, -1);
    CHECK_CONTAINS(s->message,
                   "export.which best (last needs no validation): the best validation so far was after step ");
}

STORY_TEST(load_step_names_the_best)
{
    char step[16];
    int64_t best;

    story_get_worse(s);
    test_set_keys(s->config, "export.path= checkpoint.folder=%s checkpoint.load_step=best", s->folder);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_NOT_FOUND); /* nothing is there yet */
    CHECK_CONTAINS(s->message, "there is no checkpoint in '");
    story_set(s, "checkpoint.load_step", "-1");
    s->end_after = 5;
    story_run(s, 2);
    best = s->best_step;
    snprintf(step, sizeof step, "step-%d", (int)best);
    story_set(s, "checkpoint.load_step", "best");
    story_stop(s, 3, (int)best + 1);
    CHECK_EQ(s->resumed_step, best);
    CHECK_CONTAINS(s->log, "step-5 is newer than the checkpoint that the run continues from, and is '");
    CHECK(story_has(s, step));
    test_set_keys(s->config, "validation.share=0 validation.freq=100"); /* its newest checkpoint then knows of none */
    story_set(s, "checkpoint.folder", s->model);
    story_set(s, "checkpoint.load_step", "-1");
    s->end_after = 2;
    story_run(s, 2);
    story_set(s, "checkpoint.load_step", "best");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "its newest, of step 2, was saved without a validation");
}

/* The lowest loss of one text says nothing about that of another, nor do validations without a lower one. */
STORY_TEST(validations_of_other_data_begin_anew)
{
    char *data = test_path(s->directory, "data.txt"), text[400];
    char *other = test_path(s->directory, "other.txt");

    memset(text, 'z', sizeof text);
    test_write_file(other, text, sizeof text);
    test_set_keys(s->config,
                  "checkpoint.folder=%s validation.path=%s validation.freq=1 lr_scheduler.warmup_steps=0 "
                  "optimizer.lr=100 training.max_norm=0 training.early_stop=3",
                  s->folder, data);
    story_set(s, "training.early_stop_min_delta", "1000"); /* after the first none is an improvement */
    story_set(s, "training.steps", "3");
    story_go(s, 2);
    CHECK_EQ(s->last_step, 3);
    story_set(s, "training.steps", "5");
    story_set(s, "validation.path", other);
    story_go(s, 1);
    CHECK_CONTAINS(s->log, "validations use other tokens than until step 3: the best loss, ");
    CHECK(s->best_step > 3);
    CHECK_EQ(s->last_step, 5);
    text[333] = 'y'; /* one byte is enough */
    test_write_file(other, text, sizeof text);
    story_set(s, "training.steps", "6");
    story_go(s, 2);
    CHECK_CONTAINS(s->log, "validations use other tokens than until step 5: the best loss, ");
}

STORY_TEST(the_best_checkpoint_goes_where_it_is_not_wanted)
{
    char text[STORY_STEPS + 1];

    test_set_keys(s->config,
                  "checkpoint.folder=%s checkpoint.interval=4 checkpoint.keep_latest_k=1 "
                  "validation.share=0.2 validation.freq=1 validation.keep_best=false",
                  s->folder);
    story_go(s, 2);
    CHECK(s->best_step > 0);
    CHECK_EQ(s->saved_count, 2);
    CHECK_STRING(there(s, text), "6");
}

/* ---- what cannot be written ---- */

STORY_TEST(a_checkpoint_that_fails_is_tried_again)
{
    char text[STORY_STEPS + 1];
    const char *of_last;
    int fired = 0, failed = 0, last = 0;

    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=2 training.global_batch_size=2", s->folder);
    s->kind = FSDP__FAULT_WRITE;
    for (int async = 0; async < 2; async++)
        for (s->nth = 1; s->nth < 200; s->nth += test_long() ? 1 : 5) {
            story_set(s, "checkpoint.async_mode", async ? "async" : "disabled");
            story_run(s, 2);
            if (!s->fired)
                break;
            fired++;
            if (s->status != FSDP_OK) {
                failed++;
                CHECK(strcmp(there(s, text), "246") != 0);
                CHECK(strlen(s->message) > 20);
                of_last = strstr(s->log, "no checkpoint of step 6: ");
                CHECK(!of_last || !strstr(of_last, "tries again"));
                last += of_last != NULL;
            } else if (strcmp(there(s, text), "246") != 0) {
                CHECK_CONTAINS(s->log, "; the run goes on, and tries again with the next one");
                CHECK(strchr(text, '6') != NULL);
            }
            CHECK(!story_has(s, ".run"));
            test_directory_free(strdup(s->folder));
        }
    CHECK(fired > 2);
    CHECK(last > 0 && last <= failed && failed <= fired);
}

STORY_TEST(a_start_survives_every_failed_allocation)
{
    int failures = 0;

    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, 2, 1);
    s->end_after = 2;
    s->kind = FSDP__FAULT_ALLOCATION;
    for (s->nth = 3; s->nth < 100000; s->nth += test_long() ? 7 : test_brief() ? 2999 : 997) {
        story_run(s, 2);
        if (!s->fired)
            break;
        failures += s->status != FSDP_INTERRUPTED;
        CHECK(story_has(s, "step-1"));
        if (story_has(s, "step-2"))
            break;
    }
    CHECK(failures > 0);
    s->nth = 0;
    story_stop(s, 2, 3);
}

/* ---- the folder ---- */

typedef struct meeting {
    story *story;
    fsdp_train_config *config;
} meeting;

static void meet(fsdp_context *context, void *arg)
{
    meeting *m = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, m->config, &run));
    if (fsdp_context_rank(context) == 0) { /* a second run, in the middle of the first */
        story_run(m->story, 1);
        CHECK_EQ(m->story->status, FSDP_STATE);
        CHECK_CONTAINS(m->story->message, "checkpoint.folder: another run writes there: process ");
    }
    fsdp_train_run_free(run);
}

/* Rank 0 comes late, and finds what whoever had the folder before has just published. */
static void come_late(fsdp_context *context, void *arg)
{
    meeting *m = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_summary summary;

    CHECK_PTR(test_device(context));
    if (fsdp_context_rank(context) == 0) {
        char *from = test_path(m->story->folder, "aside"), *to = test_path(m->story->folder, "step-6");

        usleep(100 * 1000); /* time for the other to look too early, which it must not */
        CHECK_EQ(rename(from, to), 0);
    }
    CHECK_OK(fsdp_train_run_create(context, m->config, &run));
    fsdp_train_run_summary(run, &summary);
    CHECK_EQ(summary.resumed_step, 6);
    fsdp_train_run_free(run);
}

STORY_TEST(no_rank_looks_before_the_folder_is_held)
{
    meeting m = {.story = s, .config = s->config};
    char *from, *to;

    story_set(s, "checkpoint.folder", s->folder);
    story_go(s, 2);
    from = test_path(s->folder, "step-6");
    to = test_path(s->folder, "aside");
    CHECK_EQ(rename(from, to), 0);
    test_run_ranks(2, come_late, &m);
}

STORY_TEST(two_runs_do_not_share_a_folder)
{
    meeting m = {.story = s, .config = s->config};

    story_set(s, "checkpoint.folder", s->folder);
    test_run_ranks(1, meet, &m);
    CHECK(!story_has(s, "")); /* of a run without steps nothing stays */
    story_go(s, 1);
}

STORY_TEST(a_folder_that_cannot_be_written_is_refused_at_the_start)
{
    char *file = test_path(s->directory, "data.txt");

    story_set(s, "checkpoint.folder", file);
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "checkpoint.folder: ");
    CHECK_CONTAINS(s->message, "data.txt");
}

/* ---- by hand ---- */

static void save_by_hand(fsdp_context *context, void *arg)
{
    story *s = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    CHECK_OK(fsdp_train_step(run, NULL));
    for (int i = 0; i < 2; i++) /* the second has nothing to do */
        CHECK_OK(fsdp_train_save(run));
    fsdp_train_run_free(run);
}

/* Two steps, each validated, and no checkpoint of the first, which is the better one. */
static void export_without_the_best(fsdp_context *context, void *arg)
{
    story *s = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_validation v;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    for (int step = 1; step <= 3; step++)
        CHECK(fsdp_train_step(run, NULL) == FSDP_OK && fsdp_train_validate(run, &v) == FSDP_OK);
    CHECK(v.best_step < 3);
    CHECK_ERROR(fsdp_train_export(run), FSDP_NOT_FOUND, "the last, were exported instead");
    fsdp_train_run_free(run);
}

STORY_TEST(a_best_that_is_gone_at_the_end_does_not_cost_the_model)
{
    size_t bytes;
    char *weights;

    story_get_worse(s);
    story_set(s, "training.steps", "3");
    story_go(s, 2);
    weights = story_weights(s, &bytes);
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "export.which", "best");
    test_run_ranks(2, export_without_the_best, s);
    check_export(s, weights, bytes, true);
}

static void save_nowhere(fsdp_context *context, void *arg)
{
    story *s = arg;
    fsdp_train_run *run = NULL;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, s->config, &run));
    CHECK_ERROR(fsdp_train_save(run), FSDP_STATE, "set checkpoint.folder");
    fsdp_train_run_free(run);
}

STORY_TEST(a_program_saves_when_it_likes)
{
    char text[STORY_STEPS + 1];

    test_run_ranks(2, save_nowhere, s);
    story_set(s, "checkpoint.folder", s->folder);
    test_run_ranks(2, save_by_hand, s);
    CHECK_STRING(there(s, text), "1");
    CHECK(story_has(s, "step-1/config.yaml") && story_has(s, "step-1/config.json"));
    test_run_ranks(3, save_by_hand, s);
    CHECK_STRING(there(s, text), "12");
}
