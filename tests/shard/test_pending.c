/* Gradients that wait: which they are, their reduction when the caller says so, and the hook behind every reduction.
 * Links: optim */
#include "fsdp/replicate.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static const char *const watched = "blocks.0.up.weight";

static fsdp_mesh *mesh_of(fsdp_context *context, const way_run *run)
{
    int least = run->world % 2 == 0 ? 2 : run->world;

    if (!run->way || run->arg == 0)
        return NULL;
    return net_hybrid_mesh(context, run->arg == 1 ? least : run->world / least);
}

/* arg: 0: one dimension; 1, 2: two. */
static fsdp_module *create(fsdp_context *context, const way_run *run)
{
    way_run own = *run;
    fsdp_module *module;

    own.options.mesh = mesh_of(context, run);
    module = ways_net(context, &own, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_mesh_unref(own.options.mesh); /* the module has it */
    return module;
}

static void set(const way_run *run, fsdp_module *module, bool sync, bool all_reduce)
{
    if (!run->way)
        return;
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, sync, true));
    CHECK_OK(fsdp_module_set_requires_all_reduce(module, all_reduce, true));
}

static void check_pending(const way_run *run, fsdp_module *module, int expected, bool gradient)
{
    fsdp_tensor *p = fsdp_module_parameter(module, watched);

    if (!run->way)
        return;
    CHECK_EQ(fsdp_parameter_pending_gradients(p), expected);
    CHECK_EQ(fsdp_tensor_grad(p) != NULL, gradient);
}

static int64_t communications(fsdp_context *context)
{
    fsdp_comm_stats stats;
    int64_t calls = 0;

    fsdp_context_comm_stats(context, &stats);
    for (int i = 0; i < FSDP_COLLECTIVES; i++)
        calls += stats.calls[i];
    return calls;
}

static void synchronize(const way_run *run, fsdp_module *module)
{
    int64_t before;

    dawdle(module->context, run);
    if (!run->way)
        return;
    CHECK_OK(fsdp_module_synchronize_gradients(module));
    before = communications(module->context);
    CHECK_OK(fsdp_module_synchronize_gradients(module)); /* nothing is left */
    CHECK_EQ(communications(module->context), before);
}

static void look_and_synchronize(fsdp_context *context, way_run *run)
{
    fsdp_module *module = create(context, run);
    bool hybrid = run->arg > 0;

    check_pending(run, module, 0, false);
    synchronize(run, module);
    for (int round = 0; round < 2; round++) {
        set(run, module, false, false);
        ways_backward(run, module, 0);
        check_pending(run, module, FSDP_PENDING_UNREDUCED, false);
        synchronize(run, module);
        check_pending(run, module, 0, true);
        note_gradients(run, module);
        set(run, module, true, false);
        ways_backward(run, module, 1);
        check_pending(run, module, hybrid ? FSDP_PENDING_PARTIAL : 0, true);
        set(run, module, false, false);
        ways_backward(run, module, 2);
        check_pending(run, module, FSDP_PENDING_UNREDUCED | (hybrid ? FSDP_PENDING_PARTIAL : 0), true);
        if (round == 0) {
            synchronize(run, module);
            note_gradients(run, module);
        }
        fsdp_module_zero_grad(module);
        check_pending(run, module, 0, false);
        synchronize(run, module);
        check_pending(run, module, 0, false);
    }
    set(run, module, true, true);
    ways_backward(run, module, 3);
    check_pending(run, module, 0, true);
    if (run->way) /* a reduction that the end of the backward left in flight */
        CHECK_OK(fsdp_module_set_is_last_backward(module, false));
    ways_backward(run, module, 4);
    synchronize(run, module);
    note_gradients(run, module);
    fsdp_module_unref(module);
}

TEST(what_is_pending_is_known_and_reduced_on_demand)
{
    for (int mesh = 0; mesh < 3; mesh++)
        in_every_way_with(look_and_synchronize, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, mesh);
}

/* ---- the part of a module ---- */

