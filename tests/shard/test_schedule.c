/* What only says when something is gathered or reduced: lists of modules to prefetch, gathers begun by hand, backwards
 * without a gather, the event after the optimizer, reductions in flight. The same script gives the same bits with and
 * without, in every residence, inline and on worker streams. */
#include "device/device.h"
#include "shard/gate.h"
#include "shard/net.h"
#include "shard/state/module_state.h"

enum {
    BLOCKS = 4
};

/* ---- the same bits ---- */

typedef enum variant {
    FORWARD_LISTS,  /* each block the next two */
    BACKWARD_LISTS, /* each block the two before it */
    WRONG_LISTS,    /* what has run, what runs much later, itself */
    ROOT_LISTS,     /* the root all blocks, in both directions */
    BY_HAND,        /* gathers begun before the forward, and not waited for, or waited for */
    IN_FLIGHT,      /* three reductions */
    CHANNEL,        /* reductions through a channel of their own, of all modules or of one */
    SCHEDULES
} variant;

typedef struct trial {
    variant schedule;
    fsdp_shard_options options;
} trial;

static void set_lists(fsdp_module *module, variant schedule)
{
    fsdp_module *blocks[BLOCKS];

    for (int i = 0; i < BLOCKS; i++)
        blocks[i] = net_block_at(module, i);
    for (int i = 0; i < BLOCKS; i++) {
        fsdp_module *before[] = {blocks[(i + BLOCKS - 1) % BLOCKS], blocks[(i + BLOCKS - 2) % BLOCKS]};
        fsdp_module *wrong[] = {blocks[i], module, blocks[(i + 2) % BLOCKS]};
        int ahead = BLOCKS - 1 - i < 2 ? BLOCKS - 1 - i : 2;

        if (schedule == FORWARD_LISTS)
            CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(blocks[i], blocks + i + 1, ahead));
        if (schedule == BACKWARD_LISTS)
            CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(blocks[i], before, i < 2 ? i : 2));
        if (schedule == WRONG_LISTS) {
            CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(blocks[i], wrong, 3));
            CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(blocks[i], wrong, 3));
        }
    }
    if (schedule == ROOT_LISTS) {
        CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(module, blocks, BLOCKS));
        CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(module, blocks, BLOCKS));
    }
    if (schedule == CHANNEL) {
        CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module, true, true));
        CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(blocks[2], false, false));
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 2, true));
    }
    if (schedule == IN_FLIGHT)
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(blocks[1], 3, false));
}

/* Before a forward; also the very first one, before anything is known of the others. */
static void by_hand(fsdp_module *module, int step)
{
    CHECK_OK(fsdp_module_unshard_async(net_block_at(module, step % BLOCKS)));
    if (step % 2)
        CHECK_OK(fsdp_module_unshard_async(module));
    CHECK_OK(fsdp_module_wait_unshard(net_block_at(module, 1)));
    CHECK_OK(fsdp_module_unshard_async(net_block_at(module, 1)));
    if (step % 3 == 0)
        CHECK_OK(fsdp_module_wait_unshard(net_block_at(module, 1)));
}

static float *train(fsdp_context *context, const trial *t, bool scheduled, int64_t *count)
{
    fsdp_module *module = net_sharded(context, BLOCKS, &t->options);
    float *values;

    if (scheduled)
        set_lists(module, t->schedule);
    for (int step = 0; step < 4; step++) {
        if (scheduled && t->schedule == BY_HAND)
            by_hand(module, step);
        if (step == 2) {
            net_evaluate(module, step, 3);
            CHECK_OK(fsdp_module_set_reshard_after_backward(module, false, true)); /* a write is resharding enough */
        }
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        net_forward_backward(module, step, 0, 2);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        net_forward_backward(module, step, 1, 2);
        CHECK_OK(fsdp_module_reshard(net_block_at(module, 1))); /* so that its fields name shards */
        net_sgd(module, 0.1f);
    }
    values = net_values(module, count);
    fsdp_module_unref(module);
    return values;
}

static void compare(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    int64_t count;
    float *plain = train(context, t, false, &count), *scheduled = train(context, t, true, &count);

    if (memcmp(plain, scheduled, (size_t)count * sizeof *plain) != 0)
        TEST_FAIL("schedule %d changes values", (int)t->schedule);
    free(plain);
    free(scheduled);
}

