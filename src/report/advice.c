/* advice.c - what stands out in runs, said in words with figures. */
#include "report/advice.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/compiler.h"
#include "report/figures.h"
#include "report/step_advice.h"
#include "watch/signs.h"

enum {
    WINDOW = 20,  /* steps before a jump */
    FEW_RUNS = 3, /* so many are compared one by one */
    WORSE = 2,    /* validations after the best one: a single one may be worse by chance */
    FEWEST = 40   /* steps of which the speed of the first and last quarter is compared */
};

/* ---- of one run ---- */

/* Returns whether both have the same text, or both have none. */
static bool is_same_text(const char *a, const char *b)
{
    return strcmp(a ? a : "", b ? b : "") == 0;
}

/* Returns whether the ranks' last calls say why this run ended. */
static bool has_verdict(const fsdp__sources *sources, int64_t run)
{
    const fsdp__source *s;

    for (int n = 0; (s = fsdp__source_of(sources, FSDP__SOURCE_FLIGHT, run, n)) != NULL; n++)
        if (s->of.flight.verdict.count > 0)
            return true;
    return false;
}

static fsdp_status of_end(fsdp__advices *all, const fsdp__sources *sources, int64_t which)
{
    const fsdp__recorded_run *run = &sources->runs.runs[which];
    const char *folder = fsdp__setting(run, "checkpoint.folder");
    bool keeps = *folder && strcmp(fsdp__setting(run, "checkpoint.enable"), "false") != 0;
    double taken = fmax(fsdp__run_figures_of(run).last_step, 0), steps = fsdp__header_number(run, "steps");

    if (!(taken < steps))
        return FSDP_OK;
    return fsdp__advise(
        all, run, "It has taken %.0f of %.0f steps%s. %s%s.", taken, steps,
        has_verdict(sources, which) ? "" : ": it goes on, was stopped, or failed, or it could write no more lines",
        keeps ? "Once it has ended, the same command goes on from its last checkpoint in "
              : "Once it has ended it cannot be continued: without checkpoint.folder it keeps no "
                "checkpoints",
        keeps ? folder : "");
}

static fsdp_status of_missing(fsdp__advices *all, const fsdp__recorded_run *run)
{
    fsdp__run_figures f = fsdp__run_figures_of(run);

    if (f.missing == 0)
        return FSDP_OK;
    return fsdp__advise(
        all, run,
        "No line tells of %.0f of its steps, the first of which is step %.0f: they were lost with lines "
        "of its metrics. Its figures are those of the others.",
        f.missing, f.first_missing);
}

static fsdp_status of_not_finite(fsdp__advices *all, const fsdp__recorded_run *run)
{
    static const char *const names[] = {"loss", "grad_norm"};

    for (int k = 0; k < 2; k++) {
        const fsdp__series *s = fsdp__series_of(run, names[k]);
        int64_t count = 0, first = 0;

        for (int64_t i = s ? s->count - 1 : -1; i >= 0; i--)
            if (!isfinite(s->points[i].value)) {
                count++;
                first = i;
            }
        if (count > 0)
            return fsdp__advise(
                all, run,
                "%s is NaN or infinite in %lld of %lld steps, first at step %.0f. Lower optimizer.lr, raise "
                "lr_scheduler.warmup_steps, or look at the data of that step; training.on_nan=skip passes over "
                "such steps.",
                k == 0 ? "The loss" : "The gradient's norm", (long long)count, (long long)s->count,
                s->points[first].step);
    }
    return FSDP_OK;
}

/* Returns how many steps were left out. */
static int64_t left_out_of(const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, FSDP__LEFT_OUT);

    return s ? s->count : 0;
}

static fsdp_status of_left_out(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *skipped = fsdp__series_of(run, "skipped");
    int64_t count = left_out_of(run);

    if (count == 0)
        return FSDP_OK;
    return fsdp__advise(
        all, run,
        "%lld of %lld steps were left out, the first is step %.0f: no token of them is an answer. A larger "
        "training.global_batch_size has answers in each; rows without answers can be taken out of the data.",
        (long long)count, (long long)(skipped ? skipped->count : count),
        fsdp__series_of(run, FSDP__LEFT_OUT)->points[0].step);
}

