/* Adapters beside peft's: ten steps of each reference run, through every front door, by losses, norms and gradients;
 * the folders that are read and written; and the merged model. FSDP_REFERENCE has all runs, tests/reference two of
 * them. */
#include <jansson.h>
#include <math.h>
#include <unistd.h>

#include "fsdp/adapter.h"
#include "fsdp/format.h"
#include "fsdp/hub.h"
#include "fsdp/optim.h"
#include "fsdp/parallelize.h"
#include "shard/cut_net.h"
#include "shard/doors.h"
#include "support/program.h"
#include "support/ranks.h"

enum {
    SEQ = 32
};

typedef struct run {
    const char *name;
    bool sharded; /* goes through the doors, too */
    bool low;     /* the base is in bf16 */
    fsdp_quantization quantization;
} run;

static const run runs[] = {
    {.name = "lora-llama-qv", .sharded = true},
    {.name = "lora-llama-all"},
    {.name = "lora-llama-rs"},
    {.name = "lora-llama-dora", .sharded = true},
    {.name = "lora-llama-randomb"},
    {.name = "lora-llama-head", .sharded = true},
    {.name = "lora-llama-patterns"},
    {.name = "lora-llama-bf16base", .sharded = true, .low = true},
    {.name = "lora-gpt2"},
    {.name = "lora-gpt2-dora", .sharded = true},
    {.name = "qlora-llama-nf4", .sharded = true, .quantization = FSDP_QUANTIZE_NF4},
};

static char *find_path(const char *name, const char *suffix)
{
    return test_reference(test_path("finetune", name), suffix);
}

/* ---- one rank ---- */

typedef struct job {
    const run *run;
    const door *door;
    int team; /* ranks that compute each layer together; the teams are sharded */
    json_t *reference;
    uint16_t *tokens;
    char *initial, *final, *out;
} job;

typedef struct fixture {
    fsdp_context *context;
    const job *job;
    fsdp_model_config config;
    fsdp_module *model;
    fsdp_adapter *adapter;
    fsdp_optimizer *optimizer;
    cut_meshes meshes; /* of teams */
    char folder[400];
} fixture;

static fsdp_model_config read_config(fixture *f)
{
    fsdp_model_config config;

    snprintf(f->folder, sizeof f->folder, "%s/models/%s", REFERENCE,
             json_string_value(json_object_get(f->job->reference, "model")));
    CHECK_OK(fsdp_hub_read_config(f->folder, &config));
    return config;
}

/* Cuts the layers over teams of ranks, and shards over the teams. */
static void wrap_teams(fixture *f)
{
    const fsdp_model_parallel_options plan = {.sequence_parallel = true, .loss_parallel = true};
    int team = f->job->team;

    f->meshes = cut_meshes_create(f->context, (cut_layout){1, fsdp_context_world_size(f->context) / team, team});
    CHECK_OK(fsdp_model_parallelize(f->model, f->meshes.parts, &plan));
    for (int64_t i = 0; i < fsdp_model_block_count(f->model); i++)
        CHECK_OK(fsdp_fully_shard(fsdp_model_block(f->model, i), &(fsdp_shard_options){.mesh = f->meshes.data}));
    CHECK_OK(fsdp_fully_shard(f->model, &(fsdp_shard_options){.mesh = f->meshes.data}));
}

static void wrap(fixture *f)
{
    fsdp_module *units[16];
    int count = (int)fsdp_model_block_count(f->model);

    for (int i = 0; i < count; i++)
        units[i] = fsdp_model_block(f->model, i);
    if (f->job->team > 1) {
        wrap_teams(f);
        return;
    }
    door_wrap(f->job->door, f->model, units, f->job->door->kind == DOOR_PLAIN ? -1 : count, NULL);
}

static fixture setup(fsdp_context *context, const job *j)
{
    fixture f = {.context = context, .job = j};
    fsdp_lora_options *options = NULL;

    f.config = read_config(&f);
    f.model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &f.config));
    if (j->run->low)
        CHECK_OK(fsdp_module_to(f.model, FSDP_BF16));
    CHECK_OK(fsdp_adapter_read_options(j->initial, &options));
    CHECK_OK(fsdp_adapter_add(f.model, options, &f.adapter));
    fsdp_lora_options_free(options);
    if (j->run->quantization)
        CHECK_OK(fsdp_adapter_quantize(f.adapter, j->run->quantization));
    wrap(&f);
    CHECK_OK(fsdp_module_materialize(f.model, test_device(context)));
    CHECK_OK(fsdp_adapter_load_base(f.adapter, f.folder, &f.config));
    CHECK_OK(fsdp_adapter_load(f.adapter, j->initial));
    return f;
}

