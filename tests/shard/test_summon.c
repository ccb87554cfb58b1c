/* Whole parameters in the hands of the caller: their values, who has them, what is written back, what it costs.
 * Links: optim */
#include "device/device.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* ---- read and written in every way ---- */

/* Every parameter p becomes p / 2 + 0.125, and its gradient g becomes g / 4; both exact in any dtype. */
static void change(fsdp_tensor *tensor, float factor, float term)
{
    int64_t numel = fsdp_tensor_numel(tensor);
    float *values = malloc((size_t)(numel + 1) * sizeof *values);

    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    for (int64_t i = 0; i < numel; i++)
        values[i] = factor * values[i] + term;
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    free(values);
}

static void change_all(fsdp_module *module, bool grads)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *tensor = parameters.items[i].tensor;

        CHECK_NULL(fsdp_tensor_distribution(tensor));
        change(tensor, 0.5f, 0.125f);
        if (grads)
            change(CHECK_PTR(fsdp_tensor_grad(tensor)), 0.25f, 0);
    }
    fsdp_parameters_release(&parameters);
}

static void summon(const way_run *run, fsdp_module *module, const fsdp_summon_options *options)
{
    if (run->way)
        CHECK_OK(fsdp_module_summon_full_params(module, options));
}

static void end_summon(const way_run *run, fsdp_module *module)
{
    if (run->way)
        CHECK_OK(fsdp_module_end_summon(module));
}

enum {
    FLAT = 100 /* an argument: flat groups, aligned to what is over this */
};

static fsdp_module *arg_net(fsdp_context *context, const way_run *run)
{
    if (run->way && run->arg >= FLAT)
        return net_flat(context, BLOCKS, &run->options, (size_t)(run->arg - FLAT), false);
    return ways_net(context, run, BLOCKS, run->arg >= FLAT ? FSDP_RESHARD_AUTO : (fsdp_reshard)run->arg);
}

static void read_and_write(fsdp_context *context, way_run *run)
{
    static const fsdp_summon_options read = {.no_writeback = true}, grads = {.with_grads = true},
                                     host = {.offload_to_cpu = true};
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_tensor *loss;

    summon(run, module, NULL); /* before the first forward */
    change_all(module, false);
    end_summon(run, module);
    CHECK_OK(fsdp_scope_begin(context));
    loss = ways_loss(run, module, 0);
    summon(run, module, &read); /* between a forward and its backward */
    note_weights(run, module);
    if (run->way)
        change_all(module, false);
    end_summon(run, module);
    dawdle(context, run);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    summon(run, module, &grads);
    note_gradients(run, module);
    change_all(module, true);
    end_summon(run, module);
    ways_step(optimizer);
    summon(run, net_block_at(module, 1), &host); /* one unit alone, what stayed unsharded is gathered anew */
    change_all(net_block_at(module, 1), false);
    dawdle(context, run);
    end_summon(run, net_block_at(module, 1));
    ways_backward(run, module, 1);
    ways_last_step(run, module, optimizer);
}

TEST(what_is_written_is_what_a_plain_model_would_have)
{
    in_every_way_with(read_and_write, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, FSDP_RESHARD_AUTO);
    in_every_way_with(read_and_write, WAYS_EQUAL_PLAIN, FSDP_RESHARD_NEVER);
    in_every_way_with(read_and_write, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, FLAT);
    in_every_way_with(read_and_write, WAYS_EQUAL_PLAIN, FLAT + 16);
}

/* Frozen and dropped: the shards, too, unless nothing is written back. */
static void freeze_and_drop(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);

    for (int how = 0; how < 3; how++) {
        bool kept = how == 1;
        fsdp_tensor *weight;

        CHECK_OK(fsdp_module_set_requires_grad(module, true));
        ways_backward(run, module, how);
        summon(run, module, &(fsdp_summon_options){.no_writeback = kept, .with_grads = how == 2});
        fsdp_module_zero_grad(module);
        CHECK_OK(fsdp_module_set_requires_grad(module, false));
        weight = fsdp_tensor_ref(fsdp_module_parameter(module, "head.weight"));
        end_summon(run, module);
        CHECK_OK(fsdp_tensor_set_requires_grad(weight, !kept)); /* it is no longer the module's */
        fsdp_tensor_unref(weight);
        CHECK_EQ(fsdp_tensor_requires_grad(fsdp_module_parameter(module, "head.weight")), kept);
        CHECK_EQ(fsdp_tensor_grad(fsdp_module_parameter(module, "head.weight")) != NULL, kept);
    }
    fsdp_module_unref(module);
}

