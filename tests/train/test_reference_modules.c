/* Reference runs that no key asks for: PyTorch's FSDP2 with ignored parameters, parameters frozen for a while, groups
 * of several modules, a layer that runs twice. Repeated by calls, ranks as threads. */
#include <jansson.h>
#include <math.h>

#include "fsdp/train.h"
#include "nn/module.h"
#include "support/program.h"
#include "support/ranks.h"

enum {
    MOST_RANKS = 3,
    MOST_STEPS = 20,
    SHORT_STEPS = 12 /* thawing is in the tenth */
};

typedef struct replay {
    const char *name, *model;
    bool tied_apart;      /* the modules of each group in calls of their own, tied across them */
    double more_scatters; /* that PyTorch has in step 1: see below */
    json_t *reference;
    int steps;
    double losses[MOST_RANKS][MOST_STEPS], ignored[MOST_RANKS][MOST_STEPS], norms[MOST_STEPS];
    int64_t gathers, scatters;
} replay;

/* PyTorch reduces what unsynchronised backwards left after the first of two uses, and the rest after the second; here
 * the last use reduces all. */
static replay replays[] = {
    {.name = "fsdp2-llama-ignored-ws2", .model = "tiny-llama"},
    {.name = "fsdp2-llama-freeze-unfreeze10-ws2", .model = "tiny-llama"},
    {.name = "fsdp2-llama-group-norm-head-ws2", .model = "tiny-llama"},
    {.name = "fsdp2-llama-group-embed-norm-head-ws3", .model = "tiny-llama"},
    {.name = "fsdp2-llama-tied-group-ws2", .model = "tiny-llama-tied-st"},
    {.name = "fsdp2-llama-tied-group-ws2", .model = "tiny-llama-tied-st", .tied_apart = true},
    {.name = "fsdp2-llama-reuse-ws2", .model = "tiny-llama"},
    {.name = "fsdp2-llama-reuse-accum3-ws2", .model = "tiny-llama", .more_scatters = 1},
};
enum {
    REPLAYS = sizeof replays / sizeof replays[0]
};

static double number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_number_value(value) : otherwise;
}

static double number_at(const json_t *list, int i)
{
    return json_number_value(json_array_get(list, (size_t)i));
}

/* Whether a fragment of the list `key` is in the name. */
static bool is_listed(const json_t *reference, const char *key, const char *name)
{
    const json_t *fragment;
    size_t i;

    json_array_foreach(json_object_get(reference, key), i,
                       fragment) if (strstr(name, json_string_value(fragment))) return true;
    return false;
}

/* ---- the model ---- */

/* "layer_order": the list of layers has a layer twice, at its places. */
static void reorder_layers(const replay *r, fsdp_module *model)
{
    const json_t *order = json_object_get(r->reference, "layer_order");
    fsdp_module *list = CHECK_PTR(fsdp_module_child(model, "model.layers"));
    struct fsdp__module_parts *parts = list->parts;
    int64_t repeated = -1;

    if (!order)
        return;
    for (size_t i = 0; i < json_array_size(order); i++)
        if (number_at(order, (int)i) != (double)i && repeated < 0)
            repeated = (int64_t)number_at(order, (int)i);
    CHECK_OK(fsdp_module_list_append(list, fsdp_module_ref(fsdp_module_child_at(list, repeated, NULL))));
    for (int64_t i = parts->child_count - 1; i > repeated + 1; i--) {
        fsdp__child_slot slot = parts->children[i];

        parts->children[i] = parts->children[i - 1];
        parts->children[i - 1] = slot;
    }
}

static void shard_groups(const replay *r, fsdp_module *model, const fsdp_shard_options *options)
{
    const json_t *group, *name;
    size_t g, i;

    json_array_foreach(json_object_get(r->reference, "groups"), g, group)
    {
        fsdp_module *modules[4];
        int count = (int)json_array_size(group);

        json_array_foreach(group, i, name) modules[i] = CHECK_PTR(fsdp_module_child(model, json_string_value(name)));
        for (int one = 0; one < count && r->tied_apart; one++)
            CHECK_OK(fsdp_fully_shard(modules[one], options));
        if (!r->tied_apart)
            CHECK_OK(fsdp_fully_shard_modules(modules, count, options));
    }
}

