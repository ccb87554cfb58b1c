/* step.c - one optimizer step. Every line is a stage; details are one call down. */
#include <math.h>

#include "autograd/autograd.h"
#include "base/status.h"
#include "parallel/context_parallel.h"
#include "train/dpo.h"
#include "train/run_config.h"
#include "train/run_steps.h"

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

/* Weighs the mean over a microbatch's answers, so that the mean over all microbatches of all ranks, which accumulation
 * and reductions take, is that over all answers of the step. */
static fsdp_tensor *weigh(const fsdp_train_run *run, const fsdp_batch *batch, fsdp_tensor *mean)
{
    double microbatches = (double)run->microbatches * run->data_ranks;

    return fsdp_scale(mean, (double)batch->answers * microbatches / (double)run->load.answers);
}

/* Computes the loss of a microbatch. A dry run has no data, and may have another loss. One without answers gets targets
 * of zeros, because the mean over none is not a number; then it weighs nothing. */
static fsdp_tensor *loss_of(fsdp_train_run *run, const fsdp_batch *batch)
{
    fsdp__host_call call = {.device = run->device,
                            .rows = run->config->training.local_batch_size,
                            .time = run->config->training.seq_len,
                            .tokens = batch->inputs,
                            .targets = run->has_rows && batch->answers == 0 ? NULL : batch->targets,
                            .positions = batch->positions};
    fsdp_tensor *loss;

    if (run->own && run->own->loss)
        return run->own->loss(run->own->arg, run->model, run->device);
    loss = fsdp__call_from_host(run->model, &call); /* hooks gather */
    if (fsdp__train_is_dpo(run->config))
        return fsdp__dpo_loss(run, batch, loss);
    return run->has_rows && loss ? weigh(run, batch, loss) : loss;
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
    if (status == FSDP_OK)
        fsdp__note_batch(run, batch);
    return status;
}

/* Says which of the step's sequences the microbatch has, so that each is dropped alike in any microbatch of any rank.
 * All microbatches draw as the first one does, for other sequences; `draws` are those before the step. */
static fsdp_status place_draws(const fsdp_train_run *run, int64_t number, uint64_t draws)
{
    int64_t count = run->config->training.local_batch_size;
    int64_t before = number * run->data_ranks + run->data_rank;

    FSDP_TRY(fsdp_module_set_draws(run->model, draws));
    return fsdp__set_rows_of_batch(run->context, (fsdp__rows_of_batch){before * count, count});
}

/* Runs forward and backward; run->losses gets the loss before it is divided by the number of microbatches, which would
 * round it. If the device looks at it, the host does not see it yet. */
static fsdp_status microbatch(fsdp_train_run *run, int64_t number, uint64_t draws, int64_t *epoch)
{
    const fsdp_train_config *config = run->config;
    double *value = &run->losses[number];
    fsdp_status status = FSDP_OK;
    fsdp_batch batch = {.positions = run->dry_positions};
    fsdp_tensor *loss;

    if (run->loader)
        FSDP_TRY(next_batch(run, &batch));
    FSDP_TRY(place_draws(run, number, draws));
    FSDP_TRY(fsdp_scope_begin(run->context));
    loss = forward(run, &batch);
    if (!loss) {
        status = fsdp_last_status();
        goto out;
    }
    *value = 0;
    FSDP_TRY_GOTO(status, run->ahead.device ? fsdp__ahead_note_loss(run, number, loss) : fsdp_tensor_item(loss, value),
                  out);
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
    (void)fsdp__set_rows_of_batch(run->context, (fsdp__rows_of_batch){0}); /* has memory by now */
    fsdp_scope_end(run->context, NULL);
    return status;
}

static fsdp_status set_learning_rate(fsdp_train_run *run, double *lr)
{
    *lr = run->config->optimizer.lr * fsdp_schedule_factor(&run->schedule, run->step - run->resume.schedule_step);
    for (int group = 0; group < fsdp_optimizer_group_count(run->optimizer); group++)
        FSDP_TRY(fsdp_optimizer_set_lr(run->optimizer, group, (float)(*lr * run->lr_scales[group])));
    return FSDP_OK;
}

