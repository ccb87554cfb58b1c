/* Shards that rest in halves: all their bits, in 4 bytes a parameter, whoever asks for them. Links: optim */
#include <math.h>

#include "comm/health/failure.h"
#include "fsdp/optim.h"
#include "shard/net_bytes.h"

enum {
    BLOCKS = 2,
    STEPS = 4,
    MOST = 512 /* elements of one rank's shards */
};

typedef enum stepper {
    BY_ADAMW,
    BY_SGD,
    BY_LION,
    STEPPERS
} stepper;

typedef struct course {
    bool split;
    stepper by;
    float losses[STEPS];
    float shards[MOST];
    int64_t count;
} course;

static fsdp_shard_options options_of(bool split)
{
    return (fsdp_shard_options){.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                .mp_policy = {.param_dtype = FSDP_BF16, .split_shards = split},
                                .no_shared_memory = true};
}

static fsdp_optimizer *optimizer_of(fsdp_module *module, stepper by)
{
    fsdp_adam_options adam = fsdp_adam_options_default();
    const fsdp_sgd_options sgd = {.lr = 0.05, .momentum = 0.9};
    const fsdp_lion_options lion = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99};
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer = NULL;

    adam.lr = 0.02;
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    if (by == BY_SGD)
        CHECK_OK(fsdp_sgd_create(&parameters, &sgd, &optimizer));
    else if (by == BY_LION)
        CHECK_OK(fsdp_lion_create(&parameters, &lion, &optimizer));
    else
        CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

static size_t live_shards(fsdp_module *module)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(module->context), &stats);
    return stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD];
}

/* In halves these are two casts; whole, the shards and a cast. */
static void check_live(fsdp_module *module, bool halves)
{
    int64_t world = fsdp_context_world_size(module->context);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    size_t casts = BLOCKS * block.cast + root.cast;

    CHECK_EQ(live_shards(module), casts + (halves ? casts : BLOCKS * block.shard + root.shard));
}

static void read_shards(fsdp_module *module, course *c)
{
    fsdp_parameters parameters;

    c->count = 0;
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        CHECK(c->count + fsdp_tensor_numel(parameters.items[i].tensor) <= MOST);
        CHECK_OK(fsdp_tensor_read(parameters.items[i].tensor, FSDP_F32, c->shards + c->count));
        c->count += fsdp_tensor_numel(parameters.items[i].tensor);
    }
    fsdp_parameters_release(&parameters);
}

/* Reads after the second step, in the middle of the course. */
static void train(fsdp_context *context, void *arg)
{
    course mine = *(course *)arg, *c = fsdp_context_rank(context) == 0 ? arg : &mine;
    fsdp_shard_options options = options_of(c->split);
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    fsdp_optimizer *optimizer = optimizer_of(module, c->by);

    check_live(module, false);
    for (int step = 0; step < STEPS; step++) {
        c->losses[step] = net_forward_backward(module, step, 0, 1);
        check_live(module, c->split);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        check_live(module, c->split && c->by == BY_ADAMW);
        if (step != 1)
            continue;
        read_shards(module, c);
        check_live(module, false);
    }
    read_shards(module, c);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* None of these numbers is ever a tie, so all bits are the same. */
TEST(training_has_the_bits_of_whole_shards_in_less_memory)
{
    for (int world = 1; world <= 4; world++)
        for (int by = 0; by < (world == 2 ? STEPPERS : 1); by++) {
            course whole = {.by = (stepper)by}, split = {.split = true, .by = (stepper)by};

            test_run_ranks(world, train, &whole);
            test_run_ranks(world, train, &split);
            CHECK_BYTES(split.losses, whole.losses, sizeof whole.losses);
            CHECK_EQ(split.count, whole.count);
            CHECK_BYTES(split.shards, whole.shards, (size_t)whole.count * sizeof *whole.shards);
        }
}

/* A tie goes away from zero where it is computed with, and stays what it is in the shard; so do the largest numbers. */
CONTEXT_TEST(ties_are_gathered_away_from_zero_and_kept)
{
    static const float values[NET_OUT] = {0x1.01p0f, -0x1.01p0f, 0x1.03p0f, 0x1.00fffep0f, 0x1.fffffep127f, 0x1p-149f};
    static const float gathered[NET_OUT] = {0x1.02p0f, -0x1.02p0f, 0x1.04p0f, 0x1p0f, INFINITY, 0};
    fsdp_shard_options options = options_of(true);
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    float seen[NET_OUT];

    CHECK_OK(fsdp_tensor_write(fsdp_module_parameter(module, "head.bias"), FSDP_F32, values));
    for (int turn = 0; turn < 2; turn++) {
        CHECK_OK(fsdp_module_unshard(module));
        CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, seen));
        CHECK_BYTES(seen, gathered, sizeof seen);
        CHECK_OK(fsdp_module_reshard(module));
        CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, seen));
        CHECK_BYTES(seen, values, sizeof seen);
    }
    fsdp_module_unref(module);
}

