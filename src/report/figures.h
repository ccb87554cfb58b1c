/* figures.h - what is said of a run beside its curves. */
#pragma once

#include "report/chart.h"

/* Says how the values of a key are shown. A key that is not known has its own name as its title. */
typedef struct fsdp__chart_style {
    const char *name, *title;
    fsdp__unit unit;
    bool from_zero;
} fsdp__chart_style;
fsdp__chart_style fsdp__chart_style_of(const char *name);

/* Writes the key of a step's peak of a kind of memory (fsdp_memory_kind). Returns `text`. */
const char *fsdp__peak_key(int kind, char *text, size_t bytes);
bool fsdp__is_peak_key(const char *name);

/* The figures of a run; NaN: nothing is known. */
typedef struct fsdp__run_figures {
    double last_step, steps; /* taken, and asked for */
    double missing;          /* steps between the first and the last of which no line tells */
    double first_missing;
    double loss;              /* of the last step */
    double best_loss;         /* of its validations */
    double tokens_per_second; /* over all steps, as fsdp__tokens_per_second has it */
    double step_ms;           /* the median */
    double seconds;           /* of all steps */
    double peak_bytes;        /* of a rank */
} fsdp__run_figures;
fsdp__run_figures fsdp__run_figures_of(const fsdp__recorded_run *run);

/* Returns the point with the lowest finite value, the first of several; NULL: there is none. */
const fsdp__point_of_series *fsdp__lowest_point(const fsdp__series *series);

/* Returns the median of the finite values from the point `begin` to before `end`; NaN if there are none. */
double fsdp__median(const fsdp__series *series, int64_t begin, int64_t end);

/* Returns whether the n-th of the steps is the first after a start: caches are cold. */
bool fsdp__begins_start(const fsdp__recorded_run *run, const fsdp__series *steps, int64_t n);

/* Returns the tokens of the steps from the n-th, `begin`, to before `end`, over the time that they take together; NaN
 * if that is not known. The first step of each start is left out, unless the run has only one step: caches are cold. */
double fsdp__tokens_per_second(const fsdp__recorded_run *run, int64_t begin, int64_t end);

/* Writes the value of a run's setting, "" if its header has none. Returns it, or `text`. */
const char *fsdp__setting(const fsdp__recorded_run *run, const char *key);

enum {
    FSDP__USUAL_TEXT = 200
};
/* Writes what holds for a run whose header does not have the key: "0.0003 (default)", or "(default)" if that is not
 * known, as of a run of another version. Returns `text`. */
const char *fsdp__usual_setting(const fsdp__recorded_runs *all, const fsdp__recorded_run *run, const char *key,
                                char text[FSDP__USUAL_TEXT]);

/* The keys that runs differ in, or, of one run, all that it sets. Files and folders that each run
 * has for itself do not count as a difference. */
typedef struct fsdp__keys {
    const char **names; /* borrowed from the runs */
    int64_t count, capacity;
} fsdp__keys;
fsdp_status fsdp__keys_of(const fsdp__recorded_runs *all, fsdp__keys *out);
void fsdp__keys_free(fsdp__keys *keys);
