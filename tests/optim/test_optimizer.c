/* SGD, Adam and AdamW against sequences made by torch.optim (tests/numbers/optim.py), and what surrounds them.
 * Links: data */
#include "fsdp/optim.h"

#include <math.h>

#include "base/compiler.h"
#include "device/impl.h"
#include "optim/optim.h"
#include "support/numbers.h"
#include "tensor/tensor.h"

enum {
    PARAMS = 3,
    NUMEL = 26,
    STEPS = 6
};

static const char *const param_names[PARAMS] = {"first.weight", "bias", "last"};
static const int param_ndim[PARAMS] = {2, 1, 2};
static const int64_t param_shape[PARAMS][2] = {{5, 3}, {7}, {2, 2}};
static const int param_first[PARAMS + 1] = {0, 15, 22, 26};

typedef struct fixture {
    fsdp_context *context;
    fsdp_tensor *tensors[PARAMS];
    fsdp_parameter items[PARAMS];
    fsdp_parameters parameters;
} fixture;

/* Before the first step, of all parameters, and their gradients in each step. */
static const float *start_values(void)
{
    return number_get("optim", "all", "start")->data;
}

static const float *step_gradients(void)
{
    return number_get("optim", "all", "grads")->data;
}

static fsdp_tensor *make_tensor(fsdp_context *context, int param, fsdp_dtype dtype, fsdp_memory_kind kind,
                                const float *values)
{
    fsdp_tensor *tensor = NULL;

    CHECK_OK(fsdp_tensor_create(test_device(context), dtype, param_ndim[param], param_shape[param], kind, &tensor));
    CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values + param_first[param]));
    return tensor;
}

static void setup(fixture *f)
{
    f->context = test_context();
    for (int i = 0; i < PARAMS; i++) {
        f->tensors[i] = make_tensor(f->context, i, FSDP_F32, FSDP_MEMORY_PARAMETER_SHARD, start_values());
        CHECK_OK(fsdp_tensor_set_requires_grad(f->tensors[i], true));
        f->items[i] = (fsdp_parameter){param_names[i], f->tensors[i]};
    }
    f->parameters = (fsdp_parameters){PARAMS, f->items};
}

static void teardown(fixture *f)
{
    for (int i = 0; i < PARAMS; i++)
        fsdp_tensor_unref(f->tensors[i]);
    test_drop_workspace(f->context);
    CHECK_EQ(test_live_bytes(f->context), 0);
    fsdp_context_free(f->context);
}

static bool has_gradient(int param, int step)
{
    return !((param == 1 && step == 2) || (param == 2 && step < 3));
}

static void give_gradient(fixture *f, int param, const float *values)
{
    fsdp_tensor *grad = make_tensor(f->context, param, FSDP_F32, FSDP_MEMORY_GRADIENT, values);

    CHECK_OK(fsdp_tensor_set_grad(f->tensors[param], grad));
    fsdp_tensor_unref(grad);
}

static void read_params(const fixture *f, float *out)
{
    for (int i = 0; i < PARAMS; i++)
        CHECK_OK(fsdp_tensor_read(f->tensors[i], FSDP_F32, out + param_first[i]));
}

