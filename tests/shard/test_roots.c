/* Sharded modules below one root: what is refused and how it is said, several process groups there, settings made
 * before the first forward. Links: optim */
#include "device/device.h"
#include "shard/state/root.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

/* ---- messages ---- */

WORLDS_TEST(a_parent_before_its_child_is_refused_as_such, 1, 3)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);

    CHECK_OK(fsdp_fully_shard(module, NULL));
    CHECK_ERROR(fsdp_fully_shard(net_block_at(module, 1), NULL), FSDP_INVALID, "bottom up");
    CHECK(!strstr(fsdp_last_error(), "tied"));
    CHECK(!fsdp_module_is_sharded(net_block_at(module, 1)));
    CHECK_OK(fsdp_module_unshard(module)); /* the same in a window */
    CHECK_ERROR(fsdp_fully_shard(net_block_at(module, 0), NULL), FSDP_INVALID, "bottom up");
    CHECK_OK(fsdp_module_reshard(module));
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* Memory is there, values are not: of no shard, then of all but one. */
WORLDS_TEST(shards_without_values_are_named_before_the_first_forward, 1, 3)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_tensor *x, *targets;

    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 4, &x, &targets);
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(),
                   "still on the meta device: 'input.weight', 'input.bias', 'blocks.0.up.weight' and 11 more: ");
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(),
                   "has memory but no values: 'input.weight', 'input.bias', 'blocks.0.up.weight' and 11 more: before");
    CHECK_OK(fsdp_tensor_fill_(((fsdp_layer *)((net *)module)->input)->weight, 0));
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(), "has memory but no values");
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_PTR(fsdp_call(module, x));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

/* Sharded after it got memory and before it got values: where the values would be has moved. */
WORLDS_TEST(sharding_makes_no_values, 1, 2)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 4, &x, &targets);
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(), "has memory but no values");
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_PTR(fsdp_call(module, x));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

WORLDS_TEST(a_forward_on_meta_names_the_parameters, 1, 3)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_tensor *x, *targets;

    net_shard(module, NULL);
    CHECK_OK(fsdp_module_materialize(CHECK_PTR(fsdp_module_child(module, "blocks.0")), test_device(context)));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(fsdp_call(module, x, targets));
    CHECK_CONTAINS(fsdp_last_error(), "'input.weight', 'input.bias', 'blocks.1.up.weight' and 7 more");
    CHECK_CONTAINS(fsdp_last_error(), "meta device");
    CHECK_CONTAINS(fsdp_last_error(), "fsdp_module_materialize");
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* The blocks have equal shapes: only their names differ. */
static void run_other_block(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    int block = fsdp_context_rank(context) == run->slow;
    fsdp_tensor *x, *y;

    (void)ways_evaluate(run, module, 0);
    dawdle(context, run);
    CHECK_OK(fsdp_scope_begin(context));
    x = fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM));
    y = fsdp_call(net_block_at(module, run->world > 1 && block), x);
    if (run->world > 1) {
        CHECK_NULL(y);
        CHECK_CONTAINS(fsdp_last_error(), "blocks.0");
        CHECK_CONTAINS(fsdp_last_error(), "blocks.1");
    } else {
        CHECK_PTR(y);
    }
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(ranks_that_run_other_modules_are_told_both_names)
{
    test_only_on_cpu("behind the host the call that disagrees has returned, and a later one is told");
    in_every_way(run_other_block, WAYS_ALONE);
}

/* ---- several process groups ---- */

/* Block 0 on a mesh of its own, block 1 on a part of a mesh of two dimensions, the rest on all ranks. */
static fsdp_module *net_on_meshes(fsdp_context *context, const way_run *run, fsdp_reshard reshard)
{
    int64_t world = fsdp_context_world_size(context);
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_shard_options options = run->options;
    fsdp_mesh *line, *square, *part;

    CHECK_OK(fsdp_module_initialize(module, 1));
    if (!run->way)
        return module;
    options.reshard_after_forward = reshard;
    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &line));
    CHECK_OK(fsdp_mesh_create(context, 2, (int64_t[]){1, world}, (const char *const[]){"one", "all"}, &square));
    CHECK_OK(fsdp_mesh_slice(square, 1, (const char *const[]){"all"}, &part));
    options.mesh = line;
    CHECK_OK(fsdp_fully_shard(net_block_at(module, 0), &options));
    options.mesh = part;
    CHECK_OK(fsdp_fully_shard(net_block_at(module, 1), &options));
    options.mesh = NULL;
    CHECK_OK(fsdp_fully_shard(module, &options));
    fsdp_mesh_unref(part);
    fsdp_mesh_unref(square);
    fsdp_mesh_unref(line);
    return module;
}

