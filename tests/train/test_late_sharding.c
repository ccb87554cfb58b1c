/* An optimizer and fully_shard, in every order: made and stepped before, made while gathered, on dtypes it cannot. */
#include "optim/optim.h"

#include "device/device.h"
#include "fsdp/dist.h"
#include "shard/net.h"
#include "tensor/tensor.h"

typedef enum algorithm {
    SGD,
    ADAMW
} algorithm;

enum {
    BLOCKS = 2,
    BATCH = 6 /* the same rows on every rank */
};

typedef struct late {
    algorithm kind;
    fsdp_shard_options options;
} late;

static fsdp_module *late_net(fsdp_context *context, const late *l, fsdp_optimizer **optimizer)
{
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true};
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(module, 3));
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    if (l->kind == SGD)
        CHECK_OK(fsdp_sgd_create(&parameters, &sgd, optimizer));
    else
        CHECK_OK(fsdp_adamw_create(&parameters, &adam, optimizer));
    fsdp_parameters_release(&parameters);
    return module;
}

static void late_backward(fsdp_module *module, int step)
{
    fsdp_context *context = module->context;
    fsdp_tensor *x, *targets;

    CHECK_OK(fsdp_scope_begin(context));
    net_batch(context, step, 0, BATCH, &x, &targets);
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_call(module, x, targets))));
    fsdp_scope_end(context, NULL);
}

/* A host copy; free() it. */
static float *floats_of(const fsdp_tensor *tensor)
{
    float *values = malloc((size_t)fsdp_tensor_numel(tensor) * sizeof *values + 1);

    CHECK(values != NULL);
    CHECK_OK(fsdp_tensor_read(tensor, FSDP_F32, values));
    return values;
}

/* What an average over ranks with the same gradients gives: W sums and a division, not always the same bits. */
static void average_alone(const fsdp_optimizer *optimizer, int world)
{
    for (int64_t i = 0; i < optimizer->groups[0].count; i++) {
        fsdp_tensor *grad = fsdp_tensor_grad(optimizer->groups[0].params[i].tensor);
        float *g = floats_of(grad);

        for (int64_t k = 0; k < fsdp_tensor_numel(grad); k++) {
            float sum = g[k];

            for (int r = 1; r < world; r++)
                sum += g[k];
            g[k] = sum / (float)world;
        }
        CHECK_OK(fsdp_tensor_write(grad, FSDP_F32, g));
        free(g);
    }
}

static void late_step(fsdp_optimizer *optimizer)
{
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
}

static void check_late_bits(const fsdp_optimizer *sharded, const fsdp_optimizer *plain)
{
    for (int64_t i = 0; i < plain->groups[0].count; i++) {
        const fsdp_tensor *whole = plain->groups[0].params[i].tensor;
        fsdp_tensor *full = NULL;
        float *values, *expected;

        CHECK_OK(fsdp_full_tensor(sharded->groups[0].params[i].tensor, &full));
        CHECK(fsdp__shape_equal(full, whole));
        values = floats_of(full);
        expected = floats_of(whole);
        if (test_has_cpu_bits())
            CHECK_BYTES(values, expected, (size_t)fsdp_tensor_numel(full) * sizeof(float));
        else
            CHECK_CLOSE(values, expected, fsdp_tensor_numel(full), 1e-4, 1e-6);
        free(values);
        free(expected);
        fsdp_tensor_unref(full);
    }
}

/* Bytes that the moments take, when all are local. */
static int64_t check_local_moments(const fsdp_optimizer *optimizer)
{
    int64_t bytes = 0;

    for (int64_t i = 0; i < optimizer->groups[0].count; i++) {
        const fsdp__optimizer_param *p = &optimizer->groups[0].params[i];
        const fsdp_tensor *moments[] = {p->moment1, p->moment2};

        for (int m = 0; m < (optimizer->groups[0].kind == FSDP__OPTIMIZER_SGD ? 1 : 2); m++) {
            CHECK(fsdp__shape_equal(moments[m], p->tensor));
            CHECK_EQ(moments[m]->storage->kind, FSDP_MEMORY_OPTIMIZER_STATE);
            CHECK_EQ(moments[m]->storage->bytes, (size_t)fsdp_tensor_numel(p->tensor) * sizeof(float));
            bytes += (int64_t)fsdp__device_rounded(moments[m]->storage->bytes);
        }
    }
    return bytes;
}

