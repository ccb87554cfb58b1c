/* The trace of a run: which steps it has, with what in them, and what the run does where there can be none. */
#include <unistd.h>

#include "fsdp/trace.h"
#include "train/config.h"
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
    char *path = trace_of(s, "trace.json.gz");
    char *metrics = test_path(s->directory, "m.jsonl"), id[40], *text;
    reading r;

    CHECK_OK(fsdp_train_config_set(s->config, "metrics.jsonl", metrics));
    story_set(s, "metrics.trace.steps", "2-3, 5");
    test_set_keys(s->config, "checkpoint.folder=%s checkpoint.interval=2 validation.share=0.1 validation.freq=2",
                  s->folder);
    story_go(s, 2);
    CHECK_CONTAINS(s->log, "trace.json.gz': open it at ui.perfetto.dev");
    r = reading_of(path);
    snprintf(id, sizeof id, "{\"run\": \"%s\"", json_string_value(reading_fact(&r, "run")));
    text = test_read_file(metrics, NULL);
    CHECK_CONTAINS(text, id);
    CHECK_EQ(strlen(json_string_value(reading_fact(&r, "started"))), strlen("2026-03-01T10:00:00Z"));
    for (int rank = 0; rank < 2; rank++) {
        const json_t *forward = reading_find(&r, rank, "X", "unit", "forward the model");

        for (int step = 1; step <= STORY_STEPS; step++) {
            char name[20];

            snprintf(name, sizeof name, "step %d", step);
            CHECK_EQ(reading_count(&r, rank, "X", "stage", name), step == 2 || step == 3 || step == 5);
        }
        CHECK_EQ(reading_count(&r, rank, "X", "optimizer", "optimizer step"), 3);
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "forward"), 3 * 6); /* microbatches */
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "backward"), 3 * 6);
        CHECK_EQ(reading_count(&r, rank, "X", "stage", "validation"), 1); /* between steps 2 and 3 */
        CHECK_EQ(reading_count(&r, rank, "X", "checkpoint", "write "), 1);
        CHECK(reading_count(&r, rank, "X", "data", "batch ") >= 3 * 6);
        CHECK(reading_count(&r, rank, "X", "collective", "reduce_scatter model.layers.1") >= 3);
        CHECK(reading_count(&r, rank, "b", "whole", "whole: model.layers.0") > 0);
        CHECK(reading_find(&r, rank, "X", "unit", "backward model.layers.1") != NULL);
        CHECK(json_integer_value(json_object_get(json_object_get(forward, "args"), "activations_kept")) > 0);
        CHECK(json_integer_value(json_object_get(
                  json_object_get(reading_find(&r, rank, "X", "kernel", "matmul"), "args"), "flops")) > 0);
        CHECK(reading_counter(&r, rank, "memory: optimizer state") > 0);
    }
    reading_release(&r);
}

/* Returns the most that a rank's counters are together, scratch left out: "memory" or "planned". */
static int64_t most_of(const reading *r, int rank, const char *what)
{
    int64_t live[FSDP_MEMORY_KINDS] = {0}, most = 0;
    const json_t *event;
    size_t i;

    json_array_foreach(r->events, i, event)
    {
        int64_t all = 0;

        if (json_integer_value(json_object_get(event, "pid")) != rank + 1)
            continue;
        for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
            char name[80];

            snprintf(name, sizeof name, "%s: %s", what, fsdp_memory_kind_name((fsdp_memory_kind)kind));
            if (strcmp(json_string_value(json_object_get(event, "name")), name) == 0)
                live[kind] = json_integer_value(json_object_get(json_object_get(event, "args"), "bytes"));
            all += kind == FSDP_MEMORY_WORKSPACE ? 0 : live[kind];
        }
        most = all > most ? all : most;
    }
    return most;
}

