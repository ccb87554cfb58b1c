/* run_starts.h - tells the lines of the runs in one file apart, and joins those of a run that was resumed.
 *
 * Several runs may write to a file at once, and a run may go on after another one has written. So lines are first given
 * to starts: a start is what one process wrote behind its header, by the id that its lines have ("id"); lines of older
 * versions have none and belong to the last header without one. A start that was resumed names the start that it
 * continues, by id, and the step. What that one wrote up to the step is the beginning of its run. */
#pragma once

#include "report/run_file.h"

typedef struct fsdp__start {
    fsdp__recorded_run own; /* what it has written itself */
    const char *id;         /* borrowed from `known`; NULL: its lines have none */
    json_t *known;          /* a line that has the id */
    bool resumed;           /* its header says from which step it goes on: */
    double step;
    int64_t parent;       /* the start that it continues; -1: it is not in the file */
    int64_t begun, ended; /* numbers of the lines of its header and of the last line of a step */
    double last_step;     /* -1: it has taken none */
    bool over;            /* another start goes on from it, or has taken its work back */
} fsdp__start;

typedef struct fsdp__starts {
    fsdp__start *starts;
    int64_t count, capacity;
} fsdp__starts;

/* Returns whether a line has something that a run writes. */
bool fsdp__start_knows(const json_t *line);
/* Adds what the line with this number says, which fsdp__start_knows. */
fsdp_status fsdp__starts_add(fsdp__starts *all, const json_t *line, int64_t number);
/* Adds the runs that the starts are, once all lines are there, in the order in which they were started last. */
fsdp_status fsdp__starts_join(fsdp__starts *all, const char *path, fsdp__recorded_runs *out);
void fsdp__starts_free(fsdp__starts *all);