TEST(a_schedule_changes_no_bit)
{
    static const fsdp_reshard reshards[] = {FSDP_RESHARD_AUTO, FSDP_RESHARD_ALWAYS, FSDP_RESHARD_NEVER};

    for (int way = 0; way < 8; way++)
        for (variant s = 0; s < SCHEDULES; s++) {
            trial t = {.schedule = s,
                       .options = {.no_shared_memory = way & 1,
                                   .mp_policy.param_dtype = way & 2 ? FSDP_BF16 : FSDP_DTYPE_NONE,
                                   .reshard_after_forward = reshards[(way + (int)s) % 3],
                                   .overlap = way & 4 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE}};

            if ((!t.options.no_shared_memory || test_on_cpu()) && (test_long() || (way + (int)s) % 3 == 0))
                test_run_ranks(way < 4 ? 2 : 3, compare, &t);
        }
}

/* ---- what it costs ---- */

static size_t unsharded_peak(fsdp_context *context, fsdp_module *module, bool backward)
{
    fsdp_memory_stats stats;

    CHECK_OK(fsdp_module_reshard_all(module));
    fsdp_device_reset_peak(test_device(context));
    if (backward)
        net_forward_backward(module, 0, 0, 1);
    else
        net_evaluate(module, 0, 3);
    fsdp_device_memory(test_device(context), &stats);
    return stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
}

static void measure(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    fsdp_memory_stats stats;
    size_t block, root;

    root = unsharded_peak(context, module, false);        /* root and a block */
    block = unsharded_peak(context, module, true) - root; /* one more */
    root -= block;
    set_lists(module, FORWARD_LISTS);
    CHECK_EQ(unsharded_peak(context, module, false), root + 3 * block);
    set_lists(module, BACKWARD_LISTS);
    CHECK_EQ(unsharded_peak(context, module, true), root + 3 * block);
    fsdp_module_zero_grad(module);
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(net_block_at(module, 0), NULL, 0));
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(net_block_at(module, 1), NULL, 0));
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(net_block_at(module, 2), NULL, 0));
    CHECK_EQ(unsharded_peak(context, module, false), root + block);
    fsdp_device_memory(test_device(context), &stats);
    CHECK_OK(fsdp_module_reshard_all(module));
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
    fsdp_module_unref(module);
}

TEST(each_gather_ahead_has_its_memory_until_its_use)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true}, {.overlap = FSDP_OVERLAP_WORKER}};

    test_only_on_cpu("the closed form is that of a device in step with the host");
    test_only_on_one_machine("over several a forward gathers ahead by itself");
    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, measure, &options[i]);
}

static size_t gradient_peak(fsdp_context *context, fsdp_module *module)
{
    fsdp_memory_stats stats;

    fsdp_device_reset_peak(test_device(context));
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_zero_grad(module);
    fsdp_device_memory(test_device(context), &stats);
    return stats.peak_bytes[FSDP_MEMORY_GRADIENT];
}

static void measure_in_flight(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = {.overlap = FSDP_OVERLAP_WORKER};
    fsdp_module *module = net_sharded(context, BLOCKS, &options), *block = net_block_at(module, 2);
    size_t one, three, again, root, whole;
    fsdp_memory_stats stats;

    (void)arg;
    root = unsharded_peak(context, module, false);
    whole = unsharded_peak(context, module, true) - root; /* of a block */
    fsdp_module_zero_grad(module);
    one = gradient_peak(context, module);
    CHECK_ERROR(fsdp_module_set_reduce_scatter_max_inputs(module, 0, true), FSDP_INVALID, "expected at least 1");
    CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 2, true));
    CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(block, 3, false)); /* the most of all */
    three = gradient_peak(context, module);
    CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 1, true));
    again = gradient_peak(context, module);
    CHECK_EQ(again, one);
    CHECK_EQ(three, one + 2 * whole);
    fsdp_device_memory(test_device(context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
    fsdp_module_unref(module);
}

TEST(each_reduction_in_flight_has_its_gradients)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    test_run_ranks(2, measure_in_flight, NULL);
}

/* ---- a channel of their own ---- */