TEST(shards_are_frozen_and_lose_their_gradients)
{
    in_every_way_with(freeze_and_drop, WAYS_ALONE, FSDP_RESHARD_AUTO);
    in_every_way_with(freeze_and_drop, WAYS_ALONE, FLAT + 16);
}

/* ---- who has what ---- */

typedef struct summoned {
    int64_t whole, bytes, device; /* parameters; bytes of them, of those on the module's device */
} summoned;

static void count_tensor(fsdp_context *context, const fsdp_tensor *tensor, summoned *out)
{
    int64_t bytes = (int64_t)fsdp__device_rounded((size_t)fsdp_tensor_numel(tensor) * 4);

    if (!tensor || fsdp_tensor_distribution(tensor))
        return;
    out->whole++;
    out->bytes += bytes;
    out->device += fsdp_tensor_device(tensor) == test_device(context) ? bytes : 0;
}

static summoned count_whole(fsdp_module *module)
{
    fsdp_parameters parameters;
    summoned out = {0};

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        count_tensor(module->context, parameters.items[i].tensor, &out);
    fsdp_parameters_release(&parameters);
    return out;
}

static int64_t live(fsdp_context *context)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(test_device(context), &stats); /* streams keep what they have worked with */
    return (int64_t)(stats.live_total_bytes - stats.live_bytes[FSDP_MEMORY_WORKSPACE]);
}

static int64_t peak_above(fsdp_context *context, int64_t before)
{
    fsdp_memory_stats s;

    fsdp_device_memory(test_device(context), &s);
    return (int64_t)(s.peak_total_bytes - s.peak_bytes[FSDP_MEMORY_WORKSPACE]) - before;
}

static int64_t gathers(fsdp_context *context)
{
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    return (int64_t)stats.calls[FSDP_ALL_GATHER];
}

/* Of the root's own parameters, and of one block. */
static int64_t numel_bytes(bool root)
{
    static const int64_t own[] = {NET_DIM * NET_IN, NET_DIM, NET_DIM, NET_DIM, NET_OUT * NET_DIM, NET_OUT, 0},
                         block[] = {NET_FFN * NET_DIM, NET_FFN, NET_DIM * NET_FFN, NET_DIM, 0};
    int64_t sum = 0;

    for (const int64_t *n = root ? own : block; *n > 0; n++)
        sum += (int64_t)fsdp__device_rounded((size_t)*n * 4);
    return sum;
}

enum {
    ROOTS = 6, /* parameters */
    BLOCKS_OWN = 4
};

static void check_summon(fsdp_module *module, fsdp_summon_options options, summoned expected, int groups)
{
    fsdp_context *context = module->context;
    int64_t before = live(context), issued = gathers(context);
    int ranks = fsdp_context_world_size(context);
    summoned have;

    fsdp_device_reset_peak(test_device(context));
    CHECK_OK(fsdp_module_summon_full_params(module, &options));
    have = count_whole(module);
    CHECK_EQ(have.whole, expected.whole);
    CHECK_EQ(have.bytes, expected.bytes);
    CHECK_EQ(gathers(context) - issued, ranks > 1 ? groups : 0);
    CHECK_EQ(live(context) - before, have.device);
    CHECK(peak_above(context, before) >= have.device);
    if (!options.offload_to_cpu || test_on_cpu()) /* else a group at a time */
        CHECK(peak_above(context, before) <= FSDP__MAX(have.device, FSDP__MAX(numel_bytes(true), numel_bytes(false))));
    CHECK_OK(fsdp_module_end_summon(module));
    CHECK_EQ(count_whole(module).whole, 0);
    CHECK_EQ(live(context), before);
}

