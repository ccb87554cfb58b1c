/* FSDP1's front door: every strategy trains as the plain model does, with FSDP2's bits, and with PyTorch's collectives.
 */
#include "fsdp/fsdp1.h"

#include "shard/net.h"

enum {
    BLOCKS = 3,
    UNITS = BLOCKS + 1,
    STEPS = 3,
    STRATEGIES = 5,
    MICROS = 2
};

static bool is_hybrid(fsdp_sharding_strategy strategy)
{
    return strategy == FSDP_HYBRID_SHARD || strategy == FSDP_HYBRID_SHARD_ZERO2;
}

/* Each block, then the root; on the meta device. */
static void wrap_net(fsdp_module *module, const fsdp_fsdp1_options *options)
{
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), options));
    CHECK_OK(fsdp_fsdp1_wrap(module, options));
}

static fsdp_module *wrapped_net(fsdp_context *context, const fsdp_fsdp1_options *options)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);

    wrap_net(module, options);
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_OK(fsdp_module_initialize(module, 1));
    return module;
}

/* ---- what it trains ---- */

typedef struct parity {
    fsdp_fsdp1_options options;
    int replicas; /* of a hybrid strategy */
    bool no_sync; /* of two microbatches the first */
    int64_t count;
    const float *expected;
    float *first;  /* values of the first run in this world: FSDP2's */
    float *values; /* of this run, rank 0's */
} parity;

static void train(parity *p, fsdp_module *module)
{
    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < MICROS; micro++) {
            bool held = p->no_sync && micro < MICROS - 1;

            if (held)
                CHECK_OK(fsdp_fsdp1_no_sync_begin(module));
            net_forward_backward(module, step, micro, MICROS);
            if (held)
                CHECK_OK(fsdp_fsdp1_no_sync_end(module));
        }
        net_sgd(module, 0.1f);
    }
}

static void compare(fsdp_context *context, parity *p, fsdp_module *module)
{
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_EQ(count, p->count);
    CHECK_CLOSE(values, p->expected, count, 1e-5, 1e-6);
    if (p->first)
        CHECK_BYTES(values, p->first, (size_t)count * sizeof(float));
    if (fsdp_context_rank(context) == 0) {
        free(p->values);
        p->values = values;
        values = NULL;
    }
    free(values);
}

static void train_wrapped(fsdp_context *context, void *arg)
{
    parity *p = arg;
    fsdp_fsdp1_options options = p->options;
    fsdp_module *module;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* of a shard group of one rank */
    if (is_hybrid(options.strategy))
        options.mesh = net_hybrid_mesh(context, p->replicas);
    module = wrapped_net(context, &options);
    train(p, module);
    compare(context, p, module);
    fsdp_module_unref(module);
    fsdp_mesh_unref(options.mesh);
}

/* As FSDP1 trains it: where gradients add up is seen in the last bits. */
static void train_fully_sharded(fsdp_context *context, void *arg)
{
    parity *p = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);

    for (int step = 0; step < STEPS; step++) {
        for (int micro = 0; micro < MICROS; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, !p->no_sync || micro == MICROS - 1, true));
            net_forward_backward(module, step, micro, MICROS);
        }
        net_sgd(module, 0.1f);
    }
    compare(context, p, module);
    fsdp_module_unref(module);
}

/* The order of sums is the same but for replicas of several ranks. */
static void run_strategies(int world, parity *p)
{
    static const fsdp_backward_prefetch prefetches[] = {FSDP_BACKWARD_PRE, FSDP_BACKWARD_POST, FSDP_BACKWARD_NONE};

    test_run_ranks(world, train_fully_sharded, p);
    p->first = p->values;
    p->values = NULL;
    for (int variant = test_brief() ? 2 * STRATEGIES : 0; variant < STRATEGIES * 2 * 2; variant++) {
        p->options =
            (fsdp_fsdp1_options){.strategy = (fsdp_sharding_strategy)(variant % STRATEGIES),
                                 .no_shared_memory = variant / STRATEGIES % 2,
                                 .overlap = variant >= 2 * STRATEGIES ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_AUTO,
                                 .backward_prefetch = prefetches[variant % 3],
                                 .forward_prefetch = variant % 2};
        p->replicas = variant % 2 ? world : 1;
        test_run_ranks(world, train_wrapped, p);
    }
}

TEST(every_strategy_has_the_bits_of_fsdp2)
{
    int most = test_brief() ? 3 : 4;
    int64_t count;
    float *expected = net_expected(BLOCKS, STEPS, &count);

    for (int world = test_brief() ? 2 : 1; world <= most; world++)
        for (int no_sync = 0; no_sync < 2; no_sync++) {
            parity p = {.expected = expected, .count = count, .no_sync = no_sync};

            run_strategies(world, &p);
            free(p.first);
            free(p.values);
        }
    free(expected);
}