static void shard_model(const replay *r, fsdp_module *model)
{
    fsdp_shard_options options = {.reshard_after_forward = FSDP_RESHARD_ALWAYS};
    fsdp_module *list = CHECK_PTR(fsdp_module_child(model, "model.layers"));
    fsdp_tensor *ignored[32];
    fsdp_parameters parameters;

    if (json_is_null(json_object_get(r->reference, "reshard_after_forward")))
        options.reshard_after_forward = FSDP_RESHARD_AUTO;
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (is_listed(r->reference, "ignored", parameters.items[i].name))
            ignored[options.ignored_param_count++] = parameters.items[i].tensor;
    options.ignored_params = ignored;
    for (int64_t i = 0; i < fsdp_module_child_count(list); i++)
        if (!fsdp_module_is_sharded(fsdp_module_child_at(list, i, NULL)))
            CHECK_OK(fsdp_fully_shard(fsdp_module_child_at(list, i, NULL), &options));
    shard_groups(r, model, &options);
    CHECK_OK(fsdp_fully_shard(model, &options));
    fsdp_parameters_release(&parameters);
}

static fsdp_module *load_model(const replay *r, fsdp_context *context)
{
    char *folder = test_path(REFERENCE "/models", r->model);
    fsdp_model_config config;
    fsdp_state_dict *state;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(folder, &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    reorder_layers(r, model);
    shard_model(r, model);
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(folder, state, &config));
    fsdp_state_dict_free(state);
    free(folder);
    return model;
}

static fsdp_optimizer *make_optimizer(const replay *r, fsdp_module *model)
{
    const json_t *optim = json_object_get(r->reference, "optim"), *betas = json_object_get(optim, "betas");
    const fsdp_adam_options adam = {.lr = number(optim, "lr", 0),
                                    .beta1 = number_at(betas, 0),
                                    .beta2 = number_at(betas, 1),
                                    .eps = number(optim, "eps", 0),
                                    .weight_decay = number(optim, "weight_decay", 0)};
    fsdp_parameters all, trained;
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(model, &all));
    trained = (fsdp_parameters){.items = calloc((size_t)all.count, sizeof *all.items)};
    for (int64_t i = 0; i < all.count; i++)
        if (!is_listed(r->reference, "ignored", all.items[i].name))
            trained.items[trained.count++] = all.items[i];
    CHECK_OK(fsdp_adamw_create(&trained, &adam, &optimizer));
    free(trained.items);
    fsdp_parameters_release(&all);
    return optimizer;
}

/* ---- a step ---- */

static void set_frozen(const replay *r, fsdp_module *model, bool frozen)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (is_listed(r->reference, "freeze_after", parameters.items[i].name))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, !frozen));
    fsdp_parameters_release(&parameters);
}

/* Of the ignored parameters' gradients, on this rank. */
static double ignored_norm(const replay *r, fsdp_module *model)
{
    fsdp_parameters parameters;
    double squares = 0;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++) {
        fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[i].tensor);
        float *values;

        if (!grad || !is_listed(r->reference, "ignored", parameters.items[i].name))
            continue;
        values = malloc((size_t)fsdp_tensor_numel(grad) * sizeof *values);
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, values));
        for (int64_t e = 0; e < fsdp_tensor_numel(grad); e++)
            squares += (double)values[e] * (double)values[e];
        free(values);
    }
    fsdp_parameters_release(&parameters);
    return sqrt(squares);
}

/* The windows that tests/reference tells of. */
static double backward(const replay *r, fsdp_module *model, const uint16_t *tokens, int step, int micro)
{
    fsdp_context *context = model->context;
    int world = fsdp_context_world_size(context), rank = fsdp_context_rank(context);
    int micros = (int)number(r->reference, "accum", 1), length = (int)number(r->reference, "seq", 0);
    int batch = (int)number(r->reference, "global_batch", 0) / world / micros;
    int32_t inputs[16 * 64], targets[16 * 64];
    fsdp_tensor *loss;
    double value;

    CHECK(batch * length <= 16 * 64);
    for (int b = 0; b < batch; b++)
        for (int t = 0; t < length; t++) {
            int at = (((step * micros + micro) * world + rank) * batch + b) * length + t;

            inputs[b * length + t] = tokens[at];
            targets[b * length + t] = tokens[at + 1];
        }
    CHECK_OK(fsdp_scope_begin(context));
    loss = CHECK_PTR(fsdp_call(model, fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(batch, length), inputs),
                               fsdp_from_data(test_device(context), FSDP_I32, FSDP_SHAPE(batch, length), targets)));
    loss = CHECK_PTR(fsdp_scale(loss, 1.0 / micros));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    return value;
}

