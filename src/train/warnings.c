/* warnings.c - looks at what a run knows of itself, and says once what stands out. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "device/device.h"
#include "nn/module.h"
#include "train/run_steps.h"
#include "watch/signs.h"

enum {
    SETTLE = 5,    /* steps at a run's start that do not count */
    WINDOW = 20,   /* steps whose norms are compared with the next */
    STRETCH = 50,  /* steps, at least, whose times are judged together */
    PATIENCE = 100 /* steps after which a loss should have fallen */
};

#define MOST_WAITING 0.2 /* of a step */

_Static_assert(sizeof(fsdp__rank_times) == FSDP__RANK_TIMES * sizeof(double), "times travel behind the losses");

/* Lists what is said once, and how metrics name it. */
#define SIGN_MAP(X)                 \
    X(WAITING, "waiting")           \
    X(STARVED, "starved")           \
    X(SLOW_RANK, "slow rank")       \
    X(LOSS_STAYS, "loss stays")     \
    X(NORM_JUMPS, "norm jumps")     \
    X(NORM_GROWS, "norm grows")     \
    X(NO_GRADIENT, "no gradient")   \
    X(NOT_FINITE, "not finite")     \
    X(DEAD, "dead units")           \
    X(VANISHING, "vanishing units") \
    X(TOO_SMALL, "too small")       \
    X(LARGE_UPDATES, "large updates")
#define AS_ENUM(name, word) name,
#define AS_TAG(name, word) FSDP__WARNING_TAG word,

typedef enum sign {
    SIGN_MAP(AS_ENUM) SIGNS
} sign;
static const char *const tags[] = {SIGN_MAP(AS_TAG)};

struct fsdp__notice {
    bool said[SIGNS];
    bool exchanges; /* bytes take time to other ranks; processors of one machine only wait for who is late */
    double norms[WINDOW], first_norm; /* the last ones; the median of the first */
    int64_t norm_count;
    double first_losses, last_losses[3]; /* the mean of three; the last that are known */
    int64_t loss_count;
    fsdp__rank_times *ranks; /* of all ranks, in this stretch */
    int64_t *slowest;        /* its exchanges in which it was a rank */
    int64_t rounds;          /* its exchanges */
    int64_t *gathered;       /* what each sharded module's gathers had been waited for when the stretch began, ns */
    int64_t module_count;
    bool starved, waiting; /* the stretch before was */
    int slow;              /* its slow rank; -1: none */
    fsdp__unit_figures *units;
};

static fsdp_status count_sharded(void *arg, fsdp_module *module, const char *name)
{
    int64_t *count = arg;

    (void)name;
    *count += fsdp_module_is_sharded(module);
    return FSDP_OK;
}

fsdp_status fsdp__notice_begin(fsdp_train_run *run)
{
    size_t ranks = (size_t)fsdp_context_world_size(run->context);
    fsdp__notice *n;

    if (fsdp_context_rank(run->context) != 0)
        return FSDP_OK;
    n = run->notice = fsdp__calloc(1, sizeof *n);
    FSDP__TRY_NEW(n);
    n->slow = -1;
    FSDP_TRY(fsdp__module_walk(run->model, count_sharded, &n->module_count));
    n->exchanges = fsdp_context_machines(run->context) > 1 || !fsdp__device_host_access(run->device);
    n->ranks = fsdp__calloc(ranks, sizeof *n->ranks);
    n->slowest = fsdp__calloc(ranks, sizeof *n->slowest);
    n->gathered = fsdp__calloc((size_t)n->module_count + 1, sizeof *n->gathered); /* of none, too */
    if (run->histograms)
        n->units = fsdp__calloc((size_t)run->histograms->count, sizeof *n->units);
    return n->ranks && n->slowest && n->gathered && (n->units || !run->histograms) ? FSDP_OK : FSDP_NO_MEMORY;
}

void fsdp__notice_free(fsdp__notice *n)
{
    if (!n)
        return;
    FSDP__FREE_ALL(n->ranks, n->slowest, n->gathered, n->units, n);
}

/* Says it, unless it was said before or there is nothing to say. */
static void say(fsdp_train_run *run, sign which, bool stands_out, const char *text)
{
    if (!stands_out || run->notice->said[which])
        return;
    run->notice->said[which] = true;
    fsdp_log(run->context, FSDP_LOG_WARNING, "step %lld: %s", (long long)run->step, text);
    (void)fsdp__metrics_write_text(run->metrics, run->step, tags[which], text);
}

