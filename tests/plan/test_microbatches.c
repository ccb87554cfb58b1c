/* Steps of many microbatches: those that are alike are counted and not run, and a plan says the same. */
#include "plan/drawn.h"
#include "plan/plan.h"
#include "support/dice.h"
#include "support/test.h"
#include "train/config.h"
#include "train/run_config.h"

static void check_units(const fsdp_explanation *some, const fsdp_explanation *all)
{
    CHECK_EQ(some->unit_count, all->unit_count);
    for (int64_t i = 0; i < all->unit_count; i++) {
        CHECK_EQ(some->units[i].gathers, all->units[i].gathers);
        CHECK_EQ(some->units[i].gathered_bytes, all->units[i].gathered_bytes);
        CHECK_EQ(some->units[i].reductions, all->units[i].reductions);
        CHECK_EQ(some->units[i].reduced_bytes, all->units[i].reduced_bytes);
        CHECK_NEAR(some->units[i].flops, all->units[i].flops, 0);
    }
}

/* Checks that a plan which passes over microbatches says what one says that runs all of them: memory to the byte, and
 * exactly what is sent. Times are sums, in another order. */
static void check_same(const fsdp__plan *some, const fsdp__plan *all)
{
    const fsdp__plan_peak *a = &some->peak, *b = &all->peak;

    CHECK_BYTES(&some->e->step, &all->e->step, sizeof all->e->step);
    CHECK_BYTES(a->bytes, b->bytes, sizeof a->bytes);
    CHECK_BYTES(a->by_op, b->by_op, sizeof a->by_op);
    CHECK_EQ(a->total, b->total);
    CHECK_EQ(a->workspace, b->workspace);
    CHECK_EQ(a->microbatch, b->microbatch);
    CHECK_EQ(a->unit, b->unit);
    CHECK_EQ(a->phase, b->phase);
    CHECK_EQ(some->crossing.in, all->crossing.in);
    CHECK_EQ(some->crossing.out, all->crossing.out);
    CHECK_EQ(some->crossing.least, all->crossing.least);
    CHECK_EQ(some->host_bytes, all->host_bytes);
    CHECK_NEAR(some->time.step, all->time.step, 1e-6 * all->time.step);
    check_units(some->e, all->e);
}

static bool check_drawn(uint64_t seed)
{
    uint64_t dice = seed;
    fsdp_train_config *config = plan_drawn_config(&dice);
    int machines = 1 + dice_below(&dice, 2);
    fsdp__prices prices;
    fsdp__plan_options options = {
        .world_size = machines * (1 + dice_below(&dice, 4)), .machines = machines, .prices = &prices};
    fsdp__plan *some, *all;

    CHECK_OK(fsdp__prices_of_card("H100", &prices));
    config->training.local_batch_size = 1 + dice_below(&dice, 3);
    config->training.global_batch_size = config->training.local_batch_size * (4 + dice_below(&dice, 9)) *
                                         fsdp__train_data_ranks(config, options.world_size);
    if (fsdp__plan_make(config, &options, &some) != FSDP_OK)
        return false;
    options.every_microbatch = true;
    CHECK_OK(fsdp__plan_make(config, &options, &all));
    check_same(some, all);
    fsdp__plan_free(some);
    fsdp__plan_free(all);
    return true;
}

TEST(microbatches_that_are_alike_are_counted_as_if_they_ran)
{
    dice_seeds seeds = dice_seeds_of("MICROBATCHES", 40);
    int taken = 0;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++)
        taken += check_drawn(seed);
    CHECK(seeds.only || taken >= (int)(seeds.end - seeds.first) / 8);
}

TEST(a_step_of_very_many_microbatches_is_planned_or_refused)
{
    fsdp_train_config *config = test_small_config("training.local_batch_size=1 training.global_batch_size=131072");
    fsdp__plan_options options = {.world_size = 2, .machines = 1};
    fsdp__plan *plan;

    CHECK_OK(fsdp__plan_make(config, &options, &plan));
    CHECK_EQ(plan->e->microbatches, 65536);
    fsdp__plan_free(plan);
    test_set_keys(config, "training.global_batch_size=131074");
    CHECK_ERROR(fsdp__plan_make(config, &options, &plan), FSDP_INVALID,
                "training.global_batch_size 131074 makes 65537 microbatches of 1 sequence in a step: at most 65536");
}
