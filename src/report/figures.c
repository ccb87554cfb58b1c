/* figures.c - what is said of a run beside its curves. */
#include "report/figures.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "base/text.h"
#include "fsdp/context.h"
#include "fsdp/device.h"

/* ---- styles ---- */

fsdp__chart_style fsdp__chart_style_of(const char *name)
{
    static const fsdp__chart_style known[] = {
        {"loss", "Loss", FSDP__UNIT_NONE, false},
        {"grad_norm", "Norm of the gradient, before clipping", FSDP__UNIT_NONE, true},
        {"lr", "Learning rate", FSDP__UNIT_NONE, true},
        {"tokens_per_second", "Tokens a second", FSDP__UNIT_COUNT, true},
        {"mfu", "Model FLOPs utilization (MFU)", FSDP__UNIT_FRACTION, true},
        {"step_ms", "Time of a step", FSDP__UNIT_MS, true},
        {"gather_ms", "Waiting for gathers, in a step", FSDP__UNIT_MS, true},
        {"reduce_ms", "Waiting for reductions, in a step", FSDP__UNIT_MS, true},
        {"memory_live_bytes", "Memory at the end of a step", FSDP__UNIT_BYTES, true},
        {"memory_peak_bytes", "Peak memory of a step", FSDP__UNIT_BYTES, true},
        {"bytes_sent", "Sent in a step", FSDP__UNIT_BYTES, true},
        {"network_sent", "Sent to other machines in a step", FSDP__UNIT_BYTES, true},
        {"network_received", "Received from other machines in a step", FSDP__UNIT_BYTES, true},
        {"memory_reserved_bytes", "Memory taken from the system", FSDP__UNIT_BYTES, true},
        {"team_bytes_sent", "Sent in a step, within a tensor parallel team", FSDP__UNIT_BYTES, true},
        {"tokens", "Tokens seen", FSDP__UNIT_COUNT, true},
        {"answer_tokens", "Tokens of answers in a step", FSDP__UNIT_COUNT, true},
        {"padded_tokens_per_second", "Tokens a second, with padding", FSDP__UNIT_COUNT, true},
        {"epoch", "Epoch", FSDP__UNIT_NONE, true},
        {"skipped", "Steps skipped so far", FSDP__UNIT_COUNT, true},
        {"loss_scale", "Loss scale", FSDP__UNIT_COUNT, true},
        {"reward_chosen", "Reward of chosen answers", FSDP__UNIT_NONE, false},
        {"reward_rejected", "Reward of rejected answers", FSDP__UNIT_NONE, false},
        {"reward_margin", "Margin of rewards", FSDP__UNIT_NONE, false},
        {"reward_accuracy", "Share of pairs whose chosen answer has the greater reward", FSDP__UNIT_FRACTION, true},
        {"all_gather", "All-gathers in a step", FSDP__UNIT_COUNT, true},
        {"reduce_scatter", "Reduce-scatters in a step", FSDP__UNIT_COUNT, true},
        {"all_reduce", "All-reduces in a step", FSDP__UNIT_COUNT, true},
        {"broadcast", "Broadcasts in a step", FSDP__UNIT_COUNT, true},
        {"all_to_all", "All-to-alls in a step", FSDP__UNIT_COUNT, true},
    };

    for (size_t i = 0; i < FSDP__COUNT_OF(known); i++)
        if (strcmp(known[i].name, name) == 0)
            return known[i];
    return (fsdp__chart_style){name, name, FSDP__UNIT_NONE, false};
}

#define PEAK_KEY "memory_peak_bytes_of_"

const char *fsdp__peak_key(int kind, char *text, size_t bytes)
{
    snprintf(text, bytes, PEAK_KEY "%s",
             fsdp__json_name(fsdp_memory_kind_name((fsdp_memory_kind)kind), FSDP__ROOM(FSDP__JSON_NAME)));
    return text;
}

bool fsdp__is_peak_key(const char *name)
{
    return fsdp__behind(name, PEAK_KEY);
}

/* ---- figures ---- */

double fsdp__median(const fsdp__series *series, int64_t begin, int64_t end)
{
    int64_t count = 0;
    double *values, median = NAN;

    if (!series || end <= begin)
        return NAN;
    values = fsdp__malloc((size_t)(end - begin) * sizeof *values);
    if (!values)
        return NAN;
    for (int64_t i = begin; i < end; i++)
        if (isfinite(series->points[i].value))
            values[count++] = series->points[i].value;
    if (count > 0) {
        qsort(values, (size_t)count, sizeof *values, fsdp__by_value);
        median = (values[(count - 1) / 2] + values[count / 2]) / 2;
    }
    fsdp__free(values);
    return median;
}

static double last_value(const fsdp__series *series)
{
    return series && series->count > 0 ? series->points[series->count - 1].value : NAN;
}

static double last_step(const fsdp__series *series)
{
    return series && series->count > 0 ? series->points[series->count - 1].step : NAN;
}

const fsdp__point_of_series *fsdp__lowest_point(const fsdp__series *series)
{
    const fsdp__point_of_series *lowest = NULL;

    for (const fsdp__point_of_series *p = series->points; p < series->points + series->count; p++)
        if (isfinite(p->value) && (!lowest || p->value < lowest->value))
            lowest = p;
    return lowest;
}

/* Returns the median without the first step. */
static double median_of(const fsdp__recorded_run *run, const char *name)
{
    const fsdp__series *series = fsdp__series_of(run, name);

    return series ? fsdp__median(series, series->count > 1, series->count) : NAN;
}