/* ---- collectives of a step ---- */

typedef struct counts {
    int64_t gathers, scatters, all_reduces;
} counts;

typedef struct expectation {
    fsdp_sharding_strategy strategy;
    int micros;
    bool no_sync;
    counts counts;
} expectation;

/* spec: n units; full n + n - 1 gathers. */
static const expectation cases[] = {
    {FSDP_FULL_SHARD, 1, false, {2 * UNITS - 1, UNITS, 0}},
    {FSDP_SHARD_GRAD_OP, 1, false, {UNITS, UNITS, 0}},
    {FSDP_NO_SHARD, 1, false, {0, 0, UNITS}},
    {FSDP_HYBRID_SHARD, 1, false, {2 * UNITS - 1, UNITS, UNITS}},
    {FSDP_HYBRID_SHARD_ZERO2, 1, false, {UNITS, UNITS, UNITS}},
    {FSDP_FULL_SHARD, 3, true, {3 * (2 * UNITS - 1), UNITS, 0}},
    {FSDP_FULL_SHARD, 3, false, {3 * (2 * UNITS - 1), 3 * UNITS, 0}},
    {FSDP_SHARD_GRAD_OP, 3, true, {UNITS, UNITS, 0}},
    {FSDP_SHARD_GRAD_OP, 3, false, {3 * UNITS, 3 * UNITS, 0}},
    {FSDP_NO_SHARD, 3, true, {0, 0, UNITS}},
    {FSDP_HYBRID_SHARD, 3, true, {3 * (2 * UNITS - 1), UNITS, UNITS}},
    {FSDP_HYBRID_SHARD_ZERO2, 3, true, {UNITS, UNITS, UNITS}},
};

static void count_collectives(fsdp_context *context, void *arg)
{
    const expectation *e = arg;
    fsdp_mesh *mesh = is_hybrid(e->strategy) ? net_hybrid_mesh(context, 2) : NULL;
    fsdp_module *module = wrapped_net(context, &(fsdp_fsdp1_options){.strategy = e->strategy, .mesh = mesh});
    int64_t live = 0;

    for (int step = 0; step < 3; step++) {
        fsdp_comm_stats stats;

        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < e->micros; micro++) {
            bool held = e->no_sync && micro < e->micros - 1;

            if (held)
                CHECK_OK(fsdp_fsdp1_no_sync_begin(module));
            net_forward_backward(module, step, micro, e->micros);
            if (held)
                CHECK_OK(fsdp_fsdp1_no_sync_end(module));
        }
        fsdp_context_comm_stats(context, &stats);
        CHECK_EQ(stats.calls[FSDP_ALL_GATHER], e->counts.gathers);
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], e->counts.scatters);
        CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], e->counts.all_reduces);
        net_sgd(module, 0.1f);
        CHECK(step == 0 || live == test_live_bytes(context));
        live = test_live_bytes(context);
    }
    fsdp_module_unref(module);
    fsdp_mesh_unref(mesh);
}

TEST(a_step_has_the_collectives_of_pytorch)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(cases); i++) {
        expectation e = cases[i];

        test_run_ranks(4, count_collectives, &e);
    }
}

/* ---- memory ---- */

typedef struct memory {
    fsdp_fsdp1_options options;
} memory;

typedef struct bytes {
    size_t whole, shard; /* of a unit's vector, padding included; rounded up to 64 */
    size_t cast;         /* the whole one in two bytes */
} bytes;

static bytes bytes_of(fsdp_module *module, int64_t ranks)
{
    fsdp_shard_info info;

    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK(info.padded_numel - info.numel < ranks + 4 * 3 * info.parameter_count); /* parameters at multiples of four */
    return (bytes){(size_t)(info.padded_numel * 4 + 63) / 64 * 64,
                   (size_t)(info.padded_numel / ranks * 4 + 63) / 64 * 64,
                   (size_t)(info.padded_numel * 2 + 63) / 64 * 64};
}

/* With FULL_SHARD the root and a block, and the block that is prefetched; with SHARD_GRAD_OP all. With NO_SHARD what
 * every rank has is all, and is kept once more in another dtype: nothing is gathered. */
