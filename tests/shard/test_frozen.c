/* Parameters that are not trained: frozen ones, gathered but not reduced, and ignored ones, which the engine leaves
 * alone. Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* ---- frozen ---- */

static const char *const names[] = {
    "input.weight",         "input.bias",         "blocks.0.up.weight", "blocks.0.up.bias",
    "blocks.0.down.weight", "blocks.0.down.bias", "blocks.1.up.weight", "blocks.1.up.bias",
    "blocks.1.down.weight", "blocks.1.down.bias", "norm.weight",        "norm.bias",
    "head.weight",          "head.bias"};

/* Bit i freezes names[i]. */
static void freeze(fsdp_module *module, unsigned frozen)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
        CHECK_OK(fsdp_tensor_set_requires_grad(CHECK_PTR(fsdp_module_parameter(module, names[i])), !(frozen >> i & 1)));
}

enum {
    ALL = (1 << FSDP__COUNT_OF(names)) - 1,
    BLOCK_0 = 0xf << 2,     /* a whole group */
    UP_1 = 0x3 << 6,        /* half of one */
    INPUT_AND_NORM = 0xc03, /* half of the root's */
    HEAD = 0x3000
};

static fsdp_module *frozen_net(fsdp_context *context, const way_run *run, unsigned frozen)
{
    fsdp_module *module = net_create(context, run->way ? fsdp_meta(context) : test_device(context), BLOCKS);

    freeze(module, frozen);
    if (run->way) {
        net_shard(module, &run->options);
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static void backward_and_step(way_run *run, fsdp_module *module, fsdp_optimizer *optimizer, int step)
{
    dawdle(module->context, run);
    ways_backward(run, module, step);
    note_gradients(run, module);
    ways_step(optimizer);
}

/* Frozen before the first forward, after it, and between a forward and its backward; thawed again. */
WAYS_TEST(parameters_may_be_frozen_and_thawed_at_any_time, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
{
    fsdp_module *module = frozen_net(context, run, ALL);
    fsdp_optimizer *optimizer;
    fsdp_tensor *loss;
    float evaluated;

    CHECK_OK(fsdp_scope_begin(context)); /* all of it is frozen in the first forward */
    CHECK(!fsdp_tensor_requires_grad(ways_loss(run, module, 0)));
    fsdp_scope_end(context, NULL);
    freeze(module, 0);
    optimizer = ways_optimizer(module);
    freeze(module, BLOCK_0 | UP_1 | INPUT_AND_NORM);
    backward_and_step(run, module, optimizer, 1);
    evaluated = ways_evaluate(run, module, 2);
    note(context, run, &evaluated, run->world == 1);
    freeze(module, ALL & ~(unsigned)HEAD);
    backward_and_step(run, module, optimizer, 3);
    freeze(module, HEAD);
    CHECK_OK(fsdp_scope_begin(context));
    loss = ways_loss(run, module, 4);
    freeze(module, BLOCK_0 | HEAD);
    dawdle(context, run);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    note_gradients(run, module);
    freeze(module, 0);
    backward_and_step(run, module, optimizer, 5); /* adds to what is there, where it is */
    ways_end(run, module, optimizer);
}

static fsdp_status give_up(fsdp_node *node, fsdp_tensor *const *grads)
{
    (void)node, (void)grads;
    return FSDP_FAIL(FSDP_IO, "the input's gradient is broken");
}

/* A backward that fails at its end, when the reductions of all groups are on their way. */
static void fail_step(const way_run *run, fsdp_module *module)
{
    static const fsdp_operation broken = {.name = "broken", .backward = give_up};
    fsdp_tensor *x, *input, *targets;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, WAYS_ROWS, &x, &targets);
    CHECK_OK(fsdp_tensor_set_requires_grad(x, true));
    fsdp_no_grad_begin(module->context);
    input = CHECK_PTR(fsdp_scale(x, 1));
    fsdp_no_grad_end(module->context);
    CHECK_OK(fsdp_record(&broken, &x, 1, &input, 1, NULL, 0, NULL, 0));
    CHECK_ERROR(fsdp_backward(CHECK_PTR(fsdp_call(module, input, targets))), FSDP_IO, "gradient is broken");
    fsdp_scope_end(module->context, NULL);
    if (run->way)
        CHECK_OK(fsdp_module_reset_iteration(module));
    fsdp_module_zero_grad(module);
}

/* What has failed leaves nothing behind for the steps after it, in which others are frozen. */
WAYS_TEST(what_failed_before_a_freeze_is_not_seen_after_it, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
{
    static const unsigned frozen[] = {0, BLOCK_0 | UP_1, HEAD};
    fsdp_module *module = frozen_net(context, run, 0);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int i = 0; i < 3; i++) {
        fail_step(run, module);
        freeze(module, frozen[i]);
        backward_and_step(run, module, optimizer, i);
    }
    ways_end(run, module, optimizer);
}

/* Unreduced gradients of what is frozen before the next backward are reduced all the same. */
WAYS_TEST(a_freeze_between_unreduced_backwards_loses_no_gradient, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
{
    fsdp_module *module = frozen_net(context, run, UP_1);

    for (int step = 0; step < 2; step++) {
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, 2 * step);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        freeze(module, step == 0 ? BLOCK_0 | INPUT_AND_NORM : 0);
        dawdle(context, run);
        ways_backward(run, module, 2 * step + 1);
        note_gradients(run, module);
        fsdp_module_zero_grad(module);
    }
    fsdp_module_unref(module);
}

/* What rows of `numel` elements, padded to a multiple of the ranks, send in a reduce-scatter of f32. */
static int64_t ring_bytes(int64_t world, int64_t rows, int64_t numel)
{
    return (rows + world - 1) / world * (world - 1) * numel * 4;
}

static void count_bytes(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context), expected = 0;
    way_run run = {.way = &(way){0}, .options = *(const fsdp_shard_options *)arg};
    fsdp_module *module = frozen_net(context, &run, BLOCK_0 | UP_1 | INPUT_AND_NORM);
    fsdp_memory_stats memory;
    fsdp_comm_stats stats;

    for (int step = 0; step < 2; step++) {
        fsdp_context_reset_comm_stats(context);
        net_forward_backward(module, step, 0, 1);
        fsdp_context_comm_stats(context, &stats);
        expected = ring_bytes(world, NET_DIM, NET_FFN) + ring_bytes(world, NET_DIM, 1) +
                   ring_bytes(world, NET_OUT, NET_DIM) + ring_bytes(world, NET_OUT, 1);
        CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1 ? 1 + 2 * BLOCKS : 0);
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], world > 1 ? 2 : 0); /* the root's and the second block's */
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], expected);
        fsdp_module_zero_grad(module);
    }
    fsdp_device_memory(test_device(context), &memory);
    CHECK_EQ(memory.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    fsdp_module_unref(module);
}

