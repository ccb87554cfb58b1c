/* The ledger: what lives after each stage, and the peaks, equal the closed form, in every layout and on every run.
 *
 * With P_g the bytes of a group's whole parameters (rows padded to a multiple of the ranks, each parameter rounded up
 * to 64 bytes) and S_g those of one rank's rows of them:
 *     after building       sum S_g; in another param_dtype as much more as S_g are in it: their cast
 *     in other bytes       what a rank sends E_g besides S_g; while a group is gathered, E_g of all ranks
 *     whole parameters     forward P_root + P_block; backward P_root + 2 P_block (the one used, the one prefetched)
 *                          (units of a policy: the same, of the root and of two units whose backwards follow)
 *                          with reshard_after_forward_ranks k, slices of P_g/k besides: of all groups after the
 *                          forward; at the peak, of those blocks that the backward has not used
 *     gradients            unreduced P_root + P_block next to the reduced S_g of the blocks done so far
 *     hybrid sharding      while a group is reduced, its partial gradients: one rank's rows in a row, not rounded up
 *     offloaded shards     nothing of these on the device between steps; there, whole parameters as above (in another
 *                          param_dtype the shard that is cast on its way besides), and of gradients P_root + 2 P_block
 *                          + S_block: what is computed, what is being reduced and its result
 *     activations          of a recomputed block its input, from the forward to its backward; the rest of one
 *                          block at a time
 *     after the backward   sum S_g more: the reduced gradients; after zero_grad nothing but the start
 *
 * Links: optim */
#include "fsdp/optim.h"
#include "fsdp/wrap.h"
#include "shard/net_bytes.h"

enum {
    BLOCKS = 3
};

typedef struct stages {
    fsdp_shard_options options;
    int replicas; /* 0: a mesh of one dimension */
} stages;

static size_t most_unsharded(const fsdp_shard_options *options, int64_t world)
{
    group_bytes block = block_bytes(world), root = root_bytes(world);

    if (world == 1) /* its shards are whole */
        return 0;
    if (options->reshard_after_forward == FSDP_RESHARD_NEVER)
        return root.whole + BLOCKS * block.whole;
    return root.whole + 2 * block.whole + (options->reshard_after_forward_ranks ? (BLOCKS - 1) * block.slice : 0);
}

/* Gradients of a rank that is alone are its shards' as they are. */
static size_t most_gradients(int64_t world, int replicas)
{
    group_bytes block = block_bytes(world), root = root_bytes(world);
    size_t before_last = root.whole + block.whole + BLOCKS * block.shard;
    size_t last = root.whole + BLOCKS * block.shard + root.shard;

    if (replicas > 1) {
        before_last += rounded(block.partial);
        last += rounded(root.partial);
    } else if (world == 1) {
        return BLOCKS * block.shard + root.shard;
    }
    return FSDP__MAX(before_last, last);
}

static void check_stages(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = ((stages *)arg)->options;
    int replicas = ((stages *)arg)->replicas;
    int64_t world = fsdp_context_world_size(context) / FSDP__MAX(replicas, 1);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    size_t shards = BLOCKS * block.shard + root.shard, always, first_live = 0;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;

    if (replicas > 0)
        options.mesh = net_hybrid_mesh(context, replicas);
    net_shard(module, &options);
    fsdp_mesh_unref(options.mesh); /* the module has it */
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_total_bytes, 0); /* meta parameters take nothing */
    CHECK_OK(fsdp_module_materialize(module, device));
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
    CHECK_EQ(stats.peak_total_bytes, shards); /* no rank ever held more */
    CHECK_OK(fsdp_module_initialize(module, 1));

    always = most_unsharded(&options, world);
    for (int step = 0; step < 6; step++) {
        fsdp_device_reset_peak(device);
        net_forward_backward(module, step, 0, 1);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], always);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], most_gradients(world, replicas));
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], shards);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], 0);
        net_sgd(module, 0.1f);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        if (step == 2)
            first_live = stats.live_total_bytes;
        if (step > 2)
            CHECK_EQ(stats.live_total_bytes, first_live); /* no drift */
    }
    fsdp_module_unref(module);
}