/* Returns how many steps this run has taken. */
static int64_t taken(const fsdp_train_run *run)
{
    return run->step - run->resume.step;
}

/* ---- loss and norm ---- */

static double median_norm(const fsdp__notice *n)
{
    double sorted[WINDOW];

    memcpy(sorted, n->norms, sizeof sorted);
    qsort(sorted, WINDOW, sizeof *sorted, fsdp__by_value);
    return sorted[WINDOW / 2];
}

static void look_at_norm(fsdp_train_run *run, const fsdp_train_report *report)
{
    fsdp__notice *n = run->notice;
    char text[FSDP__SIGN_TEXT];
    double median;

    say(run, NO_GRADIENT, fsdp__sign_no_gradient(report->grad_norm, report->step, text), text);
    if (!isfinite(report->grad_norm) || taken(run) <= SETTLE)
        return;
    if (n->norm_count >= WINDOW) {
        median = median_norm(n);
        n->first_norm = n->norm_count == WINDOW ? median : n->first_norm;
        say(run, NORM_JUMPS,
            fsdp__sign_norm_jumps(report->grad_norm, median, report->step, run->config->training.max_norm, text), text);
        say(run, NORM_GROWS, fsdp__sign_norm_grows(n->first_norm, median, report->step, text), text);
    }
    n->norms[n->norm_count++ % WINDOW] = report->grad_norm;
}

static void look_at_loss(fsdp_train_run *run, const fsdp_train_report *report)
{
    int64_t patience = run->config->lr_scheduler.warmup_steps + PATIENCE;
    double guess = log((double)run->model_config.vocab_size), now;
    fsdp__notice *n = run->notice;
    char text[FSDP__SIGN_TEXT];

    if (!isfinite(report->loss))
        return;
    n->last_losses[n->loss_count++ % 3] = report->loss;
    now = (n->last_losses[0] + n->last_losses[1] + n->last_losses[2]) / 3;
    if (n->loss_count == 3)
        n->first_losses = now;
    if (n->loss_count > 6 && taken(run) >= patience) {
        say(run, LOSS_STAYS, fsdp__sign_loss_stays(n->first_losses, now, guess, taken(run), report->lr, text), text);
        n->said[LOSS_STAYS] = true; /* later it may stay where it is */
    }
}

/* ---- time ----
 *
 * Times are judged stretch by stretch, so that what begins late in a run shows as soon as what was always there. A sign
 * is said once two stretches on end have it: a single pause, however long, is no sign, and if something begins within
 * the first of the two, the figures are those of the second, all of whose steps have it. */

typedef struct longest {
    fsdp__notice *notice;
    int64_t i;        /* modules that were looked at */
    const char *name; /* of the unit; NULL: none has waited */
    int64_t ns;
} longest;

/* Finds the unit whose gathers were waited for longest in this stretch, and begins the next. */
static fsdp_status find_longest(void *arg, fsdp_module *module, const char *name)
{
    longest *found = arg;
    int64_t before;
    fsdp_shard_info info;

    (void)name;
    if (!fsdp_module_is_sharded(module) || found->i == found->notice->module_count)
        return FSDP_OK;
    FSDP_TRY(fsdp_module_shard_info(module, &info));
    before = found->notice->gathered[found->i];
    found->notice->gathered[found->i++] = info.gather_ns;
    if (info.name && info.gather_ns - before > found->ns) {
        found->name = info.name;
        found->ns = info.gather_ns - before;
    }
    return FSDP_OK;
}

static void look_at_time(fsdp_train_run *run)
{
    fsdp__notice *n = run->notice;
    const fsdp__rank_times *own = &n->ranks[0];
    longest unit = {.notice = n};
    char text[FSDP__SIGN_TEXT];
    bool starved = fsdp__sign_starved(own, run->config->data.workers, text), waiting;

    say(run, STARVED, starved && n->starved, text);
    n->starved = starved;
    if (!n->exchanges)
        return;
    if (fsdp__module_walk(run->model, find_longest, &unit) != FSDP_OK)
        unit.name = NULL;
    waiting = fsdp__sign_waiting(own, MOST_WAITING, unit.name, (double)unit.ns * 1e-6, text);
    say(run, WAITING, waiting && n->waiting, text);
    n->waiting = waiting;
}