TEST(only_what_is_trained_is_reduced)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 4, count_bytes, &options[i]);
}

/* ---- ignored ---- */

/* A weight of a nested call, one of the root's, and a tensor of nobody. */
static fsdp_module *ignoring_net(fsdp_context *context, const way_run *run, bool meta)
{
    fsdp_module *module = net_create(context, meta ? fsdp_meta(context) : test_device(context), BLOCKS);
    fsdp_shard_options options = run->options;
    fsdp_tensor *stranger;
    fsdp_tensor *ignored[] = {CHECK_PTR(fsdp_module_parameter(module, "blocks.1.up.weight")),
                              CHECK_PTR(fsdp_module_parameter(module, "head.bias")), NULL};

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(3), FSDP_MEMORY_ACTIVATION, &stranger));
    ignored[2] = stranger;
    options.mp_policy = (fsdp_mp_policy){0}; /* what is ignored is not cast either */
    options.ignored_params = ignored;
    options.ignored_param_count = 3;
    if (run->way)
        net_shard(module, &options);
    fsdp_tensor_unref(stranger);
    if (meta)
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static bool is_ignored(const char *name)
{
    return strcmp(name, "blocks.1.up.weight") == 0 || strcmp(name, "head.bias") == 0;
}

/* Every rank averages the ignored gradients by itself: then all that there is equals the plain model. */
static void average_ignored(fsdp_module *module)
{
    fsdp_context *context = module->context;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *g = fsdp_tensor_grad(parameters.items[i].tensor);

        if (!is_ignored(parameters.items[i].name))
            continue;
        CHECK_NULL(fsdp_tensor_distribution(parameters.items[i].tensor));
        CHECK_NULL(fsdp_tensor_distribution(CHECK_PTR(g)));
        CHECK_OK(fsdp_all_reduce(CHECK_PTR(fsdp_world(context)), fsdp_tensor_data(g), fsdp_tensor_data(g),
                                 fsdp_tensor_numel(g), g->dtype, FSDP_AVG, fsdp_device_stream(fsdp_tensor_device(g))));
    }
    fsdp_parameters_release(&parameters);
}