static void hold_to_numbers(fixture *f, fsdp_optimizer *optimizer, double max_norm, const char *name)
{
    const float *kept = number_get("optim", name, "kept")->data;

    for (int step = 1; step <= STEPS; step++) {
        float actual[NUMEL];

        for (int i = 0; i < PARAMS; i++)
            if (has_gradient(i, step))
                give_gradient(f, i, step_gradients() + (step - 1) * NUMEL);
        if (max_norm > 0) {
            double norm = -1, expected = (double)number_get("optim", name, "norms")->data[step - 1];

            CHECK_OK(fsdp_clip_grad_norm(optimizer, max_norm, &norm));
            CHECK_NEAR(norm, expected, 2e-6 * expected);
        }
        CHECK_OK(fsdp_optimizer_step(optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        for (int i = 0; i < PARAMS; i++)
            CHECK_NULL(fsdp_tensor_grad(f->tensors[i]));
        if (step != 1 && step != 3 && step != 6)
            continue;
        read_params(f, actual);
        CHECK_CLOSE(actual, kept, NUMEL, 1e-6, 2e-7);
        kept += NUMEL;
    }
}

TEST(sgd_is_pytorchs)
{
    static const struct {
        fsdp_sgd_options options;
        double max_norm;
        const char *name;
    } cases[] = {
        {{.lr = 0.1}, 0, "sgd"},
        {{.lr = 0.1, .weight_decay = 0.05}, 0, "sgd_weight_decay"},
        {{.lr = 0.05, .momentum = 0.9}, 0, "sgd_momentum"},
        {{.lr = 0.05, .momentum = 0.8, .dampening = 0.3, .weight_decay = 0.01}, 0, "sgd_dampening"},
        {{.lr = 0.05, .momentum = 0.9, .weight_decay = 0.01, .nesterov = true}, 1.0, "sgd_nesterov"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fsdp_optimizer *optimizer = NULL;
        fixture f;

        setup(&f);
        CHECK_OK(fsdp_sgd_create(&f.parameters, &cases[i].options, &optimizer));
        hold_to_numbers(&f, optimizer, cases[i].max_norm, cases[i].name);
        fsdp_optimizer_free(optimizer);
        teardown(&f);
    }
}

TEST(adam_and_adamw_are_pytorchs)
{
    static const struct {
        bool decoupled;
        fsdp_adam_options options;
        double max_norm;
        const char *name;
    } cases[] = {
        {false, {.lr = 1e-3, .beta1 = 0.9, .beta2 = 0.999, .eps = 1e-8}, 0, "adam"},
        {false, {.lr = 1e-2, .beta1 = 0.8, .beta2 = 0.95, .eps = 1e-3, .weight_decay = 0.1}, 0, "adam_weight_decay"},
        {true, {.lr = 3e-3, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .weight_decay = 0.1}, 1.0, "adamw"},
        {true, {.lr = 1e-2, .beta1 = 0.0, .beta2 = 0.5, .eps = 1e-2}, 100.0, "adamw_no_decay"},
    };

    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        fsdp_optimizer *optimizer = NULL;
        fixture f;

        setup(&f);
        CHECK_OK(
            (cases[i].decoupled ? fsdp_adamw_create : fsdp_adam_create)(&f.parameters, &cases[i].options, &optimizer));
        hold_to_numbers(&f, optimizer, cases[i].max_norm, cases[i].name);
        CHECK_EQ(optimizer->groups[0].params[0].steps, 6);
        CHECK_EQ(optimizer->groups[0].params[1].steps, 5);
        CHECK_EQ(optimizer->groups[0].params[2].steps, 4);
        fsdp_optimizer_free(optimizer);
        teardown(&f);
    }
}

TEST(groups_have_their_own_options)
{
    fsdp_adam_options first = fsdp_adam_options_default(), second = first;
    fsdp_parameters some, rest;
    fsdp_optimizer *optimizer = NULL, *alone = NULL;
    float together[NUMEL], apart[NUMEL];
    fixture f;

    second.lr = 0.5;
    second.weight_decay = 0.25;
    setup(&f);
    some = (fsdp_parameters){1, f.items};
    rest = (fsdp_parameters){2, f.items + 1};
    CHECK_OK(fsdp_adamw_create(&some, &first, &optimizer));
    CHECK_ERROR(fsdp_adam_add_group(optimizer, &f.parameters, &second), FSDP_INVALID, "'first.weight' twice");
    CHECK_EQ(fsdp_optimizer_group_count(optimizer), 1);
    CHECK_OK(fsdp_adam_add_group(optimizer, &rest, &second));
    CHECK_EQ(fsdp_optimizer_group_count(optimizer), 2);
    CHECK_NEAR(fsdp_optimizer_lr(optimizer, 1), 0.5, 0);
    CHECK_OK(fsdp_optimizer_set_lr(optimizer, 1, 0.125));
    CHECK_ERROR(fsdp_optimizer_set_lr(optimizer, 1, (double)NAN), FSDP_INVALID, "option lr is nan");
    CHECK_NEAR(fsdp_optimizer_lr(optimizer, 1), 0.125, 0);
    CHECK_NEAR(fsdp_optimizer_lr(optimizer, 0), 1e-3, 0);
    CHECK_NEAR(fsdp_optimizer_lr(optimizer, 2), 0, 0);
    CHECK_ERROR(fsdp_optimizer_set_lr(optimizer, 2, 1), FSDP_INVALID, "of group 2: the optimizer has 2");
    CHECK_STATUS(fsdp_sgd_add_group(optimizer, &rest, &(fsdp_sgd_options){.lr = 1}), FSDP_INVALID);
    for (int i = 0; i < PARAMS; i++)
        give_gradient(&f, i, step_gradients());
    CHECK_OK(fsdp_optimizer_step(optimizer));
    read_params(&f, together);
    fsdp_optimizer_free(optimizer);
    teardown(&f);

    setup(&f);
    some = (fsdp_parameters){1, f.items};
    rest = (fsdp_parameters){2, f.items + 1};
    second.lr = 0.125;
    CHECK_OK(fsdp_adamw_create(&some, &first, &optimizer));
    CHECK_OK(fsdp_adamw_create(&rest, &second, &alone));
    for (int i = 0; i < PARAMS; i++)
        give_gradient(&f, i, step_gradients());
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_OK(fsdp_optimizer_step(alone));
    read_params(&f, apart);
    CHECK_BYTES(together, apart, sizeof apart);
    fsdp_optimizer_free(optimizer);
    fsdp_optimizer_free(alone);
    teardown(&f);
}

TEST(state_is_counted_and_made_at_the_first_step)
{
    fsdp_memory_stats stats;
    fsdp_optimizer *optimizer = NULL;
    fsdp_adam_options options = fsdp_adam_options_default();
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_adamw_create(&f.parameters, &options, &optimizer));
    fsdp_device_memory(test_device(f.context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 0);
    CHECK_OK(fsdp_optimizer_step(optimizer)); /* no gradient: nothing to do */
    fsdp_device_memory(test_device(f.context), &stats);
    CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 0);
    for (int step = 0; step < 3; step++) {
        for (int i = 0; i < PARAMS; i++)
            give_gradient(&f, i, step_gradients());
        CHECK_OK(fsdp_optimizer_step(optimizer));
        fsdp_device_memory(test_device(f.context), &stats);
        CHECK_EQ(stats.live_bytes[FSDP_MEMORY_OPTIMIZER_STATE], 2 * (64 + 64 + 64));
    }
    fsdp_optimizer_free(optimizer);
    teardown(&f);
}

TEST(frozen_parameters_are_left_alone)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_optimizer *optimizer = NULL;
    float after[NUMEL];
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_tensor_set_requires_grad(f.tensors[1], false));
    CHECK_OK(fsdp_adamw_create(&f.parameters, &options, &optimizer));
    CHECK_EQ(optimizer->groups[0].count, 2);
    CHECK_STRING(optimizer->groups[0].params[1].name, "last");
    give_gradient(&f, 0, step_gradients());
    give_gradient(&f, 2, step_gradients());
    CHECK_OK(fsdp_optimizer_step(optimizer));
    read_params(&f, after);
    CHECK_BYTES(after + 15, start_values() + 15, 7 * sizeof *after);
    CHECK(memcmp(after, start_values(), 15 * sizeof *after) != 0);
    fsdp_optimizer_free(optimizer);
    teardown(&f);
}

