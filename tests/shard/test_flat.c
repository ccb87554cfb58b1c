/* Flat groups: the same numbers as any other layout, from runs of one vector.
 * Links: optim */
#include "shard/doors/fully_shard.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    AS_ONE = 1 /* of run->arg; 16: that alignment */
};

/* ---- the same numbers ---- */

static fsdp_module *arg_net(fsdp_context *context, const way_run *run)
{
    if (!run->way)
        return ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    return net_flat(context, BLOCKS, &run->options, (size_t)run->arg & 16, run->arg & AS_ONE);
}

/* Kept gradients, gradients that are added to, an evaluation, a gradient that the caller drops. */
static void train(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    for (int step = 0; step < 3; step++) {
        float loss;

        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, step != 1, true));
        ways_backward(run, module, 3 * step);
        loss = ways_evaluate(run, module, 3 * step + 1);
        (void)loss;
        dawdle(context, run);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        ways_backward(run, module, 3 * step + 2);
        if (!(run->arg & AS_ONE))
            note_gradients(run, module);
        if (step == 2 && !(run->arg & AS_ONE))
            CHECK_OK(fsdp_tensor_set_grad(fsdp_module_parameter(module, "blocks.1.up.weight"), NULL));
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_flat_model_trains_as_a_plain_one)
{
    in_every_way_with(train, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, 0);
    in_every_way_with(train, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, 16);
    in_every_way_with(train, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, AS_ONE);
}

/* Some parameters of a group are frozen, later others: their gradients are none, those of the others as ever. */
WAYS_TEST_BY(a_group_may_be_frozen_in_part, in_every_way_with, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, 16)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    static const char *const names[] = {"head.weight", "blocks.0.down.weight"};

    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < 2; i++)
            CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(module, names[i]), step == i + 1));
        ways_backward(run, module, step);
        dawdle(context, run);
        note_gradients(run, module);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* ---- replicas ---- */

/* Reductions inside the replica, of which one is dropped in part, then one across. */
static float *train_replicas(fsdp_module *module, int64_t *count)
{
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_module_set_requires_all_reduce(module, false, true));
        (void)net_forward_backward(module, step, 0, 2);
        if (step == 1)
            CHECK_OK(fsdp_tensor_set_grad(fsdp_module_parameter(module, "input.weight"), NULL));
        CHECK_OK(fsdp_module_set_requires_all_reduce(module, true, true));
        if (step == 2)
            CHECK_OK(fsdp_module_synchronize_gradients(module));
        else
            (void)net_forward_backward(module, step, 1, 2);
        net_sgd(module, 0.1f);
    }
    return net_values(module, count);
}

static void compare_hybrid(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.mesh = net_hybrid_mesh(context, *(int *)arg)};

    for (int kind = 0; kind < 3; kind++) {
        fsdp_module *rows, *flat;
        float *expected, *actual;
        int64_t count, flat_count;

        options.no_shared_memory = kind > 0;
        options.overlap = kind ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO;
        options.offload_policy.cpu = kind == 2;
        rows = net_sharded(context, BLOCKS, &options);
        expected = train_replicas(rows, &count);
        flat = net_flat(context, BLOCKS, &options, 16, false);
        actual = train_replicas(flat, &flat_count);
        CHECK_EQ(count, flat_count);
        net_check_same(actual, expected, count);
        fsdp_module_unref(rows);
        fsdp_module_unref(flat);
    }
    fsdp_mesh_unref(options.mesh);
}

TEST(replicas_are_bit_equal_to_those_of_rows)
{
    test_run_ranks(2, compare_hybrid, &(int){1});
    test_run_ranks(2, compare_hybrid, &(int){2});
    test_run_ranks(4, compare_hybrid, &(int){2});
    test_run_ranks(6, compare_hybrid, &(int){2});
}

/* ---- what has no gradient ---- */

/* Of the root's group the head alone. */
static fsdp_tensor *head_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_cross_entropy(fsdp_call(((net *)self)->head, fsdp_call(((net *)self)->norm, inputs[0])), inputs[1]);
}

static const fsdp_module_type head_type = {.name = "Net", .forward = head_forward};

WORLDS_TEST(without_a_gradient_of_its_own_it_counts_as_zeros, 1, 3)
{
    fsdp_module *module = net_flat(context, BLOCKS, &(fsdp_shard_options){0}, 0, false);
    fsdp_tensor *x, *targets, *input;
    float values[NET_DIM * NET_IN];

    module->type = &head_type;
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 2, &x, &targets);
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, (const int64_t[]){2, NET_DIM},
                                FSDP_MEMORY_ACTIVATION, &x));
    CHECK_OK(fsdp_tensor_fill_(x, 0.5));
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets))));
    fsdp_tensor_unref(x);
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_full_tensor(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "input.weight"))), &input));
    CHECK_OK(fsdp_tensor_read(input, FSDP_F32, values));
    for (int i = 0; i < NET_DIM * NET_IN; i++)
        CHECK_EQ(values[i], 0);
    CHECK(fsdp_tensor_grad(fsdp_module_parameter(module, "head.weight")) != NULL);
    CHECK_NULL(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.up.weight"))); /* nobody had one there */
    fsdp_tensor_unref(input);
    fsdp_module_unref(module);
}