static void release(fixture *f)
{
    fsdp_optimizer_free(f->optimizer);
    fsdp_adapter_free(f->adapter);
    fsdp_module_unref(f->model);
    if (f->meshes.root)
        cut_meshes_free(&f->meshes);
}

static double at(const json_t *object, const char *key, int64_t index)
{
    return json_number_value(json_array_get(json_object_get(object, key), (size_t)index));
}

static void make_optimizer(fixture *f)
{
    const json_t *optim = json_object_get(f->job->reference, "optim");
    fsdp_adam_options adam = {.lr = json_number_value(json_object_get(optim, "lr")),
                              .beta1 = at(optim, "betas", 0),
                              .beta2 = at(optim, "betas", 1),
                              .eps = json_number_value(json_object_get(optim, "eps")),
                              .weight_decay = json_number_value(json_object_get(optim, "weight_decay"))};
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(f->model, &parameters));
    CHECK_OK(fsdp_adamw_create(&parameters, &adam, &f->optimizer));
    fsdp_parameters_release(&parameters);
}

/* ---- steps ---- */

/* Returns the loss of this rank's part of the step's batch, with its gradients made. */
static double forward_backward(fixture *f, int64_t step, int64_t rows)
{
    int ranks = fsdp_context_world_size(f->context) / f->job->team, rank = fsdp_context_rank(f->context) / f->job->team;
    int64_t count = rows / ranks;
    int32_t tokens[12 * SEQ], targets[12 * SEQ];
    fsdp_tensor *loss;
    double value = 0;

    for (int64_t b = 0; b < count; b++)
        for (int64_t t = 0; t < SEQ; t++) {
            int64_t first = ((step * ranks + rank) * count + b) * SEQ;

            tokens[b * SEQ + t] = f->job->tokens[first + t];
            targets[b * SEQ + t] = f->job->tokens[first + t + 1];
        }
    CHECK_OK(fsdp_scope_begin(f->context));
    loss =
        CHECK_PTR(fsdp_call(f->model, fsdp_from_data(test_device(f->context), FSDP_I32, FSDP_SHAPE(count, SEQ), tokens),
                            fsdp_from_data(test_device(f->context), FSDP_I32, FSDP_SHAPE(count, SEQ), targets)));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(f->context, NULL);
    return value;
}

static double mean_over_ranks(fixture *f, double value)
{
    int64_t count = 0;
    double sum = 0;
    void **all = NULL;
    size_t *bytes = NULL;

    CHECK_OK(fsdp_gather_objects(fsdp_world(f->context), &value, sizeof value, &all, &bytes));
    count = fsdp_context_world_size(f->context);
    for (int64_t i = 0; i < count; i++)
        sum += *(const double *)all[i];
    fsdp_objects_free(fsdp_world(f->context), all, bytes);
    return sum / (double)count;
}

/* peft's name of a gradient: with ".default" before the last part. */
static double expected_gradient(const json_t *sums, const char *name)
{
    char key[300];
    const char *end = strrchr(name, '.');
    const json_t *value;

    snprintf(key, sizeof key, "base_model.model.%.*s.default%s", (int)(end - name), name, end);
    value = json_object_get(sums, key);
    snprintf(key, sizeof key, "base_model.model.%.*s.modules_to_save.default%s", (int)(end - name), name, end);
    value = value ? value : json_object_get(sums, key);
    if (!value)
        TEST_FAIL("the reference has no gradient of '%s'", name);
    return json_number_value(value);
}

/* Sums of gradients in a world of one; no other parameter has one. */
static void check_gradients(fixture *f)
{
    const json_t *sums = json_object_get(f->job->reference, "grad_abs_sum_step0");
    fsdp_parameters parameters;
    size_t found = 0;

    CHECK_OK(fsdp_module_parameters(f->model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[i].tensor);
        float *values = grad ? malloc((size_t)fsdp_tensor_numel(grad) * sizeof *values) : NULL;
        double sum = 0, expected;

        CHECK_EQ(grad != NULL, fsdp_tensor_requires_grad(parameters.items[i].tensor));
        if (!grad)
            continue;
        found++;
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, values));
        for (int64_t e = 0; e < fsdp_tensor_numel(grad); e++)
            sum += fabs((double)values[e]);
        expected = expected_gradient(sums, parameters.items[i].name);
        CHECK_NEAR(sum, expected, (f->job->run->low ? 2e-2 : 1e-4) * fabs(expected) + 1e-6);
        free(values);
    }
    CHECK_EQ(found, json_object_size(sums));
    fsdp_parameters_release(&parameters);
}

