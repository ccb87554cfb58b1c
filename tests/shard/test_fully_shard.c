/* The front door: what is refused, what a sharded module looks like, and the methods. */
#include "shard/net.h"

static const int worlds[] = {1, 2, 3, 4, 8};

enum {
    BLOCKS = 2
};

/* ---- refusals ---- */

WORLDS_TEST(what_cannot_be_sharded_is_refused, 1, 2)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS), *block = net_block_at(module, 0);
    fsdp_mp_policy odd = {.param_dtype = FSDP_I32}, odd_buffers = {.buffer_dtype = FSDP_I64};
    fsdp_tensor *x, *targets;

    CHECK_ERROR(fsdp_fully_shard(NULL, NULL), FSDP_INVALID, "null module");
    CHECK_ERROR(fsdp_fully_shard_modules(NULL, 0, NULL), FSDP_INVALID, "at least one module");
    CHECK_ERROR(fsdp_fully_shard(((net *)module)->blocks, NULL), FSDP_INVALID, "ModuleList");
    CHECK_ERROR(fsdp_fully_shard_modules((fsdp_module *const[]){block, block}, 2, NULL), FSDP_INVALID, "twice");
    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.mp_policy = odd}), FSDP_INVALID, "int32");
    CHECK_ERROR(fsdp_fully_shard(block, &(fsdp_shard_options){.mp_policy = odd_buffers}), FSDP_INVALID, "int64");
    CHECK(!fsdp_module_is_sharded(block));
    CHECK_ERROR(fsdp_module_unshard(block), FSDP_STATE, "not given to fully_shard");
    CHECK_OK(fsdp_fully_shard(block, NULL));
    CHECK_ERROR(fsdp_fully_shard(block, NULL), FSDP_STATE, "only once");
    CHECK_ERROR(fsdp_module_set_gradient_divide_factor(block, -1.0f), FSDP_INVALID, "divide factor");

    /* A nested module that has run as a root of its own cannot become part of another tree. */
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_PTR(fsdp_call(block, fsdp_zeros(test_device(context), FSDP_F32, FSDP_SHAPE(2, NET_DIM))));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(fsdp_call(module, x, targets));
    CHECK_CONTAINS(fsdp_last_error(), "blocks.0");
    CHECK_STATUS(fsdp_last_status(), FSDP_STATE);
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

/* Only the module that was sharded knows which rows a part of it holds. */
static void part(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_module *up = ((net_block *)net_block_at(module, 0))->up;

    (void)arg;
    net_shard(module, NULL);
    CHECK_ERROR(fsdp_module_materialize(up, test_device(context)), FSDP_STATE, "'weight': it is sharded with an outer");
    CHECK_OK(fsdp_module_materialize(module, test_device(context)));
    CHECK_ERROR(fsdp_module_initialize(up, 1), FSDP_STATE, "'weight': it is sharded with an outer");
    CHECK_OK(fsdp_module_initialize(module, 1));
    fsdp_module_unref(module);
}

TEST(a_part_of_a_sharded_module_gets_no_values_alone)
{
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], part, NULL);
}

RANKS_TEST(a_forward_before_materialisation_is_refused, 2)
{
    fsdp_module *module = net_create(context, fsdp_meta(context), BLOCKS);
    fsdp_tensor *x, *targets;

    net_shard(module, NULL);
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_NULL(fsdp_call(module, x, targets));
    CHECK_CONTAINS(fsdp_last_error(), "fsdp_module_materialize");
    fsdp_scope_end(context, NULL);
    CHECK_ERROR(fsdp_module_unshard(module), FSDP_STATE, "meta device");
    fsdp_module_unref(module);
}

/* ---- looks ---- */

