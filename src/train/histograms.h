/* histograms.h - how a run's gradients and weights are distributed, unit by unit, every few steps. */
#pragma once

#include <stddef.h>

#include "fsdp/optim.h"
#include "fsdp/wrap.h"

enum {
    FSDP__BINS = 1024 /* of floats: sign, exponent, and half an octave */
};

/* Counts the elements of one unit's gradients, or of its weights. */
typedef struct fsdp__histogram {
    int64_t bins[FSDP__BINS];
    double min, max, sum, sum_squares; /* of the finite ones */
    int64_t not_finite;                /* how many are NaN or infinite; no bin has them */
    double update_squares;             /* of weights: of what the step has changed */
} fsdp__histogram;

typedef struct fsdp__histograms {
    fsdp_context *context;
    char **names; /* of the units; "" for the root */
    int64_t count;
    fsdp__histogram *gradients, *weights; /* one for each unit */
    float *before;                        /* what this rank counts of the weights, before the step; NULL: not taken */
} fsdp__histograms;

/* Makes them, empty, for these units. */
fsdp_status fsdp__histograms_create(fsdp_context *context, const fsdp_wrap_units *units, fsdp__histograms **out);
void fsdp__histograms_free(fsdp__histograms *d); /* NULL is allowed */
/* Copies the weights that this rank counts, before a step that fsdp__histograms_take looks at. */
fsdp_status fsdp__histograms_before(fsdp__histograms *d, const fsdp_optimizer *optimizer);
/* Counts what this rank holds of the optimizer's parameters and their gradients; of copies only the first. A parameter
 * belongs to the innermost unit that it lies in. */
fsdp_status fsdp__histograms_take(fsdp__histograms *d, const fsdp_optimizer *optimizer);
/* Adds up what all ranks have counted. [collective] */
fsdp_status fsdp__histograms_add_up(fsdp__histograms *d);
/* Returns how many elements are finite; and how many of them are smaller than `limit`, of either sign, to half an
 * octave. */
int64_t fsdp__histogram_count(const fsdp__histogram *d);
int64_t fsdp__histogram_below(const fsdp__histogram *d, double limit);
/* Writes the bins from the first to the last that is not empty, in the order of the numbers, with one for each gap: how
 * many elements are in it, and the number that ends it. Returns how many there are, 2 FSDP__BINS at most. */
size_t fsdp__histogram_bins(const fsdp__histogram *d, double *limits, double *counts);
