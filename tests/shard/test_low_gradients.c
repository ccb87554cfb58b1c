/* FSDP1's keep_low_precision_grads: in which dtype gradients rest, what they are then, and what goes on with them.
 * Links: optim */
#include "device/device.h"
#include "fsdp/fsdp1.h"
#include "fsdp/optim.h"
#include "shard/net.h"

enum {
    BLOCKS = 2
};

typedef struct trial {
    fsdp_fsdp1_options options;
    int replicas; /* 0: no mesh of two dimensions */
    bool behind;  /* kernels run behind the host */
    fsdp_dtype rests;
} trial;

static fsdp_module *wrapped(fsdp_context *context, const trial *t, bool keeps)
{
    fsdp_module *module = net_create(context, test_device(context), BLOCKS);
    fsdp_fsdp1_options options = t->options;

    options.mixed_precision.keep_low_precision_grads = keeps;
    options.mixed_precision.cast_forward_inputs = true;
    if (t->replicas > 0)
        options.mesh = net_hybrid_mesh(context, t->replicas);
    CHECK_OK(fsdp_module_initialize(module, 1));
    for (int i = 0; i < BLOCKS; i++)
        CHECK_OK(fsdp_fsdp1_wrap(net_block_at(module, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(module, &options));
    fsdp_mesh_unref(options.mesh);
    return module;
}

static void backward(fsdp_module *module, int step)
{
    (void)net_forward_backward(module, step, 0, 1);
}

/* Of one parameter. */
static float *gradient_of(const fsdp_tensor *parameter, fsdp_dtype dtype)
{
    const fsdp_tensor *grad = CHECK_PTR(fsdp_tensor_grad(parameter));
    float *values = CHECK_PTR(malloc((size_t)(fsdp_tensor_numel(grad) + 1) * sizeof *values));

    CHECK_EQ(grad->dtype, dtype);
    CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, values));
    return values;
}

static void round_values(fsdp_context *context, fsdp_dtype dtype, float *values, int64_t count)
{
    fsdp_tensor *rounded = fsdp_cast(fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(count), values), dtype);

    CHECK_OK(fsdp_tensor_read(CHECK_PTR(rounded), FSDP_F32, values));
}

static void check_gradients(fsdp_module *kept, fsdp_module *ever, const trial *t, float *const *before)
{
    fsdp_parameters mine, theirs;

    CHECK_OK(fsdp_module_parameters(kept, &mine));
    CHECK_OK(fsdp_module_parameters(ever, &theirs));
    CHECK_OK(fsdp_scope_begin(kept->context));
    for (int64_t p = 0; p < mine.count; p++) {
        int64_t count = fsdp_tensor_numel(mine.items[p].tensor);
        float *low = gradient_of(mine.items[p].tensor, t->rests);
        float *full = gradient_of(theirs.items[p].tensor, FSDP_F32);

        for (int64_t i = 0; before && i < count; i++)
            full[i] = before[p][i] + full[i];
        if (count > 0)
            round_values(kept->context, t->rests, full, count);
        net_check_same(low, full, count);
    }
    fsdp_scope_end(kept->context, NULL);
    fsdp_parameters_release(&mine);
    fsdp_parameters_release(&theirs);
}

static void rest(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    fsdp_module *kept, *ever;
    fsdp_parameters parameters;
    float *before[64];

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL); /* a world of one is NO_SHARD */
    if (t->behind)
        test_run_behind(test_device(context));
    kept = wrapped(context, t, true);
    ever = wrapped(context, t, false);
    backward(kept, 0);
    backward(ever, 0);
    check_gradients(kept, ever, t, NULL);
    CHECK_OK(fsdp_module_parameters(kept, &parameters));
    CHECK(parameters.count < (int64_t)FSDP__COUNT_OF(before));
    for (int64_t p = 0; p < parameters.count; p++)
        before[p] = gradient_of(parameters.items[p].tensor, t->rests);
    backward(kept, 1); /* is added in the dtype of the shards to what has been rounded */
    fsdp_module_zero_grad(ever);
    backward(ever, 1);
    check_gradients(kept, ever, t, before);
    for (int64_t p = 0; p < parameters.count; p++)
        free(before[p]);
    fsdp_parameters_release(&parameters);
    fsdp_module_unref(kept);
    fsdp_module_unref(ever);
}

