/* Lion, and AdamW with moments of bytes, against their formulas in f64. */
#include <math.h>

#include "base/byte_map.h"
#include "fsdp/optim.h"
#include "optim/optim.h"
#include "support/test.h"

enum {
    ROWS = 14,
    COLS = 300,
    NUMEL = ROWS * COLS,
    STEPS = 5
};

static double value(int step, int64_t i)
{
    uint32_t x = (uint32_t)(step * 104729 + i * 31 + 12345);

    x = (x ^ x >> 16) * 0x45d9f3bu;
    x = (x ^ x >> 16) * 0x45d9f3bu;
    return (float)(((double)(x ^ x >> 16) / 2147483648.0 - 1) * (i % 7 == 0 ? 1 : 1e-3));
}

typedef struct fixture {
    fsdp_context *context;
    fsdp_tensor *tensor;
    fsdp_parameter item;
    fsdp_parameters parameters;
} fixture;

static fsdp_tensor *make(fsdp_context *context, int step, fsdp_memory_kind kind)
{
    static float values[NUMEL];
    fsdp_tensor *tensor = NULL;

    for (int64_t i = 0; i < NUMEL; i++)
        values[i] = (float)value(step, i);
    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, (const int64_t[]){ROWS, COLS}, kind, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    return tensor;
}

static void setup(fixture *f)
{
    f->context = test_context();
    f->tensor = make(f->context, 0, FSDP_MEMORY_PARAMETER_SHARD);
    CHECK_OK(fsdp_tensor_set_requires_grad(f->tensor, true));
    f->item = (fsdp_parameter){"weight", f->tensor};
    f->parameters = (fsdp_parameters){1, &f->item};
}

static void teardown(fixture *f, fsdp_optimizer *optimizer)
{
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(f->tensor);
    test_drop_workspace(f->context);
    CHECK_EQ(test_live_bytes(f->context), 0);
    fsdp_context_free(f->context);
}

static void step_once(fixture *f, fsdp_optimizer *optimizer, int step, float *out)
{
    fsdp_tensor *grad = make(f->context, step, FSDP_MEMORY_GRADIENT);

    CHECK_OK(fsdp_tensor_set_grad(f->tensor, grad));
    fsdp_tensor_unref(grad);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_tensor_read(f->tensor, FSDP_F32, out));
}

TEST(lion_steps_by_the_sign_of_a_momentum)
{
    const fsdp_lion_options options = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.3};
    static double p[NUMEL], m[NUMEL];
    static float actual[NUMEL];
    fsdp_optimizer *optimizer = NULL;
    fixture f;

    setup(&f);
    memset(m, 0, sizeof m);
    for (int64_t i = 0; i < NUMEL; i++)
        p[i] = value(0, i);
    CHECK_OK(fsdp_lion_create(&f.parameters, &options, &optimizer));
    for (int step = 1; step <= STEPS; step++) {
        step_once(&f, optimizer, step, actual);
        for (int64_t i = 0; i < NUMEL; i++) {
            double g = value(step, i), u = 0.9 * m[i] + 0.1 * g;

            p[i] = p[i] * (1 - 0.01 * 0.3) - 0.01 * (u > 0 ? 1 : u < 0 ? -1 : 0);
            m[i] = 0.99 * m[i] + 0.01 * g;
            CHECK_NEAR(actual[i], p[i], 1e-6);
        }
    }
    CHECK_NULL(optimizer->groups[0].params[0].moment2);
    CHECK_EQ(optimizer->groups[0].params[0].steps, STEPS);
    teardown(&f, optimizer);
}

