/* step_parts.h - what traced_step.c asks the files beside it for. Spans are sorted by rank and beginning. */
#pragma once

#include "report/traced_step.h"

/* The step on a rank, in the trace's time, and where the rank's spans are. */
typedef struct fsdp__step_place {
    int64_t begin, end;
    int64_t first, last; /* of the spans, those from `first` to before `last` */
} fsdp__step_place;

/* When the last rank came to a call; rank -1: not known. */
typedef struct fsdp__last_comer {
    int64_t at;
    int32_t rank;
} fsdp__last_comer;

typedef struct fsdp__step_parts {
    fsdp__traced_step *step;
    fsdp__step_place *places; /* by rank */
    fsdp__last_comer *comers; /* by span */
} fsdp__step_parts;

/* ---- step_calls.c ---- */

/* Finds who came last to each collective. */
fsdp_status fsdp__step_match_calls(fsdp__step_parts *parts);
/* Adds up what the step's collectives move. */
fsdp_status fsdp__step_add_traffic(fsdp__step_parts *parts);

/* ---- step_ranks.c ---- */

/* Returns the lane on which the rank's kernels take most time. */
int fsdp__step_computing_lane(const fsdp__step_parts *parts, int rank);
/* Finds what each rank does when, and for what and whom it waits. */
fsdp_status fsdp__step_find_activities(fsdp__step_parts *parts);
/* Names the rank for which others wait most, and what it does longer than they do. */
fsdp_status fsdp__step_find_slowest(fsdp__step_parts *parts);

/* ---- step_kernels.c ---- */

/* Finds which kernels take the time, and the gaps between them. */
void fsdp__step_find_kernels(fsdp__step_parts *parts);