static void synchronize_a_part(fsdp_context *context, void *arg)
{
    fsdp_mesh *mesh = net_hybrid_mesh(context, 2);
    fsdp_module *module = net_sharded(context, BLOCKS, &(fsdp_shard_options){.mesh = mesh});
    fsdp_tensor *other = fsdp_module_parameter(module, "blocks.1.up.weight");

    (void)arg;
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_module_synchronize_gradients(net_block_at(module, 0)));
    CHECK_EQ(fsdp_parameter_pending_gradients(fsdp_module_parameter(module, watched)), 0);
    CHECK_EQ(fsdp_parameter_pending_gradients(other), FSDP_PENDING_UNREDUCED);
    CHECK_NULL(fsdp_tensor_grad(other));
    CHECK_OK(fsdp_module_reset_iteration(module));
    CHECK_EQ(fsdp_parameter_pending_gradients(other), 0);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

static fsdp_status refuse_inside(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    (void)gradients, (void)stream;
    CHECK_ERROR(fsdp_module_synchronize_gradients(arg), FSDP_STATE, "while a backward runs");
    return FSDP_OK;
}

static void refusals(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *head = ((net *)module)->head;
    fsdp_module *replica = net_create(context, fsdp_meta(context), BLOCKS);

    (void)arg;
    CHECK_OK(fsdp_replicate(replica, NULL));
    CHECK_OK(fsdp_module_synchronize_gradients(replica)); /* still on the meta device */
    fsdp_module_unref(replica);
    CHECK_EQ(fsdp_parameter_pending_gradients(NULL), 0);
    CHECK_EQ(fsdp_parameter_pending_gradients(fsdp_module_parameter(module, watched)), 0);
    CHECK_ERROR(fsdp_module_synchronize_gradients(module), FSDP_STATE, "not given to fully_shard");
    CHECK_ERROR(fsdp_module_synchronize_gradients(NULL), FSDP_INVALID, "a module is required");
    CHECK_ERROR(fsdp_module_set_all_reduce_hook(head, NULL, NULL), FSDP_STATE, "not given to fully_shard");
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_synchronize_gradients(module)); /* still on the meta device */
    CHECK_EQ(fsdp_parameter_pending_gradients(fsdp_module_parameter(module, watched)), 0);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_module_set_all_reduce_hook(module, refuse_inside, module));
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_unref(module);
}

TEST(synchronizing_is_for_modules_and_not_inside_a_backward)
{
    test_run_ranks(4, synchronize_a_part, NULL);
    test_run_worlds(1, 3, refusals, NULL);
}

/* ---- the hook ---- */

typedef struct across {
    fsdp_process_group *group;
    fsdp_dtype dtype;
    int64_t calls, numel;
} across;

/* What hybrid sharding does, by hand. */
static fsdp_status average_across(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    across *a = arg;
    void *data = fsdp_tensor_data(gradients);

    a->calls++;
    a->numel += fsdp_tensor_numel(gradients);
    CHECK_EQ(fsdp_tensor_dtype(gradients), a->dtype);
    return fsdp_all_reduce(a->group, data, data, fsdp_tensor_numel(gradients), a->dtype, FSDP_AVG, stream);
}

typedef struct hooked {
    fsdp_shard_options options;
    bool by_hook;
    float *values[4];
    int64_t count;
} hooked;

