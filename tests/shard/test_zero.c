/* ZeRO's stages: one number instead of several settings. The same bits as those settings, and as each other where
 * gradients add up in the same order; collectives, their bytes, and the memory after each part of a step as stated.
 * Links: optim */
#include "fsdp/fsdp1.h"
#include "fsdp/replicate.h"
#include "shard/net_bytes.h"
#include "shard/ways.h"

enum {
    BLOCKS = 3,
    GROUPS = BLOCKS + 1,
    STEPS = 2,
    MICROS = 2,
    HEAD_AT_2 = 4 /* in place of a stage: blocks at 3, the rest at 2 */
};

/* ---- building and training ---- */

static fsdp_module *build(fsdp_context *context, fsdp_shard_options options, int stage)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    options.zero_stage = stage == HEAD_AT_2 ? 3 : stage;
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fully_shard(net_block_at(module, i), &options));
    options.zero_stage = stage == HEAD_AT_2 ? 2 : stage;
    CHECK_OK(fsdp_fully_shard(module, &options));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

/* Without a stage: as FSDP2 would be told to, reduced in each microbatch or in the last. */
static void begin_microbatch(fsdp_module *module, int stage, bool sync, bool last)
{
    if (stage > 0) {
        CHECK_OK(fsdp_module_set_is_last_microbatch(module, last));
        return;
    }
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, sync || last, true));
    CHECK_OK(fsdp_module_set_is_last_backward(module, last));
}

static float *train(fsdp_context *context, const fsdp_shard_options *options, int stage, int micros, bool sync)
{
    fsdp_module *module = build(context, *options, stage);
    int64_t count;
    float *values;

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < micros; micro++) {
            if (micros > 1)
                begin_microbatch(module, stage, sync, micro == micros - 1);
            net_forward_backward(module, step, micro, micros);
        }
        net_sgd(module, 0.1f);
    }
    values = net_values(module, &count);
    fsdp_module_unref(module);
    return values;
}

static int64_t element_count(fsdp_context *context)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_parameters parameters;
    int64_t count = 0;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        count += fsdp_tensor_numel(parameters.items[i].tensor);
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(module);
    return count;
}

/* Every stage against the settings that add up in its order. */
static void compare_stages(fsdp_context *context, way_run *run)
{
    int64_t count = element_count(context);

    for (int micros = 1; micros <= MICROS; micros++) {
        int first = micros == 1 ? 2 : 1, last = micros == 1 ? 2 : HEAD_AT_2; /* one alone says little */
        float *synced = train(context, &run->options, 0, micros, true);
        float *once = micros > 1 ? train(context, &run->options, 0, micros, false) : NULL;

        for (int stage = first; stage <= last; stage++) {
            float *values = train(context, &run->options, stage, micros, false);

            CHECK_BYTES(values, stage == 1 ? once : synced, (size_t)count * sizeof *values);
            free(values);
        }
        note(context, run, synced, count);
        free(synced);
        free(once);
    }
}

TEST(stages_are_bit_equal_where_they_add_up_alike)
{
    in_every_way(compare_stages, WAYS_RANKS_AGREE);
}

/* ZeRO inside each replica, and replication across. */
static void compare_hybrid(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.no_shared_memory = arg != NULL, .mesh = net_hybrid_mesh(context, 2)};
    way_run run = {.options = options};

    compare_stages(context, &run);
    free(run.notes[fsdp_context_rank(context)].values);
    fsdp_mesh_unref(options.mesh);
}

TEST(stages_go_inside_replicas)
{
    for (int world = 2; world <= 4; world += 2)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, compare_hybrid, copy ? &copy : NULL);
}

/* ---- what is sent ---- */

typedef struct costs {
    int stage, micros, replicas;
    bool copy;
} costs;

static void check_sent(fsdp_context *context, const costs *c, fsdp_module *module)
{
    int64_t world = fsdp_context_world_size(context) / FSDP__MAX(c->replicas, 1), m = c->micros, padded = 0, root;
    int64_t gathers = c->stage < 3 ? GROUPS : c->stage == 3 ? m * (2 * GROUPS - 1) : m * 2 * BLOCKS + 1;
    int64_t reductions = c->stage == 1 ? GROUPS : m * GROUPS, gathered;
    fsdp_comm_stats stats;
    fsdp_shard_info info;

    for (int i = 0; i < BLOCKS; i++) {
        CHECK_OK(fsdp_module_shard_info(net_block_at(module, i), &info));
        padded += info.padded_numel;
    }
    CHECK_OK(fsdp_module_shard_info(module, &info));
    root = info.padded_numel;
    gathered = c->stage < 3 ? padded + root : 2 * m * padded + (c->stage == 3 ? m : 1) * root;
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1 ? gathers : 0);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], (world - 1) * gathered / world * 4);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], world > 1 ? reductions : 0);
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], (world - 1) * (padded + root) / world * 4 * reductions / GROUPS);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], c->replicas > 1 ? reductions : 0);
}