TEST(the_clip_factor_holds_for_one_step)
{
    fsdp_optimizer *optimizer = NULL;
    float before[NUMEL], after[NUMEL];
    double norm = -1;
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_sgd_create(&f.parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    CHECK_OK(fsdp_clip_grad_norm(optimizer, 1, &norm));
    CHECK_NEAR(norm, 0, 0); /* no gradient anywhere */
    for (int i = 0; i < PARAMS; i++)
        give_gradient(&f, i, step_gradients());
    CHECK_OK(fsdp_clip_grad_norm(optimizer, 0, &norm));
    CHECK(norm > 0);
    CHECK_NEAR(optimizer->grad_scale, 1, 0);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, INFINITY, NULL));
    CHECK_NEAR(optimizer->grad_scale, 1, 0);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, norm / 4, NULL));
    CHECK_NEAR(optimizer->grad_scale, 0.25, 1e-6);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, norm / 2, NULL)); /* anew, not on top */
    CHECK_NEAR(optimizer->grad_scale, 0.5, 1e-6);
    read_params(&f, before);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    CHECK_NEAR(optimizer->grad_scale, 1, 0);
    read_params(&f, after);
    for (int i = 0; i < NUMEL; i++)
        CHECK_NEAR(after[i], before[i] - 0.5 * step_gradients()[i], 1e-6);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, norm / 2, NULL));
    CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
    CHECK_NEAR(optimizer->grad_scale, 1, 0);
    CHECK_STATUS(fsdp_clip_grad_norm(optimizer, -1, NULL), FSDP_INVALID);
    CHECK_STATUS(fsdp_clip_grad_norm(optimizer, NAN, NULL), FSDP_INVALID);
    fsdp_optimizer_free(optimizer);
    teardown(&f);
}

