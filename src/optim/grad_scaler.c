/* grad_scaler.c - scales the loss dynamically, so that small gradients survive float16 (torch.amp.GradScaler).
 *
 * A gradient that is not finite shows only on the rank that holds it, be it of a shard, a replica or a tensor that is
 * not distributed at all. So the ranks tell each other by one all-reduce of one flag over all of them, whoever has
 * gradients; all of them skip the step or none does. */
#include <float.h>
#include <math.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/status.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "fsdp/ops.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

/* An optimizer that is not in the list is READY. */
typedef enum stage {
    UNSCALED,
    STEPPED
} stage;

typedef struct scaled_optimizer {
    fsdp_optimizer *optimizer; /* held, and only compared: it may have been freed */
    stage stage;
    bool found_inf;
} scaled_optimizer;

struct fsdp_grad_scaler {
    fsdp_process_group *group; /* borrowed */
    fsdp_grad_scaler_state state;
    scaled_optimizer *optimizers; /* those used since the last update */
    int64_t count, capacity;
};

/* ---- life and state ---- */

fsdp_grad_scaler_state fsdp_grad_scaler_state_default(void)
{
    return (fsdp_grad_scaler_state){.scale = 65536, .growth_factor = 2, .backoff_factor = 0.5, .growth_interval = 2000};
}

/* Written so that NaN is refused too. */
static fsdp_status check_state(const fsdp_grad_scaler_state *state)
{
    const char *bad = NULL;

    if (!(state->scale >= (double)FLT_MIN && state->scale <= (double)FLT_MAX))
        bad = "scale must be a normal number of float32 above 0";
    else if (!(state->growth_factor > 1) || isinf(state->growth_factor))
        bad = "growth_factor must be above 1";
    else if (!(state->backoff_factor > 0 && state->backoff_factor < 1))
        bad = "backoff_factor must be above 0 and below 1";
    else if (state->growth_interval < 1)
        bad = "growth_interval must be at least 1";
    else if (state->growth_tracker < 0 || state->growth_tracker >= state->growth_interval)
        bad = "growth_tracker must be at least 0 and below growth_interval";
    if (bad)
        return FSDP_FAIL(FSDP_INVALID,
                         "a gradient scaler cannot have scale %g, growth_factor %g, backoff_factor %g, growth_interval "
                         "%lld, growth_tracker %lld: %s",
                         state->scale, state->growth_factor, state->backoff_factor, (long long)state->growth_interval,
                         (long long)state->growth_tracker, bad);
    return FSDP_OK;
}

fsdp_status fsdp_grad_scaler_create(fsdp_process_group *group, const fsdp_grad_scaler_state *state,
                                    fsdp_grad_scaler **out)
{
    fsdp_grad_scaler_state initial = state ? *state : fsdp_grad_scaler_state_default();
    fsdp_grad_scaler *scaler;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "a gradient scaler needs a place for the result");
    *out = NULL;
    if (!group)
        return FSDP_FAIL(
            FSDP_INVALID,
            "a gradient scaler needs the group of ranks that decide together, such as fsdp_world(context)");
    FSDP_TRY(check_state(&initial));
    FSDP__TRY_NEW(scaler = fsdp__calloc(1, sizeof *scaler));
    scaler->group = group;
    scaler->state = initial;
    *out = scaler;
    return FSDP_OK;
}

/* Forgets the optimizers that were used, which are READY then. */
static void forget(fsdp_grad_scaler *scaler)
{
    while (scaler->count > 0)
        fsdp__optimizer_drop(scaler->optimizers[--scaler->count].optimizer);
}

void fsdp_grad_scaler_free(fsdp_grad_scaler *scaler)
{
    if (!scaler)
        return;
    forget(scaler);
    FSDP__FREE_ALL(scaler->optimizers, scaler);
}

fsdp_grad_scaler_state fsdp_grad_scaler_get_state(const fsdp_grad_scaler *scaler)
{
    return scaler ? scaler->state : (fsdp_grad_scaler_state){.scale = 0};
}