static int64_t state_bytes(fsdp_context *context)
{
    fsdp_memory_stats device, host = {.live_total_bytes = 0};

    fsdp_device_memory(test_device(context), &device);
    if (!test_on_cpu())
        fsdp_device_memory(fsdp_cpu(context), &host);
    return (int64_t)(device.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE] + host.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE]);
}

static void check_late(fsdp_context *context, void *arg)
{
    const late *l = arg;
    int world = fsdp_context_world_size(context);
    fsdp_optimizer *alone = NULL, *optimizer = NULL;
    fsdp_module *plain, *module;
    int64_t whole;

    plain = late_net(context, l, &alone);
    for (int step = 0; step < 2; step++) {
        late_backward(plain, step);
        late_step(alone);
    }
    whole = state_bytes(context);
    module = late_net(context, l, &optimizer);
    for (int step = 0; step < 2; step++) {
        late_backward(module, step);
        late_step(optimizer);
    }
    CHECK_EQ(state_bytes(context), 2 * whole);
    net_shard(module, &l->options);
    for (int step = 2; step < 6; step++) {
        late_backward(plain, step);
        late_backward(module, step);
        average_alone(alone, world);
        late_step(alone);
        late_step(optimizer);
        check_late_bits(optimizer, alone);
        CHECK_EQ(state_bytes(context), whole + check_local_moments(optimizer));
    }
    fsdp_optimizer_free(optimizer);
    fsdp_optimizer_free(alone);
    fsdp_module_unref(module);
    fsdp_module_unref(plain);
    test_drop_workspace(context);
}

TEST(state_of_earlier_steps_is_cut_to_the_shards)
{
    static const int worlds[] = {1, 2, 3, 5};

    for (size_t w = 0; w < sizeof worlds / sizeof worlds[0]; w++)
        for (int i = 0; i < 4; i++) {
            late l = {.kind = i % 2 ? SGD : ADAMW, .options.no_shared_memory = i >= 2};

            l.options.offload_policy.cpu = i >= 2; /* with what the optimizer has, where the device is not the host */

            test_run_ranks(worlds[w], check_late, &l);
        }
}

/* The first step on shards fails at its n-th allocation: nothing has changed, and the next one is right. */
RANKS_TEST(cutting_state_survives_every_failed_allocation, 2)
{
    const late l = {.kind = ADAMW};
    fsdp_process_group *world = fsdp_world(context);
    int32_t hit = 1;

    for (long n = 1; hit; n++) {
        fsdp_optimizer *alone = NULL, *optimizer = NULL;
        fsdp_module *plain = late_net(context, &l, &alone), *module = late_net(context, &l, &optimizer);
        fsdp_status status;

        late_backward(plain, 0);
        late_step(alone);
        late_backward(module, 0);
        late_step(optimizer);
        net_shard(module, &l.options);
        late_backward(plain, 1);
        late_backward(module, 1);
        average_alone(alone, fsdp_process_group_size(world));
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_optimizer_step(optimizer);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        if (status != FSDP_OK) {
            CHECK_EQ(optimizer->groups[0].params[0].steps, 1);
            late_step(optimizer);
        }
        late_step(alone);
        check_late_bits(optimizer, alone);
        fsdp_optimizer_free(optimizer);
        fsdp_optimizer_free(alone);
        fsdp_module_unref(module);
        fsdp_module_unref(plain);
        CHECK_OK(fsdp_all_reduce(world, &hit, &hit, 1, FSDP_I32, FSDP_MAX, fsdp_device_stream(fsdp_cpu(context))));
    }
    test_drop_workspace(context);
}