TEST(infinite_and_nan_norms_are_told)
{
    float values[NUMEL];
    fsdp_optimizer *optimizer = NULL;
    double norm = 0;
    fixture f;

    memcpy(values, step_gradients(), sizeof(values));
    setup(&f);
    CHECK_OK(fsdp_sgd_create(&f.parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    values[3] = INFINITY;
    give_gradient(&f, 0, values);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, 1, &norm));
    CHECK(isinf(norm));
    CHECK_NEAR(optimizer->grad_scale, 0, 0);
    values[3] = NAN;
    give_gradient(&f, 0, values);
    CHECK_OK(fsdp_clip_grad_norm(optimizer, 1, &norm));
    CHECK(isnan(norm));
    CHECK(isnan(optimizer->grad_scale));
    fsdp_optimizer_free(optimizer);
    teardown(&f);
}

typedef struct guard_log {
    const fixture *f;
    fsdp__storage *told[PARAMS];
    int count;
    int refuse_at;      /* the how-manieth is refused; 0: none */
    fsdp_tensor *moved; /* moves the parameter's bytes here */
} guard_log;

static fsdp_status note_write(void *arg, fsdp__storage *storage)
{
    guard_log *log = arg;
    float now[NUMEL];

    read_params(log->f, now);
    CHECK_BYTES(now, start_values(), sizeof now); /* nothing is written before all were told */
    log->told[log->count++] = storage;
    if (log->count == log->refuse_at)
        return FSDP_FAIL(FSDP_STATE, "peers still read");
    if (storage == log->f->tensors[0]->storage) { /* may get other bytes */
        CHECK_OK(fsdp_tensor_copy_(log->moved, log->f->tensors[0]));
        fsdp__storage_drop(storage);
        fsdp__storage_adopt(storage, fsdp_tensor_data(log->moved), NULL, NULL);
    }
    return FSDP_OK;
}

