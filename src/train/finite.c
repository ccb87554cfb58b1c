/* finite.c - whether what a run has made of its parameters is finite. A step whose loss and gradient norm were may
 * still have thrown them out of range; the next step would show it, and after the last one there is none. */
#include <math.h>

#include "device/device.h"
#include "device/kernels.h"
#include "train/run.h"

/* `sum` is on the parameter's device. */
static fsdp_status check_parameter(fsdp_train_run *run, const fsdp_parameter *parameter, double *sum)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_tensor_device(parameter->tensor));
    fsdp__span span = {.src = fsdp_tensor_data(parameter->tensor), .numel = fsdp_tensor_numel(parameter->tensor)};
    fsdp__power_sum_args args = {
        .spans = &span, .count = 1, .dtype = fsdp_tensor_dtype(parameter->tensor), .p = INFINITY, .out = sum};
    double largest = 0;

    if (span.numel == 0)
        return FSDP_OK;
    FSDP_TRY(fsdp__launch_power_sum(stream, &args));
    FSDP_TRY(fsdp__copy_to_host(stream, &largest, sum, sizeof largest));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    if (isfinite(largest))
        return FSDP_OK;
    return FSDP_FAIL(FSDP_NOT_FINITE,
                     "after step %lld '%s' holds NaN or infinite values: nothing is exported. Try a lower optimizer.lr "
                     "(%g); training.on_nan: continue exports it all the same",
                     (long long)run->step, parameter->name, run->config->optimizer.lr);
}

fsdp_status fsdp__check_finite(fsdp_train_run *run)
{
    fsdp_parameters parameters;
    fsdp_status status = FSDP_OK;

    if (!run->config->save.path || run->config->training.on_nan == FSDP_TRAIN_CONTINUE)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; status == FSDP_OK && i < parameters.count; i++) {
        fsdp_device *device = fsdp_tensor_device(parameters.items[i].tensor);
        void *sum = NULL;

        status = fsdp__device_alloc(device, sizeof(double), FSDP_MEMORY_WORKSPACE, &sum);
        if (status == FSDP_OK)
            status = check_parameter(run, &parameters.items[i], sum);
        fsdp__device_free(device, sum, sizeof(double), FSDP_MEMORY_WORKSPACE);
    }
    fsdp_parameters_release(&parameters);
    return status;
}