static void count_calls(fsdp_context *context, void *arg)
{
    const costs *c = arg;
    fsdp_shard_options options = {.no_shared_memory = c->copy,
                                  .mesh = c->replicas ? net_hybrid_mesh(context, c->replicas) : NULL};
    fsdp_module *module = build(context, options, c->stage);

    for (int step = 0; step < 3; step++) {
        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < c->micros; micro++) {
            if (c->micros > 1)
                begin_microbatch(module, c->stage, false, micro == c->micros - 1);
            net_forward_backward(module, step, micro, c->micros);
        }
        check_sent(context, c, module);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(calls_and_bytes_are_those_of_the_stage)
{
    for (int world = 1; world <= (test_brief() ? 3 : 5); world++)
        for (int stage = 1; stage <= HEAD_AT_2; stage++)
            for (int micros = 1; micros <= MICROS; micros++) {
                costs c = {.stage = stage, .micros = micros, .copy = (world + micros) % 2};

                test_run_ranks(world, count_calls, &c);
                c.replicas = 2;
                if (world == 4)
                    test_run_ranks(world, count_calls, &c);
            }
}

/* ---- memory ---- */

/* The ledger's bytes, but for activations and scratch. */
static void check_live(fsdp_context *context, size_t shards, size_t whole, size_t gradients, size_t moments)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], whole);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], gradients);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], moments);
}

/* Two moments of this rank's rows, without padding. */
static size_t moment_bytes(fsdp_module *module)
{
    fsdp_parameters parameters;
    size_t bytes = 0;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        bytes += 2 * rounded((size_t)fsdp_tensor_numel(parameters.items[i].tensor) * sizeof(float));
    fsdp_parameters_release(&parameters);
    return bytes;
}

typedef struct sizes {
    size_t shards, whole, root, block, moments;
    size_t block_shard, root_shard;
} sizes;

static void check_microbatch(fsdp_module *module, const sizes *s, int stage, int step, int micro)
{
    fsdp_context *context = module->context;
    bool last = micro == MICROS - 1, accumulated = micro > 0;
    size_t before = !accumulated ? 0 : stage == 1 ? s->whole : s->shards, moments = step > 0 ? s->moments : 0;
    bool gathers = fsdp_context_world_size(context) > 1;
    size_t kept = !gathers ? 0 : stage < 3 ? s->whole : s->root;
    size_t most = !gathers ? 0 : stage < 3 ? s->whole : s->root + 2 * s->block;
    fsdp_memory_stats stats;
    fsdp_tensor *x, *targets, *loss;

    CHECK_OK(fsdp_module_set_is_last_microbatch(module, last));
    fsdp_device_reset_peak(test_device(context));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, step, 0, 2, &x, &targets);
    loss = CHECK_PTR(fsdp_call(module, x, targets));
    check_live(context, s->shards, kept, before, moments);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    check_live(context, s->shards, stage < 3 && !last ? kept : 0, stage == 1 && !last ? s->whole : s->shards, moments);
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], most);
    if (!gathers && (stage == 1 || !accumulated)) /* what the backward writes is the part */
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], s->shards);
    else if (stage ==
             1) /* all of them whole, and of the first that is reduced its part; or the last one with all parts */
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT],
                 last ? FSDP__MAX(s->whole + s->block_shard, s->root + s->shards) : s->whole);
    else
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT],
                 s->root +
                     (accumulated ? s->block + s->shards : FSDP__MAX(s->block + BLOCKS * s->block_shard, s->shards)));
}

