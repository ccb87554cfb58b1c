/* figures.h - summarizes all starts of a variant. */
#pragma once

#include "compare/measure.h"

typedef struct fsdp__figures {
    bool has;           /* it has run to the end, every time */
    char failure[1024]; /* why it has not; "": it has not been started */
    int starts;
    char device[160]; /* of rank 0, in the last start */
    char links[320];  /* by what the ranks' GPUs are joined; "": there are no two */
    /* Over all measured steps of all starts. A step takes as long as on its slowest rank; the times that it waits are
     * means over ranks. `spread_ms` is half the interquartile range of the steps, NaN if there is one step. */
    double step_ms, spread_ms, gather_ms, reduce_ms, tokens_per_second;
    int64_t tokens_per_step, units, microbatches;
    fsdp_comm_stats comm;       /* of one step of rank 0 */
    fsdp_memory_stats memory;   /* of one step; each figure is the largest of any rank */
    size_t resident_bytes;      /* of all ranks together after a step; the largest of all starts */
    size_t resident_peak_bytes; /* the most that any rank has ever had */
    int loss_count;
    double losses[FSDP__START_STEPS];
    bool starts_agree; /* every start had the same losses, to the bit */
    fsdp__step_figures *steps;
    int64_t step_count, step_capacity;
} fsdp__figures;

/* Adds another start, as its ranks have recorded it. */
fsdp_status fsdp__figures_add(fsdp__figures *figures, const fsdp__start_record *records, int ranks);
/* Computes the summary. No start may be added after that. */
fsdp_status fsdp__figures_finish(fsdp__figures *figures);
void fsdp__figures_release(fsdp__figures *figures);

/* Returns to how many decimal digits all losses of the two are equal: 0 to 16, or 17 if they are equal to the bit.
 * Steps that only one of them has do not count. */
enum {
    FSDP__SAME_BITS = 17
};
int fsdp__figures_agree(const fsdp__figures *a, const fsdp__figures *b);