static void in_trials(int world, void (*body)(fsdp_context *context, void *arg))
{
    static const fsdp_dtype reduced[] = {FSDP_DTYPE_NONE, FSDP_F32, FSDP_F16};
    static const fsdp_sharding_strategy strategies[] = {FSDP_FULL_SHARD, FSDP_NO_SHARD, FSDP_HYBRID_SHARD_ZERO2};

    for (int i = test_brief() ? world : 0; i < 18; i += test_brief() ? 5 : 1) {
        trial t = {.options = {.strategy = strategies[i % 3],
                               .use_orig_params = i / 3 % 2,
                               .overlap = i / 6 % 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE,
                               .no_shared_memory = i / 2 % 2,
                               .cpu_offload.cpu = i / 2 % 2 && !test_on_cpu()},
                   .behind = i % 7 == 3,
                   .rests = FSDP_BF16};

        if (t.options.strategy == FSDP_HYBRID_SHARD_ZERO2 && world % 2)
            t.options.strategy = FSDP_SHARD_GRAD_OP;
        else if (t.options.strategy == FSDP_HYBRID_SHARD_ZERO2)
            t.replicas = world / 2;
        t.options.mixed_precision =
            (fsdp_fsdp1_mixed_precision){.param_dtype = FSDP_BF16, .reduce_dtype = reduced[i / 6]};
        if ((world == 1 || t.options.strategy == FSDP_NO_SHARD) && reduced[i / 6])
            t.rests = reduced[i / 6];
        test_run_ranks(world, body, &t);
    }
}

TEST(gradients_rest_in_the_dtype_they_were_computed_in)
{
    for (int world = 1; world <= 4; world++)
        in_trials(world, rest);
}

/* ---- what goes on with them ---- */

static fsdp_optimizer *optimizer_of(fsdp_module *module, bool adamw)
{
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = 0.9};
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_parameters parameters;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(adamw ? fsdp_adamw_create(&parameters, &options, &optimizer)
                   : fsdp_sgd_create(&parameters, &sgd, &optimizer));
    fsdp_parameters_release(&parameters);
    return optimizer;
}

static void round_gradients(fsdp_module *module, fsdp_dtype dtype)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_scope_begin(module->context));
    for (int64_t p = 0; p < parameters.count; p++) {
        fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[p].tensor);

        if (fsdp_tensor_numel(grad) > 0)
            CHECK_OK(fsdp_tensor_copy_(grad, CHECK_PTR(fsdp_cast(grad, dtype))));
    }
    fsdp_scope_end(module->context, NULL);
    fsdp_parameters_release(&parameters);
}

/* As with the same gradients in f32: whatever sees them computes in that. */
static void optimize(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    fsdp_module *kept = wrapped(context, t, true), *ever = wrapped(context, t, false);
    float *mine, *theirs;
    int64_t count;

    for (int adamw = 0; adamw < 2; adamw++) {
        fsdp_optimizer *low = optimizer_of(kept, adamw), *full = optimizer_of(ever, adamw);
        double norm, expected;

        for (int step = 0; step < 2; step++) {
            backward(kept, step);
            backward(ever, step);
            round_gradients(ever, t->rests);
            CHECK_OK(fsdp_clip_grad_norm(low, 0.1, &norm));
            CHECK_OK(fsdp_clip_grad_norm(full, 0.1, &expected));
            CHECK(norm == expected);
            CHECK_OK(fsdp_optimizer_step(low));
            CHECK_OK(fsdp_optimizer_step(full));
            CHECK_OK(fsdp_optimizer_zero_grad(low));
            CHECK_OK(fsdp_optimizer_zero_grad(full));
        }
        fsdp_optimizer_free(low);
        fsdp_optimizer_free(full);
    }
    mine = net_values(kept, &count);
    theirs = net_values(ever, &count);
    net_check_same(mine, theirs, count);
    fsdp_module_unref(kept);
    fsdp_module_unref(ever);
}