static void check_memory(fsdp_context *context, void *arg)
{
    const costs *c = arg;
    int64_t world = fsdp_context_world_size(context);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    fsdp_module *module =
        build(context, (fsdp_shard_options){.no_shared_memory = c->copy, .overlap = FSDP_OVERLAP_INLINE}, c->stage);
    sizes s = {.shards = BLOCKS * block.shard + root.shard,
               .whole = BLOCKS * block.whole + root.whole,
               .root = root.whole,
               .block = block.whole,
               .moments = moment_bytes(module),
               .block_shard = block.shard,
               .root_shard = root.shard};
    const fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    check_live(context, s.shards, 0, 0, 0);
    for (int step = 0; step < 3; step++) {
        for (int micro = 0; micro < MICROS; micro++)
            check_microbatch(module, &s, c->stage, step, micro);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        check_live(context, s.shards, 0, s.shards, s.moments);
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        check_live(context, s.shards, 0, 0, s.moments);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(memory_is_that_of_the_stage)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= (test_brief() ? 3 : 5); world++)
        for (int stage = 1; stage <= 3; stage++)
            for (int copy = 0; copy < (world > 3 ? 1 : 2); copy++)
                test_run_ranks(world, check_memory, &(costs){.stage = stage, .copy = copy});
}

/* A unit of FSDP1 lies in one vector, padded once. */
static group_bytes unit_bytes(fsdp_context *context, fsdp_module *unit)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(unit, &info));
    CHECK_EQ(info.padded_numel % world, 0);
    CHECK(info.padded_numel - info.numel < 2 * world + 4 * 8); /* four parameters, each padded to 16 bytes */
    return (group_bytes){.whole = rounded((size_t)info.padded_numel * sizeof(float)),
                         .shard = rounded((size_t)(info.padded_numel / world) * sizeof(float))};
}

/* As stages 3, without synchronisation 1, and 1. */
static void check_fsdp1(fsdp_context *context, void *arg)
{
    const costs *c = arg;
    fsdp_fsdp1_options options = {.strategy = c->stage == 3 ? FSDP_FULL_SHARD : FSDP_SHARD_GRAD_OP,
                                  .no_shared_memory = c->copy,
                                  .overlap = FSDP_OVERLAP_INLINE};
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    group_bytes root, block;
    size_t shards, whole;

    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    root = unit_bytes(context, module);
    block = unit_bytes(context, net_block_at(module, 0));
    shards = BLOCKS * block.shard + root.shard;
    whole = BLOCKS * block.whole + root.whole;
    check_live(context, shards, 0, 0, 0);
    for (int step = 0; step < 3; step++) {
        fsdp_memory_stats stats;

        fsdp_device_reset_peak(test_device(context));
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        net_forward_backward(module, step, 0, MICROS);
        check_live(context, shards, c->stage == 3 ? 0 : whole, whole, 0);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        net_forward_backward(module, step, 1, MICROS);
        check_live(context, shards, 0, shards, 0);
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER],
                 c->stage == 3 ? root.whole + 2 * block.whole : whole);
        net_sgd(module, 0.1f);
        check_live(context, shards, 0, 0, 0);
    }
    fsdp_module_unref(module);
}

TEST(memory_of_fsdp1_is_that_of_its_strategy)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 2; world <= (test_brief() ? 3 : 5); world++)
        for (int stage = 1; stage <= 3; stage += 2)
            for (int copy = 0; copy < (world > 3 ? 1 : 2); copy++)
                test_run_ranks(world, check_fsdp1, &(costs){.stage = stage, .copy = copy});
}

/* By DDP, or unit by unit. */
static void make_whole(fsdp_module *module, const costs *c)
{
    const fsdp_replicate_options ddp = {.gradient_as_bucket_view = c->stage == 1, .no_shared_memory = c->copy};
    const fsdp_fsdp1_options none = {.strategy = FSDP_NO_SHARD, .no_shared_memory = c->copy};

    for (int i = 0; i < BLOCKS && c->stage == 0; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &none));
    CHECK_OK(c->stage == 0 ? fsdp_fsdp1_wrap(module, &none) : fsdp_replicate(module, &ddp));
    CHECK_OK(fsdp_module_materialize(module, test_device(module->context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
}

/* NO_SHARD, and DDP with and without gradients in its buckets: what every rank has is there once, and is not gathered.
 */
static void check_whole(fsdp_context *context, void *arg)
{
    const costs *c = arg;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_memory_stats stats;
    size_t parameters, gradients, bare = BLOCKS * block_bytes(1).partial + root_bytes(1).partial;

    make_whole(module, c);
    fsdp_device_memory(test_device(context), &stats);
    parameters = stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD];
    CHECK(parameters >= bare && parameters <= BLOCKS * block_bytes(1).whole + root_bytes(1).whole);
    gradients = c->stage == 0 ? parameters : rounded(bare); /* in a bucket they touch */
    for (int step = 0; step < 3; step++) {
        fsdp_device_reset_peak(test_device(context));
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        net_forward_backward(module, step, 0, MICROS);
        check_live(context, parameters, 0, gradients, 0);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        net_forward_backward(module, step, 1, MICROS);
        check_live(context, parameters, 0, gradients, 0);
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        CHECK(stats.peak_bytes[FSDP_MEMORY_GRADIENT] <= gradients * (c->stage == 1 ? 1 : 2));
        net_sgd(module, 0.1f);
        check_live(context, parameters, 0, 0, 0);
    }
    fsdp_module_unref(module);
}

TEST(what_is_whole_is_there_once)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 2; world <= (test_brief() ? 2 : 4); world++)
        for (int kind = 0; kind < 3; kind++)
            for (int copy = 0; copy < 2; copy++)
                test_run_ranks(world, check_whole, &(costs){.stage = kind, .copy = copy});
}

