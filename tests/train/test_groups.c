/* optimizer.groups and optimizer.decay: which parameters have which values, on any number of ranks. */
#include "train/story.h"

static void set_all(story *s, const char *const (*keys)[2])
{
    for (int i = 0; i < 6 && keys[i][0]; i++)
        story_set(s, keys[i][0], keys[i][1]);
}

/* The weights that a run with these keys ends with. */
static char *weights_with(const char *const (*keys)[2], int world, size_t *bytes)
{
    story *s = story_new();

    set_all(s, keys);
    story_set(s, "export.path", s->model);
    story_go(s, world);
    return story_weights(s, bytes);
}

/* Whether runs with these keys end with the same weights. */
static bool same(const char *const (*a)[2], const char *const (*b)[2], int world)
{
    size_t a_bytes, b_bytes;
    char *of_a = weights_with(a, world, &a_bytes), *of_b = weights_with(b, world, &b_bytes);
    bool equal = a_bytes == b_bytes && memcmp(of_a, of_b, a_bytes) == 0;

    return equal;
}

TEST(a_group_of_all_is_the_optimizer_with_its_values)
{
    static const char *const plain[6][2] = {{"optimizer.weight_decay", "0.3"}, {"optimizer.beta2", "0.9"}};
    static const char *const grouped[6][2] = {{"optimizer.groups", "[{pattern: '*', weight_decay: 0.3, beta2: 0.9}]"}};
    static const char *const faster[6][2] = {{"optimizer.lr", "0.005"},
                                             {"optimizer.weight_decay", "0.3"},
                                             {"optimizer.groups", "{pattern: '*', lr_scale: 2, beta2: 0.9}"}};
    static const char *const momentum[6][2] = {{"optimizer.name", "sgd"}, {"optimizer.weight_decay", "0.3"}};
    static const char *const sgd[6][2] = {{"optimizer.name", "sgd"},
                                          {"optimizer.groups", "[{pattern: '*', weight_decay: 0.3}]"}};

    CHECK(same(plain, grouped, 2));
    CHECK(same(plain, faster, 1));
    CHECK(same(momentum, sgd, 1));
}

TEST(the_first_pattern_that_matches_counts)
{
    static const char *const first[6][2] = {
        {"optimizer.groups", "[{pattern: '*norm*', weight_decay: 0}, {pattern: '*.layers.*', weight_decay: 0.7}]"},
        {"optimizer.weight_decay", "0.2"}};
    static const char *const apart[6][2] = {
        {"optimizer.groups", "[{pattern: 'model.norm.weight', weight_decay: 0}, {pattern: '*layernorm*', weight_decay: "
                             "0}, {pattern: '*_proj.weight', weight_decay: 0.7}]"},
        {"optimizer.weight_decay", "0.2"}};
    static const char *const other[6][2] = {
        {"optimizer.groups", "[{pattern: '*.layers.*', weight_decay: 0.7}, {pattern: '*norm*', weight_decay: 0}]"},
        {"optimizer.weight_decay", "0.2"}};

    CHECK(same(first, apart, 3));
    CHECK(!same(first, other, 1));
}

TEST(biases_and_norms_may_have_no_decay)
{
    static const char *const matrices[6][2] = {{"model.preset", "gpt-10m"},
                                               {"model.n_kv_heads", "3"},
                                               {"model.vocab_size", "256"},
                                               {"optimizer.weight_decay", "0.5"},
                                               {"optimizer.decay", "matrices"}};
    static const char *const named[6][2] = {
        {"model.preset", "gpt-10m"},
        {"model.n_kv_heads", "3"},
        {"model.vocab_size", "256"},
        {"optimizer.weight_decay", "0.5"},
        {"optimizer.groups", "[{pattern: '*.bias', weight_decay: 0}, {pattern: '*ln_*.weight', weight_decay: 0}]"}};
    static const char *const all[6][2] = {{"model.preset", "gpt-10m"},
                                          {"model.n_kv_heads", "3"},
                                          {"model.vocab_size", "256"},
                                          {"optimizer.weight_decay", "0.5"}};

    CHECK(same(matrices, named, 2));
    CHECK(!same(matrices, all, 2));
}

TEST(a_group_that_stands_still_is_as_it_began)
{
    static const char *const still[6][2] = {
        {"optimizer.groups", "[{pattern: '*.layers.*', lr_scale: 0}, {pattern: '*norm*', lr_scale: 0}]"},
        {"training.max_norm", "0"}};
    static const char *const frozen[6][2] = {{"model.frozen", "['*.layers.*', '*norm*']"}, {"training.max_norm", "0"}};

    CHECK(same(still, frozen, 2));
}

TEST(strategies_and_pieces_change_nothing)
{
    static const char *const keys[6][2] = {
        {"optimizer.groups", "[{pattern: '*.layers.0.*', lr_scale: 0.5, beta1: 0.8}, {pattern: '*embed*'}]"},
        {"optimizer.decay", "matrices"}};
    static const char *const strategies[] = {"ddp", "zero1"};
    size_t bytes;
    char *whole = weights_with(keys, 4, &bytes);
    story *s;

    for (int i = 0; i < 3; i++) {
        s = story_new();
        set_all(s, keys);
        story_set(s, "export.path", s->model);
        if (i < 2)
            story_set(s, "parallelism.strategy", strategies[i]);
        story_set(s, "checkpoint.folder", s->folder);
        story_stop(s, 4, 3);
        story_go_on(s, 4);
        story_check_weights(s, whole, bytes);
    }
}

static void refuses(story *s, const char *groups, const char *message)
{
    story_set(s, "optimizer.groups", groups);
    story_run(s, 2);
    CHECK_EQ(s->status, FSDP_INVALID);
    CHECK_CONTAINS(s->message, message);
}

STORY_TEST(a_pattern_without_parameters_is_refused)
{
    refuses(s, "[{pattern: '*.biass'}]", "optimizer.groups: '*.biass' matches no parameter; the nearest is '");
    refuses(s, "[{pattern: '*.layers.*'}, {pattern: '*layernorm*'}]",
            "optimizer.groups: '*layernorm*' matches 'model.layers.1.post_attention_layernorm.weight' and no parameter "
            "that an earlier pattern does not match: put it before that one");
    CHECK_ERROR(fsdp_train_config_set(s->config, "optimizer.groups", "[{pattern: a, lr: 1}]"), FSDP_INVALID,
                "optimizer.groups.lr is not a key of optimizer.groups");
    story_set(s, "parallelism.strategy", "fsdp1");
    refuses(s, "[{pattern: '*'}]", "optimizer.groups is for single parameters, but with parallelism.strategy fsdp1");
    story_set(s, "parallelism.fsdp1_use_orig_params", "true");
    story_go(s, 2);
}