/* ---- where it lies ---- */

/* The vector's elements, by the definition: parameters at multiples of `align` elements, then the ranks' padding. */
static int64_t expected_chunk(fsdp_module *module, int64_t align, int64_t world, const char *prefix, int64_t *firsts)
{
    fsdp_parameters parameters;
    int64_t total = 0;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_distribution *d = fsdp_tensor_distribution(parameters.items[i].tensor);
        bool mine = strncmp(parameters.items[i].name, "blocks.", 7) != 0;

        firsts[i] = -1;
        if (*prefix ? strncmp(parameters.items[i].name, prefix, strlen(prefix)) != 0 : !mine)
            continue;
        firsts[i] = total = (total + align - 1) / align * align;
        total += fsdp__shape_numel(d->ndim, d->global_shape);
    }
    fsdp_parameters_release(&parameters);
    return (total + world - 1) / world;
}

static void check_group(fsdp_module *module, int64_t align, const char *prefix)
{
    int64_t world = fsdp_context_world_size(module->context), firsts[64], here = 0;
    int64_t chunk = expected_chunk(module, align, world, prefix, firsts), rank = fsdp_context_rank(module->context);
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *t = parameters.items[i].tensor;
        const fsdp_distribution *d = fsdp_tensor_distribution(t);
        int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS], begin, end;

        if (firsts[i] < 0)
            continue;
        CHECK(fsdp_distribution_is_flat(d));
        CHECK_EQ(d->placements[0].first, firsts[i]);
        CHECK_EQ(d->placements[0].chunk, chunk);
        begin = FSDP__MAX(firsts[i], rank * chunk);
        end = FSDP__MIN(firsts[i] + fsdp__shape_numel(d->ndim, d->global_shape), (rank + 1) * chunk);
        fsdp_tensor_box(t, offset, size);
        CHECK_EQ(size[0], FSDP__MAX(end - begin, 0));
        CHECK_EQ(fsdp_tensor_numel(t), size[0]);
        if (size[0] > 0)
            CHECK_EQ(offset[0], begin - firsts[i]);
        here += size[0];
    }
    CHECK(here <= chunk);
    fsdp_parameters_release(&parameters);
}

/* First values do not depend on the layout; a gather and a reduction send the vector, once. */
static void check_layout(fsdp_context *context, void *arg)
{
    int64_t align = *(int64_t *)arg, world = fsdp_context_world_size(context), firsts[64], count, chunks, live = 0;
    fsdp_module *module = net_flat(context, BLOCKS, &(fsdp_shard_options){.reshard_after_forward = FSDP_RESHARD_ALWAYS},
                                   (size_t)align * sizeof(float), false);
    float *actual = net_values(module, &count), *expected = net_expected(BLOCKS, 0, &count);
    fsdp_comm_stats stats;
    fsdp_memory_stats memory;

    CHECK_BYTES(actual, expected, (size_t)count * sizeof *actual);
    check_group(module, align, "");
    check_group(module, align, "blocks.1.");
    chunks = BLOCKS * expected_chunk(module, align, world, "blocks.0.", firsts) +
             expected_chunk(module, align, world, "", firsts);
    for (int step = 0; step < 5; step++) {
        fsdp_context_reset_comm_stats(context);
        (void)net_forward_backward(module, step, 0, 1);
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], 2 * (world - 1) * chunks * (int64_t)sizeof(float));
        CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], (world - 1) * chunks * (int64_t)sizeof(float));
        net_sgd(module, 0.1f);
        fsdp_device_memory(test_device(context), &memory);
        if (step > 2) /* no drift */
            CHECK_EQ(memory.live_total_bytes, live);
        live = (int64_t)memory.live_total_bytes;
    }
    free(actual);
    free(expected);
    fsdp_module_unref(module);
}

TEST(parameters_are_runs_of_one_vector)
{
    for (int world = 1; world <= 5; world++)
        for (int64_t align = 1; align <= 4; align += 3)
            test_run_ranks(world, check_layout, &align);
}

/* ---- one parameter ---- */