static fsdp_status of_skipped(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "skipped");
    char planned[FSDP__PLANNED_TEXT] = "";
    double skipped;

    if (!s || s->count == 0)
        return FSDP_OK;
    skipped = s->points[s->count - 1].value - (double)left_out_of(run);
    if (!(skipped >= 3 && skipped > 0.02 * (double)s->count))
        return FSDP_OK;
    if (strcmp(fsdp__setting(run, "training.mixed_precision_param"), "float16") != 0)
        return fsdp__advise(all, run, "%.0f of %lld steps were skipped: their losses or gradients were not finite.",
                            skipped, (long long)s->count);
    if (all->planner)
        FSDP_TRY(all->planner->price(all->planner->arg, run, "training.mixed_precision_param", "bfloat16", planned));
    return fsdp__advise(all, run,
                        "%.0f of %lld steps were skipped. With float16 a few are usual while the loss scale is found; "
                        "training.mixed_precision_param=bfloat16 needs no scale.%s%s",
                        skipped, (long long)s->count, *planned ? " " : "", planned);
}

/* Finds the largest jump above what the steps before have: at least six of their standard deviations, and a tenth of
 * their mean. Returns its point; -1: none. */
static int64_t largest_jump(const fsdp__series *s, double *before)
{
    double most = 0;
    int64_t at = -1;

    for (int64_t i = WINDOW; i < s->count; i++) {
        double sum = 0, squares = 0, mean, over;

        for (int64_t k = i - WINDOW; k < i; k++) {
            sum += s->points[k].value;
            squares += s->points[k].value * s->points[k].value;
        }
        mean = sum / WINDOW;
        over = s->points[i].value - mean;
        if (over > 6 * sqrt(fmax(squares / WINDOW - mean * mean, 0)) && over > 0.1 * fabs(mean) && over > most) {
            most = over;
            at = i;
            *before = mean;
        }
    }
    return at;
}

static fsdp_status of_jump(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "loss"), *norms = fsdp__series_of(run, "grad_norm");
    double before = 0, norm, usual;
    int64_t at = s ? largest_jump(s, &before) : -1;

    if (at < 0)
        return FSDP_OK;
    if (!norms || norms->count != s->count)
        return fsdp__advise(all, run, "The loss jumps from about %.3g to %.3g at step %.0f.", before,
                            s->points[at].value, s->points[at].step);
    norm = norms->points[at].value;
    usual = fsdp__median(norms, at - WINDOW, at);
    return fsdp__advise(
        all, run,
        "The loss jumps from about %.3g to %.3g at step %.0f, where the gradient's norm is %.3g, after a median "
        "of %.3g. %s",
        before, s->points[at].value, s->points[at].step, norm, usual,
        norm > 3 * usual ? "A smaller training.max_norm or optimizer.lr would take less of such a step."
                         : "The norm did not grow with it: look at the data of that step.");
}

static fsdp_status of_validation(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__point_of_series *best = fsdp__lowest_point(&run->validation);
    int64_t since = best ? run->validation.points + run->validation.count - 1 - best : 0; /* validations */
    double last = best ? best[since].value : NAN;

    if (since < WORSE || !(last > 1.01 * best->value))
        return FSDP_OK;
    return fsdp__advise(
        all, run,
        "The validation loss was lowest at step %.0f, %.4g, and is %.4g now: it learns its data by heart. "
        "training.early_stop ends a run there, and export.which=best exports those weights.",
        best->step, best->value, last);
}

/* Returns the sum of the finite values. */
static double sum_of(const fsdp__series *s)
{
    double sum = 0;

    for (int64_t i = 0; s && i < s->count; i++)
        sum += isfinite(s->points[i].value) ? s->points[i].value : 0;
    return sum;
}

/* Says what the run has noticed itself. */
static fsdp_status of_warnings(fsdp__advices *all, const fsdp__recorded_run *run)
{
    for (size_t i = 0; i < json_array_size(run->warnings); i++) {
        const json_t *line = json_array_get(run->warnings, i);
        const char *text = json_string_value(json_object_get(line, "text"));

        if (text)
            FSDP_TRY(fsdp__advise(all, run, "Noticed at step %.0f: %s",
                                  json_number_value(json_object_get(line, "warning")), text));
    }
    return FSDP_OK;
}

/* Returns whether the run has warned that ranks wait. */
static bool has_noticed_waiting(const fsdp__recorded_run *run)
{
    for (size_t i = 0; i < json_array_size(run->warnings); i++)
        if (is_same_text(json_string_value(json_object_get(json_array_get(run->warnings, i), "of")), "waiting"))
            return true;
    return false;
}

