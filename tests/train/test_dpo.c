/* Preference tuning: losses, norms and rewards are TRL's (tests/reference/finetune), whatever the ranks, the
 * microbatches and the strategy; a run that goes on has the same reference; what is refused. */
#include <jansson.h>
#include <math.h>

#include "train/config.h"
#include "train/story.h"
#include "train/tuning.h"

static void check_tuning(tuning *t)
{
    json_t *file = tuning_reference(t);

    tuning_run(t);
    for (int step = 0; step < TUNING_STEPS; step++) {
        const fsdp_train_report *r = &t->reports[step];

        CHECK_EQ(r->pairs, TUNING_PAIRS);
        tuning_near(t, file, "loss", step, r->loss, 1e-5);
        tuning_near(t, file, "grad_norm", step, r->grad_norm, 1e-4);
        tuning_near(t, file, "rewards_chosen", step, r->reward_chosen, 2e-5);
        tuning_near(t, file, "rewards_rejected", step, r->reward_rejected, 2e-5);
        tuning_near(t, file, "rewards_margin", step, r->reward_margin, 2e-5);
        tuning_near(t, file, "accuracy", step, r->reward_accuracy, 0);
    }
    json_decref(file);
}

static void check_ways(const tuning *ways, size_t count)
{
    char *directory = test_directory();

    for (size_t i = 0; i < count; i++) {
        tuning t = ways[i];

        t.directory = directory;
        check_tuning(&t);
    }
    test_directory_free(directory);
}