/* ---- what is refused ---- */

typedef struct table {
    fsdp_module base;
    fsdp_tensor *weight;
} table;

static fsdp_tensor *table_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    (void)count;
    return fsdp_embedding(((table *)self)->weight, inputs[0]);
}

/* One step of a table of 16 bits; every rank looks up the same rows, so sharded and whole step alike. */
static void step_table(fsdp_context *context, fsdp_dtype dtype, bool sharded, float *values)
{
    static const fsdp_module_type type = {.name = "Table", .forward = table_forward};
    const fsdp_adam_options adam = {.lr = 0.25, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8};
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameters parameters;
    fsdp_tensor *ids, *whole;
    table *t;

    CHECK_OK(fsdp_module_create(context, &type, sizeof *t, &t));
    CHECK_OK(fsdp_module_add_parameter(&t->base, "weight", &t->weight, test_device(context), dtype, FSDP_SHAPE(5, 3),
                                       (fsdp_init){.kind = FSDP_INIT_ONES}));
    CHECK_OK(fsdp_module_initialize(&t->base, 1));
    if (sharded)
        CHECK_OK(fsdp_fully_shard(&t->base, NULL));
    CHECK_OK(fsdp_module_parameters(&t->base, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
    fsdp_parameters_release(&parameters);
    CHECK_OK(fsdp_scope_begin(context));
    ids = fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(4), (const int32_t[]){0, 3, 3, 4});
    CHECK_OK(fsdp_backward(CHECK_PTR(fsdp_sum(fsdp_cast(fsdp_call(&t->base, ids), FSDP_F32)))));
    fsdp_scope_end(context, NULL);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_EQ(fsdp_tensor_dtype(t->weight), dtype);
    CHECK_OK(fsdp_full_tensor(t->weight, &whole));
    CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
    fsdp_tensor_unref(whole);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(&t->base);
}

WORLDS_TEST(sharded_parameters_of_16_bits_step_as_whole_ones, 1, 4)
{
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16};

    for (int d = 0; d < 2; d++) {
        float sharded[15], whole[15];

        step_table(context, dtypes[d], true, sharded);
        step_table(context, dtypes[d], false, whole);
        CHECK_BYTES(sharded, whole, sizeof whole);
        CHECK(whole[0] < 1 && whole[3] == 1); /* row 0 is used, row 1 is not */
    }
}

WORLDS_TEST(gathered_parameters_are_refused, 1, 2)
{
    static const fsdp_shard_options options[] = {
        {.mp_policy.param_dtype = FSDP_DTYPE_NONE}, {.no_shared_memory = true}, {.mp_policy.param_dtype = FSDP_BF16}};
    const fsdp_adam_options adam = fsdp_adam_options_default();

    for (int i = 0; i < 3; i++) {
        fsdp_module *module = net_sharded(context, 1, &options[i]);
        fsdp_optimizer *optimizer = NULL;
        fsdp_parameters parameters;

        CHECK_OK(fsdp_module_unshard(module));
        CHECK_OK(fsdp_module_parameters(module, &parameters));
        CHECK_ERROR(
            fsdp_adamw_create(&parameters, &adam, &optimizer), FSDP_STATE,
            "cannot optimize 'input.weight': it is gathered now and will be released: reshard its module first");
        CHECK_NULL(optimizer);
        fsdp_parameters_release(&parameters);
        CHECK_OK(fsdp_module_reshard(module));
        CHECK_OK(fsdp_module_parameters(module, &parameters));
        CHECK_OK(fsdp_adamw_create(&parameters, &adam, &optimizer));
        fsdp_parameters_release(&parameters);
        fsdp_optimizer_free(optimizer);
        fsdp_module_unref(module);
    }
    test_drop_workspace(context);
}
