#include "optim/trainee.h"

#include "autograd/autograd.h"
#include "device/dry.h"

static fsdp_module *mlp(fsdp_device *device, int64_t width)
{
    fsdp_context *context = fsdp_device_context(device);
    fsdp_module *layers[2 * TRAINEE_LAYERS];

    for (int i = 0; i < TRAINEE_LAYERS; i++) {
        layers[2 * i] = fsdp_linear_create(context, device, i ? 4 * width : width,
                                           i == TRAINEE_LAYERS - 1 ? 30 * width : 4 * width, NULL);
        layers[2 * i + 1] = i % 2 ? fsdp_relu_create(context) : fsdp_gelu_create(context, true);
    }
    return CHECK_PTR(fsdp_sequential_create(context, layers, 2 * TRAINEE_LAYERS));
}

trainee trainee_create(fsdp_device *device, int64_t width)
{
    const fsdp_adam_options options = fsdp_adam_options_default();
    trainee t = {.device = device, .width = width, .model = mlp(device, width)};
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_initialize(t.model, 1));
    CHECK_OK(fsdp_module_parameters(t.model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &t.adamw));
    fsdp_parameters_release(&parameters);
    return t;
}

void trainee_release(trainee *t)
{
    fsdp_optimizer_free(t->adamw);
    fsdp_module_unref(t->model);
}

void trainee_step(const trainee *t)
{
    fsdp_context *context = fsdp_device_context(t->device);
    fsdp_tensor *out;

    CHECK_OK(fsdp_scope_begin(context));
    out = CHECK_PTR(fsdp_call(t->model, fsdp_zeros(t->device, FSDP_F32, FSDP_SHAPE(TRAINEE_BATCH, t->width))));
    CHECK_OK(fsdp_backward(fsdp_mean(fsdp_mul(out, out))));
    CHECK_OK(fsdp_optimizer_step(t->adamw));
    CHECK_OK(fsdp_optimizer_zero_grad(t->adamw));
    fsdp_scope_end(context, NULL);
}

fsdp_memory_stats trainee_memory(const fsdp_device *device)
{
    fsdp_memory_stats stats;

    fsdp_device_memory(device, &stats);
    return stats;
}

bool trainee_is_far(const fsdp_device *device, double share)
{
    fsdp_memory_stats stats = trainee_memory(device);

    return (double)stats.reserved_bytes > (1 + share) * (double)stats.peak_total_bytes + TRAINEE_SLACK;
}

trainee trainee_set_up(void)
{
    return trainee_create(CHECK_PTR(fsdp__dry_gpu(test_context())), TRAINEE_WIDTH);
}

void trainee_tear_down(trainee *t)
{
    fsdp_context *context = fsdp_device_context(t->device);

    trainee_release(t);
    fsdp_context_free(context);
}
