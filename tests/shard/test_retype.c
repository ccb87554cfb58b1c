/* Sharded parameters in another dtype: equal to a plain model changed at the same moment. Links: optim */
#include "shard/ways.h"

/* Inputs in the dtype of the parameters, where no policy casts them. */
static fsdp_tensor *loss_of(const way_run *run, fsdp_module *module, int step)
{
    fsdp_context *context = module->context;
    int rows = run->way ? WAYS_ROWS : WAYS_ROWS * run->world, rank = fsdp_context_rank(context);
    fsdp_dtype dtype = fsdp_tensor_dtype(((fsdp_layer *)((net *)module)->input)->weight);
    fsdp_tensor *x, *targets;

    net_batch(context, step, rank * rows, rows, &x, &targets);
    return CHECK_PTR(fsdp_call(module, fsdp_cast(x, dtype), targets));
}

static void backward(fsdp_context *context, way_run *run, fsdp_module *module, int step)
{
    fsdp_tensor *loss;

    dawdle(context, run);
    CHECK_OK(fsdp_scope_begin(context));
    loss = loss_of(run, module, step);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
}

/* A GPU keeps stamps of its waits from the first question on, also while dtypes change. */
static void ask_for_time(fsdp_module *module)
{
    int64_t gathers, reductions;

    if (fsdp_module_is_sharded(module))
        CHECK_OK(fsdp_module_exposed_time(module, &gathers, &reductions));
}

static void train(fsdp_context *context, way_run *run, fsdp_module *module, fsdp_optimizer *optimizer, int steps)
{
    ask_for_time(module);
    for (int step = 0; step < steps; step++) {
        backward(context, run, module, step);
        ways_step(optimizer);
    }
    note_weights(run, module);
}

static void check_dtype(fsdp_module *module, fsdp_dtype dtype)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *t = parameters.items[i].tensor, *grad = fsdp_tensor_grad(t);

        CHECK_EQ(fsdp_tensor_dtype(t), dtype);
        CHECK(!grad || (fsdp_tensor_dtype(grad) == dtype && fsdp_tensor_numel(grad) == fsdp_tensor_numel(t)));
    }
    fsdp_parameters_release(&parameters);
}

enum {
    RESHARDS = 3, /* of the argument: an fsdp_reshard */
    LATER = 3,    /* sharded in the last dimension */
    FLOAT8 = 6
};

static fsdp_module *build(fsdp_context *context, const way_run *run)
{
    way_run own = *run; /* ranks share theirs */

    if (run->arg >= LATER && run->arg < FLOAT8)
        own.options.placement = net_last_dimension;
    if (run->arg == FLOAT8)
        own.options.gather_extension = fsdp_gather_float8();
    return ways_net(context, &own, 2, (fsdp_reshard)(run->arg % RESHARDS));
}

/* Rounded before the first forward or after one, then trained: a plain model does the same. */
static void round_and_train(fsdp_context *context, way_run *run)
{
    fsdp_module *module = build(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);

    if (run->arg)
        (void)ways_evaluate(run, module, 3);
    dawdle(context, run);
    CHECK_OK(fsdp_module_to(module, FSDP_BF16));
    check_dtype(module, FSDP_BF16);
    note_weights(run, module);
    CHECK_OK(fsdp_module_to(module, FSDP_F32));
    train(context, run, module, optimizer, 2);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_rounded_model_trains_as_the_plain_one)
{
    for (int how = test_long() ? 0 : LATER + 1; how < FLOAT8; how += test_long() ? 1 : LATER)
        in_every_way_with(round_and_train, WAYS_EQUAL_PLAIN, how);
}

static void unshard_all(fsdp_module *module)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(fsdp_module_unshard(net_block_at(module, i)));
    CHECK_OK(fsdp_module_unshard(module));
}

static void check_same(const fsdp_tensor *a, const fsdp_tensor *b)
{
    float values[2][NET_DIM * NET_FFN];

    CHECK_OK(fsdp_tensor_read(a, FSDP_F32, values[0]));
    CHECK_OK(fsdp_tensor_read(b, FSDP_F32, values[1]));
    CHECK_BYTES(values[0], values[1], (size_t)fsdp_tensor_numel(b) * sizeof values[0][0]);
}

/* What is gathered is what the shards have, and not what an optimizer has cast into memory that is no more. */
static void check_gathered(const way_run *run, fsdp_module *module)
{
    fsdp_parameters parameters;

    if (!run->way || run->arg == FLOAT8)
        return;
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    unshard_all(module);
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *whole = CHECK_PTR(fsdp_module_parameter(module, parameters.items[i].name)), *full, *cast;

        CHECK_OK(fsdp_full_tensor(parameters.items[i].tensor, &full));
        CHECK_OK(fsdp_scope_begin(module->context));
        cast = CHECK_PTR(fsdp_cast(full, fsdp_tensor_dtype(whole)));
        check_same(whole, cast);
        fsdp_scope_end(module->context, NULL);
        fsdp_tensor_unref(full);
    }
    CHECK_OK(fsdp_module_reshard_all(module));
    fsdp_parameters_release(&parameters);
}