static void looks(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_tensor *before = fsdp_module_parameter(module, "blocks.1.up.weight"), *after;
    const fsdp_distribution *distribution;
    int64_t world = fsdp_context_world_size(context), start, rows;
    fsdp_shard_info info;

    (void)arg;
    net_shard(module, NULL);
    after = fsdp_module_parameter(module, "blocks.1.up.weight");
    CHECK(after == before); /* the tensor keeps its identity: an optimizer may have been made already */
    distribution = CHECK_PTR(fsdp_tensor_distribution(after));
    CHECK_EQ(distribution->global_shape[0], NET_FFN);
    CHECK_EQ(distribution->global_shape[1], NET_DIM);
    rows = fsdp_shard_range(NET_FFN, world, fsdp_context_rank(context), &start);
    CHECK_EQ(fsdp_tensor_size(after, 0), rows);
    CHECK_EQ(fsdp_tensor_size(after, 1), NET_DIM);
    CHECK(fsdp_tensor_requires_grad(after));

    CHECK_OK(fsdp_module_shard_info(net_block_at(module, 1), &info));
    CHECK_EQ(info.parameter_count, 4);
    CHECK_EQ(info.numel, NET_FFN * NET_DIM * 2 + NET_FFN + NET_DIM);
    CHECK_EQ(info.state, FSDP_SHARDED);
    CHECK_NULL(info.name);
    CHECK_OK(fsdp_module_unshard(net_block_at(module, 1)));
    CHECK_OK(fsdp_module_unshard(net_block_at(module, 1))); /* costs nothing */
    CHECK_EQ(fsdp_tensor_size(fsdp_module_parameter(module, "blocks.1.up.weight"), 0), NET_FFN);
    CHECK_OK(fsdp_module_shard_info(net_block_at(module, 1), &info));
    CHECK_EQ(info.state, FSDP_UNSHARDED);
    CHECK_OK(fsdp_module_reshard(net_block_at(module, 1)));
    CHECK_OK(fsdp_module_reshard(net_block_at(module, 1)));
    CHECK(fsdp_module_parameter(module, "blocks.1.up.weight") == before);
    net_train(module, 1);
    CHECK_OK(fsdp_module_shard_info(net_block_at(module, 1), &info));
    CHECK_STRING(info.name, "blocks.1");
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK_STRING(info.name, "");
    fsdp_module_unref(module);
}

TEST(parameters_are_distributed_tensors_of_local_rows)
{
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], looks, NULL);
}

/* ---- values ---- */

typedef struct reference {
    float *values;
    int64_t count;
} reference;

static void initialise(fsdp_context *context, void *arg)
{
    const reference *r = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    int64_t count;
    float *values = net_values(module, &count);

    CHECK_EQ(count, r->count);
    CHECK_BYTES(values, r->values, (size_t)count * sizeof(float));
    free(values);
    fsdp_module_unref(module);
}

TEST(first_values_do_not_depend_on_the_world)
{
    reference r;

    r.values = net_expected(BLOCKS, 0, &r.count);
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], initialise, &r);
    free(r.values);
}

/* Two sequences, given to one call in both orders, that share a Linear; and each has another, tied to each other. */
static fsdp_module *sharing_create(fsdp_context *context, fsdp_module **sequences)
{
    const fsdp_linear_options options = {.no_bias = true, .weight_init = &(fsdp_init){FSDP_INIT_NORMAL, 1, 2}};
    fsdp_module *shared = fsdp_linear_create(context, test_device(context), 3, 3, NULL), *linears[2];

    for (int i = 0; i < 2; i++) {
        linears[i] = CHECK_PTR(fsdp_linear_create(context, test_device(context), 3, 3, &options));
        sequences[i] = CHECK_PTR(fsdp_sequential_create(context, (fsdp_module *[]){shared, linears[i]}, 2));
        shared = fsdp_module_ref(shared);
    }
    fsdp_module_unref(shared);
    CHECK_OK(fsdp_module_tie_parameter(linears[1], "tied", &((fsdp_layer *)linears[1])->bias,
                                       ((fsdp_layer *)linears[0])->weight));
    return CHECK_PTR(fsdp_sequential_create(context, sequences, 2));
}

static void initialise_shared(fsdp_context *context, void *arg)
{
    float *expected = NULL;

    (void)arg;
    for (int sharded = 0; sharded < 3; sharded++) {
        fsdp_module *two[2], *root = sharing_create(context, two), *turned[] = {two[1], two[0]};
        int64_t count;
        float *values;

        if (sharded)
            CHECK_OK(fsdp_fully_shard_modules(sharded == 1 ? two : turned, 2, NULL));
        CHECK_OK(fsdp_module_initialize(root, 3));
        values = net_values(root, &count);
        CHECK_EQ(count, 3 * 9 + 3);
        CHECK_BYTES(values, expected ? expected : values, (size_t)count * sizeof(float));
        fsdp_module_unref(root);
        if (sharded)
            free(values);
        else
            expected = values;
    }
    free(expected);
}

