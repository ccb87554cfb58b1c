/* What lives how long: graphs beside reductions, models that go before their backward, memory that cannot be had.
 * Links: optim */
#include "nn/module.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* The head's gradient is made in the forward, where it is going to lie. */
static fsdp_tensor *fused_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    (void)count;
    for (int64_t i = 0; i < fsdp_module_child_count(n->blocks); i++)
        x = fsdp_call(net_block_at(self, i), x);
    return fsdp_linear_cross_entropy(fsdp_call(n->norm, x), ((fsdp_layer *)n->head)->weight, inputs[1]);
}

static const fsdp_module_type fused_type = {.name = "Net", .forward = fused_forward};

/* run->arg: bit 0 fused head, bit 1 never resharded after the forward, bit 3 flat groups, the rest is the test's. */
static const int mixes[] = {0, 3, 5, 6, 8 + 1, 8 + 7};

static fsdp_module *arg_net(fsdp_context *context, const way_run *run)
{
    fsdp_reshard reshard = run->arg & 2 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO;
    fsdp_shard_options options = run->options;
    fsdp_module *module;

    options.reshard_after_forward = reshard;
    if (run->way && run->arg & 8)
        module = net_flat(context, BLOCKS, &options, 16, false);
    else
        module = ways_net(context, run, BLOCKS, reshard);
    if (run->arg & 1)
        module->type = &fused_type;
    return module;
}

/* ---- graphs ---- */

static void two_graphs(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    bool last_first = run->arg & 4;

    for (int step = 0; step < 2; step++) {
        fsdp_tensor *losses[2];

        CHECK_OK(fsdp_scope_begin(context));
        for (int i = 0; i < 2; i++)
            losses[i] = ways_loss(run, module, 2 * step + i);
        CHECK_OK(fsdp_backward(losses[last_first]));
        if (step)
            dawdle(context, run);
        CHECK_OK(fsdp_backward(losses[!last_first]));
        fsdp_scope_end(context, NULL);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(two_forwards_then_two_backwards_equal_plain)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(mixes); i++)
        in_every_way_with(two_graphs, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, mixes[i]);
}

static void walk_twice(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    net_without_norm(module);
    for (int step = 0; step < 2; step++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = ways_loss(run, module, step);
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
        if (step) {
            dawdle(context, run);
            ways_step(optimizer); /* of the first walk */
        }
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, false));
        fsdp_scope_end(context, NULL);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_graph_that_is_kept_can_be_walked_twice)
{
    for (int arg = 0; arg < 4; arg++)
        in_every_way_with(walk_twice, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* The first walk leaves its gradients unreduced, and ranks are late for the second. */
static void walk_twice_and_reduce_once(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    net_without_norm(module);
    for (int step = 0; step < 2; step++) {
        fsdp_tensor *loss;

        CHECK_OK(fsdp_scope_begin(context));
        loss = ways_loss(run, module, step);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, true));
        dawdle(context, run);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        CHECK_OK(fsdp_backward_from(&loss, NULL, 1, false));
        fsdp_scope_end(context, NULL);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_graph_that_is_kept_is_walked_without_reducing_and_again)
{
    for (int arg = 1; arg < (test_long() ? 4 : 2); arg++)
        in_every_way_with(walk_twice_and_reduce_once, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* The forward's reserved gradient outlives a backward of another graph, and is dropped or used then. */
static void reserve_and_reduce(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_tensor *reserved, *dropped;

    CHECK_OK(fsdp_scope_begin(context));
    reserved = fsdp_tensor_ref(ways_loss(run, module, 0));
    dropped = fsdp_tensor_ref(ways_loss(run, module, 1));
    fsdp_scope_end(context, NULL);
    ways_backward(run, module, 2);
    fsdp_tensor_unref(dropped);
    dawdle(context, run);
    ways_backward(run, module, 3);
    CHECK_OK(fsdp_backward(reserved));
    fsdp_tensor_unref(reserved);
    ways_last_step(run, module, optimizer);
}

TEST(a_reserved_gradient_outlives_other_backwards)
{
    for (int arg = 0; arg < 4; arg++)
        in_every_way_with(reserve_and_reduce, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- models that go ---- */

static void note_shard_gradients(way_run *run, const fsdp_parameters *shards)
{
    for (int64_t i = 0; i < shards->count; i++) {
        fsdp_tensor *gradient = fsdp_tensor_grad(shards->items[i].tensor), *whole;

        if (!gradient)
            continue;
        CHECK_OK(fsdp_full_tensor(gradient, &whole));
        note_tensor(run, whole);
        fsdp_tensor_unref(whole);
    }
}

static void free_before_backward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_parameters shards;
    fsdp_tensor *loss, *dropped;

    CHECK_OK(fsdp_module_parameters(module, &shards));
    if (run->arg & 4)
        ways_backward(run, module, 1);
    CHECK_OK(fsdp_scope_begin(context));
    loss = fsdp_tensor_ref(ways_loss(run, module, 0));
    dropped = fsdp_tensor_ref(ways_loss(run, module, 2));
    fsdp_scope_end(context, NULL);
    dawdle(context, run);
    fsdp_module_unref(module);
    fsdp_tensor_unref(dropped);
    CHECK_OK(fsdp_backward(loss));
    fsdp_tensor_unref(loss);
    note_shard_gradients(run, &shards);
    fsdp_parameters_release(&shards);
}

TEST(a_model_may_go_before_its_backward)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(mixes) && mixes[i] < 8; i++) /* there an unused gradient is zeros, not none */
        in_every_way_with(free_before_backward, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, mixes[i]);
}

/* Nobody holds the shards any more. */
static void free_all_before_backward(fsdp_context *context, way_run *run)
{
    fsdp_module *module = arg_net(context, run);
    fsdp_tensor *loss;

    CHECK_OK(fsdp_scope_begin(context));
    loss = fsdp_tensor_ref(ways_loss(run, module, 0));
    fsdp_scope_end(context, NULL);
    dawdle(context, run);
    fsdp_module_unref(module);
    if (run->arg & 4)
        CHECK_OK(fsdp_backward(loss));
    fsdp_tensor_unref(loss);
}

TEST(nothing_is_left_of_a_model_and_its_graph)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(mixes); i++)
        in_every_way_with(free_all_before_backward, WAYS_ALONE, mixes[i]);
}