static void check_memory(fsdp_context *context, void *arg)
{
    const fsdp_fsdp1_options *o = &((const memory *)arg)->options;
    int64_t ranks = o->strategy == FSDP_NO_SHARD ? 1 : fsdp_context_world_size(context);
    fsdp_module *module = wrapped_net(context, o);
    bytes root = bytes_of(module, ranks), block = bytes_of(net_block_at(module, 0), ranks);
    size_t shards = root.shard + BLOCKS * block.shard;
    size_t whole = root.whole + (o->strategy != FSDP_FULL_SHARD              ? BLOCKS
                                 : o->backward_prefetch == FSDP_BACKWARD_PRE ? 2
                                                                             : 1) *
                                    block.whole;
    size_t cast = 0;
    fsdp_device *device = test_device(context);
    fsdp_memory_stats stats;
    size_t live = 0;

    if (o->strategy == FSDP_NO_SHARD) {
        cast = o->mixed_precision.param_dtype ? root.cast + BLOCKS * block.cast : 0;
        whole = 0;
    }
    for (int step = 0; step < 4; step++) {
        fsdp_device_reset_peak(device);
        net_forward_backward(module, step, 0, 1);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], whole);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_PARAMETER_SHARD], shards + cast);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], shards);
        net_sgd(module, 0.1f);
        fsdp_device_memory(device, &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        CHECK(step < 2 || stats.live_total_bytes == live); /* no drift */
        live = stats.live_total_bytes;
    }
    fsdp_module_unref(module);
}

TEST(memory_is_the_closed_form)
{
    test_only_on_cpu("the closed form is that of a device in step with the host");
    test_only_on_one_machine("over several a forward gathers ahead by itself");
    for (int world = test_brief() ? 3 : 2; world <= 3; world++)
        for (int variant = 0; variant < 13; variant++) {
            memory m = {.options = {.strategy = (fsdp_sharding_strategy)(variant % 3),
                                    .backward_prefetch = (fsdp_backward_prefetch)(variant / 4),
                                    .use_orig_params = variant % 2,
                                    .no_shared_memory = variant / 2 % 2}};

            if (variant == 12)
                m.options = (fsdp_fsdp1_options){.strategy = FSDP_NO_SHARD, .mixed_precision.param_dtype = FSDP_BF16};
            test_run_ranks(world, check_memory, &m);
        }
}

/* ---- who communicates ---- */

typedef struct groups {
    fsdp_process_group *replicate, *shard;
} groups;

/* 4 ranks as 2 x 2. */
static groups make_groups(fsdp_context *context)
{
    int rank = fsdp_context_rank(context), row = rank / 2 * 2, column = rank % 2;
    groups g;

    CHECK_OK(fsdp_process_group_create(context, (const int[]){column, column + 2}, 2, "across", &g.replicate));
    CHECK_OK(fsdp_process_group_create(context, (const int[]){row, row + 1}, 2, "inside", &g.shard));
    return g;
}

static float *train_with(fsdp_context *context, const fsdp_fsdp1_options *options, int64_t *count)
{
    fsdp_module *module = wrapped_net(context, options);
    float *values;

    net_train(module, STEPS);
    values = net_values(module, count);
    fsdp_module_unref(module);
    return values;
}

RANKS_TEST(groups_and_meshes_are_the_same, 4)
{
    groups g = make_groups(context);
    fsdp_mesh *hybrid = net_hybrid_mesh(context, 2), *flat = NULL;
    const fsdp_fsdp1_options pairs[][2] = {
        {{.strategy = FSDP_HYBRID_SHARD, .mesh = hybrid},
         {.strategy = FSDP_HYBRID_SHARD, .process_group = g.shard, .replicate_group = g.replicate}},
        {{.strategy = FSDP_FULL_SHARD}, {.strategy = FSDP_FULL_SHARD, .process_group = fsdp_world(context)}},
        {{.strategy = FSDP_NO_SHARD}, {.strategy = FSDP_NO_SHARD, .process_group = fsdp_world(context)}},
        {{.strategy = FSDP_NO_SHARD}, {.strategy = FSDP_NO_SHARD, .mesh = NULL}},
    };
    int64_t world = fsdp_context_world_size(context);

    CHECK_OK(fsdp_mesh_create(context, 1, &world, NULL, &flat));
    for (size_t i = 0; i < FSDP__COUNT_OF(pairs); i++) {
        fsdp_fsdp1_options second = pairs[i][1];
        int64_t count;
        float *one, *other;

        second.mesh = i == 3 ? flat : NULL;
        one = train_with(context, &pairs[i][0], &count);
        other = train_with(context, &second, &count);
        net_check_same(one, other, count);
    }
    fsdp_mesh_unref(flat);
    fsdp_mesh_unref(hybrid);
    fsdp_process_group_free(g.shard);
    fsdp_process_group_free(g.replicate);
}