static void train_ignoring(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ignoring_net(context, run, run->way && run->arg);
    fsdp_optimizer *optimizer;
    fsdp_shard_info info;

    if (run->way) {
        CHECK_OK(fsdp_module_shard_info(net_block_at(module, 1), &info));
        CHECK_EQ(info.parameter_count, 3);
        CHECK_OK(fsdp_module_shard_info(module, &info));
        CHECK_EQ(info.parameter_count, 5);
    }
    optimizer = ways_optimizer(module);
    for (int step = 0; step < 3; step++) {
        dawdle(context, run);
        ways_backward(run, module, step);
        average_ignored(module);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    ways_end(run, module, optimizer);
}

TEST(what_is_ignored_is_the_callers_business)
{
    for (int meta = 0; meta < 2; meta++)
        in_every_way_with(train_ignoring, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, meta);
}

WORLDS_TEST(a_call_may_ignore_all_that_its_module_has, 1, 3)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 0);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(block, "up.weight")), *all[4];
    fsdp_shard_options options = {.ignored_params = all, .ignored_param_count = 4};
    static const char *const of_block[] = {"up.weight", "up.bias", "down.weight", "down.bias"};
    fsdp_shard_info info;
    float *before, *after;
    int64_t count;

    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.ignored_param_count = 1}), FSDP_INVALID, "no list");
    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.ignored_params = all, .ignored_param_count = -1}),
                FSDP_INVALID, "ignored_params");
    for (int i = 0; i < 4; i++)
        all[i] = i == 2 ? NULL : fsdp_module_parameter(block, of_block[i]);
    CHECK_ERROR(fsdp_fully_shard(block, &options), FSDP_INVALID, "ignored_params[2] is null");
    CHECK(!fsdp_module_is_sharded(block));
    all[2] = fsdp_module_parameter(block, of_block[2]);
    CHECK_OK(fsdp_module_initialize(module, 1));
    before = net_values(module, &count);
    CHECK_OK(fsdp_fully_shard(block, &options)); /* a call without parameters */
    CHECK_OK(fsdp_module_shard_info(block, &info));
    CHECK_EQ(info.parameter_count, 0);
    CHECK_OK(fsdp_fully_shard(module, NULL)); /* does not look into what was sharded */
    CHECK_NULL(fsdp_tensor_distribution(weight));
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_EQ(info.parameter_count, 10);
    after = net_values(module, &count);
    CHECK_BYTES(after, before, (size_t)count * sizeof *after);
    net_forward_backward(module, 0, 0, 1);
    CHECK_NULL(fsdp_tensor_distribution(CHECK_PTR(fsdp_tensor_grad(weight))));
    free(before);
    free(after);
    fsdp_module_unref(module);
}
