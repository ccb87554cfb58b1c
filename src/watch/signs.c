/* signs.c - the rules, their thresholds and their words. */
#include "watch/signs.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/alloc.h"
#include "base/sort.h"

/* ---- time ---- */

enum {
    TIME_TEXT = 32
};

/* Writes milliseconds, or seconds where there are many. Returns `text`. */
static const char *time_text(double ms, char text[TIME_TEXT])
{
    snprintf(text, TIME_TEXT, ms < 1000 ? "%.3g ms" : "%.3g s", ms < 1000 ? ms : ms / 1000);
    return text;
}

#define LEAST_WAIT_MS 2 /* of a step for data; until a thread wakes up is no disk's fault */

bool fsdp__sign_waiting(const fsdp__rank_times *t, double most, const char *unit, double unit_ms, char *text)
{
    char longest[200] = "", time[TIME_TEXT];

    if (!(t->gather + t->reduce > most * t->step))
        return false;
    if (unit && unit_ms > 0)
        snprintf(longest, sizeof longest, " The longest of these waits is for %.100s, %s a step.",
                 *unit ? unit : "the root", time_text(unit_ms / t->steps, time));
    snprintf(text, FSDP__SIGN_TEXT,
             "%.0f %% of its time it waits for gathers (%.0f %%) and reductions (%.0f %%).%s Larger batches "
             "(training.local_batch_size, or accumulation by training.global_batch_size) send less for each token; "
             "parallelism.gather_dtype=float8 gathers a quarter of float32's bytes; on several machines strategy hsdp "
             "keeps gathers within one.",
             100 * (t->gather + t->reduce) / t->step, 100 * t->gather / t->step, 100 * t->reduce / t->step, longest);
    return true;
}

bool fsdp__sign_starved(const fsdp__rank_times *t, int64_t workers, char *text)
{
    char time[TIME_TEXT];

    if (!(t->data > 0.1 * t->step && t->data > LEAST_WAIT_MS * t->steps))
        return false;
    snprintf(text, FSDP__SIGN_TEXT, "%.0f %% of its time it waits for data, %s a step. %s", 100 * t->data / t->step,
             time_text(t->data / t->steps, time),
             workers == 0 ? "data.workers is 0, so each batch is made when it is needed: data.workers=2 makes it ahead."
                          : "Copy the data to a disk of this machine, or give it more data.workers.");
    return true;
}

/* Returns what a rank spends in a step on its own. */
static double busy(const fsdp__rank_times *t)
{
    return t->steps > 0 ? (t->step - t->gather - t->reduce) / t->steps : 0;
}

int fsdp__slowest_rank(const fsdp__rank_times *ranks, int count)
{
    int slowest = count > 1 ? 0 : -1;

    for (int rank = 1; rank < count; rank++)
        if (busy(&ranks[rank]) > busy(&ranks[slowest]))
            slowest = rank;
    return slowest >= 0 && busy(&ranks[slowest]) > 0 ? slowest : -1;
}

/* Returns the median of what the other ranks spend, or wait; NaN when out of memory. */
static double median_of_others(const fsdp__rank_times *ranks, int count, int rank, bool waiting)
{
    FSDP__FREED double *values = fsdp__malloc((size_t)count * sizeof *values);
    int used = 0;

    if (!values)
        return NAN;
    for (int i = 0; i < count; i++)
        if (i != rank)
            values[used++] = waiting ? (ranks[i].gather + ranks[i].reduce) / ranks[i].steps : busy(&ranks[i]);
    qsort(values, (size_t)used, sizeof *values, fsdp__by_value);
    return values[used / 2];
}

bool fsdp__sign_slow_rank(const fsdp__rank_times *ranks, int count, int rank, char *text)
{
    double own = busy(&ranks[rank]), usual = median_of_others(ranks, count, rank, false);
    double waits = median_of_others(ranks, count, rank, true);
    char its[TIME_TEXT], theirs[TIME_TEXT], waited[TIME_TEXT];

    if (!(own > 1.2 * usual && waits > 0.5 * (own - usual)))
        return false;
    snprintf(
        text, FSDP__SIGN_TEXT,
        "Rank %d is slow: it computes %s of a step, the others %s, and they wait %s for it%s. Look at what else runs "
        "on its machine, at its cores (training.threads) and at its heat; metrics.trace shows what takes it longer.",
        rank, time_text(own, its), time_text(usual, theirs), time_text(waits, waited),
        ranks[rank].data / ranks[rank].steps > 0.5 * (own - usual) ? ", mostly for its data" : "");
    return true;
}

/* ---- loss and norms ---- */

bool fsdp__sign_loss_stays(double first, double now, double guess, int64_t steps, double lr, char *text)
{
    if (!(now > 0.98 * first) || !(first > 0.8 * guess)) /* what knows something already may learn slowly */
        return false;
    snprintf(
        text, FSDP__SIGN_TEXT,
        "The loss has not fallen in %lld steps: it was %.4g and is %.4g, and guessing has %.4g. optimizer.lr is "
        "%.3g now: try ten times that, or a tenth; fewer lr_scheduler.warmup_steps; and look at the data, of which "
        "each token has to follow from those before it.",
        (long long)steps, first, now, guess, lr);
    return true;
}

bool fsdp__sign_norm_jumps(double norm, double median, int64_t step, double max_norm, char *text)
{
    if (!(norm > 20 * median) || !(median > 0))
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "The gradient's norm is %.3g at step %lld, %.0f times the median of the steps before. %s Look at the data "
             "of that step.",
             norm, (long long)step, norm / median,
             max_norm > 0 ? "training.max_norm clips such a step; a smaller one takes less of it."
                          : "training.max_norm=1 would clip such a step.");
    return true;
}