static void check_one(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"_flat_param", "blocks.0._flat_param", "blocks.1._flat_param"};
    int64_t world = fsdp_context_world_size(context), firsts[64];
    fsdp_module *module = net_flat(context, BLOCKS, &(fsdp_shard_options){.no_shared_memory = arg != NULL}, 0, true);
    fsdp_module *rows = net_flat(context, BLOCKS, &(fsdp_shard_options){0}, 0, false);
    fsdp_tensor *part = fsdp_module_parameter(module, "head.weight"), *flat;
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_EQ(parameters.count, BLOCKS + 1);
    for (int64_t i = 0; i < parameters.count; i++) {
        const char *prefix = i == 0 ? "" : i == 1 ? "blocks.0." : "blocks.1.";
        int64_t chunk = expected_chunk(rows, 1, world, prefix, firsts);

        flat = parameters.items[i].tensor;
        CHECK_STRING(parameters.items[i].name, names[i]);
        CHECK_EQ(fsdp_tensor_ndim(flat), 1);
        CHECK_EQ(fsdp_tensor_size(flat, 0), chunk);
        CHECK_EQ(fsdp_tensor_distribution(flat)->global_shape[0], chunk * world);
        CHECK(fsdp_tensor_requires_grad(flat));
    }
    (void)net_forward_backward(module, 0, 0, 1);
    flat = parameters.items[0].tensor;
    CHECK(fsdp_tensor_grad(flat) && fsdp_tensor_distribution(fsdp_tensor_grad(flat)));
    CHECK_NULL(fsdp_tensor_grad(part)); /* it has none of its own */
    CHECK_OK(fsdp_tensor_set_grad(flat, NULL));
    CHECK_OK(fsdp_tensor_set_requires_grad(flat, false)); /* all of it */
    CHECK(!fsdp_tensor_requires_grad(part));
    (void)net_forward_backward(module, 1, 0, 1);
    CHECK_NULL(fsdp_tensor_grad(flat));
    CHECK(fsdp_tensor_grad(parameters.items[1].tensor) != NULL);
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(rows);
    fsdp_module_unref(module);
}

TEST(a_unit_may_be_one_parameter)
{
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, check_one, copy ? &(int){1} : NULL);
}

/* ---- no parameter ---- */

/* linear = Linear(5,0), gathered in another dtype: weight (0,5), bias (0). */
static void check_nothing(fsdp_context *context, void *arg)
{
    const fsdp_shard_options options = {.no_shared_memory = arg != NULL,
                                        .mp_policy = {.param_dtype = FSDP_BF16, .output_dtype = FSDP_F32}};
    const fsdp_summon_options with_grads = {.with_grads = true};
    const fsdp__flat flat = {.align = 16};
    fsdp_module *linear = fsdp_linear_create(context, test_device(context), NET_IN, 0, NULL);
    fsdp_tensor *shard = fsdp_module_parameter(linear, "weight"), *x, *targets;

    CHECK_OK(fsdp_module_initialize(linear, 1));
    CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, &linear, 1, &options, &flat));
    CHECK(fsdp_distribution_is_flat(fsdp_tensor_distribution(shard)));
    CHECK_EQ(fsdp_tensor_ndim(shard), 1);
    CHECK_EQ(fsdp_tensor_numel(shard), 0);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 4, &x, &targets);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_call(linear, x)))));
    fsdp_scope_end(context, NULL);
    CHECK(fsdp_distribution_is_flat(fsdp_tensor_distribution(CHECK_PTR(fsdp_tensor_grad(shard)))));
    CHECK_OK(fsdp_module_summon_full_params(linear, &with_grads));
    CHECK_EQ(fsdp_tensor_size(fsdp_module_parameter(linear, "weight"), 1), NET_IN);
    CHECK_EQ(fsdp_tensor_ndim(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(linear, "weight")))), 2);
    CHECK_OK(fsdp_module_end_summon(linear));
    fsdp_module_unref(linear);
}

TEST(a_vector_without_elements_is_one)
{
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, check_nothing, copy ? &(int){1} : NULL);
}

/* An optimizer of the original parameters has nothing to step. */
static void optimize_parts(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), 1);
    const fsdp__flat flat = {.as_one = true};
    fsdp_optimizer *early;

    (void)arg;
    CHECK_OK(fsdp_module_initialize(module, 1));
    early = ways_optimizer(module);
    CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, &module, 1, &(fsdp_shard_options){0}, &flat));
    (void)net_forward_backward(module, 0, 0, 1);
    CHECK_ERROR(fsdp_optimizer_step(early), FSDP_STATE, "is a part of a flat parameter");
    fsdp_optimizer_free(early);
    fsdp_module_unref(module);
}

TEST(an_optimizer_of_its_parts_is_refused)
{
    test_run_ranks(1, optimize_parts, NULL);
    test_run_ranks(3, optimize_parts, NULL);
}

/* ---- what it does not do ---- */

RANKS_TEST(slices_and_other_dtypes_are_refused, 4)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    const fsdp__flat flat = {0};

    CHECK_ERROR(fsdp__fully_shard(&fsdp__door_fully_shard, &module, 1,
                                  &(fsdp_shard_options){.reshard_after_forward_ranks = 2}, &flat),
                FSDP_UNSUPPORTED, "a flat parameter keeps no slices");
    CHECK_OK(fsdp__fully_shard(&fsdp__door_fully_shard, &module, 1, &(fsdp_shard_options){0}, &flat));
    CHECK_ERROR(fsdp_module_to(module, FSDP_BF16), FSDP_STATE, "lies in a flat parameter");
    fsdp_module_unref(module);
}
