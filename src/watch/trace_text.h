/* trace_text.h - writes what a rank has recorded as events of Chrome's trace format, a line each.
 *
 * [Note: what readers demand]
 * Slices of one row that overlap without lying in each other are dropped by readers, so these become rows of their own.
 * Process and thread 0 mean something else. Times are microseconds from the beginning of the trace, written from
 * integers: as a double since 1970 they would lose 21 ns. Every line ends with a comma, so that the ranks' texts follow
 * one another; gzip allows the same of its members. */
#pragma once

#include <stdio.h>

#include "watch/memory_course.h"
#include "watch/trace_recorder.h"

/* Describes a rank's clock, compared with that of rank 0. */
typedef struct fsdp__trace_clock {
    int64_t start;                      /* of the trace, by the clock of rank 0 */
    int64_t begun, ended;               /* by its own clock: when the two were compared */
    int64_t begun_offset, ended_offset; /* by how much it is ahead of that of rank 0 then */
    int64_t uncertain;                  /* more or less this */
} fsdp__trace_clock;

/* Returns the time of the trace, from 0. */
int64_t fsdp__trace_time(const fsdp__trace_clock *clock, int64_t ns);

/* Holds what the memory of a device should do in each step of a run. */
typedef struct fsdp__trace_plan {
    const char *device; /* NULL: nothing is planned */
    fsdp__memory_course course;
} fsdp__trace_plan;

/* Writes all that a stopped recorder has noted. Errors of the stream are left there. */
fsdp_status fsdp__trace_write(FILE *out, const fsdp__recorder *recorder, const fsdp__trace_clock *clock,
                              const fsdp__trace_plan *plan);