/* Returns whether the step's gradients and weights are looked at. */
static bool has_histograms(const fsdp_train_run *run, int64_t step)
{
    return run->histograms && step % run->config->metrics.histogram_freq == 0;
}

/* ---- the step ---- */

/* Takes the step or skips it; decided by what all ranks have in common, so alike on all of them. */
static fsdp_status take_step(fsdp_train_run *run, fsdp_train_report *report, bool *stepped)
{
    double max_norm = run->config->training.max_norm;
    fsdp_optimizer *optimizer = run->optimizer;

    *stepped = true;
    if (run->scaler)
        report->loss_scale = fsdp_grad_scaler_get_state(run->scaler).scale;
    if (run->ahead.device) {
        FSDP_TRY(fsdp__ahead_step(run));
        FSDP_TRY(fsdp__ema_step(run, run->ahead.device));
    } else if (run->scaler) {
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
    if (*stepped && !run->ahead.device)
        FSDP_TRY(fsdp__ema_step(run, NULL));
    if (has_histograms(run, run->step + 1))
        FSDP_TRY(fsdp__histograms_take(run->histograms, optimizer));
    return fsdp_optimizer_zero_grad(optimizer);
}

/* Shows the step's gradients and weights to those who look at them. */
static fsdp_status look_at_units(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (!has_histograms(run, run->step))
        return FSDP_OK;
    FSDP_TRY(fsdp__histograms_add_up(run->histograms));
    (void)fsdp__metrics_write_histograms(run->metrics, run->step, run->histograms);
    fsdp__notice_units(run, report);
    return FSDP_OK;
}

/* Finds out what the step will hold. All ranks know it before the first backward, without a collective: the order is
 * computed, and each rank has all rows. */
static fsdp_status look_ahead(fsdp_train_run *run)
{
    int64_t began_ns = fsdp__clock_ns();

    run->load = (fsdp__load){.tokens = run->sequences * run->config->training.seq_len};
    run->load.answers = run->loader ? 0 : run->load.tokens;
    if (!run->has_rows || !run->loader)
        return FSDP_OK;
    FSDP_TRY(fsdp__loader_look_ahead(run->loader, run->sequences, &run->load));
    run->data_ns += fsdp__clock_ns() - began_ns;
    return FSDP_OK;
}

static bool has_nothing_to_learn(const fsdp_train_run *run)
{
    return run->has_rows && run->load.answers == 0;
}

/* Passes over a step without a token that is learned: its loss has no mean, and weights and optimizer stay. */
static fsdp_status pass_over(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp__meter meter;
    fsdp_batch batch;

    report->left_out = true;
    FSDP_TRY(fsdp__ahead_settle(run, 0, NULL));
    FSDP_TRY(fsdp__meter_begin(&meter, run));
    FSDP_TRY(set_learning_rate(run, &report->lr));
    for (int64_t micro = 0; micro < run->microbatches; micro++)
        FSDP_TRY(next_batch(run, &batch));
    fsdp__meter_time(&meter, run, report);
    FSDP_TRY(fsdp__meter_end(&meter, run, report));
    report->step = ++run->step;
    report->loss = NAN;
    report->epoch = batch.epoch;
    report->skipped = ++run->skipped;
    report->tokens = run->tokens_seen += run->load.tokens;
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING, "step %lld is left out: no token of it is an answer",
                 (long long)run->step);
    (void)fsdp__metrics_write(run->metrics, report);
    return FSDP_OK;
}

