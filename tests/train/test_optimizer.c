/* An optimizer made before fully_shard steps the shards: tensors stay the same tensors when they are sharded. */
#include "fsdp/optim.h"
#include "shard/net.h"

enum {
    STEPS = 3
};

typedef struct run {
    bool before; /* fully_shard */
    float *values;
    int64_t count;
} run;

static void train(fsdp_context *context, void *arg)
{
    run *r = arg;
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_module *module = net_create(context, test_device(context), 1);
    fsdp_parameters parameters;
    fsdp_optimizer *adamw;
    float *values;
    int64_t count;

    CHECK_OK(fsdp_module_initialize(module, 1));
    if (!r->before)
        net_shard(module, NULL);
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &adamw));
    fsdp_parameters_release(&parameters);
    if (r->before)
        net_shard(module, NULL);
    for (int step = 0; step < STEPS; step++) {
        net_forward_backward(module, step, 0, 1);
        CHECK_OK(fsdp_clip_grad_norm(adamw, 0.5, NULL));
        CHECK_OK(fsdp_optimizer_step(adamw));
        fsdp_module_zero_grad(module);
    }
    values = net_values(module, &count);
    if (fsdp_context_rank(context) == 0) {
        r->values = values;
        r->count = count;
    } else {
        free(values);
    }
    fsdp_optimizer_free(adamw);
    fsdp_module_unref(module);
}

TEST(made_before_or_after_it_does_the_same)
{
    for (int world = 1; world <= 4; world++) {
        run before = {.before = true}, after = {.before = false};

        test_run_ranks(world, train, &before);
        test_run_ranks(world, train, &after);
        CHECK_EQ(before.count, after.count);
        CHECK_BYTES(before.values, after.values, (size_t)after.count * sizeof(float));
        free(before.values);
        free(after.values);
    }
}
