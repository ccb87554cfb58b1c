/* What happens around steps where teams of ranks compute each layer together, or each sequence: parameters that are
 * ignored, frozen and thawed, a step that fails or is skipped, calls between microbatches, averages of weights. All of
 * it gives what one rank does.
 * Links: parallel optim shard */
#include <math.h>
#include <unistd.h>

#include "fsdp/parallelize.h"
#include "parallel/meshes.h"
#include "train/config.h"
#include "train/story.h"

enum {
    STEPS = 4,
    ROWS = 4,
    LENGTH = 8, /* at most */
    VOCAB = 30
};

typedef struct layout {
    int ranks;
    fsdp__parallel_degrees degrees;
} layout;

static const layout layouts[] = {{2, {1, 1, 2}}, {4, {1, 1, 2}}, {4, {1, 1, 4}}, {4, {2, 1, 2}},
                                 {8, {2, 1, 2}}, {4, {1, 2, 1}}, {4, {1, 2, 2}}};

/* What is done beside plain steps. */
typedef enum event {
    FREEZES,   /* a block in step 0, which is thawed after it, and the head in step 2 */
    FAILS,     /* the forward of block 1 in step 1, the backward of block 0 in step 2; then it is evaluated */
    IGNORES,   /* parameters, which are frozen but over one team */
    OVERFLOWS, /* a part of one gradient on one rank in step 1, which is skipped */
    MIXES, /* a second microbatch, reduced with the first or before; what is whole is read and gathered in between */
    EVENTS
} event;

typedef struct outcome {
    double losses[STEPS], evaluated[STEPS];
    float *values; /* all weights, at the end */
    int64_t count;
} outcome;

typedef struct trial {
    event event;
    layout layout;
    bool sequence;
    const outcome *expected; /* NULL: this is the run on one rank */
    outcome *out;
    int culprit; /* rank whose gradient overflows */
} trial;

typedef struct fixture {
    const trial *trial;
    fsdp_context *context;
    fsdp__parallel_meshes meshes;
    int batch, batches, length; /* this team, of how many; tokens of a sequence */
    fsdp_module *model;
    fsdp_optimizer *optimizer;
    fsdp_grad_scaler *scaler;
    bool fails_forward, fails_backward;
} fixture;

/* ---- the model ---- */

static const char *const ignored[] = {"model.embed_tokens.weight", "model.layers.0.input_layernorm.weight",
                                      "model.layers.1.mlp.down_proj.weight"};

static void shard(fixture *f)
{
    fsdp_tensor *tensors[3];
    fsdp_shard_options options = {.mesh = f->meshes.sharded, .ignored_params = tensors};

    for (int i = 0; i < 3; i++)
        tensors[i] = CHECK_PTR(fsdp_module_parameter(f->model, ignored[i]));
    options.ignored_param_count = f->trial->event == IGNORES ? 3 : 0;
    for (int64_t i = 0; i < fsdp_model_block_count(f->model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(f->model, i), &options));
    CHECK_OK(fsdp_fully_shard(f->model, &options));
}

static fsdp_status fail_forward(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)module, (void)inputs, (void)count;
    return ((fixture *)arg)->fails_forward ? FSDP_FAIL(FSDP_INVALID, "told to fail") : FSDP_OK;
}

static fsdp_status fail_backward(void *arg, fsdp_module *module, fsdp_tensor **grads, int count)
{
    (void)module, (void)grads, (void)count;
    return ((fixture *)arg)->fails_backward ? FSDP_FAIL(FSDP_INVALID, "told to fail") : FSDP_OK;
}

static void cut(fixture *f, const fsdp_model_parallel_options *plan)
{
    const layout *l = &f->trial->layout;
    int team = (int)(l->degrees.cp * l->degrees.tp);

    f->batches = l->ranks / team;
    f->batch = fsdp_context_rank(f->context) / team;
    CHECK_OK(fsdp__parallel_meshes_create(f->context, &l->degrees, &f->meshes));
    if (f->meshes.tp)
        CHECK_OK(fsdp_model_parallelize(f->model, f->meshes.tp, plan));
    if (f->meshes.cp)
        CHECK_OK(fsdp_model_context_parallel(f->model, f->meshes.cp));
}

