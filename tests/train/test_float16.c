/* Computing in float16: near float32 under a scaled loss, and steps that a too large scale spoils are left out by all
 * ranks alike. */
#include <math.h>

#include "fsdp/train.h"
#include "shard/ways.h"
#include "train/config.h"
#include "train/run.h"

enum {
    STEPS = 12,
    MOST_RANKS = 4
};

typedef struct fixture {
    char *directory, *data;
    fsdp_train_config *config;
    double losses[STEPS], scale; /* scale: of the first step; 0: the default */
    bool scaled;                 /* the loss, in `train` */
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);

    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    test_write_letters(f->data, STEPS * 12 * 17, 23);
    f->config = test_config("model.preset=llama-1m model.n_layers=2 model.dim=24 model.n_heads=2 model.n_kv_heads=1 "
                            "model.ffn_dim=50 model.tie_word_embeddings=false data.workers=0 optimizer.lr=0.01 "
                            "training.steps=12 training.seq_len=16 training.global_batch_size=12 "
                            "training.local_batch_size=1 training.mixed_precision_param=float16 data.path=%s "
                            "metrics.log_freq=1",
                            f->data);
    *state = f;
    return 0;
}

/* Losses of all steps into the fixture, by rank 0. */
static void train(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    for (int step = 0; step < STEPS; step++) {
        CHECK_OK(fsdp_train_step(run, &report));
        CHECK(report.loss_scale == (f->scaled ? 65536 : 0));
        CHECK_EQ(report.skipped, 0);
        CHECK(isfinite(report.loss) && isfinite(report.grad_norm));
        if (fsdp_context_rank(context) == 0)
            f->losses[step] = report.loss;
    }
    fsdp_train_run_free(run);
}

TEST_OF(losses_are_those_of_float32, setup, NULL, fixture *f)
{
    double exact[STEPS], bound = test_has_cpu_bits() ? 2e-3 : 4e-3; /* a GPU's logits have 16 bits, too */

    f->config->training.mixed_precision_param = FSDP_F32;
    f->scaled = false;
    test_run_ranks(1, train, f);
    memcpy(exact, f->losses, sizeof exact);
    CHECK(exact[STEPS - 1] < 0.8 * exact[0]);
    f->scaled = true;
    for (int sent = 0; sent < 2; sent++) { /* computed in it, or sent in it */
        f->config->training.mixed_precision_param = sent ? FSDP_F32 : FSDP_F16;
        f->config->training.mixed_precision_reduce = sent ? FSDP_F16 : FSDP_F32;
        for (int world = 1; world <= MOST_RANKS; world += 1 + 2 * sent) {
            test_run_ranks(world, train, f);
            for (int step = 0; step < STEPS; step++)
                CHECK_NEAR(f->losses[step], exact[step], bound * exact[step]);
        }
    }
    f->config->training.mixed_precision_param = FSDP_F16;
    f->config->training.mixed_precision_reduce = FSDP_F32;
}

/* What this rank has of all parameters. */
static float *values_of(fsdp_module *model, int64_t *count)
{
    fsdp_parameters parameters;
    float *values = NULL;

    *count = 0;
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        int64_t numel = fsdp_tensor_numel(parameters.items[i].tensor);

        values = realloc(values, (size_t)(*count + numel + 1) * sizeof *values);
        CHECK_OK(fsdp_tensor_read(parameters.items[i].tensor, FSDP_F32, values + *count));
        *count += numel;
    }
    fsdp_parameters_release(&parameters);
    return values;
}

/* Steps are left out while the scale is too large, the same ones on all ranks, and change nothing. */
static void find_scale(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report = {.skipped = 0};
    fsdp_grad_scaler_state scaler = fsdp_grad_scaler_state_default();
    int64_t skipped = 0;

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    scaler.scale = f->scale;
    CHECK_OK(fsdp_grad_scaler_set_state(run->scaler, &scaler));
    for (int step = 0; step < STEPS; step++) {
        int64_t count;
        float *before = values_of(fsdp_train_run_model(run), &count), *after;

        CHECK_OK(fsdp_train_step(run, &report));
        CHECK(report.loss_scale == ldexp(f->scale, -(int)skipped));
        CHECK(!report.not_finite && isfinite(report.loss));
        CHECK_EQ(isfinite(report.grad_norm), report.skipped == skipped);
        after = values_of(fsdp_train_run_model(run), &count);
        CHECK_EQ(memcmp(before, after, (size_t)count * sizeof *after) == 0, report.skipped > skipped);
        skipped = report.skipped;
        free(before);
        free(after);
    }
    CHECK(skipped > 1 && skipped < STEPS - 2);
    fsdp_train_run_free(run);
}

