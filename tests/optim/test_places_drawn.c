/* Places of a loop's steps that are drawn: microbatches, backwards twice, tensors that it keeps, allocations that fail.
 */
#include "autograd/autograd.h"
#include "check/fault.h"
#include "optim/trainee.h"
#include "support/dice.h"

enum {
    HELD = 3 /* tensors over steps */
};

static void replace(fsdp_tensor **slot, fsdp_tensor *by)
{
    fsdp_tensor_unref(*slot);
    *slot = by;
}

/* Takes a step of drawn microbatches, of which any may go back twice and leave a tensor to the loop, and evaluates
 * between them. Any allocation may fail: then the loop drops the gradients, and goes on. */
static void draw_step(const trainee *t, uint64_t *dice, fsdp_tensor **held)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_status status = FSDP_OK;

    if (dice_chance(dice, 25))
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 1 + dice_below(dice, 300));
    status = fsdp_scope_begin(context);
    if (status != FSDP_OK)
        return;
    for (int micros = 1 + dice_below(dice, 3); micros > 0 && status == FSDP_OK; micros--) {
        fsdp_tensor *out = fsdp_call(
            t->model, fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(TRAINEE_BATCH / (1 + dice_below(dice, 4)), t->width)));
        fsdp_tensor *loss = fsdp_mean(fsdp_mul(out, out));
        bool twice = dice_chance(dice, 20);

        status = loss ? fsdp_backward_from(&loss, NULL, 1, twice) : fsdp_last_status();
        if (status == FSDP_OK && twice)
            status = fsdp_backward(loss);
        if (dice_chance(dice, 20))
            replace(&held[dice_below(dice, HELD)], fsdp_tensor_ref(out));
        fsdp_no_grad_begin(context);
        if (dice_chance(dice, 20))
            (void)fsdp_call(t->model, fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(TRAINEE_BATCH / 3, t->width)));
        fsdp_no_grad_end(context);
    }
    if (status == FSDP_OK)
        (void)fsdp_optimizer_step(t->adamw);
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    fsdp_scope_end(context, NULL);
}

TEST(after_random_steps_of_which_some_fail_others_reserve_their_peak)
{
    const dice_seeds seeds = dice_seeds_of("LOOPS", test_long() ? 1000 : 16);
    uint64_t far = 0;

    for (uint64_t seed = seeds.first; seed < seeds.end; seed++) {
        trainee t = trainee_set_up();
        fsdp_tensor *held[HELD] = {NULL};
        uint64_t dice = seed;
        size_t live;

        trainee_step(&t); /* makes moments */
        live = trainee_memory(t.device).live_total_bytes;
        for (int n = 0; n < 30; n++) {
            draw_step(&t, &dice, held);
            CHECK(!trainee_is_far(t.device, 0.5));
        }
        for (int i = 0; i < HELD; i++)
            fsdp_tensor_unref(held[i]);
        CHECK_EQ(trainee_memory(t.device).live_total_bytes, live);
        for (int n = 0; n < 60; n++)
            trainee_step(&t);
        far += trainee_is_far(t.device, 0.02);
        trainee_tear_down(&t);
    }
    CHECK(seeds.only ||
          far <= (seeds.end - seeds.first) / 100); /* what a step leaves out of a larger one keeps its place */
}