static fsdp__rank_times times_of(const fsdp__recorded_run *run)
{
    return (fsdp__rank_times){.step = sum_of(fsdp__series_of(run, "step_ms")),
                              .gather = sum_of(fsdp__series_of(run, "gather_ms")),
                              .reduce = sum_of(fsdp__series_of(run, "reduce_ms"))};
}

static fsdp_status of_waiting(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__rank_times times = times_of(run);
    char text[FSDP__SIGN_TEXT];

    if (has_noticed_waiting(run) || !fsdp__sign_waiting(&times, 0.1, NULL, 0, text))
        return FSDP_OK;
    return fsdp__advise(all, run, "%s", text);
}

/* Says what would shorten the waits of a run that has no trace: that of a trace names what is waited for. */
static fsdp_status of_shorter_waits(fsdp__advices *all, const fsdp__sources *sources, int64_t which)
{
    const fsdp__recorded_run *run = &sources->runs.runs[which];
    const fsdp__rank_times times = times_of(run);
    char sign[FSDP__SIGN_TEXT], text[FSDP__PLANNED_TEXT];

    if (!all->planner || fsdp__source_of(sources, FSDP__SOURCE_TRACE, which, 0) ||
        !(has_noticed_waiting(run) || fsdp__sign_waiting(&times, 0.1, NULL, 0, sign)))
        return FSDP_OK;
    FSDP_TRY(all->planner->shorten(all->planner->arg, run, times.gather >= times.reduce, text));
    return fsdp__advise(all, run, "To wait less for %s: %s", times.gather >= times.reduce ? "gathers" : "reductions",
                        text);
}

/* Returns where the last start of a run begins in a series: earlier ones may have had other ranks or another machine,
 * so their speed and memory say nothing of it. */
static int64_t last_start_of(const fsdp__recorded_run *run, const fsdp__series *s)
{
    int64_t i = s->count > 0 ? s->count - 1 : 0;

    while (!fsdp__begins_start(run, s, i))
        i--;
    return i;
}

static const char *since_last_start(int64_t begin)
{
    return begin > 0 ? "Since its last start " : "";
}

static fsdp_status of_slow_steps(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "step_ms");
    int64_t begin = s ? last_start_of(run, s) : 0, count = 0;
    double median = s ? fsdp__median(s, begin + 1, s->count) : NAN, all_ms = 0, lost = 0, worst = 0, at = 0;

    for (int64_t i = begin; s && i < s->count; i++) {
        all_ms += isfinite(s->points[i].value) ? s->points[i].value : 0;
        if (i > begin && s->points[i].value > 2 * median) { /* the first step of a start takes longer by itself */
            count++;
            lost += s->points[i].value - median;
            if (s->points[i].value > worst) {
                worst = s->points[i].value;
                at = s->points[i].step;
            }
        }
    }
    if (!(lost > 0.03 * all_ms))
        return FSDP_OK;
    return fsdp__advise(
        all, run,
        "%s%lld of %lld steps take over twice the median of %s, and cost %s beyond it; the slowest is step %.0f, "
        "%s. Look at what else runs on the machine then: a checkpoint being written, slow storage of the data, "
        "another job.",
        since_last_start(begin), (long long)count, (long long)(s->count - begin), FSDP__VALUE(FSDP__UNIT_MS, median),
        FSDP__VALUE(FSDP__UNIT_MS, lost), at, FSDP__VALUE(FSDP__UNIT_MS, worst));
}

static fsdp_status of_drift(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "tokens_per_second");
    int64_t begin = s ? last_start_of(run, s) : 0, quarter = s ? (s->count - begin) / 4 : 0;
    double first, last;

    if (quarter < FEWEST / 4 || fsdp__run_figures_of(run).missing > 0) /* its quarters are not known */
        return FSDP_OK;
    first = fsdp__tokens_per_second(run, begin, begin + quarter);
    last = fsdp__tokens_per_second(run, s->count - quarter, s->count);
    if (!(last < 0.9 * first))
        return FSDP_OK;
    return fsdp__advise(
        all, run,
        "%s became slower: %s tokens a second in its first quarter, %s in its last. A hot processor or card, or "
        "another job beside it, does that.",
        begin > 0 ? "Its last start" : "It", FSDP__VALUE(FSDP__UNIT_COUNT, first), FSDP__VALUE(FSDP__UNIT_COUNT, last));
}