/* Between steps with momentum, with gradients and without, there and back. */
static void change_between_steps(fsdp_context *context, way_run *run)
{
    fsdp_module *module = build(context, run);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16, FSDP_F32};

    train(context, run, module, optimizer, 1);
    for (int i = 0; i < 3; i++) {
        backward(context, run, module, 2 + i);
        CHECK_OK(fsdp_module_to(module, dtypes[i]));
        check_dtype(module, dtypes[i]);
        check_gathered(run, module);
        note_gradients(run, module);
        ways_step(optimizer);
    }
    train(context, run, module, optimizer, 1);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(it_changes_between_steps_in_every_residence_alike)
{
    for (int how = 0; how < FLOAT8; how += test_long() ? 1 : LATER + 2)
        in_every_way_with(change_between_steps, WAYS_RANKS_AGREE, how);
    in_every_way_with(change_between_steps, WAYS_RANKS_AGREE, FLOAT8);
}

/* One rank reduces with nobody: all bits are those of a plain model. */
static void run_alone(fsdp_context *context, void *arg)
{
    change_between_steps(context, arg);
}

TEST(one_rank_gives_the_bits_of_a_plain_model)
{
    static const way alone = {.name = "alone"};
    way_run plain = {.world = 1, .slow = 1}, sharded = {.way = &alone, .world = 1, .slow = 1};

    test_run_ranks(1, run_alone, &plain);
    test_run_ranks(1, run_alone, &sharded);
    CHECK_EQ(sharded.notes[0].count, plain.notes[0].count);
    CHECK_BYTES(sharded.notes[0].values, plain.notes[0].values, (size_t)plain.notes[0].count * sizeof(float));
    free(plain.notes[0].values);
    free(sharded.notes[0].values);
}

/* ---- bytes ---- */

/* What lives after building, and after a step. */
static void live_after(fsdp_module *module, way_run *run, int64_t bytes[2])
{
    test_drop_workspace(module->context);
    bytes[0] = test_live_bytes(module->context);
    backward(module->context, run, module, 0);
    test_drop_workspace(module->context);
    bytes[1] = test_live_bytes(module->context);
    fsdp_module_zero_grad(module);
}

static void measure(fsdp_context *context, void *arg)
{
    way_run run = *(way_run *)arg; /* of this rank: a body's `arg` is shared */
    fsdp_module *module = net_create(context, fsdp_meta(context), 2);
    int64_t want[2], got[2];

    if (run.arg > 0)
        run.options.mesh = net_hybrid_mesh(context, run.arg);
    CHECK_OK(fsdp_module_to(module, FSDP_BF16));
    net_shard(module, &run.options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    live_after(module, &run, want);
    fsdp_module_unref(module);

    module = net_create(context, fsdp_meta(context), 2);
    net_shard(module, &run.options);
    fsdp_mesh_unref(run.options.mesh);
    CHECK_OK(fsdp_module_to(module, FSDP_F16)); /* on meta, sharded */
    CHECK_OK(fsdp_module_to(module, FSDP_F32));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    live_after(module, &run, got);
    CHECK_OK(fsdp_module_to(module, FSDP_BF16));
    live_after(module, &run, got);
    CHECK_EQ(got[0], want[0]);
    CHECK_EQ(got[1], want[1]);
    CHECK_OK(fsdp_module_to(module, FSDP_BF16)); /* nothing to do */
    live_after(module, &run, got);
    CHECK_EQ(got[0], want[0]);
    fsdp_module_unref(module);
}

TEST(live_bytes_are_those_of_a_model_sharded_in_that_dtype)
{
    static const way any = {.name = "any"};

    for (int variant = 0; variant < 8; variant++) {
        way_run run = {.way = &any, .world = 4, .slow = -1, .arg = variant & 4 ? 2 : 0};

        run.options.no_shared_memory = variant & 1;
        run.options.mp_policy.param_dtype = variant & 2 ? FSDP_F32 : FSDP_DTYPE_NONE;
        run.options.offload_policy.cpu = !test_on_cpu() && variant & 1;
        test_run_ranks(variant & 4 ? 4 : 3, measure, &run);
    }
}

/* ---- what it refuses ---- */

WAYS_TEST(what_it_refuses_leaves_all_as_it_was, WAYS_ALONE)
{
    fsdp_module *module = ways_net(context, run, 2, FSDP_RESHARD_AUTO);
    fsdp_tensor *loss, *held;

    backward(context, run, module, 0);
    CHECK_ERROR(fsdp_module_to(((net_block *)net_block_at(module, 0))->up, FSDP_BF16), FSDP_STATE,
                "cannot change the dtype of 'weight': it is sharded with an outer module");
    CHECK_OK(fsdp_scope_begin(context));
    loss = loss_of(run, module, 1);
    CHECK_ERROR(fsdp_module_to(module, FSDP_BF16), FSDP_STATE, "a graph or the caller holds the gathered one");
    check_dtype(module, FSDP_F32);
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    fsdp_module_zero_grad(module);
    if (run->world > 1) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        backward(context, run, module, 2);
        CHECK_ERROR(fsdp_module_to(module, FSDP_BF16), FSDP_STATE, "gradients wait to be reduced");
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        CHECK_OK(fsdp_module_synchronize_gradients(module));
    }
    CHECK_OK(fsdp_module_unshard(module)); /* the fields name it, and let go */
    held = fsdp_tensor_ref(((fsdp_layer *)((net *)module)->head)->weight);
    CHECK_ERROR(fsdp_module_to(module, FSDP_BF16), FSDP_STATE, "'head.weight'");
    CHECK_EQ(((fsdp_layer *)((net *)module)->head)->weight == held, 1);
    fsdp_tensor_unref(held);
    CHECK_OK(fsdp_module_to(module, FSDP_BF16));
    check_dtype(module, FSDP_BF16);
    CHECK_OK(fsdp_module_to(net_block_at(module, 1), FSDP_F16)); /* a part, which is sharded by itself */
    fsdp_module_unref(module);
}