fsdp_status fsdp_grad_scaler_set_state(fsdp_grad_scaler *scaler, const fsdp_grad_scaler_state *state)
{
    if (!scaler)
        return FSDP__FAIL_NULL("cannot set the state of a gradient scaler: it is NULL");
    if (!state)
        return FSDP_FAIL(FSDP_INVALID, "cannot set the state of a gradient scaler: the state is NULL");
    FSDP_TRY(check_state(state));
    scaler->state = *state;
    return FSDP_OK;
}

fsdp_tensor *fsdp_grad_scaler_scale(const fsdp_grad_scaler *scaler, fsdp_tensor *loss)
{
    if (!scaler) {
        FSDP__FAIL_NULL("cannot scale a loss: the gradient scaler is NULL");
        return NULL;
    }
    return fsdp_scale(loss, scaler->state.scale);
}

/* ---- unscaling ---- */

static scaled_optimizer *find(const fsdp_grad_scaler *scaler, const fsdp_optimizer *optimizer)
{
    for (int64_t i = 0; i < scaler->count; i++)
        if (scaler->optimizers[i].optimizer == optimizer)
            return &scaler->optimizers[i];
    return NULL;
}

/* Checks the gradients before anything is changed. It goes by the parameters, which are the same on all ranks. */
static fsdp_status check_gradients(const fsdp_optimizer *optimizer)
{
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        fsdp_tensor *grad;

        FSDP_TRY(fsdp__optimizer_grad(w.param, &grad));
        if (w.param->tensor->dtype == FSDP_F16 || (grad && grad->dtype == FSDP_F16))
            return FSDP_FAIL(FSDP_UNSUPPORTED,
                             "cannot unscale the gradient of '%s': it is float16, which loses what unscaling makes "
                             "small; keep parameters in float32, compute in float16 by mp_policy.param_dtype, and "
                             "do not set keep_low_precision_grads",
                             w.param->name);
    }
    return FSDP_OK;
}

/* Gradients as kernels take them, of one device and dtype at a time; the arrays have room for all. */
typedef struct gradients {
    fsdp_tensor **tensors; /* of all devices and dtypes; those with elements */
    int64_t count;
    fsdp__span *spans;
} gradients;

static void release(const gradients *all)
{
    FSDP__FREE_ALL(all->tensors, all->spans);
}

static fsdp_status collect(const fsdp_optimizer *optimizer, gradients *all)
{
    int64_t most = fsdp__optimizer_count(optimizer);

    all->tensors = fsdp__malloc((size_t)most * sizeof *all->tensors);
    all->spans = fsdp__malloc((size_t)most * sizeof *all->spans);
    if (most > 0 && (!all->tensors || !all->spans))
        return FSDP_NO_MEMORY;
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        fsdp_tensor *grad = fsdp_tensor_grad(w.param->tensor);

        if (!grad || fsdp_tensor_numel(grad) == 0)
            continue;
        FSDP_TRY(fsdp_tensor_begin_write(grad));
        all->tensors[all->count++] = grad;
    }
    return FSDP_OK;
}

/* Finds the largest magnitude of the gradients of `dtype` on the device, and writes it to `*largest` there. */
static fsdp_status measure(const gradients *all, fsdp_device *device, fsdp_dtype dtype, double *largest)
{
    fsdp__power_sum_args args = {.spans = all->spans, .dtype = dtype, .p = INFINITY, .largest = largest};

    for (int64_t i = 0; i < all->count; i++)
        if (all->tensors[i]->storage->device == device && all->tensors[i]->dtype == dtype)
            all->spans[args.count++] =
                (fsdp__span){.src = fsdp_tensor_data(all->tensors[i]), .numel = fsdp_tensor_numel(all->tensors[i])};
    return fsdp__launch_power_sum(fsdp_device_stream(device), &args);
}

