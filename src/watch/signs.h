/* signs.h - what stands out in the figures of a run, said in words: the rules that a run applies to itself while it
 * trains, and a report to what a run has left. Each returns whether there is something to say, and if so writes it to
 * `text`, of FSDP__SIGN_TEXT bytes. */
#pragma once

#include <stdbool.h>
#include <stdint.h>

enum {
    FSDP__SIGN_TEXT = 600
};

/* ---- time ---- */

/* Holds what a rank has spent in some steps, in milliseconds. */
typedef struct fsdp__rank_times {
    double steps; /* how many */
    double step, gather, reduce, data;
} fsdp__rank_times;

/* More than `most` (0 to 1) of the time is waited for gathers and reductions. `unit` and its milliseconds: the one
 * whose gathers are waited for longest; NULL: not known. */
bool fsdp__sign_waiting(const fsdp__rank_times *t, double most, const char *unit, double unit_ms, char *text);
/* The step waits for its data. `workers`: data.workers. */
bool fsdp__sign_starved(const fsdp__rank_times *t, int64_t workers, char *text);
/* Returns the rank that computes longest; -1: there is one rank, or it has not computed. */
int fsdp__slowest_rank(const fsdp__rank_times *ranks, int count);
/* The others wait for this rank: it computes much longer than their median, and they wait about as long. */
bool fsdp__sign_slow_rank(const fsdp__rank_times *ranks, int count, int rank, char *text);

/* ---- loss and norms ---- */

/* The loss has not fallen; `guess` is that of a model that knows nothing. */
bool fsdp__sign_loss_stays(double first, double now, double guess, int64_t steps, double lr, char *text);
/* A step's gradient norm is far above the median of those before. */
bool fsdp__sign_norm_jumps(double norm, double median, int64_t step, double max_norm, char *text);
/* The gradient norm grows; both are medians. */
bool fsdp__sign_norm_grows(double first, double now, int64_t step, char *text);

/* A step has no gradient at all. */
bool fsdp__sign_no_gradient(double norm, int64_t step, char *text);

/* ---- units ---- */

/* Holds the gradients of a unit (a module that is sharded as a whole), and its weights. */
typedef struct fsdp__unit_figures {
    const char *name;                /* "" for the root */
    double elements;                 /* of the gradients that there are */
    double zeros;                    /* thereof 0 */
    double not_finite;               /* NaN or infinite */
    double tiny;                     /* not 0, but below what float16 holds with all its digits, at the loss's scale */
    double gradient, weight, update; /* 2-norms; update: of what the step has changed */
} fsdp__unit_figures;

bool fsdp__sign_not_finite_units(const fsdp__unit_figures *units, int64_t count, char *text);
/* Finds units that learn nothing. */
bool fsdp__sign_dead_units(const fsdp__unit_figures *units, int64_t count, char *text);
/* Finds units whose gradients are far smaller than those of others, for an element. */
bool fsdp__sign_vanishing_units(const fsdp__unit_figures *units, int64_t count, char *text);
/* Most of what float16 should hold is too small for it. */
bool fsdp__sign_underflow(const fsdp__unit_figures *units, int64_t count, double scale, char *text);
/* A step changes a unit's weights by much of what they are. */
bool fsdp__sign_large_updates(const fsdp__unit_figures *units, int64_t count, double lr, char *text);
