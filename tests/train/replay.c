/* replay.c - from a reference file to a sharded model and its optimizer. */
#include "train/replay.h"

#include <math.h>

#include <unistd.h>

#include "fsdp/fsdp1.h"
#include "fsdp/hub.h"
#include "fsdp/replicate.h"
#include "nn/module.h"

enum {
    MOST_PARAMETERS = 64,
    MOST_OF_A_GROUP = 4
};

/* ---- the file ---- */

double replay_number(const json_t *object, const char *key, double otherwise)
{
    const json_t *value = json_object_get(object, key);

    return value ? json_number_value(value) : otherwise;
}

double replay_at(const json_t *list, int64_t i)
{
    return json_number_value(json_array_get(list, (size_t)i));
}

bool replay_is_set(const replay *r, const char *key)
{
    return json_is_true(json_object_get(r->reference, key));
}

bool replay_lists(const replay *r, const char *key, const char *name)
{
    const json_t *list = json_object_get(r->reference, key), *fragment;
    size_t i;

    json_array_foreach(list, i, fragment) if (strstr(name, json_string_value(fragment))) return true;
    return false;
}

bool replay_is_there(const char *name)
{
    return test_reference(test_path("runs", name), ".json") != NULL;
}

bool replay_is_fsdp1(const replay *r)
{
    const char *kind = json_string_value(json_object_get(r->reference, "kind"));

    return kind && strcmp(kind, "fsdp1") == 0;
}

void replay_open(replay *r, const char *name)
{
    char *path = CHECK_PTR(test_reference(test_path("runs", name), ".json"));
    size_t bytes;

    r->reference = CHECK_PTR(json_load_file(path, 0, NULL));
    path = test_path(REFERENCE, "tokens.bin");
    r->tokens = (uint16_t *)(void *)test_read_file(path, &bytes);
    r->token_count = (int64_t)(bytes / sizeof *r->tokens);
    if (!r->model)
        r->model = json_string_value(json_object_get(r->reference, "model"));
    r->world = (int)replay_number(r->reference, "world_size", 1);
    r->micros = (int)replay_number(r->reference, "accum", 1);
    r->batch = (int)replay_number(r->reference, "global_batch", 0) / r->world / r->micros;
    r->length = (int)replay_number(r->reference, "seq", 0);
}

void replay_close(replay *r)
{
    json_decref(r->reference);
}

/* ---- the model ---- */

/* "layer_order": the list of layers has a layer twice, at its places. */
static void reorder_layers(const replay *r, fsdp_module *model)
{
    const json_t *order = json_object_get(r->reference, "layer_order");
    fsdp_module *list = CHECK_PTR(fsdp_module_child(model, "model.layers"));
    struct fsdp__module_parts *parts = list->parts;
    int64_t repeated = -1;

    for (size_t i = 0; i < json_array_size(order); i++)
        if (replay_at(order, (int64_t)i) != (double)i && repeated < 0)
            repeated = (int64_t)replay_at(order, (int64_t)i);
    CHECK_OK(fsdp_module_list_append(list, fsdp_module_ref(fsdp_module_child_at(list, repeated, NULL))));
    for (int64_t i = parts->child_count - 1; i > repeated + 1; i--) {
        fsdp__child_slot slot = parts->children[i];

        parts->children[i] = parts->children[i - 1];
        parts->children[i - 1] = slot;
    }
}

/* Shard(1) of every matrix whose columns divide. */
static fsdp_status place(void *arg, const char *name, const fsdp_tensor *t, fsdp_shard_placement *out)
{
    (void)name;
    out->dim = fsdp_tensor_ndim(t) == 2 && fsdp_tensor_shape(t)[1] % *(const int *)arg == 0;
    return FSDP_OK;
}

static fsdp_dtype dtype_of(const replay *r, const char *key)
{
    const char *name = json_string_value(json_object_get(r->reference, key));

    return !name ? FSDP_DTYPE_NONE : strcmp(name, "bfloat16") == 0 ? FSDP_BF16 : FSDP_F32;
}

static void set_reshard(const replay *r, fsdp_shard_options *options)
{
    const json_t *reshard = json_object_get(r->reference, "reshard_after_forward");

    options->reshard_after_forward = json_is_null(reshard)    ? FSDP_RESHARD_AUTO
                                     : json_is_false(reshard) ? FSDP_RESHARD_NEVER
                                                              : FSDP_RESHARD_ALWAYS;
    options->reshard_after_forward_ranks = json_is_integer(reshard) ? (int)json_integer_value(reshard) : 0;
}