/* Norm and head are one group; the head stays when the net goes. */
static void free_one_of_two(fsdp_context *context, way_run *run)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *head = ((net *)module)->head;
    fsdp_parameters shards;
    fsdp_tensor *loss;

    CHECK_OK(fsdp_module_initialize(module, 1));
    if (run->way) {
        CHECK_OK(fsdp_fully_shard_modules((fsdp_module *const[]){((net *)module)->norm, head}, 2, &run->options));
        net_shard(module, &run->options);
    }
    CHECK_OK(fsdp_module_parameters(module, &shards));
    (void)ways_evaluate(run, module, 1);
    CHECK_OK(fsdp_scope_begin(context));
    loss = fsdp_tensor_ref(ways_loss(run, module, 0));
    fsdp_scope_end(context, NULL);
    fsdp_module_ref(head);
    dawdle(context, run);
    fsdp_module_unref(module);
    if (run->arg & 4 && run->way)
        CHECK_OK(fsdp_module_unshard(head));
    CHECK_OK(fsdp_backward(loss));
    fsdp_tensor_unref(loss);
    note_shard_gradients(run, &shards);
    fsdp_parameters_release(&shards);
    if (run->way) {
        CHECK_OK(fsdp_module_unshard(head));
        CHECK_EQ(fsdp_tensor_size(fsdp_module_parameter(head, "weight"), 0), NET_OUT);
    }
    note_tensor(run, fsdp_module_parameter(head, "weight"));
    if (run->way)
        CHECK_OK(fsdp_module_reshard(head));
    fsdp_module_unref(head);
}

TEST(a_module_of_a_group_may_go_before_the_others)
{
    for (int arg = 0; arg < 8; arg += 4)
        in_every_way_with(free_one_of_two, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, arg);
}

/* ---- materialize ---- */

static bool on_any_rank(fsdp_context *context, bool mine)
{
    float flag = mine;

    CHECK_OK(fsdp_all_reduce(fsdp_world(context), &flag, &flag, 1, FSDP_F32, FSDP_MAX,
                             fsdp_device_stream(fsdp_cpu(context))));
    return flag > 0;
}

/* A group is there or not, on all ranks alike; never half. */
static void check_all_or_none(fsdp_module *module)
{
    fsdp_status status = fsdp_module_unshard(module);

    CHECK(status == FSDP_OK || status == FSDP_STATE);
    CHECK_EQ(on_any_rank(module->context, status == FSDP_OK), status == FSDP_OK);
    CHECK_OK(fsdp_module_reshard(module));
}

