/* Collectives of the caller's in the place of the library's: what they are given, that nothing else changes, refusals.
 * Links: optim */
#include "device/device.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2,
    STEPS = 2
};

/* ---- what a caller could write ---- */

typedef struct caller {
    int64_t gathers, reductions, taken, given, failing; /* the last: which call fails, from 1 */
    bool late;                                          /* ... once its work has been issued */
    fsdp_dtype gathered, reduced;
    bool bytes; /* some gather was of several dtypes */
} caller;

static fsdp_status gather(void *arg, const fsdp_custom_call *call)
{
    caller *c = arg;

    c->gathers++;
    c->gathered = call->dtype;
    c->bytes = c->bytes || call->dtype == FSDP_U8;
    if (!c->late && c->failing > 0 && c->gathers + c->reductions == c->failing)
        return FSDP_FAIL(FSDP_IO, "the caller's gather gave up");
    FSDP_TRY(fsdp_all_gather(call->group, call->send, call->recv, call->count, call->dtype, call->stream));
    if (c->late && c->gathers + c->reductions == c->failing)
        return FSDP_FAIL(FSDP_IO, "the caller's gather gave up");
    return FSDP_OK;
}

static fsdp_status reduce(void *arg, const fsdp_custom_call *call)
{
    caller *c = arg;

    c->reductions++;
    c->reduced = call->dtype;
    if (c->failing > 0 && !c->late && c->gathers + c->reductions == c->failing)
        return FSDP_FAIL(FSDP_IO, "the caller's reduction gave up");
    FSDP_TRY(
        fsdp_reduce_scatter(call->group, call->send, call->recv, call->count, call->dtype, call->op, call->stream));
    if (c->late && c->gathers + c->reductions == c->failing)
        return FSDP_FAIL(FSDP_IO, "the caller's reduction gave up");
    return FSDP_OK;
}

/* Not counted as anything that the library counts. */
static fsdp_status take(void *arg, fsdp_device *device, size_t bytes, void **out)
{
    ((caller *)arg)->taken += (int64_t)bytes;
    return fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, out);
}

static void give(void *arg, fsdp_device *device, void *memory, size_t bytes)
{
    ((caller *)arg)->given += (int64_t)bytes;
    fsdp__device_free(device, memory, bytes, FSDP_MEMORY_WORKSPACE);
}

static void set(fsdp_module *module, caller *c, bool own_memory)
{
    fsdp_custom_collective both = {.run = gather, .arg = c};

    if (own_memory) {
        both.allocate = take;
        both.release = give;
    }
    CHECK_OK(fsdp_module_set_custom_all_gather(module, &both));
    both.run = reduce;
    CHECK_OK(fsdp_module_set_custom_reduce_scatter(module, &both));
}

/* ---- the same as without ---- */

typedef enum kind {
    PLAIN,
    ALWAYS,
    SLICES,
    HYBRID,
    LAST_DIMENSION,
    CHANNEL,
    KINDS
} kind;

static fsdp_module *create(fsdp_context *context, const way_run *run, caller *c)
{
    fsdp_shard_options options = run->options;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_mesh *mesh = NULL;

    options.reshard_after_forward = run->arg == ALWAYS ? FSDP_RESHARD_ALWAYS : FSDP_RESHARD_AUTO;
    options.reshard_after_forward_ranks = run->arg == SLICES && run->world == 4 ? 2 : 0;
    options.placement = run->arg == LAST_DIMENSION ? net_last_dimension : NULL;
    if (run->arg == HYBRID && run->world % 2 == 0)
        options.mesh = mesh = net_hybrid_mesh(context, run->world == 2 ? 1 : 2);
    net_shard(module, &options);
    fsdp_mesh_unref(mesh);
    for (int i = 0; c && i <= BLOCKS; i++)
        set(i < BLOCKS ? net_block_at(module, i) : module, c, i == 0);
    if (run->arg == CHANNEL)
        CHECK_OK(fsdp_module_set_separate_reduce_scatter_group(module, true, true));
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

static void train(way_run *run, fsdp_module *module)
{
    fsdp_optimizer *optimizer = ways_optimizer(module);
    int64_t before = 0;

    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, step == 1, true));
        ways_backward(run, module, 3 * step);
        CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        ways_backward(run, module, 3 * step + 1);
        ways_backward(run, module, 3 * step + 2); /* adds to what is there */
        note_gradients(run, module);
        ways_step(optimizer);
        ways_evaluate(run, module, step);
        CHECK_OK(fsdp_module_reshard_all(module));
        CHECK(before == 0 || test_live_bytes(module->context) == before);
        before = test_live_bytes(module->context);
    }
    ways_end(run, module, optimizer);
}