static void train_on_meshes(fsdp_context *context, way_run *run)
{
    fsdp_module *module = net_on_meshes(context, run, run->arg ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    float loss;

    for (int step = 0; step < 2; step++) {
        ways_backward(run, module, step);
        loss = ways_evaluate(run, module, 9);
        dawdle(context, run);
        CHECK_NEAR(ways_evaluate(run, module, 9), loss, 0);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

static void write_on_meshes(fsdp_context *context, way_run *run)
{
    static const char *const names[] = {"blocks.0.up.weight", "blocks.1.up.weight", "head.weight"};
    fsdp_module *module = net_on_meshes(context, run, run->arg ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) { /* one rank writes to one of the groups */
        float before = ways_evaluate(run, module, 1), kept, fresh;

        if (fsdp_context_rank(context) == run->world / 2)
            CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(module, names[i])), 0.3));
        kept = ways_evaluate(run, module, 1);
        CHECK_OK(fsdp_module_reshard_all(module));
        fresh = ways_evaluate(run, module, 1);
        CHECK_NEAR(kept, fresh, 0);
        CHECK(kept != before);
    }
    note_weights(run, module);
    fsdp_module_unref(module);
}

TEST(groups_on_several_process_groups_settle_each)
{
    for (int never = 0; never < 2; never++) {
        in_every_way_with(train_on_meshes, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, never);
        in_every_way_with(write_on_meshes, WAYS_ALONE, never);
    }
}

/* ---- devices ---- */

WORLDS_TEST(states_below_one_root_are_on_one_device, 1, 3)
{
    fsdp_device *devices[2] = {CHECK_PTR(fsdp__device_open(context, "sim", 0)),
                               CHECK_PTR(fsdp__device_open(context, "sim", 1))};
    fsdp_module *module = net_create(context, fsdp_meta(context), 2);
    fsdp_tensor *x;

    net_shard(module, NULL);
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_module_materialize(net_block_at(module, i), devices[i]));
    CHECK_OK(fsdp_module_materialize(module, devices[0]));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_scope_begin(context));
    x = CHECK_PTR(fsdp_from_data(devices[0], FSDP_F32, FSDP_SHAPE(1, NET_IN), (float[NET_IN]){0}));
    CHECK_NULL(fsdp_call(module, x));
    CHECK_CONTAINS(fsdp_last_error(), "is on device 'sim:0', 'blocks.1' on 'sim:1'");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

/* Batches from another device: ids or features, with a gradient of the input. arg: of which device the module is. */
static void feed_from_elsewhere(fsdp_context *context, void *arg)
{
    fsdp_device *cpu = fsdp_cpu(context), *sim = CHECK_PTR(fsdp__device_open(context, "sim", 0));
    fsdp_device *here = arg ? sim : cpu, *there = arg ? cpu : sim;
    fsdp_module *module = net_create(context, fsdp_meta(context), 1);
    fsdp_tensor *x[2], *targets, *loss[2];
    float values[3 * NET_IN], gradients[2][3 * NET_IN], losses[2];

    for (int i = 0; i < 3 * NET_IN; i++)
        values[i] = (float)(i % 7) / 7;
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_materialize(module, here));
    CHECK_OK(fsdp_module_initialize(module, 1));
    for (int i = 0; i < 2; i++) {
        fsdp_device *from = i ? there : here;

        CHECK_OK(fsdp_scope_begin(context));
        x[i] = CHECK_PTR(fsdp_from_data(from, FSDP_F32, FSDP_SHAPE(3, NET_IN), values));
        targets = CHECK_PTR(fsdp_from_data(from, FSDP_I32, FSDP_SHAPE(3), (int32_t[]){0, 2, 1}));
        CHECK_OK(fsdp_tensor_set_requires_grad(x[i], true));
        loss[i] = CHECK_PTR(fsdp_call(module, x[i], targets));
        CHECK(fsdp_tensor_device(loss[i]) == here);
        CHECK_OK(fsdp_tensor_read(loss[i], FSDP_F32, &losses[i]));
        CHECK_OK(fsdp_backward(loss[i]));
        CHECK(fsdp_tensor_device(fsdp_tensor_grad(x[i])) == from);
        CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(x[i]), FSDP_F32, gradients[i]));
        fsdp_scope_end(context, NULL);
    }
    CHECK_BYTES(&losses[1], &losses[0], sizeof losses[0]);
    CHECK_BYTES(gradients[1], gradients[0], sizeof gradients[0]);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_NULL(fsdp_to_device(fsdp_empty(fsdp_meta(context), FSDP_F32, FSDP_SHAPE(2)), here));
    CHECK_CONTAINS(fsdp_last_error(), "to_device: nothing can be moved from or to meta");
    CHECK_NULL(fsdp_to_device(fsdp_zeros(here, FSDP_F32, FSDP_SHAPE(2)), NULL));
    CHECK_CONTAINS(fsdp_last_error(), "to_device: no device");
    CHECK(fsdp_to_device(fsdp_zeros(here, FSDP_F32, FSDP_SHAPE(2)), here));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(inputs_go_where_the_parameters_are)
{
    for (int world = 1; world <= 3; world++) {
        test_run_ranks(world, feed_from_elsewhere, NULL);
        test_run_ranks(world, feed_from_elsewhere, &world);
    }
}