static void train(fsdp_context *context, void *arg)
{
    hooked *h = arg;
    fsdp_shard_options options = h->options;
    fsdp_mesh *mesh = net_hybrid_mesh(context, 2), *inside;
    across a = {.group = fsdp_mesh_process_group(mesh, 0),
                .dtype = options.mp_policy.reduce_dtype ? options.mp_policy.reduce_dtype : FSDP_F32};
    fsdp_module *module;
    int64_t padded = 0, count;
    fsdp_shard_info info;

    CHECK_OK(fsdp_mesh_slice(mesh, 1, (const char *const[]){"shard"}, &inside));
    options.mesh = h->by_hook ? inside : mesh;
    module = net_sharded(context, BLOCKS, &options);
    for (int i = 0; i <= BLOCKS; i++) {
        fsdp_module *each = i < BLOCKS ? net_block_at(module, i) : module;

        if (h->by_hook)
            CHECK_OK(fsdp_module_set_all_reduce_hook(each, average_across, &a));
        CHECK_OK(fsdp_module_shard_info(each, &info));
        padded += info.padded_numel / 2;
    }
    net_train(module, 2);
    CHECK_EQ(a.calls, h->by_hook ? 2 * (BLOCKS + 1) : 0);
    CHECK_EQ(a.numel, h->by_hook ? 2 * padded : 0);
    h->values[fsdp_context_rank(context)] = net_values(module, &count);
    if (fsdp_context_rank(context) == 0)
        h->count = count;
    fsdp_module_unref(module);
    fsdp_mesh_unref(inside);
    fsdp_mesh_unref(mesh);
}

/* With two and two ranks the averages of averages are the same bits. */
TEST(a_hook_can_do_what_hybrid_sharding_does)
{
    for (int variant = 0; variant < 4; variant++) {
        hooked runs[2] = {{.by_hook = false}, {.by_hook = true}};

        for (int i = 0; i < 2; i++) {
            runs[i].options.no_shared_memory = variant & 1;
            runs[i].options.overlap = variant & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
            test_run_ranks(4, train, &runs[i]);
        }
        for (int i = 0; i < 2; i++)
            for (int r = 0; r < 4; r++)
                CHECK_BYTES(runs[i].values[r], runs[0].values[0], (size_t)runs[0].count * sizeof(float));
        for (int i = 0; i < 8; i++)
            free(runs[i / 4].values[i % 4]);
    }
}

static fsdp_status fail_always(void *arg, fsdp_tensor *gradients, fsdp_stream *stream)
{
    (void)arg, (void)gradients, (void)stream;
    return FSDP_FAIL(FSDP_IO, "the hook has no ink");
}

static void fail_in_hook(fsdp_context *context, void *arg)
{
    fsdp_shard_options options = *(fsdp_shard_options *)arg;
    fsdp_mesh *mesh = net_hybrid_mesh(context, fsdp_context_world_size(context));
    fsdp_module *module;
    fsdp_tensor *x, *targets;

    options.mesh = mesh;
    module = net_sharded(context, BLOCKS, &options);
    CHECK_OK(fsdp_module_set_all_reduce_hook(net_block_at(module, 0), fail_always, NULL));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_ERROR(fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets))), FSDP_IO, "no ink");
    fsdp_scope_end(context, NULL);
    fsdp_module_zero_grad(module);
    CHECK_EQ(fsdp_parameter_pending_gradients(fsdp_module_parameter(module, watched)), 0);
    CHECK_OK(fsdp_module_set_all_reduce_hook(net_block_at(module, 0), NULL, NULL));
    net_forward_backward(module, 0, 0, 1);
    CHECK(fsdp_tensor_grad(fsdp_module_parameter(module, watched)) != NULL);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(what_fails_in_a_hook_fails_the_backward)
{
    for (int world = 1; world <= 3; world++)
        for (int variant = 0; variant < 4; variant++) {
            fsdp_shard_options options = {.no_shared_memory = variant & 1};

            options.overlap = variant & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE;
            test_run_ranks(world, fail_in_hook, &options);
        }
}

/* ---- the hook of gradients that have landed ---- */

typedef struct landing {
    fsdp_module *module;
    enum {
        STAYS,
        IS_REMOVED,
        REMOVES_ITSELF
    } manner;
    bool removed;
    int calls;
} landing;

static fsdp_status fail_to_step(void *arg, fsdp_tensor *const *parameters, int64_t count)
{
    landing *l = arg;

    (void)parameters, (void)count;
    CHECK(!l->removed);
    l->calls++;
    if (l->manner != REMOVES_ITSELF)
        return FSDP_FAIL(FSDP_IO, "no step today");
    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(l->module, NULL, NULL, true));
    l->removed = true;
    return FSDP_OK;
}

