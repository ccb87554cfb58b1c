/* histograms.c - counts gradients and weights into bins of half an octave, which a float's first ten bits number. */
#include "train/histograms.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "comm/group_calls.h"
#include "device/device.h"
#include "fsdp/comm.h"
#include "fsdp/dist.h"
#include "optim/optim.h"

enum {
    BIN_SHIFT = 22,            /* of a float's 32 bits */
    SIGN = FSDP__BINS / 2,     /* from this bin on numbers are negative */
    NOT_FINITE_BIN = SIGN - 2, /* from this bin on, of each sign, there are no numbers */
    SUMS = 6                   /* numbers that ranks exchange beside the bins */
};

/* ---- life ---- */

void fsdp__histograms_free(fsdp__histograms *d)
{
    if (!d)
        return;
    for (int64_t i = 0; d->names && i < d->count; i++)
        fsdp__free(d->names[i]);
    FSDP__FREE_ALL(d->names, d->gradients, d->before, d);
}

fsdp_status fsdp__histograms_create(fsdp_context *context, const fsdp_wrap_units *units, fsdp__histograms **out)
{
    fsdp__histograms *d = fsdp__calloc(1, sizeof *d);
    bool complete;

    *out = NULL;
    FSDP__TRY_NEW(d);
    d->context = context;
    d->count = units->count;
    d->names = fsdp__calloc((size_t)d->count, sizeof *d->names);
    d->gradients = fsdp__calloc(2 * (size_t)d->count, sizeof *d->gradients);
    d->weights = d->gradients ? d->gradients + d->count : NULL;
    complete = d->names && d->gradients;
    for (int64_t i = 0; complete && i < d->count; i++) {
        d->names[i] = fsdp__strdup(units->items[i].name);
        complete = d->names[i] != NULL;
    }
    if (complete)
        *out = d;
    else
        fsdp__histograms_free(d);
    return complete ? FSDP_OK : FSDP_NO_MEMORY;
}

/* ---- counting ---- */

/* Returns the innermost unit that the parameter lies in. */
static int64_t unit_of(const fsdp__histograms *d, const char *name)
{
    int64_t found = 0;
    size_t longest = 0;

    for (int64_t i = 0; i < d->count; i++) {
        size_t length = strlen(d->names[i]);

        if (length >= longest && strncmp(name, d->names[i], length) == 0 && (length == 0 || name[length] == '.')) {
            found = i;
            longest = length;
        }
    }
    return found;
}

/* Returns whether this rank counts its part of a tensor: where several ranks hold the same, the first of them does. */
static bool is_first_copy(const fsdp__histograms *d, const fsdp_tensor *tensor)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    if (!distribution)
        return fsdp_context_rank(d->context) == 0;
    for (int i = 0; i < distribution->placement_count; i++)
        if (distribution->placements[i].kind == FSDP_REPLICATE && fsdp_mesh_coordinate(distribution->mesh, i) != 0)
            return false;
    return true;
}

static void count(fsdp__histogram *d, const float *values, int64_t numel)
{
    for (int64_t i = 0; i < numel; i++) {
        double value = (double)values[i];
        uint32_t bits;

        if (!isfinite(values[i])) {
            d->not_finite++;
            continue;
        }
        memcpy(&bits, &values[i], sizeof bits);
        d->bins[bits >> BIN_SHIFT]++;
        d->sum += value;
        d->sum_squares += value * value;
        d->min = fmin(d->min, value);
        d->max = fmax(d->max, value);
    }
}

/* Counts a tensor. `before`: its elements before the step; NULL: not known. */
static fsdp_status take(fsdp__histogram *d, const fsdp_tensor *tensor, const float *before)
{
    int64_t numel = fsdp_tensor_numel(tensor);
    FSDP__FREED float *values = fsdp__malloc((size_t)numel * sizeof *values + 1);

    FSDP__TRY_NEW(values);
    FSDP_TRY(fsdp_tensor_read(tensor, FSDP_F32, values));
    count(d, values, numel);
    for (int64_t i = 0; before && i < numel; i++) {
        double change = (double)values[i] - (double)before[i];

        d->update_squares += isfinite(change) ? change * change : 0;
    }
    return FSDP_OK;
}

/* Returns how many elements of weights this rank counts. */
static int64_t counted_elements(const fsdp__histograms *d, const fsdp_optimizer *optimizer)
{
    int64_t numel = 0;

    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);)
        numel += is_first_copy(d, w.param->tensor) ? fsdp_tensor_numel(w.param->tensor) : 0;
    return numel;
}

fsdp_status fsdp__histograms_before(fsdp__histograms *d, const fsdp_optimizer *optimizer)
{
    float *at;

    fsdp__free(d->before);
    at = d->before = fsdp__malloc((size_t)counted_elements(d, optimizer) * sizeof *at + 1);
    FSDP__TRY_NEW(at);
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        if (!is_first_copy(d, w.param->tensor))
            continue;
        FSDP_TRY(fsdp_tensor_read(w.param->tensor, FSDP_F32, at));
        at += fsdp_tensor_numel(w.param->tensor);
    }
    return FSDP_OK;
}