/* ---- before the first forward ---- */

static void set_on_child(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO), *child = net_block_at(module, 1);
    const fsdp__root *root;

    if (run->arg) { /* the later call wins */
        CHECK_OK(fsdp_module_set_is_last_backward(module, false));
        CHECK_OK(fsdp_module_set_is_last_backward(child, true));
    } else {
        CHECK_OK(fsdp_module_set_is_last_backward(module, true));
        CHECK_OK(fsdp_module_set_is_last_backward(child, false));
    }
    ways_backward(run, module, 0);
    root = fsdp__module_state_of(module)->root;
    CHECK_EQ(root->last_backward, run->arg);
    CHECK_EQ(root->order_count > 0, !run->arg); /* the order is kept for the backwards to come */
    CHECK_OK(fsdp_module_set_is_last_backward(child, true));
    ways_backward(run, module, 1);
    CHECK_EQ(root->order_count, 0);
    fsdp_module_unref(module);
}

TEST(is_last_backward_on_a_child_before_the_first_forward_holds)
{
    for (int last = 0; last < 2; last++)
        in_every_way_with(set_on_child, WAYS_ALONE, last);
}

/* ---- several roots as one ---- */

enum {
    STAGES = 3
};

/* Three models whose forwards and backwards alternate, as the stages of a pipeline do. */
WAYS_TEST(roots_that_communicate_as_one_compute_the_same, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE)
{
    fsdp_module *stages[STAGES];
    fsdp_optimizer *optimizers[STAGES];
    fsdp_tensor *losses[STAGES];

    for (int i = 0; i < STAGES; i++)
        stages[i] = ways_net(context, run, i, i == 1 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO);
    if (run->way) {
        CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(stages[2], 3, true));
        CHECK_OK(fsdp_share_comm_context(stages, STAGES));
    }
    for (int i = 0; i < STAGES; i++)
        optimizers[i] = ways_optimizer(stages[i]);
    for (int step = 0; step < 2; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        for (int micro = 0; micro < 2; micro++) {
            dawdle(context, run);
            for (int i = 0; i < STAGES; i++) {
                if (run->way)
                    CHECK_OK(fsdp_module_set_is_last_backward(stages[i], micro == 1));
                losses[i] = ways_loss(run, stages[i], 5 * step + micro);
                if (i > 0) /* behind the next stage's forward */
                    CHECK_OK(fsdp_backward(losses[i - 1]));
            }
            ways_evaluate(run, stages[0], step);
            CHECK_OK(fsdp_backward(losses[STAGES - 1]));
            if (micro == 0 && run->way) /* nothing of it; the others' reductions go on */
                CHECK_OK(fsdp_module_reset_iteration(stages[0]));
        }
        fsdp_scope_end(context, NULL);
        for (int i = 0; i < STAGES; i++) {
            note_gradients(run, stages[i]);
            ways_step(optimizers[i]);
        }
    }
    for (int i = 0; i < STAGES; i++) {
        note_weights(run, stages[i]);
        fsdp_optimizer_free(optimizers[i]);
    }
    if (run->way) { /* a reduction of the one that goes first */
        CHECK_OK(fsdp_module_set_is_last_backward(stages[1], false));
        ways_backward(run, stages[1], 0);
    }
    fsdp_module_unref(stages[1]);
    ways_backward(run, stages[0], 1);
    note_gradients(run, stages[0]);
    fsdp_module_unref(stages[0]);
    ways_backward(run, stages[2], 1);
    fsdp_module_unref(stages[2]);
}