static void shard_groups(const replay *r, fsdp_module *model, const fsdp_shard_options *options)
{
    const json_t *group, *name;
    size_t g, i;

    json_array_foreach(json_object_get(r->reference, "groups"), g, group)
    {
        fsdp_module *modules[MOST_OF_A_GROUP];
        int count = (int)json_array_size(group);

        CHECK(count <= MOST_OF_A_GROUP);
        json_array_foreach(group, i, name) modules[i] = CHECK_PTR(fsdp_module_child(model, json_string_value(name)));
        for (int one = 0; one < count && r->tied_apart; one++)
            CHECK_OK(fsdp_fully_shard(modules[one], options));
        if (!r->tied_apart)
            CHECK_OK(fsdp_fully_shard_modules(modules, count, options));
    }
}

static fsdp_mesh *make_mesh(const replay *r, fsdp_context *context)
{
    const json_t *sizes = json_object_get(r->reference, "mesh");
    int64_t shape[2] = {(int64_t)replay_at(sizes, 0), (int64_t)replay_at(sizes, 1)};
    fsdp_mesh *mesh = NULL;

    if (sizes)
        CHECK_OK(fsdp_mesh_create(context, 2, shape, (const char *const[]){"replicate", "shard"}, &mesh));
    return mesh;
}

bool replay_is_ddp(const replay *r)
{
    const char *kind = json_string_value(json_object_get(r->reference, "kind"));

    return kind && (strcmp(kind, "ddp") == 0 || strcmp(kind, "zero1") == 0);
}

static void replicate_model(const replay *r, fsdp_module *model)
{
    fsdp_replicate_options options = {.bucket_cap_mb = replay_number(r->reference, "bucket_cap_mb", 0),
                                      .find_unused_parameters = replay_is_set(r, "find_unused_parameters"),
                                      .static_graph = replay_is_set(r, "static_graph"),
                                      .gradient_as_bucket_view = replay_is_set(r, "gradient_as_bucket_view")};
    const char *hook = json_string_value(json_object_get(r->reference, "comm_hook"));
    fsdp_parameters parameters;

    if (hook)
        options.compress = strcmp(hook, "bf16_compress") == 0 ? FSDP_BF16 : FSDP_F16;
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (replay_lists(r, "frozen", parameters.items[i].name))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, false));
    fsdp_parameters_release(&parameters);
    CHECK_OK(fsdp_replicate(model, &options));
}

static void shard_model(const replay *r, fsdp_module *model)
{
    fsdp_shard_options options = {.mp_policy.param_dtype = dtype_of(r, "param_dtype"),
                                  .mp_policy.reduce_dtype = dtype_of(r, "reduce_dtype"),
                                  .mesh = make_mesh(r, model->context)};
    const json_t *offload = json_object_get(r->reference, "offload");
    fsdp_tensor *ignored[MOST_PARAMETERS];
    fsdp_parameters parameters;

    options.offload_policy.cpu = offload != NULL;
    options.offload_policy.pageable = json_is_false(json_object_get(offload, "pin_memory"));
    set_reshard(r, &options);
    if (replay_is_set(r, "shard_dim1")) {
        options.placement = place;
        options.placement_arg = (void *)(uintptr_t)&r->world;
    }
    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK(parameters.count <= MOST_PARAMETERS);
    for (int64_t i = 0; i < parameters.count; i++)
        if (replay_lists(r, "ignored", parameters.items[i].name))
            ignored[options.ignored_param_count++] = parameters.items[i].tensor;
    options.ignored_params = ignored;
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        if (!fsdp_module_is_sharded(fsdp_model_block(model, i)))
            CHECK_OK(fsdp_fully_shard(fsdp_model_block(model, i), &options));
    shard_groups(r, model, &options);
    CHECK_OK(fsdp_fully_shard(model, &options));
    fsdp_parameters_release(&parameters);
    fsdp_mesh_unref(options.mesh);
}

/* ---- FSDP1 ---- */

/* A run that reduces in the shards' dtype does not say so; of FSDP1 that is not what an absent one means. */
static fsdp_dtype fsdp1_reduce_dtype(const replay *r)
{
    fsdp_dtype said = dtype_of(r, "reduce_dtype");

    return said || !dtype_of(r, "param_dtype") ? said : FSDP_F32;
}

