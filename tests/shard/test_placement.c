/* Parameters sharded in any dimension, each in its own, and over a mesh of its own.
 * Links: optim */
#include "shard/state/module_state.h"
#include "shard/ways.h"

/* ---- the net, sharded in dimensions of its own ---- */

typedef enum dims {
    LAST,    /* -1 */
    LARGEST, /* the first of the largest */
    BY_NAME, /* weights of "up" in dimension 1, the others in 0 */
    ALL_DIMS
} dims;

static int wanted_dim(dims how, const char *name, const fsdp_tensor *t)
{
    int largest = 0;

    for (int d = 1; d < fsdp_tensor_ndim(t); d++)
        largest = fsdp_tensor_shape(t)[d] > fsdp_tensor_shape(t)[largest] ? d : largest;
    if (how == BY_NAME)
        return strcmp(name, "up.weight") == 0;
    return how == LAST ? -1 : largest;
}

static fsdp_status place(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    CHECK_EQ(out->dim, 0);
    CHECK(out->mesh != NULL);
    out->dim = wanted_dim(*(const dims *)arg, name, t);
    return FSDP_OK;
}

static fsdp_module *placed_net(fsdp_context *context, const way_run *run, dims how, bool meta)
{
    fsdp_shard_options options = run->options;
    bool on_meta = run->way && meta;
    fsdp_module *module = net_create(context, on_meta ? fsdp_meta(context) : test_device(context), 2);

    if (!on_meta) /* with values before it is sharded */
        CHECK_OK(fsdp_module_initialize(module, 1));
    if (run->way) {
        options.placement = place;
        options.placement_arg = &how;
        net_shard(module, &options);
    }
    if (on_meta) {
        CHECK_OK(fsdp_module_materialize(module, test_device(context)));
        CHECK_OK(fsdp_module_initialize(module, 1));
    }
    return module;
}

/* Evaluation, accumulation, a write, a window, clipping: what happens before, between and after. */
static void train_placed(fsdp_context *context, way_run *run)
{
    fsdp_module *module = placed_net(context, run, (dims)(run->arg % ALL_DIMS), run->arg < ALL_DIMS);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(net_block_at(module, 0), "up.weight"));
    double norm;
    float loss;

    for (int step = 0; step < 2; step++) {
        loss = ways_evaluate(run, module, step); /* of this rank's rows: in a world of one of all */
        note(context, run, &loss, run->world == 1);
        dawdle(context, run);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, step);
        if (run->way) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
            CHECK_OK(fsdp_module_unshard(net_block_at(module, 1)));
            dawdle(context, run);
            CHECK_OK(fsdp_module_reshard(net_block_at(module, 1)));
        }
        ways_backward(run, module, step + 2);
        ways_backward(run, module, step + 4); /* adds to the shards' gradients */
        note_gradients(run, module);
        CHECK_OK(fsdp_clip_grad_norm(optimizer, 0.5, &norm));
        loss = (float)norm;
        note(context, run, &loss, 1);
        ways_step(optimizer);
        CHECK_OK(fsdp_tensor_fill_(weight, 0.125 * (step + 1)));
    }
    ways_end(run, module, optimizer);
}

TEST(any_dimension_trains_like_the_plain_model)
{
    for (int arg = 0; arg < ALL_DIMS; arg++)
        in_every_way_with(train_placed, WAYS_EQUAL_PLAIN, arg);
    in_every_way_with(train_placed, WAYS_EQUAL_PLAIN, ALL_DIMS + LAST);
}

/* ---- what a shard is ---- */

static void check_shard(fsdp_tensor *t, int dim, const int64_t *whole)
{
    const fsdp_distribution *d = CHECK_PTR(fsdp_tensor_distribution(t));
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    int world = fsdp_context_world_size(fsdp_device_context(fsdp_tensor_device(t)));
    int rank = fsdp_context_rank(fsdp_device_context(fsdp_tensor_device(t)));

    CHECK_EQ(d->placements[0].kind, FSDP_SHARD);
    CHECK_EQ(d->placements[0].dim, dim);
    CHECK(fsdp_tensor_is_contiguous(t));
    fsdp_tensor_box(t, offset, size);
    for (int i = 0; i < d->ndim; i++) {
        int64_t start = 0, length = i == dim ? fsdp_shard_range(whole[i], world, rank, &start) : whole[i];

        CHECK_EQ(d->global_shape[i], whole[i]);
        CHECK_EQ(size[i], length);
        CHECK_EQ(offset[i], start);
        CHECK_EQ(fsdp_tensor_shape(t)[i], length);
    }
}