/* Looks at all gradients of a device at once. */
static fsdp_status look(const gradients *all, fsdp_device *device, bool *found_inf)
{
    static const fsdp_dtype dtypes[] = {FSDP_F32, FSDP_BF16, FSDP_F16};
    fsdp_stream *stream = fsdp_device_stream(device);
    double magnitudes[FSDP__COUNT_OF(dtypes)] = {0};
    FSDP__SCOPED(fsdp__workspace_release) fsdp__workspace largest = {0};

    FSDP_TRY(fsdp__workspace_take(device, sizeof magnitudes, &largest));
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        FSDP_TRY(measure(all, device, dtypes[d], (double *)largest.data + d));
    FSDP_TRY(fsdp__copy_to_host(stream, magnitudes, largest.data, sizeof magnitudes));
    FSDP_TRY(fsdp_stream_synchronize(stream));
    for (size_t d = 0; d < FSDP__COUNT_OF(dtypes); d++)
        *found_inf = *found_inf || !isfinite(magnitudes[d]);
    return FSDP_OK;
}

static bool is_first_of_device(const gradients *all, int64_t i)
{
    for (int64_t before = 0; before < i; before++)
        if (all->tensors[before]->storage->device == all->tensors[i]->storage->device)
            return false;
    return true;
}

/* Collects the gradients that this rank holds, and looks whether one is not finite. Changes none of them. */
static fsdp_status look_at_own(fsdp_grad_scaler *scaler, const fsdp_optimizer *optimizer, gradients *all,
                               bool *found_inf)
{
    FSDP_TRY(check_gradients(optimizer));
    FSDP_TRY(fsdp__grow(&scaler->optimizers, scaler->count, &scaler->capacity, sizeof *scaler->optimizers));
    FSDP_TRY(collect(optimizer, all));
    for (int64_t i = 0; i < all->count; i++)
        if (is_first_of_device(all, i))
            FSDP_TRY(look(all, all->tensors[i]->storage->device, found_inf));
    return FSDP_OK;
}

static fsdp_status multiply(const gradients *all, float factor)
{
    for (int64_t i = 0; i < all->count; i++) {
        void *data = fsdp_tensor_data(all->tensors[i]);
        const fsdp__scale_args args = {.x = data,
                                       .y = data,
                                       .alpha = factor,
                                       .numel = fsdp_tensor_numel(all->tensors[i]),
                                       .dtype = all->tensors[i]->dtype};

        FSDP_TRY(fsdp__launch_scale(fsdp_device_stream(all->tensors[i]->storage->device), &args));
    }
    return FSDP_OK;
}

/* Says what a rank says of its gradients: 0 or 1, whether one is not finite; or FAILED plus its number if it has
 * failed. */
enum {
    FAILED = 2
};

/* Replaces `*said` by the largest of all ranks, by way of the host: a rank may have no gradients, whose device would
 * say where the others' are. */
static fsdp_status share(const fsdp_grad_scaler *scaler, int *said)
{
    fsdp_stream *stream;
    int32_t flag = *said;
    fsdp_status status;

    if (fsdp_process_group_size(scaler->group) == 1)
        return FSDP_OK;
    FSDP__TRY_MADE(stream = fsdp__process_group_host_stream(scaler->group));
    status = fsdp_all_reduce(scaler->group, &flag, &flag, 1, FSDP_I32, FSDP_MAX, stream);
    /* Wait even after a failure: queued work reads and writes the variable here. */
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    FSDP_TRY(status);
    *said = flag;
    return FSDP_OK;
}

/* Unscales the gradients. One that was set by hand may be wrong on one rank only. The others hear of it in the exchange
 * that they make anyway, and before any gradient is changed: a caller who mends that one and tries again must find all
 * of them as they were. */