static void train_both(fsdp_context *context, way_run *run)
{
    notes *n = &run->notes[fsdp_context_rank(context)];
    int64_t backwards = STEPS * 3, half;
    caller c = {0};
    int inside = run->arg == HYBRID && run->world % 2 == 0 ? 2 : run->world;

    train(run, create(context, run, NULL));
    half = n->count;
    train(run, create(context, run, &c));
    CHECK_EQ(n->count, 2 * half);
    CHECK_BYTES(n->values + half, n->values, (size_t)half * sizeof(float));
    n->count = half; /* of some ways the gathers are others: the rest is as ever */
    CHECK_EQ(c.taken, c.given);
    CHECK_EQ(c.reductions, inside > 1 ? (backwards - 1) * (BLOCKS + 1) : 0);
    CHECK_EQ(c.gathers > 0, inside > 1);
    if (inside > 1) {
        CHECK_EQ(c.gathered, run->way->bf16 ? FSDP_BF16 : FSDP_F32);
        CHECK_EQ(c.reduced, FSDP_F32);
    }
}

static void train_one(fsdp_context *context, void *arg)
{
    train_both(context, arg);
}

TEST(nothing_else_changes)
{
    static const way ways[] = {{"f32, worker streams", false, false, FSDP_OVERLAP_WORKER},
                               {"bf16, inline", true, true, FSDP_OVERLAP_INLINE}};

    if (test_long())
        for (int k = 0; k < KINDS; k++)
            in_every_way_with(train_both, WAYS_RANKS_AGREE, k);
    for (int k = 0; k < KINDS; k++)
        for (int i = 0; i < 2 * 4; i++) {
            way_run run = {.way = &ways[i % 2], .world = 1 + i / 2, .arg = k};

            if (k != PLAIN && run.world < 3 + i % 2) /* 3 in f32, 4 in both */
                continue;
            run.options.no_shared_memory = run.way->copy;
            run.options.overlap = run.way->overlap;
            run.options.mp_policy.param_dtype = run.way->bf16 ? FSDP_BF16 : FSDP_DTYPE_NONE;
            test_run_ranks(run.world, train_one, &run);
            for (int r = 0; r < run.world; r++)
                free(run.notes[r].values);
        }
}

/* ---- several dtypes ---- */

typedef struct mixed {
    fsdp_module base;
    fsdp_tensor *wide, *narrow, *odd;
} mixed;

static fsdp_tensor *mixed_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    mixed *m = (mixed *)self;
    fsdp_tensor *y = fsdp_linear(inputs[0], m->wide, fsdp_cast(m->odd, FSDP_F32));

    (void)count;
    return fsdp_mean(
        fsdp_mul(y, fsdp_cast(fsdp_linear(fsdp_cast(inputs[0], FSDP_BF16), m->narrow, FSDP_NO_BIAS), FSDP_F32)));
}

static const fsdp_module_type mixed_type = {.name = "Mixed", .forward = mixed_forward};

static float *train_mixed(fsdp_context *context, caller *c, int64_t *count)
{
    const fsdp_init normal = {FSDP_INIT_NORMAL, 0, 1};
    fsdp_tensor *x, *targets;
    fsdp_module *module;
    float *values;
    mixed *m;

    CHECK_OK(fsdp_module_create(context, &mixed_type, sizeof *m, &m));
    module = &m->base;
    CHECK_OK(fsdp_module_add_parameter(module, "odd", &m->odd, fsdp_meta(context), FSDP_BF16, 1, (const int64_t[]){7},
                                       normal));
    CHECK_OK(fsdp_module_add_parameter(module, "wide", &m->wide, fsdp_meta(context), FSDP_F32, 2,
                                       (const int64_t[]){7, NET_IN}, normal));
    CHECK_OK(fsdp_module_add_parameter(module, "narrow", &m->narrow, fsdp_meta(context), FSDP_BF16, 2,
                                       (const int64_t[]){7, NET_IN}, normal));
    CHECK_OK(fsdp_fully_shard(module, &(fsdp_shard_options){.no_shared_memory = true}));
    if (c)
        set(module, c, true);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_scope_begin(context)); /* once: a second bf16 gradient would be rounded when it came, and as a sum */
    net_batch(context, 0, 3 * fsdp_context_rank(context), 3, &x, &targets);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, x))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_tensor_copy_(m->wide, fsdp_tensor_grad(m->wide)));
    CHECK_OK(fsdp_tensor_copy_(m->narrow, fsdp_tensor_grad(m->narrow)));
    CHECK_OK(fsdp_tensor_copy_(m->odd, fsdp_tensor_grad(m->odd)));
    values = net_values(module, count);
    fsdp_module_unref(module);
    return values;
}

WORLDS_TEST(several_dtypes_are_gathered_as_bytes_and_reduced_each, 2, 4)
{
    int64_t count;
    caller c = {0};
    float *own = train_mixed(context, NULL, &count), *custom = train_mixed(context, &c, &count);

    CHECK_BYTES(custom, own, (size_t)count * sizeof(float));
    CHECK(c.bytes);
    CHECK_EQ(c.reductions, 2);
    CHECK_EQ(c.taken, c.given);
    free(own);
    free(custom);
}

