#include "ops/two_backwards.h"

#include <math.h>

#include "base/probe.h"
#include "device/dry.h"

enum {
    MOST = 64 * 64 /* elements of a parameter */
};

fsdp_device *two_device(fsdp_context *context, bool dry)
{
    return CHECK_PTR(dry ? fsdp__dry_gpu(context) : test_device(context));
}

void two_fill(fsdp_module *model, const char *norm)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    for (int64_t p = 0; p < parameters.count; p++) {
        fsdp_tensor *tensor = parameters.items[p].tensor;
        float values[MOST], base = strstr(parameters.items[p].name, norm) ? 1 : 0;

        CHECK(fsdp_tensor_numel(tensor) <= MOST);
        for (int64_t i = 0; i < fsdp_tensor_numel(tensor); i++)
            values[i] = (float)(0.3 * sin(0.7 * (double)i + 1.3 * (double)p)) + base;
        CHECK_OK(fsdp_tensor_write(tensor, FSDP_F32, values));
    }
    fsdp_parameters_release(&parameters);
}

fsdp_module *two_part(fsdp_module *block, const char *path)
{
    fsdp_module *module = NULL;
    char name[64];

    for (const char *at = path; *at; at += strlen(name) + (at[strlen(name)] == '.')) {
        snprintf(name, sizeof name, "%.*s", (int)strcspn(at, "."), at);
        module = CHECK_PTR(fsdp_module_child(module ? module : block, name));
    }
    return module;
}

static fsdp_status look_on(void *arg, fsdp_module *module, fsdp_tensor **inputs, int count)
{
    (void)arg, (void)module, (void)inputs, (void)count;
    return FSDP_OK;
}

void two_hook(fsdp_module *block, const char *path)
{
    CHECK_OK(fsdp_module_add_hooks(two_part(block, path), &(fsdp_module_hooks){.pre_forward = look_on}, NULL));
}

static fsdp_status count_launches(void *arg, fsdp__probe_event *event)
{
    ((int *)arg)[event->kind]++;
    return FSDP_OK;
}

static fsdp_tensor *ids(fsdp_context *context, fsdp_device *device, int step)
{
    int32_t values[2 * 6];

    for (int i = 0; i < 12; i++)
        values[i] = (i * step + i / 6 + fsdp_context_rank(context)) % 16;
    return CHECK_PTR(fsdp_from_data(device, FSDP_I32, FSDP_SHAPE(2, 6), values));
}

static void keep_gradients(fsdp_module *model, two_backwards *out)
{
    fsdp_parameters parameters;

    CHECK_OK(fsdp_module_parameters(model, &parameters));
    CHECK(parameters.count <= TWO_PARAMETERS);
    out->count = parameters.count;
    for (int64_t i = 0; i < parameters.count; i++) {
        const fsdp_tensor *grad = fsdp_tensor_grad(parameters.items[i].tensor);

        if (!grad)
            continue;
        out->numel[i] = fsdp_tensor_numel(grad);
        out->gradients[i] = malloc((size_t)(out->numel[i] + 1) * sizeof(float));
        CHECK_OK(fsdp_tensor_read(grad, FSDP_F32, out->gradients[i]));
    }
    fsdp_parameters_release(&parameters);
}

void two_take(fsdp_context *context, fsdp_module *model, fsdp_adapter *adapter, two_backwards *out)
{
    int launches[FSDP__KERNELS];
    fsdp__subscriber *subscriber = CHECK_PTR(
        fsdp__context_subscribe(context, FSDP__POINT_BIT(FSDP__POINT_KERNEL_ISSUED), count_launches, launches));
    fsdp_memory_stats memory;
    double loss;

    fsdp_device_reset_peak(out->device);
    for (int step = 0; step < 2; step++) {
        fsdp_tensor *result;

        CHECK_OK(fsdp_scope_begin(context));
        memset(launches, 0, sizeof launches);
        result = CHECK_PTR(fsdp_call(model, ids(context, out->device, 5 + step), ids(context, out->device, 3)));
        memcpy(out->forward, launches, sizeof launches);
        CHECK_OK(fsdp_backward(result));
        for (int k = 0; k < FSDP__KERNELS; k++)
            out->backward[k] = launches[k] - out->forward[k];
        CHECK_OK(fsdp_tensor_item(result, &loss));
        out->loss = (float)loss;
        fsdp_scope_end(context, NULL);
    }
    fsdp__unsubscribe(subscriber);
    fsdp_device_memory(out->device, &memory);
    out->peak = (int64_t)memory.peak_without_workspace_bytes;
    keep_gradients(model, out);
    fsdp_adapter_free(adapter);
    fsdp_module_unref(model);
}

void two_check_close(const two_backwards *a, const two_backwards *b, double tolerance)
{
    CHECK_NEAR(a->loss, b->loss, tolerance);
    CHECK_EQ(a->count, b->count);
    for (int64_t p = 0; p < a->count; p++) {
        CHECK_EQ(a->numel[p], b->numel[p]);
        if (a->numel[p] > 0 && tolerance == 0)
            CHECK(memcmp(a->gradients[p], b->gradients[p], (size_t)a->numel[p] * sizeof(float)) == 0);
        else if (a->numel[p] > 0)
            CHECK_CLOSE(a->gradients[p], b->gradients[p], a->numel[p], tolerance, tolerance);
    }
}

void two_free(two_backwards *t)
{
    for (int64_t i = 0; i < t->count; i++)
        free(t->gradients[i]);
}