TEST(what_modules_of_a_call_share_has_its_first_name)
{
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], initialise_shared, NULL);
}

/* ---- frozen, tied, unused, repeated ---- */

WORLDS_TEST(a_frozen_group_is_gathered_but_not_reduced, 1, 3)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    fsdp_comm_stats stats;

    CHECK_OK(fsdp_module_set_requires_grad(net_block_at(module, 0), false));
    fsdp_context_reset_comm_stats(context);
    net_forward_backward(module, 0, 0, 1);
    fsdp_context_comm_stats(context, &stats);
    if (fsdp_context_world_size(context) > 1)
        CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], BLOCKS); /* not for the frozen block */
    CHECK_NULL(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.up.weight")));
    CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.1.up.weight")));
    CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "input.weight")));
    fsdp_module_zero_grad(module);
    CHECK_OK(fsdp_module_set_requires_grad(net_block_at(module, 0), true));
    net_forward_backward(module, 1, 0, 1);
    CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.up.weight")));
    fsdp_module_unref(module);
}

/* Two Linear(7,7) of one weight around each other, one of them used twice. */
typedef struct tied {
    fsdp_module base;
    fsdp_module *first, *second;
} tied;

static fsdp_tensor *tied_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    tied *t = (tied *)self;

    (void)count;
    return fsdp_mean(fsdp_call(t->second, fsdp_gelu(fsdp_call(t->first, fsdp_gelu(fsdp_call(t->first, inputs[0]))))));
}

static const fsdp_module_type tied_type = {.name = "Tied", .forward = tied_forward};

static fsdp_module *tied_create(fsdp_context *context)
{
    tied *t;
    fsdp_layer *second;

    CHECK_OK(fsdp_module_create(context, &tied_type, sizeof *t, &t));
    t->first = fsdp_linear_create(context, test_device(context), 7, 7, NULL);
    CHECK_OK(fsdp_module_add_child(&t->base, "first", t->first));
    CHECK_OK(fsdp_module_create(context, t->first->type, sizeof *second, &second));
    CHECK_OK(fsdp_module_tie_parameter(&second->base, "weight", &second->weight, ((fsdp_layer *)t->first)->weight));
    t->second = &second->base;
    CHECK_OK(fsdp_module_add_child(&t->base, "second", t->second));
    return &t->base;
}

static void train_tied(fsdp_module *module, float *out)
{
    fsdp_context *context = module->context;
    int64_t count;
    float x[14], *values;

    for (int i = 0; i < 14; i++)
        x[i] = (float)(i % 5) / 3.0f - 0.5f;
    CHECK_OK(fsdp_module_initialize(module, 3));
    for (int step = 0; step < 3; step++) {
        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(
            CHECK_PTR(fsdp_call(module, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(2, 7), x)))));
        fsdp_scope_end(context, NULL);
        net_sgd(module, 0.5f);
    }
    values = net_values(module, &count);
    CHECK_EQ(count, 7 * 7 + 7);
    memcpy(out, values, (size_t)count * sizeof(float));
    free(values);
}

static void tie(fsdp_context *context, void *arg)
{
    float values[56];
    fsdp_module *module = tied_create(context);
    tied *t = (tied *)module;

    CHECK_OK(fsdp_fully_shard(module, NULL));
    train_tied(module, values);
    CHECK_CLOSE(values, (const float *)arg, 56, 1e-5, 1e-6);
    CHECK(((fsdp_layer *)t->first)->weight == ((fsdp_layer *)t->second)->weight);
    fsdp_module_unref(module);

    module = tied_create(context); /* in two groups */
    CHECK_OK(fsdp_fully_shard(((tied *)module)->first, NULL));
    CHECK_OK(fsdp_fully_shard(module, NULL));
    train_tied(module, values);
    CHECK_CLOSE(values, (const float *)arg, 56, 1e-5, 1e-6);
    fsdp_module_unref(module);
}

TEST(tied_and_repeated_modules_equal_unsharded)
{
    fsdp_context *context = test_context();
    fsdp_module *module = tied_create(context);
    float expected[56];

    train_tied(module, expected);
    fsdp_module_unref(module);
    fsdp_context_free(context);
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], tie, expected);
}