static fsdp_fsdp1_options fsdp1_options(const replay *r, fsdp_context *context)
{
    static const char *const strategies[] = {"full", "gradop", "none", "hybrid", "hybrid2"};
    const char *strategy = json_string_value(json_object_get(r->reference, "strategy"));
    const char *backward = json_string_value(json_object_get(r->reference, "backward_prefetch"));
    fsdp_fsdp1_options options = {.use_orig_params = replay_is_set(r, "use_orig_params"),
                                  .forward_prefetch = replay_is_set(r, "forward_prefetch"),
                                  .mixed_precision.param_dtype = dtype_of(r, "param_dtype"),
                                  .mixed_precision.reduce_dtype = fsdp1_reduce_dtype(r),
                                  .mesh = make_mesh(r, context)};

    while (strcmp(strategies[options.strategy], strategy) != 0)
        options.strategy++;
    if (backward)
        options.backward_prefetch = strcmp(backward, "post") == 0 ? FSDP_BACKWARD_POST : FSDP_BACKWARD_NONE;
    return options;
}

static void wrap_model(const replay *r, fsdp_module *model)
{
    fsdp_fsdp1_options options = fsdp1_options(r, model->context);
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (replay_lists(r, "frozen", parameters.items[i].name))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, false));
    fsdp_parameters_release(&parameters);
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_fsdp1_wrap(fsdp_model_block(model, i), &options));
    CHECK_OK(fsdp_fsdp1_wrap(model, &options));
    fsdp_mesh_unref(options.mesh);
}

/* ---- what is set for the whole run ---- */

/* What is to be gathered behind block i: the next blocks, or those before it. */
static void set_prefetch(const replay *r, fsdp_module *model)
{
    int ahead = (int)replay_number(r->reference, "forward_prefetch", 0);
    int before = (int)replay_number(r->reference, "backward_prefetch", 0);
    int64_t blocks = fsdp_model_block_count(model);
    fsdp_module *list[8];

    CHECK(ahead <= 8 && before <= 8);
    for (int64_t i = 0; i < blocks; i++) {
        int count = 0;

        for (int64_t b = i + 1; b < blocks && count < ahead; b++)
            list[count++] = fsdp_model_block(model, b);
        CHECK_OK(fsdp_module_set_modules_to_forward_prefetch(fsdp_model_block(model, i), list, count));
        count = 0;
        for (int64_t b = i - 1; b >= 0 && count < before; b--)
            list[count++] = fsdp_model_block(model, b);
        CHECK_OK(fsdp_module_set_modules_to_backward_prefetch(fsdp_model_block(model, i), list, count));
    }
}

static void set_divisor(const replay *r, fsdp_module *model)
{
    float factor = (float)replay_number(r->reference, "divide_factor", 0);

    CHECK_OK(fsdp_module_set_gradient_divide_factor(model, factor));
    for (int64_t i = 0; i < fsdp_model_block_count(model); i++)
        CHECK_OK(fsdp_module_set_gradient_divide_factor(fsdp_model_block(model, i), factor));
}

fsdp_module *replay_model(const replay *r, fsdp_context *context)
{
    char *folder = test_path(REFERENCE "/models", r->model);
    fsdp_model_config config;
    fsdp_state_dict *state;
    fsdp_module *model;

    CHECK_OK(fsdp_hub_read_config(folder, &config));
    model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    if (json_object_get(r->reference, "layer_order"))
        reorder_layers(r, model);
    if (replay_is_fsdp1(r)) {
        wrap_model(r, model);
    } else if (replay_is_ddp(r)) {
        replicate_model(r, model);
    } else {
        shard_model(r, model);
        set_prefetch(r, model);
        set_divisor(r, model);
    }
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_state_dict_from_module(model, &state));
    CHECK_OK(fsdp_hub_load(folder, state, &config));
    fsdp_state_dict_free(state);
    return model;
}

fsdp_tensor *replay_parameter(const replay *r, fsdp_module *model, const char *name)
{
    const json_t *order = json_object_get(r->reference, "layer_order");
    char ours[128];
    int place, rest;

    if (!order || sscanf(name, "model.layers.%d.%n", &place, &rest) != 1)
        return CHECK_PTR(fsdp_module_parameter(model, name));
    snprintf(ours, sizeof ours, "model.layers.%d.%s", (int)replay_at(order, place), name + rest);
    return CHECK_PTR(fsdp_module_parameter(model, ours));
}

