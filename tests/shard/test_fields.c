/* What the fields of modules name, and what zero_grad, parameters, set_requires_grad and the state act on: the shards,
 * whatever the engine keeps whole; whole parameters only from an unshard to its reshard.
 * Links: optim state */
#include "fsdp/state.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static const fsdp_reshard reshards[] = {FSDP_RESHARD_AUTO, FSDP_RESHARD_NEVER};

static fsdp_module *arg_net(fsdp_context *context, const way_run *run)
{
    return ways_net(context, run, BLOCKS, reshards[run->arg]);
}

static void in_both(way_body body, int check)
{
    for (int i = 0; i < (int)FSDP__COUNT_OF(reshards); i++)
        in_every_way_with(body, check, i);
}

static fsdp_tensor *field(fsdp_module *module, const char *name)
{
    return CHECK_PTR(fsdp_module_parameter(module, name));
}

static bool is_whole(fsdp_module *module, const char *name)
{
    fsdp_parameters parameters;
    fsdp_tensor *tensor = field(module, name);

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (strcmp(parameters.items[i].name, name) == 0)
            CHECK(parameters.items[i].tensor == tensor);
    fsdp_parameters_release(&parameters);
    return fsdp_tensor_distribution(tensor) == NULL;
}

/* ---- after an evaluation ---- */

