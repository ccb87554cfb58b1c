/* steps_ahead.c - steps of which the device decides what becomes of them, while the host queues the next one.
 *
 * [Note: ahead]
 * On a device with memory of its own the host would wait several times in a step: for the loss, for the norm of the
 * gradients, for the end. In a world of one rank it need not: no other rank must agree. Losses, norm, the factor that
 * clips and whether the step is left out stay on the device, where the optimizer's kernels read them (fsdp__verdict). A
 * copy of them goes to pinned memory of the host behind each step, and the host reads it when it has queued the next
 * step: so it waits once in a step, for the step before. With training.on_nan: stop all steps after one that is not
 * finite are left out on the device, until the host has heard of it and stops. In float16 the host reads the copy
 * before it queues the next step, whose loss scale depends on it.
 *
 * Whoever looks at the run between two steps settles it first (fsdp__ahead_settle): then all is as if the host had
 * waited. */
#include <math.h>

#include "base/compiler.h"
#include "device/kernels.h"
#include "optim/optim.h"
#include "tensor/tensor.h"
#include "train/run_config.h"
#include "train/run_steps.h"

static fsdp_stream *stream_of(const fsdp_train_run *run)
{
    return fsdp_device_stream(run->device);
}

/* Returns what lies on the device, and in each report: the verdict, and then the losses of the microbatches. */
static float *losses_in(void *report)
{
    return (float *)((fsdp__verdict *)report + 1);
}

/* Forgets the verdicts, of which the last may leave out all that comes after it. */
static fsdp_status begin_anew(const fsdp_train_run *run)
{
    return fsdp__launch_fill_run(stream_of(run), run->ahead.device, FSDP_U8, (int64_t)run->ahead.bytes, 0);
}

fsdp_status fsdp__ahead_begin(fsdp_train_run *run)
{
    fsdp__ahead *a = &run->ahead;

    if (fsdp__device_host_access(run->device) || fsdp_context_world_size(run->context) > 1 ||
        !fsdp__optimizer_is_on(run->optimizer, run->device) || fsdp__train_steps_together(run->config) ||
        fsdp__train_is_dpo(run->config))
        return FSDP_OK; /* norms inside the step and dpo's rewards are looked at by the host */
    a->bytes = sizeof(fsdp__verdict) + (size_t)run->microbatches * sizeof(float);
    FSDP_TRY(fsdp__device_alloc(run->device, a->bytes, FSDP_MEMORY_WORKSPACE, &a->device));
    for (int i = 0; i < FSDP__AHEAD; i++) {
        FSDP_TRY(fsdp__device_alloc_host(run->device, a->bytes, &a->reports[i]));
        FSDP_TRY(fsdp_event_create(run->device, &a->done[i]));
    }
    return begin_anew(run);
}

void fsdp__ahead_release(fsdp_train_run *run)
{
    fsdp__ahead *a = &run->ahead;

    if (a->count > 0)
        (void)fsdp_stream_synchronize(stream_of(run)); /* it may still write the reports */
    for (int i = 0; i < FSDP__AHEAD; i++) {
        fsdp_event_free(a->done[i]);
        if (a->reports[i])
            fsdp__device_free_host(run->device, a->reports[i], a->bytes);
    }
    if (a->device)
        fsdp__device_free(run->device, a->device, a->bytes, FSDP_MEMORY_WORKSPACE);
    *a = (fsdp__ahead){.count = 0};
}

fsdp_status fsdp__ahead_note_loss(fsdp_train_run *run, int64_t microbatch, const fsdp_tensor *loss)
{
    const fsdp__copy_args args = {.src = fsdp_tensor_data(loss),
                                  .dst = losses_in(run->ahead.device) + microbatch,
                                  .src_dtype = fsdp_tensor_dtype(loss),
                                  .dst_dtype = FSDP_F32,
                                  .ndim = 1,
                                  .shape = {1},
                                  .src_strides = {1},
                                  .dst_strides = {1}};

    if (fsdp_tensor_numel(loss) != 1)
        return fsdp_tensor_item(loss, &run->losses[microbatch]); /* fails */
    return fsdp__launch_copy(stream_of(run), &args);
}

