/* What stands out in figures is said, and what is usual is not. */
#include "watch/signs.h"

#include <math.h>

#include "support/test.h"

static char text[FSDP__SIGN_TEXT];

TEST(waiting_is_said_from_its_share_on)
{
    const fsdp__rank_times t = {.steps = 50, .step = 5000, .gather = 1200, .reduce = 300};

    CHECK(!fsdp__sign_waiting(&t, 0.3, NULL, 0, text));
    CHECK(fsdp__sign_waiting(&t, 0.29, "model.layers.3", 1000, text));
    CHECK_CONTAINS(text, "30 % of its time it waits for gathers (24 %) and reductions (6 %). The longest");
    CHECK_CONTAINS(text, "for model.layers.3, 20 ms a step");
    CHECK(fsdp__sign_waiting(&t, 0.1, "", 1000, text));
    CHECK_CONTAINS(text, "for the root, 20 ms");
    CHECK(!fsdp__sign_waiting(&(fsdp__rank_times){0}, 0.1, NULL, 0, text));
}

TEST(data_that_are_waited_for_name_their_workers)
{
    const fsdp__rank_times t = {.steps = 10, .step = 1000, .data = 200};

    CHECK(fsdp__sign_starved(&t, 0, text));
    CHECK_CONTAINS(text, "20 % of its time it waits for data, 20 ms a step. data.workers is 0");
    CHECK(fsdp__sign_starved(&t, 2, text));
    CHECK_CONTAINS(text, "more data.workers");
    CHECK(!fsdp__sign_starved(&(fsdp__rank_times){.steps = 10, .step = 1000, .data = 90}, 0, text));
    CHECK(!fsdp__sign_starved(&(fsdp__rank_times){.steps = 10, .step = 20, .data = 10}, 0, text));
}

TEST(a_slow_rank_is_one_that_the_others_wait_for)
{
    fsdp__rank_times ranks[] = {{.steps = 10, .step = 1000, .gather = 200, .reduce = 100},
                                {.steps = 10, .step = 1000, .gather = 210, .reduce = 100},
                                {.steps = 10, .step = 1000, .gather = 5, .reduce = 5},
                                {.steps = 10, .step = 1000, .gather = 190, .reduce = 100}};

    CHECK_EQ(fsdp__slowest_rank(ranks, 4), 2);
    CHECK_EQ(fsdp__slowest_rank(ranks, 1), -1);
    CHECK(fsdp__sign_slow_rank(ranks, 4, 2, text));
    CHECK_CONTAINS(text, "Rank 2 is slow: it computes 99 ms of a step, the others 70 ms, and they wait 30 ms for it");
    CHECK(!fsdp__sign_slow_rank(ranks, 4, 3, text)); /* as fast as the others */
    for (int i = 0; i < 4; i++)                      /* of longer steps */
        ranks[i].step *= 100;
    CHECK(!fsdp__sign_slow_rank(ranks, 4, 2, text));
    for (int i = 0; i < 4; i++) {
        ranks[i].gather *= 100;
        ranks[i].reduce *= 100;
    }
    CHECK(fsdp__sign_slow_rank(ranks, 4, 2, text));
    CHECK_CONTAINS(text, "computes 9.9 s of a step, the others 7 s, and they wait 3 s for it");
    for (int i = 0; i < 4; i++) {
        ranks[i].step /= 100;
        ranks[i].gather /= 100;
        ranks[i].reduce /= 100;
    }
    ranks[2].data = 250;
    CHECK(fsdp__sign_slow_rank(ranks, 4, 2, text));
    CHECK_CONTAINS(text, "for it, mostly for its data");
    for (int i = 0; i < 4; i++) /* all wait alike: nobody is late */
        ranks[i] = (fsdp__rank_times){.steps = 10, .step = 1000, .gather = 300};
    CHECK(!fsdp__sign_slow_rank(ranks, 4, fsdp__slowest_rank(ranks, 4), text));
}

TEST(a_loss_that_stays_at_guessing_is_said)
{
    CHECK(fsdp__sign_loss_stays(5.55, 5.54, 5.545, 100, 1e-9, text));
    CHECK_CONTAINS(text, "not fallen in 100 steps: it was 5.55 and is 5.54, and guessing has 5.545");
    CHECK(!fsdp__sign_loss_stays(5.55, 4, 5.545, 100, 1e-3, text));
    CHECK(!fsdp__sign_loss_stays(2.1, 2.1, 5.545, 100, 1e-5, text)); /* it knows something already */
}

TEST(norms_that_jump_grow_or_are_0_are_said)
{
    CHECK(fsdp__sign_norm_jumps(50, 2, 70, 0, text));
    CHECK_CONTAINS(text, "is 50 at step 70, 25 times the median of the steps before. training.max_norm=1 would");
    CHECK(!fsdp__sign_norm_jumps(30, 2, 70, 1, text) && !fsdp__sign_norm_jumps(30, 0, 70, 1, text));
    CHECK(fsdp__sign_norm_grows(0.5, 60, 90, text) && !fsdp__sign_norm_grows(0.5, 40, 90, text));
    CHECK(fsdp__sign_no_gradient(0, 3, text));
    CHECK(!fsdp__sign_no_gradient(1e-9, 3, text) && !fsdp__sign_no_gradient(NAN, 3, text));
}

TEST(units_are_named_by_what_is_wrong_with_them)
{
    fsdp__unit_figures units[5];

    for (int i = 0; i < 5; i++)
        units[i] = (fsdp__unit_figures){
            .name = i > 0 ? "layers.n" : "", .elements = 100, .gradient = 1, .weight = 10, .update = 0.01};
    CHECK(!fsdp__sign_dead_units(units, 5, text) && !fsdp__sign_vanishing_units(units, 5, text));
    CHECK(!fsdp__sign_not_finite_units(units, 5, text) && !fsdp__sign_underflow(units, 5, 1024, text));
    CHECK(!fsdp__sign_large_updates(units, 5, 1e-3, text));
    units[0].zeros = 100;
    CHECK(fsdp__sign_dead_units(units, 5, text));
    CHECK_CONTAINS(text, "All gradients are 0 in 1 of 5 units (the root)");
    units[1].gradient = 1e-6;
    CHECK(fsdp__sign_vanishing_units(units, 5, text));
    CHECK_CONTAINS(text, "those of layers.n are less than");
    units[2].not_finite = 5;
    CHECK(fsdp__sign_not_finite_units(units, 5, text));
    CHECK_CONTAINS(text, "1 % of the gradients are NaN or infinite, in layers.n");
    for (int i = 1; i < 5; i++)
        units[i].tiny = 60;
    CHECK(fsdp__sign_underflow(units, 5, 1024, text));
    CHECK_CONTAINS(text, "60 % of the gradients are too small for float16's digits at the loss's scale of 1024");
    for (int i = 0; i < 5; i++)
        units[i].update = 3;
    CHECK(fsdp__sign_large_updates(units, 5, 0.5, text));
    CHECK_CONTAINS(text, "the root, layers.n, layers.n and 2 more by up to 30 % of their norm");
}