typedef struct landing_variant {
    fsdp_overlap overlap;
    bool replicated;
    int manner;
} landing_variant;

/* Several reductions are in flight, of which the hook of the first fails; nobody is told of the others later. */
static void leave_hooks(fsdp_context *context, void *arg)
{
    const landing_variant *v = arg;
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    landing l = {.module = module, .manner = v->manner};
    int calls;

    CHECK_OK(fsdp_module_initialize(module, 1));
    if (v->replicated)
        CHECK_OK(fsdp_replicate(module, &(fsdp_replicate_options){.overlap = v->overlap, .bucket_cap_mb = 1e-4}));
    else
        net_shard(module, &(fsdp_shard_options){.overlap = v->overlap});
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
    CHECK_OK(fsdp_module_set_reduce_scatter_max_inputs(module, 2, true));
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(module, fail_to_step, &l, true));
    if (v->manner == REMOVES_ITSELF)
        CHECK_OK(fsdp_module_synchronize_gradients(module));
    else
        CHECK_ERROR(fsdp_module_synchronize_gradients(module), FSDP_IO, "no step today");
    CHECK_EQ(l.calls, 1);
    if (v->manner == IS_REMOVED)
        CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(module, NULL, NULL, true));
    l.removed = v->manner != STAYS;
    calls = l.calls;
    CHECK_OK(fsdp_module_reset_iteration(module));
    CHECK_EQ(l.calls, calls);
    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(module, NULL, NULL, true));
    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
    fsdp_module_zero_grad(module);
    net_train(module, 1);
    fsdp_module_unref(module);
}

TEST(a_hook_is_not_called_after_its_backward_or_when_it_was_removed)
{
    for (int i = 0; i < 12; i++) {
        landing_variant v = {i & 1 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE, i & 2, i / 4};

        test_run_worlds(1, 2, leave_hooks, &v);
    }
}

/* ---- f16 ---- */