fsdp_status fsdp__ahead_step(fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    if (run->scaler)
        FSDP_TRY(fsdp__grad_scaler_unscale_unseen(run->scaler, run->optimizer));
    FSDP_TRY(fsdp__optimizer_judge(
        run->optimizer, run->device,
        (fsdp__judge_step_args){.losses = losses_in(run->ahead.device),
                                .count = run->microbatches,
                                .verdict = run->ahead.device,
                                .max_norm = (float)c->training.max_norm,
                                .takes_all = c->training.on_nan == FSDP_TRAIN_CONTINUE && !run->scaler,
                                .stays = c->training.on_nan == FSDP_TRAIN_STOP && !run->scaler}));
    return fsdp__optimizer_step_judged(run->optimizer, run->ahead.device);
}

fsdp_status fsdp__ahead_queue(fsdp_train_run *run, const fsdp__meter *meter, const fsdp_train_report *report)
{
    fsdp__ahead *a = &run->ahead;
    int last = (a->first + a->count) % FSDP__AHEAD;

    FSDP_TRY(fsdp__copy_to_host(stream_of(run), a->reports[last], a->device, a->bytes));
    FSDP_TRY(fsdp_event_record(a->done[last], stream_of(run)));
    a->steps[last] = *report;
    a->meters[last] = *meter;
    a->count++;
    return FSDP_OK;
}

/* Waits for the oldest step, and reports it. */
static fsdp_status settle(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp__ahead *a = &run->ahead;
    int oldest = a->first;
    const fsdp__verdict *verdict = a->reports[oldest];
    int64_t newest = run->step;
    fsdp_status status;

    FSDP_TRY(fsdp_event_synchronize(a->done[oldest]));
    FSDP_TRY(fsdp__stream_check(stream_of(run)));
    a->first = (a->first + 1) % FSDP__AHEAD;
    a->count--;
    fsdp__optimizer_settle(run->optimizer, verdict->left_out);
    run->skipped += verdict->left_out;
    for (int64_t i = 0; i < run->microbatches; i++)
        run->losses[i] = (double)losses_in(a->reports[oldest])[i];
    a->meters[oldest].began_ns = FSDP__MAX(a->meters[oldest].began_ns, a->settled_ns);
    *report = a->steps[oldest];
    report->grad_norm = verdict->norm;
    report->not_finite = !isfinite(verdict->norm);
    if (run->scaler) {
        report->not_finite = verdict->left_out && report->loss_scale < 1;
        fsdp__grad_scaler_hear(run->scaler, verdict->left_out);
    }
    report->skipped = run->skipped;
    fsdp__meter_time(&a->meters[oldest], run, report);
    a->settled_ns = fsdp__clock_ns();
    run->step = report->step; /* as if the host had waited for it */
    status = fsdp__step_report(run, !verdict->left_out, report);
    run->step = newest;
    return status;
}

/* Leaves out the step that was queued behind the run's last one: it has changed nothing.
 */
static fsdp_status leave_out_rest(fsdp_train_run *run, const fsdp_train_report *last)
{
    fsdp__ahead *a = &run->ahead;

    run->tokens_seen = last->tokens;

    for (; a->count > 0; a->count--) {
        fsdp__optimizer_settle(run->optimizer, true);
        run->step--;
    }
    return begin_anew(run);
}

fsdp_status fsdp__ahead_settle(fsdp_train_run *run, int leave, fsdp_train_report *out)
{
    while (run->ahead.count > leave) {
        fsdp_train_report report;
        fsdp_status status = settle(run, &report);

        if (status == FSDP_OK && report.not_finite && run->config->training.on_nan == FSDP_TRAIN_STOP)
            status = leave_out_rest(run, &report);
        if (status != FSDP_OK) {
            fsdp_abort(run->context, fsdp_last_error());
            return fsdp_fail_hop(status, __FILE__, __LINE__);
        }
        if (out)
            *out = report;
        FSDP_TRY(fsdp__step_tell(run, &report));
    }
    return FSDP_OK;
}
