/* Reference runs of PyTorch's FSDP2 with options that have no key in a config: 20 steps on ranks that are threads, with
 * the same losses, norms, shards and bytes on the wire. */
#include <jansson.h>
#include <math.h>

#include "fsdp/hub.h"
#include "fsdp/optim.h"
#include "fsdp/shard.h"
#include "support/ranks.h"
#include "tensor/tensor.h"

#define REFERENCE TEST_SOURCE_DIR "/tests/reference"

typedef struct run {
    const char *name, *model;
    double relative; /* of losses; norms of bf16 scatter more */
} run;

static const run runs[] = {
    {"fsdp2-gpt2-shard1-ws2", "tiny-gpt2", 2e-4},
    {"fsdp2-llama-shard1-ws2", "tiny-llama", 2e-4},
    {"fsdp2-llama-bf16-nored-accum3-ws2", "tiny-llama", 1e-2},
};

enum {
    RUNS = sizeof runs / sizeof runs[0],
    MOST_TOKENS = 40000
};

typedef struct training {
    const run *run;
    const json_t *reference;
    fsdp_module *model;
    fsdp_optimizer *optimizer;
    int rank, world, accum, batch, seq;
    uint16_t tokens[MOST_TOKENS];
} training;

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_number_value(value) : otherwise;
}

static bool is_set(const json_t *object, const char *key)
{
    return json_is_true(json_object_get(object, key));
}

/* ---- building ---- */

/* Shard(1) of every matrix whose columns divide. */
static fsdp_status place(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)name;
    out->dim = fsdp_tensor_ndim(t) == 2 && fsdp_tensor_shape(t)[1] % *(const int *)arg == 0;
    return FSDP_OK;
}

static void shard(training *t)
{
    fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS};

    if (is_set(t->reference, "shard_dim1")) {
        options.placement = place;
        options.placement_arg = &t->world;
    }
    if (json_object_get(t->reference, "param_dtype"))
        options.mp_policy.param_dtype = FSDP_BF16;
    for (int64_t i = 0; i < fsdp_model_block_count(t->model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(t->model, i), &options));
    CHECK_OK(fsdp_fully_shard(t->model, &options));
}

static void make_optimizer(training *t)
{
    const json_t *optim = json_object_get(t->reference, "optim"), *betas = json_object_get(optim, "betas");
    fsdp_adam_options options = {.lr = number(optim, "lr", 0),
                                 .beta1 = json_number_value(json_array_get(betas, 0)),
                                 .beta2 = json_number_value(json_array_get(betas, 1)),
                                 .eps = number(optim, "eps", 0),
                                 .weight_decay = number(optim, "weight_decay", 0)};
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(t->model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &options, &t->optimizer));
    fsdp_parameters_release(&parameters);
}

static void build(training *t, fsdp_context *context)
{
    char folder[512];
    fsdp_model_config config;
    fsdp_state_dict *state = NULL;

    snprintf(folder, sizeof folder, "%s/models/%s", REFERENCE, t->run->model);
    CHECK_OK(fsdp_hub_read_config(folder, &config));
    t->model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    shard(t);
    CHECK_OK(fsdp_module_materialize(t->model, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(t->model, &state));
    CHECK_OK(fsdp_hub_load(folder, state, &config));
    fsdp_state_dict_free(state);
    make_optimizer(t);
}

/* ---- a step ---- */

static double microbatch(training *t, int step, int micro)
{
    fsdp_context *context = t->model->context;
    int64_t shape[2] = {t->batch, t->seq};
    int32_t ids[4096], targets[4096];
    fsdp_tensor *loss;
    double value;

    CHECK(t->batch * t->seq <= 4096);
    for (int b = 0; b < t->batch; b++)
        for (int i = 0; i < t->seq; i++) {
            int64_t at = (((int64_t)(step * t->accum + micro) * t->world + t->rank) * t->batch + b) * t->seq + i;

            CHECK(at + 1 < MOST_TOKENS);
            ids[b * t->seq + i] = t->tokens[at];
            targets[b * t->seq + i] = t->tokens[at + 1];
        }
    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(
        fsdp_scale(CHECK_PTR(fsdp_call(t->model, fsdp_from_data(test_device(context), FSDP_I32, 2, shape, ids),
                                       fsdp_from_data(test_device(context), FSDP_I32, 2, shape, targets))),
                   1.0f / (float)t->accum));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    return value;
}

static void check_near(const char *what, int step, double actual, double expected, double relative)
{
    if (!(fabs(actual - expected) <= relative * fabs(expected)))
        TEST_FAIL("step %d: %s is %.9g, expected %.9g", step, what, actual, expected);
}

/* What each collective of the reference's step sends: half of it, in a world of two. */
static int64_t reference_bytes(const json_t *reference, const char *name)
{
    const json_t *calls = json_object_get(reference, "comm_order_step1"), *call;
    int64_t bytes = 0;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        const char *dtype = json_string_value(json_array_get(call, 2));

        if (strcmp(json_string_value(json_array_get(call, 0)), name) == 0)
            bytes += json_integer_value(json_array_get(call, 1)) * (strcmp(dtype, "bfloat16") == 0 ? 2 : 4) / 2;
    }
    return bytes;
}

