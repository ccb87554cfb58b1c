/* Runs of PyTorch's FSDP2 whose options no key of a training run has, step by step through the engine's calls: custom
 * divisors, and an all-reduce on the last microbatch only. Losses, norms, counts and final weights must agree. */
#include <jansson.h>
#include <math.h>

#include "base/compiler.h"
#include "support/program.h"
#include "support/ranks.h"
#include "train/run.h"

enum {
    MOST_STEPS = 20,
    MOST_RANKS = 4
};

typedef struct replay {
    json_t *reference;
    fsdp_train_config *config;
    double losses[MOST_STEPS][MOST_RANKS];
} replay;

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_number_value(value) : otherwise;
}

/* ---- config ---- */

static void set_text(replay *r, const char *key, const char *value)
{
    CHECK_OK(fsdp_train_config_set(r->config, key, value));
}

static void set_number(replay *r, const char *key, double value)
{
    char text[40];

    snprintf(text, sizeof text, "%.17g", value);
    set_text(r, key, text);
}

static void set_config(replay *r)
{
    const json_t *optim = json_object_get(r->reference, "optim"), *betas = json_object_get(optim, "betas");
    double batch = number(r->reference, "global_batch", 0), accum = number(r->reference, "accum", 1);
    const json_t *mesh = json_object_get(r->reference, "mesh");
    char path[512];

    snprintf(path, sizeof path, "%s/models/%s", REFERENCE, json_string_value(json_object_get(r->reference, "model")));
    set_text(r, "model.path", path);
    snprintf(path, sizeof path, "%s/tokens.bin", REFERENCE);
    set_text(r, "data.path", path);
    set_text(r, "data.workers", "0");
    set_number(r, "training.steps", number(r->reference, "steps", 0));
    set_number(r, "training.seq_len", number(r->reference, "seq", 0));
    set_number(r, "training.global_batch_size", batch);
    set_number(r, "training.local_batch_size", batch / number(r->reference, "world_size", 1) / accum);
    set_text(r, "optimizer.name", json_string_value(json_object_get(optim, "name")));
    set_number(r, "optimizer.lr", number(optim, "lr", 0));
    set_number(r, "optimizer.weight_decay", number(optim, "weight_decay", 0));
    set_number(r, "optimizer.momentum", number(optim, "momentum", 0));
    set_text(r, "optimizer.nesterov", json_is_true(json_object_get(optim, "nesterov")) ? "true" : "false");
    if (betas) {
        set_number(r, "optimizer.beta1", json_number_value(json_array_get(betas, 0)));
        set_number(r, "optimizer.beta2", json_number_value(json_array_get(betas, 1)));
    }
    set_text(r, "parallelism.fsdp_reshard_after_forward", "always");
    if (mesh)
        set_number(r, "parallelism.data_parallel_replicate_degree", json_number_value(json_array_get(mesh, 0)));
}

/* ---- steps ---- */

static void set_divisor(fsdp_train_run *run, float factor)
{
    CHECK_OK(fsdp_module_set_gradient_divide_factor(run->model, factor));
    for (int64_t i = 0; i < fsdp_model_block_count(run->model); i++)
        CHECK_OK(fsdp_module_set_gradient_divide_factor(fsdp_model_block(run->model, i), factor));
}

/* The loss of this rank's part. */
static double microbatch(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;
    int64_t shape[] = {c->training.local_batch_size, c->training.seq_len};
    fsdp_batch batch;
    fsdp_tensor *loss;
    double value;

    CHECK_OK(fsdp_loader_next(run->loader, &batch));
    CHECK_OK(fsdp_scope_begin(run->context));
    loss = fsdp_call(run->model, fsdp_from_data(run->device, FSDP_I32, 2, shape, batch.inputs),
                     fsdp_from_data(run->device, FSDP_I32, 2, shape, batch.targets));
    loss = CHECK_PTR(fsdp_scale(loss, 1.0 / (double)run->microbatches));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(run->context, NULL);
    return value;
}

static void check_near(const char *what, int step, double actual, double expected, double relative)
{
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        TEST_FAIL("step %d: %s is %.9g, expected %.9g", step, what, actual, expected);
}

static void check_calls(const replay *r, fsdp_context *context)
{
    const json_t *counts = json_object_get(r->reference, "comm_per_step");
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], number(counts, "c10d._allgather_base_", 0));
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], number(counts, "c10d._reduce_scatter_base_", 0));
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE],
             number(counts, "c10d.allreduce_", 0) + number(counts, "c10d_functional.all_reduce", 0));
}