/* Around the engine's own part of one module's materialisation: what fails outside of it is known to one rank only. */
static long fault_at[WAYS_WORLDS];

static fsdp_status arm(void *arg, fsdp_module *module, fsdp_device *device)
{
    (void)module;
    (void)device;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, *(const long *)arg);
    return FSDP_OK;
}

static fsdp_status disarm(void *arg, fsdp_module *module, fsdp_device *device)
{
    long *n = arg;

    (void)module;
    (void)device;
    if (!fsdp__fault_hit(FSDP__FAULT_ALLOCATION))
        *n = 0;
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    return FSDP_OK;
}

static fsdp_module *net_with_fault(fsdp_context *context, const way_run *run, long *n)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_module *failing = run->arg ? module : net_block_at(module, 1);
    fsdp__module_hooks before = {.arg = n, .materialize = arm}, after = {.arg = n, .materialize = disarm};

    if (*n)
        CHECK_OK(fsdp__module_add_hooks(failing, &before));
    net_shard(module, &run->options);
    if (*n)
        CHECK_OK(fsdp__module_add_hooks(failing, &after));
    return module;
}

/* Whether there was an n-th allocation to fail, and all went on. */
static bool materialize_with_fault(fsdp_context *context, way_run *run, long n)
{
    long *mine = &fault_at[fsdp_context_rank(context)];
    fsdp_optimizer *optimizer;
    fsdp_module *module;
    fsdp_status status;
    bool hit;

    *mine = fsdp_context_rank(context) == run->slow ? n : 0;
    module = net_with_fault(context, run, mine);
    status = fsdp_module_materialize(module, test_device(context));
    fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    if (fsdp_barrier(fsdp_world(context)) != FSDP_OK) { /* in the ranks' agreement itself: nothing goes on */
        CHECK(status != FSDP_OK);
        fsdp_module_unref(module);
        return false;
    }
    hit = on_any_rank(context, *mine > 0);
    CHECK_EQ(status != FSDP_OK, hit);
    *mine = 0;
    if (hit) {
        check_all_or_none(module);
        check_all_or_none(net_block_at(module, 0));
        check_all_or_none(net_block_at(module, 1));
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    }
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_unshard(module));
    CHECK_OK(fsdp_module_reshard(module));
    if (n == 3) {
        optimizer = ways_optimizer(module);
        ways_backward(run, module, 0);
        ways_step(optimizer);
        note_weights(run, module);
        fsdp_optimizer_free(optimizer);
    }
    fsdp_module_unref(module);
    return hit;
}

static void materialize_again(fsdp_context *context, way_run *run)
{
    long n = 1;

    if (!run->way) {
        fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
        fsdp_optimizer *optimizer = ways_optimizer(module);

        ways_backward(run, module, 0);
        ways_step(optimizer);
        note_weights(run, module);
        fsdp_optimizer_free(optimizer);
        fsdp_module_unref(module);
        return;
    }
    while (materialize_with_fault(context, run, n))
        n++;
    CHECK(n > 10);
}

TEST(a_materialize_that_fails_can_be_repeated)
{
    for (int at_root = 0; at_root < 2; at_root++)
        in_every_way_with(materialize_again, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, at_root);
}

/* ---- what nobody let go ---- */

/* As when a failure is returned from the middle of a step: the context takes the graph with it. */
static fsdp_status leave_a_graph(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 2);
    fsdp_tensor *x, *targets;

    FSDP_TRY(fsdp_fully_shard(net_block_at(module, 0), arg));
    FSDP_TRY(fsdp_fully_shard(module, arg));
    FSDP_TRY(fsdp_module_materialize(module, test_device(context)));
    FSDP_TRY(fsdp_module_initialize(module, 1));
    net_batch(context, 0, 0, 3, &x, &targets);
    if (!fsdp_call(module, x, targets))
        return fsdp_last_status();
    fsdp_module_unref(module);
    return FSDP_OK;
}

TEST(a_graph_that_is_left_goes_with_the_context)
{
    fsdp_shard_options options[] = {{0},
                                    {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER},
                                    {.mp_policy.param_dtype = FSDP_BF16, .overlap = FSDP_OVERLAP_WORKER}};

    for (int world = 1; world <= 5; world++)
        for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
            CHECK_OK(fsdp_run_threads(world, NULL, leave_a_graph, &options[i]));
}