/* Every rank uses both blocks, but the second one's output goes nowhere. */
static fsdp_tensor *skipping_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(n->input, inputs[0]);

    (void)count;
    x = fsdp_call(net_block_at(self, 0), x);
    if (!fsdp_call(net_block_at(self, 1), x))
        return NULL;
    return fsdp_cross_entropy(fsdp_call(n->head, fsdp_call(n->norm, x)), inputs[1]);
}

static const fsdp_module_type skipping_type = {.name = "Skipping", .forward = skipping_forward};

static void skip_block(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    fsdp_memory_stats stats;

    module->type = &skipping_type;
    for (int step = 0; step < 3; step++) {
        net_forward_backward(module, step, 0, 1);
        CHECK_NULL(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.1.up.weight")));
        CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(module, "blocks.0.up.weight")));
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_UNSHARDED_PARAMETER], 0); /* a prefetch for it has been let go */
        net_sgd(module, 0.1f);
    }
    fsdp_module_unref(module);
}

TEST(a_module_unused_in_the_backward_is_left_alone)
{
    fsdp_shard_options options[] = {{0}, {.no_shared_memory = true, .overlap = FSDP_OVERLAP_WORKER}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 3, skip_block, &options[i]);
}

/* ---- evaluation, failures, methods ---- */

static void evaluate(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, arg);
    float *before, *after;
    int64_t count;
    fsdp_tensor *x, *targets;

    before = net_values(module, &count);
    for (int i = 0; i < 3; i++) {
        fsdp_no_grad_begin(context);
        CHECK_OK(fsdp_scope_begin(context));
        net_batch(context, i, 0, 5, &x, &targets);
        CHECK_PTR(fsdp_call(module, x, targets));
        fsdp_scope_end(context, NULL);
        fsdp_no_grad_end(context);
    }
    CHECK_OK(fsdp_module_reshard_all(module)); /* without a backward the root stays whole */
    after = net_values(module, &count);
    net_check_same(after, before, count);
    net_train(module, 2);
    fsdp_module_unref(module);
}

TEST(evaluation_changes_nothing)
{
    fsdp_shard_options options[] = {{0}, {.mp_policy.param_dtype = FSDP_BF16}};

    for (size_t i = 0; i < FSDP__COUNT_OF(options); i++)
        test_run_worlds(1, 4, evaluate, &options[i]);
}

static void fail_and_recover(fsdp_context *context, void *arg)
{
    const reference *r = arg;
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    fsdp_tensor *x, *targets;
    int64_t count;
    float *values;

    CHECK_OK(fsdp_scope_begin(context)); /* a class that does not exist: every rank fails in the loss */
    net_batch(context, 0, 0, 3, &x, &targets);
    CHECK_OK(fsdp_tensor_fill_(targets, NET_OUT));
    CHECK_NULL(fsdp_call(module, x, targets));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_reset_iteration(module));
    net_train(module, 2);
    values = net_values(module, &count);
    CHECK_CLOSE(values, r->values, count, 1e-5, 1e-6);
    free(values);
    CHECK_ERROR(fsdp_module_reset_iteration(net_block_at(module, 0)), FSDP_STATE, "outermost");
    fsdp_module_unref(module);
}

TEST(training_goes_on_after_a_failed_forward)
{
    reference r;

    r.values = net_expected(BLOCKS, 2, &r.count);
    test_run_worlds(1, 3, fail_and_recover, &r);
    free(r.values);
}

static void divide(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, NULL);
    float world = (float)fsdp_context_world_size(context), mean[NET_FFN * NET_DIM], sum[NET_FFN * NET_DIM];
    fsdp_tensor *p = fsdp_module_parameter(module, "blocks.0.up.weight");

    (void)arg;
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(p), FSDP_F32, mean));
    fsdp_module_zero_grad(module);
    CHECK_OK(fsdp_module_set_gradient_divide_factor(net_block_at(module, 0), 1.0f));
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_tensor_read(fsdp_tensor_grad(p), FSDP_F32, sum));
    for (int64_t i = 0; i < fsdp_tensor_numel(p); i++)
        CHECK_NEAR(sum[i], mean[i] * world, 1e-6);
    fsdp_module_unref(module);
}

TEST(the_divide_factor_replaces_the_number_of_ranks)
{
    for (size_t w = 0; w < FSDP__COUNT_OF(worlds); w++)
        test_run_ranks(worlds[w], divide, NULL);
}
