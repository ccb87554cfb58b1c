/* What forwards keep unsharded from one to the next: the same bits, one gather, writes seen, all of it given up again.
 * Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    STEPS = 3
};

static void check_states(const way_run *run, fsdp_module *module, fsdp_sharded_state expected)
{
    if (!run->way)
        return;
    CHECK_EQ(net_state(module), expected);
    for (int64_t i = 0; i < BLOCKS; i++)
        CHECK_EQ(net_state(net_block_at(module, i)), expected);
}

/* Evaluations between the steps, each of the weights as they are then; the second step is one with all of it kept. */
static void evaluate_and_train(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, run->arg);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < STEPS; step++) {
        float kept;

        CHECK_OK(fsdp_module_set_keep_unsharded(module, true));
        dawdle(context, run);
        kept = ways_evaluate(run, module, step);
        check_states(run, module, FSDP_UNSHARDED);
        CHECK(ways_evaluate(run, module, step) == kept);
        if (step != 1) {
            CHECK_OK(fsdp_module_set_keep_unsharded(module, false));
            check_states(run, module, FSDP_SHARDED);
            CHECK(ways_evaluate(run, module, step) == kept);
        }
        ways_backward(run, module, step);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(evaluations_and_steps_are_the_same)
{
    in_every_way_with(evaluate_and_train, WAYS_EQUAL_PLAIN, FSDP_RESHARD_AUTO);
    in_every_way_with(evaluate_and_train, WAYS_EQUAL_PLAIN, FSDP_RESHARD_ALWAYS);
}

static fsdp_tensor *keep_within(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_module_set_keep_unsharded(self, true) == FSDP_OK ? inputs[0] : NULL;
}

RANKS_TEST(in_a_forward_it_is_refused, 2)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    fsdp_tensor *x, *targets;

    CHECK_ERROR(fsdp_module_set_keep_unsharded(NULL, true), FSDP_INVALID, "a module is required");
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_FAILS(fsdp_module_call_method(module, keep_within, &x, 1), FSDP_STATE, "a forward or backward runs");
    fsdp_scope_end(context, NULL);
    CHECK_EQ(net_state(net_block_at(module, 0)), FSDP_SHARDED);
    net_train(module, 1);
    fsdp_module_unref(module);
}