static void take_step(replay *r, fsdp_train_run *run, int step)
{
    bool last_only = json_is_true(json_object_get(r->reference, "all_reduce_last"));
    double loss = 0, norm,
           expected = json_number_value(json_array_get(json_object_get(r->reference, "grad_norm"), (size_t)step));

    fsdp_context_reset_comm_stats(run->context);
    for (int64_t micro = 0; micro < run->microbatches; micro++) {
        CHECK_OK(fsdp_module_set_requires_all_reduce(run->model, !last_only || micro == run->microbatches - 1, true));
        CHECK_OK(fsdp_module_set_is_last_backward(run->model, micro == run->microbatches - 1));
        loss += microbatch(run);
    }
    CHECK_OK(fsdp_clip_grad_norm(run->optimizer, number(r->reference, "clip", 0), &norm));
    if (step == 1)
        check_calls(r, run->context);
    check_near("the norm", step, norm, expected, 2e-4);
    CHECK_OK(fsdp_optimizer_step(run->optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(run->optimizer));
    r->losses[step][fsdp_context_rank(run->context)] = loss;
}

static void check_weights(const replay *r, fsdp_module *model)
{
    const json_t *sums = json_object_get(r->reference, "final_abs_sum"), *sum;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)sums, name, sum)
    {
        fsdp_tensor *p = fsdp_module_parameter(model, name), *whole;
        int64_t numel;
        double total = 0;
        float *values;

        if (!p)
            TEST_FAIL("the model has no parameter '%s'", name);
        CHECK_OK(fsdp_full_tensor(p, &whole));
        numel = fsdp_tensor_numel(whole);
        values = malloc((size_t)numel * sizeof *values);
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
        for (int64_t i = 0; i < numel; i++)
            total += fabs((double)values[i]);
        /* An attention key's bias has no true gradient. */
        check_near(name, MOST_STEPS, total, json_number_value(sum), strstr(name, "c_attn.bias") ? 1e-3 : 1e-4);
        fsdp_tensor_unref(whole);
        free(values);
    }
}

static void replay_rank(fsdp_context *context, void *arg)
{
    replay *r = arg;
    fsdp_train_run *run;

    CHECK_OK(fsdp_train_run_create(context, r->config, &run));
    set_divisor(run, (float)number(r->reference, "divide_factor", 0));
    for (int step = 0; step < (int)r->config->training.steps; step++)
        take_step(r, run, step);
    check_weights(r, run->model);
    fsdp_train_run_free(run);
}

static void repeat(const char *name)
{
    replay r = {0};
    char path[512];
    int world;

    snprintf(path, sizeof path, "%s/runs/%s.json", REFERENCE, name);
    r.reference = json_load_file(path, 0, NULL);
    CHECK(r.reference != NULL);
    world = (int)number(r.reference, "world_size", 1);
    CHECK_OK(fsdp_train_config_create(&r.config));
    set_config(&r);
    CHECK(r.config->training.steps <= MOST_STEPS && world <= MOST_RANKS);
    test_run_ranks(world, replay_rank, &r);
    for (int step = 0; step < (int)r.config->training.steps; step++) {
        double loss = 0;

        for (int rank = 0; rank < world; rank++)
            loss += r.losses[step][rank] / world;
        check_near("the loss", step, loss,
                   json_number_value(json_array_get(json_object_get(r.reference, "loss"), (size_t)step)), 2e-4);
    }
    fsdp_train_config_free(r.config);
    json_decref(r.reference);
}

static void a_divisor_of_one_sums(void **state)
{
    (void)state;
    repeat("fsdp2-llama-divide1-ws2");
}

static void any_divisor_will_do(void **state)
{
    (void)state;
    repeat("fsdp2-gpt2-divide5-sgd-ws3");
}

static void a_divisor_stands_for_all_replicas(void **state)
{
    (void)state;
    repeat("fsdp2-llama-divide3-hsdp-2x2");
}

static void the_all_reduce_comes_last(void **state)
{
    (void)state;
    repeat("fsdp2-llama-hsdp-arlast-accum3-2x2");
}

TEST_MAIN(cmocka_unit_test(a_divisor_of_one_sums), cmocka_unit_test(any_divisor_will_do),
          cmocka_unit_test(a_divisor_stands_for_all_replicas), cmocka_unit_test(the_all_reduce_comes_last))