static void build(fixture *f)
{
    const trial *t = f->trial;
    const fsdp_model_parallel_options plan = {.sequence_parallel = t->sequence, .loss_parallel = t->sequence};
    fsdp_model_config config;
    fsdp_parameters parameters;
    fsdp_grad_scaler_state scale = fsdp_grad_scaler_state_default();

    CHECK_OK(fsdp_model_preset("llama-1m", &config));
    config.n_layers = 2;
    config.dim = 20;
    config.n_heads = config.n_kv_heads = 4;
    config.head_dim = 6;
    config.ffn_dim = 21;
    config.vocab_size = VOCAB;
    config.tie_word_embeddings = false;
    f->batches = 1;
    f->length = t->layout.degrees.cp > 1 ? LENGTH : LENGTH - 2; /* uneven over four ranks, or chunks for two */
    f->model = CHECK_PTR(fsdp_model_create(f->context, fsdp_meta(f->context), &config));
    if (t->expected) {
        cut(f, &plan);
        shard(f);
    }
    CHECK_OK(fsdp_module_materialize(f->model, test_device(f->context)));
    CHECK_OK(fsdp_module_initialize(f->model, 3));
    for (int i = 0; i < 3 && t->event == IGNORES; i++) /* nobody averages their gradients over FSDP's ranks */
        CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(f->model, ignored[i]),
                                               t->layout.ranks == t->layout.degrees.tp));
    CHECK_OK(fsdp_module_add_hooks(fsdp_model_block(f->model, 1),
                                   &(fsdp_module_hooks){.arg = f, .pre_forward = fail_forward}, NULL));
    CHECK_OK(fsdp_module_add_hooks(fsdp_model_block(f->model, 0),
                                   &(fsdp_module_hooks){.arg = f, .pre_backward = fail_backward}, NULL));
    CHECK_OK(fsdp_module_parameters(f->model, &parameters));
    CHECK_OK(fsdp_sgd_create(&parameters, &(fsdp_sgd_options){.lr = 0.1, .momentum = 0.9}, &f->optimizer));
    fsdp_parameters_release(&parameters);
    scale.scale = 1024;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(f->context), &scale, &f->scaler));
}

/* ---- steps ---- */

static fsdp_tensor *loss_of(const fixture *f, int step)
{
    int count = ROWS / f->batches, first = f->batch * count * f->length;
    int32_t values[2][ROWS * LENGTH];
    fsdp_device *device = test_device(f->context);

    for (int i = 0; i < count * f->length; i++)
        for (int k = 0; k < 2; k++)
            values[k][i] = ((first + i) * 7 + step + 5 * k) % VOCAB;
    return fsdp_call(f->model, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(count, f->length), values[0]),
                     fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(count, f->length), values[1]));
}

/* The mean over all ranks, of which one is late. */
static double mean_of(const fixture *f, fsdp_tensor *loss, int late)
{
    int world = fsdp_context_world_size(f->context);
    double value, sum = 0;
    void **all;
    size_t *bytes;

    CHECK_OK(fsdp_tensor_item(CHECK_PTR(loss), &value));
    if (fsdp_context_rank(f->context) == late % world)
        usleep(3000);
    CHECK_OK(fsdp_gather_objects(fsdp_world(f->context), &value, sizeof value, &all, &bytes));
    for (int r = 0; r < world; r++)
        sum += *(const double *)all[r];
    fsdp_objects_free(fsdp_world(f->context), all, bytes);
    return sum / world;
}

static double evaluate(const fixture *f, int step)
{
    double mean;

    if (fsdp_context_rank(f->context) == (step + 1) % fsdp_context_world_size(f->context))
        usleep(5000); /* the others are in the first layer by now */
    CHECK_OK(fsdp_scope_begin(f->context));
    fsdp_no_grad_begin(f->context);
    mean = mean_of(f, loss_of(f, step + 10), step);
    fsdp_no_grad_end(f->context);
    fsdp_scope_end(f->context, NULL);
    return mean;
}

static void set_trained(const fixture *f, int step)
{
    if (f->trial->event != FREEZES)
        return;
    CHECK_OK(fsdp_module_set_requires_grad(fsdp_model_block(f->model, 0), step != 0));
    CHECK_OK(fsdp_tensor_set_requires_grad(fsdp_module_parameter(f->model, "lm_head.weight"), step != 2));
}

/* A step of which nothing is left but what it has sent. */
static void fail_step(fixture *f, int step, bool backward)
{
    fsdp_tensor *loss;

    f->fails_forward = !backward;
    f->fails_backward = backward;
    CHECK_OK(fsdp_scope_begin(f->context));
    loss = loss_of(f, step);
    if (backward)
        CHECK_ERROR(fsdp_backward(CHECK_PTR(loss)), FSDP_INVALID, "told to fail");
    else
        CHECK_NULL(loss);
    CHECK_CONTAINS(fsdp_last_error(), "told to fail");
    f->fails_forward = f->fails_backward = false;
    fsdp_scope_end(f->context, NULL);
    if (f->trial->expected)
        CHECK_OK(fsdp_module_reset_iteration(f->model));
    fsdp_module_zero_grad(f->model);
}