TEST(live_and_peak_bytes_equal_the_closed_form)
{
    static const int worlds[] = {1, 2, 3, 4, 8};

    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        for (int variant = 0; variant < 4; variant++) {
            stages s = {.options = {.reshard_after_forward = variant & 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_ALWAYS,
                                    .overlap = FSDP_OVERLAP_INLINE, /* also over machines */
                                    .no_shared_memory = variant & 2}};

            test_run_ranks(worlds[w], check_stages, &s);
            for (s.replicas = 1; s.replicas <= worlds[w]; s.replicas *= 2)
                if (worlds[w] % s.replicas == 0)
                    test_run_ranks(worlds[w], check_stages, &s);
        }
}

/* Several steps, with so many bytes of shards all along and of whole parameters at the peak. */
static void check_steps(fsdp_module *module, size_t shards, size_t whole)
{
    fsdp_device *device = test_device(module->context);
    fsdp_memory_stats stats;

    for (int step = 0; step < 4; step++) {
        fsdp_device_reset_peak(device);
        net_forward_backward(module, step, 0, 1);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], whole);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        net_sgd(module, 0.1f);
    }
}

/* Of units of any size the root's and two more: here the two layers of a block, which are units, and it is none. */
static void check_units(fsdp_context *context, void *arg)
{
    const fsdp_wrap_policy by_size = {.kind = FSDP_WRAP_SIZE, .min_num_params = NET_DIM * NET_FFN};
    int64_t world = fsdp_context_world_size(context);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    CHECK_OK(fsdp_fully_shard_by_policy(module, &by_size, arg));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    check_steps(module, BLOCKS * block.shard + root.shard, world > 1 ? root.whole + block.whole : 0);
    fsdp_module_unref(module);
}

TEST(units_of_a_policy_take_what_they_hold)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                          .overlap = FSDP_OVERLAP_INLINE, /* also over machines */
                                          .no_shared_memory = copy};

            test_run_ranks(world, check_units, &options);
        }
}

/* Shards are kept as they are gathered, too, however often and in whatever memory that is. */
static void check_cast(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    size_t shards = BLOCKS * (block.shard + block.cast) + root.shard + root.cast;
    fsdp_module *module = net_sharded(context, BLOCKS, arg);

    check_steps(module, shards,
                world > 1 ? root.whole_bf16 + 2 * block.whole_bf16 : 0); /* alone, the casts are whole */
    fsdp_module_unref(module);
}

TEST(a_cast_is_counted)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                          .mp_policy.param_dtype = FSDP_BF16,
                                          .no_shared_memory = copy};

            test_run_ranks(world, check_cast, &options);
        }
}

/* What a rank sends of an int8 Linear: weight and scales, bias. */
static size_t coded_linear(int64_t in, int64_t out, int64_t world)
{
    int64_t chunk = (out + world - 1) / world, scales = (4 * ((chunk * in + 127) / 128) + 15) / 16 * 16;

    return (size_t)((scales + chunk * in + 15) / 16 * 16 + (4 * chunk + 15) / 16 * 16);
}

/* What a rank sends is kept beside the shards, and what all send is there while one group is gathered. */
static void check_coded(fsdp_context *context, void *arg)
{
    int64_t world = fsdp_context_world_size(context);
    group_bytes block = block_bytes(world), root = root_bytes(world);
    size_t norm = (size_t)(4 * ((NET_DIM + world - 1) / world) + 15) / 16 * 16;
    size_t block_sent = rounded(coded_linear(NET_DIM, NET_FFN, world) + coded_linear(NET_FFN, NET_DIM, world));
    size_t root_sent = rounded(coded_linear(NET_IN, NET_DIM, world) + coded_linear(NET_DIM, NET_OUT, world) + 2 * norm);
    size_t shards = BLOCKS * (block.shard + block_sent) + root.shard + root_sent;
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    size_t received = world > 1 ? block_sent * (size_t)world : 0;

    check_steps(module, shards, root.whole + 2 * block.whole + received);
    fsdp_module_unref(module);
}

TEST(what_is_sent_in_place_of_parameters_is_counted)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                          .gather_extension = fsdp_gather_int8(),
                                          .no_shared_memory = copy};

            test_run_ranks(world, check_coded, &options);
        }
}

