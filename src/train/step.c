/* step.c - one optimizer step. Every line is a stage; details are one call down. */
#include <math.h>

#include "train/run.h"
#include "train/run_config.h"

/* Sets whether a microbatch reduces. Earlier ones only add up their gradients, unless every one is to be reduced; with
 * ZeRO this depends on the stage. */
static fsdp_status set_sync(fsdp_train_run *run, bool last)
{
    /* A single microbatch is reduced and the last one: modules are set to that from the start. */
    if (run->microbatches == 1)
        return FSDP_OK;
    if (fsdp__train_zero_stage(run->config) > 0)
        return fsdp_module_set_is_last_microbatch(run->model, last);
    FSDP_TRY(fsdp_module_set_requires_gradient_sync(run->model, last || run->config->training.no_sync == 0, true));
    return fsdp_module_set_is_last_backward(run->model, last);
}

/* Computes the loss of sequences (B,T). A dry run has none, and may have another loss. */
static fsdp_tensor *loss_of(fsdp_train_run *run, const fsdp_batch *batch)
{
    fsdp_device *device = run->device;
    int64_t shape[2] = {run->config->training.local_batch_size, run->config->training.seq_len};
    fsdp_tensor *inputs, *targets;

    if (run->own && run->own->loss)
        return run->own->loss(run->own->arg, run->model, device);
    inputs = run->loader ? fsdp_from_data(device, FSDP_I32, 2, shape, batch->inputs)
                         : fsdp_zeros(device, FSDP_I32, 2, shape);
    targets = run->loader ? fsdp_from_data(device, FSDP_I32, 2, shape, batch->targets)
                          : fsdp_zeros(device, FSDP_I32, 2, shape);
    return fsdp_call(run->model, inputs, targets); /* hooks gather */
}

static fsdp_tensor *forward(fsdp_train_run *run, const fsdp_batch *batch)
{
    fsdp_tensor *loss;

    FSDP__STAGE(run, BEGUN, "forward", run->step + 1);
    loss = loss_of(run, batch);
    FSDP__STAGE(run, DONE, "forward", run->step + 1);
    return loss;
}

static fsdp_status backward(fsdp_train_run *run, fsdp_tensor *loss)
{
    fsdp_status status;

    FSDP__STAGE(run, BEGUN, "backward", run->step + 1);
    status = fsdp_backward(loss); /* hooks gather again and reduce */
    FSDP__STAGE(run, DONE, "backward", run->step + 1);
    return status;
}

static fsdp_status next_batch(fsdp_train_run *run, fsdp_batch *batch)
{
    int64_t began_ns = fsdp__clock_ns();
    fsdp_status status = fsdp_loader_next(run->loader, batch);

    run->data_ns += fsdp__clock_ns() - began_ns;
    return status;
}

/* Runs forward and backward; `*value` is the loss before it is divided by the number of microbatches, which would round
 * it. */
static fsdp_status microbatch(fsdp_train_run *run, double *value, int64_t *epoch)
{
    const fsdp_train_config *config = run->config;
    fsdp_status status = FSDP_OK;
    fsdp_batch batch = {0};
    fsdp_tensor *loss;

    if (run->loader)
        FSDP_TRY(next_batch(run, &batch));
    FSDP_TRY(fsdp_scope_begin(run->context));
    loss = forward(run, &batch);
    if (!loss) {
        status = fsdp_last_status();
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp_tensor_item(loss, value), out);
    if (run->microbatches > 1)
        loss = fsdp_scale(loss, 1.0 / (double)run->microbatches);
    /* The other ranks learn of it from the norm, which the NaN makes NaN. */
    if (!isfinite(*value) && config->training.on_nan != FSDP_TRAIN_CONTINUE)
        loss = fsdp_scale(loss, NAN);
    if (run->scaler)
        loss = fsdp_grad_scaler_scale(run->scaler, loss);
    FSDP_TRY_GOTO(status, backward(run, loss), out);
    *epoch = batch.epoch;
out:
    fsdp_scope_end(run->context, NULL);
    return status;
}