static void check_sent(const training *t)
{
    const json_t *counts = json_object_get(t->reference, "comm_per_step");
    fsdp_comm_stats stats;

    fsdp_context_comm_stats(t->model->context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_GATHER], (int64_t)number(counts, "c10d._allgather_base_", 0));
    CHECK_EQ(stats.calls[FSDP_REDUCE_SCATTER], (int64_t)number(counts, "c10d._reduce_scatter_base_", 0));
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_GATHER], reference_bytes(t->reference, "c10d._allgather_base_"));
    CHECK_EQ(stats.bytes_sent[FSDP_REDUCE_SCATTER], reference_bytes(t->reference, "c10d._reduce_scatter_base_"));
}

static void check_step(training *t, int step)
{
    fsdp_process_group *world = fsdp_world(t->model->context);
    fsdp_stream *host = fsdp_device_stream(fsdp_cpu(t->model->context));
    double norm;
    float loss = 0;

    fsdp_context_reset_comm_stats(t->model->context);
    for (int micro = 0; micro < t->accum; micro++) {
        CHECK_OK(fsdp_module_set_requires_gradient_sync(t->model, micro == t->accum - 1, true));
        loss += (float)microbatch(t, step, micro);
    }
    if (step == 1)
        check_sent(t);
    CHECK_OK(fsdp_clip_grad_norm(t->optimizer, number(t->reference, "clip", 0), &norm));
    CHECK_OK(fsdp_optimizer_step(t->optimizer));
    CHECK_OK(fsdp_optimizer_zero_grad(t->optimizer));
    CHECK_OK(fsdp_all_reduce(world, &loss, &loss, 1, FSDP_F32, FSDP_AVG, host));
    check_near("loss", step, (double)loss,
               json_number_value(json_array_get(json_object_get(t->reference, "loss"), (size_t)step)),
               t->run->relative);
    check_near("norm", step, norm,
               json_number_value(json_array_get(json_object_get(t->reference, "grad_norm"), (size_t)step)),
               t->run->relative > 1e-3 ? 8 * t->run->relative : t->run->relative);
}

/* Each shard's shape, and the dimension that its distribution says. */
static void check_shapes(const training *t)
{
    const json_t *shapes = json_object_get(t->reference, "local_shapes"), *of_ranks;
    fsdp_state_dict *state = NULL;
    const char *name;

    CHECK_OK(fsdp_state_dict_from_module(t->model, &state));
    json_object_foreach((json_t *)(uintptr_t)shapes, name, of_ranks)
    {
        const fsdp_state_dict_entry *entry = CHECK_PTR(fsdp_state_dict_find(state, name));
        const char *placement = json_string_value(json_object_get(json_object_get(t->reference, "placements"), name));
        const json_t *shape = json_array_get(of_ranks, (size_t)t->rank);

        for (int d = 0; d < entry->ndim; d++)
            CHECK_EQ(entry->size[d], json_integer_value(json_array_get(shape, (size_t)d)));
        CHECK_EQ(fsdp_tensor_distribution(entry->tensor)->placements[0].dim, strstr(placement, "dim=1") != NULL);
    }
    fsdp_state_dict_free(state);
}

static void train(fsdp_context *context, void *arg)
{
    training *t = calloc(1, sizeof *t);
    FILE *tokens = CHECK_PTR(fopen(REFERENCE "/tokens.bin", "rb"));

    *t = *(const training *)arg;
    t->rank = fsdp_context_rank(context);
    CHECK(fread(t->tokens, sizeof *t->tokens, MOST_TOKENS, tokens) > 0);
    fclose(tokens);
    build(t, context);
    check_shapes(t);
    for (int step = 0; step < (int)number(t->reference, "steps", 0); step++)
        check_step(t, step);
    fsdp_optimizer_free(t->optimizer);
    fsdp_module_unref(t->model);
    free(t);
}

static void repeats_the_reference(void **state)
{
    const run *r = *state;
    training *t = calloc(1, sizeof *t);
    char path[512];
    json_t *reference;

    snprintf(path, sizeof path, "%s/runs/%s.json", REFERENCE, r->name);
    reference = CHECK_PTR(json_load_file(path, 0, NULL));
    t->run = r;
    t->reference = reference;
    t->world = (int)number(reference, "world_size", 1);
    t->accum = (int)number(reference, "accum", 1);
    t->batch = (int)number(reference, "global_batch", 0) / t->world / t->accum;
    t->seq = (int)number(reference, "seq", 0);
    test_run_ranks(t->world, train, t);
    json_decref(reference);
    free(t);
}

int main(void)
{
    struct CMUnitTest tests[RUNS];

    for (int i = 0; i < RUNS; i++)
        tests[i] = (struct CMUnitTest){
            .name = runs[i].name, .test_func = repeats_the_reference, .initial_state = (void *)(uintptr_t)&runs[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