/* After a forward, and after what makes the slices stale. */
static void check_slices(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = *(fsdp_shard_options *)arg;
    int64_t world = fsdp_context_world_size(context);
    size_t slices = root_bytes(world).slice + BLOCKS * block_bytes(world).slice;
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;
    fsdp_tensor *x, *targets, *loss;

    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, step, 0, 3, &x, &targets);
        loss = CHECK_PTR(fsdp_call(module, x, targets));
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], slices);
        if (step == 0)
            CHECK_OK(fsdp_backward(loss));
        else if (step == 1)
            CHECK_OK(fsdp_module_reshard_all(module));
        else
            CHECK_OK(fsdp_module_initialize(module, 2));
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        fsdp_scope_end(context, NULL);
    }
    fsdp_module_unref(module);
}

TEST(what_is_kept_after_a_forward_is_counted_as_its_part)
{
    static const int worlds[] = {4, 8};

    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        for (int copy = 0; copy < 2; copy++) {
            fsdp_shard_options options = {
                .reshard_after_forward_ranks = 2, .overlap = FSDP_OVERLAP_INLINE, .no_shared_memory = copy};

            test_run_ranks(worlds[w], check_slices, &options);
            test_run_ranks(worlds[w], check_stages, &(stages){.options = options});
        }
}

/* Between backwards without all-reduce the partial gradients of all groups stay, and nothing else. */
static void check_pending(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.mesh = net_hybrid_mesh(context, 2), .no_shared_memory = arg != NULL};
    int64_t shards = fsdp_context_world_size(context) / 2;
    fsdp_module *module = net_sharded(context, BLOCKS, &options);
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;

    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_module_set_requires_all_reduce(module, false, true));
        for (int micro = 0; micro < 2; micro++) {
            net_forward_backward(module, step, micro, 3);
            fsdp_device_memory(device, &stats);
            CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT],
                     BLOCKS * rounded(block_bytes(shards).partial) + rounded(root_bytes(shards).partial));
        }
        CHECK_OK(fsdp_module_set_requires_all_reduce(module, true, true));
        net_forward_backward(module, step, 2, 3);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], BLOCKS * block_bytes(shards).shard + root_bytes(shards).shard);
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

TEST(partial_gradients_are_all_that_stays_between_backwards)
{
    for (int world = 2; world <= 6; world += 2)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, check_pending, copy ? &copy : NULL);
}

static size_t live_total(fsdp_device *device)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    return stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE];
}

static void check_device_is_empty(fsdp_device *device)
{
    CHECK_EQ(live_total(device), 0);
}

static void check_offloaded_step(fsdp_module *module, fsdp_optimizer *optimizer, int step, bool bf16)
{
    fsdp_context *context = module->context;
    group_bytes block = block_bytes(fsdp_context_world_size(context));
    group_bytes root = root_bytes(fsdp_context_world_size(context));
    size_t block_whole = bf16 ? block.whole_bf16 : block.whole, root_whole = bf16 ? root.whole_bf16 : root.whole;
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;
    size_t gradients;

    fsdp_device_reset_peak(device);
    net_forward_backward(module, step, 0, 1);
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_PARAMETER_SHARD], 0);
    CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER],
             root_whole + 2 * block_whole + (bf16 ? block.shard : 0));
    /* In a backward, what is on its way besides; the spec's NB + 3 U is of parameters alone. */
    CHECK(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER] <= root.whole + 3 * block.whole);
    gradients = FSDP__MAX(root_whole + 2 * block_whole + block.shard, root_whole + root.shard);
    if (test_has_cpu_bits())
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], gradients);
    else /* a GPU may still copy the one before to the host */
        CHECK(stats.peak_bytes[FSDP_MEMORY_GRADIENT] <= gradients + block.shard);
    check_device_is_empty(device);
    fsdp_device_reset_peak(device);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    fsdp_device_memory(device, &stats);
    CHECK_EQ(stats.peak_total_bytes, stats.live_bytes[FSDP_MEMORY_WORKSPACE]); /* nothing in the optimizer's step */
}

