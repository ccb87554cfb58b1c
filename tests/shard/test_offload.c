/* Shards on the host. What every training mode gives with them is compared bit for bit by the tests that run in every
 * way (ways.c), and by the random ones (residences.c), on the device that the host cannot touch; here is what is not a
 * result: where things lie, what is refused, what happens beside the steps. Links: optim state */
#include "nn/module.h"
#include "shard/ways.h"

enum {
    BLOCKS = 2
};

static const fsdp_shard_options offload = {.offload_policy.cpu = true};

static void only_where_the_device_is_not_the_host(void)
{
    if (test_on_cpu())
        skip();
}

static size_t live(fsdp_device *device, fsdp_memory_kind kind)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    return stats.live_bytes[kind];
}

/* ---- where things lie ---- */

static void check_places(fsdp_context *context, void *arg)
{
    fsdp_device *host = fsdp_cpu(context), *device = test_device(context);
    fsdp_module *module = arg ? net_create(context, device, BLOCKS) : net_sharded(context, BLOCKS, &offload);
    fsdp_parameters parameters;
    fsdp_shard_info info;

    if (arg) { /* with values of the device's */
        CHECK_OK(fsdp_module_initialize(module, 1));
        net_shard(module, &offload);
    }
    CHECK_EQ(live(device, FSDP_MEMORY_PARAMETER_SHARD), 0);
    CHECK_OK(fsdp_module_shard_info(module, &info));
    CHECK(info.offloaded && !info.shares_memory);
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *shard = parameters.items[i].tensor;

        CHECK(fsdp_tensor_device(shard) == host);
        CHECK(fsdp_tensor_device(CHECK_PTR(fsdp_tensor_grad(shard))) == host);
    }
    CHECK_EQ(live(device, FSDP_MEMORY_GRADIENT), 0);
    CHECK_OK(fsdp_module_unshard(module));
    CHECK(fsdp_tensor_device(((net *)module)->head->parts->parameters[0].slot[0]) == device);
    CHECK_OK(fsdp_module_reshard(module));
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(module);
}

TEST(shards_and_gradients_lie_on_the_host)
{
    only_where_the_device_is_not_the_host();
    for (int world = 1; world <= 3; world++)
        for (int real = 0; real < 2; real++)
            test_run_ranks(world, check_places, real ? &real : NULL);
}

/* The same residence, the same memory. */
static void check_nothing_moves(fsdp_context *context, void *arg)
{
    fsdp_module *modules[] = {net_sharded(context, BLOCKS, &offload), net_sharded(context, BLOCKS, NULL)};
    fsdp_shard_info infos[2];

    (void)arg;
    for (int i = 0; i < 2; i++) {
        net_train(modules[i], 2);
        CHECK_OK(fsdp_module_shard_info(modules[i], &infos[i]));
        CHECK(!infos[i].offloaded);
        fsdp_module_unref(modules[i]);
    }
    CHECK_EQ(infos[0].shares_memory, infos[1].shares_memory);
}

TEST(where_the_device_is_the_host_nothing_moves)
{
    test_only_on_cpu("another device is not the host");
    test_run_worlds(1, 3, check_nothing_moves, NULL);
}

/* ---- what is refused ---- */

/* As one would who puts a tensor of the device in a shard's place. */
static void check_moved_shard(fsdp_context *context, void *arg)
{
    fsdp_module *module = net_sharded(context, BLOCKS, &offload);
    fsdp_tensor *shard = ((net *)module)->norm->parts->parameters[0].slot[0], *x, *targets;
    fsdp__storage *storage = shard->storage;
    char text[160];

    (void)arg;
    CHECK_OK(
        fsdp__storage_create(test_device(context), storage->bytes, FSDP_MEMORY_PARAMETER_SHARD, true, &shard->storage));
    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, 0, 0, 2, &x, &targets);
    CHECK_NULL(fsdp_call(module, x, targets));
    CHECK_EQ(fsdp_last_status(), FSDP_STATE);
    snprintf(text, sizeof text, "shards are on device '%s' and not on", fsdp_device_name(test_device(context)));
    if (fsdp_context_rank(context) == 0) /* all hear of rank 0's, and each may have a GPU of its own */
        CHECK_CONTAINS(fsdp_last_error(), text);
    CHECK_CONTAINS(fsdp_last_error(), "and not on device 'cpu', where they were put: 'norm.weight'");
    fsdp__storage_unref(shard->storage);
    shard->storage = storage;
    (void)CHECK_PTR(fsdp_call(module, x, targets));
    fsdp_scope_end(context, NULL);
    fsdp_module_unref(module);
}

TEST(a_shard_that_is_not_on_the_host_is_named_before_the_first_forward)
{
    only_where_the_device_is_not_the_host();
    test_run_ranks(2, check_moved_shard, NULL);
}

/* ---- beside the steps ---- */

/* What one would see who looks while results are on their way: all of it. */
static void look_between(fsdp_module *module, float *out)
{
    CHECK_OK(fsdp_module_set_is_last_backward(module, false));
    for (int micro = 0; micro < 3; micro++) { /* each is reduced, and added on the host */
        fsdp_tensor *gradient;

        net_forward_backward(module, 0, micro, 3);
        gradient =
            CHECK_PTR(fsdp_tensor_grad(((net_block *)net_block_at(module, 1))->up->parts->parameters[0].slot[0]));
        if (fsdp_tensor_numel(gradient) > 0)
            CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, out));
        out += NET_FFN * NET_DIM;
    }
    CHECK_OK(fsdp_module_set_is_last_backward(module, true));
    fsdp_module_zero_grad(module);
    net_train(module, 2);
}

