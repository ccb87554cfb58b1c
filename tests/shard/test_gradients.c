/* Gradients of sharded parameters: distributed like them, seen by hooks once reduced, dropped with all that waits to be
 * reduced, and only where there can be one.
 * Links: optim */
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static fsdp_tensor *shard_at(fsdp_module *module, const char *name)
{
    return CHECK_PTR(fsdp_module_parameter(module, name));
}

static void note_gradient(way_run *run, const fsdp_tensor *parameter)
{
    fsdp_tensor *whole;

    CHECK_OK(fsdp_full_tensor(CHECK_PTR(fsdp_tensor_grad(parameter)), &whole));
    note_tensor(run, whole);
    fsdp_tensor_unref(whole);
}

/* ---- distributed ---- */

WAYS_TEST(gradients_of_shards_are_distributed_like_them, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_parameters shards;

    CHECK_OK(fsdp_module_parameters(module, &shards));
    for (int step = 0; step < 2; step++) { /* made, and added to */
        ways_backward(run, module, step);
        dawdle(context, run);
        for (int64_t i = 0; i < shards.count; i++) {
            const fsdp_tensor *p = shards.items[i].tensor, *gradient = CHECK_PTR(fsdp_tensor_grad(p));
            const fsdp_distribution *d = fsdp_tensor_distribution(gradient);

            if (run->way) {
                CHECK(d != NULL && d->mesh == fsdp_tensor_distribution(p)->mesh);
                CHECK_BYTES(d->global_shape, fsdp_tensor_distribution(p)->global_shape,
                            (size_t)d->ndim * sizeof(int64_t));
            }
            CHECK_EQ(fsdp_tensor_numel(gradient), fsdp_tensor_numel(p));
            note_gradient(run, p);
        }
    }
    fsdp_parameters_release(&shards);
    fsdp_module_unref(module);
}

/* Element (i, j) of a gradient of blocks.0.up.weight, set by the caller. */
static float given(int64_t i, int64_t j)
{
    return (float)(i * 3 + j) / 50.0f - 0.2f;
}

/* The rows of `p`, in strides if asked for. Belongs to the scope. */
static fsdp_tensor *given_gradient(fsdp_tensor *p, bool strided)
{
    int64_t offset[FSDP_MAX_DIMS], size[FSDP_MAX_DIMS];
    float values[NET_FFN * NET_DIM];
    fsdp_tensor *gradient;

    fsdp_tensor_box(p, offset, size);
    for (int64_t i = 0; i < size[0]; i++)
        for (int64_t j = 0; j < NET_DIM; j++)
            values[strided ? j * size[0] + i : i * NET_DIM + j] = given(offset[0] + i, j);
    if (!strided)
        return fsdp_from_data(fsdp_tensor_device(p), FSDP_F32, FSDP_SHAPE(size[0], NET_DIM), values);
    gradient = fsdp_from_data(fsdp_tensor_device(p), FSDP_F32, FSDP_SHAPE(NET_DIM, size[0]), values);
    return fsdp_transpose(gradient, 0, 1);
}

static void set_gradient(fsdp_context *context, way_run *run)
{
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_tensor *p = shard_at(module, "blocks.0.up.weight");

    CHECK_OK(fsdp_scope_begin(context));
    CHECK_OK(fsdp_tensor_set_grad(p, CHECK_PTR(given_gradient(p, run->arg))));
    fsdp_scope_end(context, NULL);
    for (int step = 0; step < 2; step++) {
        ways_backward(run, module, step);
        dawdle(context, run);
        if (run->way)
            CHECK_PTR(fsdp_tensor_distribution(fsdp_tensor_grad(p)));
        note_gradient(run, p);
    }
    fsdp_module_unref(module);
}

TEST(a_gradient_that_the_caller_set_is_added_to)
{
    for (int strided = 0; strided < 2; strided++)
        in_every_way_with(set_gradient, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, strided);
}

