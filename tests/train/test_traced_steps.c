/* The trace of a run: which steps it has, with what in them, and what the run does where there can be none. */
#include <unistd.h>

#include "train/story.h"
#include "watch/reading.h"

static char *trace_of(const story *s, const char *name)
{
    char *path = test_path(s->directory, name);

    CHECK_OK(fsdp_train_config_set(s->config, "metrics.trace.path", path));
    return path;
}

STORY_TEST(steps_are_traced_with_all_that_is_in_them)
{
    story *s = *state;
    char *path = trace_of(s, "trace.json.gz");
    reading r;

    story_set(s, "metrics.trace.steps", "2-3, 5");
    story_set(s, "checkpoint.folder", s->folder);
    story_set(s, "checkpoint.interval", "2");
    story_set(s, "validation.share", "0.1");
    story_set(s, "validation.freq", "2");
    story_go(s, 2);
    CHECK_CONTAINS(s->log, "a trace was written to");
    r = reading_of(path);
    for (int rank = 0; rank < 2; rank++) {
        const json_t *forward = reading_find(&r, rank, "X", "unit", "forward the model");

        for (int step = 1; step <= STORY_STEPS; step++) {
            char name[20];

            snprintf(name, sizeof name, "step %d", step);
            CHECK_EQ(reading_count(&r, rank, "X", "stage", name), step == 2 || step == 3 || step == 5);
        }
        CHECK_EQ(reading_count(&r, rank, "X", "optimizer", "optimizer step"), 3);
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "forward"), 3 * 12); /* microbatches */
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "backward"), 3 * 12);
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "validation"), 1); /* between steps 2 and 3 */
        CHECK_EQ(reading_count(&r, rank, "X", "checkpoint", "write "), 1);
        CHECK(reading_count(&r, rank, "X", "data", "batch ") >= 3 * 12);
        CHECK(reading_count(&r, rank, "X", "collective", "reduce_scatter model.layers.1") >= 3);
        CHECK(reading_count(&r, rank, "b", "whole", "whole: model.layers.0") > 0);
        CHECK(reading_find(&r, rank, "X", "unit", "backward model.layers.1") != NULL);
        CHECK(json_integer_value(json_object_get(json_object_get(forward, "args"), "activations_kept")) > 0);
        CHECK(json_integer_value(json_object_get(
                  json_object_get(reading_find(&r, rank, "X", "kernel", "matmul"), "args"), "flops")) > 0);
        CHECK(reading_counter(&r, rank, "memory: optimizer state") > 0);
    }
    reading_release(&r);
    free(path);
}

STORY_TEST(a_trace_changes_no_bit_of_the_run)
{
    story *s = *state;
    double losses[STORY_STEPS + 1];
    char *path;

    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    path = trace_of(s, "trace.json");
    story_go(s, 2);
    CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
    CHECK_EQ(access(path, F_OK), 0);
    free(path);
}

STORY_TEST(without_such_steps_there_is_no_trace_and_a_warning)
{
    story *s = *state;
    char *path = trace_of(s, "trace.json");

    story_set(s, "metrics.trace.steps", "100-200");
    story_go(s, 2);
    CHECK_CONTAINS(s->log, "none of the steps that were to be traced (100-200) was taken");
    CHECK(access(path, F_OK) != 0);
    story_set(s, "metrics.trace.steps", ""); /* the second to the fourth, of which there is one */
    story_set(s, "training.steps", "2");
    story_go(s, 1);
    CHECK_EQ(access(path, F_OK), 0);
    free(path);
}

STORY_TEST(a_trace_that_cannot_be_written_costs_no_model)
{
    story *s = *state;
    char *path = trace_of(s, "later/trace.json");

    story_set(s, "export.path", s->model);
    story_run(s, 2);
    CHECK_STATUS(s->status, FSDP_NOT_FOUND);
    CHECK_CONTAINS(s->message, "metrics.trace.path: ");
    free(path);
    path = trace_of(s, "trace.json");
    s->kind = FSDP__FAULT_WRITE;
    s->nth = 1;
    story_set(s, "export.path", "");
    story_run(s, 1); /* the only file that it writes */
    CHECK_STATUS(s->status, FSDP_IO);
    CHECK_CONTAINS(s->log, "the run goes on without a trace");
    CHECK_CONTAINS(s->message, "No space left on device");
    CHECK(s->losses[STORY_STEPS] > 0);
    CHECK(access(path, F_OK) != 0);
    free(path);
}

STORY_TEST(a_run_that_fails_leaves_what_rank_0_has_recorded)
{
    story *s = *state;
    char *path = trace_of(s, "trace.json");
    reading r;

    story_set(s, "metrics.trace.steps", "1-6");
    story_set(s, "optimizer.lr", "1e30");
    story_set(s, "lr_scheduler.warmup_steps", "0");
    story_run(s, 2);
    CHECK_STATUS(s->status, FSDP_NOT_FINITE);
    r = reading_of(path);
    CHECK_CONTAINS(json_string_value(reading_fact(&r, "incomplete")), "only rank 0");
    CHECK_EQ(reading_count(&r, 0, "X", "stage", "step 1"), 1);
    CHECK_EQ(reading_count(&r, 1, "X", NULL, NULL), 0);
    reading_release(&r);
    free(path);
}

TEST(steps_are_numbers_and_ranges)
{
    static const char *const good[] = {"5", "3-5", "3-5, 100", " 3 - 5 ,7", "9223372036854775807"},
                             *const bad[] = {"0",  "5-3", "3-",  "-3",  "3,",
                                             ",3", "3;5", "all", "3 5", "9223372036854775808"};
    fsdp_train_config *config = NULL;

    CHECK_OK(fsdp_train_config_create(&config));
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_OK(fsdp_train_config_set(config, "metrics.trace.steps", good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERROR(fsdp_train_config_set(config, "metrics.trace.steps", bad[i]), FSDP_INVALID,
                    "expected steps, such as 5, 3-5 or '3-5, 100'");
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(config, "data.path", "x"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "metrics.trace.path is not: name the file");
    CHECK_OK(fsdp_train_config_set(config, "metrics.trace.path", "same"));
    CHECK_OK(fsdp_train_config_set(config, "metrics.jsonl", "same"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "are both 'same'");
    fsdp_train_config_free(config);
}
