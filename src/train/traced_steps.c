/* traced_steps.c - records a trace of the steps that the config names. */

#include "base/file.h"
#include "base/text.h"
#include "train/dry_memory.h"
#include "train/metrics_lines.h"
#include "train/run_config.h"
#include "train/run_steps.h"
#include "watch/trace_file.h"

/* Steps that are traced where the config does not say: the first one of a run is unlike all others. */
enum {
    USUAL_FIRST = 2,
    USUAL_LAST = 4
};

/* ---- which ---- */

/* Returns whether a step is traced; `*last` is the last step that is. */
static bool is_traced(const fsdp_train_config *config, int64_t resumed, int64_t step, int64_t *last)
{
    const char *at = config->metrics.trace.steps;

    if (!at) {
        *last = resumed + USUAL_LAST;
        return step >= resumed + USUAL_FIRST && step <= *last;
    }
    return fsdp__step_ranges_have(at, step, last);
}

bool fsdp__trace_is_open(const fsdp_train_config *config, int64_t resumed, int64_t step)
{
    int64_t last = 0;
    bool begun = false;

    for (int64_t s = resumed + 1; config->metrics.trace.path && s <= step + 1 && !begun; s++)
        begun = is_traced(config, resumed, s, &last);
    return begun && step < last;
}

/* ---- recording ---- */

fsdp_status fsdp__trace_check(const fsdp_train_config *config)
{
    static const char key[] = "metrics.trace.path";
    const char *path = config->metrics.trace.path;

    if (!path)
        return FSDP_OK;
    FSDP_TRY(fsdp__metrics_make_folder(key, path));
    return fsdp_fail_prefix(fsdp__trace_file_check(path), "%s", key);
}

/* Notes a failure that all ranks have; others end the run. The log names its rank itself. */
static fsdp_status note(fsdp_train_run *run, fsdp_status status)
{
    int failed = -1;
    const char *why;

    if (status == FSDP_OK || status == FSDP_COMM || status == FSDP_MISMATCH)
        return status;
    run->trace_status = status;
    fsdp__shown(fsdp_last_error(), run->trace_message, sizeof run->trace_message);
    why = fsdp__text_behind_rank(run->trace_message, &failed);
    if (fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING, "%s; the run goes on without a trace",
                 failed == 0 ? why : run->trace_message);
    return FSDP_OK;
}

static fsdp_status end(fsdp_train_run *run)
{
    fsdp_trace *trace = run->trace;
    fsdp_status status;

    if (run->ahead.device) /* a recording ends where nothing is under way */
        FSDP_TRY(fsdp_stream_synchronize(fsdp_device_stream(run->device)));
    run->trace = NULL;
    status = fsdp_trace_end(trace);
    if (status == FSDP_OK && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_INFO, "a trace was written to '%s'%s: open it at ui.perfetto.dev",
                 run->config->metrics.trace.path, fsdp__in_place(run->trace_replaces));
    return note(run, status);
}

/* Lets the trace show what the memory should do, by a dry run of this rank. Where none can be made, as with a model of
 * the caller's own that cannot be built again, the line is missing. */
static void plan_memory(const fsdp_train_run *run, fsdp__train_step_taker *step)
{
    fsdp__memory_course course = {.changes = NULL};
    bool held = fsdp_hold_error(true);
    fsdp_train_run *dry = NULL;

    if (fsdp__train_dry_twin(run, &dry) == FSDP_OK && fsdp__train_dry_course(dry, step, &course) == FSDP_OK)
        fsdp__trace_plan_memory(run->trace, run->device, &course);
    fsdp__memory_course_release(&course);
    fsdp__train_dry_twin_free(dry);
    fsdp_release_error(held);
}

fsdp_status fsdp__trace_before_step(fsdp_train_run *run, fsdp__train_step_taker *step)
{
    fsdp_trace_options options = {.run = run->id};
    int64_t last;
    bool possible = run->config->metrics.trace.path && run->loader,
         traced = possible && is_traced(run->config, run->resume.step, run->step + 1, &last),
         recorded = run->trace && is_traced(run->config, run->resume.step, run->step, &last);

    if (traced || recorded) /* also between them, so that each has its own time */
        FSDP_TRY(fsdp__ahead_settle(run, 0, NULL));
    if (run->trace)
        fsdp_trace_pause(run->trace, !traced);
    if (!traced || run->traced)
        return FSDP_OK;
    run->traced = true;
    run->trace_replaces = fsdp__path_exists(run->config->metrics.trace.path);
    FSDP_TRY(note(run, fsdp_trace_begin(run->context, run->config->metrics.trace.path, &options, &run->trace)));
    if (run->trace) {
        fsdp_trace_pause(run->trace, true);
        plan_memory(run, step);
        fsdp_trace_pause(run->trace, false);
    }
    return FSDP_OK;
}

fsdp_status fsdp__trace_after_step(fsdp_train_run *run)
{
    int64_t last;

    if (!run->trace)
        return FSDP_OK;
    (void)is_traced(run->config, run->resume.step, run->step, &last);
    return run->step >= last ? end(run) : FSDP_OK;
}

fsdp_status fsdp__trace_after_steps(fsdp_train_run *run)
{
    if (run->trace)
        return end(run);
    if (run->config->metrics.trace.path && !run->traced && fsdp_context_rank(run->context) == 0)
        fsdp_log(run->context, FSDP_LOG_WARNING,
                 "no trace was written to '%s': none of the steps that were to be traced (%s) was taken",
                 run->config->metrics.trace.path,
                 run->config->metrics.trace.steps ? run->config->metrics.trace.steps : "the second to the fourth");
    return FSDP_OK;
}

fsdp_status fsdp__trace_failure(const fsdp_train_run *run)
{
    return run->trace_status == FSDP_OK ? FSDP_OK : FSDP_FAIL(run->trace_status, "%s", run->trace_message);
}