WORLDS_TEST(a_parameter_with_a_gradient_cannot_be_sharded, 1, 3)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);

    net_forward_backward(module, 0, 0, 1);
    CHECK_ERROR(fsdp_fully_shard(net_block_at(module, 0), NULL), FSDP_STATE, "'weight'");
    CHECK_CONTAINS(fsdp_last_error(), "gradient");
    CHECK(!fsdp_module_is_sharded(net_block_at(module, 0)));
    fsdp_module_zero_grad(module);
    net_shard(module, NULL);
    net_train(module, 1);
    fsdp_module_unref(module);
}

/* ---- hooks ---- */

typedef struct watched {
    fsdp_tensor *parameter;
    way_run *run;
    int fired;
    bool twice;
} watched;

static fsdp_status watch(void *arg, fsdp_tensor *tensor, fsdp_tensor **grad)
{
    watched *w = arg;

    CHECK(tensor == w->parameter);
    CHECK_EQ(fsdp_tensor_numel(*grad), fsdp_tensor_numel(tensor));
    if (w->run->way) {
        CHECK_PTR(fsdp_tensor_distribution(*grad));
        note_tensor(w->run, *grad); /* this rank's rows of the reduced one */
    }
    w->fired++;
    if (w->twice)
        *grad = CHECK_PTR(fsdp_scale(*grad, 2.0));
    return FSDP_OK;
}

static void watch_gradients(fsdp_context *context, way_run *run)
{
    static const char *const names[] = {"head.weight", "blocks.1.up.bias", "blocks.0.down.weight"};
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    watched w[FSDP__COUNT_OF(names)];
    int expected = 0;

    for (size_t i = 0; i < FSDP__COUNT_OF(names); i++) {
        w[i] = (watched){.parameter = shard_at(module, names[i]), .run = run, .twice = i != 1 && run->arg};
        CHECK_OK(fsdp_tensor_add_grad_hook(w[i].parameter, watch, &w[i]));
    }
    for (int step = 0; step < 4; step++) {
        if (run->way) /* step 2 is reduced with step 3 */
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, step != 2, true));
        ways_backward(run, module, step);
        dawdle(context, run);
        expected += !run->way || step != 2;
        for (size_t i = 0; i < FSDP__COUNT_OF(names); i++)
            CHECK_EQ(w[i].fired, expected);
        if (step == 1 || step == 3)
            ways_step(optimizer);
    }
    if (!run->arg || !run->way)
        note_weights(run, module);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

/* The same without notes of the hooks, to compare with plain. */
static void double_gradients(fsdp_context *context, way_run *run)
{
    way_run quiet = *run;
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    watched w = {.parameter = shard_at(module, "head.weight"), .run = &quiet, .twice = true};

    quiet.way = NULL;
    CHECK_OK(fsdp_tensor_add_grad_hook(w.parameter, watch, &w));
    for (int step = 0; step < 4; step++) {
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, step != 2, true));
        ways_backward(run, module, step);
        if (step != 2)
            ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(hooks_see_each_reduced_gradient_once_and_may_replace_it)
{
    for (int twice = 0; twice < 2; twice++)
        in_every_way_with(watch_gradients, WAYS_ALONE, twice);
    in_every_way(double_gradients, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN);
}

/* ---- dropped ---- */

static void drop_all(fsdp_module *module, fsdp_optimizer *optimizer, int how)
{
    fsdp_parameters shards;

    if (how == 0) {
        fsdp_module_zero_grad(module);
        return;
    }
    if (how == 1) {
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        return;
    }
    CHECK_OK(fsdp_module_parameters(module, &shards));
    for (int64_t i = 0; i < shards.count; i++)
        CHECK_OK(fsdp_tensor_set_grad(shards.items[i].tensor, NULL));
    fsdp_parameters_release(&shards);
}

