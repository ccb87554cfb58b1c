/* memory_owners.c - names the owners of a run's memory when it ends because memory ran out.
 *
 * Of a run that has gone on for a while the ledger knows the owners: it noted them when it refused a request. A run
 * that is refused at its start has taken nothing yet, so a dry run of the same rank finds who would have what at the
 * peak of a step. */
#include <stdio.h>

#include "base/text.h"
#include "device/device.h"
#include "train/dry_memory.h"
#include "train/run.h"

enum {
    MOST_LAYERS = 200 /* of a model whose dry run nobody has to wait for */
};

/* ---- a start that is refused ---- */

/* Lists who has what when the ledger has changed so often. */
typedef struct lister {
    fsdp_device *device;
    int64_t left;
    char *text;
} lister;

static fsdp_status list(void *arg, fsdp__probe_event *e)
{
    lister *l = arg;

    if (fsdp__stream_device(e->stream) == l->device && e->kind != FSDP_MEMORY_WORKSPACE && l->left-- == 1)
        (void)fsdp__device_owners_now(l->device, "a rank would have at the peak of a step", l->text,
                                      FSDP__TRAIN_OWNERS);
    return FSDP_OK;
}

/* Takes the step again whose course is known, and lists the owners at its peak. */
static fsdp_status list_peak(fsdp_train_run *dry, const fsdp__memory_course *course, char *text)
{
    size_t bytes;
    lister l = {.device = dry->device, .left = fsdp__memory_course_peak(course, &bytes), .text = text};
    fsdp__subscriber *subscriber =
        fsdp__context_subscribe(dry->context, FSDP__POINT_BIT(FSDP__POINT_MEMORY_COUNTED), list, &l);
    fsdp_status status = subscriber ? fsdp_train_step(dry, NULL) : FSDP_NO_MEMORY;

    fsdp__unsubscribe(subscriber);
    return status;
}

/* Lists who would have what. Where a dry run fails, too, or would take long, nobody is listed. */
static void list_planned(const fsdp_train_run *run, char *text)
{
    fsdp__memory_course course = {.changes = NULL};
    fsdp_train_run *dry = NULL;

    if (run->model_config.n_layers <= MOST_LAYERS && fsdp__train_dry_twin(run, &dry) == FSDP_OK &&
        fsdp__train_dry_course(dry, fsdp_train_step, &course) == FSDP_OK)
        (void)list_peak(dry, &course, text);
    fsdp__memory_course_release(&course);
    fsdp__train_dry_twin_free(dry);
}

/* ---- any ---- */

void fsdp__train_note_owners(const fsdp_context *context, const fsdp_train_run *run, fsdp_status status, char *text)
{
    int rank = fsdp_context_rank(context);
    fsdp_device *device;
    bool held;

    text[0] = '\0';
    (void)fsdp__text_behind_rank(fsdp_last_error(), &rank);
    if (status != FSDP_NO_MEMORY || rank != fsdp_context_rank(context))
        return;
    held = fsdp_hold_error(true);
    device = fsdp__device_that_refused(context);
    if (device)
        fsdp_device_owners(device, text, FSDP__TRAIN_OWNERS);
    else if (run && !run->model && rank == 0) /* all ranks are refused for about the same */
        list_planned(run, text);
    else if (run && run->model) /* small memory of the host's was refused */
        fsdp_device_owners(run->device, text, FSDP__TRAIN_OWNERS);
    fsdp_release_error(held);
}