bool fsdp__sign_norm_grows(double first, double now, int64_t step, char *text)
{
    if (!(now > 100 * first) || !(first > 0))
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "The gradients explode: the median of their norms was %.3g and is %.3g at step %lld. Lower optimizer.lr, "
             "or raise lr_scheduler.warmup_steps.",
             first, now, (long long)step);
    return true;
}

bool fsdp__sign_no_gradient(double norm, int64_t step, char *text)
{
    if (norm > 0 || !isfinite(norm))
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "All gradients are 0 at step %lld: nothing learns. The loss does not depend on what is trained "
             "(model.frozen), or the gradients were too small for their dtype.",
             (long long)step);
    return true;
}

/* ---- units ---- */

typedef bool stands_out(const fsdp__unit_figures *unit, double limit);

/* Writes the names of those that stand out: "a, b and 3 more"; returns how many there are. */
static int64_t name_units(const fsdp__unit_figures *units, int64_t count, stands_out *test, double limit, char *names,
                          size_t bytes)
{
    int64_t found = 0;
    size_t used = 0;

    names[0] = '\0';
    for (int64_t i = 0; i < count; i++) {
        if (!test(&units[i], limit) || found++ >= 3)
            continue;
        used += (size_t)snprintf(names + used, bytes - used, "%s%.60s", used > 0 ? ", " : "",
                                 *units[i].name ? units[i].name : "the root");
    }
    if (found > 3)
        snprintf(names + used, bytes - used, " and %lld more", (long long)found - 3);
    return found;
}

static bool is_not_finite(const fsdp__unit_figures *u, double limit)
{
    return u->not_finite > limit;
}

bool fsdp__sign_not_finite_units(const fsdp__unit_figures *units, int64_t count, char *text)
{
    char names[240];
    double bad = 0, all = 0;

    if (name_units(units, count, is_not_finite, 0, names, sizeof names) == 0)
        return false;
    for (int64_t i = 0; i < count; i++) {
        bad += units[i].not_finite;
        all += units[i].elements;
    }
    snprintf(text, FSDP__SIGN_TEXT,
             "%.3g %% of the gradients are NaN or infinite, in %s. In float16 a few such steps are usual while the "
             "loss's scale is found, and they are left out; otherwise lower optimizer.lr, or take bfloat16, which has "
             "the range of float32.",
             100 * bad / all, names);
    return true;
}

static bool is_dead(const fsdp__unit_figures *u, double limit)
{
    (void)limit;
    return u->elements > 0 && u->zeros >= u->elements;
}

bool fsdp__sign_dead_units(const fsdp__unit_figures *units, int64_t count, char *text)
{
    char names[240];
    int64_t found = name_units(units, count, is_dead, 0, names, sizeof names);

    if (found == 0)
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "All gradients are 0 in %lld of %lld units (%s): nothing in them learns. What they compute does not reach "
             "the loss, or is cut off on its way; if that is meant, name them in model.frozen, which saves their "
             "gradients, reductions and optimizer state.",
             (long long)found, (long long)count, names);
    return true;
}

/* Returns the root mean square of the gradients that are not 0: an embedding has many that are. */
static double rms_of(const fsdp__unit_figures *u)
{
    return u->elements > u->zeros ? u->gradient / sqrt(u->elements - u->zeros) : 0;
}

static bool is_vanishing(const fsdp__unit_figures *u, double limit)
{
    return rms_of(u) > 0 && rms_of(u) < limit;
}

bool fsdp__sign_vanishing_units(const fsdp__unit_figures *units, int64_t count, char *text)
{
    char names[240];
    double most = 0;

    for (int64_t i = 0; i < count; i++)
        most = fmax(most, rms_of(&units[i]));
    if (name_units(units, count, is_vanishing, 1e-5 * most, names, sizeof names) == 0)
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "Gradients vanish: for an element those of %s are less than a hundred-thousandth of the largest unit's, "
             "%.2g. Fewer layers, a smaller optimizer.lr with warm-up, or other first weights help.",
             names, most);
    return true;
}

bool fsdp__sign_underflow(const fsdp__unit_figures *units, int64_t count, double scale, char *text)
{
    double tiny = 0, all = 0;

    for (int64_t i = 0; i < count; i++) {
        tiny += units[i].tiny;
        all += units[i].elements - units[i].zeros;
    }
    if (!(tiny > 0.5 * all))
        return false;
    snprintf(text, FSDP__SIGN_TEXT,
             "%.0f %% of the gradients are too small for float16's digits at the loss's scale of %g, and are rounded "
             "coarsely or to 0. training.mixed_precision_param=bfloat16 needs no scale.",
             100 * tiny / all, scale);
    return true;
}

static bool is_large_update(const fsdp__unit_figures *u, double limit)
{
    return u->update > limit * u->weight && u->weight > 0;
}

bool fsdp__sign_large_updates(const fsdp__unit_figures *units, int64_t count, double lr, char *text)
{
    char names[240];
    double most = 0;

    if (name_units(units, count, is_large_update, 0.2, names, sizeof names) == 0)
        return false;
    for (int64_t i = 0; i < count; i++)
        most = fmax(most, units[i].weight > 0 ? units[i].update / units[i].weight : 0);
    snprintf(text, FSDP__SIGN_TEXT,
             "A step changes the weights of %s by up to %.0f %% of their norm; a thousandth is usual. Lower "
             "optimizer.lr, which is %.3g, or raise lr_scheduler.warmup_steps.",
             names, 100 * most, lr);
    return true;
}