static fsdp_status run_step(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp__meter meter;
    uint64_t draws;
    bool stepped;

    FSDP_TRY(look_ahead(run));
    if (has_nothing_to_learn(run))
        return pass_over(run, report);
    if (has_histograms(run, run->step + 1))
        FSDP_TRY(fsdp__histograms_before(run->histograms, run->optimizer));
    FSDP_TRY(fsdp__meter_begin(&meter, run));
    FSDP_TRY(set_learning_rate(run, &report->lr));
    FSDP_TRY(fsdp_module_draws(run->model, &draws));
    for (int64_t micro = 0; micro < run->microbatches; micro++) {
        run->last_microbatch = micro == run->microbatches - 1;
        FSDP_TRY(set_sync(run, micro == run->microbatches - 1));
        FSDP_TRY(microbatch(run, micro, draws, &report->epoch));
        if (micro == FSDP__MICROBATCHES_TAKEN - 1)
            micro += run->passed_over;
    }
    FSDP_TRY(take_step(run, report, &stepped));
    if (!run->ahead.device) {
        /* The meter must see finished work; a device that runs behind the host has only been given it. */
        FSDP_TRY(fsdp_stream_synchronize(fsdp_device_stream(run->device)));
        fsdp__meter_time(&meter, run, report);
    }
    report->step = ++run->step;
    FSDP_TRY(fsdp__meter_end(&meter, run, report));

    run->tokens_seen += run->load.tokens;
    report->tokens = run->tokens_seen;
    report->answer_tokens = run->load.answers;
    if (run->ahead.device)
        return fsdp__ahead_queue(run, &meter, report);
    report->skipped = run->skipped;
    FSDP_TRY(fsdp__step_report(run, stepped, report));
    FSDP_TRY(look_at_units(run, report));
    return fsdp__samples_after_step(run);
}

/* Returns whether somebody looks at the run right after the step that was just taken, as the scaler does, or this is
 * the last one. */
static bool is_looked_at(const fsdp_train_run *run)
{
    return run->config->metrics.exact || run->scaler || run->step == run->config->training.steps ||
           fsdp__validation_due(run) || has_histograms(run, run->step) ||
           (run->samples && run->step % run->config->metrics.sample_freq == 0);
}

/* Ends a step of a host that runs ahead: hears of the one before, and of this one only where it must. */
static fsdp_status end_ahead(fsdp_train_run *run, fsdp_train_report *report)
{
    bool now = report || is_looked_at(run);
    fsdp_train_report last = {0};
    fsdp_status status;

    FSDP_TRY(fsdp__ahead_settle(run, now ? 0 : 1, report ? report : &last));
    if (!now)
        return FSDP_OK;
    status = look_at_units(run, report ? report : &last);
    if (status == FSDP_OK)
        status = fsdp__samples_after_step(run);
    if (status != FSDP_OK)
        fsdp_abort(run->context, fsdp_last_error());
    return status;
}

/* Ends the world, in which peers would wait for this rank. What is known of the step before is still told. */
static fsdp_status give_up(fsdp_train_run *run, fsdp_status status)
{
    bool held = fsdp_hold_error(true);

    (void)fsdp__ahead_settle(run, 0, NULL);
    fsdp_release_error(held);
    fsdp_abort(run->context, fsdp_last_error());
    return fsdp_fail_hop(status, __FILE__, __LINE__);
}

fsdp_status fsdp_train_step(fsdp_train_run *run, fsdp_train_report *report)
{
    fsdp_train_report own = {0};
    fsdp_status status;
    int64_t number;

    if (!run)
        return FSDP__FAIL_NULL("cannot take a step: there is no run");
    number = run->step + 1;
    status = fsdp__trace_before_step(run, fsdp_train_step);
    FSDP__STAGE(run, BEGUN, "step", number);
    if (status == FSDP_OK)
        status = run_step(run, &own);
    FSDP__STAGE(run, DONE, "step", number);
    if (status == FSDP_OK)
        status = fsdp__trace_after_step(run);
    if (status != FSDP_OK)
        return give_up(run, status);
    if (run->ahead.device && !has_nothing_to_learn(run))
        return end_ahead(run, report);
    if (report)
        *report = own;
    return fsdp__step_tell(run, &own);
}