static void train(fsdp_context *context, void *arg)
{
    replay *r = arg;
    int rank = fsdp_context_rank(context), micros = (int)number(r->reference, "accum", 1);
    int thaw = (int)number(r->reference, "unfreeze_at", MOST_STEPS + 1);
    char *path = test_path(REFERENCE, "tokens.bin");
    uint16_t *tokens = (uint16_t *)(void *)test_read_file(path, NULL);
    fsdp_module *model = load_model(r, context);
    fsdp_optimizer *optimizer = make_optimizer(r, model);
    fsdp_comm_stats stats;
    double norm;

    set_frozen(r, model, true);
    for (int step = 0; step < r->steps; step++) {
        if (step == thaw)
            set_frozen(r, model, false);
        fsdp_context_reset_comm_stats(context);
        for (int micro = 0; micro < micros; micro++) {
            CHECK_OK(fsdp_module_set_requires_gradient_sync(model, micro == micros - 1, true));
            r->losses[rank][step] += backward(r, model, tokens, step, micro);
        }
        fsdp_context_comm_stats(context, &stats);
        r->ignored[rank][step] = ignored_norm(r, model);
        CHECK_OK(fsdp_clip_grad_norm(optimizer, number(r->reference, "clip", 0), &norm));
        CHECK_OK(fsdp_optimizer_step(optimizer));
        fsdp_module_zero_grad(model);
        if (rank == 0)
            r->norms[step] = norm;
        if (rank == 0 && step == 1) {
            r->gathers = stats.calls[FSDP_ALL_GATHER];
            r->scatters = stats.calls[FSDP_REDUCE_SCATTER];
        }
    }
    fsdp_optimizer_free(optimizer);
    fsdp_module_unref(model);
    free(tokens);
    free(path);
}

/* ---- comparing ---- */

static void check_near(const char *what, int step, double actual, double expected)
{
    if (!(fabs(actual - expected) <= 2e-4 * fabs(expected)))
        TEST_FAIL("step %d: %s is %.9g, expected %.9g", step, what, actual, expected);
}

static void compare(const replay *r)
{
    const json_t *ignored = json_object_get(r->reference, "ignored_local_grad_norm");
    const json_t *counts = json_object_get(r->reference, "comm_per_step");
    int world = (int)number(r->reference, "world_size", 1);

    for (int step = 0; step < r->steps; step++) {
        double loss = 0;

        for (int rank = 0; rank < world; rank++)
            loss += r->losses[rank][step] / world;
        check_near("loss", step, loss, number_at(json_object_get(r->reference, "loss"), step));
        check_near("norm", step, r->norms[step], number_at(json_object_get(r->reference, "grad_norm"), step));
        for (int rank = 0; rank < world && ignored; rank++)
            check_near("norm of what is ignored", step, r->ignored[rank][step],
                       number_at(json_array_get(ignored, (size_t)step), rank));
    }
    if (r->tied_apart) /* PyTorch refuses it */
        return;
    CHECK_EQ(r->gathers, number(counts, "c10d._allgather_base_", -1));
    CHECK_EQ(r->scatters, number(counts, "c10d._reduce_scatter_base_", -1) - r->more_scatters);
}

static void repeats_the_reference(void **state)
{
    replay *r = *state;
    char file[128], *path;

    snprintf(file, sizeof file, "%s.json", r->name);
    path = test_path(REFERENCE "/runs", file);
    r->reference = CHECK_PTR(json_load_file(path, 0, NULL));
    r->steps = test_long() ? MOST_STEPS : SHORT_STEPS;
    test_run_ranks((int)number(r->reference, "world_size", 1), train, r);
    compare(r);
    json_decref(r->reference);
    free(path);
}

int main(void)
{
    struct CMUnitTest tests[REPLAYS];

    for (int i = 0; i < REPLAYS; i++)
        tests[i] = (struct CMUnitTest){
            .name = replays[i].name, .test_func = repeats_the_reference, .initial_state = &replays[i]};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