/* ---- what is around the microbatches ---- */

/* A forward without gradients changes nothing. A failed step is dropped, and its first microbatch begins anew. */
static void interrupt(fsdp_context *context, void *arg)
{
    const costs *c = arg;
    way_run run = {.way = &(way){.name = "of its own"}, .options.no_shared_memory = c->copy};
    fsdp_module *module = build(context, run.options, c->stage);
    float *values = train(context, &run.options, c->stage, MICROS, false), *interrupted;
    int64_t count;

    for (int step = 0; step < STEPS; step++) {
        if (step == 1) {
            CHECK_OK(fsdp_module_set_is_last_microbatch(module, false));
            net_forward_backward(module, 7, 0, MICROS);
            CHECK_OK(fsdp_module_reset_iteration(module));
            fsdp_module_zero_grad(module);
        }
        for (int micro = 0; micro < MICROS; micro++) {
            CHECK_OK(fsdp_module_set_is_last_microbatch(module, micro == MICROS - 1));
            net_forward_backward(module, step, micro, MICROS);
            (void)ways_evaluate(&run, module, step);
        }
        net_sgd(module, 0.1f);
        (void)ways_evaluate(&run, module, step + 1);
    }
    interrupted = net_values(module, &count);
    net_check_same(interrupted, values, count);
    fsdp_module_unref(module);
}

TEST(evaluations_and_failed_steps_between_microbatches_change_nothing)
{
    for (int world = 1; world <= (test_brief() ? 2 : 3); world++)
        for (int stage = 1; stage <= 3; stage++)
            for (int copy = 0; copy < 2; copy++)
                test_run_ranks(world, interrupt, &(costs){.stage = stage, .copy = copy});
}

/* ---- refusals ---- */

RANKS_TEST(what_contradicts_a_stage_is_refused, 4)
{
    static const struct {
        fsdp_shard_options options;
        const char *words;
    } wrong[] = {
        {{.zero_stage = 4}, "zero_stage 4: expected 1, 2 or 3, or 0 for none"},
        {{.zero_stage = -1}, "zero_stage -1"},
        {{.zero_stage = 1, .reshard_after_forward = FSDP_RESHARD_ALWAYS}, "and reshard_after_forward gives them up"},
        {{.zero_stage = 2, .reshard_after_forward_ranks = 2}, "and reshard_after_forward_ranks gives them up"},
        {{.zero_stage = 3, .reshard_after_forward = FSDP_RESHARD_NEVER}, "set zero_stage to 2"},
        {{.zero_stage = 3, .reshard_after_forward_ranks = 1}, "and reshard_after_forward_ranks keeps them whole"},
    };
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);

    for (size_t i = 0; i < FSDP__COUNT_OF(wrong); i++)
        CHECK_ERROR(fsdp_fully_shard(module, &wrong[i].options), FSDP_INVALID, wrong[i].words);
    CHECK_ERROR(fsdp_module_set_is_last_microbatch(module, true), FSDP_STATE, "was not given to fully_shard");
    CHECK_ERROR(fsdp_module_set_is_last_microbatch(NULL, true), FSDP_INVALID, "a module is required");
    CHECK_OK(fsdp_fully_shard(module, &(fsdp_shard_options){.zero_stage = 3, .reshard_after_forward_ranks = 2}));
    fsdp_module_unref(module);
}
