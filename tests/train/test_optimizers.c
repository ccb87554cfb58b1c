/* Runs with lion, adamw8bit, muon and adafactor: the same weights on any number of ranks, in pieces, and from the same
 * checkpoint. */
#include "train/config.h"
#include "train/story.h"

/* Sizes of which some weights have moments of bytes, in one block a row and in two. */
static story *anew(const char *name)
{
    static const char *const keys[][2] = {{"model.dim", "48"},
                                          {"model.ffn_dim", "300"},
                                          {"lr_scheduler.decay_type", "wsd"},
                                          {"lr_scheduler.decay_steps", "2"},
                                          {"lr_scheduler.decay_shape", "1-sqrt"}};
    story *s = story_new();

    for (int i = 0; i < 5; i++)
        story_set(s, keys[i][0], keys[i][1]);
    story_set(s, "optimizer.name", name);
    story_set(s, "export.path", s->model);
    if (strcmp(name, "adafactor") == 0)
        story_set(s, "training.global_batch_size", STORY_BATCH_OF_8);
    return s;
}

static story *train(const char *name, int world, const char *strategy)
{
    story *s = anew(name);

    story_set(s, "parallelism.strategy", strategy);
    if (strcmp(strategy, "fsdp1") == 0)
        story_set(s, "parallelism.fsdp1_use_orig_params", "true");
    story_go(s, world);
    return s;
}

/* A run that is ended after three steps and goes on, on as many ranks and on others. */
static void goes_on(const char *name)
{
    static const int worlds[] = {3, 1, 4};
    size_t bytes;
    const story *first = train(name, 3, "fsdp2");
    char *whole = story_weights(first, &bytes);

    for (int i = 0; i < 3; i++) {
        story *s = anew(name);

        story_set(s, "checkpoint.folder", s->folder);
        story_stop(s, 3, 3);
        story_go_on(s, worlds[i]);
        for (int step = 4; step <= STORY_STEPS; step++)
            CHECK_NEAR(s->losses[step], first->losses[step], i == 0 ? 0 : 2e-4);
        if (i > 0)
            continue;
        story_check_weights(s, whole, bytes);
    }
}

TEST(runs_go_on_with_their_state)
{
    goes_on("lion");
    goes_on("adamw8bit");
    goes_on("muon");
    goes_on("adafactor");
}

static void check_near(const char *first, const char *weights, size_t bytes)
{
    uint64_t header;

    memcpy(&header, first, sizeof header);
    for (size_t at = 8 + header; at < bytes; at += sizeof(float)) {
        float a, b;

        memcpy(&a, first + at, sizeof a);
        memcpy(&b, weights + at, sizeof b);
        CHECK_NEAR(a, b, 1e-5);
    }
}

/* Sums of columns are added rank by rank. */
TEST(adafactor_gives_the_same_weights_but_for_the_last_bits)
{
    static const char *const strategies[] = {"ddp", "zero1", "zero3", "fsdp1", "fsdp2", "fsdp2", "fsdp2", "fsdp2"};
    static const int worlds[] = {4, 4, 4, 4, 1, 2, 3, 8};
    size_t bytes, more;
    char *first = story_weights(train("adafactor", 4, "fsdp2"), &bytes);

    for (int i = 0; i < 8; i++) {
        char *weights = story_weights(train("adafactor", worlds[i], strategies[i]), &more);

        CHECK_EQ(more, bytes);
        check_near(first, weights, bytes);
    }
}

TEST(strategies_give_the_same_weights)
{
    static const char *const names[] = {"lion", "adamw8bit", "muon"};
    static const char *const strategies[] = {"ddp", "zero1", "fsdp1"};

    for (int n = 0; n < 3; n++) {
        size_t bytes, more;
        char *first = story_weights(train(names[n], 4, "fsdp2"), &bytes);

        for (int i = 0; i < (n == 1 ? 2 : 3); i++) {
            char *weights = story_weights(train(names[n], 4, strategies[i]), &more);

            CHECK_EQ(more, bytes);
            CHECK_BYTES(first, weights, bytes);
        }
    }
}

STORY_TEST(what_an_optimizer_cannot_have_is_refused)
{
    story_set(s, "optimizer.name", "muon");
    story_set(s, "parallelism.strategy", "fsdp1");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "optimizer.name is for single parameters, but with parallelism.strategy fsdp1");
    story_set(s, "optimizer.name", "adafactor");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "optimizer.name is for single parameters, but with parallelism.strategy fsdp1");
    story_set(s, "optimizer.name", "adamw8bit");
    story_set(s, "parallelism.fsdp1_use_orig_params", "true");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "optimizer.name adamw8bit needs whole rows of weights");
    test_set_keys(s->config, "parallelism.strategy=fsdp2 parallelism.fsdp1_use_orig_params= optimizer.name=muon");
    story_set(s, "optimizer.groups", "[{pattern: '*norm*', hidden: true}]");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "by Muon: it has 1 dimension, and Muon is for matrices");
    story_set(s, "optimizer.groups", "");
    story_set(s, "optimizer.groups", "[{pattern: '*.mlp.*', beta2: 0.9}]");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "optimizer.groups: '*.mlp.*' has beta2, but all that it matches are hidden matrices");
}

TEST(a_warm_up_may_be_of_tokens)
{
    static const char *const ways[][2] = {{"lr_scheduler.warmup_steps", "4"}, {"lr_scheduler.warmup_tokens", "300"}};
    double losses[STORY_STEPS + 1];
    story *s;

    for (int i = 0; i < 2; i++) { /* a step has 96 tokens */
        s = story_new();
        story_set(s, "lr_scheduler.warmup_steps", "0");
        story_set(s, ways[i][0], ways[i][1]);
        story_go(s, 2);
        if (i == 0)
            memcpy(losses, s->losses, sizeof losses);
    }
    CHECK_BYTES(losses + 1, s->losses + 1, STORY_STEPS * sizeof *losses);
    story_set(s, "lr_scheduler.warmup_steps", "3");
    story_run(s, 2);
    CHECK_CONTAINS(s->message,
                   "lr_scheduler.warmup_tokens and lr_scheduler.warmup_steps exclude each other: 300 and 3");
    story_set(s, "lr_scheduler.warmup_tokens", "");
    story_set(s, "lr_scheduler.decay_shape", "linear");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "lr_scheduler.decay_shape needs lr_scheduler.decay_type wsd");
    story_set(s, "lr_scheduler.decay_type", "wsd");
    story_set(s, "lr_scheduler.decay_steps", "4");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "lr_scheduler.decay_steps 4 and warmup_steps 3 are more than the 6 training.steps");
}

/* How long the warm-up is, and the run, is known when the data is. */
STORY_TEST(a_fall_has_room_behind_a_warm_up_of_tokens)
{
    test_set_keys(s->config, "lr_scheduler.decay_type=wsd lr_scheduler.decay_steps=3 lr_scheduler.warmup_steps=0 "
                             "lr_scheduler.warmup_tokens=300");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "lr_scheduler.decay_steps 3 and the warm-up of warmup_tokens, in steps, 4 are more than "
                               "the 6 training.steps");
    story_set(s, "training.epochs", "1"); /* more steps than training.steps says */
    story_go(s, 2);
    story_set(s, "training.epochs", "0.25");
    story_run(s, 2);
    CHECK_CONTAINS(s->message, "4 are more than the 3 steps of training.epochs");
}