/* Spoils what one rank has of a gradient: of one that is cut, or that its team has added up. */
static void overflow(const fixture *f)
{
    static const char *const names[] = {"model.layers.0.mlp.up_proj.weight", "model.layers.1.input_layernorm.weight",
                                        "model.layers.1.self_attn.o_proj.weight"};
    int culprit = f->trial->culprit;

    if (f->trial->expected && fsdp_context_rank(f->context) == culprit)
        CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_tensor_grad(fsdp_module_parameter(f->model, names[culprit % 3]))),
                                   INFINITY));
}

static float *weights_of(fsdp_module *model, int64_t *count)
{
    fsdp_parameters parameters;
    float *values = NULL;

    *count = 0;
    CHECK_OK(fsdp_module_reshard_all(model));
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *whole;

        CHECK_OK(fsdp_full_tensor(parameters.items[i].tensor, &whole));
        values = realloc(values, (size_t)(*count + fsdp_tensor_numel(whole)) * sizeof *values);
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values + *count));
        *count += fsdp_tensor_numel(whole);
        fsdp_tensor_unref(whole);
    }
    fsdp_parameters_release(&parameters);
    return values;
}

/* A microbatch before the step's own. What comes in between sees weights alone, whole by hand or not. */
static void mix(fixture *f, int step)
{
    bool sharded = f->trial->expected != NULL;
    int64_t count;

    if (sharded && step % 2 == 0)
        CHECK_OK(fsdp_module_set_requires_gradient_sync(f->model, false, true));
    CHECK_OK(fsdp_scope_begin(f->context));
    CHECK_OK(fsdp_backward(fsdp_grad_scaler_scale(f->scaler, CHECK_PTR(loss_of(f, step + 20)))));
    fsdp_scope_end(f->context, NULL);
    (void)evaluate(f, step + 3);
    free(weights_of(f->model, &count));
    if (sharded) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(f->model, true, true));
        CHECK_OK(fsdp_module_unshard(fsdp_model_block(f->model, step / 2)));
    }
}

static void take_step(fixture *f, int step, double *loss_out)
{
    bool skips = f->trial->event == OVERFLOWS && step == 1, stepped = true;
    fsdp_tensor *loss;

    set_trained(f, step);
    if (f->trial->event == FAILS && (step == 1 || step == 2))
        fail_step(f, step, step == 2);
    if (f->trial->event == MIXES)
        mix(f, step);
    CHECK_OK(fsdp_scope_begin(f->context));
    loss = CHECK_PTR(loss_of(f, step));
    *loss_out = mean_of(f, loss, step);
    CHECK_OK(fsdp_backward(fsdp_grad_scaler_scale(f->scaler, loss)));
    fsdp_scope_end(f->context, NULL);
    if (skips)
        overflow(f);
    if (f->trial->expected || !skips) {
        CHECK_OK(fsdp_grad_scaler_step(f->scaler, f->optimizer, &stepped));
        CHECK_EQ(stepped, !skips);
        CHECK_OK(fsdp_grad_scaler_update(f->scaler));
    }
    CHECK_OK(fsdp_optimizer_zero_grad(f->optimizer));
}

static void settle(const fixture *f, const outcome *got)
{
    const outcome *wanted = f->trial->expected;

    for (int s = 0; s < STEPS; s++) {
        CHECK_NEAR(got->losses[s], wanted->losses[s], 1e-5 * wanted->losses[s]);
        CHECK_NEAR(got->evaluated[s], wanted->evaluated[s], 1e-5 * wanted->evaluated[s]);
    }
    CHECK_EQ(got->count, wanted->count);
    CHECK_CLOSE(got->values, wanted->values, got->count, 1e-4, 1e-5);
    if (f->trial->event == OVERFLOWS)
        CHECK(fsdp_grad_scaler_get_state(f->scaler).scale == 512);
    free(got->values);
}

static void run(fsdp_context *context, void *arg)
{
    fixture f = {.trial = arg, .context = context};
    outcome got = {.values = NULL};

    build(&f);
    for (int s = 0; s < STEPS; s++) {
        take_step(&f, s, &got.losses[s]);
        got.evaluated[s] = evaluate(&f, s);
    }
    got.values = weights_of(f.model, &got.count);
    if (f.trial->expected)
        settle(&f, &got);
    else
        *f.trial->out = got;
    fsdp_grad_scaler_free(f.scaler);
    fsdp_optimizer_free(f.optimizer);
    fsdp_module_unref(f.model);
    fsdp__parallel_meshes_release(&f.meshes);
}

/* What one rank does; of what is not trained where there are several teams. */
static outcome alone(event what, layout l)
{
    outcome out = {.values = NULL};
    trial t = {.event = what, .layout = l, .out = &out};

    test_run_ranks(1, run, &t);
    return out;
}

