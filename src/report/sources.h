/* sources.h - finds and reads what a report is made of. */
#pragma once

#include "report/run_file.h"
#include "report/traced_step.h"
#include "watch/flight_read.h"

enum {
    FSDP__MOST_SOURCES = 64,
    FSDP__MOST_UNREAD = 4
};

typedef enum fsdp__source_kind {
    FSDP__SOURCE_TRACE,
    FSDP__SOURCE_FLIGHT,
    FSDP__SOURCE_PLAN
} fsdp__source_kind;

/* Describes a source other than metrics. */
typedef struct fsdp__source {
    fsdp__source_kind kind;
    char *path;
    int64_t run; /* that has left it, or -1: it is not known */
    char *title; /* of what it is, where that is not clear; NULL: it is. fsdp__sources_finish makes it */
    union {
        fsdp__traced_step step;
        struct {
            fsdp__flight_logs logs;
            fsdp__flight_verdict verdict;
        } flight;
        json_t *plan; /* of fsdp plan --json */
    } of;
} fsdp__source;

typedef struct fsdp__sources {
    fsdp__recorded_runs runs;
    fsdp__source items[FSDP__MOST_SOURCES];
    int count;
    char *unread[FSDP__MOST_UNREAD]; /* why what lay beside the runs is not shown; the others are not told */
    int unread_count;
} fsdp__sources;

/* Adds what a path names: metrics, a trace, flight records, a plan, or a folder with any of these. Beside metrics their
 * trace and flight records are found, where the run's settings say or where they are by default. What is found there
 * and was left by another run, or by an earlier start of this one, is left out. */
fsdp_status fsdp__sources_add(fsdp__sources *sources, const char *path);
/* Names the runs, when all has been added. */
fsdp_status fsdp__sources_finish(fsdp__sources *sources);
void fsdp__sources_release(fsdp__sources *sources);

/* Returns the n-th source of a kind, from 0, that is of this run (-1: of any run, or of none); NULL: there is none. */
const fsdp__source *fsdp__source_of(const fsdp__sources *sources, fsdp__source_kind kind, int64_t run, int n);