bool fsdp__begins_start(const fsdp__recorded_run *run, const fsdp__series *steps, int64_t n)
{
    for (int64_t i = 0; n > 0 && i < run->resumes.count; i++)
        if (run->resumes.points[i].step >= steps->points[n - 1].step &&
            run->resumes.points[i].step < steps->points[n].step)
            return true;
    return n == 0;
}

double fsdp__tokens_per_second(const fsdp__recorded_run *run, int64_t begin, int64_t end)
{
    const fsdp__series *speed = fsdp__series_of(run, "tokens_per_second"), *ms = fsdp__series_of(run, "step_ms");
    double tokens = 0, seconds = 0;

    for (int64_t i = begin; speed && ms && i < end && i < speed->count && i < ms->count; i++) {
        double of_step = ms->points[i].value / 1000, made = speed->points[i].value * of_step;

        if (!isfinite(made) || (speed->count > 1 && fsdp__begins_start(run, speed, i)))
            continue;
        tokens += made;
        seconds += of_step;
    }
    return seconds > 0 ? tokens / seconds : NAN;
}

/* Counts the steps between others of which no line tells: each step has one. `left_out`: those that are told of apart
 * from the others. */
static void count_missing(const fsdp__series *steps, const fsdp__series *left_out, fsdp__run_figures *f)
{
    int64_t i = 0, k = 0, all = steps ? steps->count : 0, out = left_out ? left_out->count : 0;
    double before = NAN;

    while (i < all || k < out) {
        bool of_out = k < out && (i == all || left_out->points[k].step < steps->points[i].step);
        double step = of_out ? left_out->points[k++].step : steps->points[i++].step;

        if (step > before + 1) {
            f->first_missing = f->missing == 0 ? before + 1 : f->first_missing;
            f->missing += step - before - 1;
        }
        before = step;
    }
}

fsdp__run_figures fsdp__run_figures_of(const fsdp__recorded_run *run)
{
    const fsdp__point_of_series *best = fsdp__lowest_point(&run->validation);
    const fsdp__series *ms = fsdp__series_of(run, "step_ms"), *peak = fsdp__series_of(run, "memory_peak_bytes");
    const fsdp__series *losses = fsdp__series_of(run, "loss"), *left_out = fsdp__series_of(run, FSDP__LEFT_OUT);
    fsdp__run_figures f = {.last_step = fmax(last_step(losses), last_step(left_out)),
                           .steps = fsdp__header_number(run, "steps"),
                           .loss = last_value(losses),
                           .best_loss = best ? best->value : NAN,
                           .tokens_per_second = fsdp__tokens_per_second(run, 0, INT64_MAX),
                           .step_ms = median_of(run, "step_ms"),
                           .seconds = ms ? 0 : NAN,
                           .peak_bytes = NAN};

    count_missing(losses, left_out, &f);
    if (f.steps < f.last_step) /* it was resumed with a smaller training.steps than it had already taken */
        f.steps = NAN;
    for (int64_t i = 0; ms && i < ms->count; i++)
        f.seconds += isfinite(ms->points[i].value) ? ms->points[i].value / 1000 : 0;
    for (int64_t i = 0; peak && i < peak->count; i++)
        f.peak_bytes = fmax(f.peak_bytes, peak->points[i].value);
    return f;
}

/* ---- settings ---- */

const char *fsdp__setting(const fsdp__recorded_run *run, const char *key)
{
    const char *value = json_string_value(json_object_get(json_object_get(run->header, "settings"), key));

    return value ? value : "";
}

const char *fsdp__usual_setting(const fsdp__recorded_runs *all, const fsdp__recorded_run *run, const char *key,
                                char text[FSDP__USUAL_TEXT])
{
    const char *version = fsdp__header_text(run, "version");
    char usual[FSDP__USUAL_TEXT - 12];

    if (all->usual && version && strcmp(version, FSDP_VERSION) == 0 && all->usual(key, usual, sizeof usual))
        snprintf(text, FSDP__USUAL_TEXT, "%s (default)", usual);
    else
        snprintf(text, FSDP__USUAL_TEXT, "(default)");
    return text;
}

static bool is_listed(const fsdp__keys *keys, const char *name)
{
    for (int64_t i = 0; i < keys->count; i++)
        if (strcmp(keys->names[i], name) == 0)
            return true;
    return false;
}

/* Returns whether a run's value differs from that of the first run. Files that a run writes are its own anyway, and
 * where tokens are kept changes none of them. */
static bool differs(const fsdp__recorded_runs *all, const char *name)
{
    if (all->count > 1 && (strncmp(name, "metrics.", 8) == 0 || strcmp(name, "export.path") == 0 ||
                           strcmp(name, "checkpoint.folder") == 0 || strcmp(name, "data.cache") == 0))
        return false;
    for (int64_t i = 1; i < all->count; i++)
        if (strcmp(fsdp__setting(&all->runs[i], name), fsdp__setting(&all->runs[0], name)) != 0)
            return true;
    return all->count == 1;
}

fsdp_status fsdp__keys_of(const fsdp__recorded_runs *all, fsdp__keys *out)
{
    *out = (fsdp__keys){0};
    for (int64_t i = 0; i < all->count; i++) {
        json_t *value;
        const char *name;

        json_object_foreach(json_object_get(all->runs[i].header, "settings"), name, value)
        {
            if (is_listed(out, name) || !differs(all, name))
                continue;
            FSDP_TRY(fsdp__grow(&out->names, out->count + 1, &out->capacity, sizeof *out->names));
            out->names[out->count++] = name;
        }
    }
    return FSDP_OK;
}

void fsdp__keys_free(fsdp__keys *keys)
{
    fsdp__free(keys->names);
}
