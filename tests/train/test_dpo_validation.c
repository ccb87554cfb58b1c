/* Validations of preference tuning: TRL's numbers on its pairs, the same bits in any world, none of them in the
 * training, and a reference that stays where a run goes on. */
#include <math.h>

#include "train/tuning.h"

/* ---- the numbers ---- */

/* Counts the tokens of all answers. */
static int64_t count_answers(const json_t *file)
{
    const json_t *pair;
    size_t i;
    int64_t count = 0;

    json_array_foreach(json_object_get(file, "tokens"), i, pair) count +=
        (int64_t)(json_array_size(json_object_get(pair, "chosen")) +
                  json_array_size(json_object_get(pair, "rejected")));
    return count;
}

static void check_tuning(tuning t)
{
    json_t *file = tuning_reference(&t);

    t.directory = test_directory();
    tuning_run(&t);
    for (int step = 0; step < TUNING_STEPS; step++) {
        const fsdp_train_validation *v = &t.validations[step];

        CHECK_EQ(v->pairs, TUNING_PAIRS);
        CHECK_EQ(v->tokens, count_answers(file));
        CHECK(v->perplexity == 0);
        tuning_near(&t, file, "loss", step, v->loss, 1e-5);
        tuning_near(&t, file, "rewards_chosen", step, v->reward_chosen, 2e-5);
        tuning_near(&t, file, "rewards_rejected", step, v->reward_rejected, 2e-5);
        tuning_near(&t, file, "rewards_margin", step, v->reward_margin, 2e-5);
        tuning_near(&t, file, "accuracy", step, v->reward_accuracy, 0);
    }
    test_directory_free(t.directory);
    json_decref(file);
}

TEST(numbers_are_those_of_the_reference_on_the_same_pairs)
{
    static const tuning ways[] = {
        {.name = "dpo-llama", .world = 1, .microbatches = 1, .batch = 8},
        {.name = "dpo-llama", .world = 2, .microbatches = 2, .batch = 3},
        {.name = "dpo-llama", .world = 4, .microbatches = 1, .batch = 3}, /* one of four has none of the third batch */
        {.name = "dpo-llama", .world = 2, .microbatches = 1, .batch = 5, .key = "parallelism.strategy", .value = "ddp"},
        {.name = "dpo-llama", .world = 4, .microbatches = 1, .batch = 3, .cp = 2, .tp = 2}};

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++)
        if (test_takes((int)i, 1, 4))
            check_tuning(ways[i]);
}

TEST(labels_may_be_smoothed)
{
    check_tuning((tuning){.name = "dpo-llama-ls", .world = 2, .microbatches = 1, .batch = 3});
}

TEST(the_reference_of_an_adapter_is_its_base)
{
    check_tuning((tuning){.name = "dpo-lora-llama", .world = 2, .microbatches = 2, .batch = 3});
}

TEST(training_goes_on_as_if_there_had_been_none)
{
    for (int world = test_brief() ? 2 : 1; world <= (test_brief() ? 2 : 3); world++) {
        tuning plain = {.name = "dpo-llama", .world = world, .microbatches = 2, .directory = test_directory()};
        tuning validated = plain;

        validated.batch = 3;
        tuning_run(&plain);
        tuning_run(&validated);
        for (int step = 0; step < TUNING_STEPS; step++) {
            const fsdp_train_report *a = &plain.reports[step], *b = &validated.reports[step];

            CHECK_BYTES(&a->loss, &b->loss, sizeof a->loss);
            CHECK_BYTES(&a->grad_norm, &b->grad_norm, sizeof a->grad_norm);
            CHECK_BYTES(&a->reward_margin, &b->reward_margin, sizeof a->reward_margin);
            CHECK_EQ(a->all_gather, b->all_gather);
        }
        test_directory_free(plain.directory);
    }
}

/* ---- a run in pieces ---- */

typedef struct looking {
    story *story;
    fsdp_train_validation found[STORY_RANKS];
    fsdp_train_summary summary;
} looking;

/* Opens the run where it stands, and validates. */
static void look(fsdp_context *context, void *arg)
{
    looking *l = arg;
    fsdp_train_run *run = NULL;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, l->story->config, &run));
    CHECK_OK(fsdp_train_validate(run, &l->found[fsdp_context_rank(context)]));
    if (fsdp_context_rank(context) == 0)
        fsdp_train_run_summary(run, &l->summary);
    fsdp_train_run_free(run);
}

/* Trains some steps, of which a checkpoint is left. */
static void leave_checkpoint(story *s, int world)
{
    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, world, 3);
    s->end_after = 0;
}

