/* Which parameters DDP's buckets have, in which order, in the first iterations: PyTorch's, for several models and
 * options (ddp-buckets-ws2.json of the folder that FSDP_REFERENCE names; skipped without).
 * Links: hub models shard */
#include <jansson.h>

#include "fsdp/hub.h"
#include "fsdp/models.h"
#include "fsdp/replicate.h"
#include "nn/module.h"
#include "support/program.h"
#include "support/ranks.h"

enum {
    WIDE_LAYERS = 8,
    ITERATIONS = 3
};

/* ---- a model of layers only ---- */

typedef struct wide {
    fsdp_module base;
    fsdp_module *up, *body, *norm, *down;
} wide;

static fsdp_tensor *wide_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    wide *m = (wide *)self;
    fsdp_tensor *x = fsdp_call(m->up, inputs[0]);

    (void)count;
    for (int64_t i = 0; i < WIDE_LAYERS; i++)
        x = fsdp_call(fsdp_module_child_at(m->body, i, &(const char *){NULL}), x);
    return fsdp_call(m->down, fsdp_call(m->norm, x));
}

static const fsdp_module_type wide_type = {.name = "Wide", .forward = wide_forward};

static fsdp_module *make_wide(fsdp_context *context)
{
    fsdp_device *device = fsdp_meta(context);
    wide *m;

    CHECK_OK(fsdp_module_create(context, &wide_type, sizeof *m, &m));
    CHECK_OK(fsdp_module_add_child(&m->base, "up", m->up = fsdp_linear_create(context, device, 256, 1024, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "body", m->body = fsdp_module_list_create(context)));
    for (int i = 0; i < WIDE_LAYERS; i++)
        CHECK_OK(fsdp_module_list_append(m->body, fsdp_linear_create(context, device, 1024, 1024, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "norm", m->norm = fsdp_layernorm_create(context, device, 1024, 1e-5f)));
    CHECK_OK(fsdp_module_add_child(&m->base, "down", m->down = fsdp_linear_create(context, device, 1024, 7, NULL)));
    return &m->base;
}

/* ---- a case ---- */

static fsdp_module *make_model(fsdp_context *context, const char *name)
{
    char *folder = test_path(REFERENCE "/models", strcmp(name, "tiny-llama-tied") == 0 ? "tiny-llama-tied-st" : name);
    fsdp_model_config config;
    fsdp_module *model;

    if (strcmp(name, "Wide") == 0) {
        model = make_wide(context);
    } else {
        CHECK_OK(fsdp_hub_read_config(folder, &config));
        model = CHECK_PTR(fsdp_model_create(context, fsdp_meta(context), &config));
    }
    return model;
}

static void freeze(fsdp_module *model, const json_t *fragments)
{
    fsdp_parameters parameters;
    const json_t *fragment;
    size_t f;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        json_array_foreach(fragments, f, fragment) if (strstr(parameters.items[i].name, json_string_value(fragment)))
            CHECK_OK(fsdp_tensor_set_requires_grad(parameters.items[i].tensor, false));
    fsdp_parameters_release(&parameters);
}

static void check_buckets(fsdp_module *model, const json_t *expected)
{
    const json_t *bucket, *name;
    int64_t count;
    size_t b, i;

    CHECK_OK(fsdp_module_bucket_count(model, &count));
    CHECK_EQ(count, (int64_t)json_array_size(expected));
    json_array_foreach(expected, b, bucket)
    {
        const json_t *names = json_object_get(bucket, "params");
        fsdp_bucket_info info;

        CHECK_OK(fsdp_module_bucket_info(model, (int64_t)b, &info));
        CHECK_EQ(info.parameter_count, (int64_t)json_array_size(names));
        CHECK_EQ(info.numel, json_integer_value(json_object_get(bucket, "numel")));
        json_array_foreach(names, i, name)
        {
            fsdp_parameter p;

            CHECK_OK(fsdp_module_bucket_parameter(model, (int64_t)b, (int64_t)i, &p));
            if (strcmp(p.name, json_string_value(name)) != 0)
                TEST_FAIL("bucket %zu has '%s' at %zu, expected '%s'", b, p.name, i, json_string_value(name));
        }
    }
}

static fsdp_tensor *forward(fsdp_module *model, bool is_wide)
{
    fsdp_device *device = test_device(model->context);
    int32_t ids[8] = {1, 5, 9, 2, 7, 3, 3, 8};

    if (is_wide)
        return fsdp_sum(fsdp_call(model, fsdp_zeros(device, FSDP_F32, FSDP_SHAPE(2, 256))));
    return fsdp_call(model, fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 8), ids),
                     fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(1, 8), ids));
}

static void play(fsdp_context *context, void *arg)
{
    static const char *const keys[] = {"first_iteration", "second_iteration", "third_iteration"};
    const json_t *one = arg, *cap = json_object_get(one, "bucket_cap_mb");
    const char *name = json_string_value(json_object_get(one, "model"));
    const fsdp_replicate_options options = {
        .bucket_cap_mb = cap ? json_number_value(cap) : 0,
        .find_unused_parameters = json_is_true(json_object_get(one, "find_unused_parameters")),
        .static_graph = json_is_true(json_object_get(one, "static_graph")),
        .gradient_as_bucket_view = json_is_true(json_object_get(one, "gradient_as_bucket_view"))};
    fsdp_module *model = make_model(context, name);
    const json_t *expected = NULL;

    freeze(model, json_object_get(one, "frozen"));
    CHECK_OK(fsdp_replicate(model, &options));
    CHECK_OK(fsdp_module_materialize(model, test_device(context)));
    CHECK_OK(fsdp_module_initialize(model, 1));
    for (int i = 0; i < ITERATIONS; i++) {
        fsdp_tensor *loss;

        if (json_object_get(one, keys[i])) /* else as in the one before */
            expected = json_object_get(one, keys[i]);
        CHECK_OK(fsdp_scope_begin(context));
        loss = CHECK_PTR(forward(model, strcmp(name, "Wide") == 0));
        check_buckets(model, expected);
        CHECK_OK(fsdp_backward(loss));
        fsdp_scope_end(context, NULL);
        fsdp_module_zero_grad(model);
    }
    fsdp_module_unref(model);
}

TEST(have_what_pytorchs_have)
{
    const char *folder = getenv("FSDP_REFERENCE");
    char *path = test_path(folder ? folder : "/nowhere", "runs/ddp-buckets-ws2.json");
    json_t *file = json_load_file(path, 0, NULL), *one;
    size_t i;

    if (!file)
        skip(); /* FSDP_REFERENCE has it */
    json_array_foreach(json_object_get(file, "cases"), i, one)
    {
        char text[1024];

        if (test_try_ranks(2, play, one, text, sizeof text) > 0)
            TEST_FAIL("case %zu: %s", i, text);
    }
    CHECK(i >= 18);
    json_decref(file);
}