static void check_options(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *given = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, given);
    bool first = fsdp_context_rank(context) == 0;
    summoned all = {.whole = ROOTS + BLOCKS * BLOCKS_OWN, .bytes = numel_bytes(true) + BLOCKS * numel_bytes(false)},
             own = {.whole = ROOTS, .bytes = numel_bytes(true)},
             block = {.whole = BLOCKS_OWN, .bytes = numel_bytes(false)}, none = {0};
    int64_t count, same;
    float *before = net_values(module, &count), *after;

    check_summon(module, (fsdp_summon_options){0}, all, BLOCKS + 1);
    check_summon(module, (fsdp_summon_options){.no_recurse = true}, own, 1);
    check_summon(module, (fsdp_summon_options){.offload_to_cpu = true}, all, BLOCKS + 1);
    check_summon(module, (fsdp_summon_options){.rank0_only = true, .no_writeback = true}, first ? all : none,
                 BLOCKS + 1);
    check_summon(module, (fsdp_summon_options){.rank0_only = true, .no_writeback = true, .offload_to_cpu = true},
                 first ? all : none, BLOCKS + 1);
    check_summon(net_block_at(module, 0), (fsdp_summon_options){.with_grads = true}, block, 1);
    after = net_values(module, &same);
    CHECK_EQ(count, same);
    CHECK_EQ(memcmp(before, after, (size_t)count * sizeof *before), 0);
    free(before);
    free(after);
    fsdp_module_unref(module);
}

TEST(each_option_takes_what_it_says)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}, {.offload_policy.cpu = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 4, check_options, &options[i]);
}

/* Rank 0 is that of each shard group: of every replica, and of all ranks where none shares with another. */
static void check_replicas(fsdp_context *context, void *arg)
{
    int replicas = *(int *)arg, world = fsdp_context_world_size(context);
    fsdp_mesh *mesh = net_hybrid_mesh(context, replicas);
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mesh = mesh});
    bool first = fsdp_context_rank(context) % (world / replicas) == 0;

    CHECK_OK(fsdp_module_summon_full_params(
        module, &(fsdp_summon_options){.rank0_only = true, .no_writeback = true, .with_grads = true}));
    CHECK_EQ(count_whole(module).whole, first ? ROOTS + BLOCKS * BLOCKS_OWN : 0);
    CHECK_OK(fsdp_module_end_summon(module));
    net_train(module, 1);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(the_first_rank_of_each_replica_has_all)
{
    for (int replicas = 1; replicas <= 4; replicas *= 2)
        test_run_ranks(4, check_replicas, &replicas);
}

/* ---- gradients that come and go ---- */

static float first_of(const fsdp_tensor *tensor)
{
    fsdp_tensor *whole;
    float values[NET_OUT * NET_DIM];

    CHECK_OK(fsdp_full_tensor(tensor, &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    fsdp_tensor_unref(whole);
    return values[0];
}

typedef struct sharding {
    fsdp_shard_options options;
    bool flat;
} sharding;

/* A gradient that the caller makes is cut, one that he replaces is written, one that he drops is dropped; and one that
 * he holds stays a plain tensor. */
static void check_gradients(fsdp_context *context, void *arg)
{
    static const fsdp_summon_options grads = {.with_grads = true};
    const int64_t shape[] = {NET_OUT, NET_DIM};
    const sharding *s = arg;
    fsdp_module *module =
        s->flat ? net_flat(context, BLOCKS, &s->options, 0, false) : net_sharded(context, BLOCKS, &s->options);
    fsdp_tensor *shard = fsdp_module_parameter(module, "head.weight"), *held, *made;

    for (int round = 0; round < 3; round++) {
        CHECK_OK(fsdp_module_summon_full_params(module, &grads));
        held = fsdp_tensor_ref(fsdp_module_parameter(module, "head.weight"));
        CHECK((fsdp_tensor_grad(held) != NULL) == (round > 0));
        CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, shape, FSDP_MEMORY_GRADIENT, &made));
        CHECK_OK(fsdp_tensor_fill_(made, round + 1));
        CHECK_OK(fsdp_tensor_set_grad(held, round < 2 ? made : NULL));
        fsdp_tensor_unref(made);
        CHECK_OK(fsdp_module_end_summon(module));
        CHECK(fsdp_module_parameter(module, "head.weight") == shard);
        CHECK((fsdp_tensor_grad(shard) != NULL) == (round < 2));
        if (round < 2)
            CHECK_NEAR(first_of(fsdp_tensor_grad(shard)), round + 1, 0);
        CHECK_OK(fsdp_tensor_fill_(held, 9)); /* nobody's any more */
        CHECK_NULL(fsdp_tensor_distribution(held));
        fsdp_tensor_unref(held);
    }
    CHECK(first_of(shard) < 8);
    net_train(module, 1);
    fsdp_module_unref(module);
}