static double set_learning_rate(fsdp_train_run *run)
{
    double lr = run->config->optimizer.lr * fsdp_schedule_factor(&run->schedule, run->step - run->resume.schedule_step);

    for (int group = 0; group < fsdp_optimizer_group_count(run->optimizer); group++)
        fsdp_optimizer_set_lr(run->optimizer, group, (float)lr);
    return lr;
}

/* Returns whether somebody will see the loss of the step that was just taken: a log, or a progress bar, for which one
 * of a few steps is recent enough; and a validation may make this step the last. */
static bool is_reported(const fsdp_train_run *run)
{
    /* Decide by the config alone: the mean over ranks is a collective, so all must decide alike. */
    return fsdp__metrics_every_step(run->config) || run->step == run->resume.step + 1 || run->step % 10 == 0 ||
           run->step % run->config->metrics.log_freq == 0 || run->step == run->config->training.steps ||
           fsdp__validation_due(run);
}

/* Returns whether the step's gradients and weights are looked at. */
static bool has_histograms(const fsdp_train_run *run, int64_t step)
{
    return run->histograms && step % run->config->metrics.histogram_freq == 0;
}

/* ---- steps that are not finite ---- */

/* Removes the sign of a NaN, which must not be printed. */
static double unsigned_nan(double value)
{
    return isnan(value) ? NAN : value;
}

/* Writes "step 3: loss nan, gradient norm inf". */
static const char *what_is_not_finite(const fsdp_train_report *report, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "step %lld: loss %.6g, gradient norm %.6g", (long long)report->step, report->loss,
             report->grad_norm);
    return text;
}

static fsdp_status stop(const fsdp_train_run *run, const fsdp_train_report *report)
{
    const fsdp_train_config *c = run->config;
    char what[120];

    what_is_not_finite(report, what, sizeof what);
    if (report->step == 1)
        return FSDP_FAIL(FSDP_NOT_FINITE,
                         "%s: nothing has been trained yet, so look at the first weights (%s%s) and the data; nothing "
                         "is exported",
                         what, c->model.path ? "of " : "drawn by training.seed", c->model.path ? c->model.path : "");
    return FSDP_FAIL(
        FSDP_NOT_FINITE,
        "%s: the run has diverged and stops here; nothing is exported. Try a lower optimizer.lr (%g), more "
        "lr_scheduler.warmup_steps (%lld) or %s training.max_norm (%g); training.on_nan: skip "
        "leaves such steps out",
        what, c->optimizer.lr, (long long)c->lr_scheduler.warmup_steps,
        c->training.max_norm > 0 ? "a smaller" : "clipping by", c->training.max_norm);
}

/* Warns that the run goes on: once for several such steps in a row. */
static void warn(fsdp_train_run *run, const fsdp_train_report *report)
{
    bool skip = run->config->training.on_nan == FSDP_TRAIN_SKIP;
    char what[120];

    if (report->not_finite && !run->not_finite && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s: %s until it is finite again (training.on_nan: %s)",
                 what_is_not_finite(report, what, sizeof what),
                 skip ? "steps are left out" : "steps are taken all the same", skip ? "skip" : "continue");
    run->not_finite = report->not_finite;
}

/* ---- the step ---- */

/* Takes the step or skips it; decided by what all ranks have in common, so alike on all of them. */
static fsdp_status take_step(fsdp_train_run *run, fsdp_train_report *report, bool *stepped)
{
    double max_norm = run->config->training.max_norm;
    fsdp_optimizer *optimizer = run->optimizer;

    if (run->scaler) {
        report->loss_scale = fsdp_grad_scaler_get_state(run->scaler).scale;
        FSDP_TRY(fsdp_grad_scaler_unscale(run->scaler, optimizer));
        FSDP_TRY(fsdp_clip_grad_norm(optimizer, max_norm, &report->grad_norm));
        FSDP_TRY(fsdp_grad_scaler_step(run->scaler, optimizer, stepped));
        FSDP_TRY(fsdp_grad_scaler_update(run->scaler));
        report->not_finite = !*stepped && report->loss_scale < 1;
    } else {
        FSDP_TRY(fsdp_clip_grad_norm(optimizer, max_norm, &report->grad_norm));
        report->not_finite = !isfinite(report->grad_norm);
        *stepped = !report->not_finite || run->config->training.on_nan == FSDP_TRAIN_CONTINUE;
        if (*stepped && !run->steps_early)
            FSDP_TRY(fsdp_optimizer_step(optimizer));
    }
    run->skipped += !*stepped;
    if (has_histograms(run, run->step + 1))
        FSDP_TRY(fsdp__histograms_take(run->histograms, optimizer));
    return fsdp_optimizer_zero_grad(optimizer);
}