/* Kept as they are computed, or in the reduce dtype. */
static void drop_kept(fsdp_context *context, way_run *run)
{
    fsdp_shard_options options = run->options;
    fsdp_optimizer *optimizer;
    fsdp_module *module;
    fsdp_memory_stats stats;

    if (run->arg >= 3)
        options.mp_policy.reduce_dtype = run->way && run->way->bf16 ? FSDP_F32 : FSDP_BF16;
    module = run->way ? net_sharded(context, BLOCKS, &options) : ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    optimizer = ways_optimizer(module);
    for (int step = 0; step < 2; step++) {
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, false, true));
        ways_backward(run, module, 7);
        dawdle(context, run);
        ways_backward(run, module, 8);
        drop_all(module, optimizer, run->arg % 3);
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        if (run->way)
            CHECK_OK(fsdp_module_set_requires_gradient_sync(module, true, true));
        ways_backward(run, module, step);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(gradients_that_wait_to_be_reduced_can_be_dropped)
{
    for (int how = 0; how < 3; how++)
        in_every_way_with(drop_kept, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN, how);
    for (int how = 3; how < 6; how++)
        in_every_way_with(drop_kept, WAYS_RANKS_AGREE, how);
}

/* ---- memory ---- */

static size_t rounded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Returns whether a rank that is alone has one place for a gradient and the shard's. */
static bool lies_there(const way_run *run, const fsdp_tensor *shard)
{
    fsdp_device *device = fsdp_tensor_device(shard);

    return run->world == 1 && (!run->way->bf16 || fsdp__device_wide_gradients(device)) &&
           device == test_device(fsdp_device_context(device));
}

/* One bias is trained. */
static void train_little(fsdp_context *context, way_run *run)
{
    size_t chunk = (size_t)(NET_DIM + run->world - 1) / (size_t)run->world;
    size_t whole = rounded(chunk * (size_t)run->world * (run->way->bf16 ? 2 : 4)), shard = rounded(chunk * 4);
    fsdp_module *module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO);
    const char *name = run->arg ? "norm.bias" : "blocks.0.down.bias";
    fsdp_memory_stats stats;

    CHECK_OK(fsdp_module_set_requires_grad(module, false));
    CHECK_OK(fsdp_tensor_set_requires_grad(shard_at(module, name), true));
    for (int step = 0; step < 2; step++) {
        fsdp_device_reset_peak(test_device(context));
        ways_backward(run, module, step);
        fsdp_device_memory(test_device(context), &stats);
        CHECK_EQ(stats.peak_bytes[FSDP_MEMORY_GRADIENT],
                 lies_there(run, shard_at(module, name)) ? shard : whole + shard);
        fsdp_device_memory(fsdp_tensor_device(shard_at(module, name)), &stats); /* the host, where it is offloaded */
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], shard);
        note_gradient(run, shard_at(module, name));
        fsdp_module_zero_grad(module);
    }
    fsdp_module_unref(module);
}

TEST(frozen_parameters_take_no_gradient_memory)
{
    for (int root = 0; root < 2; root++)
        in_every_way_with(train_little, WAYS_RANKS_AGREE, root);
}

static fsdp_tensor *fused_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    net *n = (net *)self;
    fsdp_tensor *x = fsdp_call(net_block_at(self, 0), fsdp_call(n->input, inputs[0]));

    (void)count;
    return fsdp_linear_cross_entropy(fsdp_call(n->norm, x), ((fsdp_layer *)n->head)->weight, inputs[1]);
}

static const fsdp_module_type fused_type = {.name = "Net", .forward = fused_forward};

WAYS_TEST(a_fused_head_whose_loss_is_dropped_keeps_no_gradient, WAYS_RANKS_AGREE | WAYS_EQUAL_PLAIN)
{
    fsdp_module *module = ways_net(context, run, 1, FSDP_RESHARD_AUTO);
    fsdp_optimizer *optimizer = ways_optimizer(module);
    fsdp_memory_stats stats;

    module->type = &fused_type;
    for (int step = 0; step < 2; step++) {
        for (int i = 0; i < 2; i++) {
            CHECK_OK(fsdp_scope_begin(context));
            (void)ways_loss(run, module, 5);
            fsdp_scope_end(context, NULL);
            dawdle(context, run);
            fsdp_device_memory(test_device(context), &stats);
            CHECK_EQ(stats.live_bytes[FSDP_MEMORY_GRADIENT], 0);
        }
        ways_backward(run, module, step);
        ways_step(optimizer);
        note_weights(run, module);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}
