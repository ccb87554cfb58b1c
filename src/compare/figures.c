/* figures.c - computes medians and sums over ranks, steps and starts. */
#include "compare/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"

/* ---- over ranks ---- */

static fsdp__step_figures over_ranks(const fsdp__start_record *records, int ranks, int step)
{
    fsdp__step_figures all = {.loss = records[0].step[step].loss};

    for (int rank = 0; rank < ranks; rank++) {
        const fsdp__step_figures *one = &records[rank].step[step];

        all.ms = FSDP__MAX(all.ms, one->ms);
        all.gather_ms += one->gather_ms / ranks;
        all.reduce_ms += one->reduce_ms / ranks;
    }
    return all;
}

static void add_memory(fsdp_memory_stats *all, const fsdp_memory_stats *one)
{
    for (int kind = 0; kind < FSDP_MEMORY_KINDS; kind++) {
        all->live_bytes[kind] = FSDP__MAX(all->live_bytes[kind], one->live_bytes[kind]);
        all->peak_bytes[kind] = FSDP__MAX(all->peak_bytes[kind], one->peak_bytes[kind]);
    }
    all->live_total_bytes = FSDP__MAX(all->live_total_bytes, one->live_total_bytes);
    all->peak_total_bytes = FSDP__MAX(all->peak_total_bytes, one->peak_total_bytes);
}

/* Returns the sum over all ranks. If one of them is not known, nothing is. */
static size_t resident_of(const fsdp__start_record *records, int ranks)
{
    size_t sum = 0;

    for (int rank = 0; rank < ranks; rank++) {
        if (records[rank].resident_bytes == 0)
            return 0;
        sum += records[rank].resident_bytes;
    }
    return sum;
}

/* ---- starts ---- */

static void compare_losses(fsdp__figures *f, const fsdp__start_record *record)
{
    for (int i = 0; i < record->steps; i++) {
        if (f->starts == 0)
            f->losses[i] = record->step[i].loss;
        else if (memcmp(&f->losses[i], &record->step[i].loss, sizeof f->losses[i]) != 0)
            f->starts_agree = false;
    }
    f->loss_count = record->steps;
}

fsdp_status fsdp__figures_add(fsdp__figures *f, const fsdp__start_record *records, int ranks)
{
    if (f->starts == 0)
        f->starts_agree = true;
    for (int i = FSDP__WARMUP_STEPS; i < records[0].steps; i++) {
        FSDP_TRY(fsdp__grow(&f->steps, f->step_count, &f->step_capacity, sizeof *f->steps));
        f->steps[f->step_count++] = over_ranks(records, ranks, i);
    }
    compare_losses(f, &records[0]);
    memcpy(f->device, records[0].device, sizeof f->device);
    memcpy(f->links, records[0].links, sizeof f->links);
    f->tokens_per_step = records[0].tokens_per_step;
    f->units = records[0].units;
    f->microbatches = records[0].microbatches;
    f->comm = records[0].comm;
    for (int rank = 0; rank < ranks; rank++) {
        add_memory(&f->memory, &records[rank].memory);
        f->resident_peak_bytes = FSDP__MAX(f->resident_peak_bytes, records[rank].resident_peak_bytes);
    }
    f->resident_bytes = FSDP__MAX(f->resident_bytes, resident_of(records, ranks));
    f->starts++;
    return FSDP_OK;
}

/* ---- medians ---- */

/* Returns a quantile of sorted values, interpolated between two neighbours. */
static double at_part(const double *values, int64_t count, double part)
{
    double place = part * (double)(count - 1);
    int64_t below = (int64_t)place;

    if (below + 1 >= count)
        return values[count - 1];
    return values[below] + (place - (double)below) * (values[below + 1] - values[below]);
}

/* Sorts one field of all steps into `values`. */
static void sort_field(const fsdp__figures *f, size_t offset, double *values)
{
    for (int64_t i = 0; i < f->step_count; i++)
        values[i] = *(const double *)((const char *)&f->steps[i] + offset);
    qsort(values, (size_t)f->step_count, sizeof *values, fsdp__by_value);
}

fsdp_status fsdp__figures_finish(fsdp__figures *f)
{
    FSDP__FREED double *values = NULL;

    if (f->failure[0] || f->step_count == 0)
        return FSDP_OK;
    FSDP__TRY_NEW(values = fsdp__calloc((size_t)f->step_count, sizeof *values));
    sort_field(f, offsetof(fsdp__step_figures, gather_ms), values);
    f->gather_ms = at_part(values, f->step_count, 0.5);
    sort_field(f, offsetof(fsdp__step_figures, reduce_ms), values);
    f->reduce_ms = at_part(values, f->step_count, 0.5);
    sort_field(f, offsetof(fsdp__step_figures, ms), values);
    f->step_ms = at_part(values, f->step_count, 0.5);
    f->spread_ms =
        f->step_count < 2 ? NAN : (at_part(values, f->step_count, 0.75) - at_part(values, f->step_count, 0.25)) / 2;
    f->tokens_per_second = (double)f->tokens_per_step / (f->step_ms * 1e-3);
    f->has = true;
    return FSDP_OK;
}

void fsdp__figures_release(fsdp__figures *f)
{
    fsdp__free(f->steps);
    *f = (fsdp__figures){.has = false};
}

/* ---- losses ---- */

static int digits_of(double a, double b)
{
    double difference = fabs(a - b), digits;

    if (memcmp(&a, &b, sizeof a) == 0)
        return FSDP__SAME_BITS;
    if (!isfinite(a) || !isfinite(b))
        return 0;
    if (difference == 0) /* zeros with different signs */
        return FSDP__SAME_BITS - 1;
    digits = floor(-log10(difference / fmax(fabs(a), fabs(b))));
    return (int)fmin(fmax(digits, 0), FSDP__SAME_BITS - 1);
}

int fsdp__figures_agree(const fsdp__figures *a, const fsdp__figures *b)
{
    int least = FSDP__SAME_BITS;

    for (int i = 0; i < FSDP__MIN(a->loss_count, b->loss_count); i++)
        least = FSDP__MIN(least, digits_of(a->losses[i], b->losses[i]));
    return least;
}
