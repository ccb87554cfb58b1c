/* Lion, and AdamW with moments of bytes, against their formulas in f64, and beside bitsandbytes. */
#include <math.h>
#include <stdlib.h>

#include "base/byte_map.h"
#include "fsdp/format.h"
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

CONTEXT_TEST(small_parameters_keep_numbers)
{
    const fsdp_adam_options options = {.lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .state_bits = 8};
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
}

/* ---- beside bitsandbytes (finetune/quant.safetensors of the folder that FSDP_REFERENCE names; skipped without) ----
 */

enum {
    REFERENCE_NUMEL = 64 * 172,
    REFERENCE_BLOCKS = REFERENCE_NUMEL / 256,
    REFERENCE_STEPS = 4
};

static fsdp_safetensors *open_reference(const char *name)
{
    const char *reference = getenv("FSDP_REFERENCE");
    fsdp_safetensors *file = NULL;
    char *path;

    if (!reference)
        skip(); /* FSDP_REFERENCE has it */
    path = test_path(reference, name);
    CHECK_OK(fsdp_safetensors_open(path, &file));
    return file;
}

static const void *values_of(const fsdp_safetensors *file, const char *name, size_t bytes)
{
    const fsdp_safetensors_entry *entry = CHECK_PTR(fsdp_safetensors_find(file, name));

    CHECK_EQ(entry->bytes, bytes);
    return entry->data;
}

static const float *step_values(const fsdp_safetensors *file, const char *what, int step)
{
    char name[64];

    snprintf(name, sizeof name, "adamw8bit.%s%d", what, step);
    return values_of(file, name, REFERENCE_NUMEL * sizeof(float));
}

/* Checks the README's tolerances, which its encoder needs: 2e-5 on average, 1e-2 at most. */
static void check_like(const float *actual, const float *expected, double mean, double most)
{
    double sum = 0, worst = 0;

    for (int i = 0; i < REFERENCE_NUMEL; i++) {
        double away = fabs((double)actual[i] - (double)expected[i]);

        sum += away;
        worst = fmax(worst, away);
    }
    CHECK_NEAR(sum / REFERENCE_NUMEL, 0, mean);
    CHECK_NEAR(worst, 0, most);
}

/* Checks the codes of a moment: at most 3 % of elements may have another, and the scales of blocks are near. */
static void check_codes(const fsdp_safetensors *file, const fsdp_tensor *codes, const fsdp_tensor *scales, int which)
{
    static float actual[REFERENCE_NUMEL], blocks[REFERENCE_BLOCKS];
    const unsigned char *expected;
    char state[40], absmax[40];
    int off = 0;

    snprintf(state, sizeof state, "adamw8bit.state%d", which);
    snprintf(absmax, sizeof absmax, "adamw8bit.absmax%d", which);
    expected = values_of(file, state, REFERENCE_NUMEL);
    CHECK_OK(fsdp_tensor_read(codes, FSDP_F32, actual));
    CHECK_OK(fsdp_tensor_read(scales, FSDP_F32, blocks));
    CHECK_CLOSE(blocks, values_of(file, absmax, sizeof blocks), REFERENCE_BLOCKS, 1e-2, 0);
    for (int i = 0; i < REFERENCE_NUMEL; i++)
        off += (int)actual[i] != expected[i];
    CHECK(off <= REFERENCE_NUMEL * 3 / 100);
}

TEST(codes_are_those_of_bitsandbytes)
{
    fsdp_safetensors *file = open_reference("finetune/quant.safetensors");
    const float *with_sign = values_of(file, "dynamic.signed", 256 * sizeof(float));
    const float *without = values_of(file, "dynamic.unsigned", 256 * sizeof(float));

    for (int c = 0; c < 256; c++) {
        CHECK_NEAR(fsdp__byte_map_value(c, 1), with_sign[c], 1e-7);
        CHECK_NEAR(fsdp__byte_map_value(c, 0), without[c], 1e-7);
    }
    fsdp_safetensors_close(file);
}

/* Steps a weight of that shape from the reference's start. Its blocks of 256 go over rows, so rows of 256 have the
 * same ones; those of rows of 172 are others, and agree as far as rounding to bytes does. */
