/* A GPU that has no memory left, and one that is lost. The case that loses it is the last: this process cannot use the
 * GPU after it. Beside a build the GPU is the fake one (fakecuda); tools/gpu_check.sh runs this on one. */
#include "device/device.h"
#include "device/kernels.h"
#include "fsdp/autograd.h"
#include "fsdp/nn.h"
#include "fsdp/ops.h"
#include "fsdp/tensor.h"
#include "support/test.h"

enum {
    IN = 16,
    OUT = 4096
};

/* The fake one has little memory. */
static fsdp_device *gpu(fsdp_context *context)
{
    fsdp_device *device;

    setenv("FSDP_FAKECUDA_MEMORY", "67108864", 1);
    device = fsdp__device_open(context, "cuda", 0);
    if (!device) {
        print_message("skipped: %s\n", fsdp_last_error());
        fsdp_context_free(context);
        skip();
    }
    return device;
}

/* A forward and a backward of a batch of so many rows, all 1, with weights of 1/8. */
static fsdp_status step(fsdp_device *device, fsdp_module *layer, int64_t rows)
{
    fsdp_context *context = fsdp_device_context(device);
    fsdp_tensor *x, *mean;
    fsdp_status status;
    double value;

    CHECK_OK(fsdp_scope_begin(context));
    x = fsdp_full(device, FSDP_F32, FSDP_SHAPE(rows, IN), 1);
    mean = x ? fsdp_mean(fsdp_relu(fsdp_call(layer, x))) : NULL;
    status = mean ? fsdp_backward(mean) : fsdp_last_status();
    if (status == FSDP_OK)
        status = fsdp_tensor_item(mean, &value);
    if (status == FSDP_OK)
        CHECK_NEAR(value, IN / 8.0, 1e-3);
    fsdp_scope_end(context, NULL);
    fsdp_module_zero_grad(layer);
    return status;
}

TEST(after_a_batch_that_had_no_room_a_smaller_one_goes_on)
{
    fsdp_context *context = test_context();
    fsdp_device *device = gpu(context);
    fsdp_module *layer = CHECK_PTR(fsdp_linear_create(context, device, IN, OUT, NULL));
    int failures = 0;

    CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(layer, "weight")), 0.125));
    CHECK_OK(fsdp_tensor_fill_(CHECK_PTR(fsdp_module_parameter(layer, "bias")), 0));
    for (int64_t rows = 64; failures < 2; rows *= 2) {
        fsdp_status status = step(device, layer, rows);

        if (status == FSDP_OK)
            continue;
        failures++;
        CHECK_STATUS(status, FSDP_NO_MEMORY);
        CHECK_CONTAINS(fsdp_last_error(), "cuda");
        print_message("%lld rows: %s\n", (long long)rows, fsdp_last_error());
        CHECK_OK(step(device, layer, 64));
    }
    fsdp_module_unref(layer);
    fsdp_context_free(context);
}

TEST(a_kernel_that_writes_to_a_bad_address_loses_the_gpu_and_every_later_call_says_so)
{
    fsdp_context *context = test_context();
    fsdp_device *device = gpu(context);
    fsdp_stream *stream = fsdp_device_stream(device);
    fsdp__fill_args bad = {.dst = (void *)(uintptr_t)4096, .numel = 1 << 20, .dtype = FSDP_F32, .value = 1};
    char first[1024];
    fsdp_status status;

    status = fsdp__launch(stream, FSDP__KERNEL_FILL, &bad);
    if (status == FSDP_OK)
        status = fsdp_stream_synchronize(stream);
    if (status == FSDP_INVALID && strstr(fsdp_last_error(), "neither memory of the device")) {
        fsdp_context_free(context);
        skip(); /* the fake one looks at each address; tests/shard/test_cuda_faults.c loses it */
    }
    CHECK_STATUS(status, FSDP_STATE);
    print_message("%s\n", fsdp_last_error());
    snprintf(first, sizeof first, "%s", fsdp_last_error());
    CHECK_CONTAINS(first, "cannot be used any more");
    for (int i = 0; i < 3; i++) {
        CHECK_NULL(fsdp_full(device, FSDP_F32, FSDP_SHAPE(64 << i), 1));
        CHECK_CONTAINS(fsdp_last_error(), first);
    }
    fsdp_context_free(context);
}