static void look_at_channels(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    fsdp__param_group *const *groups = fsdp__module_state_of(module)->groups;
    fsdp_process_group *pg;
    fsdp_comm_stats stats;

    CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module, true, true));
    pg = groups[0]->reduce_pg;
    CHECK(pg && pg != groups[0]->residence.mesh.shard_pg);
    CHECK(pg == fsdp__module_state_of(net_block_at(module, 1))->groups[0]->reduce_pg); /* one for all */
    net_forward_backward(module, 0, 0, 1);
    fsdp_process_group_stats(pg, &stats);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], BLOCKS + 1);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], 0);
    fsdp_process_group_stats(groups[0]->residence.mesh.shard_pg, &stats);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 0);
    net_sgd(module, 0.1f);
    CHECK_OK(fsdp_module_set_requires_gradient_sync(net_block_at(module, 1), false, true));
    net_forward_backward(module, 1, 0, 1);
    CHECK_ERROR(fsdp_module_set_separate_reduce_scatter_group(module, false, true), FSDP_STATE, "waits to be reduced");
    CHECK_CONTAINS(fsdp_last_error(), "blocks.1.up.weight");
    CHECK(pg == groups[0]->reduce_pg); /* none has changed */
    fsdp_module_zero_grad(module);
    CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module, false, true));
    CHECK_NULL(groups[0]->reduce_pg);
    fsdp_module_unref(module);
}

TEST(reductions_may_have_a_channel_of_their_own)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, look_at_channels, &options[i]);
}

/* ---- gathers that nobody uses ---- */

/* Of a module that the forward passes by: a list's is given up with the forward, the caller's with the backward. */
static void pass_by(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg), *one = net_block_at(module, 1),
                *two = net_block_at(module, 2);
    fsdp_tensor *x, *y;

    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM)));
    CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(one, &two, 1));
    CHECK_OK(fsdp_module_unshard_async(net_block_at(module, 3)));
    y = CHECK_PTR(fsdp_call(one, x)); /* by itself */
    CHECK(net_state(two) != FSDP_GATHERING);
    CHECK(net_state(net_block_at(module, 3)) == FSDP_GATHERING);
    CHECK_OK(fsdp_backward(fsdp_mean(y)));
    CHECK(net_state(net_block_at(module, 3)) != FSDP_GATHERING);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(gathers_that_nobody_uses_are_given_up)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, pass_by, &options[i]);
}

/* Lists that name each other, of modules that go one after the other. */
static void free_listed(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    fsdp_tensor *x, *targets, *loss;

    set_lists(module, WRONG_LISTS);
    set_lists(module, ROOT_LISTS);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    loss = CHECK_PTR(fsdp_call(module, x, targets));
    fsdp_module_unref(module);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
}

TEST(lists_keep_no_module)
{
    test_run_ranks(2, free_listed, NULL);
}

/* ---- by hand ---- */

static void look_at_fields(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, 1, arg);
    net_block *block = (net_block *)net_block_at(module, 0);
    const fsdp_layer *up = (const fsdp_layer *)block->up;
    fsdp_comm_stats before, after;

    CHECK_OK(fsdp_module_wait_unshard(&block->base)); /* of nothing */
    CHECK(fsdp_tensor_distribution(up->weight));
    CHECK_OK(fsdp_module_unshard_async(&block->base));
    CHECK(fsdp_tensor_distribution(up->weight));
    CHECK(net_state(&block->base) == FSDP_GATHERING);
    fsdp_context_comm_stats(context, &before);
    CHECK_OK(fsdp_module_unshard_async(&block->base));
    CHECK_OK(fsdp_module_wait_unshard(&block->base));
    CHECK_OK(fsdp_module_unshard_async(&block->base)); /* unsharded already */
    fsdp_context_comm_stats(context, &after);
    CHECK_EQ(after.calls[FSDP_ALL_GATHER], before.calls[FSDP_ALL_GATHER]);
    CHECK(!fsdp_tensor_distribution(up->weight));
    CHECK_OK(fsdp_module_reshard(&block->base));
    CHECK_OK(fsdp_module_unshard_async(&block->base));
    CHECK_OK(fsdp_tensor_fill_(up->weight, 0.5)); /* the gather is stale: given up */
    CHECK(net_state(&block->base) != FSDP_GATHERING);
    CHECK_OK(fsdp_module_unshard(&block->base));
    fsdp_module_unref(module);
}

TEST(a_gather_by_hand_changes_fields_when_it_is_waited_for)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, look_at_fields, &options[i]);
}

/* ---- a backward without a gather ---- */

typedef struct reading {
    fsdp_module *model, *table, *head;
} reading;

static reading reading_create(fsdp_context *context, const fsdp_shard_options *options)
{
    reading r = {.table = fsdp_embedding_create(context, test_device(context), 5, 7, NULL),
                 .head = fsdp_linear_create(context, test_device(context), 7, 3, NULL)};

    r.model = CHECK_PTR(fsdp_sequential_create(context, (fsdp_module *const[]){r.table, r.head}, 2));
    CHECK_OK(fsdp_module_initialize(r.model, 1));
    CHECK_OK(fsdp_fully_shard(r.table, options));
    CHECK_OK(fsdp_fully_shard(r.head, options));
    CHECK_OK(fsdp_fully_shard(r.model, options));
    return r;
}