STORY_TEST(pairs_that_are_held_out_have_the_same_bits_in_any_world)
{
    static const int worlds[] = {1, 2, 3, 4, 8};
    looking first = {.story = s}, l = {.story = s};

    tuning_prefer(s);
    story_set(s, "training.global_batch_size", STORY_BATCH_OF_8);
    story_set(s, "validation.share", "0.21"); /* 7 of 30 pairs */
    story_set(s, "validation.local_batch_size", "2");
    leave_checkpoint(s, 2);
    test_run_ranks(1, look, &first);
    CHECK_EQ(first.found[0].pairs, 7);
    CHECK(first.found[0].reward_margin != 0 && first.found[0].loss < log(2));
    CHECK_CONTAINS(s->log, "data.path: 23 pairs of");
    for (size_t i = 0; i < sizeof worlds / sizeof *worlds; i++) {
        test_run_ranks(worlds[i], look, &l);
        for (int rank = 0; rank < worlds[i]; rank++) {
            CHECK_BYTES(&l.found[rank].loss, &first.found[0].loss, sizeof first.found[0].loss);
            CHECK_BYTES(&l.found[rank].reward_chosen, &first.found[0].reward_chosen, sizeof first.found[0].loss);
            CHECK(l.found[rank].reward_accuracy == first.found[0].reward_accuracy);
            CHECK_EQ(l.found[rank].tokens, first.found[0].tokens);
        }
    }
}

STORY_TEST(steps_of_a_validation_are_batches_of_pairs)
{
    looking l = {.story = s};

    tuning_prefer(s);
    story_set(s, "validation.share", "0.21");
    story_set(s, "validation.local_batch_size", "2");
    for (int steps = 1; steps <= 5; steps++) {
        s->config->validation.steps = steps;
        test_run_ranks(3, look, &l);
        CHECK_EQ(l.found[0].pairs, steps < 4 ? 2 * steps : 7);
        CHECK_EQ(l.summary.validation_tokens, l.found[0].tokens);
    }
}

/* Writes other pairs to validate on, and names them. */
static void set_other_pairs(story *s, int count)
{
    char *path = test_path(s->directory, "other.jsonl");
    FILE *file = CHECK_PTR(fopen(path, "w"));

    for (int i = 0; i < count; i++)
        fprintf(file, "{\"prompt\": \"say %d\", \"chosen\": \" a\", \"rejected\": \" bc\"}\n", i);
    fclose(file);
    story_set(s, "validation.path", path);
}

STORY_TEST(other_pairs_have_no_reference_where_a_run_goes_on)
{
    tuning_prefer(s);
    set_other_pairs(s, 5);
    leave_checkpoint(s, 1);
    set_other_pairs(s, 6);
    story_run(s, 2);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "has no reference of the pairs to validate on");
    story_set(s, "validation.enable", "false");
    story_go(s, 2);
    CHECK_EQ(s->resumed_step, 3);
}

STORY_TEST(the_base_of_an_adapter_is_the_reference_of_other_pairs_too)
{
    looking l = {.story = s}, again = {.story = s};

    tuning_prefer(s);
    story_set(s, "adapter.rank", "2");
    set_other_pairs(s, 5);
    leave_checkpoint(s, 1);
    test_run_ranks(2, look, &l);
    set_other_pairs(s, 6);
    test_run_ranks(2, look, &again);
    CHECK_EQ(again.found[0].pairs, 6);
    set_other_pairs(s, 5);
    test_run_ranks(3, look, &again);
    CHECK_BYTES(&l.found[0].loss, &again.found[0].loss, sizeof l.found[0].loss);
}

STORY_TEST(lines_of_metrics_have_the_rewards)
{
    char *path = test_path(s->directory, "metrics.jsonl"), *text, *line;

    tuning_prefer(s);
    story_set(s, "validation.share", "0.21");
    story_set(s, "metrics.jsonl", path);
    story_go(s, 2);
    text = test_read_file(path, &(size_t){0});
    line = strstr(text, "{\"validation\": 6, \"loss\": ");
    CHECK_PTR(line);
    *strchr(line, '\n') = '\0';
    CHECK_CONTAINS(line, "\"pairs\": 7, \"reward_chosen\": ");
    CHECK_CONTAINS(line, "\"reward_margin\": ");
    CHECK_CONTAINS(line, "\"reward_accuracy\": ");
    CHECK(!strstr(line, "perplexity"));
}

STORY_TEST(texts_are_no_pairs_to_validate_on)
{
    char *path = test_path(s->directory, "data.txt");

    tuning_prefer(s);
    story_set(s, "validation.path", path);
    story_run(s, 1);
    CHECK(s->status != FSDP_OK);
    CHECK_CONTAINS(s->message, "validation.path: training.objective is dpo, which compares answers, but there are no");
}

STORY_TEST(a_failing_allocation_ends_all_ranks)
{
    tuning_prefer(s);
    story_set(s, "validation.share", "0.21");
    story_set(s, "training.steps", "1");
    s->kind = FSDP__FAULT_ALLOCATION;
    s->fired = true;
    for (s->nth = 1; s->fired; s->nth += test_brief() ? 1499 : 499) {
        story_run(s, 2);
        CHECK_EQ(s->statuses[0] == FSDP_OK, s->statuses[1] == FSDP_OK);
    }
    CHECK_OK(s->status);
}
