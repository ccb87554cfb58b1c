/* measure.c - measures one start of one variant on one rank. */
#include "compare/measure.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "train/run.h"

/* ---- what the system says of this process ---- */

/* Returns the bytes that a line like "Pss:   123 kB" gives. */
static size_t kib_in(const char *path, const char *name)
{
    FILE *file = fopen(path, "re");
    size_t length = strlen(name);
    unsigned long long kib = 0;
    char line[256];

    while (file && fgets(line, sizeof line, file))
        if (strncmp(line, name, length) == 0 && sscanf(line + length, "%llu", &kib) == 1)
            break;
    if (file)
        fclose(file);
    return (size_t)kib << 10;
}

/* Reads this process's memory while all ranks have all of theirs: shared memory is divided by the number of processes
 * that map it. [collective] */
static fsdp_status look_at_process(fsdp_context *context, fsdp__start_record *out)
{
    bool several = fsdp_context_world_size(context) > 1;

    if (several)
        FSDP_TRY(fsdp_barrier(fsdp_world(context)));
    out->resident_bytes = kib_in("/proc/self/smaps_rollup", "Pss:");
    out->resident_peak_bytes = kib_in("/proc/self/status", "VmHWM:");
    return several ? fsdp_barrier(fsdp_world(context)) : FSDP_OK;
}

/* ---- steps ---- */

static void keep_warning(void *arg, fsdp_log_level level, const char *line)
{
    fsdp__start_record *record = arg;
    size_t used = strlen(record->warnings);

    if (level <= FSDP_LOG_WARNING)
        snprintf(record->warnings + used, sizeof record->warnings - used, "%s\n", line);
}

static fsdp_status take_steps(fsdp_train_run *run, int steps, fsdp__start_record *out)
{
    fsdp_train_report report = {0};

    out->steps = FSDP__WARMUP_STEPS + steps;
    for (int i = 0; i < out->steps; i++) {
        FSDP_TRY(fsdp_train_step(run, &report));
        out->step[i] = (fsdp__step_figures){report.loss, report.step_ms, report.gather_ms, report.reduce_ms};
    }
    out->comm = report.comm;
    out->memory = report.memory;
    return FSDP_OK;
}

static fsdp_status run_steps(fsdp_context *context, const fsdp_train_config *config,
                             const fsdp_train_listener *listener, int steps, fsdp_train_run **run,
                             fsdp__start_record *out)
{
    fsdp_train_summary summary;

    FSDP_TRY(fsdp__train_run_create_heard(context, config, listener, run));
    fsdp_train_run_summary(*run, &summary);
    snprintf(out->device, sizeof out->device, "%s", summary.device);
    fsdp__train_links(*run, out->links, sizeof out->links);
    out->tokens_per_step = summary.tokens_per_step;
    out->units = summary.units;
    out->microbatches = summary.microbatches;
    FSDP_TRY(take_steps(*run, steps, out));
    return look_at_process(context, out);
}

/* Ends the world after a failure. One that all ranks know of is reported once; one that they do not know of has ended
 * the world already. The other ranks wait for that, because a launcher ends all ranks as soon as one is gone. */
static void end_world(fsdp_context *context)
{
    bool held = fsdp_hold_error(true);

    if (fsdp_context_rank(context) == 0)
        fsdp_abort(context, fsdp_last_error());
    else if (fsdp_world(context))
        (void)fsdp_barrier(fsdp_world(context));
    fsdp_release_error(held);
}

fsdp_status fsdp__measure_start(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_listener *listener, int steps, fsdp__start_record *out)
{
    fsdp_train_run *run = NULL;
    fsdp_status status;

    *out = (fsdp__start_record){.done = false};
    if (steps < 1 || steps > FSDP__MEASURED_STEPS)
        return FSDP_FAIL(FSDP_INVALID, "cannot measure %d steps: from 1 to %d", steps, FSDP__MEASURED_STEPS);
    fsdp_context_set_log(context, FSDP_LOG_WARNING, keep_warning, out);
    status = run_steps(context, config, listener, steps, &run, out);
    if (status != FSDP_OK)
        end_world(context);
    fsdp_train_run_free(run);
    fsdp_context_set_log(context, FSDP_LOG_INFO, NULL, NULL);
    out->done = status == FSDP_OK;
    return status;
}

/* ---- from rank to the process that compares ---- */

fsdp_status fsdp__record_write(int fd, int rank, const fsdp__start_record *record)
{
    return fsdp__file_pwrite(fd, "the figures of a rank", record, sizeof *record, (uint64_t)rank * sizeof *record);
}

fsdp_status fsdp__records_read(int fd, int ranks, fsdp__start_record *out)
{
    for (int rank = 0; rank < ranks; rank++) {
        size_t got = 0;

        while (got < sizeof *out) {
            ssize_t bytes =
                pread(fd, (char *)&out[rank] + got, sizeof *out - got, (off_t)((size_t)rank * sizeof *out + got));

            if (bytes < 0 && errno == EINTR)
                continue;
            if (bytes <= 0)
                return FSDP_FAIL(FSDP_IO, "rank %d has ended without its figures", rank);
            got += (size_t)bytes;
        }
        if (!out[rank].done)
            return FSDP_FAIL(FSDP_IO, "rank %d has ended without its figures", rank);
    }
    return FSDP_OK;
}
