/* The choice of one token: the most likely one, temperature, top-k, top-p, numbers that are none. */
#include <math.h>

#include "base/rng.h"
#include "generate/generate.h"
#include "support/dice.h"
#include "support/test.h"

enum {
    MOST = 40
};

static int32_t sample(const float *logits, int64_t count, fsdp_generate_options options, float draw)
{
    fsdp__candidate scratch[MOST];
    int32_t token = -1;

    CHECK_OK(fsdp__sample(logits, count, &options, draw, scratch, &token));
    return token;
}

static int32_t sample_plainly(const float *logits, int64_t count, float temperature, int64_t top_k, float draw)
{
    return sample(logits, count, (fsdp_generate_options){.temperature = temperature, .top_k = top_k}, draw);
}

TEST(the_most_likely_token_with_the_lowest_id_wins)
{
    static const float logits[] = {-2, 3, 3, 1, 3, -INFINITY}, nothing[] = {-INFINITY, -INFINITY};

    CHECK_EQ(sample_plainly(logits, 6, 0, 0, 0.9f), 1);
    CHECK_EQ(sample_plainly(logits, 6, 1, 1, 0.99f), 1);
    CHECK_EQ(sample_plainly(logits, 1, 0, 0, 0), 0);
    CHECK_EQ(sample(nothing, 2, (fsdp_generate_options){.temperature = 1, .top_p = 0.5f}, 0.5f), 0);
}

TEST(draws_fall_in_proportion_to_the_probabilities)
{
    const float logits[] = {logf(1), logf(2), -INFINITY, logf(5)};
    const float squared[] = {logf(1), logf(4), -INFINITY, logf(25)};
    int counts[4] = {0};

    for (int i = 0; i < 800; i++)
        counts[sample_plainly(logits, 4, 1, 0, (float)i / 800)]++;
    CHECK_NEAR(counts[0], 100, 1);
    CHECK_NEAR(counts[1], 200, 1);
    CHECK_EQ(counts[2], 0);
    CHECK_NEAR(counts[3], 500, 1);
    for (int i = 0; i < 100; i++) /* temperature 2 takes the square root */
        CHECK_EQ(sample_plainly(squared, 4, 2, 0, (float)i / 100 + 0.001f),
                 sample_plainly(logits, 4, 1, 0, (float)i / 100 + 0.001f));
}

TEST(top_k_leaves_the_k_most_likely)
{
    static const float logits[] = {1, 0, 2, 2, 0.5f};
    bool seen[5] = {false};

    for (int i = 0; i < 100; i++)
        seen[sample_plainly(logits, 5, 1, 3, (float)i / 100)] = true;
    CHECK(seen[0] && !seen[1] && seen[2] && seen[3] && !seen[4]);
    memset(seen, 0, sizeof seen);
    for (int i = 0; i < 100; i++)
        seen[sample_plainly(logits, 5, 1, 99, (float)i / 100)] = true;
    CHECK(seen[0] && seen[1] && seen[2] && seen[3] && seen[4]);
}

/* 0.5, 0.3, 0.1, 0.06, 0.04 in another order. */
TEST(top_p_leaves_the_fewest_that_have_the_share)
{
    const float logits[] = {logf(0.06f), logf(0.5f), logf(0.04f), logf(0.3f), logf(0.1f)};
    static const struct {
        float top_p;
        int64_t top_k;
        int left;
    } cases[] = {
        {0.4f, 0, 1},  {0.51f, 0, 2}, {0.79f, 0, 2}, {0.81f, 0, 3}, {0.89f, 0, 3}, {0.91f, 0, 4},
        {0.97f, 0, 5}, {1, 0, 5},     {0, 0, 5},     {1e-6f, 0, 1}, {0.6f, 2, 1}, /* 0.5 of 0.8 is more than 0.6 */
        {0.7f, 2, 2},  {0.99f, 3, 3}};
    static const int order[] = {1, 3, 4, 0, 2};

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        bool seen[5] = {false};

        for (int draw = 0; draw < 200; draw++)
            seen[sample(logits, 5,
                        (fsdp_generate_options){.temperature = 1, .top_k = cases[i].top_k, .top_p = cases[i].top_p},
                        (float)draw / 200)] = true;
        for (int j = 0; j < 5; j++)
            if (seen[order[j]] != (j < cases[i].left))
                TEST_FAIL("top_p %g, top_k %d: token %d is %s", (double)cases[i].top_p, (int)cases[i].top_k, order[j],
                          seen[order[j]] ? "drawn" : "never drawn");
    }
}

/* ---- against sorting all of them ---- */

static int by_logit(const void *a, const void *b)
{
    const fsdp__candidate *x = a, *y = b;

    return x->logit != y->logit ? (x->logit > y->logit ? -1 : 1) : (x->token > y->token) - (x->token < y->token);
}

static int32_t expected(const float *logits, int64_t count, const fsdp_generate_options *o, float draw)
{
    fsdp__candidate all[MOST];
    double weights[MOST], total = 0, sum = 0, running = 0;
    int64_t left = o->top_k > 0 && o->top_k < count ? o->top_k : count, kept = 0;

    for (int64_t i = 0; i < count; i++)
        all[i] = (fsdp__candidate){logits[i], (int32_t)i};
    qsort(all, (size_t)count, sizeof *all, by_logit);
    for (int64_t i = 0; i < left; i++)
        total += weights[i] = exp(((double)all[i].logit - (double)all[0].logit) / (double)o->temperature);
    while (kept < left && sum < (double)o->top_p * total)
        sum += weights[kept++];
    for (int64_t i = 0; i < kept; i++) {
        running += weights[i];
        if (running > (double)draw * sum)
            return all[i].token;
    }
    return all[kept - 1].token;
}

TEST(choices_are_those_of_sorting_all_tokens)
{
    uint64_t key = fsdp__rng_key(3, "choices");
    float logits[MOST];

    for (uint64_t trial = 0; trial < 3000; trial++) {
        int64_t count = 1 + (int64_t)(fsdp__rng_uniform(key, 8 * trial) * MOST);
        fsdp_generate_options o = {.temperature = 0.2f + 3 * fsdp__rng_uniform(key, 8 * trial + 1),
                                   .top_k = (int64_t)(fsdp__rng_uniform(key, 8 * trial + 2) * 20),
                                   .top_p = 0.01f + 0.98f * fsdp__rng_uniform(key, 8 * trial + 3)};
        float draw = fsdp__rng_uniform(key, 8 * trial + 4);

        for (int64_t i = 0; i < count; i++) /* in steps, so that some are equal */
            logits[i] = floorf(8 * dice_normal(key + 1, trial * MOST + (uint64_t)i)) / 4;
        CHECK_EQ(sample(logits, count, o, draw), expected(logits, count, &o, draw));
    }
}

TEST(broken_logits_are_an_error)
{
    const float logits[] = {0, -NAN}, infinite[] = {INFINITY, 0};
    const fsdp_generate_options greedy = {0};
    fsdp__candidate scratch[2];
    int32_t token;

    CHECK_ERROR(fsdp__sample(logits, 2, &greedy, 0, scratch, &token), FSDP_NOT_FINITE, "logit of token 1 is nan");
    CHECK_ERROR(fsdp__sample(infinite, 2, &greedy, 0, scratch, &token), FSDP_NOT_FINITE, "logit of token 0 is inf");
}