/* What is left of each counter is what it was told last. */
STORY_TEST(the_planned_line_is_the_measured_one_and_modules_have_theirs)
{
    static const struct {
        const char *strategy, *key, *value, *usual;
        int world;
    } ways[] = {{"fsdp2", "parallelism.prefetch", "0", "0", 1},
                {"fsdp2", "activation_checkpoint.mode", "full", "none", 2},
                {"zero2", "parallelism.prefetch", "0", "0", 3},
                {"ddp", "parallelism.prefetch", "0", "0", 2}};
    char *path = trace_of(s, "trace.json");

    story_set(s, "metrics.trace.steps", "3");
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        reading r;

        if (!test_takes((int)i + 1, 1, 2))
            continue;
        story_set(s, "parallelism.strategy", ways[i].strategy);
        story_set(s, ways[i].key, ways[i].value);
        story_go(s, ways[i].world);
        story_set(s, ways[i].key, ways[i].usual);
        r = reading_of(path);
        for (int rank = 0; rank < ways[i].world; rank++) {
            CHECK(most_of(&r, rank, "planned") > 0);
            CHECK_EQ(most_of(&r, rank, "planned"), most_of(&r, rank, "memory"));
            CHECK_EQ(reading_counter(&r, rank, "planned: all but workspace"),
                     reading_counter(&r, rank, "measured: all but workspace"));
            CHECK(reading_count(&r, rank, "C", NULL, "memory of model.layers.0") > 0);
            if (strcmp(ways[i].strategy, "ddp") != 0) /* whose parameters are one unit, the root's */
                CHECK(reading_counter(&r, rank, "memory of model.layers.0") > 0);
            CHECK(reading_count(&r, rank, "C", NULL, "memory of model.layers.0.") == 0);
        }
        reading_release(&r);
    }
}

/* ---- orders ---- */

typedef struct order {
    const story *story;
    const char *path;
    int what;
    double loss;
} order;

static void dawdle(const fsdp_context *context)
{
    if (fsdp_context_rank(context) == 1)
        usleep(3000);
}

/* The trace begins before something is under way, and ends behind it. */
static void trace_across(fsdp_context *context, void *arg)
{
    order *o = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    fsdp_trace *trace = NULL;
    fsdp_module *model, *block;
    fsdp_train_validation validation;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, o->story->config, &run));
    model = fsdp_train_run_model(run);
    block = fsdp_model_block(model, 0);
    CHECK_OK(fsdp_train_step(run, &report));
    if (o->what == 0)
        CHECK_OK(fsdp_module_unshard_async(block));
    if (o->path)
        CHECK_OK(fsdp_trace_begin(context, o->path, NULL, &trace));
    dawdle(context);
    if (o->what == 1)
        CHECK_OK(fsdp_module_set_requires_grad(block, false));
    if (o->what == 2)
        CHECK_OK(fsdp_train_validate(run, &validation));
    CHECK_OK(fsdp_train_step(run, &report));
    dawdle(context);
    if (o->what == 1)
        CHECK_OK(fsdp_module_set_requires_grad(block, true));
    if (trace)
        CHECK_OK(fsdp_trace_end(trace));
    CHECK_OK(fsdp_train_step(run, &report));
    if (fsdp_context_rank(context) == 0)
        o->loss = report.loss;
    fsdp_train_run_free(run);
}

STORY_TEST(a_trace_may_begin_and_end_around_anything)
{
    char *path = test_path(s->directory, "across.json");

    story_set(s, "validation.share", "0.1");
    story_set(s, "validation.freq", "100");
    for (int what = 0; what < 3; what++) {
        order plain = {.story = s, .what = what}, traced = {.story = s, .path = path, .what = what};
        reading r;

        test_run_ranks(2, trace_across, &plain);
        test_run_ranks(2, trace_across, &traced);
        CHECK(traced.loss == plain.loss);
        r = reading_of(path);
        CHECK_EQ(reading_count(&r, 0, "X", "collective", NULL), reading_count(&r, 1, "X", "collective", NULL));
        CHECK_EQ(reading_count(&r, 0, "X", "optimizer", NULL), 1);
        reading_release(&r);
    }
}

/* A forward fails, which the program survives; what follows is in the same trace, in its order. */
static void fail_within(fsdp_context *context, void *arg)
{
    const order *o = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    fsdp_trace *trace = NULL;
    fsdp_device *device;
    static const int64_t shape[] = {1, 8};

    device = CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, o->story->config, &run));
    CHECK_OK(fsdp_trace_begin(context, o->path, NULL, &trace));
    for (int i = 0; i < 2; i++) {
        fsdp_tensor *tokens;

        CHECK_OK(fsdp_scope_begin(context));
        tokens = fsdp_zeros(device, FSDP_I32, 2, shape);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, i == 0 ? 40 : 0);
        CHECK_EQ(fsdp_call(fsdp_train_run_model(run), tokens, tokens) != NULL, i == 1);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_train_step(run, &report));
    CHECK_OK(fsdp_trace_end(trace));
    fsdp_train_run_free(run);
}