/* Between steps the device has nothing, and the host all that is sharded. */
static void check_offloaded(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    bool bf16 = options->mp_policy.param_dtype == FSDP_BF16;
    int64_t world = fsdp_context_world_size(context);
    size_t shards = BLOCKS * block_bytes(world).shard + root_bytes(world).shard, first_live = 0;
    fsdp_module *module = net_sharded(context, BLOCKS, options);
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;
    fsdp_memory_stats stats;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    check_device_is_empty(test_device(context));
    fsdp_device_memory(fsdp_cpu(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
    for (int step = 0; step < 5; step++) {
        check_offloaded_step(module, optimizer, step, bf16);
        fsdp_device_memory(fsdp_cpu(context), &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT], shards);
        first_live = step == 1 ? live_total(fsdp_cpu(context)) : first_live;
        if (step > 1)
            CHECK_EQ(live_total(fsdp_cpu(context)), first_live); /* no drift */
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(offloaded_shards_take_nothing_of_the_device)
{
    if (test_on_cpu())
        skip(); /* where the device is the host, nothing moves */
    for (int world = 1; world <= 4; world++)
        for (int variant = 0; variant < 4; variant++) {
            fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS,
                                          .offload_policy = {.cpu = true, .pageable = variant & 1},
                                          .overlap = variant & 1 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO,
                                          .mp_policy.param_dtype = variant & 2 ? FSDP_BF16 : FSDP_DTYPE_NONE};

            test_run_ranks(world, check_offloaded, &options);
        }
}

/* What lives after the forward is known one by one: the batch, what the root's own modules save, the loss with its
 * gradient, and of each block its input; other modes than FULL keep the result of its first product, too. At the
 * peak one block has been computed again, so more blocks are more inputs and nothing else. */
static void check_activations(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    const size_t rows = 8, input = rounded(rows * NET_DIM * 4), product = rounded(rows * NET_FFN * 4);
    const size_t around = rounded(rows * NET_IN * 4) + rounded(rows * 4) + /* batch */
                          2 * input + 2 * rounded(rows * 4) +              /* of norm and head */
                          rounded(rows * NET_OUT * 4) + 64;                /* of the loss */
    size_t peaks[2] = {0};

    for (int mode = FSDP_RECOMPUTE_FULL; mode <= FSDP_RECOMPUTE_CHEAP; mode++)
        for (int more = 0; more < 2; more++) {
            int64_t blocks = more ? 2 * BLOCKS : BLOCKS;
            size_t kept = input + (mode == FSDP_RECOMPUTE_FULL ? 0 : product);
            fsdp_module *module = net_sharded(context, (int)blocks, options);
            fsdp_memory_stats stats;
            fsdp_tensor *x, *targets, *loss;

            for (int64_t i = 0; i < blocks; i++)
                CHECK_OK(fsdp_module_set_recompute(net_block_at(module, i), (fsdp_recompute_mode)mode));
            CHECK_OK(fsdp_scope_begin(context));
            net_batch(context, 0, 0, (int)rows, &x, &targets);
            loss = CHECK_PTR(fsdp_call(module, x, targets));
            fsdp_device_memory(test_device(context), &stats);
            CHECK_EQ(stats.live_bytes[FSDP_MEMORY_ACTIVATION], around + blocks * kept);
            fsdp_device_reset_peak(test_device(context));
            CHECK_OK(fsdp_backward(loss));
            fsdp_device_memory(test_device(context), &stats);
            peaks[more] = stats.peak_bytes[FSDP_MEMORY_ACTIVATION];
            if (more)
                CHECK_EQ(peaks[1] - peaks[0], BLOCKS * kept);
            fsdp_scope_end(context, NULL);
            fsdp_module_unref(module);
        }
}

TEST(recomputed_blocks_keep_inputs_and_one_block)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    for (int world = 1; world <= 3; world++) {
        fsdp_shard_options options = {.no_shared_memory = world == 3};

        test_run_ranks(world, check_activations, &options);
    }
}

static void no_system_memory_is_taken_after_the_first_steps(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    fsdp_memory_stats warm, later;

    net_train(module, 3);
    fsdp_device_memory(test_device(context), &warm);
    net_train(module, 5);
    fsdp_device_memory(test_device(context), &later);
    CHECK_EQ(later.system_allocations, warm.system_allocations);
    CHECK_EQ(later.reserved_bytes, warm.reserved_bytes);
    fsdp_module_unref(module);
}

TEST(a_steady_state_reuses_its_blocks)
{
    fsdp_shard_options options[] = {
        {0}, {.no_shared_memory = true}, {.overlap = FSDP_OVERLAP_WORKER}, {.offload_policy.cpu = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(3, no_system_memory_is_taken_after_the_first_steps, &options[i]);
}
