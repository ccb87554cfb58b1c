/* Parameters that some rank, or none, uses in a step of a replicated module: gradients and collectives are those of
 * PyTorch's DDP (tests/reference/runs/ddp-unused-ws2.json), in every way. The error comes at the end of the backward,
 * where PyTorch waits for the next forward. */
#include <jansson.h>
#include <math.h>

#include "fsdp/replicate.h"
#include "shard/net.h"
#include "support/program.h"

typedef struct branches {
    fsdp_module base;
    fsdp_module *a, *b, *c, *out;
    bool use_b;
} branches;

static fsdp_tensor *branches_forward(fsdp_module *self, fsdp_tensor *const *inputs, int count)
{
    branches *m = (branches *)self;
    fsdp_tensor *h = fsdp_call(m->a, inputs[0]);

    (void)count;
    if (m->use_b)
        h = fsdp_add(h, fsdp_call(m->b, h));
    return fsdp_call(m->out, h);
}

static const fsdp_module_type branches_type = {.name = "Branches", .forward = branches_forward};

typedef struct trial {
    const json_t *file, *one; /* the case */
    bool copy, hook;
    fsdp_overlap overlap;
} trial;

static double at(const json_t *list, size_t i)
{
    return json_number_value(json_array_get(list, i));
}

static fsdp_module *build(const trial *t, fsdp_context *context)
{
    fsdp_device *device = test_device(context);
    const json_t *values;
    const char *name;
    branches *m;

    CHECK_OK(fsdp_module_create(context, &branches_type, sizeof *m, &m));
    CHECK_OK(fsdp_module_add_child(&m->base, "a", m->a = fsdp_linear_create(context, device, 4, 4, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "b", m->b = fsdp_linear_create(context, device, 4, 4, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "c", m->c = fsdp_linear_create(context, device, 4, 4, NULL)));
    CHECK_OK(fsdp_module_add_child(&m->base, "out", m->out = fsdp_linear_create(context, device, 4, 2, NULL)));
    json_object_foreach((json_t *)(uintptr_t)json_object_get(t->file, "weight"), name, values)
    {
        float numbers[16];

        for (size_t i = 0; i < json_array_size(values); i++)
            numbers[i] = (float)at(values, i);
        CHECK_OK(fsdp_tensor_write(fsdp_module_parameter(&m->base, name), FSDP_F32, numbers));
    }
    return &m->base;
}

static fsdp_status backward(fsdp_module *module, int iteration)
{
    fsdp_context *context = module->context;
    float x[4];
    fsdp_status status;

    for (int i = 0; i < 4; i++)
        x[i] = (float)((i + fsdp_context_rank(context) * 3 + iteration) % 5) * 0.2f;
    CHECK_OK(fsdp_scope_begin(context));
    status =
        fsdp_backward(fsdp_sum(fsdp_call(module, fsdp_from_data(test_device(context), FSDP_F32, FSDP_SHAPE(1, 4), x))));
    fsdp_scope_end(context, NULL);
    return status;
}

static void check_gradients(fsdp_module *module, const json_t *gradients)
{
    const json_t *expected;
    const char *name;

    json_object_foreach((json_t *)(uintptr_t)gradients, name, expected)
    {
        fsdp_tensor *gradient = fsdp_tensor_grad(CHECK_PTR(fsdp_module_parameter(module, name)));
        float values[16];

        if ((gradient != NULL) != json_is_array(expected))
            TEST_FAIL("'%s' has %s gradient", name, gradient ? "a" : "no");
        if (!gradient)
            continue;
        CHECK_OK(fsdp_tensor_read(gradient, FSDP_F32, values));
        for (size_t i = 0; i < json_array_size(expected); i++)
            if (fabs((double)values[i] - at(expected, i)) > 1e-5)
                TEST_FAIL("the gradient of '%s' [%zu] is %g, expected %g", name, i, (double)values[i], at(expected, i));
    }
}

/* Calls, and bytes: all-reduces of floats and of int32, four bytes both, over two ranks. */
static void check_calls(fsdp_context *context, const json_t *calls)
{
    int64_t reductions = 0, bytes = 0;
    fsdp_comm_stats stats;
    const json_t *call;
    size_t i;

    json_array_foreach(calls, i, call)
    {
        bool reduces = strcmp(json_string_value(json_array_get(call, 0)), "c10d.allreduce_") == 0;

        reductions += reduces;
        bytes += (reduces ? 2 : 1) * 4 * (int64_t)at(call, 1) / 2;
    }
    fsdp_context_comm_stats(context, &stats);
    CHECK_EQ(stats.calls[FSDP_ALL_REDUCE], reductions);
    CHECK_EQ(stats.calls[FSDP_BROADCAST], (int64_t)json_array_size(calls) - reductions);
    CHECK_EQ(stats.bytes_sent[FSDP_ALL_REDUCE] + stats.bytes_sent[FSDP_BROADCAST], bytes);
}

static void zero_gradients(fsdp_module *module, const char *how)
{
    fsdp_parameters parameters;

    if (how && strcmp(how, "none") == 0)
        fsdp_module_zero_grad(module);
    if (!how || strcmp(how, "zero") != 0)
        return;
    CHECK_OK(fsdp_module_parameters(module, &parameters));
    for (int64_t i = 0; i < parameters.count; i++)
        if (fsdp_tensor_grad(parameters.items[i].tensor))
            CHECK_OK(fsdp_tensor_fill_(fsdp_tensor_grad(parameters.items[i].tensor), 0));
    fsdp_parameters_release(&parameters);
}

/* Told on all ranks, and over when the iteration is reset. */
static void check_error(fsdp_module *module)
{
    for (int again = 0; again < 2; again++) {
        CHECK_EQ(backward(module, 0), FSDP_STATE);
        CHECK_CONTAINS(fsdp_last_error(), "rank 0: ");
        CHECK_CONTAINS(fsdp_last_error(), "'c.weight' and 'c.bias'");
        CHECK_CONTAINS(fsdp_last_error(), "find_unused_parameters");
        CHECK_OK(fsdp_module_reset_iteration(module));
        fsdp_module_zero_grad(module);
    }
}

static fsdp_status average(void *arg, const fsdp_gradient_bucket *bucket, fsdp_stream *stream)
{
    void *data = fsdp_tensor_data(bucket->gradients);

    (void)arg;
    return fsdp_all_reduce(bucket->group, data, data, fsdp_tensor_numel(bucket->gradients), FSDP_F32, FSDP_AVG, stream);
}

static void play(fsdp_context *context, void *arg)
{
    const trial *t = arg;
    const json_t *ddp = json_object_get(t->one, "ddp"), *iterations = json_object_get(t->one, "iterations"), *it;
    fsdp_replicate_options options = {
        .find_unused_parameters = json_is_true(json_object_get(ddp, "find_unused_parameters")),
        .static_graph = json_is_true(json_object_get(ddp, "static_graph")),
        .gradient_as_bucket_view = json_is_true(json_object_get(ddp, "gradient_as_bucket_view")),
        .no_shared_memory = t->copy,
        .overlap = t->overlap};
    fsdp_module *module = build(t, context);
    size_t i;

    CHECK_OK(fsdp_replicate(module, &options));
    if (t->hook)
        CHECK_OK(fsdp_module_set_bucket_hook(module, average, NULL));
    if (json_is_object(json_object_get(t->one, "error"))) {
        ((branches *)module)->use_b = true;
        check_error(module);
        fsdp_module_unref(module);
        return;
    }
    json_array_foreach(iterations, i, it)
    {
        const json_t *used = json_array_get(json_object_get(t->one, "b_used_per_iteration_per_rank"), i);

        ((branches *)module)->use_b = at(used, (size_t)fsdp_context_rank(context)) != 0;
        fsdp_context_reset_comm_stats(context);
        CHECK_OK(backward(module, (int)i));
        check_calls(context, json_object_get(it, "comm"));
        check_gradients(module, json_object_get(it, "grad"));
        zero_gradients(module, json_string_value(json_object_get(t->one, "zero_grad")));
    }
    fsdp_module_unref(module);
}

TEST(is_what_pytorch_does)
{
    char *path = test_path(REFERENCE "/runs", "ddp-unused-ws2.json");
    json_t *file = CHECK_PTR(json_load_file(path, 0, NULL));
    const json_t *one;
    size_t i;

    json_array_foreach(json_object_get(file, "cases"), i, one)
    {
        for (int way = 0; way < 8; way++) {
            trial t = {.file = file,
                       .one = one,
                       .copy = way & 1,
                       .hook = way & 4,
                       .overlap = way & 2 ? FSDP_OVERLAP_WORKER : FSDP_OVERLAP_INLINE};
            char text[1024];

            if (test_try_ranks(2, play, &t, text, sizeof text) > 0)
                TEST_FAIL("%s, way %d: %s", json_string_value(json_object_get(one, "case")), way, text);
        }
    }
    CHECK(i >= 8);
    json_decref(file);
}