WAYS_TEST_BY(after_an_evaluation_parameters_are_shards, in_both, WAYS_ALONE)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_parameters before, after;
    fsdp_state_dict *state;

    CHECK_OK(fsdp_module_parameters(module, &before));
    (void)ways_evaluate(run, module, 0);
    CHECK(net_state(module) == FSDP_UNSHARDED);
    CHECK_EQ(net_state(net_block_at(module, 0)) == FSDP_UNSHARDED, run->arg == 1);
    dawdle(context, run);
    CHECK_OK(fsdp_module_parameters(module, &after));
    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    CHECK_EQ(after.count, before.count);
    CHECK_EQ(state->count, before.count);
    for (int64_t i = 0; i < after.count; i++) {
        CHECK(after.items[i].tensor == before.items[i].tensor);
        CHECK(field(module, after.items[i].name) == before.items[i].tensor);
        CHECK(state->entries[i].tensor == before.items[i].tensor);
        CHECK_PTR(fsdp_tensor_distribution(after.items[i].tensor));
        note_tensor(run, after.items[i].tensor);
    }
    fsdp_state_dict_free(state);
    fsdp_parameters_release(&after);
    fsdp_parameters_release(&before);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(after_an_evaluation_zero_grad_drops_gradients, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    ways_backward(run, module, 0);
    (void)ways_evaluate(run, module, 0);
    dawdle(context, run);
    fsdp_module_zero_grad(module);
    for (int64_t i = 0; i < parameters.count; i++)
        CHECK_NULL(fsdp_tensor_grad(parameters.items[i].tensor));
    ways_backward(run, module, 1);
    ways_step(optimizer);
    note_weights(run, module);
    fsdp_parameters_release(&parameters);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(an_optimizer_made_after_an_evaluation_trains_everything, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer;

    (void)ways_evaluate(run, module, 0);
    optimizer = ways_optimizer(module);
    for (int step = 0; step < 2; step++) {
        ways_backward(run, module, step);
        dawdle(context, run);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

static void check_gradients(fsdp_module *module, const char *const *frozen, int count)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        bool is_frozen = false;

        for (int k = 0; k < count; k++)
            is_frozen = is_frozen || strncmp(parameters.items[i].name, frozen[k], strlen(frozen[k])) == 0;
        CHECK_EQ(fsdp_tensor_requires_grad(parameters.items[i].tensor), !is_frozen);
        CHECK_EQ(fsdp_tensor_grad(parameters.items[i].tensor) != NULL, !is_frozen);
    }
    fsdp_parameters_release(&parameters);
}

/* Two modules and a single parameter, of the root and of a block. */
static void set_frozen(fsdp_module *module, bool frozen)
{
    CHECK_OK(fsdp_module_set_requires_grad(CHECK_PTR(fsdp_module_child(module, "input")), !frozen));
    CHECK_OK(fsdp_module_set_requires_grad(net_block_at(module, 1), !frozen));
    CHECK_OK(fsdp_tensor_set_requires_grad(field(module, "head.weight"), !frozen));
    CHECK_OK(fsdp_tensor_set_requires_grad(field(module, "blocks.0.up.bias"), !frozen));
}

WAYS_TEST_BY(a_freeze_after_an_evaluation_holds, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    static const char *const frozen[] = {"input.", "blocks.1.", "head.weight", "blocks.0.up.bias"};
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int round = 0; round < 2; round++) {
        (void)ways_evaluate(run, module, 0);
        set_frozen(module, true);
        if (round)
            (void)ways_evaluate(run, module, 1);
        ways_backward(run, module, 2 * round);
        check_gradients(module, frozen, FSDP__COUNT_OF(frozen));
        ways_step(optimizer);
        (void)ways_evaluate(run, module, 0);
        set_frozen(module, false);
        ways_backward(run, module, 2 * round + 1);
        check_gradients(module, NULL, 0);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* ---- the explicit window ---- */

WAYS_TEST_BY(a_window_is_from_unshard_to_reshard_or_write, in_both, WAYS_RANKS_AGREE)
{
    fsdp_module *module = arg_net(context, run), *block = net_block_at(module, 0);
    fsdp_tensor *shard = field(module, "head.weight");

    for (int round = 0; round < 2; round++) { /* the second time in what an evaluation kept */
        CHECK_OK(fsdp_module_unshard(module));
        CHECK(is_whole(module, "head.weight") && !is_whole(module, "blocks.0.up.weight"));
        CHECK_OK(fsdp_module_unshard(block));
        CHECK(is_whole(module, "blocks.0.up.weight") && !is_whole(module, "blocks.1.up.weight"));
        CHECK_EQ(fsdp_tensor_size(field(module, "blocks.0.up.weight"), 0), NET_FFN);
        CHECK_OK(fsdp_module_reshard(block));
        CHECK(is_whole(module, "head.weight") && !is_whole(module, "blocks.0.up.weight"));
        CHECK_OK(fsdp_module_reshard(module));
        CHECK(field(module, "head.weight") == shard);

        CHECK_OK(fsdp_module_unshard(module)); /* ends with a write */
        CHECK_OK(fsdp_tensor_fill_(shard, 0.25));
        CHECK(field(module, "head.weight") == shard);
        CHECK_OK(fsdp_module_unshard(module));
        note_tensor(run, field(module, "head.weight"));
        CHECK_OK(fsdp_module_reshard_all(module));
        (void)ways_evaluate(run, module, 0);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(a_window_ends_at_a_forward_or_backward_that_reshards, in_both, WAYS_RANKS_AGREE)
{
    fsdp_module *module = arg_net(context, run), *block = net_block_at(module, 0);

    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_unshard(block));
    dawdle(context, run);
    (void)ways_evaluate(run, module, 0);
    CHECK_EQ(is_whole(module, "blocks.0.up.weight"), run->arg == 1); /* a forward that reshards ends it */
    CHECK(is_whole(module, "head.weight"));
    CHECK(!is_whole(module, "blocks.1.up.weight"));
    CHECK_OK(fsdp_module_set_reshard_after_forward(module, true, true));
    (void)ways_evaluate(run, module, 0);
    CHECK(!is_whole(module, "head.weight") && !is_whole(module, "blocks.0.up.weight"));
    CHECK_OK(fsdp_module_set_reshard_after_forward(module, false, true));
    CHECK_OK(fsdp_module_unshard(module));
    ways_backward(run, module, 0);
    CHECK(!is_whole(module, "head.weight")); /* as does a backward */
    note_weights(run, module);
    fsdp_module_unref(module);
}

static void open_windows(const way_run *run, fsdp_module *module)
{
    if (!run->way)
        return;
    CHECK_OK(fsdp_module_unshard(module));
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_module_unshard(net_block_at(module, i)));
}

static void close_windows(const way_run *run, fsdp_module *module)
{
    if (run->way)
        CHECK_OK(fsdp_module_reshard_all(module));
}

WAYS_TEST_BY(zero_grad_and_freeze_in_a_window_act_on_the_shards, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    static const char *const frozen[] = {"input.", "blocks.1.", "head.weight", "blocks.0.up.bias"};
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_parameters shards;

    CHECK_OK(fsdp_module_parameters(module, &shards));
    ways_backward(run, module, 0);
    open_windows(run, module);
    dawdle(context, run);
    fsdp_module_zero_grad(module);
    for (int64_t i = 0; i < shards.count; i++)
        CHECK_NULL(fsdp_tensor_grad(shards.items[i].tensor));
    set_frozen(module, true);
    close_windows(run, module);
    ways_backward(run, module, 1);
    check_gradients(module, frozen, FSDP__COUNT_OF(frozen));
    open_windows(run, module);
    set_frozen(module, false);
    ways_backward(run, module, 2); /* without closing */
    close_windows(run, module);
    check_gradients(module, NULL, 0);
    ways_step(optimizer);
    note_weights(run, module);
    fsdp_parameters_release(&shards);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(gathered_parameters_are_refused_by_name, in_both, WAYS_ALONE)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer;
    fsdp_parameters parameters;
    fsdp_state_dict *state;

    CHECK_OK(fsdp_module_unshard(net_block_at(module, 1)));
    CHECK_ERROR(fsdp_state_dict_from_module(module, &state), FSDP_STATE, "blocks.1.up.weight");
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_ERROR(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer), FSDP_STATE,
                "blocks.1.up.weight");
    fsdp_parameters_release(&parameters);
    CHECK_OK(fsdp_module_reshard(net_block_at(module, 1)));
    (void)ways_evaluate(run, module, 0);
    CHECK_OK(fsdp_state_dict_from_module(module, &state));
    fsdp_state_dict_free(state);
    fsdp_module_unref(module);
}

/* ---- the same weights everywhere ---- */

WAYS_TEST_BY(an_evaluation_between_backward_and_step_changes_nothing, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < 3; step++) {
        ways_backward(run, module, step);
        (void)ways_evaluate(run, module, 9);
        dawdle(context, run);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(initialize_acts_on_the_shards_while_they_are_whole, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int round = 0; round < 4; round++) {
        (void)ways_evaluate(run, module, 0);
        if (round % 2)
            open_windows(run, module);
        dawdle(context, run);
        if (round < 2)
            CHECK_OK(fsdp_module_initialize(module, (uint64_t)round + 5));
        else
            CHECK_OK(fsdp_module_initialize(net_block_at(module, 1), (uint64_t)round + 5));
        ways_backward(run, module, round);
        if (round % 2)
            close_windows(run, module);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

WAYS_TEST_BY(parameters_kept_whole_over_steps_are_trained, in_both, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_NEVER);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    if (run->way)
        CHECK_OK(fsdp_module_set_reshard_after_backward(module, false, run->arg));
    for (int step = 0; step < 3; step++) {
        ways_backward(run, module, step);
        if (run->way)
            CHECK(net_state(module) == FSDP_UNSHARDED);
        dawdle(context, run);
        if (step != 1) /* gradients of two backwards add up */
            ways_step(optimizer);
        note_weights(run, module);
        if (step == 2)
            (void)ways_evaluate(run, module, 0);
    }
    ways_backward(run, module, 3);
    ways_last_step(run, module, optimizer);
}