/* The tensors of a model that is gone, and its optimizer, have all their bytes. */
CONTEXT_TEST(a_shard_outlives_its_group)
{
    fsdp_shard_options options = options_of(true);
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    fsdp_tensor *bias = fsdp_tensor_ref(fsdp_module_parameter(module, "blocks.1.up.bias"));
    fsdp_optimizer *optimizer = optimizer_of(module, BY_ADAMW);
    float before[NET_FFN], after[NET_FFN];

    CHECK_OK(fsdp_tensor_read(bias, FSDP_F32, before));
    (void)net_forward_backward(module, 0, 0, 1);
    check_live(module, true);
    fsdp_module_unref(module);
    CHECK_OK(fsdp_tensor_read(bias, FSDP_F32, after));
    CHECK_BYTES(after, before, sizeof after);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(bias);
}

static fsdp_module *split_net(fsdp_context *context)
{
    fsdp_shard_options options = options_of(true);

    return net_sharded(context, BLOCKS, &options);
}

static void check_there(fsdp_module *module, const float *values)
{
    float seen[NET_OUT];

    CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, seen));
    CHECK_BYTES(seen, values, sizeof seen);
}

/* Goes on after a step that failed: in another world, where that was in the middle of a call, which ended this one. */
static void go_on(fsdp_module **module)
{
    fsdp_context *context = (*module)->context;

    if (!fsdp__comm_is_broken(fsdp_world(context))) {
        CHECK_OK(fsdp_module_reset_iteration(*module));
        return;
    }
    fsdp_module_unref(*module);
    fsdp_context_free(context);
    *module = split_net(test_context());
}

/* Neither the way to halves nor the one back loses a bit. */
TEST(whichever_allocation_fails_the_shards_are_there)
{
    fsdp_module *module = split_net(test_context());
    fsdp_context *context;
    float before[NET_OUT], after[NET_OUT];

    CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, before));
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = net_try(module);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        if (status == FSDP_OK)
            continue;
        check_there(module, before);
        go_on(&module);
    }
    for (long n = 0; test_next_fault(FSDP__FAULT_ALLOCATION, &n);) {
        fsdp_status status = fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, after);

        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
    }
    CHECK_BYTES(after, before, sizeof after);
    context = module->context;
    fsdp_module_unref(module);
    fsdp_context_free(context);
}

static void refuse(fsdp_shard_options options, fsdp_status status, const char *part)
{
    fsdp_context *context = test_context();
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    options.mp_policy.split_shards = true;
    if (status == FSDP_INVALID) {
        CHECK_ERROR(fsdp_fully_shard(module, &options), status, part);
    } else {
        CHECK_OK(fsdp_fully_shard(module, &options));
        CHECK_ERROR(fsdp_module_materialize(module, test_device(context)), status, part);
    }
    fsdp_module_unref(module);
    fsdp_context_free(context);
}

TEST(what_cannot_be_split_is_refused)
{
    fsdp_shard_options options = options_of(true);

    options.mp_policy.param_dtype = FSDP_F16;
    refuse(options, FSDP_INVALID, "split_shards needs param_dtype FSDP_BF16");
    options = options_of(true);
    options.gather_extension = fsdp_gather_int8();
    refuse(options, FSDP_UNSUPPORTED, "other bytes are gathered of it");
}

static void refuse_shared(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = options_of(true);
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    (void)arg;
    options.no_shared_memory = false;
    CHECK_OK(fsdp_fully_shard(module, &options));
    CHECK_ERROR(fsdp_module_materialize(module, test_device(context)), FSDP_UNSUPPORTED,
                "ranks share the memory of what is gathered (no_shared_memory)");
    fsdp_module_unref(module);
}

TEST(halves_that_peers_read_are_refused)
{
    test_only_on_cpu("ranks share the memory of parameters there");
    test_run_ranks(2, refuse_shared, NULL);
}

/* Of another dtype they would not be two halves: all stays as it was. */
CONTEXT_TEST(a_dtype_that_has_no_halves_changes_nothing)
{
    fsdp_shard_options options = options_of(true);
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    course before = {.count = 0}, after = {.count = 0};

    read_shards(module, &before);
    (void)net_forward_backward(module, 0, 0, 1);
    CHECK_ERROR(fsdp_module_to(module, FSDP_BF16), FSDP_UNSUPPORTED, "only float32 that is gathered in bfloat16");
    (void)net_forward_backward(module, 0, 0, 1);
    check_live(module, true);
    read_shards(module, &after);
    CHECK_BYTES(after.shards, before.shards, (size_t)before.count * sizeof *before.shards);
    fsdp_module_unref(module);
}