TEST(bytes_stand_for_seven_decades)
{
    for (int has_sign = 0; has_sign < 2; has_sign++)
        for (int c = 0; c + 1 < 256; c++)
            CHECK(fsdp__byte_map_value(c, has_sign) < fsdp__byte_map_value(c + 1, has_sign));
    CHECK_NEAR(fsdp__byte_map_value(0, 1), -0.99296875, 1e-7);
    CHECK_NEAR(fsdp__byte_map_value(127, 1), 0, 0);
    CHECK_NEAR(fsdp__byte_map_value(128, 1), 5.5e-7, 1e-13);
    CHECK_NEAR(fsdp__byte_map_value(0, 0), 0, 0);
    CHECK_NEAR(fsdp__byte_map_value(1, 0), 3.25e-7, 1e-13);
    CHECK_NEAR(fsdp__byte_map_value(254, 0), 0.996484375, 1e-7);
    CHECK_NEAR(fsdp__byte_map_value(255, 0), 1, 0);
}

/* The moment after it has been encoded and decoded: the nearest number of its block's scale. */
static void round_block(double *x, int n, int has_sign)
{
    double scale = 0;

    for (int i = 0; i < n; i++)
        scale = fmax(scale, fabs(x[i]));
    for (int i = 0; i < n; i++) {
        double best = 2, there = 0;

        for (int c = 0; c < 256 && scale > 0; c++) {
            double away = fabs(fsdp__byte_map_value(c, has_sign) - x[i] / scale);

            if (away < best) {
                best = away;
                there = fsdp__byte_map_value(c, has_sign) * scale;
            }
        }
        x[i] = there;
    }
}

static void round_rows(double *x, int has_sign)
{
    for (int r = 0; r < ROWS; r++)
        for (int at = 0; at < COLS; at += 256)
            round_block(x + r * COLS + at, COLS - at < 256 ? COLS - at : 256, has_sign);
}

TEST(adam_with_bytes_rounds_blocks_of_rows)
{
    const fsdp_adam_options options = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-6, .weight_decay = 0.1, .state_bits = 8};
    static double p[NUMEL], m[NUMEL], v[NUMEL];
    static float actual[NUMEL];
    fsdp_optimizer *optimizer = NULL;
    fixture f;

    setup(&f);
    memset(m, 0, sizeof m);
    memset(v, 0, sizeof v);
    for (int64_t i = 0; i < NUMEL; i++)
        p[i] = value(0, i);
    CHECK_OK(fsdp_adamw_create(&f.parameters, &options, &optimizer));
    for (int step = 1; step <= STEPS; step++) {
        int64_t off = 0;

        step_once(&f, optimizer, step, actual);
        for (int64_t i = 0; i < NUMEL; i++) {
            double g = value(step, i);

            m[i] = 0.9 * m[i] + 0.1 * g;
            v[i] = 0.95 * v[i] + 0.05 * g * g;
            p[i] = p[i] * (1 - 0.01 * 0.1) -
                   0.01 / (1 - pow(0.9, step)) * m[i] / (sqrt(v[i] / (1 - pow(0.95, step))) + 1e-6);
            off += fabs(actual[i] - p[i]) > 1e-5;
        }
        CHECK(off < NUMEL / 500); /* a number that lies between two codes may go to either */
        round_rows(m, 1);
        round_rows(v, 0);
    }
    CHECK_EQ(fsdp_tensor_dtype(optimizer->groups[0].params[0].moment1), FSDP_U8);
    CHECK_EQ(fsdp_tensor_numel(optimizer->groups[0].params[0].scale2), ROWS * 2);
    teardown(&f, optimizer);
}

TEST(small_parameters_keep_numbers)
{
    const fsdp_adam_options options = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .state_bits = 8};
    fsdp_context *context = test_context();
    fsdp_tensor *tensor = NULL;
    fsdp_parameter item = {"weight", NULL};
    fsdp_optimizer *optimizer = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, 2, (const int64_t[]){63, 65},
                                FSDP_MEMORY_PARAMETER_SHARD, &tensor));
    CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
    item.tensor = tensor;
    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){1, &item}, &options, &optimizer));
    CHECK_OK(fsdp_optimizer_init_state(optimizer));
    CHECK_EQ(fsdp_tensor_dtype(optimizer->groups[0].params[0].moment1), FSDP_F32);
    CHECK_NULL(optimizer->groups[0].params[0].scale1);
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(tensor);
    fsdp_context_free(context);
}
