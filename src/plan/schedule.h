/* schedule.h - plans when parameters and gradients travel: parallelism.schedule. */
#pragma once

#include "plan/planned.h"

/* Units that are compared, and what they cost. */
typedef struct fsdp__schedule_row {
    /* "blocks", "parts" (attentions and MLPs), "all modules" or, where atoms are coarse, "parts and ends", which adds
     * what lies outside of blocks; each also kept whole; "plan" */
    const char *name;
    int64_t units;
    size_t bytes;         /* of a rank at its peak */
    double step, exposed; /* seconds */
} fsdp__schedule_row;

enum {
    FSDP__SCHEDULE_ROWS = 7,
    FSDP__SCHEDULE_TRIES = 400 /* dry runs of a search, at most */
};

typedef struct fsdp__scheduled {
    double room; /* bytes of a rank; infinite: not known */
    int tried;   /* dry runs */
    int row_count;
    fsdp__schedule_row rows[FSDP__SCHEDULE_ROWS]; /* the last one is the plan's */
    fsdp__comm_schedule *plan;
} fsdp__scheduled;

/* Searches for the schedule with the shortest step that fits into the room, at the options' prices, by at most `tries`
 * dry runs. Blocks, parts and single modules, kept whole or not, are among what is tried, so the plan is never worse
 * than they are, with one exception: a step that is up to 1 % longer is taken if it needs at least 10 % less memory.
 * The same config, options and prices give the same plan. FSDP_NO_MEMORY: nothing that was tried fits.
 */
fsdp_status fsdp__schedule_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                                int tries, fsdp__scheduled *out);
void fsdp__scheduled_release(fsdp__scheduled *scheduled);

/* ---- plan_run.c ---- */

/* Does for a run that starts what its parallelism.schedule plan asks rank 0 for: finds prices and a schedule, tells the
 * log of it, and prints what a file of it has. [blocks] */
fsdp_status fsdp__schedule_plan_run(fsdp_context *context, const fsdp_train_config *config, FILE *out);

/* ---- schedule_text.c ---- */

/* Prints the rows as a table, and the units of the plan. */
fsdp_status fsdp__scheduled_print(const fsdp__scheduled *scheduled, FILE *out);
fsdp_status fsdp__scheduled_json(const fsdp__scheduled *scheduled, FILE *out);
