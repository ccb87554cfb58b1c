/* finite.c - whether the parameters that a run has made are finite. A step with a finite loss and gradient norm may
 * still have thrown them out of range; the next step would show that, but after the last one there is none. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "device/device.h"
#include "device/kernels.h"
#include "train/run_steps.h"

/* Looks at a parameter; `work` is on its device. Codes of frozen weights have not changed. */
static fsdp_status look_at(const fsdp_parameter *parameter, double *work, bool *out_finite)
{
    fsdp_stream *stream = fsdp_device_stream(fsdp_tensor_device(parameter->tensor));
    fsdp__span span = {.src = fsdp_tensor_data(parameter->tensor), .numel = fsdp_tensor_numel(parameter->tensor)};
    fsdp__power_sum_args args = {
        .spans = &span, .count = 1, .dtype = fsdp_tensor_dtype(parameter->tensor), .p = INFINITY, .largest = work};
    double largest = 0;

    *out_finite = true;
    if (span.numel == 0 || !fsdp_dtype_is_floating(args.dtype))
        return FSDP_OK;
    FSDP_TRY(fsdp__launch_power_sum(stream, &args));
    FSDP_TRY(fsdp__copy_to_host(stream, &largest, work, sizeof largest));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    *out_finite = isfinite(largest);
    return FSDP_OK;
}

/* Finds the first of this rank's parameters that is not finite; "" when all are. */
static fsdp_status find(fsdp_train_run *run, char name[FSDP__FINITE_NAME])
{
    FSDP__SCOPED(fsdp_parameters_release) fsdp_parameters parameters = {0};
    bool finite = true;

    name[0] = '\0';
    FSDP_TRY(fsdp_module_parameters(run->model, &parameters));
    for (int64_t i = 0; finite && i < parameters.count; i++) {
        FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace work = {0};

        FSDP_TRY(fsdp__workspace_take(fsdp_tensor_device(parameters.items[i].tensor), sizeof(double), &work));
        FSDP_TRY(look_at(&parameters.items[i], work.data, &finite));
        if (!finite)
            snprintf(name, FSDP__FINITE_NAME, "%s", parameters.items[i].name);
    }
    return FSDP_OK;
}

fsdp_status fsdp__check_finite(fsdp_train_run *run)
{
    char name[FSDP__FINITE_NAME];

    if (!run->config->save.path || run->config->training.on_nan == FSDP_TRAIN_CONTINUE || fsdp__best_is_earlier(run))
        return FSDP_OK;
    FSDP_TRY(find(run, name));
    if (!*name)
        return FSDP_OK;
    return FSDP_FAIL(FSDP_NOT_FINITE,
                     "after step %lld '%s' holds NaN or infinite values: nothing is exported. Try a lower optimizer.lr "
                     "(%g); training.on_nan: continue exports it all the same",
                     (long long)run->step, name, run->config->optimizer.lr);
}

fsdp_status fsdp__find_not_finite(fsdp_train_run *run, char name[FSDP__FINITE_NAME])
{
    int ranks = fsdp_context_world_size(run->context);
    void **all = NULL;
    size_t *bytes = NULL;

    FSDP_TRY(fsdp__train_agree(run, find(run, name)));
    if (ranks == 1)
        return FSDP_OK;
    FSDP_TRY(fsdp_gather_objects(fsdp_world(run->context), name, strlen(name) + 1, &all, &bytes));
    for (int rank = 0; rank < ranks && !*name; rank++)
        snprintf(name, FSDP__FINITE_NAME, "%.*s", (int)bytes[rank], (const char *)all[rank]);
    fsdp_objects_free(fsdp_world(run->context), all, bytes);
    return FSDP_OK;
}