TEST(a_step_tells_before_it_writes)
{
    fsdp_sgd_options options = {.lr = 1};
    fsdp_tensor *empty = NULL, *grad;
    fixture f;

    for (int refuse_at = 0; refuse_at <= 3; refuse_at++) {
        guard_log log = {.f = &f, .refuse_at = refuse_at};
        fsdp_optimizer *optimizer = NULL;
        float after[NUMEL];

        setup(&f);
        CHECK_OK(fsdp_tensor_create(test_device(f.context), FSDP_F32, FSDP_SHAPE(0, 3), FSDP_MEMORY_PARAMETER_SHARD,
                                    &empty));
        grad = CHECK_PTR(fsdp_zeros(test_device(f.context), FSDP_F32, FSDP_SHAPE(0, 3))); /* the context's */
        CHECK_OK(fsdp_tensor_create(test_device(f.context), FSDP_F32, param_ndim[0], param_shape[0],
                                    FSDP_MEMORY_PARAMETER_SHARD, &log.moved));
        CHECK_OK(fsdp_tensor_set_requires_grad(empty, true));
        CHECK_OK(fsdp_sgd_create(&f.parameters, &options, &optimizer));
        CHECK_OK(fsdp_sgd_add_group(optimizer, &(fsdp_parameters){1, &(fsdp_parameter){"empty", empty}}, &options));
        give_gradient(&f, 0, step_gradients());
        give_gradient(&f, 2, step_gradients());
        CHECK_OK(fsdp_tensor_set_grad(empty, grad));
        for (int i = 0; i < PARAMS; i++)
            f.tensors[i]->storage->guard = (fsdp__storage_guard){.before_write = note_write, .arg = &log};
        empty->storage->guard = (fsdp__storage_guard){.before_write = note_write, .arg = &log};
        if (refuse_at == 0) {
            CHECK_OK(fsdp_optimizer_step(optimizer));
            CHECK_EQ(log.count, 3); /* 'bias' has no gradient */
            CHECK(log.told[0] == f.tensors[0]->storage && log.told[1] == f.tensors[2]->storage);
            CHECK(log.told[2] == empty->storage);
            CHECK_OK(fsdp_tensor_read(log.moved, FSDP_F32, after));
            for (int i = 0; i < 15; i++)
                CHECK_NEAR(after[i], start_values()[i] - step_gradients()[i], 0);
        } else {
            CHECK_ERROR(fsdp_optimizer_step(optimizer), FSDP_STATE, "peers still read");
            CHECK_EQ(log.count, refuse_at);
            read_params(&f, after);
            CHECK_BYTES(after, start_values(), sizeof after);
            CHECK_EQ(optimizer->groups[0].params[0].steps, 0);
        }
        fsdp_optimizer_free(optimizer);
        fsdp_tensor_unref(log.moved);
        fsdp_tensor_unref(empty);
        teardown(&f);
    }
}

/* One parameter on the CPU, one each on two devices that the host cannot touch. */
CONTEXT_TEST(a_step_and_a_norm_work_where_the_tensors_are)
{
    fsdp_device *devices[] = {fsdp_cpu(context), fsdp__device_open(context, "sim", 0),
                              fsdp__device_open(context, "sim", 1)};
    fsdp_parameter items[FSDP__COUNT_OF(devices)];
    const float gradient[2] = {1, 2}, start[2] = {10, 20};
    fsdp_optimizer *optimizer = NULL;
    double norm;

    for (size_t i = 0; i < FSDP__COUNT_OF(devices); i++) {
        fsdp_tensor *grad, *tensor = NULL;

        CHECK_OK(
            fsdp_tensor_create(CHECK_PTR(devices[i]), FSDP_F32, FSDP_SHAPE(2), FSDP_MEMORY_PARAMETER_SHARD, &tensor));
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, start));
        CHECK_OK(fsdp_tensor_set_requires_grad(tensor, true));
        grad = CHECK_PTR(fsdp_from_data(devices[i], FSDP_F32, FSDP_SHAPE(2), gradient));
        CHECK_OK(fsdp_tensor_set_grad(tensor, grad));
        items[i] = (fsdp_parameter){param_names[i], tensor};
    }
    CHECK_OK(fsdp_sgd_create(&(fsdp_parameters){FSDP__COUNT_OF(devices), items},
                             &(fsdp_sgd_options){.lr = 1, .momentum = 0.5f}, &optimizer));
    CHECK_OK(fsdp_clip_grad_norm(optimizer, 0, &norm));
    CHECK_NEAR(norm * norm, 15, 1e-5);
    CHECK_OK(fsdp_optimizer_step(optimizer));
    fsdp_optimizer_free(optimizer);
    for (size_t i = 0; i < FSDP__COUNT_OF(devices); i++) {
        float now[2];

        CHECK_OK(fsdp_tensor_read(items[i].tensor, FSDP_F32, now));
        CHECK_NEAR(now[0], 9, 0);
        CHECK_NEAR(now[1], 18, 0);
        fsdp_tensor_unref(items[i].tensor);
    }
}