void replay_check_weights(const replay *r, fsdp_module *model)
{
    const json_t *sums = json_object_get(r->reference, "final_abs_sum"), *sum;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)sums, name, sum)
    {
        fsdp_tensor *p = replay_parameter(r, model, name), *whole = p;
        double total = 0, expected = json_number_value(sum);
        float *values;

        if (fsdp_tensor_distribution(p))
            CHECK_OK(fsdp_full_tensor(p, &whole));
        values = CHECK_PTR(malloc((size_t)fsdp_tensor_numel(whole) * sizeof *values));
        CHECK_OK(fsdp_tensor_read(whole, FSDP_F32, values));
        for (int64_t i = 0; i < fsdp_tensor_numel(whole); i++)
            total += fabs((double)values[i]);
        /* An attention key's bias has no true gradient. */
        if (!(fabs(total - expected) <= (strstr(name, "c_attn.bias") ? 1e-3 : 1e-4) * fabs(expected)))
            TEST_FAIL("'%s' sums up to %.9g, expected %.9g", name, total, expected);
        if (whole != p)
            fsdp_tensor_unref(whole);
        free(values);
    }
}

/* ---- the optimizer ---- */

static void create(const json_t *optim, const fsdp_parameters *trained, fsdp_optimizer **out)
{
    const json_t *betas = json_object_get(optim, "betas");
    const fsdp_adam_options adam = {.lr = replay_number(optim, "lr", 0),
                                    .beta1 = replay_at(betas, 0),
                                    .beta2 = replay_at(betas, 1),
                                    .eps = replay_number(optim, "eps", 0),
                                    .weight_decay = replay_number(optim, "weight_decay", 0)};
    const fsdp_sgd_options sgd = {.lr = replay_number(optim, "lr", 0),
                                  .momentum = replay_number(optim, "momentum", 0),
                                  .weight_decay = replay_number(optim, "weight_decay", 0),
                                  .nesterov = json_is_true(json_object_get(optim, "nesterov"))};

    if (strcmp(json_string_value(json_object_get(optim, "name")), "sgd") == 0)
        CHECK_OK(fsdp_sgd_create(trained, &sgd, out));
    else
        CHECK_OK(fsdp_adamw_create(trained, &adam, out));
}

fsdp_optimizer *replay_optimizer(const replay *r, fsdp_module *model)
{
    fsdp_parameters all, trained = {0};
    fsdp_parameter items[MOST_PARAMETERS];
    fsdp_optimizer *optimizer;

    CHECK_OK(fsdp_module_parameters(model, &all));
    trained.items = items;
    for (int64_t i = 0; i < all.count; i++)
        if (!replay_lists(r, "ignored", all.items[i].name) && !replay_lists(r, "frozen", all.items[i].name))
            items[trained.count++] = all.items[i];
    create(json_object_get(r->reference, "optim"), &trained, &optimizer);
    fsdp_parameters_release(&all);
    return optimizer;
}

double replay_backward(const replay *r, fsdp_module *model, int step, int micro)
{
    fsdp_context *context = model->context;
    fsdp_device *device = test_device(context);
    int64_t count = (int64_t)r->batch * r->length,
            first = ((int64_t)(step * r->micros + micro) * r->world + fsdp_context_rank(context)) * count;
    int32_t *inputs = CHECK_PTR(malloc(2 * (size_t)count * sizeof *inputs)), *targets = inputs + count;
    fsdp_tensor *loss;
    double value;

    CHECK(first + count < r->token_count);
    for (int64_t i = 0; i < count; i++) {
        inputs[i] = r->tokens[first + i];
        targets[i] = r->tokens[first + i + 1];
    }
    CHECK_OK(fsdp_scope_begin(context));
    loss = fsdp_call(model, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(r->batch, r->length), inputs),
                     fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(r->batch, r->length), targets));
    loss = CHECK_PTR(fsdp_scale(loss, 1.0 / r->micros));
    CHECK_OK(fsdp_tensor_item(loss, &value));
    CHECK_OK(fsdp_backward(loss));
    fsdp_scope_end(context, NULL);
    free(inputs);
    return value;
}