TEST(optimizers_and_norms_take_them)
{
    for (int world = 2; world <= 3; world++)
        for (int orig = 0; orig < 2; orig++) {
            trial t = {.options = {.use_orig_params = orig, .mixed_precision.param_dtype = FSDP_BF16},
                       .rests = FSDP_BF16};

            test_run_ranks(world, optimize, &t);
        }
}

static int64_t gradient_bytes(fsdp_context *context)
{
    fsdp_memory_stats memory;

    fsdp_device_memory(test_device(context), &memory);
    return memory.live_bytes[FSDP_MEMORY_GRADIENT];
}

static int64_t padded(int64_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Between backwards the vectors alone, in two bytes an element; without synchronisation what it always is. */
static void weigh(fsdp_context *context, void *arg)
{
    fsdp_module *module = wrapped(context, arg, true);
    int64_t bytes = 0;

    for (int i = -1; i < BLOCKS; i++) {
        fsdp_shard_info info;

        CHECK_OK(fsdp_module_shard_info(i < 0 ? module : net_block_at(module, i), &info));
        bytes += padded(info.padded_numel / fsdp_context_world_size(context) * 2);
    }
    for (int step = 0; step < 4; step++) {
        CHECK_OK(fsdp_fsdp1_no_sync_begin(module));
        backward(module, step);
        CHECK_OK(fsdp_fsdp1_no_sync_end(module));
        backward(module, step);
        CHECK_EQ(gradient_bytes(context), bytes);
        if (step % 2) {
            fsdp_module_zero_grad(module);
            CHECK_EQ(gradient_bytes(context), 0);
        }
    }
    fsdp_module_unref(module);
}

TEST(they_take_half_of_the_memory)
{
    for (int world = 2; world <= 3; world++)
        for (int orig = 0; orig < 2; orig++) {
            trial t = {.options = {.use_orig_params = orig, .mixed_precision.param_dtype = FSDP_BF16}};

            test_run_ranks(world, weigh, &t);
        }
}

/* Summoned they have the shards' dtype; what is written goes back to what they rest in. */
static void summon(fsdp_context *context, void *arg)
{
    fsdp_module *module = wrapped(context, arg, true);
    fsdp_tensor *weight;

    backward(module, 0);
    CHECK_OK(fsdp_module_summon_full_params(module, &(fsdp_summon_options){.with_grads = true}));
    weight = CHECK_PTR(fsdp_module_parameter(module, "head.weight"));
    CHECK_EQ(fsdp_tensor_grad(weight)->dtype, FSDP_F32);
    CHECK_OK(fsdp_tensor_fill_(fsdp_tensor_grad(weight), 0.3));
    CHECK_OK(fsdp_module_end_summon(module));
    weight = CHECK_PTR(fsdp_module_parameter(module, "head.weight"));
    CHECK_EQ(fsdp_tensor_grad(weight)->dtype, FSDP_BF16);
    if (fsdp_tensor_numel(weight) > 0) {
        float *values = gradient_of(weight, FSDP_BF16);

        CHECK(values[0] > 0.2998f && values[0] < 0.3012f);
        free(values);
    }
    backward(module, 1);
    CHECK_OK(fsdp_module_reset_iteration(module));
    CHECK_EQ(fsdp_tensor_grad(weight)->dtype, FSDP_BF16);
    fsdp_module_unref(module);
}

TEST(summoned_they_have_the_dtype_of_the_parameters)
{
    trial t = {.options = {.use_orig_params = true, .mixed_precision.param_dtype = FSDP_BF16}};

    test_run_ranks(2, summon, &t);
    test_run_ranks(3, summon, &t);
}

static void scale(fsdp_context *context, void *arg)
{
    fsdp_module *module = wrapped(context, arg, true);
    fsdp_optimizer *optimizer = optimizer_of(module, false);
    fsdp_grad_scaler *scaler;

    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), NULL, &scaler));
    backward(module, 0);
    CHECK_ERROR(fsdp_grad_scaler_unscale(scaler, optimizer), FSDP_UNSUPPORTED, "keep_low_precision_grads");
    fsdp_grad_scaler_free(scaler);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}

TEST(a_scaler_refuses_them_in_f16)
{
    trial t = {.options.mixed_precision.param_dtype = FSDP_F16};

    test_run_ranks(2, scale, &t);
}