TEST_OF(too_large_a_scale_costs_steps_not_the_run, setup, NULL, fixture *f)
{
    f->scale = 0x1p23;
    for (int policy = FSDP_TRAIN_STOP; policy <= FSDP_TRAIN_CONTINUE; policy++) {
        f->config->training.on_nan = policy;
        if (policy == FSDP_TRAIN_CONTINUE) { /* nothing but the scale is looked at before a step */
            f->config->training.enable_cpu_offload = true;
            f->config->training.max_norm = 0;
        }
        test_run_ranks(1 + policy, find_scale, f);
    }
}

/* Weights that float16 cannot hold: no scale helps. */
static void give_up(fsdp_context *context, void *arg)
{
    fixture *f = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;
    fsdp_tensor *weight;
    fsdp_grad_scaler_state scaler = fsdp_grad_scaler_state_default();

    CHECK_PTR(test_device(context));
    CHECK_OK(fsdp_train_run_create(context, f->config, &run));
    weight = CHECK_PTR(fsdp_module_parameter(fsdp_train_run_model(run), "lm_head.weight"));
    CHECK_OK(fsdp_tensor_fill_(weight, 1e6));
    scaler.scale = f->scale;
    CHECK_OK(fsdp_grad_scaler_set_state(run->scaler, &scaler));
    CHECK_ERROR(fsdp_train_step(run, &report), FSDP_NOT_FINITE, "step 1: loss nan");
    CHECK_CONTAINS(fsdp_last_error(), "(drawn by training.seed) are finite, so look at the data");
    CHECK(report.not_finite);
    CHECK_EQ(report.skipped, 1);
    CHECK_OK(fsdp_barrier(fsdp_world(context)));
    fsdp_train_run_free(run);
}

TEST_OF(a_loss_that_is_not_finite_ends_the_run, setup, NULL, fixture *f)
{
    f->config->training.on_nan = FSDP_TRAIN_STOP;
    f->scale = 65536;
    test_run_worlds(1, 3, give_up, f);
}

TEST_OF(metrics_tell_the_scale, setup, NULL, fixture *f)
{
    char *path = test_path(f->directory, "metrics.jsonl"), *text;

    CHECK_OK(fsdp_train_config_set(f->config, "metrics.jsonl", path));
    f->config->training.mixed_precision_param = FSDP_F16;
    f->scaled = true;
    test_run_ranks(2, train, f);
    text = test_read_file(path, &(size_t){0});
    CHECK_CONTAINS(text, ", \"skipped\": 0, \"loss_scale\": 65536, \"tokens_per_second\": ");
}

/* ---- the calls themselves, in every residence ---- */

/* Rank 0 alone spoils its rows of one gradient, in a step whose gradients were fine. */
WAYS_TEST(residences_scale_alike, WAYS_RANKS_AGREE)
{
    fsdp_grad_scaler_state state = fsdp_grad_scaler_state_default();
    way_run half = *run; /* which the ranks have in common */
    fsdp_grad_scaler *scaler;
    fsdp_optimizer *optimizer;
    fsdp_module *module;

    half.options.mp_policy.param_dtype = FSDP_F16;
    module = ways_net(context, &half, 1, FSDP_RESHARD_AUTO);
    optimizer = ways_optimizer(module);
    state.scale = 256;
    state.growth_interval = 2;
    CHECK_OK(fsdp_grad_scaler_create(fsdp_world(context), &state, &scaler));
    for (int step = 0; step < 6; step++) {
        float scale = (float)fsdp_grad_scaler_get_state(scaler).scale, norm_out;
        double norm;
        bool stepped;

        CHECK_OK(fsdp_scope_begin(context));
        CHECK_OK(fsdp_backward(fsdp_grad_scaler_scale(scaler, ways_loss(run, module, step))));
        fsdp_scope_end(context, NULL);
        dawdle(context, run);
        if (step == 3 && fsdp_context_rank(context) == 0)
            CHECK_OK(fsdp_tensor_fill_(fsdp_tensor_grad(fsdp_module_parameter(module, "norm.weight")), INFINITY));
        CHECK_OK(fsdp_grad_scaler_unscale(scaler, optimizer));
        CHECK_OK(fsdp_clip_grad_norm_type(optimizer, 0.5, step % 2 ? INFINITY : 3, false, &norm));
        CHECK_OK(fsdp_grad_scaler_step(scaler, optimizer, &stepped));
        CHECK_EQ(stepped, step != 3);
        CHECK_OK(fsdp_grad_scaler_update(scaler));
        CHECK_OK(fsdp_optimizer_zero_grad(optimizer));
        norm_out = (float)norm;
        note(context, run, &scale, 1);
        note(context, run, &norm_out, 1);
    }
    CHECK(fsdp_grad_scaler_get_state(scaler).scale == 512); /* up, down, up */
    note_weights(run, module);
    fsdp_grad_scaler_free(scaler);
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(module);
}
