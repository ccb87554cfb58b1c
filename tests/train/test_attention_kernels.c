/* kernels.attention: what a run refuses at its start, and what it computes by cuDNN. */
#include "device/device.h"
#include "fsdp/train.h"
#include "support/ranks.h"
#include "train/config.h"
#include "train/run.h"
#include "train/run_config.h"

#include <math.h>

#ifdef FSDP_HAVE_FAKECUDA
#include "backend/fakecuda/control.h"
#endif

enum {
    STEPS = 3,
    LAYERS = 2
};

typedef struct fixture {
    char *directory, *data;
    fsdp_train_config *config;
} fixture;

static int setup(void **state)
{
    fixture *f = test_new(sizeof *f);
    char text[512];

    for (size_t i = 0; i < sizeof text; i++)
        text[i] = (char)('a' + i * 7 % 26);
    f->directory = test_directory();
    f->data = test_path(f->directory, "data.txt");
    test_write_file(f->data, text, sizeof text);
    f->config = test_config("model.preset=llama-1m model.n_layers=2 model.dim=32 model.n_heads=4 model.n_kv_heads=2 "
                            "model.ffn_dim=40 data.workers=0 metrics.log_freq=1 training.steps=3 training.seq_len=16 "
                            "training.local_batch_size=2 training.mixed_precision_param=bfloat16 "
                            "kernels.attention=fast data.path=%s",
                            f->data);
    *state = f;
    return 0;
}

/* ---- what is refused ---- */

TEST_OF(a_model_that_cudnn_is_not_asked_for_is_refused_with_what_to_set, setup, NULL, fixture *f)
{
    fsdp_train_run run = {.config = f->config, .model_config = {.max_seq_len = 16, .head_dim = 64}};

    CHECK_OK(fsdp__train_check_model(run.config, &run.model_config));
    run.model_config.architecture = FSDP_GEMMA2;
    run.model_config.attention_softcap = 50;
    CHECK_ERROR(fsdp__train_check_model(run.config, &run.model_config), FSDP_UNSUPPORTED, "attention_softcap 50");
    CHECK_CONTAINS(fsdp_last_error(), fsdp_architecture_name(FSDP_GEMMA2));
    CHECK_CONTAINS(fsdp_last_error(), "set kernels.attention=exact");
    run.model_config.attention_softcap = 0;
    run.model_config.head_dim = 256;
    CHECK_ERROR(fsdp__train_check_model(run.config, &run.model_config), FSDP_UNSUPPORTED, "have 256 numbers");
    run.model_config.head_dim = 20;
    CHECK_ERROR(fsdp__train_check_model(run.config, &run.model_config), FSDP_UNSUPPORTED, "have 20 numbers");
    run.model_config.head_dim = 64;
    SET(f, "training.mixed_precision_param", "float32");
    CHECK_ERROR(fsdp__train_check_model(run.config, &run.model_config), FSDP_UNSUPPORTED,
                "set training.mixed_precision_param=bfloat16");
    SET(f, "kernels.attention", "exact");
    CHECK_OK(fsdp__train_check_model(run.config, &run.model_config));
}

static void fail_on_cpu(fsdp_context *context, void *arg)
{
    const fixture *f = arg;
    fsdp_train_run *run = NULL;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_ERROR(fsdp_train_run_create(context, f->config, &run), FSDP_UNSUPPORTED,
                "fast attention is cuDNN's, which device 'cpu' does not have");
    CHECK_NULL(run);
}

TEST_OF(a_processor_has_no_fast_attention, setup, NULL, fixture *f)
{
    SET(f, "training.device", "cpu");
    for (int world = 1; world <= 3; world++) {
        f->config->training.global_batch_size = 2 * world;
        test_run_ranks(world, fail_on_cpu, f);
    }
}

/* ---- what is computed ---- */

#ifdef FSDP_HAVE_FAKECUDA

typedef struct losses {
    fixture *f;
    double of[STEPS];
} losses;

static void take_steps(fsdp_context *context, void *arg)
{
    losses *l = arg;
    fsdp_train_run *run = NULL;
    fsdp_train_report report;

    fsdp_context_set_log(context, FSDP_LOG_ERROR, NULL, NULL);
    CHECK_OK(fsdp_train_run_create(context, l->f->config, &run));
    for (int i = 0; i < STEPS; i++) {
        CHECK_OK(fsdp_train_step(run, &report));
        if (fsdp_context_rank(context) == 0)
            l->of[i] = report.loss;
    }
    fsdp_train_run_free(run);
}

static losses losses_by(fixture *f, const char *kernels, int world)
{
    losses l = {.f = f};

    SET(f, "kernels.attention", kernels);
    f->config->training.global_batch_size = 2 * world;
    fakecuda.fail_call("cudnnBackendExecute", 0, 0, false); /* counts from here */
    test_run_ranks(world, take_steps, &l);
    CHECK_EQ(fakecuda.uses("cudnnBackendExecute"), strcmp(kernels, "exact") == 0 ? 0 : 2 * LAYERS * STEPS * world);
    return l;
}

TEST_OF(a_run_by_cudnn_has_the_losses_of_own_kernels, setup, NULL, fixture *f)
{
    static const char *const others[] = {"fast", "fast_repeatable"};

    test_need_gpu();
    SET(f, "training.device", "cuda");
    f->config->metrics.exact = true;
    for (int world = 1; world <= 2; world++) {
        losses exact = losses_by(f, "exact", world);

        for (int i = 0; i < 2; i++) {
            losses fast = losses_by(f, others[i], world);

            for (int step = 0; step < STEPS; step++)
                CHECK_NEAR(fast.of[step], exact.of[step], 2e-3);
        }
    }
}
#endif
