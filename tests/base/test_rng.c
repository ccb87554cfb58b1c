/* Philox against its published vectors, and what is drawn from it. */
#include <math.h>

#include "base/rng.h"
#include "support/dice.h"
#include "support/test.h"

static void check_words(const uint32_t *actual, uint32_t a, uint32_t b, uint32_t c, uint32_t d)
{
    CHECK_EQ(actual[0], a);
    CHECK_EQ(actual[1], b);
    CHECK_EQ(actual[2], c);
    CHECK_EQ(actual[3], d);
}

/* The known answers that Random123 ships. */
TEST(philox_gives_the_published_words)
{
    const uint32_t zero[4] = {0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    const uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, pi_key[2] = {0xa4093822, 0x299f31d0};
    uint32_t out[4];

    fsdp__philox4x32(zero, zero, out);
    check_words(out, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8);
    fsdp__philox4x32(ones, ones, out);
    check_words(out, 0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd);
    fsdp__philox4x32(pi, pi_key, out);
    check_words(out, 0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1);
}

TEST(key_and_index_fill_counter_and_key_low_words_first)
{
    const uint32_t counter[4] = {0x89abcdef, 0x01234567, 0, 0}, key[2] = {0x76543210, 0xfedcba98};
    uint32_t expected[4], out[4];

    fsdp__philox4x32(counter, key, expected);
    fsdp__philox(0xfedcba9876543210u, 0x0123456789abcdefu, out);
    CHECK_BYTES(out, expected, sizeof out);
}

TEST(keys_depend_on_seed_and_name)
{
    CHECK(fsdp__rng_key(1, "a") == fsdp__rng_key(1, "a"));
    CHECK(fsdp__rng_key(1, "a") != fsdp__rng_key(2, "a"));
    CHECK(fsdp__rng_key(1, "a") != fsdp__rng_key(1, "b"));
    CHECK(fsdp__rng_key(1, "ab") != fsdp__rng_key(1, "ba"));
    CHECK(fsdp__rng_key(0, "") != 0);
}

TEST(uniform_is_uniform_in_0_to_1)
{
    enum {
        DRAWS = 100000,
        BINS = 16
    };
    uint64_t key = fsdp__rng_key(7, "uniform");
    int bins[BINS] = {0};
    double sum = 0, squares = 0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        float x = fsdp__rng_uniform(key, i);

        CHECK(x >= 0.0f && x < 1.0f);
        sum += x;
        squares += (double)x * x;
        bins[(int)(x * BINS)]++;
    }
    CHECK_NEAR(sum / DRAWS, 0.5, 0.005);
    CHECK_NEAR(squares / DRAWS, 1.0 / 3, 0.005);
    for (int bin = 0; bin < BINS; bin++)
        CHECK_NEAR(bins[bin], DRAWS / BINS, 5 * sqrt((double)DRAWS / BINS));
}

TEST(normal_has_the_moments_of_a_normal)
{
    enum {
        DRAWS = 200000
    };
    uint64_t key = fsdp__rng_key(7, "normal");
    double moments[5] = {0}, pairs = 0, last = 0;
    int beyond_two = 0;

    for (uint64_t i = 0; i < DRAWS; i++) {
        double x = dice_normal(key, i), power = 1;

        CHECK(isfinite(x));
        for (int p = 1; p < 5; p++)
            moments[p] += power *= x;
        pairs += x * last;
        last = x;
        beyond_two += fabs(x) > 2;
    }
    CHECK_NEAR(moments[1] / DRAWS, 0, 0.012);
    CHECK_NEAR(moments[2] / DRAWS, 1, 0.02);
    CHECK_NEAR(moments[3] / DRAWS, 0, 0.05);
    CHECK_NEAR(moments[4] / DRAWS, 3, 0.15);
    CHECK_NEAR(pairs / DRAWS, 0, 0.012);
    CHECK_NEAR((double)beyond_two / DRAWS, 0.0455, 0.003);
}

/* What a rank draws for its rows is what one rank alone draws for them. */
TEST(a_draw_depends_only_on_key_and_index)
{
    enum {
        NUMEL = 37
    };
    uint64_t key = fsdp__rng_key(3, "wte.weight"), far = (uint64_t)5 << 40;
    float whole[NUMEL], part[NUMEL];

    for (int i = 0; i < NUMEL; i++)
        whole[i] = dice_normal(key, far + (uint64_t)i);
    for (int world = 1; world <= 8; world++)
        for (int rank = world - 1, chunk = (NUMEL + world - 1) / world; rank >= 0; rank--)
            for (int i = rank * chunk; i < NUMEL && i < (rank + 1) * chunk; i++) {
                part[i] = dice_normal(key, far + (uint64_t)i);
                CHECK_BYTES(&part[i], &whole[i], sizeof(float));
            }
}