TEST(bad_parameters_are_named)
{
    fsdp_adam_options options = fsdp_adam_options_default();
    fsdp_tensor *meta = NULL, *half = NULL, *turned = NULL;
    fsdp_optimizer *optimizer = NULL;
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_tensor_create(fsdp_meta(f.context), FSDP_F32, 1, (const int64_t[]){3}, FSDP_MEMORY_PARAMETER_SHARD,
                                &meta));
    half = make_tensor(f.context, 1, FSDP_BF16, FSDP_MEMORY_PARAMETER_SHARD, start_values());
    CHECK_OK(fsdp__view_transpose(f.tensors[0], 0, 1, &turned));
    CHECK_OK(fsdp_tensor_set_requires_grad(meta, true));
    CHECK_OK(fsdp_tensor_set_requires_grad(half, true));
    CHECK_OK(fsdp_tensor_set_requires_grad(turned, true));
    f.items[1].tensor = meta;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &options, &optimizer), FSDP_STATE,
                "cannot optimize what is still on the meta device: 'bias': call");
    f.items[1].tensor = half;
    half->dtype = FSDP_I32;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &options, &optimizer), FSDP_UNSUPPORTED,
                "'bias': it is int32, which is not floating");
    half->storage->kind = FSDP_MEMORY_UNSHARDED_PARAMETER;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &options, &optimizer), FSDP_STATE,
                "cannot optimize 'bias': it is gathered now and will be released: reshard its module first");
    half->storage->kind = FSDP_MEMORY_PARAMETER_SHARD;
    f.items[1].tensor = turned;
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &options, &optimizer), FSDP_UNSUPPORTED, "not contiguous");
    f.items[1].tensor = f.tensors[0];
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &options, &optimizer), FSDP_INVALID, "'bias' twice: it comes earlier");
    CHECK_NULL(optimizer);
    fsdp_tensor_unref(meta);
    fsdp_tensor_unref(half);
    fsdp_tensor_unref(turned);
    teardown(&f);
}

/* A parameter that has become another since the optimizer was made. */
CONTEXT_TEST(an_optimizer_that_could_not_be_made_gives_its_error)
{
    const fsdp_adam_options adam = {.lr = -1};
    fsdp_state_dict *made = NULL;
    fsdp_optimizer *none = NULL;

    for (int failed = 0; failed < 2; failed++) {
        const char *said = failed ? "abacus" : ": the optimizer is NULL";
        fsdp_status status = FSDP_INVALID;

        fsdp_clear_error();
        if (failed && !fsdp_device_open(context, "abacus"))
            status = fsdp_last_status();
        CHECK_ERROR(fsdp_optimizer_step(none), status, said);
        CHECK_ERROR(fsdp_optimizer_step_parameters(none, NULL, 0), status, said);
        CHECK_ERROR(fsdp_optimizer_zero_grad(none), status, said);
        CHECK_ERROR(fsdp_clip_grad_norm(none, 1, NULL), status, said);
        CHECK_ERROR(fsdp_adam_add_group(none, NULL, &adam), status, said);
        CHECK_ERROR(fsdp_optimizer_state_dict(none, &made), status, said);
        CHECK_NULL(made);
        CHECK_ERROR(fsdp_optimizer_load_state_dict(none, NULL), status, said);
        CHECK_ERROR(fsdp_optimizer_load_full_state_dict(none, NULL, NULL), status, said);
    }
    CHECK_EQ(fsdp_optimizer_group_count(none), 0);
    CHECK_ERROR(fsdp_optimizer_set_lr(none, 0, 1), FSDP_INVALID, "the optimizer is NULL");
    CHECK_NEAR(fsdp_optimizer_lr(none, 0), 0, 0);
}