static void look_at_shards(fsdp_context *context, void *arg)
{
    way_run run = {.way = &(way){.name = "shards"}, .world = 1, .options = *(fsdp_shard_options *)arg};
    fsdp_module *module = placed_net(context, &run, LAST, true), *block = net_block_at(module, 0);
    int64_t world = fsdp_context_world_size(context), up[2] = {NET_FFN, NET_DIM},
            in_rows = (NET_DIM + world - 1) / world;
    fsdp_tensor *weight = CHECK_PTR(fsdp_module_parameter(block, "up.weight"));
    fsdp_comm_stats stats;
    fsdp_shard_info info;
    int64_t live = 0;

    check_shard(weight, 1, up);
    CHECK_OK(fsdp_module_shard_info(block, &info));
    CHECK_EQ(info.shares_memory, false);
    CHECK_EQ(info.numel, 2 * NET_DIM * NET_FFN + NET_FFN + NET_DIM);
    for (int step = 0; step < 3; step++) {
        fsdp_context_reset_comm_stats(context);
        ways_backward(&run, module, step);
        check_shard(CHECK_PTR(fsdp_tensor_grad(weight)), 1, up);
        fsdp_module_zero_grad(module);
        if (step == 1)
            live = test_live_bytes(context);
    }
    CHECK_EQ(test_live_bytes(context), live);
    CHECK_OK(fsdp_module_unshard(block)); /* of what is counted as gathered */
    CHECK_OK(fsdp_module_reshard(block));
    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_module_unshard(block));
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], world > 1);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], 4 * (world - 1) *
                                                    (NET_FFN * in_rows + NET_DIM * ((NET_FFN + world - 1) / world) +
                                                     (NET_FFN + world - 1) / world + in_rows));
    CHECK_OK(fsdp_module_reshard(block));
    fsdp_module_unref(module);
}

TEST(shards_and_gradients_are_contiguous_and_say_their_dimension)
{
    for (int world = 1; world <= 4; world++)
        for (int copy = 0; copy < 2; copy++)
            test_run_ranks(world, look_at_shards, &(fsdp_shard_options){.no_shared_memory = copy});
}

/* ---- parameters over a mesh of their own ---- */

/* y = x * shared * expert: the gradients of ones are sums of x. */
typedef struct expert {
    fsdp_module base;
    fsdp_tensor *shared, *expert;
} expert;

static fsdp_tensor *expert_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    expert *e = (expert *)self;

    (void)count;
    return fsdp_sum(fsdp_mul(fsdp_mul(inputs[0], e->shared), e->expert));
}

static const fsdp_module_type expert_type = {.name = "Expert", .forward = expert_forward};

enum {
    EXPERT_NUMEL = 5
};

static fsdp_status place_expert(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)t;
    if (strcmp(name, "expert") == 0)
        out->mesh = arg;
    return FSDP_OK;
}

static fsdp_module *expert_create(fsdp_context *context, fsdp_mesh *mesh, const fsdp_shard_options *like)
{
    fsdp_shard_options options = *like;
    int64_t numel = EXPERT_NUMEL;
    expert *e;

    CHECK_OK(fsdp_module_create(context, &expert_type, sizeof *e, &e));
    CHECK_OK(fsdp_module_add_parameter(&e->base, "shared", &e->shared, test_device(context), FSDP_F32, 1, &numel,
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    CHECK_OK(fsdp_module_add_parameter(&e->base, "expert", &e->expert, test_device(context), FSDP_F32, 1, &numel,
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    options.placement = place_expert;
    options.placement_arg = mesh;
    CHECK_OK(fsdp_fully_shard(&e->base, &options));
    return &e->base;
}

static void check_gradient(fsdp_tensor *parameter, float expected)
{
    float values[EXPERT_NUMEL];

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(fsdp_tensor_grad(parameter)), FSDP_F32, values));
    for (int64_t i = 0; i < fsdp_tensor_numel(parameter); i++)
        CHECK_EQ(values[i], expected);
}

static void check_step(fsdp_module *module, float shared, float own)
{
    fsdp_context *context = module->context;
    int64_t numel = EXPERT_NUMEL;
    expert *e = (expert *)module;
    fsdp_comm_stats stats;

    fsdp_context_reset_comm_stats(context);
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_backward(CHECK_PTR(
        fsdp_call(module, fsdp_full(test_device(context), FSDP_F32, 1, &numel, fsdp_context_rank(context) + 1.0)))));
    fsdp_scope_end(context, NULL);
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], 2); /* one a mesh */
    check_gradient(e->shared, shared);
    check_gradient(e->expert, own);
    fsdp_module_zero_grad(module);
}