/* ---- memory ---- */

static size_t peak_of(fsdp_context *context, caller *c, bool own_memory)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), 0);
    fsdp_memory_stats memory;
    fsdp_tensor *x, *targets;

    net_shard(module, &(fsdp_shard_options){.no_shared_memory = true});
    if (c)
        set(module, c, own_memory);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    fsdp_device_reset_peak(test_device(context));
    fsdp_no_grad_begin(context);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_PTR(fsdp_call(module, x, targets));
    fsdp_scope_end(context, NULL);
    fsdp_no_grad_end(context);
    fsdp_device_memory(test_device(context), &memory);
    fsdp_module_unref(module);
    return memory.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER];
}

/* ---- refusals ---- */

WORLDS_TEST(what_cannot_be_custom_is_refused, 1, 3)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS), *head = ((net *)module)->head;
    fsdp_custom_collective custom = {.run = gather};
    bool one = fsdp_context_world_size(context) == 1;

    CHECK_ERROR(fsdp_module_set_custom_all_gather(NULL, &custom), FSDP_INVALID, "a module is required");
    CHECK_ERROR(fsdp_module_set_custom_all_gather(head, &custom), FSDP_STATE, "not given to fully_shard");
    CHECK_ERROR(fsdp_module_set_custom_reduce_scatter(head, &custom), FSDP_STATE, "not given to fully_shard");
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    if (one || !net_ranks_share(context))
        CHECK_OK(fsdp_module_set_custom_all_gather(module, &custom));
    else
        CHECK_ERROR(fsdp_module_set_custom_all_gather(module, &custom), FSDP_STATE,
                    "lies in memory that ranks share, where nothing is gathered");
    CHECK_OK(fsdp_module_set_custom_all_gather(module, NULL));
    custom.run = NULL;
    CHECK_ERROR(fsdp_module_set_custom_all_gather(module, &custom), FSDP_INVALID, "needs `run`");
    CHECK_ERROR(fsdp_module_set_custom_reduce_scatter(module, &custom), FSDP_INVALID, "needs `run`");
    custom.run = reduce;
    custom.allocate = take;
    CHECK_ERROR(fsdp_module_set_custom_reduce_scatter(module, &custom), FSDP_INVALID, "allocate and release");
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* The n-th call fails, on all ranks; then the step is made again, without. */
static void fail_at(fsdp_context *context, void *arg)
{
    const fsdp_shard_options *options = arg;
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    caller c = {0};

    net_shard(module, options);
    for (int i = 0; i <= BLOCKS; i++)
        set(i < BLOCKS ? net_block_at(module, i) : module, &c, true);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    for (int64_t i = 2; i <= 2 * (3 * (BLOCKS + 1) - 1) + 1; i++) {
        fsdp_tensor *x, *targets, *loss;
        int64_t n = i / 2;

        c = (caller){.failing = n, .late = i % 2};
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, 0, 0, 3, &x, &targets);
        loss = fsdp_call(module, x, targets);
        if (loss)
            CHECK_STATUS(fsdp_backward(loss), FSDP_IO);
        CHECK_CONTAINS(fsdp_last_error(), "the caller's");
        fsdp_scope_end(context, NULL);
        CHECK_OK(fsdp_module_reset_iteration(module));
        CHECK_EQ(c.taken, c.given);
        CHECK_EQ(c.gathers + c.reductions, n);
    }
    c = (caller){0};
    net_train(module, 1);
    CHECK_EQ(c.gathers, 2 * (BLOCKS + 1) - 1);
    CHECK_EQ(c.reductions, BLOCKS + 1);
    fsdp_module_unref(module);
}

TEST(what_fails_in_a_custom_collective_fails_the_step)
{
    fsdp_shard_options options[] = {{0}, {.overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_ranks(2, fail_at, &options[i]);
}

static void measure(fsdp_context *context, void *arg)
{
    size_t ranks = (size_t)fsdp_context_world_size(context), padded, own, custom, lent;
    fsdp_shard_info info;
    fsdp_module *module = net_create(context, fsdp_meta(context), 0);
    caller c = {0};

    (void)arg;
    net_shard(module, NULL);
    CHECK_OK(fsdp_module_shard_info(module, &info));
    padded = ((size_t)info.padded_numel * sizeof(float) + 63) / 64 * 64;
    fsdp_module_unref(module);
    own = peak_of(context, NULL, false);
    custom = peak_of(context, &c, false);
    lent = peak_of(context, &c, true);
    CHECK_EQ(lent, own);
    CHECK_EQ(custom, ranks > 1 ? own + padded : own);
}

TEST(the_packed_buffer_is_counted_where_it_is_the_devices)
{
    test_only_on_cpu("closed forms of memory");
    test_run_worlds(1, 3, measure, NULL);
}
