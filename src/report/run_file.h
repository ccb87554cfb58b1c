/* run_file.h - reads what runs have left in metrics.jsonl (fsdp/train.h describes it). */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "fsdp/status.h"

enum {
    FSDP__MOST_RUNS = 32 /* in one report */
};

typedef struct fsdp__point_of_series {
    double step;
    double value; /* NaN: the file has null, which stands for NaN and infinity */
} fsdp__point_of_series;

/* Holds the values of one key, by rising steps. */
typedef struct fsdp__series {
    char *name;
    fsdp__point_of_series *points;
    int64_t count, capacity;
} fsdp__series;

/* A run: one start or several, each of which continues the one before from a checkpoint. */
typedef struct fsdp__recorded_run {
    char *path;     /* of the file */
    char *label;    /* what tells it from the other runs of a report */
    json_t *header; /* what was said last, but "started" of the first start */
    /* The numbers of each step, in the order of the first line that has them; and rewards of validations, by
     * fsdp__validation_key. */
    fsdp__series *series;
    int64_t count, capacity;
    json_t *starts;          /* the headers of its starts as they were, the first one first */
    fsdp__series validation; /* its losses */
    json_t *warnings;        /* lines of what stood out while it trained; NULL: there are none */
    int64_t continued;       /* how many times it was resumed from a checkpoint */
    fsdp__series resumes;    /* the last steps before resumes; values: 0 */
    char *ranks, *devices;   /* of its starts, "4, then 2"; NULL: no header has them */
} fsdp__recorded_run;

typedef struct fsdp__recorded_runs {
    fsdp__recorded_run *runs;
    int64_t count, capacity;
    /* Optional: writes the default of a setting and returns whether it has one. */
    bool (*usual)(const char *key, char *text, size_t text_bytes);
    char *left_out; /* what is wrong with lines of the last file that were left out; NULL: nothing */
} fsdp__recorded_runs;

/* Adds the runs of a file, or of the metrics.jsonl in a folder, in the order in which they were started last. Lines of
 * runs that wrote at once are told apart by their ids (run_starts.h). An unfinished line, as a full disk or a run that
 * goes on leaves it, is passed over, and a damaged one, or the part of one before a whole line, is left out and told,
 * if the file has a run's header, or most of its lines are whole. Of a step that a resumed run takes again the later
 * line counts. */
fsdp_status fsdp__recorded_runs_read(fsdp__recorded_runs *all, const char *path);
/* Names the runs, when all have been read. */
fsdp_status fsdp__recorded_runs_label(fsdp__recorded_runs *all);
void fsdp__recorded_runs_free(fsdp__recorded_runs *all);
void fsdp__recorded_run_release(fsdp__recorded_run *run); /* frees what it holds */

enum {
    FSDP__VALIDATION_KEY = 80 /* bytes of the longest that there is */
};
/* Writes the key of what validations say, of a key of steps: "validation_reward_margin". */
const char *fsdp__validation_key(const char *name, char text[FSDP__VALIDATION_KEY]);
bool fsdp__is_validation_key(const char *name);
/* The series of steps that were left out, since no token of them is an answer. They have no point in those of losses,
 * norms, speeds and times. */
#define FSDP__LEFT_OUT "left_out"
/* Returns the series of a key; NULL: the run has none. */
const fsdp__series *fsdp__series_of(const fsdp__recorded_run *run, const char *name);
/* Return a number or a text of a run's header; NaN and NULL: it has none. */
double fsdp__header_number(const fsdp__recorded_run *run, const char *key);
const char *fsdp__header_text(const fsdp__recorded_run *run, const char *key);