/* How often the backward gathered. */
static int64_t walk(const reading *r, fsdp_status expected)
{
    const int32_t ids[] = {4, 0, 2};
    fsdp_context *context = r->model->context;
    fsdp_comm_stats before, after;
    fsdp_tensor *loss;

    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(fsdp_mean(
        CHECK_PTR(fsdp_call(r->model, CHECK_PTR(fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(3), ids))))));
    fsdp_context_comm_stats(context, &before);
    CHECK_STATUS(fsdp_backward(loss), expected);
    fsdp_context_comm_stats(context, &after);
    fsdp_scope_end(context, NULL);
    return after.calls[FSDP_ALL_GATHER] - before.calls[FSDP_ALL_GATHER];
}

static float *gradients(const reading *r)
{
    fsdp_tensor *whole;
    float *values = malloc(35 * sizeof *values);

    CHECK_OK(fsdp_full_tensor(CHECK_PTR(fsdp_tensor_grad(((fsdp_layer *)r->table)->weight)), &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    fsdp_tensor_unref(whole);
    fsdp_module_zero_grad(r->model);
    return values;
}

static void no_gather_in_the_backward(fsdp_context *context, void *arg)
{
    reading r = reading_create(context, arg);
    float *with, *without;

    CHECK_EQ(walk(&r, FSDP_OK), 2);
    with = gradients(&r);
    CHECK_OK(fsdp_module_set_unshard_in_backward(r.table, false));
    CHECK_EQ(walk(&r, FSDP_OK), 1);
    without = gradients(&r);
    CHECK_BYTES(with, without, 35 * sizeof *with);
    free(with);
    free(without);
    CHECK_OK(fsdp_module_set_unshard_in_backward(r.head, false)); /* whose backward reads its weight */
    (void)walk(&r, FSDP_STATE);
    CHECK_CONTAINS(fsdp_last_error(), "of linear has no bytes");
    CHECK_CONTAINS(fsdp_last_error(), "does not unshard in its backward");
    CHECK_OK(fsdp_module_set_unshard_in_backward(r.head, true));
    CHECK_EQ(walk(&r, FSDP_OK), 1);
    CHECK_ERROR(fsdp_module_set_unshard_in_backward(NULL, false), FSDP_INVALID, "required");
    fsdp_module_unref(r.model);
}

TEST(a_backward_can_go_without_its_gather)
{
    fsdp_shard_options options[] = {
        {.reshard_after_forward = FSDP_RESHARD_ALWAYS},
        {.reshard_after_forward = FSDP_RESHARD_ALWAYS, .no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(3, no_gather_in_the_backward, &options[i]);
}

/* ---- the event after the optimizer ---- */

/* Behind the optimizer the device's stream stands at a gate that opens only when the root has been gathered. */
static void gather_before_the_gate(fsdp_context *context, void *arg)
{
    fsdp_device *device = test_device(context);
    gate g = GATE;
    fsdp_module *module;
    fsdp_event *event;

    test_run_behind(device);
    module = net_sharded(context, 1, arg);
    CHECK_OK(fsdp_event_create(device, &event));
    net_forward_backward(module, 0, 0, 1);
    net_sgd(module, 0.1f);
    CHECK_OK(fsdp_event_record(event, fsdp_device_stream(device)));
    CHECK_ERROR(fsdp_module_set_post_optim_event(net_block_at(module, 0), event), FSDP_STATE, "outermost");
    CHECK_OK(fsdp_module_set_post_optim_event(module, event));
    CHECK_OK(gate_put(&g, fsdp_device_stream(device)));
    CHECK_OK(fsdp_module_unshard_async(module));
    CHECK_OK(fsdp_event_synchronize(fsdp__module_state_of(module)->groups[0]->gathered));
    gate_open(&g);
    net_evaluate(module, 1, 3);
    CHECK(!g.forced);
    CHECK(!fsdp__module_state_of(module)->comm->after_optim); /* it counts once */
    CHECK_OK(fsdp_module_set_post_optim_event(module, event));
    net_sgd(module, 0.1f);
    CHECK_OK(fsdp_tensor_fill_(((fsdp_layer *)((net *)module)->input)->weight, 1));
    CHECK(!fsdp__module_state_of(module)->comm->after_optim); /* a later write comes after it */
    fsdp_module_unref(module);
    fsdp_event_free(event);
}

TEST(gathers_wait_for_the_event_after_the_optimizer)
{
    fsdp_shard_options options[] = {{.overlap = FSDP_OVERLAP_WORKER},
                                    {.overlap = FSDP_OVERLAP_WORKER, .mp_policy.param_dtype = FSDP_BF16}};

    test_only_on_cpu("a device without shared memory gathers into memory that it must wait for");
    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, gather_before_the_gate, &options[i]);
}

typedef struct ones {
    float *at;
    int64_t numel;
} ones;

static fsdp_status write_ones(fsdp_stream *stream, const void *argument)
{
    const ones *o = argument;

    (void)stream;
    for (int64_t i = 0; i < o->numel; i++)
        o->at[i] = 1;
    return FSDP_OK;
}

/* A stream of the caller's writes to the shard, and stands at a gate before. */
static void write_elsewhere(fsdp_context *context, void *arg)
{
    fsdp_device *device = test_device(context);
    gate g = GATE;
    fsdp_module *module;
    fsdp_tensor *weight;
    fsdp_stream *stream;
    fsdp_event *event;
    float seen[NET_OUT] = {0};
    ones o;

    test_run_behind(device);
    module = net_sharded(context, 1, arg);
    net_forward_backward(module, 0, 0, 1);
    weight = fsdp_module_parameter(module, "head.bias");
    CHECK_OK(fsdp_stream_create(device, FSDP_STREAM_WORKER, &stream));
    CHECK_OK(fsdp_event_create(device, &event));
    CHECK_OK(fsdp_tensor_begin_write(weight));
    o = (ones){fsdp_tensor_data(weight), fsdp_tensor_numel(weight)};
    CHECK_OK(fsdp_stream_synchronize(fsdp_device_stream(device)));
    CHECK_OK(gate_put(&g, stream));
    CHECK_OK(fsdp__stream_enqueue(stream, write_ones, &o, sizeof o));
    CHECK_OK(fsdp_event_record(event, stream));
    CHECK_OK(fsdp_module_set_post_optim_event(module, event));
    CHECK_OK(fsdp_module_unshard_async(module));
    gate_open(&g);
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_tensor_read(fsdp_module_parameter(module, "head.bias"), FSDP_F32, seen));
    for (int i = 0; i < NET_OUT; i++)
        CHECK(seen[i] == 1);
    CHECK_OK(fsdp_module_reshard(module));
    CHECK(!g.forced);
    fsdp_module_unref(module);
    fsdp_event_free(event);
    fsdp_stream_free(stream);
}

TEST(gathers_wait_for_the_event_of_another_stream)
{
    const fsdp_mp_policy bf16 = {.param_dtype = FSDP_BF16};
    const fsdp_mp_policy split = {.param_dtype = FSDP_BF16, .split_shards = true};
    fsdp_shard_options options[] = {
        {.overlap = FSDP_OVERLAP_WORKER, .mp_policy = bf16},
        {.overlap = FSDP_OVERLAP_WORKER, .mp_policy = bf16, .no_shared_memory = true},
        {.overlap = FSDP_OVERLAP_WORKER, .mp_policy = split, .no_shared_memory = true},
    };

    test_only_on_cpu("the host writes to the shards");
    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        for (int world = 1; world <= 2; world++)
            test_run_ranks(world, write_elsewhere, &options[i]);
}

/* ---- what is refused ---- */

static void refuse_lists(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, 1, arg), *other = net_sharded(context, 1, arg);
    fsdp_module *head = ((net *)module)->head, *block = net_block_at(other, 0);
    fsdp_tensor *x, *targets;

    CHECK_ERROR(fsdp_module_set_modules_to_forward_prefetch(head, &block, 1), FSDP_STATE, "not given to fully_shard");
    CHECK_ERROR(fsdp_module_set_modules_to_forward_prefetch(module, &head, 1), FSDP_STATE, "a Linear");
    CHECK_ERROR(fsdp_module_set_modules_to_forward_prefetch(module, NULL, 1), FSDP_INVALID, "a list of 1");
    CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(module, &block, 1)); /* nothing is known yet */
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(), "is to prefetch a module that is not below the same outermost module");
    CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(module, NULL, 0));
    CHECK_PTR(fsdp_call(module, x));
    CHECK_ERROR(fsdp_module_set_modules_to_backward_prefetch(module, &block, 1), FSDP_STATE, "same outermost");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
    fsdp_module_unref(other);
}

TEST(lists_of_other_modules_are_refused)
{
    test_run_ranks(2, refuse_lists, NULL);
}