fsdp_status fsdp__histograms_take(fsdp__histograms *d, const fsdp_optimizer *optimizer)
{
    const float *before = d->before;

    for (int64_t i = 0; i < 2 * d->count; i++)
        d->gradients[i] = (fsdp__histogram){.min = INFINITY, .max = -INFINITY};
    for (fsdp__optimizer_walk w = {0}; fsdp__next_param(optimizer, &w);) {
        int64_t unit = unit_of(d, w.param->name);
        fsdp_tensor *grad;

        if (!is_first_copy(d, w.param->tensor))
            continue;
        FSDP_TRY(take(&d->weights[unit], w.param->tensor, before));
        if (before)
            before += fsdp_tensor_numel(w.param->tensor);
        FSDP_TRY(fsdp__optimizer_grad(w.param, &grad));
        if (grad)
            FSDP_TRY(take(&d->gradients[unit], grad, NULL));
    }
    fsdp__free(fsdp__take(&d->before));
    return FSDP_OK;
}

/* ---- all ranks ---- */

static void add_sums(fsdp__histogram *to, const double *from)
{
    to->min = fmin(to->min, from[0]);
    to->max = fmax(to->max, from[1]);
    to->sum += from[2];
    to->sum_squares += from[3];
    to->not_finite += (int64_t)from[4];
    to->update_squares += from[5];
}

/* Adds up all but the bins, in the order of the ranks. */
static fsdp_status exchange_sums(fsdp__histograms *d, double *mine)
{
    fsdp_process_group *world = fsdp_world(d->context);
    size_t all_count = 2 * (size_t)d->count, *bytes = NULL;
    void **all = NULL;

    for (size_t i = 0; i < all_count; i++) {
        fsdp__histogram *own = &d->gradients[i];
        const double sums[SUMS] = {own->min,           own->max, own->sum, own->sum_squares, (double)own->not_finite,
                                   own->update_squares};

        memcpy(mine + i * SUMS, sums, sizeof sums);
        own->min = INFINITY;
        own->max = -INFINITY;
        own->sum = own->sum_squares = own->update_squares = 0;
        own->not_finite = 0;
    }
    FSDP_TRY(fsdp_gather_objects(world, mine, all_count * SUMS * sizeof *mine, &all, &bytes));
    for (int rank = 0; rank < fsdp_context_world_size(d->context); rank++)
        for (size_t i = 0; i < all_count; i++)
            add_sums(&d->gradients[i], (const double *)all[rank] + i * SUMS);
    fsdp_objects_free(world, all, bytes);
    return FSDP_OK;
}

/* Adds up the bins: integers, in any order. */
static fsdp_status exchange_bins(fsdp__histograms *d, int64_t *bins)
{
    fsdp_stream *stream = fsdp__process_group_host_stream(fsdp_world(d->context));
    int64_t all_count = 2 * d->count;
    fsdp_status status;

    if (!stream)
        return fsdp_last_status();
    for (int64_t i = 0; i < all_count; i++)
        memcpy(bins + i * FSDP__BINS, d->gradients[i].bins, sizeof d->gradients[i].bins);
    status = fsdp_all_reduce(fsdp_world(d->context), bins, bins, all_count * FSDP__BINS, FSDP_I64, FSDP_SUM, stream);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream));
    for (int64_t i = 0; i < all_count; i++)
        memcpy(d->gradients[i].bins, bins + i * FSDP__BINS, sizeof d->gradients[i].bins);
    return status;
}

fsdp_status fsdp__histograms_add_up(fsdp__histograms *d)
{
    size_t all_count = 2 * (size_t)d->count;
    FSDP__FREED double *sums = NULL;
    FSDP__FREED int64_t *bins = NULL;

    if (fsdp_context_world_size(d->context) == 1)
        return FSDP_OK;
    sums = fsdp__malloc(all_count * SUMS * sizeof *sums);
    bins = fsdp__malloc(all_count * FSDP__BINS * sizeof *bins);
    FSDP__TRY_NEW(sums && bins);
    FSDP_TRY(exchange_sums(d, sums));
    return exchange_bins(d, bins);
}

/* ---- looking ---- */

int64_t fsdp__histogram_count(const fsdp__histogram *d)
{
    int64_t sum = 0;

    for (int i = 0; i < FSDP__BINS; i++)
        sum += d->bins[i];
    return sum;
}

/* Returns the magnitude at which the bin begins, of either sign. Not as a float, which may be too small to be more than
 * zero where small numbers are flushed. */
static double edge_of(int bin)
{
    int exponent = bin / 2;
    double half = bin % 2 * 0.5;

    return exponent == 0 ? ldexp(half, FLT_MIN_EXP - 1) : ldexp(1 + half, exponent + FLT_MIN_EXP - 2);
}

int64_t fsdp__histogram_below(const fsdp__histogram *d, double limit)
{
    int64_t sum = 0;

    for (int i = 0; i < NOT_FINITE_BIN && edge_of(i) < limit; i++)
        sum += d->bins[i] + d->bins[SIGN + i];
    return sum;
}

size_t fsdp__histogram_bins(const fsdp__histogram *d, double *limits, double *counts)
{
    double last = NAN;
    size_t written = 0;

    for (int i = 0; i < 2 * NOT_FINITE_BIN; i++) { /* from the most negative numbers to the largest */
        bool negative = i < NOT_FINITE_BIN;
        int magnitude = negative ? NOT_FINITE_BIN - 1 - i : i - NOT_FINITE_BIN;
        double low = negative ? -edge_of(magnitude + 1) : edge_of(magnitude);
        int64_t number = d->bins[negative ? SIGN + magnitude : magnitude];

        if (number == 0)
            continue;
        if (written > 0 && last < low) {
            limits[written] = low;
            counts[written++] = 0;
        }
        last = negative ? -edge_of(magnitude) : edge_of(magnitude + 1);
        limits[written] = last;
        counts[written++] = (double)number;
    }
    return written;
}
