/* measure.h - measures one start of one variant: what a rank sees of its steps, and how that gets to the process that
 * compares. */
#pragma once

#include "fsdp/train.h"

enum {
    FSDP__WARMUP_STEPS = 2, /* the first makes what later ones reuse */
    FSDP__MEASURED_STEPS = 200,
    FSDP__START_STEPS = FSDP__WARMUP_STEPS + FSDP__MEASURED_STEPS
};

typedef struct fsdp__step_figures {
    double loss, ms, gather_ms, reduce_ms;
} fsdp__step_figures;

/* Holds the record of one rank. */
typedef struct fsdp__start_record {
    bool done;
    int32_t steps; /* including those for warm-up, which come first */
    int64_t tokens_per_step, units, microbatches;
    fsdp_comm_stats comm;     /* of the last step */
    fsdp_memory_stats memory; /* of the last step: peaks within it, live bytes at its end */
    /* Resident memory of this process after the last step (its share of what all ranks have together), and the most it
     * ever had. 0: the system does not say. */
    size_t resident_bytes, resident_peak_bytes;
    char warnings[512]; /* that were logged, one per line */
    char device[160];   /* fsdp_train_summary.device */
    char links[320];    /* fsdp__train_links */
    fsdp__step_figures step[FSDP__START_STEPS];
} fsdp__start_record;

/* Runs some steps for warm-up, and `steps` that are measured. The listener hears of what is before them. After a
 * failure all ranks have ended, and the world says why. [collective] */
fsdp_status fsdp__measure_start(fsdp_context *context, const fsdp_train_config *config,
                                const fsdp_train_listener *listener, int steps, fsdp__start_record *out);

/* Writes a record to a file that has one per rank. */
fsdp_status fsdp__record_write(int fd, int rank, const fsdp__start_record *record);
/* Reads the records of all ranks, which must be done. */
fsdp_status fsdp__records_read(int fd, int ranks, fsdp__start_record *out);
