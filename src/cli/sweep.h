/* sweep.h - fsdp train --sweep: runs that differ in some keys, one after the other, each in a folder of its own. */
#pragma once

#include "fsdp/train.h"

enum {
    FSDP__SWEEP_KEYS = 8,  /* options --sweep */
    FSDP__SWEEP_RUNS = 256 /* combinations of their values */
};

typedef struct fsdp__sweep {
    const char *texts[FSDP__SWEEP_KEYS]; /* "section.key=value,value", as they were given */
    int count;
    const char *folder;  /* that has the folders of the runs */
    const char *rest[8]; /* options that each run gets, ends with NULL */
} fsdp__sweep;

/* Collects the options --sweep of a command line, of which a parser keeps the last one only. */
fsdp_status fsdp__sweep_collect(int argc, char **argv, fsdp__sweep *out);
/* Makes the runs, and prints a table of them. Returns the exit status; a signal ends this process, after the run that
 * it came in. */
int fsdp__sweep_run(const fsdp__sweep *sweep, const fsdp_train_config *config);

/* ---- sweep_start.c ---- */

/* Starts this program as a run, passes signals on to it, and waits for its end, but not if a debugger keeps it after
 * that. Returns the first signal that has asked it to end; 0: none has. [blocks] */
int fsdp__sweep_start(const char *const *argv, int *exit_status);