/* ---- misuse ---- */

static void try_no_sync(void *arg, fsdp_module *module, fsdp_shard_event event)
{
    if (event == FSDP_EVENT_PRE_FORWARD || event == FSDP_EVENT_PRE_BACKWARD) {
        const char *expected = event == FSDP_EVENT_PRE_FORWARD ? "while a forward runs" : "while a backward runs";

        (void)module;
        CHECK_ERROR(fsdp_fsdp1_no_sync_begin(arg), FSDP_STATE, expected);
    }
}

static void check_misuse(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 0);
    fsdp_process_group *pg = fsdp_world(context);
    fsdp_mesh *hybrid = net_hybrid_mesh(context, 2);
    fsdp_fsdp1_options both = {.process_group = pg, .mesh = hybrid};

    (void)arg;
    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_ERROR(fsdp_fsdp1_wrap(NULL, NULL), FSDP_INVALID, "needs a module");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.strategy = (fsdp_sharding_strategy)7}), FSDP_INVALID,
                "7 is not a sharding strategy");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.backward_prefetch = (fsdp_backward_prefetch)3}),
                FSDP_INVALID, "3 is not a backward prefetch");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &both), FSDP_INVALID, "not both");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.strategy = FSDP_HYBRID_SHARD}), FSDP_INVALID,
                "HYBRID_SHARD needs a pair of process groups");
    CHECK_ERROR(
        fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.strategy = FSDP_HYBRID_SHARD_ZERO2, .process_group = pg}),
        FSDP_INVALID, "_HYBRID_SHARD_ZERO2 needs a pair");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.mesh = hybrid}), FSDP_INVALID,
                "FULL_SHARD takes a mesh of one dimension, and this one has 2");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.process_group = pg, .replicate_group = pg}),
                FSDP_INVALID, "a pair is for HYBRID_SHARD");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.ignored_module_count = 1}), FSDP_INVALID,
                "no list of them");
    CHECK_ERROR(fsdp_fsdp1_no_sync_begin(module), FSDP_STATE, "was not given");
    CHECK_OK(fsdp_module_to(((net_block *)(void *)block)->up, FSDP_BF16));
    CHECK_ERROR(fsdp_fsdp1_wrap(block, NULL), FSDP_INVALID,
                "its 'up.weight' is bfloat16, and 'down.weight' is float32");
    CHECK_OK(fsdp_module_to(((net_block *)(void *)block)->up, FSDP_F32));
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(block, "up.bias"), false));
    CHECK_ERROR(fsdp_fsdp1_wrap(block, NULL), FSDP_INVALID, "its 'up.bias' is frozen and its 'up.weight' is not");
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(block, "up.bias"), true));
    CHECK_OK(fsdp_fsdp1_wrap(block, NULL));
    CHECK_ERROR(fsdp_fsdp1_wrap(block, NULL), FSDP_STATE, "once per module");
    CHECK_ERROR(fsdp_fsdp1_wrap(module, &(fsdp_fsdp1_options){.ignored_modules = &block, .ignored_module_count = 1}),
                FSDP_INVALID, "has been wrapped");
    CHECK_OK(fsdp_fsdp1_wrap(module, NULL));
    CHECK_ERROR(fsdp_fsdp1_no_sync_end(module), FSDP_STATE, "has not begun");
    CHECK_ERROR(fsdp_fsdp1_no_sync_begin(block), FSDP_STATE, "to the outermost wrapped module, not to 'blocks.0'");
    CHECK_OK(fsdp_module_set_shard_listener(module, try_no_sync, module));
    net_forward_backward(module, 0, 0, 1);
    fsdp_module_unref(module);
    fsdp_mesh_unref(hybrid);
}

/* Before the first forward. */
static void check_alike(fsdp_context *context, void *arg)
{
    static const char *const names[] = {"another use_orig_params", "another no_limit_all_gathers"};

    (void)arg;
    for (int i = 0; i < 2; i++) {
        fsdp_module *module = net_create(context, test_device(context), BLOCKS);

        CHECK_OK(fsdp_module_initialize(module, 1));
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, 1),
                                 &(fsdp_fsdp1_options){.use_orig_params = i == 0, .no_limit_all_gathers = i == 1}));
        CHECK_OK(fsdp_fsdp1_wrap(module, NULL));
        CHECK_ERROR(fsdp_fsdp1_no_sync_begin(module), FSDP_STATE, names[i]);
        fsdp_module_unref(module);
    }
}

TEST(misuse_is_an_error_on_all_ranks)
{
    test_run_ranks(2, check_misuse, NULL);
    test_run_ranks(2, check_alike, NULL);
}