TEST(a_step_names_parameters_that_are_not_floating)
{
    fsdp_optimizer *optimizer = NULL;
    float after[NUMEL];
    fixture f;

    setup(&f);
    CHECK_OK(fsdp_sgd_create(&f.parameters, &(fsdp_sgd_options){.lr = 1}, &optimizer));
    for (int i = 0; i < PARAMS; i++)
        give_gradient(&f, i, step_gradients());
    f.tensors[2]->dtype = FSDP_I32;
    CHECK_ERROR(fsdp_optimizer_step(optimizer), FSDP_UNSUPPORTED, "'last': it is int32");
    f.tensors[2]->dtype = FSDP_F32;
    read_params(&f, after);
    CHECK_BYTES(after, start_values(), sizeof after); /* the others have not stepped either */
    fsdp_optimizer_free(optimizer);
    teardown(&f);
}

TEST(bad_options_are_refused)
{
    fsdp_adam_options adam[6];
    const fsdp_sgd_options sgd[] = {{.lr = -1},
                                    {.lr = 1, .momentum = -0.5},
                                    {.lr = 1, .weight_decay = NAN},
                                    {.lr = 1, .nesterov = true},
                                    {.lr = 1, .momentum = 0.5, .dampening = 0.5, .nesterov = true}};
    fsdp_optimizer *optimizer = NULL;
    fixture f;

    setup(&f);
    for (int i = 0; i < 6; i++)
        adam[i] = fsdp_adam_options_default();
    adam[0].lr = -1;
    adam[1].beta1 = 1;
    adam[2].beta2 = -0.1;
    adam[3].eps = -1;
    adam[4].weight_decay = -1;
    adam[5].lr = NAN;
    for (int i = 0; i < 6; i++) {
        CHECK_ERROR(fsdp_adam_create(&f.parameters, &adam[i], &optimizer), FSDP_INVALID, "optimizer option");
        CHECK_NULL(optimizer);
    }
    /* only some fields set: not a choice of sign descent that divides 0 by 0 */
    CHECK_ERROR(fsdp_adamw_create(&f.parameters, &(fsdp_adam_options){.lr = 1e-3}, &optimizer), FSDP_INVALID,
                "beta1, beta2 and eps are all 0, as in a struct of which only some fields were set: begin with "
                "fsdp_adam_options_default()");
    for (int i = 0; i < 5; i++)
        CHECK_STATUS(fsdp_sgd_create(&f.parameters, &sgd[i], &optimizer), FSDP_INVALID);
    CHECK_STATUS(fsdp_adamw_create(&f.parameters, NULL, &optimizer), FSDP_INVALID);
    CHECK_STATUS(fsdp_sgd_create(NULL, &(fsdp_sgd_options){.lr = 1}, &optimizer), FSDP_INVALID);
    CHECK_NULL(optimizer);
    fsdp_optimizer_free(NULL);
    teardown(&f);
}

TEST(a_step_survives_every_failed_allocation)
{
    fsdp_adam_options options = fsdp_adam_options_default();

    for (long n = 1, hit = 1; hit; n++) {
        fsdp_optimizer *optimizer = NULL;
        fsdp_status status;
        float after[NUMEL];
        fixture f;

        setup(&f);
        for (int i = 0; i < PARAMS; i++)
            give_gradient(&f, i, step_gradients());
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, n);
        status = fsdp_adamw_create(&f.parameters, &options, &optimizer);
        CHECK((optimizer != NULL) == (status == FSDP_OK));
        if (status == FSDP_OK)
            status = fsdp_clip_grad_norm(optimizer, 0.5, NULL);
        if (status == FSDP_OK)
            status = fsdp_optimizer_step(optimizer);
        CHECK_FAULT(FSDP__FAULT_ALLOCATION, status);
        hit = fsdp__fault_hit(FSDP__FAULT_ALLOCATION);
        fsdp__fault_arm(FSDP__FAULT_ALLOCATION, 0);
        if (status != FSDP_OK) { /* nothing was changed */
            read_params(&f, after);
            CHECK_BYTES(after, start_values(), sizeof after);
        }
        fsdp_optimizer_free(optimizer);
        teardown(&f);
    }
}
