/* planned.h - what fsdp plan --json said, beside what a run has measured. */
#pragma once

#include <jansson.h>

#include "report/chart.h"
#include "report/run_file.h"

enum {
    FSDP__PLANNED_ROWS = 16
};

typedef struct fsdp__planned {
    char what[64];
    fsdp__unit unit;
    double planned, measured; /* NaN: not known */
} fsdp__planned;

/* Fills the rows that the plan has figures for, and returns how many. `run` may be NULL. */
int fsdp__planned_rows(const json_t *plan, const fsdp__recorded_run *run, fsdp__planned rows[FSDP__PLANNED_ROWS]);
