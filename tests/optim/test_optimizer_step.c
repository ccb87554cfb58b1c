/* Parameters of 16 bits: each step is that of f32 parameters with the same values and state, rounded once. And steps of
 * a part of the parameters. */
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/test.h"
#include "tensor/tensor.h"

enum {
    NUMEL = 5 * 37,
    STEPS = 7
};

static float value(int step, int64_t i)
{
    uint32_t x = (uint32_t)(step * 104729 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)((double)(x ^ x >> 16) / 2147483648.0 - 1);
}

static fsdp_tensor *make(fsdp_context *context, fsdp_dtype dtype, fsdp_memory_kind kind, int step)
{
    float data[NUMEL];
    fsdp_tensor *tensor = NULL;

    for (int64_t i = 0; i < NUMEL; i++)
        data[i] = value(step, i);
    CHECK_OK(fsdp_tensor_create(test_device(context), dtype, 2, (const int64_t[]){5, 37}, kind, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, data));
    return tensor;
}

static fsdp_optimizer *optimize(fsdp_tensor *tensor, int kind)
{
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    const fsdp_sgd_options sgd = {.lr = 0.1, .momentum = kind == 3 ? 0 : 0.9, .weight_decay = 0.01};
    fsdp_parameter item = {"weight", tensor};
    fsdp_parameters parameters = {1, &item};
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    if (kind < 2)
        CHECK_OK((kind ? fsdp_adam_create : fsdp_adamw_create)(&parameters, &adam, &optimizer));
    else
        CHECK_OK(fsdp_sgd_create(&parameters, &sgd, &optimizer));
    return optimizer;
}

/* The same values for both: what `rounded` holds. */
static void give_gradient(fsdp_context *context, fsdp_tensor *tensor, fsdp_dtype rounded, fsdp_dtype dtype, int step)
{
    fsdp_tensor *grad = make(context, rounded, FSDP_MEMORY_GRADIENT, step), *cast = NULL;
    float data[NUMEL];

    CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, data));
    CHECK_OK(fsdp_tensor_create(test_device(context), dtype, 2, (const int64_t[]){5, 37}, FSDP_MEMORY_GRADIENT, &cast));
    CHECK_OK(fsdp_tensor_write(cast, FSDP_F32, data));
    CHECK_OK(fsdp_tensor_set_grad(tensor, cast));
    fsdp_tensor_unref(cast);
    fsdp_tensor_unref(grad);
}

static void step_both(fsdp_context *context, fsdp_dtype dtype, int kind)
{
    fsdp_tensor *half = make(context, dtype, FSDP_MEMORY_PARAMETER_SHARD, 0);
    fsdp_tensor *full = make(context, FSDP_F32, FSDP_MEMORY_PARAMETER_SHARD, 0);
    fsdp_tensor *rounded = make(context, dtype, FSDP_MEMORY_ACTIVATION, 0);
    fsdp_optimizer *of_half = optimize(half, kind), *of_full = optimize(full, kind);

    for (int step = 1; step <= STEPS; step++) {
        float before[NUMEL], expected[NUMEL], actual[NUMEL];

        CHECK_OK(fsdp_tensor_read(half, FSDP_F32, before));
        CHECK_OK(fsdp_tensor_write(full, FSDP_F32, before));
        give_gradient(context, half, dtype, dtype, step);
        give_gradient(context, full, dtype, FSDP_F32, step);
        CHECK_OK(fsdp_clip_grad_norm(of_half, 1, NULL));
        CHECK_OK(fsdp_clip_grad_norm(of_full, 1, NULL));
        CHECK_OK(fsdp_optimizer_step(of_half));
        CHECK_OK(fsdp_optimizer_step(of_full));
        CHECK_OK(fsdp_tensor_copy_(rounded, full));
        CHECK_OK(fsdp_tensor_read(rounded, FSDP_F32, expected));
        CHECK_OK(fsdp_tensor_read(half, FSDP_F32, actual));
        CHECK_BYTES(actual, expected, sizeof expected);
        CHECK(memcmp(actual, before, sizeof before) != 0);
    }
    if (kind != 3)
        CHECK_EQ(of_half->groups[0].params[0].moment1->dtype, FSDP_F32);
    fsdp_optimizer_free(of_half);
    fsdp_optimizer_free(of_full);
    fsdp_tensor_unref(rounded);
    fsdp_tensor_unref(full);
    fsdp_tensor_unref(half);
}