static void take_steps(fixture *f)
{
    const json_t *reference = f->job->reference;
    int64_t steps = (int64_t)json_array_size(json_object_get(reference, "loss"));
    int64_t rows = json_integer_value(json_object_get(reference, "global_batch"));
    bool low = f->job->run->low;
    double loss_tolerance = low ? 2e-3 : 1e-5, tolerance = low ? 2e-2 : f->job->run->quantization ? 1e-5 : 2e-4;

    for (int64_t s = 0; s < steps; s++) {
        double loss = mean_over_ranks(f, forward_backward(f, s, rows)), norm = 0;

        CHECK_NEAR(loss, at(reference, "loss", s), loss_tolerance * at(reference, "loss", s));
        if (s == 0 && fsdp_context_world_size(f->context) == 1 && !f->job->run->quantization)
            check_gradients(f);
        CHECK_OK(fsdp_clip_grad_norm(f->optimizer, 1.0, &norm));
        CHECK_NEAR(norm, at(reference, "grad_norm", s), tolerance * at(reference, "grad_norm", s));
        CHECK_OK(fsdp_optimizer_step(f->optimizer));
        CHECK_OK(fsdp_optimizer_zero_grad(f->optimizer));
    }
}

/* ---- afterwards ---- */

/* The folder that was written against the reference's: the same names and shapes, values within `absolute`. */
static void check_folder(const char *ours, const char *theirs, double absolute)
{
    char *a_path = test_path(ours, "adapter_model.safetensors"),
         *b_path = test_path(theirs, "adapter_model.safetensors");
    fsdp_safetensors *a = NULL, *b = NULL;

    CHECK_OK(fsdp_safetensors_open(a_path, &a));
    CHECK_OK(fsdp_safetensors_open(b_path, &b));
    CHECK_EQ(fsdp_safetensors_count(a), fsdp_safetensors_count(b));
    for (int64_t i = 0; i < fsdp_safetensors_count(a); i++) {
        const fsdp_safetensors_entry *x = fsdp_safetensors_at(a, i), *y = fsdp_safetensors_at(b, i);
        float *left = malloc(x->bytes + 1), *right = malloc(x->bytes + 1);

        CHECK_STRING(x->name, y->name);
        CHECK_EQ(x->bytes, y->bytes);
        CHECK_EQ(x->dtype, FSDP_F32);
        memcpy(left, x->data, x->bytes);
        memcpy(right, y->data, y->bytes);
        CHECK_CLOSE(left, right, x->bytes / sizeof(float), 1e-3, absolute);
        free(left);
        free(right);
    }
    fsdp_safetensors_close(a);
    fsdp_safetensors_close(b);
}

static void check_merged_sums(const fixture *f, const fsdp_state_dict *merged)
{
    const json_t *sums = json_object_get(f->job->reference, "merged_abs_sum");
    fsdp_state_dict *whole = NULL;

    CHECK_OK(fsdp_state_dict_gather(merged, NULL, &whole));
    for (int64_t i = 0; i < whole->count; i++) {
        const fsdp_tensor *t = whole->entries[i].tensor;
        const json_t *expected = json_object_get(sums, whole->entries[i].name);
        float *values = malloc((size_t)fsdp_tensor_numel(t) * sizeof *values + 1);
        double sum = 0;

        CHECK_OK(fsdp_tensor_read(t, FSDP_F32, values));
        for (int64_t e = 0; e < fsdp_tensor_numel(t); e++)
            sum += fabs((double)values[e]);
        free(values);
        if (!expected)
            TEST_FAIL("the reference has no merged '%s'", whole->entries[i].name);
        CHECK_NEAR(sum, json_number_value(expected), (f->job->run->low ? 2e-3 : 1e-4) * json_number_value(expected));
    }
    fsdp_state_dict_free(whole);
}

/* The merged model, loaded as any model, has the reference's logits, as far as they are there. */
static void check_merged_logits(const fixture *f)
{
    char *path = find_path(f->job->run->name, "/merged-logits.safetensors");
    fsdp_state_dict *state = NULL;
    fsdp_safetensors *file = NULL;
    const fsdp_safetensors_entry *ids, *logits;
    fsdp_module *model;
    fsdp_tensor *actual;
    float *values, *expected;

    if (!path)
        return;
    CHECK_OK(fsdp_safetensors_open(path, &file));
    ids = CHECK_PTR(fsdp_safetensors_find(file, "input_ids"));
    logits = CHECK_PTR(fsdp_safetensors_find(file, "logits"));
    model = CHECK_PTR(fsdp_model_create(f->context, test_device(f->context), &f->config));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(f->job->out, state, &f->config));
    CHECK_OK(fsdp_scope_begin(f->context));
    actual = CHECK_PTR(
        fsdp_call(model, fsdp_from_data(test_device(f->context), FSDP_I32, ids->ndim, ids->shape, ids->data)));
    values = malloc(logits->bytes);
    expected = malloc(logits->bytes);
    CHECK_OK(fsdp_tensor_read(actual, FSDP_F32, values));
    memcpy(expected, logits->data, logits->bytes);
    if (f->job->run->low)
        CHECK_CLOSE(values, expected, logits->bytes / sizeof(float), 5e-2, 5e-2);
    else
        CHECK_CLOSE(values, expected, logits->bytes / sizeof(float), 1e-4, 2e-5);
    free(values);
    free(expected);
    fsdp_scope_end(f->context, NULL);
    fsdp_state_dict_free(state);
    fsdp_module_unref(model);
    fsdp_safetensors_close(file);
}