/* The slow rank is the same one nearly always: any rank is slow now and then. */
static void look_at_ranks(fsdp_train_run *run, int ranks)
{
    fsdp__notice *n = run->notice;
    int rank = fsdp__slowest_rank(n->ranks, ranks);
    char text[FSDP__SIGN_TEXT];

    if (rank >= 0 && (n->slowest[rank] * 10 < n->rounds * 8 || !fsdp__sign_slow_rank(n->ranks, ranks, rank, text)))
        rank = -1;
    say(run, SLOW_RANK, rank >= 0 && rank == n->slow, text);
    n->slow = rank;
}

/* Returns this rank's own times, which are exchanged behind its losses. */
static fsdp__rank_times *own_times(const fsdp_train_run *run)
{
    return (fsdp__rank_times *)(void *)(run->losses + run->microbatches);
}

static void add_times(fsdp__rank_times *to, const fsdp__rank_times *from)
{
    to->steps += from->steps;
    to->step += from->step;
    to->gather += from->gather;
    to->reduce += from->reduce;
    to->data += from->data;
}

/* Reads the times of all ranks, which lie behind their losses. */
static int slowest_of(const fsdp_train_run *run, void *const *all, int ranks)
{
    fsdp__rank_times *now = fsdp__calloc((size_t)ranks, sizeof *now);
    int slowest = -1;

    for (int rank = 0; now && rank < ranks; rank++) {
        memcpy(&now[rank], (const double *)all[rank] + run->microbatches, sizeof *now);
        add_times(&run->notice->ranks[rank], &now[rank]);
    }
    if (now)
        slowest = fsdp__slowest_rank(now, ranks);
    fsdp__free(now);
    return slowest;
}

void fsdp__notice_ranks(fsdp_train_run *run, void *const *all, int ranks)
{
    fsdp__notice *n = run->notice;
    int slowest;

    if (n && own_times(run)->steps > 0) {
        slowest = slowest_of(run, all, ranks);
        n->rounds++;
        if (slowest >= 0)
            n->slowest[slowest]++;
        if (n->ranks[0].steps >= STRETCH) {
            look_at_ranks(run, ranks);
            look_at_time(run);
            memset(n->ranks, 0, (size_t)ranks * sizeof *n->ranks);
            memset(n->slowest, 0, (size_t)ranks * sizeof *n->slowest);
            n->rounds = 0;
        }
    }
    *own_times(run) = (fsdp__rank_times){.steps = 0};
}

void fsdp__notice_step(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (taken(run) > SETTLE)
        add_times(own_times(run), &(fsdp__rank_times){.steps = 1,
                                                      .step = report->step_ms,
                                                      .gather = report->gather_ms,
                                                      .reduce = report->reduce_ms,
                                                      .data = report->data_ms});
}

void fsdp__notice_report(fsdp_train_run *run, const fsdp_train_report *report)
{
    if (!run->notice)
        return;
    look_at_norm(run, report);
    look_at_loss(run, report);
}

/* ---- units ---- */

static fsdp__unit_figures figures_of(const fsdp__histograms *d, int64_t i, double scale)
{
    const fsdp__histogram *grad = &d->gradients[i], *weight = &d->weights[i];
    double zeros = (double)fsdp__histogram_below(grad, DBL_MIN);

    return (fsdp__unit_figures){.name = d->names[i],
                                .elements = (double)(fsdp__histogram_count(grad) + grad->not_finite),
                                .zeros = zeros,
                                .not_finite = (double)grad->not_finite,
                                .tiny = scale > 0 ? (double)fsdp__histogram_below(grad, 0x1p-14 / scale) - zeros : 0,
                                .gradient = sqrt(grad->sum_squares),
                                .weight = sqrt(weight->sum_squares),
                                .update = sqrt(weight->update_squares)};
}

void fsdp__notice_units(fsdp_train_run *run, const fsdp_train_report *report)
{
    const fsdp__histograms *d = run->histograms;
    fsdp__notice *n = run->notice;
    char text[FSDP__SIGN_TEXT];

    if (!n)
        return;
    for (int64_t i = 0; i < d->count; i++)
        n->units[i] = figures_of(d, i, report->loss_scale);
    say(run, NOT_FINITE, fsdp__sign_not_finite_units(n->units, d->count, text), text);
    if (report->not_finite || !isfinite(report->grad_norm))
        return;
    say(run, DEAD, fsdp__sign_dead_units(n->units, d->count, text), text);
    say(run, VANISHING, fsdp__sign_vanishing_units(n->units, d->count, text), text);
    say(run, TOO_SMALL, fsdp__sign_underflow(n->units, d->count, report->loss_scale, text), text);
    say(run, LARGE_UPDATES, fsdp__sign_large_updates(n->units, d->count, report->lr, text), text);
}