static fsdp_status of_memory(fsdp__advices *all, const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "memory_live_bytes");
    int64_t begin = s ? last_start_of(run, s) : 0, quarter = s ? (s->count - begin) / 4 : 0;
    double early, late;

    if (quarter < FEWEST / 4)
        return FSDP_OK;
    early = fsdp__median(s, begin + quarter, begin + 2 * quarter);
    late = fsdp__median(s, s->count - quarter, s->count);
    if (!(late > 1.02 * early))
        return FSDP_OK;
    return fsdp__advise(all, run, "%s at the end of a step grows: %s in its second quarter, %s in its last.",
                        begin > 0 ? "The memory of its last start" : "Its memory", FSDP__VALUE(FSDP__UNIT_BYTES, early),
                        FSDP__VALUE(FSDP__UNIT_BYTES, late));
}

/* ---- of several ---- */

/* Returns the seconds after which a run's loss stays at most this; NaN: it never does. The mean of some steps counts,
 * since a single step may be lucky. */
static double seconds_until(const fsdp__recorded_run *run, double loss)
{
    const fsdp__series *s = fsdp__series_of(run, "loss"), *ms = fsdp__series_of(run, "step_ms");
    double seconds = 0, sum = 0;

    for (int64_t i = 0; s && ms && i < s->count && i < ms->count; i++) {
        seconds += ms->points[i].value / 1000;
        sum += s->points[i].value - (i >= WINDOW ? s->points[i - WINDOW].value : 0);
        if (i >= WINDOW - 1 && sum / WINDOW <= loss)
            return seconds;
    }
    return NAN;
}

static double tail_loss(const fsdp__recorded_run *run)
{
    const fsdp__series *s = fsdp__series_of(run, "loss");
    double sum = 0;

    if (!s || s->count < WINDOW)
        return NAN;
    for (int64_t i = s->count - WINDOW; i < s->count; i++)
        sum += s->points[i].value;
    return sum / WINDOW;
}

/* Returns whether the speed and the loss of two runs say something of each other: they train the same model on the same
 * data, in sequences of the same length. */
static bool is_comparable(const fsdp__recorded_run *a, const fsdp__recorded_run *b)
{
    static const char *const keys[] = {"data.path", "data.tokenizer", "data.format", "data.dtype", "training.seq_len"};
    double of_a = fsdp__header_number(a, "parameters"), of_b = fsdp__header_number(b, "parameters");

    if (!is_same_text(fsdp__header_text(a, "model"), fsdp__header_text(b, "model")) || of_a < of_b || of_a > of_b)
        return false;
    for (size_t i = 0; i < FSDP__COUNT_OF(keys); i++)
        if (!is_same_text(fsdp__setting(a, keys[i]), fsdp__setting(b, keys[i])))
            return false;
    return true;
}

static fsdp_status compare(fsdp__advices *all, const fsdp__recorded_run *a, const fsdp__recorded_run *b)
{
    fsdp__run_figures of_a = fsdp__run_figures_of(a), of_b = fsdp__run_figures_of(b);
    double loss = tail_loss(a), until = seconds_until(b, loss), ratio = of_b.tokens_per_second / of_a.tokens_per_second;

    if (ratio > 1.02 || ratio < 0.98)
        FSDP_TRY(fsdp__advise(all, NULL, "%s makes %.2f times as many tokens a second as %s: %s and %s.", b->label,
                              ratio, a->label, FSDP__VALUE(FSDP__UNIT_COUNT, of_b.tokens_per_second),
                              FSDP__VALUE(FSDP__UNIT_COUNT, of_a.tokens_per_second)));
    if (isfinite(until) && of_a.seconds > 0)
        return fsdp__advise(
            all, NULL,
            "%s reaches what %s ends with, %.4g, the mean loss of its last %d steps, in %s of its steps; %s "
            "took %s.",
            b->label, a->label, loss, WINDOW, FSDP__VALUE(FSDP__UNIT_MS, 1000 * until), a->label,
            FSDP__VALUE(FSDP__UNIT_MS, 1000 * of_a.seconds));
    return FSDP_OK;
}