TEST(gradients_are_made_replaced_and_dropped)
{
    sharding options[] = {{.flat = false},
                          {.flat = true},
                          {.flat = false, .options.no_shared_memory = true},
                          {.flat = true, .options.offload_policy.cpu = true}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 4, check_gradients, &options[i]);
}

/* ---- what a parameter may be ---- */

/* Placements, slices, codes, a model freed meanwhile. */
static void check_kinds(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, options);
    int64_t count, same;
    float *before, *after;

    net_train(module, 1);
    before = net_values(module, &count);
    CHECK_OK(fsdp_module_unshard(module)); /* given up by the summon */
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    after = net_values(module, &same);
    CHECK_EQ(memcmp(before, after, (size_t)count * sizeof *before), 0);
    free(after);
    CHECK_OK(fsdp_module_end_summon(module));
    after = net_values(module, &same);
    CHECK_EQ(memcmp(before, after, (size_t)count * sizeof *before), 0);
    free(before);
    free(after);
    net_train(module, 1);
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    fsdp_module_unref(module);
}

static void check_like(fsdp_module *module, fsdp_module *plain)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(plain, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        float values[NET_FFN * NET_DIM], expected[NET_FFN * NET_DIM];
        fsdp_tensor *whole;

        CHECK_OK(fsdp_full_tensor(fsdp_module_parameter(module, parameters.items[i].name), &whole));
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
        CHECK_OK(fsdp_tensor_read(parameters.items[i].tensor, FSDP_F32, expected));
        CHECK_BYTES(values, expected, (size_t)fsdp_tensor_numel(whole) * sizeof *values);
        fsdp_tensor_unref(whole);
    }
    fsdp_parameters_release(&parameters);
}

/* A flat parameter: by its parts, which have no gradients of their own. */
static void check_as_one(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_flat(context, BLOCKS, arg, 0, true);
    fsdp_module *plain = net_create(context, test_device(context), BLOCKS);

    CHECK_OK(fsdp_module_initialize(plain, 1));
    for (int round = 0; round < 2; round++) {
        CHECK_OK(fsdp_module_summon_full_params(module, NULL));
        change_all(module, false);
        CHECK_OK(fsdp_module_end_summon(module));
        change_all(plain, false);
        check_like(module, plain);
        CHECK_STATUS(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.with_grads = true}),
                     FSDP_UNSUPPORTED);
        CHECK_CONTAINS(fsdp_last_error(), "with original parameters");
    }
    net_train(module, 1);
    fsdp_module_unref(plain);
    fsdp_module_unref(module);
}

TEST(placements_slices_and_codes_are_summoned_whole)
{
    fsdp_shard_options options[] = {{.placement = net_last_dimension},
                                    {.reshard_after_forward_ranks = 2},
                                    {.mp_policy.param_dtype = FSDP_BF16},
                                    {.gather_extension = fsdp_gather_float8()}};

    for (int world = 2; world <= 4; world += 2)
        for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
            test_run_ranks(world, check_kinds, &options[i]);
}

TEST(a_flat_parameter_is_summoned_as_its_parts)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}, {.offload_policy.cpu = true}};

    for (int world = 1; world <= 3; world++)
        test_run_ranks(world, check_as_one, &options[world - 1]);
}

/* ---- refused ---- */

#define CHECK_REFUSED(call, part)                \
    do {                                         \
        CHECK_STATUS(call, FSDP_STATE);          \
        CHECK_CONTAINS(fsdp_last_error(), part); \
    } while (0)

static fsdp_tensor *summon_inside(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    if (fsdp_module_summon_full_params(self, NULL) != FSDP_OK)
        return NULL;
    return inputs[0];
}

static void check_forward_is_refused(fsdp_module *module, fsdp_module *called)
{
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(module->context));
    net_batch(module->context, 0, 0, 3, &x, &targets);
    if (called != module)
        x = fsdp_zeros(test_device(module->context), FSDP_F32, FSDP_SHAPE(2, NET_DIM));
    CHECK_NULL(called == module ? fsdp_call(module, x, targets) : fsdp_call(called, x));
    CHECK_CONTAINS(fsdp_last_error(), "it is summoned; call fsdp_module_end_summon first");
    fsdp_scope_end(module->context, NULL);
}