static fsdp_status unscale(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer)
{
    bool found_inf = false;
    FSDP__SCOPED(release) gradients all = {.count = 0};
    fsdp_status status = look_at_own(scaler, optimizer, &all, &found_inf);
    int said = status == FSDP_OK ? found_inf : FAILED + fsdp_process_group_rank(scaler->group);

    FSDP_KEEP_FIRST(status, share(scaler, &said));
    if (status == FSDP_OK && said >= FAILED)
        status = FSDP_FAIL(FSDP_STATE, "cannot unscale gradients: rank %d could not, and its own error says why",
                           fsdp_process_group_global_rank(scaler->group, said - FAILED));
    if (status == FSDP_OK)
        status = multiply(&all, (float)(1.0 / scaler->state.scale));
    if (status == FSDP_OK)
        scaler->optimizers[scaler->count++] =
            (scaled_optimizer){.optimizer = fsdp__optimizer_hold(optimizer), .stage = UNSCALED, .found_inf = said > 0};
    return status;
}

fsdp_status fsdp__grad_scaler_unscale_unseen(const fsdp_grad_scaler *scaler, const fsdp_optimizer *optimizer)
{
    FSDP__SCOPED(release) gradients all = {.count = 0};

    FSDP_TRY(check_gradients(optimizer));
    FSDP_TRY(collect(optimizer, &all));
    return multiply(&all, (float)(1.0 / scaler->state.scale));
}

fsdp_status fsdp_grad_scaler_unscale(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer)
{
    const scaled_optimizer *known = scaler && optimizer ? find(scaler, optimizer) : NULL;

    if (!scaler || !optimizer)
        return FSDP__FAIL_NULL("cannot unscale gradients: scaler and optimizer are required");
    if (known && known->stage == UNSCALED)
        return FSDP_FAIL(
            FSDP_STATE,
            "cannot unscale gradients: they have been unscaled already since the last update of the scaler");
    if (known)
        return FSDP_FAIL(FSDP_STATE, "cannot unscale gradients after the step: call fsdp_grad_scaler_update");
    return unscale(scaler, optimizer);
}

/* ---- step and update ---- */

fsdp_status fsdp_grad_scaler_step(fsdp_grad_scaler *scaler, fsdp_optimizer *optimizer, bool *stepped)
{
    scaled_optimizer *known = scaler && optimizer ? find(scaler, optimizer) : NULL;

    if (!scaler || !optimizer)
        return FSDP__FAIL_NULL("cannot step: scaler and optimizer are required");
    if (known && known->stage == STEPPED)
        return FSDP_FAIL(FSDP_STATE, "cannot step twice: call fsdp_grad_scaler_update between the steps");
    if (!known) {
        FSDP_TRY(unscale(scaler, optimizer));
        known = find(scaler, optimizer);
    }
    if (known->found_inf)
        optimizer->grad_scale = 1; /* a clip's factor is for this step only */
    else
        FSDP_TRY(fsdp_optimizer_step(optimizer));
    known->stage = STEPPED;
    if (stepped)
        *stepped = !known->found_inf;
    return FSDP_OK;
}

/* Grows the scale, in f32 as PyTorch does. */
static void grow(fsdp_grad_scaler_state *state)
{
    float grown = (float)(state->scale * state->growth_factor);

    if (++state->growth_tracker < state->growth_interval)
        return;
    state->growth_tracker = 0;
    if (isfinite(grown))
        state->scale = grown;
}

void fsdp__grad_scaler_hear(fsdp_grad_scaler *scaler, bool found_inf)
{
    fsdp_grad_scaler_state *state = &scaler->state;
    float smaller = (float)(state->scale * state->backoff_factor);

    if (!found_inf) {
        grow(state);
        return;
    }
    state->growth_tracker = 0;
    if (smaller >= FLT_MIN) /* its inverse is finite */
        state->scale = smaller;
}

fsdp_status fsdp_grad_scaler_update(fsdp_grad_scaler *scaler)
{
    bool found_inf = false;

    if (!scaler || scaler->count == 0)
        return FSDP_FAIL(FSDP_STATE, "cannot update the scaler: no gradients were unscaled since the last update");
    for (int64_t i = 0; i < scaler->count; i++)
        found_inf = found_inf || scaler->optimizers[i].found_inf;
    forget(scaler);
    fsdp__grad_scaler_hear(scaler, found_inf);
    return FSDP_OK;
}
