/* metrics_lines.c - writes lines of metrics.jsonl while a run goes on. */
#include <stdio.h>

#include "base/text.h"
#include "train/run.h"

/* Notes a failure: after the first line that could not be written none is written. */
static void note(fsdp_train_run *run, fsdp_status written)
{
    run->metrics_status = written;
    if (written == FSDP_OK)
        return;
    fsdp__shown(fsdp_last_error(), run->metrics_message, sizeof run->metrics_message);
    fsdp_log(run->context, FSDP_LOG_WARNING, "%s; the run goes on without metrics", run->metrics_message);
}

static bool writes(const fsdp_train_run *run)
{
    return run->metrics && run->metrics_status == FSDP_OK;
}

void fsdp__train_write_step(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (writes(run))
        note(run, fsdp__metrics_write(run->metrics, report));
}

void fsdp__train_write_validation(fsdp_train_run *run, const fsdp_train_validation *validation)
{
    if (writes(run))
        note(run, fsdp__metrics_write_validation(run->metrics, validation));
}