static void look_at_sharing(fsdp_context *context, void *arg)
{
    const fsdp_shard_options worker = {.overlap = FSDP_OVERLAP_WORKER};
    fsdp_module *roots[4] = {net_sharded(context, 1, NULL), net_sharded(context, 0, &worker),
                             net_sharded(context, 1, NULL), net_create(context, test_device(context), 0)};
    fsdp_module *pairs[][2] = {{roots[0], roots[3]}, {roots[0], NULL}, {roots[2], roots[1]}, {roots[2], roots[0]}};
    const fsdp__comm_context *comm = fsdp__module_state_of(roots[0])->comm;

    (void)arg;
    CHECK_ERROR(fsdp_share_comm_context(NULL, 1), FSDP_INVALID, "no modules");
    CHECK_ERROR(fsdp_share_comm_context(roots, 0), FSDP_INVALID, "no modules");
    CHECK_ERROR(fsdp_share_comm_context(pairs[0], 2), FSDP_STATE, "not given to fully_shard");
    CHECK_ERROR(fsdp_share_comm_context(pairs[1], 2), FSDP_INVALID, "a module is required");
    CHECK_OK(fsdp_module_unshard(roots[1]));
    CHECK_ERROR(fsdp_share_comm_context(pairs[2], 2), FSDP_STATE, "reshard it first");
    CHECK_OK(fsdp_module_reshard(roots[1]));
    CHECK_OK(fsdp_share_comm_context(pairs[2], 2));
    CHECK_OK(fsdp_share_comm_context(pairs[2], 2));
    CHECK(comm != fsdp__module_state_of(roots[2])->comm);
    CHECK_OK(fsdp_share_comm_context(roots, 2)); /* so the third comes, too */
    for (int i = 0; i < 3; i++)
        CHECK(fsdp__module_state_of(roots[i])->comm == comm);
    for (int i = 0; i < 3; i++)
        net_train(roots[i], 1);
    CHECK_EQ(comm->spares.out, 0);
    CHECK(comm->own_stream); /* of the second's */
    CHECK(fsdp__module_state_of(net_block_at(roots[2], 0))->comm == comm);
    CHECK_OK(fsdp_share_comm_context(pairs[3], 2)); /* they do already */
    CHECK_ERROR(fsdp_share_comm_context(&((net *)roots[0])->head, 1), FSDP_STATE, "not given to fully_shard");
    pairs[1][0] = net_block_at(roots[0], 0);
    CHECK_ERROR(fsdp_share_comm_context(pairs[1], 1), FSDP_STATE, "only outermost");
    CHECK_OK(fsdp_fully_shard(roots[3], NULL));
    pairs[0][0] = roots[3];
    pairs[0][1] = roots[0];
    CHECK_ERROR(fsdp_share_comm_context(pairs[0], 2), FSDP_STATE, "'Net' has already run");
    pairs[0][0] = roots[0];
    pairs[0][1] = roots[3];
    CHECK_OK(fsdp_share_comm_context(pairs[0], 2)); /* the first may have run */
    for (int i = 0; i < 4; i++)
        fsdp_module_unref(roots[i]);
}

/* What is shared must turn out to be outermost. */
static void share_an_inner_one(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *pair[2];
    fsdp_tensor *x, *targets;

    (void)arg;
    net_shard(module, NULL);
    pair[0] = net_block_at(module, 0);
    pair[1] = net_block_at(module, 1);
    CHECK_OK(fsdp_share_comm_context(pair, 2));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(fsdp_call(module, x, targets));
    CHECK_CONTAINS(fsdp_last_error(), "'blocks.0' shares its communication context, but is below another");
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(what_cannot_be_shared_is_refused)
{
    for (int world = 1; world <= 3; world++) {
        test_run_ranks(world, look_at_sharing, NULL);
        test_run_ranks(world, share_an_inner_one, NULL);
    }
}