/* Does what all ranks must do together; the parameters are already stepped. With a scaler steps are skipped of which
 * only the loss can tell whether they are a failure. */
static fsdp_status finish_report(fsdp_train_run *run, bool stepped, fsdp_train_report *report)
{
    report->loss = NAN;
    report->grad_norm = unsigned_nan(report->grad_norm);
    if (!report->not_finite && stepped && !is_reported(run))
        return FSDP_OK;
    FSDP_TRY(fsdp__mean_loss(run, &report->loss));
    report->loss = unsigned_nan(report->loss);
    report->not_finite = report->not_finite || !isfinite(report->loss);
    return FSDP_OK;
}

/* Tells of the step's gradients and weights, where they are looked at. */
static fsdp_status look_at_units(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (!has_histograms(run, run->step))
        return FSDP_OK;
    FSDP_TRY(fsdp__histograms_add_up(run->histograms));
    (void)fsdp__metrics_write_histograms(run->metrics, run->step, run->histograms);
    fsdp__notice_units(run, report);
    return FSDP_OK;
}

static fsdp_status run_step(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp__meter meter;
    bool stepped;

    if (has_histograms(run, run->step + 1))
        FSDP_TRY(fsdp__histograms_before(run->histograms, run->optimizer));
    FSDP_TRY(fsdp__meter_begin(&meter, run));
    report->lr = set_learning_rate(run);
    for (int64_t micro = 0; micro < run->microbatches; micro++) {
        run->last_microbatch = micro == run->microbatches - 1;
        FSDP_TRY(set_sync(run, micro == run->microbatches - 1));
        FSDP_TRY(microbatch(run, &run->losses[micro], &report->epoch));
    }
    FSDP_TRY(take_step(run, report, &stepped));
    /* The meter must see finished work; a device that runs behind the host has only been given it. */
    FSDP_TRY(fsdp_stream_synchronize(fsdp_device_stream(run->device)));
    report->step = ++run->step;
    FSDP_TRY(fsdp__meter_end(&meter, run, report));

    run->tokens_seen += run->sequences * run->config->training.seq_len;
    report->tokens = run->tokens_seen;
    report->skipped = run->skipped;
    fsdp__notice_step(run, report);
    FSDP_TRY(finish_report(run, stepped, report));
    (void)fsdp__metrics_write(run->metrics, report);
    fsdp__notice_report(run, report);
    FSDP_TRY(look_at_units(run, report));
    return fsdp__samples_after_step(run);
}

fsdp_status fsdp_train_step(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp_train_report own = {0};
    int64_t number = run->step + 1;
    fsdp_status status = fsdp__trace_before_step(run, fsdp_train_step);

    FSDP__STAGE(run, BEGUN, "step", number);
    if (status == FSDP_OK)
        status = run_step(run, &own);
    FSDP__STAGE(run, DONE, "step", number);
    if (status == FSDP_OK)
        status = fsdp__trace_after_step(run);
    if (status != FSDP_OK) {
        fsdp_abort(run->context, fsdp_last_error()); /* otherwise peers would wait for this rank */
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    if (report)
        *report = own;
    if (own.not_finite && run->config->training.on_nan == FSDP_TRAIN_STOP)
        return stop(run, &own);
    warn(run, &own);
    return FSDP_OK;
}
