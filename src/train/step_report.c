/* step_report.c - what a step has come to: its loss, where somebody sees that; what is done where it is not finite; who
 * is told. */
#include <math.h>
#include <stdio.h>

#include "train/dpo.h"
#include "train/run_steps.h"

bool fsdp__validation_due(const fsdp_train_run *run)
{
    const fsdp_train_config *c = run->config;

    return run->validation.on && (run->step % c->validation.freq == 0 || run->step == c->training.steps);
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

/* Fails because the first step is not finite, and names a weight that was not either. [collective] */
static fsdp_status stop_at_once(fsdp_train_run *run, const char *what)
{
    const fsdp_train_config *c = run->config;
    const char *adapter = c->adapter.path;
    char name[FSDP__FINITE_NAME] = "", verdict[FSDP__FINITE_NAME + 80] = "are finite, so look at the data";

    FSDP_TRY(fsdp__find_not_finite(run, name));
    if (*name)
        snprintf(verdict, sizeof verdict, "are not finite: '%s' holds NaN or infinite values", name);
    return FSDP_FAIL(FSDP_NOT_FINITE,
                     "%s: nothing has been trained yet, and the first weights (%s%s%s%s) %s; nothing is exported", what,
                     c->model.path ? "of " : "drawn by training.seed", c->model.path ? c->model.path : "",
                     adapter ? ", and of the adapter " : "", adapter ? adapter : "", verdict);
}

static fsdp_status stop(fsdp_train_run *run, const fsdp_train_report *report)
{
    const fsdp_train_config *c = run->config;
    char what[120];

    what_is_not_finite(report, what, sizeof what);
    if (report->step == 1)
        return stop_at_once(run, what);
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

/* Finds the mean loss where somebody sees it. With a scaler steps are skipped of which only the loss can tell whether
 * they are a failure. */
static fsdp_status find_loss(fsdp_train_run *run, bool stepped, fsdp_train_report *report)
{
    report->loss = NAN;
    report->grad_norm = unsigned_nan(report->grad_norm);
    if (!report->not_finite && stepped && !is_reported(run))
        return fsdp__dpo_report(run, false, report);
    FSDP_TRY(fsdp__mean_loss(run, &report->loss));
    FSDP_TRY(fsdp__dpo_report(run, true, report));
    report->loss = unsigned_nan(report->loss);
    report->not_finite = report->not_finite || !isfinite(report->loss);
    return FSDP_OK;
}

fsdp_status fsdp__step_report(fsdp_train_run *run, bool stepped, fsdp_train_report *report)
{
    fsdp__notice_step(run, report);
    FSDP_TRY(find_loss(run, stepped, report));
    (void)fsdp__metrics_write(run->metrics, report);
    fsdp__notice_report(run, report);
    return FSDP_OK;
}

fsdp_status fsdp__step_tell(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (report->not_finite && run->config->training.on_nan == FSDP_TRAIN_STOP)
        return stop(run, report);
    warn(run, report);
    if (run->listener->stepped)
        run->listener->stepped(run->listener->arg, report);
    return FSDP_OK;
}