/* Also the very first. */
static void refuse_first_forward(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);

    (void)arg;
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    check_forward_is_refused(module, module);
    CHECK_OK(fsdp_module_end_summon(module));
    net_train(module, 1);
    fsdp_module_unref(module);
}

static void refuse(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *block = net_block_at(module, 1);
    fsdp_tensor *shard, *x, *targets, *loss;

    (void)arg;
    CHECK_REFUSED(fsdp_module_summon_full_params(module, NULL), "was not given to fully_shard");
    net_shard(module, NULL);
    CHECK_REFUSED(fsdp_module_summon_full_params(module, NULL), "still on the meta device");
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_REFUSED(fsdp_module_end_summon(module), "was not called on this Net");
    CHECK_STATUS(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.rank0_only = true}), FSDP_UNSUPPORTED);
    CHECK_CONTAINS(fsdp_last_error(), "set no_writeback");
    shard = fsdp_module_parameter(block, "up.weight");
    for (int round = 0; round < 2; round++) { /* before lazy initialisation, and after it */
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 3, &x, &targets);
        CHECK_NULL(fsdp_module_call_method(module, summon_inside, &x, 1));
        CHECK_CONTAINS(fsdp_last_error(), "a forward is running");
        CHECK_OK(fsdp_module_reset_iteration(module));
        loss = round > 0 ? CHECK_PTR(fsdp_call(module, x, targets)) : NULL;
        CHECK_OK(fsdp_module_summon_full_params(block, NULL));
        CHECK_REFUSED(fsdp_module_summon_full_params(module, NULL), "cannot summon parameter");
        CHECK_REFUSED(fsdp_module_summon_full_params(block, NULL), "it is summoned");
        CHECK_REFUSED(fsdp_module_end_summon(module), "was not called on this Net");
        CHECK_REFUSED(fsdp_module_unshard(block), "cannot gather parameter");
        CHECK_REFUSED(fsdp_tensor_fill_(shard, 1), "cannot write to the shard of parameter");
        CHECK_STATUS(fsdp_module_to(module, FSDP_BF16), FSDP_STATE);
        if (round > 0) {
            CHECK_REFUSED(fsdp_backward(loss), "cannot gather parameter");
            check_forward_is_refused(module, module);
        }
        check_forward_is_refused(module, block);
        CHECK_OK(fsdp_module_reshard_all(module));
        CHECK_OK(fsdp_module_end_summon(block));
        fsdp_scope_end(context, NULL);
        CHECK(fsdp_module_parameter(block, "up.weight") == shard);
        net_train(module, 1);
    }
    fsdp_module_unref(module);
}

TEST(what_must_not_be_done_meanwhile_is_refused)
{
    for (int world = 1; world <= 3; world++) {
        test_run_ranks(world, refuse, NULL);
        test_run_ranks(world, refuse_first_forward, NULL);
    }
}

/* ---- faults ---- */

typedef struct fault {
    long nth;
    fsdp_summon_options options;
    bool hit;
} fault;

/* One rank has no memory: all have the error, fields name the shards, and all goes on. */
static void summon_with_fault(fsdp_context *context, void *arg)
{
    fault *f = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    bool mine = fsdp_context_rank(context) == 1;
    fsdp_status status;
    int64_t before;

    net_train(module, 1);
    before = live(context);
    test_meet();
    if (mine)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->nth);
    status = fsdp_module_summon_full_params(module, &f->options);
    if (mine) {
        f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    if (status == FSDP_OK)
        CHECK_OK(fsdp_module_end_summon(module));
    CHECK_EQ(count_whole(module).whole, 0);
    if (status != FSDP_OK) {
        if (test_on_cpu())
            CHECK_EQ(live(context), before);
        fsdp_abort(context, fsdp_last_error()); /* in a collective, perhaps */
    }
    fsdp_module_unref(module);
}

TEST(the_nth_allocation_fails_on_one_rank)
{
    fault f = {.options = {.with_grads = true}};

    for (f.nth = 1;; f.nth += test_long() ? 1 : 3) {
        f.hit = false;
        test_run_ranks(2, summon_with_fault, &f);
        if (!f.hit)
            break;
    }
    CHECK(f.nth > 30);
}
