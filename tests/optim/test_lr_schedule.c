/* Learning-rate factors, worked out by hand. */
#include "fsdp/optim.h"
#include "support/test.h"

static void check_factors(fsdp_schedule schedule, const double *factors, int count)
{
    for (int step = 0; step < count; step++)
        CHECK_NEAR(fsdp_schedule_factor(&schedule, step), factors[step], 1e-12);
}

TEST(warm_up_rises_and_then_stays)
{
    static const double factors[] = {0.25, 0.5, 0.75, 1, 1, 1, 1};

    check_factors((fsdp_schedule){.warmup_steps = 3, .total_steps = 6}, factors, 7);
}

TEST(linear_decay_falls_to_the_minimum)
{
    static const double to_zero[] = {1.0 / 3, 2.0 / 3, 1, 0.75, 0.5, 0.25, 0, 0, 0};
    static const double to_fifth[] = {1, 0.8, 0.6, 0.4, 0.2, 0.2};

    check_factors((fsdp_schedule){.warmup_steps = 2, .total_steps = 6, .decay = FSDP_DECAY_LINEAR}, to_zero, 9);
    check_factors((fsdp_schedule){.total_steps = 4, .decay = FSDP_DECAY_LINEAR, .min_factor = 0.2}, to_fifth, 6);
}

TEST(cosine_decay_falls_to_the_minimum)
{
    /* cos 0, 60, 90, 120, 180 degrees */
    static const double to_zero[] = {0.5, 1, 0.93301270189221930, 0.75, 0.5, 0.25, 0.06698729810778070, 0, 0};
    static const double to_tenth[] = {1, 0.775, 0.325, 0.1, 0.1};

    check_factors((fsdp_schedule){.warmup_steps = 1, .total_steps = 7, .decay = FSDP_DECAY_COSINE}, to_zero, 9);
    check_factors((fsdp_schedule){.total_steps = 3, .decay = FSDP_DECAY_COSINE, .min_factor = 0.1}, to_tenth, 5);
}

TEST(strange_lengths_are_harmless)
{
    static const double all_warm_up[] = {0.2, 0.4, 0.6, 0.8, 1, 0};

    /* Warm-up longer than the training: decay would take one step. */
    check_factors((fsdp_schedule){.warmup_steps = 4, .total_steps = 2, .decay = FSDP_DECAY_LINEAR}, all_warm_up, 6);
    CHECK_NEAR(fsdp_schedule_factor(&(fsdp_schedule){.decay = FSDP_DECAY_COSINE}, 0), 1, 0);
    CHECK_NEAR(fsdp_schedule_factor(&(fsdp_schedule){.warmup_steps = 1}, -5), 0.5, 0);
    CHECK_NEAR(fsdp_schedule_factor(&(fsdp_schedule){.total_steps = INT64_MAX, .decay = FSDP_DECAY_LINEAR}, 5), 1,
               1e-15);
}

TEST(absurd_lengths_do_not_overflow)
{
    static const int64_t ends[] = {INT64_MIN, -1, 0, 1, INT64_MAX};
    enum {
        N = 5
    };

    CHECK_NEAR(fsdp_schedule_factor(NULL, 3), 1, 0);
    for (int i = 0; i < (FSDP_DECAY_INVERSE_SQRT + 1) * N * N * N * N; i++) {
        const fsdp_schedule schedule = {.decay = (fsdp_decay)(i / (N * N * N * N)),
                                        .warmup_steps = ends[i % N],
                                        .total_steps = ends[i / N % N],
                                        .decay_steps = ends[i / (N * N) % N],
                                        .timescale = ends[i / (N * N) % N]};
        double factor = fsdp_schedule_factor(&schedule, ends[i / (N * N * N) % N]);

        CHECK(factor >= 0 && factor <= 1);
    }
}

TEST(wsd_stays_and_falls_at_the_end)
{
    /* 2 steps of warm-up from 0.1, 3 that stay, 4 that fall: factor 0.1 + 0.9 x. */
    static const double cosine[] = {0.1, 0.55, 1, 1, 1, 1, 0.86819805153394642, 0.55, 0.23180194846605356, 0.1, 0.1};
    static const double linear[] = {0, 0.5, 1, 1, 1, 1, 0.75, 0.5, 0.25, 0, 0};
    static const double root[] = {1, 1, 1, 0.5, 0.29289321881345254, 0.1339745962155614, 0};
    static const double no_room[] = {0, 0.25, 0.5, 0.75, 1, 0.5, 0, 0};

    check_factors(
        (fsdp_schedule){
            .warmup_steps = 2, .total_steps = 9, .decay = FSDP_DECAY_WSD, .decay_steps = 4, .min_factor = 0.1},
        cosine, 11);
    check_factors(
        (fsdp_schedule){
            .warmup_steps = 2, .total_steps = 9, .decay = FSDP_DECAY_WSD, .decay_steps = 4, .fall = FSDP_FALL_LINEAR},
        linear, 11);
    check_factors((fsdp_schedule){.total_steps = 6, .decay = FSDP_DECAY_WSD, .decay_steps = 4, .fall = FSDP_FALL_SQRT},
                  root, 7);
    check_factors(
        (fsdp_schedule){
            .warmup_steps = 4, .total_steps = 5, .decay = FSDP_DECAY_WSD, .decay_steps = 2, .fall = FSDP_FALL_LINEAR},
        no_room, 8);
}

TEST(inverse_sqrt_falls_with_the_root_of_the_steps)
{
    static const double warm[] = {0, 0.25, 0.5, 0.75, 1, 0.89442719099991586, 0.81649658092772603, 0.7559289460184544};
    static const double scaled[] = {0, 0.5, 1, 0.94868329805051377, 0.90453403373329089};
    static const double floor[] = {1, 0.70710678118654757, 0.6, 0.6};

    check_factors((fsdp_schedule){.warmup_steps = 4, .decay = FSDP_DECAY_INVERSE_SQRT}, warm, 8);
    check_factors((fsdp_schedule){.warmup_steps = 2, .decay = FSDP_DECAY_INVERSE_SQRT, .timescale = 9}, scaled, 5);
    check_factors((fsdp_schedule){.decay = FSDP_DECAY_INVERSE_SQRT, .timescale = 1, .min_factor = 0.6}, floor, 4);
    CHECK_NEAR(fsdp_schedule_factor(&(fsdp_schedule){.decay = FSDP_DECAY_INVERSE_SQRT}, 30000), 0.5, 1e-15);
}