/* Four ranks, two experts, each over a pair of ranks. */
static void train_experts(fsdp_context *context, void *arg)
{
    int rank = fsdp_context_rank(context), pair = rank / 2;
    float own = pair == 0 ? 1.5f : 3.5f; /* the mean of x over the pair */
    fsdp_mesh *grid = NULL, *pairs = NULL;
    fsdp_module *module;
    expert *e;

    CHECK_OK(fsdp_mesh_create(context, 2, (const int64_t[]){2, 2}, (const char *const[]){"expert", "shard"}, &grid));
    CHECK_OK(fsdp_mesh_slice(grid, 1, (const char *const[]){"shard"}, &pairs));
    module = expert_create(context, pairs, arg);
    e = (expert *)module;
    CHECK_EQ(fsdp__module_state_of(module)->group_count, 2);
    CHECK_EQ(fsdp_tensor_numel(e->expert), rank % 2 == 0 ? 3 : 2);
    CHECK(fsdp_tensor_distribution(e->expert)->mesh == pairs);
    check_step(module, 2.5f, own);
    if (pair == 1) /* stale there, and only there, whatever is kept unsharded */
        CHECK_OK(fsdp_tensor_fill_(e->expert, 3.0));
    check_step(module, 6.0f, own);
    if (rank == 2)
        CHECK_OK(fsdp_module_reshard(module));
    CHECK_OK(fsdp_tensor_fill_(e->shared, 2.0));
    check_step(module, 6.0f, 2 * own);
    fsdp_module_unref(module);
    fsdp_mesh_unref(pairs);
    fsdp_mesh_unref(grid);
}

TEST(experts_lie_over_a_smaller_mesh)
{
    for (int i = 0; i < 8; i++)
        test_run_ranks(4, train_experts,
                       &(fsdp_shard_options){.no_shared_memory = i & 1,
                                             .overlap = i & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE,
                                             .reshard_after_forward = i & 4 ? FSDP_RESHARD_NEVER : FSDP_RESHARD_AUTO});
}

/* ---- refused ---- */

static fsdp_status place_at(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)t;
    if (strcmp(name, "up.bias") == 0)
        out->dim = *(const int *)arg;
    return FSDP_OK;
}

static fsdp_status place_nowhere(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)name, (void)t;
    if (!arg)
        return FSDP_FAIL(FSDP_STATE, "no place");
    out->mesh = NULL;
    return FSDP_OK;
}

CONTEXT_TEST(wrong_placements_are_refused)
{
    fsdp_module *block = net_block_create(context, test_device(context));
    fsdp_shard_options options = {.placement = place_at};
    int dim = 1;

    options.placement_arg = &dim;
    CHECK_ERROR(fsdp_fully_shard(block, &options), FSDP_INVALID, "cannot shard 'up.bias' in dimension 1: it has 1");
    dim = -2;
    CHECK_ERROR(fsdp_fully_shard(block, &options), FSDP_INVALID, "cannot shard 'up.bias' in dimension -2: it has 1");
    options.placement = place_nowhere;
    CHECK_ERROR(fsdp_fully_shard(block, &options), FSDP_INVALID, "cannot shard 'up.weight': it needs a mesh");
    options.placement_arg = NULL;
    CHECK_ERROR(fsdp_fully_shard(block, &options), FSDP_STATE, "no place");
    CHECK(!fsdp_module_is_sharded(block));
    fsdp_module_unref(block);
}

/* Of which every rank has columns, and no element. */
WORLDS_TEST(a_parameter_without_elements_is_summoned, 1, 4)
{
    const fsdp_linear_options no_bias = {.no_bias = true};
    fsdp_module *module = CHECK_PTR(fsdp_linear_create(context, test_device(context), 4, 0, &no_bias));

    CHECK_OK(fsdp_module_initialize(module, 1));
    CHECK_OK(fsdp_fully_shard(module, &(fsdp_shard_options){.placement = net_last_dimension}));
    CHECK_OK(fsdp_module_summon_full_params(module, NULL));
    CHECK_EQ(fsdp_tensor_shape(fsdp_module_parameter(module, "weight"))[1], 4);
    CHECK_OK(fsdp_module_end_summon(module));
    CHECK_OK(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.with_grads = true}));
    CHECK_OK(fsdp_module_end_summon(module));
    fsdp_module_unref(module);
}