static void step_like_the_reference(int64_t rows, int64_t cols)
{
    static const char name[] = "model.layers.0.mlp.down_proj.weight";
    const fsdp_adam_options options = {
        .lr = 0.01, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1, .state_bits = 8};
    fsdp_safetensors *file = open_reference("finetune/quant.safetensors");
    fsdp_safetensors *model = open_reference("models/tiny-llama");
    static float actual[REFERENCE_NUMEL];
    fsdp_context *context = test_context();
    fsdp_optimizer *optimizer = NULL;
    fsdp_parameter item = {"weight", NULL};

    CHECK_OK(fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(rows, cols), FSDP_MEMORY_PARAMETER_SHARD,
                                &item.tensor));
    CHECK_OK(fsdp_tensor_write(item.tensor, FSDP_F32, values_of(model, name, sizeof actual)));
    CHECK_OK(fsdp_tensor_set_requires_grad(item.tensor, true));
    CHECK_OK(fsdp_adamw_create(&(fsdp_parameters){1, &item}, &options, &optimizer));
    for (int step = 0; step < REFERENCE_STEPS; step++) {
        fsdp_tensor *grad = NULL;

        CHECK_OK(
            fsdp_tensor_create(test_device(context), FSDP_F32, FSDP_SHAPE(rows, cols), FSDP_MEMORY_GRADIENT, &grad));
        CHECK_OK(fsdp_tensor_write(grad, FSDP_F32, step_values(file, "grad", step)));
        CHECK_OK(fsdp_tensor_set_grad(item.tensor, grad));
        fsdp_tensor_unref(grad);
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_tensor_read(item.tensor, FSDP_F32, actual));
        check_like(actual, step_values(file, "param", step), cols == 256 ? 2e-5 : 2e-4, 1e-2);
    }
    if (cols == 256) {
        const fsdp__optimizer_param *p = &optimizer->groups[0].params[0];

        check_codes(file, p->moment1, p->scale1, 1);
        check_codes(file, p->moment2, p->scale2, 2);
    }
    fsdp_optimizer_free(optimizer);
    fsdp_tensor_unref(item.tensor);
    fsdp_context_free(context);
    fsdp_safetensors_close(file);
    fsdp_safetensors_close(model);
}

TEST(steps_are_those_of_bitsandbytes)
{
    step_like_the_reference(REFERENCE_BLOCKS, 256);
    step_like_the_reference(64, 172);
}

/* ---- calls that make no sense ---- */

TEST(optimizers_refuse_what_makes_no_sense)
{
    fsdp_lion_options lion = fsdp_lion_options_default();
    fsdp_muon_options muon = fsdp_muon_options_default();
    fsdp_adam_options adam = fsdp_adam_options_default();
    fsdp_optimizer *optimizer = NULL;
    fixture f;

    setup(&f);
    CHECK_ERROR(fsdp_lion_create(&f.parameters, &lion, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_muon_create(&f.parameters, &muon, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &adam, NULL), FSDP_INVALID, "needs a place");
    CHECK_ERROR(fsdp_lion_create(&f.parameters, NULL, &optimizer), FSDP_INVALID, "needs options");
    CHECK_ERROR(fsdp_lion_create(NULL, &lion, &optimizer), FSDP_INVALID, "needs parameters");
    CHECK_ERROR(fsdp_muon_create(&f.parameters, NULL, &optimizer), FSDP_INVALID, "needs options");
    lion.beta2 = NAN;
    CHECK_ERROR(fsdp_lion_create(&f.parameters, &lion, &optimizer), FSDP_INVALID, "beta2 is nan");
    adam.state_bits = 4;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &adam, &optimizer), FSDP_INVALID, "state_bits is 4");
    adam.state_bits = 8;
    adam.eps = 0;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &adam, &optimizer), FSDP_INVALID, "eps is 0: it must be above 0 with");
    muon.momentum = 1;
    CHECK_ERROR(fsdp_muon_create(&f.parameters, &muon, &optimizer), FSDP_INVALID, "momentum is 1");
    lion = fsdp_lion_options_default();
    CHECK_OK(fsdp_lion_create(&f.parameters, &lion, &optimizer));
    fsdp_clear_error();
    CHECK_ERROR(fsdp_lion_add_group(NULL, &f.parameters, &lion), FSDP_INVALID, "optimizer is NULL");
    CHECK_ERROR(fsdp_lion_add_group(optimizer, &f.parameters, &lion), FSDP_INVALID, "twice");
    muon = fsdp_muon_options_default();
    CHECK_ERROR(fsdp_muon_add_group(optimizer, &f.parameters, &muon), FSDP_INVALID, "is not Muon");
    teardown(&f, optimizer);
}

TEST(state_of_another_optimizer_is_not_loaded)
{
    const fsdp_adam_options adam = fsdp_adam_options_default();
    const fsdp_lion_options options = fsdp_lion_options_default();
    fsdp_optimizer *lion = NULL, *adamw = NULL;
    fsdp_state_dict *dict = NULL;
    static float values[NUMEL];
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_adamw_create(&f.parameters, &adam, &adamw));
    CHECK_OK(fsdp_lion_create(&f.parameters, &options, &lion));
    step_once(&f, adamw, 1, values);
    CHECK_ERROR(fsdp_optimizer_state_dict(adamw, NULL), FSDP_INVALID, "needs a place");
    CHECK_OK(fsdp_optimizer_state_dict(adamw, &dict));
    /* Both keep exp_avg, but only AdamW a second moment. */
    CHECK_ERROR(fsdp_optimizer_load_state_dict(lion, dict), FSDP_INVALID, "cannot load 'state.weight.exp_avg_sq'");
    CHECK_EQ(lion->groups[0].params[0].steps, 0);
    CHECK_ERROR(fsdp_optimizer_rekey_state_dict(adamw, dict, true, NULL), FSDP_INVALID, "needs a place");
    fsdp_state_dict_free(dict);
    fsdp_optimizer_free(adamw);
    teardown(&f, lion);
}