TEST(losses_norms_and_rewards_are_those_of_the_reference)
{
    static const tuning ways[] = {
        {.name = "dpo-llama", .world = 1, .microbatches = 1},
        {.name = "dpo-llama", .world = 2, .microbatches = 2},
        {.name = "dpo-llama", .world = 4, .microbatches = 2, .key = "data.order", .value = "shuffled"},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

TEST(labels_may_be_smoothed)
{
    static const tuning ways[] = {
        {.name = "dpo-llama-ls", .world = 1, .microbatches = 4},
        {.name = "dpo-llama-ls", .world = 2, .microbatches = 1},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

TEST(the_reference_of_an_adapter_is_its_base)
{
    static const tuning ways[] = {
        {.name = "dpo-lora-llama", .world = 1, .microbatches = 1},
        {.name = "dpo-lora-llama", .world = 2, .microbatches = 2},
    };

    check_ways(ways, sizeof ways / sizeof ways[0]);
}

TEST(every_strategy_has_the_same_losses)
{
    static const char *const strategies[] = {"zero1", "zero2", "zero3", "fsdp1", "ddp"};
    tuning ways[5];

    for (int i = 0; i < 5; i++)
        ways[i] = (tuning){
            .name = "dpo-llama", .world = 2, .microbatches = 2, .key = "parallelism.strategy", .value = strategies[i]};
    check_ways(ways, 5);
}

/* Ranks that share layers or sequences have the same pairs, in a reference, too. */
TEST(teams_have_the_losses_of_one_rank)
{
    static const tuning ways[] = {
        {.name = "dpo-llama", .world = 2, .microbatches = 2, .tp = 2},
        {.name = "dpo-llama-ls", .world = 2, .microbatches = 1, .cp = 2},
        {.name = "dpo-llama", .world = 4, .microbatches = 1, .cp = 2, .tp = 2},
        {.name = "dpo-lora-llama", .world = 4, .microbatches = 2, .cp = 2},
        {.name = "dpo-lora-llama", .world = 4, .microbatches = 2, .cp = 4},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(ways); i++)
        if (!test_brief() || i % 2 == 0)
            check_ways(&ways[i], 1);
}

/* ---- a run in pieces, on pairs of its own ---- */

/* The losses of a run that does not stop, and of one that goes on after three steps at another world. */
static void go_on(story *s, int first, int second, double *whole, double *pieces)
{
    story_go(s, first);
    memcpy(whole, s->losses, sizeof s->losses);
    story_set(s, "checkpoint.folder", s->folder);
    story_stop(s, first, 3);
    story_go_on(s, second);
    memcpy(pieces, s->losses, sizeof s->losses);
}

STORY_TEST(a_run_that_goes_on_has_the_same_reference_to_the_bit)
{
    double whole[STORY_STEPS + 1], pieces[STORY_STEPS + 1];

    tuning_prefer(s);
    go_on(s, 2, 2, whole, pieces);
    CHECK(fabs(whole[1] - log(2)) < 1e-6);
    CHECK(whole[6] < 0.69);
    for (int step = 4; step <= 6; step++)
        CHECK(whole[step] == pieces[step]);
}

STORY_TEST(an_adapter_goes_on_at_another_world)
{
    double whole[STORY_STEPS + 1], pieces[STORY_STEPS + 1];

    tuning_prefer(s);
    story_set(s, "adapter.rank", "2");
    go_on(s, 3, 2, whole, pieces);
    for (int step = 4; step <= 6; step++)
        CHECK(fabs(whole[step] / pieces[step] - 1) < 1e-5);
}

STORY_TEST(a_checkpoint_of_another_objective_has_no_reference)
{
    tuning_prefer(s);
    story_set(s, "training.objective", "next_token");
    tuning_write_pairs(s, "{\"prompt\": \"count\", \"completion\": \" up\"}\n");
    story_set(s, "checkpoint.folder", s->folder);
    story_go(s, 1);
    tuning_write_pairs(s, NULL);
    story_set(s, "training.objective", "dpo");
    story_set(s, "training.steps", "7");
    story_run(s, 1);
    CHECK(s->status != FSDP_OK);
}

/* What is advised of other data must not be refused then: a reference is of its data. */
STORY_TEST(other_pairs_cannot_begin_again)
{
    tuning_prefer(s);
    story_set(s, "checkpoint.folder", s->folder);
    story_go(s, 1);
    test_set_keys(s->config, "validation.share=0.2 training.steps=7");
    story_run(s, 1);
    CHECK_CONTAINS(s->message, "different data: validation.share is 0 there, and 0.2 here: set it back");
    test_set_keys(s->config, "training.seed=43 data.order=shuffled validation.share=0 training.steps=7");
    story_run(s, 1);
    CHECK_CONTAINS(s->message, "go through different data: ");
    CHECK_CONTAINS(s->message, ": set it back");
    CHECK_NULL(strstr(s->message, "exclude_from_loading"));
}

TEST(keys_and_rows_that_do_not_fit_are_refused)
{
    static const struct {
        const char *key, *value, *rows, *message;
    } all[] = {
        {"training.objective", "next_token", NULL, "has pairs of chosen and rejected answers"},
        {"data.packing", "true", NULL, "data.packing is set, but training.objective is dpo"},
        {"data.train_on", "all", NULL, "data.train_on is all, but"},
        {"data.on_long_row", "split", NULL, "data.on_long_row cuts rows, but"},
        {"validation.share", "0.99", NULL, "validation.share 0.99 of the data, 30 pairs, leaves none to train on"},
        {"training.seq_len", "16", NULL, "pair 1 of"},
        {"adapter.rank", "2", "{\"prompt\": \"a\", \"completion\": \"b\"}\n", "but there are no pairs"},
        {"adapter.rank", "2", "{\"prompt\": \"a\", \"chosen\": \"b\", \"rejected\": \"b\"}\n", "are the same"},
        {"adapter.rank", "2", "{\"chosen\": \"a\", \"rejected\": \"b\"}\n", "there is no field 'prompt'"},
        {"adapter.rank", "2", "{\"prompt\": \"a\", \"chosen\": [], \"rejected\": \"b\"}\n", "not both texts"},
        {"adapter.modules_to_save", "lm_head", NULL, "adapter.modules_to_save is set"},
    };

    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        story *s = story_new();

        tuning_prefer(s);
        if (strcmp(all[i].key, "adapter.modules_to_save") == 0)
            story_set(s, "adapter.rank", "2");
        if (all[i].rows)
            tuning_write_pairs(s, all[i].rows);
        story_set(s, all[i].key, all[i].value);
        story_run(s, 1);
        if (s->status == FSDP_OK || !strstr(s->message, all[i].message))
            TEST_FAIL("%s: %s: '%s'", all[i].key, all[i].value, s->message);
    }
}

STORY_TEST(keys_of_dpo_need_the_objective)
{
    story_set(s, "dpo.beta", "0.2");
    story_run(s, 1);
    CHECK(strstr(s->message, "dpo.beta needs training.objective dpo: set that") != NULL);
}

STORY_TEST(a_failing_allocation_ends_all_ranks)
{
    tuning_prefer(s);
    story_set(s, "adapter.rank", "2");
    story_set(s, "training.steps", "1");
    s->kind = FSDP__FAULT_ALLOCATION;
    s->fired = true;
    for (s->nth = 1; s->fired; s->nth += test_brief() ? 1499 : 499) {
        story_run(s, 2);
        CHECK(!s->fired || s->status == FSDP_OK || *s->message);
        CHECK_EQ(s->statuses[0] == FSDP_OK, s->statuses[1] == FSDP_OK);
    }
    CHECK_OK(s->status);
}