static void body(fsdp_context *context, void *arg)
{
    const job *j = arg;
    fixture f = setup(context, j);
    fsdp_state_dict *merged = NULL;

    make_optimizer(&f);
    take_steps(&f);
    CHECK_OK(fsdp_module_reshard_all(f.model));
    CHECK_OK(fsdp_adapter_save(f.adapter, j->out, "tiny", fsdp_world(context)));
    if (fsdp_context_rank(context) == 0 && j->final)
        check_folder(j->out, j->final, j->run->low ? 5e-2 : 2e-4);
    CHECK_OK(fsdp_agree(fsdp_world(context), FSDP_OK));
    CHECK_OK(fsdp_adapter_merge(f.adapter, NULL, &merged));
    if (!j->run->quantization)
        check_merged_sums(&f, merged);
    if (fsdp_context_world_size(context) == 1 && !j->run->quantization) {
        char out[512];
        job again = *j;

        snprintf(out, sizeof out, "%s-merged", j->out);
        again.out = out;
        f.job = &again;
        CHECK_OK(fsdp_hub_save(out, merged, &f.config, FSDP_F32, fsdp_world(context)));
        check_merged_logits(&f);
        test_remove_tree(out);
    }
    fsdp_state_dict_free(merged);
    release(&f);
}

static void check_teams(const run *r, const door *d, int world, int team)
{
    job j = {.run = r, .door = d, .team = team};
    char *directory = test_directory(), *source = find_path(r->name, ".json");
    char *tokens = test_path(REFERENCE, "tokens.bin");
    size_t bytes = 0;

    j.reference = CHECK_PTR(json_load_file(source, 0, NULL));
    j.tokens = (uint16_t *)test_read_file(tokens, &bytes);
    j.initial = find_path(r->name, "/initial");
    j.final = find_path(r->name, "/final");
    j.out = test_path(directory, "adapter");
    test_run_ranks(world, body, &j);
    json_decref(j.reference);
    test_directory_free(directory);
}

static void check_run(const run *r, const door *d, int world)
{
    check_teams(r, d, world, 1);
}

static bool is_there(const run *r)
{
    char *source = find_path(r->name, ".json");
    bool there = source != NULL;

    return there;
}

TEST(ten_steps_on_one_rank_equal_pefts)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(runs); i++)
        if (is_there(&runs[i]))
            check_run(&runs[i], &doors[0], 1);
}

TEST(ten_steps_through_every_front_door_equal_pefts)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(runs); i++)
        for (int d = 1; d < DOORS && is_there(&runs[i]) && runs[i].sharded; d++) {
            bool flat = doors[d].kind == DOOR_FSDP1 && !doors[d].fsdp1.use_orig_params;
            bool mixed = runs[i].low || runs[i].quantization;
            bool uniform = doors[d].kind == DOOR_FSDP1 && mixed; /* PyTorch's rule: one dtype in a unit */

            /* Codes are cut between their rows alone. */
            bool apart = doors[d].kind == DOOR_SHARDED && doors[d].sharded.placement && runs[i].quantization;

            if (!flat && !uniform && !apart && !doors[d].hybrid)
                check_run(&runs[i], &doors[d], 2 + (d + (int)i) % 2);
        }
}

TEST(ten_steps_of_teams_equal_pefts)
{
    for (size_t i = 0; i < FSDP__COUNT_OF(runs); i++)
        for (int teams = 1; teams <= 3 && is_there(&runs[i]) && !runs[i].quantization; teams++)
            check_teams(&runs[i], &doors[1], 2 * teams, 2);
}

/* Blocks of codes lie otherwise in each world, and are the same. */
TEST(a_quantized_base_is_the_same_at_more_ranks)
{
    static const int worlds[] = {4, 6, 12};

    for (size_t i = 0; i < FSDP__COUNT_OF(runs); i++)
        for (size_t w = 0; w < FSDP__COUNT_OF(worlds) && is_there(&runs[i]) && runs[i].quantization; w++)
            check_run(&runs[i], &doors[1], worlds[w]);
}