STORY_TEST(a_trace_goes_on_behind_a_forward_that_fails)
{
    order o = {.story = s, .path = test_path(s->directory, "fails.json")};
    reading r;

    test_run_ranks(1, fail_within, &o);
    r = reading_of(o.path);
    CHECK_EQ(reading_count(&r, 0, "X", "optimizer", "optimizer step"), 1);
    CHECK(reading_count(&r, 0, "X", "unit", "forward model.layers.1") >= 12 + 1);
    reading_release(&r);
}

STORY_TEST(a_trace_changes_no_bit_of_the_run)
{
    double losses[STORY_STEPS + 1];
    char *path;

    story_go(s, 2);
    memcpy(losses, s->losses, sizeof losses);
    path = trace_of(s, "trace.json");
    story_go(s, 2);
    CHECK_BYTES(s->losses + 1, losses + 1, sizeof losses - sizeof *losses);
    CHECK_EQ(access(path, F_OK), 0);
}

STORY_TEST(without_such_steps_there_is_no_trace_and_a_warning)
{
    char *path = trace_of(s, "trace.json");

    story_set(s, "metrics.trace.steps", "100-200");
    story_go(s, 2);
    CHECK_CONTAINS(s->log, "none of the steps that were to be traced (100-200) was taken");
    CHECK(access(path, F_OK) != 0);
    story_set(s, "metrics.trace.steps", ""); /* the second to the fourth, of which there is one */
    story_set(s, "training.steps", "2");
    story_go(s, 1);
    CHECK_EQ(access(path, F_OK), 0);
    story_go(s, 1);
    CHECK_CONTAINS(s->log, "trace.json', in place of an earlier one: open it at ui.perfetto.dev");
}

STORY_TEST(a_trace_that_cannot_be_written_costs_no_model)
{
    char *path = trace_of(s, "data.txt/trace.json");

    story_set(s, "export.path", s->model);
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "metrics.trace.path: ");
    path = trace_of(s, "made/for/it/trace.json"); /* as other metrics make their folders */
    story_set(s, "export.path", "");
    story_go(s, 1);
    CHECK_EQ(access(path, F_OK), 0);
    story_set(s, "export.path", s->model);
    path = trace_of(s, "trace.json");
    s->kind = FSDP__FAULT_WRITE;
    s->nth = 1;
    story_set(s, "export.path", "");
    story_run(s, 1); /* the only file that it writes */
    CHECK_STATUS(s->status, FSDP_IO);
    CHECK_CONTAINS(s->log, "the run goes on without a trace");
    CHECK_NULL(strstr(s->log, "rank 0: "));
    CHECK_CONTAINS(s->message, "No space left on device");
    CHECK(s->losses[STORY_STEPS] > 0);
    CHECK(access(path, F_OK) != 0);
}

STORY_TEST(a_run_that_fails_leaves_what_rank_0_has_recorded)
{
    char *path = trace_of(s, "trace.json");
    reading r;

    test_set_keys(s->config, "metrics.trace.steps=1-6 optimizer.lr=1e30 lr_scheduler.warmup_steps=0");
    story_run(s, 2);
    CHECK_STATUS(s->status, FSDP_NOT_FINITE);
    r = reading_of(path);
    CHECK_CONTAINS(json_string_value(reading_fact(&r, "incomplete")), "only rank 0");
    CHECK_EQ(reading_count(&r, 0, "X", "stage", "step 1"), 1);
    CHECK_EQ(reading_count(&r, 1, "X", NULL, NULL), 0);
    reading_release(&r);
}

TEST(steps_are_numbers_and_ranges)
{
    static const char *const good[] = {"5", "3-5", "3-5, 100", " 3 - 5 ,7", "9223372036854775807"},
                             *const bad[] = {"0",  "5-3", "3-",  "-3",  "3,",
                                             ",3", "3;5", "all", "3 5", "9223372036854775808"};
    fsdp_train_config *config = test_empty_config();

    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        CHECK_OK(fsdp_train_config_set(config, "metrics.trace.steps", good[i]));
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        CHECK_ERROR(fsdp_train_config_set(config, "metrics.trace.steps", bad[i]), FSDP_INVALID,
                    "expected steps, such as 5, 3-5 or '3-5, 100'");
    CHECK_OK(fsdp_train_config_set(config, "model.preset", "llama-1m"));
    CHECK_OK(fsdp_train_config_set(config, "data.path", "x"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "metrics.trace.steps needs metrics.trace.path");
    CHECK_OK(fsdp_train_config_set(config, "metrics.trace.path", "same"));
    CHECK_OK(fsdp_train_config_set(config, "metrics.jsonl", "same"));
    CHECK_ERROR(fsdp_train_config_check(config, 1), FSDP_INVALID, "are both 'same'");
}