/* Every rank's gradient is 15000: of five ranks f16 has no sum. */
static void sum_in_f16(fsdp_context *context, void *arg)
{
    int replicas = *(int *)arg;
    fsdp_mesh *mesh = replicas > 0 ? net_hybrid_mesh(context, replicas) : NULL;
    fsdp_shard_options options = {.mesh = mesh, .mp_policy.reduce_dtype = FSDP_F16};
    fsdp_module *module = net_sharded(context, BLOCKS, &options), *block = net_block_at(module, 0);
    fsdp_tensor *p = fsdp_module_parameter(module, watched), *gradient, *whole;
    float values[NET_FFN * NET_DIM];

    CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_zero_grad(module);
    CHECK_OK(fsdp_module_unshard(block));
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, (const int64_t[]){NET_FFN, NET_DIM},
                                FSDP_MEMORY_GRADIENT, &gradient));
    CHECK_OK(fsdp_tensor_fill_(gradient, 15000));
    CHECK_OK(fsdp_tensor_set_grad(fsdp_module_parameter(module, watched), gradient));
    fsdp_tensor_unref(gradient);
    CHECK_OK(fsdp_module_reshard(block));
    CHECK_EQ(fsdp_parameter_pending_gradients(p), FSDP_PENDING_UNREDUCED);
    CHECK_OK(fsdp_module_synchronize_gradients(module));
    CHECK_OK(fsdp_full_tensor(fsdp_tensor_grad(p), &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    for (int i = 0; i < NET_FFN * NET_DIM; i++)
        CHECK_NEAR(values[i], 15000, 15); /* f16 knows multiples of 8 to 32 there */
    fsdp_tensor_unref(whole);
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(sums_in_f16_are_divided_before_and_after)
{
    for (int world = 1; world <= 8; world++)
        for (int replicas = 0; replicas <= world; replicas++)
            if (replicas == 0 || world % replicas == 0)
                test_run_ranks(world, sum_in_f16, &replicas);
}

/* ---- float16 among other dtypes ---- */

typedef struct several {
    fsdp_module base;
    fsdp_tensor *wide, *narrow;
} several;

static fsdp_tensor *several_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    several *s = (several *)self;
    fsdp_tensor *y = fsdp_linear(inputs[0], s->wide, FSDP_NO_BIAS);

    (void)count;
    return fsdp_mean(
        fsdp_mul(y, fsdp_cast(fsdp_linear(fsdp_cast(inputs[0], FSDP_F16), s->narrow, FSDP_NO_BIAS), FSDP_F32)));
}

static const fsdp_module_type several_type = {.name = "Several", .forward = several_forward};

/* Two backwards, whose gradients inside the replicas add up: in the first the float16 parameter may be frozen. The
 * gradient of the other one, which this changes nothing for. */
static void reduce_twice(fsdp_context *context, bool frozen, float *out)
{
    const fsdp_init normal = {FSDP_INIT_NORMAL, 0, 1};
    fsdp_mesh *mesh = net_hybrid_mesh(context, 2);
    fsdp_tensor *x, *targets, *whole;
    several *s;

    CHECK_OK(fsdp_module_create(context, &several_type, sizeof *s, &s));
    CHECK_OK(fsdp_module_add_parameter(&s->base, "wide", &s->wide, fsdp_meta(context), FSDP_F32, 2,
                                       (const int64_t[]){3, NET_IN}, normal));
    CHECK_OK(fsdp_module_add_parameter(&s->base, "narrow", &s->narrow, fsdp_meta(context), FSDP_F16, 2,
                                       (const int64_t[]){3, NET_IN}, normal));
    CHECK_OK(fsdp_fully_shard(&s->base, &(fsdp_shard_options){.mesh = mesh}));
    CHECK_OK(fsdp_module_materialize(&s->base, test_device(context)));
    CHECK_OK(fsdp_module_initialize(&s->base, 1));
    for (int i = 0; i < 2; i++) {
        CHECK_OK(fsdp_tensor_set_requires_grad(s->narrow, i == 1 || !frozen));
        CHECK_OK(fsdp_module_set_requires_all_reduce(&s->base, i == 1, true));
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, i, 3 * fsdp_context_rank(context), 3, &x, &targets);
        CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(&s->base, x))));
        fsdp_scope_end(context, NULL);
    }
    CHECK_OK(fsdp_full_tensor(fsdp_tensor_grad(s->wide), &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, out));
    fsdp_tensor_unref(whole);
    fsdp_module_unref(&s->base);
    fsdp_mesh_unref(mesh);
}

RANKS_TEST(a_group_with_float16_divides_all_it_has_alike, 4)
{
    float thawed[3 * NET_IN], frozen[3 * NET_IN];

    reduce_twice(context, false, thawed);
    reduce_twice(context, true, frozen);
    CHECK_BYTES(frozen, thawed, sizeof thawed);
}

/* Summoned with gradients that are written back as they are, or not there: what waits goes on waiting. */
static void summon_beside(fsdp_context *context, way_run *run)
{
    fsdp_module *module = create(context, run);

    for (int round = 0; round < 2; round++) { /* shards have no gradients yet, and have some */
        set(run, module, false, false);
        ways_backward(run, module, 2 * round);
        check_pending(run, module, FSDP_PENDING_UNREDUCED, round > 0);
        if (run->way) {
            CHECK_OK(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.with_grads = true}));
            CHECK_OK(fsdp_module_end_summon(module));
        }
        check_pending(run, module, FSDP_PENDING_UNREDUCED, round > 0);
        set(run, module, true, true);
        ways_backward(run, module, 2 * round + 1);
        note_gradients(run, module);
    }
    fsdp_module_unref(module);
}

TEST(a_summon_leaves_what_waits_alone)
{
    for (int arg = 0; arg < 2; arg++)
        in_every_way_with(summon_beside, WAYS_EQUAL_PLAIN | WAYS_RANKS_AGREE, arg);
}