/* What the host computes in the device's place has the same bits, where the device computes as the host does. */
static void check_alike(const float *actual, const float *expected, size_t count)
{
    if (test_has_cpu_bits())
        CHECK_BYTES(actual, expected, count * sizeof *actual);
    for (size_t i = 0; i < count; i++)
        CHECK_NEAR(actual[i], expected[i], 1e-5);
}

WORLDS_TEST(gradients_are_whole_whenever_one_looks, 1, 3)
{
    float seen[2][3 * NET_FFN * NET_DIM] = {{0}}, *values[2];
    int64_t count;

    for (int i = 0; i < 2; i++) {
        fsdp_shard_options options = i ? offload : (fsdp_shard_options){0};
        fsdp_module *module;

        options.overlap = FSDP_OVERLAP_WORKER;
        module = net_sharded(context, BLOCKS, &options);
        look_between(module, seen[i]);
        values[i] = net_values(module, &count);
        fsdp_module_unref(module);
    }
    check_alike(seen[1], seen[0], FSDP__COUNT_OF(seen[0]));
    check_alike(values[1], values[0], (size_t)count);
    free(values[0]);
    free(values[1]);
}

/* The model goes while its gradients, and an optimizer, stay; or before anything has arrived. */
WORLDS_TEST(the_model_may_go_before_its_gradients, 1, 3)
{
    fsdp_module *module = net_sharded(context, BLOCKS, &offload);
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.1, .momentum = 0.9}, &optimizer));
    fsdp_parameters_release(&parameters);
    CHECK_OK(fsdp_module_set_is_last_backward(module, false));
    net_forward_backward(module, 0, 0, 1);
    CHECK_OK(fsdp_module_unshard_async(module));
    fsdp_module_unref(module);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    fsdp_optimizer_free(optimizer);
}

/* ---- steps in the backward ---- */

typedef struct stepper {
    fsdp_module *module;
    fsdp_optimizer *optimizer;
    bool steps, fails;
    int calls;
    int64_t parameters;
} stepper;

static fsdp_status step_landed(void *arg, fsdp_tensor *const *parameters, int64_t count)
{
    stepper *s = arg;

    if (s->fails)
        return FSDP_FAIL(FSDP_STATE, "not today");
    s->calls++;
    s->parameters += count;
    for (int64_t i = 0; i < count; i++)
        CHECK_PTR(fsdp_tensor_grad(parameters[i]));
    return s->steps ? fsdp_optimizer_step_parameters(s->optimizer, parameters, count) : FSDP_OK;
}

static stepper make_stepper(fsdp_context *context, const way_run *run)
{
    stepper s = {.module = ways_net(context, run, BLOCKS, FSDP_RESHARD_AUTO)};
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(s.module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &s.optimizer));
    fsdp_parameters_release(&parameters);
    return s;
}

/* Three microbatches: one stays on the rank, one is reduced before, the last is stepped with. */
static void train_stepper(const way_run *run, stepper *s, bool early)
{
    for (int step = 0; step < 2; step++) {
        for (int micro = 0; micro < 3; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(s->module, micro > 0, true));
            CHECK_OK(fsdp_module_set_is_last_backward(s->module, micro == 2));
            s->steps = early && micro == 2;
            ways_backward(run, s->module, 3 * step + micro);
        }
        if (!early)
            CHECK_OK(fsdp_optimizer_step(s->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(s->optimizer));
    }
}

WAYS_TEST(a_group_stepped_when_its_gradients_land_gets_the_same_bits, WAYS_RANKS_AGREE)
{
    stepper late = make_stepper(context, run), early = make_stepper(context, run);

    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(early.module, step_landed, &early, true));
    train_stepper(run, &late, false);
    dawdle(context, run);
    train_stepper(run, &early, true);
    CHECK_EQ(early.calls, 2 * 2 * (BLOCKS + 1)); /* each group, in each backward that reduces */
    CHECK_EQ(early.parameters, 2 * 2 * (BLOCKS * 4 + 6));
    note_weights(run, late.module);
    note_weights(run, early.module);
    CHECK_BYTES(run->notes[fsdp_context_rank(context)].values,
                run->notes[fsdp_context_rank(context)].values + run->notes[fsdp_context_rank(context)].count / 2,
                (size_t)run->notes[fsdp_context_rank(context)].count / 2 * sizeof(float));
    /* A hook that fails ends the backward; without it all goes on. */
    early.fails = true;
    CHECK_OK(fsdp_scope_begin(context));
    CHECK_ERROR(fsdp_backward(ways_loss(run, early.module, 9)), FSDP_STATE, "not today");
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_module_reset_iteration(early.module));
    fsdp_module_zero_grad(early.module);
    CHECK_OK(fsdp_module_set_post_accumulate_grad_hook(early.module, NULL, NULL, true));
    train_stepper(run, &late, false);
    train_stepper(run, &early, false);
    note_weights(run, early.module);
    fsdp_optimizer_free(late.optimizer);
    fsdp_optimizer_free(early.optimizer);
    fsdp_module_unref(late.module);
    fsdp_module_unref(early.module);
}

CONTEXT_TEST(a_hook_is_for_sharded_modules)
{
    fsdp_module *module = net_create(context, test_device(context), 1);

    CHECK_STATUS(fsdp_module_set_post_accumulate_grad_hook(module, step_landed, NULL, true), FSDP_STATE);
    CHECK_STATUS(fsdp_module_set_post_accumulate_grad_hook(NULL, step_landed, NULL, true), FSDP_INVALID);
    fsdp_module_unref(module);
}