static void check(event what)
{
    for (size_t l = 0; l < FSDP__COUNT_OF(layouts); l++) {
        outcome one = {.values = NULL};

        for (int sequence = layouts[l].degrees.cp > 1; sequence < 2; sequence++)
            if (test_takes((int)l + sequence + (int)what, 3, 8)) {
                if (!one.values)
                    one = alone(what, layouts[l]);
                test_run_ranks(layouts[l].ranks, run,
                               &(trial){.event = what, .layout = layouts[l], .sequence = sequence, .expected = &one});
            }
        free(one.values);
    }
}

CALL_TEST(what_is_frozen_is_thawed, check(FREEZES))
CALL_TEST(a_failed_step_leaves_nothing_behind_and_a_late_rank_changes_nothing, check(FAILS))
CALL_TEST(microbatches_add_up_whatever_is_called_between_them, check(MIXES))
CALL_TEST(ignored_parameters_stay_cut_and_unsharded, check(IGNORES))

TEST(an_overflow_on_any_rank_skips_the_step_on_all)
{
    static const layout four = {4, {1, 1, 2}};
    outcome one = alone(OVERFLOWS, four);

    for (int culprit = 0; culprit < 4; culprit += test_brief() ? 3 : 1)
        test_run_ranks(
            4, run,
            &(trial){.event = OVERFLOWS, .layout = four, .sequence = true, .expected = &one, .culprit = culprit});
    free(one.values);
}

/* ---- runs ---- */

static void set_team(story *s, int team)
{
    char text[12];

    snprintf(text, sizeof text, "%d", team);
    story_set(s, "parallelism.tensor_parallel_degree", text);
}

/* Heads that four can share; and no Adam, which makes much of little. */
static void set_model(story *s)
{
    test_set_keys(s->config, "model.dim=16 model.n_heads=4 model.n_kv_heads=4 optimizer.name=sgd");
}

/* Returns the float32 values that a run by teams of so many ranks exports. free() them. */
static float *exported_by(story *s, int world, int team, int64_t *count)
{
    uint64_t header;
    size_t bytes;
    float *values;
    char *file;

    set_team(s, team);
    test_remove_tree(s->model);
    story_go(s, world);
    file = story_weights(s, &bytes);
    memcpy(&header, file, sizeof header);
    *count = (int64_t)((bytes - 8 - header) / sizeof *values);
    values = malloc((size_t)*count * sizeof *values);
    memcpy(values, file + 8 + header, (size_t)*count * sizeof *values);
    return values;
}

static void check_exported(story *s, int world, int team, const float *wanted, int64_t wanted_count)
{
    int64_t count;
    float *got = exported_by(s, world, team, &count);

    CHECK_EQ(count, wanted_count);
    CHECK_CLOSE(got, wanted, count, 1e-4, 1e-6);
    free(got);
}

STORY_TEST(a_team_keeps_the_average_that_one_rank_keeps)
{
    static const int worlds[][2] = {{2, 2}, {4, 2}, {4, 4}};
    int64_t count;
    float *alone_values;

    set_model(s);
    test_set_keys(s->config,
                  "training.ema_decay=0.8 validation.share=0.2 validation.freq=2 validation.which=ema "
                  "export.which=ema export.path=%s",
                  s->model);
    alone_values = exported_by(s, 1, 1, &count);
    for (size_t i = test_brief() ? 1 : 0; i < FSDP__COUNT_OF(worlds); i += test_brief() ? 2 : 1)
        check_exported(s, worlds[i][0], worlds[i][1], alone_values, count);
    free(alone_values);
}

STORY_TEST(every_strategy_that_takes_teams_trains_as_one_rank)
{
    static const char *const strategies[] = {"fsdp2", "zero1", "zero2", "zero3", "hsdp"};
    int64_t count;
    float *alone_values;

    set_model(s);
    story_set(s, "export.path", s->model);
    alone_values = exported_by(s, 1, 1, &count);
    for (size_t i = 0; i < FSDP__COUNT_OF(strategies); i++) {
        story_set(s, "parallelism.strategy", strategies[i]);
        story_set(s, "parallelism.data_parallel_replicate_degree", strcmp(strategies[i], "hsdp") == 0 ? "2" : "1");
        if (test_takes((int)i, 1, 4))
            check_exported(s, 4, 2, alone_values, count);
        if (!test_brief() && test_takes((int)i + 1, 2, 1))
            check_exported(s, 8, 2, alone_values, count);
    }
    free(alone_values);
}

/* A scale that float16 cannot hold at first: the same steps are skipped on all ranks. */
STORY_TEST(float16_goes_with_teams)
{
    double exact[STORY_STEPS + 1];

    set_model(s);
    story_go(s, 1);
    memcpy(exact, s->losses, sizeof exact);
    story_set(s, "training.mixed_precision_param", "float16");
    set_team(s, 2);
    for (int world = 2; world <= 4; world += 2) {
        story_go(s, world);
        for (int step = 1; step <= STORY_STEPS; step++)
            CHECK_NEAR(s->losses[step], exact[step], 3e-3 * exact[step]);
    }
}