/* A head tied to a layer of another call, which computes in bf16. */
RANKS_TEST(ties_and_groups_of_several_modules_change_as_a_whole, 2)
{
    const fsdp_shard_options half = {.mp_policy.param_dtype = FSDP_BF16}, none = {.reshard_after_forward = 0};
    fsdp_module *list = fsdp_module_list_create(context), *a, *both[2], *pair = fsdp_module_list_create(context);
    fsdp_layer *b;

    a = fsdp_linear_create(context, test_device(context), NET_DIM, NET_DIM, NULL);
    CHECK_OK(fsdp_module_create(context, a->type, sizeof *b, &b));
    CHECK_OK(fsdp_module_tie_parameter(&b->base, "weight", &b->weight, ((fsdp_layer *)a)->weight));
    CHECK_OK(fsdp_module_list_append(list, a));
    CHECK_OK(fsdp_module_list_append(list, &b->base));
    CHECK_OK(fsdp_module_initialize(list, 1));
    CHECK_OK(fsdp_module_to(list, FSDP_BF16));
    CHECK_OK(fsdp_fully_shard(a, &none));
    CHECK_OK(fsdp_fully_shard(&b->base, &half));
    CHECK_ERROR(fsdp_module_to(list, FSDP_F32), FSDP_STATE, "'weight' of a Linear: it is tied");
    CHECK_EQ(fsdp_tensor_dtype(b->weight), FSDP_BF16);
    fsdp_module_unref(list);
    for (int i = 0; i < 2; i++) {
        both[i] = fsdp_linear_create(context, test_device(context), NET_DIM, NET_DIM, NULL);
        CHECK_OK(fsdp_module_list_append(pair, both[i]));
    }
    CHECK_OK(fsdp_module_initialize(pair, 1));
    CHECK_OK(fsdp_fully_shard_modules(both, 2, &none));
    CHECK_ERROR(fsdp_module_to(both[1], FSDP_BF16), FSDP_STATE, "together with a module elsewhere");
    CHECK_OK(fsdp_module_to(pair, FSDP_BF16));
    check_dtype(pair, FSDP_BF16);
    fsdp_module_unref(pair);
}

/* ---- failures ---- */

typedef struct fault {
    bool copy, hit;
    long n;
} fault;

/* Where the device runs behind the host a failure may be told later than by the call. */
static bool world_is_whole(fsdp_context *context)
{
    return fsdp_stream_synchronize(fsdp_device_stream(test_device(context))) == FSDP_OK &&
           fsdp_barrier(fsdp_world(context)) == FSDP_OK;
}

/* Rank 1's n-th allocation fails: all of a rank's parameters have the old dtype then, or the new one. Inside of a
 * collective the world breaks, else the next call succeeds. */
static void fail_nth(fsdp_context *context, void *arg)
{
    fault *f = arg;
    const fsdp_shard_options options = {.no_shared_memory = f->copy};
    way_run run = {.way = &(way){.name = "faults"}, .world = 2, .slow = -1};
    fsdp_module *module = net_sharded(context, 1, &options);
    bool mine = fsdp_context_rank(context) == 1;
    fsdp_status status;

    backward(context, &run, module, 0);
    CHECK(world_is_whole(context));
    test_meet();
    if (mine)
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, f->n);
    status = fsdp_module_to(module, FSDP_BF16);
    if (mine) {
        f->hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        CHECK_EQ(status != FSDP_OK, f->hit);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
    }
    check_dtype(module, status == FSDP_OK ? FSDP_BF16 : FSDP_F32);
    if (fsdp_module_to(module, FSDP_BF16) == FSDP_OK && world_is_whole(context)) {
        check_dtype(module, FSDP_BF16);
        backward(context, &run, module, 0);
    }
    fsdp_module_unref(module);
}

TEST(a_failing_allocation_leaves_all_ranks_as_they_were)
{
    fault f = {.hit = true};

    for (f.n = 1; f.hit; f.n += test_brief() ? 7 : 2) {
        f.copy = !f.copy;
        test_run_ranks(2, fail_nth, &f);
    }
}