CONTEXT_TEST(parameters_of_16_bits_are_rounded_once)
{
    static const fsdp_dtype dtypes[] = {FSDP_BF16, FSDP_F16};

    for (int d = 0; d < 2; d++)
        for (int kind = 0; kind < 4; kind++)
            step_both(context, dtypes[d], kind);
}

/* ---- a part of the parameters ---- */

enum {
    PARTS = 3
};

static fsdp_optimizer *optimize_parts(fsdp_context *context, fsdp_tensor **parts)
{
    const fsdp_adam_options adam = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1};
    static const char *const names[PARTS] = {"first", "second", "third"};
    fsdp_parameter items[PARTS];
    fsdp_optimizer *optimizer = NULL;

    for (int i = 0; i < PARTS; i++) {
        parts[i] = make(context, FSDP_F32, FSDP_MEMORY_PARAMETER_SHARD, i);
        CHECK_OK(fsdp_tensor_set_requires_grad(parts[i], true));
        items[i] = (fsdp_parameter){names[i], parts[i]};
    }
    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){PARTS, items}, &adam, &optimizer));
    return optimizer;
}

/* The last one has a gradient every second time. */
static void step_parts(fsdp_context *context, fsdp_optimizer *optimizer, fsdp_tensor *const *parts, bool apart)
{
    for (int step = 1; step <= STEPS; step++) {
        for (int i = 0; i < PARTS - step % 2; i++)
            give_gradient(context, parts[i], FSDP_F32, FSDP_F32, 10 * step + i);
        if (apart) {
            CHECK_OK(fsdp_optimizer_step_parameters(optimizer, parts + 1, 2));
            CHECK_OK(fsdp_optimizer_step_parameters(optimizer, NULL, 0));
            CHECK_OK(fsdp_optimizer_step_parameters(optimizer, parts, 1));
        } else {
            CHECK_OK(fsdp_optimizer_step(optimizer));
        }
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    }
}

CONTEXT_TEST(parameters_stepped_apart_get_the_bits_of_one_step)
{
    fsdp_tensor *together[PARTS], *apart[PARTS];
    fsdp_optimizer *of_together = optimize_parts(context, together), *of_apart = optimize_parts(context, apart);

    step_parts(context, of_together, together, false);
    step_parts(context, of_apart, apart, true);
    CHECK_OK(fsdp_optimizer_step_parameters(of_apart, together, PARTS)); /* not its own */
    for (int i = 0; i < PARTS; i++) {
        float expected[NUMEL], actual[NUMEL];

        CHECK_OK(fsdp_tensor_read(together[i], FSDP_F32, expected));
        CHECK_OK(fsdp_tensor_read(apart[i], FSDP_F32, actual));
        CHECK_BYTES(actual, expected, sizeof expected);
    }
    CHECK_STATUS(fsdp_optimizer_step_parameters(of_apart, NULL, 1), FSDP_INVALID);
    CHECK_STATUS(fsdp_optimizer_step_parameters(NULL, apart, 1), FSDP_INVALID);
    give_gradient(context, apart[0], FSDP_F32, FSDP_F32, 1);
    CHECK_OK(fsdp_clip_grad_norm(of_apart, 1e-3, NULL));
    CHECK_ERROR(fsdp_optimizer_step_parameters(of_apart, apart, 1), FSDP_STATE, "the factor applies to all of them");
    for (int i = 0; i < PARTS; i++) {
        fsdp_tensor_unref(together[i]);
        fsdp_tensor_unref(apart[i]);
    }
    fsdp_optimizer_free(of_together);
    fsdp_optimizer_free(of_apart);
}