/* Names the best of many runs that can be compared with the first one. */
static fsdp_status name_best(fsdp__advices *all, const fsdp__recorded_runs *runs)
{
    const fsdp__recorded_run *first = &runs->runs[0], *fastest = first, *earliest = NULL;
    double most = fsdp__run_figures_of(first).tokens_per_second, usual = most, least = INFINITY;

    for (int64_t i = 1; i < runs->count; i++) {
        double tokens = fsdp__run_figures_of(&runs->runs[i]).tokens_per_second;
        double seconds = seconds_until(&runs->runs[i], tail_loss(first));

        if (!is_comparable(first, &runs->runs[i]))
            continue;
        if (tokens > most) {
            most = tokens;
            fastest = &runs->runs[i];
        }
        if (seconds < least) {
            least = seconds;
            earliest = &runs->runs[i];
        }
    }
    if (most > 1.02 * usual)
        FSDP_TRY(fsdp__advise(
            all, NULL,
            "%s makes most tokens a second of those that can be compared with %s (same model, data and length of "
            "sequences): %s, %.2f times the rate of the latter.",
            fastest->label, first->label, FSDP__VALUE(FSDP__UNIT_COUNT, most), most / usual));
    if (earliest)
        return fsdp__advise(
            all, NULL,
            "%s is the first to reach what %s ends with, %.4g, the mean loss of its last %d steps: in %s of "
            "its steps.",
            earliest->label, first->label, tail_loss(first), WINDOW, FSDP__VALUE(FSDP__UNIT_MS, 1000 * least));
    return FSDP_OK;
}

/* Names what is worth it of runs that can be compared. */
static fsdp_status of_several(fsdp__advices *out, const fsdp__recorded_runs *all)
{
    if (all->count > FEW_RUNS)
        return name_best(out, all);
    for (int64_t i = 1; i < all->count; i++)
        if (is_comparable(&all->runs[0], &all->runs[i]))
            FSDP_TRY(compare(out, &all->runs[0], &all->runs[i]));
    return FSDP_OK;
}

/* ---- of what else was left ---- */

typedef fsdp_status source_rule(fsdp__advices *out, const fsdp__recorded_run *run, const fsdp__source *source);

static fsdp_status of_flight(fsdp__advices *out, const fsdp__recorded_run *run, const fsdp__source *s)
{
    for (int i = 0; i < s->of.flight.verdict.count; i++)
        FSDP_TRY(fsdp__advise(out, run, "%s.", s->of.flight.verdict.lines[i]));
    return FSDP_OK;
}

/* Applies a rule to each source of a kind, or to the first of each run. */
static fsdp_status of_sources(fsdp__advices *out, const fsdp__sources *all, fsdp__source_kind kind, bool first,
                              source_rule *rule)
{
    for (int i = 0; i < all->count; i++) {
        const fsdp__source *s = &all->items[i];

        fsdp_status status;

        if (s->kind != kind || (first && s->run >= 0 && fsdp__source_of(all, kind, s->run, 0) != s))
            continue;
        out->of = s->run < 0 ? s->title : NULL;
        status = rule(out, s->run < 0 ? NULL : &all->runs.runs[s->run], s);
        out->of = NULL;
        FSDP_TRY(status);
    }
    return FSDP_OK;
}

fsdp_status fsdp__advices_of(const fsdp__sources *sources, const fsdp__advice_planner *planner, fsdp__advices *out)
{
    static fsdp_status (*const rules[])(fsdp__advices * all, const fsdp__recorded_run *run) = {
        of_missing, of_not_finite, of_warnings,   of_jump,  of_validation, of_left_out,
        of_skipped, of_waiting,    of_slow_steps, of_drift, of_memory};
    const fsdp__recorded_runs *all = &sources->runs;

    *out = (fsdp__advices){.planner = planner};
    FSDP_TRY(of_sources(out, sources, FSDP__SOURCE_FLIGHT, false, of_flight));
    for (int64_t i = 0; i < all->count; i++)
        FSDP_TRY(of_end(out, sources, i));
    FSDP_TRY(of_sources(out, sources, FSDP__SOURCE_TRACE, false, fsdp__advise_of_slow_rank));
    FSDP_TRY(of_sources(out, sources, FSDP__SOURCE_TRACE, false, fsdp__advise_of_odd_steps));
    for (int64_t i = 0; i < all->count; i++) {
        for (size_t r = 0; r < sizeof rules / sizeof *rules; r++)
            FSDP_TRY(rules[r](out, &all->runs[i]));
        FSDP_TRY(of_shorter_waits(out, sources, i));
    }
    FSDP_TRY(of_several(out, all));
    return of_sources(out, sources, FSDP__SOURCE_TRACE, true, fsdp__advise_of_wait);
}
