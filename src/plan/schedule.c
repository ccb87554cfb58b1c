/* schedule.c - searches for a schedule. Every draft is priced by a dry run, so all that the engine does counts: what it
 * hides, what it holds, and what it launches. The first drafts are blocks, parts, single modules and the guesses of a
 * dynamic programme; the best of them is then changed, as long as that helps. */
#include "plan/schedule.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "plan/draft_moves.h"
#include "plan/plan.h"
#include "train/run_config.h"
#include "train/strategy_word.h"

/* Describes a draft that was priced. */
typedef struct candidate {
    fsdp__draft draft;
    bool possible;
    size_t bytes, needed; /* at the peak; fsdp__needed_bytes */
    double step, exposed;
} candidate;

typedef struct search {
    fsdp_train_config *config; /* without a schedule */
    fsdp__plan_options options;
    int tries;
    fsdp__scheduled *out;
    fsdp__plan *always, *blocks;
    fsdp__atoms atoms;
    bool chooses_stays, coarse;
    uint8_t *places;                        /* of all candidates */
    candidate priced[FSDP__SCHEDULE_TRIES]; /* drafts, as they were tried */
    int priced_count;
    candidate best, here, trial; /* here: what changes start from */
} search;

/* ---- pricing ---- */

static fsdp_status plan_with(const search *s, const char *policy, const fsdp__comm_schedule *schedule, fsdp__plan **out)
{
    fsdp__plan_options options = s->options;

    options.schedule = schedule;
    s->out->tried++;
    FSDP_TRY(fsdp__train_set_policy(s->config, policy));
    return fsdp__plan_make(s->config, &options, out);
}

/* Prices the trial. What the engine refuses is not possible. */
static fsdp_status price(search *s)
{
    FSDP__SCOPED(fsdp__comm_schedule_free_at) fsdp__comm_schedule *schedule = NULL;
    FSDP__SCOPED(fsdp__plan_free_at) fsdp__plan *plan = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__draft_schedule(&s->atoms, &s->trial.draft, &schedule));
    status = plan_with(s, "blocks", schedule, &plan);
    s->trial.possible = status == FSDP_OK;
    if (status == FSDP_INVALID || status == FSDP_UNSUPPORTED)
        return FSDP_OK;
    FSDP_TRY(status);
    s->trial.bytes = plan->peak.total;
    s->trial.needed = fsdp__needed_bytes(&plan->e->step);
    s->trial.step = plan->time.step;
    s->trial.exposed = plan->time.parts[FSDP__PLAN_GATHERS] + plan->time.parts[FSDP__PLAN_REDUCTIONS];
    return FSDP_OK;
}

static bool fits(const search *s, const candidate *c)
{
    return (double)c->needed <= s->out->room;
}

/* Returns whether `a` is better: what fits before what does not; then the shorter step, and what needs less. */
static bool is_better(const search *s, const candidate *a, const candidate *b)
{
    if (!a->possible || !b->possible)
        return a->possible;
    if (fits(s, a) != fits(s, b))
        return fits(s, a);
    if (fits(s, a) && fabs(a->step - b->step) > 1e-9 * b->step)
        return a->step < b->step;
    return fits(s, a) ? a->bytes < b->bytes : a->needed < b->needed;
}

static void copy(const search *s, const candidate *from, candidate *to)
{
    uint8_t *places = to->draft.places;

    memcpy(places, from->draft.places, (size_t)s->atoms.count);
    *to = *from;
    to->draft.places = places;
}

/* Returns the candidate with the trial's draft, if that was priced before. */
static const candidate *find_priced(const search *s)
{
    const fsdp__draft *d = &s->trial.draft;

    for (int i = 0; i < s->priced_count; i++) {
        const fsdp__draft *other = &s->priced[i].draft;

        if (memcmp(d->places, other->places, (size_t)s->atoms.count) == 0 && d->forward_ahead == other->forward_ahead &&
            d->backward_ahead == other->backward_ahead && d->reductions == other->reductions)
            return &s->priced[i];
    }
    return NULL;
}

static bool is_over(const search *s)
{
    return s->out->tried >= s->tries;
}

/* Prices the trial, unless that was done, or too much was tried, and goes there if it is better. */
static fsdp_status consider(search *s, bool *out_better)
{
    const candidate *before;
    bool better;

    fsdp__draft_tidy(&s->atoms, &s->trial.draft);
    s->trial.possible = false;
    before = find_priced(s);
    if (before)
        copy(s, before, &s->trial);
    else if (!is_over(s)) {
        FSDP_TRY(price(s));
        copy(s, &s->trial, &s->priced[s->priced_count++]);
    }
    better = is_better(s, &s->trial, &s->here);
    if (better)
        copy(s, &s->trial, &s->here);
    if (is_better(s, &s->trial, &s->best))
        copy(s, &s->trial, &s->best);
    if (out_better)
        *out_better = better;
    return FSDP_OK;
}

/* ---- first drafts ---- */

/* Puts an atom where blocks, parts, or single modules have it. */
static uint8_t place_in(const fsdp__atoms *atoms, int64_t i, const char *policy)
{
    const fsdp__atom *a = &atoms->items[i], *before = i > 0 ? a - 1 : NULL;
    int64_t own = *policy == 'b' ? a->block : *policy == 'p' ? a->part : i;
    int64_t other = !before ? -1 : *policy == 'b' ? before->block : *policy == 'p' ? before->part : i - 1;

    return own < 0 ? FSDP__DRAFT_ROOT : own == other ? 0 : FSDP__DRAFT_CUT;
}

static fsdp_status try_policy(search *s, const char *policy, const char *row, bool stays)
{
    int64_t units = 1;

    for (int64_t i = 0; i < s->atoms.count; i++) {
        s->trial.draft.places[i] = place_in(&s->atoms, i, policy) | (stays ? FSDP__DRAFT_STAYS : 0);
        units += fsdp__draft_begins(&s->trial.draft, i);
    }
    FSDP_TRY(consider(s, NULL));
    if (s->trial.possible)
        s->out->rows[s->out->row_count++] =
            (fsdp__schedule_row){row, units, s->trial.bytes, s->trial.step, s->trial.exposed};
    return FSDP_OK;
}

static fsdp_status try_policies(search *s)
{
    static const char *const names[][2] = {{"blocks", "blocks, kept whole"},
                                           {"parts", "parts, kept whole"},
                                           {"all modules", "all modules, whole"},
                                           {"parts and ends", "the same, kept whole"}};

    for (int i = 0; i < 3; i++) {
        int name = i == 2 && s->coarse ? 3 : i;

        FSDP_TRY(try_policy(s, names[i][0], names[name][0], false));
        if (s->chooses_stays)
            FSDP_TRY(try_policy(s, names[i][0], names[name][1], true));
    }
    return FSDP_OK;
}

/* Tries the guesses: with what lies outside of the blocks in units of its own or in the root, and with units up to ever
 * fewer elements, which take less memory. */
static fsdp_status try_guesses(search *s)
{
    bool stays = s->best.draft.places[s->atoms.count - 1] & FSDP__DRAFT_STAYS;
    double most[] = {INFINITY, 0, 0, 0};

    for (int64_t i = 0; i < s->blocks->e->unit_count; i++)
        if (s->blocks->e->units[i].name[0])
            most[1] = fmax(most[1], (double)s->blocks->e->units[i].numel);
    most[2] = most[1] / 2;
    most[3] = most[1] / 4;
    for (int outside = 0; outside < 2; outside++)
        for (int i = 0; i < 4; i++) {
            for (int64_t a = 0; a < s->atoms.count; a++)
                s->trial.draft.places[a] = outside == 0 && s->atoms.items[a].block < 0 ? FSDP__DRAFT_ROOT : 0;
            FSDP_TRY(fsdp__draft_guess(&s->atoms, most[i], stays, &s->trial.draft));
            FSDP_TRY(consider(s, NULL));
        }
    return FSDP_OK;
}

/* ---- changes ---- */

static fsdp_status try_stays(search *s, int64_t units, bool *out_fits)
{
    copy(s, &s->here, &s->trial);
    fsdp__draft_keep_last(&s->atoms, &s->trial.draft, units);
    FSDP_TRY(consider(s, NULL));
    *out_fits = s->trial.possible && fits(s, &s->trial);
    return FSDP_OK;
}

/* Keeps as many units whole as there is room for, those that the forward ends with first: their backward comes first,
 * and nothing hides its gathers. */
static fsdp_status keep_units(search *s)
{
    int64_t least = 0, most = fsdp__draft_units(&s->atoms, &s->here.draft);
    bool fit;

    if (!s->chooses_stays)
        return FSDP_OK;
    FSDP_TRY(try_stays(s, most, &fit));
    if (fit)
        return FSDP_OK;
    while (most - least > 1 && !is_over(s)) {
        int64_t units = (least + most) / 2;

        FSDP_TRY(try_stays(s, units, &fit));
        *(fit ? &least : &most) = units;
    }
    return FSDP_OK;
}

/* Tries to gather further ahead, and to have more reductions in flight. */
static fsdp_status look_ahead(search *s)
{
    enum {
        MOST = 3
    };

    for (int which = 0; which < 3; which++)
        for (int64_t number = 1; number <= MOST; number++) {
            copy(s, &s->here, &s->trial);
            *(which == 0   ? &s->trial.draft.forward_ahead
              : which == 1 ? &s->trial.draft.backward_ahead
                           : &s->trial.draft.reductions) = number;
            FSDP_TRY(consider(s, NULL));
        }
    return FSDP_OK;
}

static fsdp_status change_all(search *s)
{
    for (int move = 0; move < FSDP__DRAFT_MOVES_OF_ALL; move++) {
        copy(s, &s->here, &s->trial);
        fsdp__draft_change_all(&s->atoms, &s->trial.draft, move);
        FSDP_TRY(consider(s, NULL));
    }
    return FSDP_OK;
}

/* Changes one unit after the other, from both ends to the middle: at the ends nothing hides what travels. Goes on until
 * nothing helps any more. */
static fsdp_status change_units(search *s)
{
    bool helped = true, better;

    while (helped && !is_over(s)) {
        int64_t units = fsdp__draft_units(&s->atoms, &s->here.draft);

        helped = false;
        for (int64_t i = 0; i < units; i++)
            for (int move = 0; move < FSDP__DRAFT_MOVES; move++) {
                if (move == FSDP__DRAFT_MOVE_STAYS && !s->chooses_stays)
                    continue;
                copy(s, &s->here, &s->trial);
                if (!fsdp__draft_change(&s->atoms, &s->trial.draft, i % 2 == 0 ? i / 2 : units - 1 - i / 2, move))
                    continue;
                FSDP_TRY(consider(s, &better));
                helped = helped || better;
            }
    }
    return FSDP_OK;
}

/* Changes a draft, and does so again as long as it helps. */
static fsdp_status improve(search *s, const candidate *from)
{
    candidate before;

    copy(s, from, &s->here);
    do {
        before = s->here;
        FSDP_TRY(keep_units(s));
        FSDP_TRY(look_ahead(s));
        FSDP_TRY(change_all(s));
        FSDP_TRY(change_units(s));
    } while (!is_over(s) && (s->here.step != before.step || s->here.bytes != before.bytes));
    return FSDP_OK;
}

/* Improves the best of the first drafts, then the second best, and so on. */
static fsdp_status improve_all(search *s)
{
    bool used[FSDP__SCHEDULE_TRIES] = {false};

    for (int first = s->priced_count; !is_over(s);) {
        int at = -1;

        for (int i = 0; i < first; i++)
            if (!used[i] && s->priced[i].possible && (at < 0 || is_better(s, &s->priced[i], &s->priced[at])))
                at = i;
        if (at < 0)
            break;
        used[at] = true;
        FSDP_TRY(improve(s, &s->priced[at]));
    }
    return FSDP_OK;
}

/* ---- the search ---- */

/* Takes the leanest draft whose step is hardly longer than the best one's, if it needs much less memory: a gain that no
 * run would notice is not worth a larger part of it. */
static void prefer_leaner(search *s)
{
    const double longer = 1.01, leaner = 0.9;
    const candidate *leanest = &s->best;

    for (int i = 0; i < s->priced_count; i++) {
        const candidate *c = &s->priced[i];

        if (c->possible && fits(s, c) && c->step <= longer * s->best.step &&
            (c->bytes < leanest->bytes || (c->bytes == leanest->bytes && c->step < leanest->step)))
            leanest = c;
    }
    if ((double)leanest->bytes <= leaner * (double)s->best.bytes)
        copy(s, leanest, &s->best);
}

static fsdp_status fail_to_fit(const search *s)
{
    return FSDP_FAIL(FSDP_NO_MEMORY,
                     "no schedule fits into %s for a rank: the leanest of %d that were tried needs %s: give more "
                     "memory, or see what 'fsdp plan --fit' finds",
                     fsdp__size_text_beside(s->out->room, (double)s->best.needed, FSDP__ROOM(24)), s->out->tried,
                     fsdp__size_text_beside((double)s->best.needed, s->out->room, FSDP__ROOM(24)));
}

/* Describes the best draft as a schedule. */
static fsdp_status describe(search *s)
{
    const fsdp__plan *plan = s->always;
    const fsdp__prices *prices = s->options.prices;
    fsdp__comm_schedule *out;

    FSDP_TRY(fsdp__draft_schedule(&s->atoms, &s->best.draft, &s->out->plan));
    out = s->out->plan;
    out->model = fsdp__strdup(plan->e->model);
    out->strategy = fsdp__strdup(fsdp__train_strategy_name(s->config));
    out->prices = fsdp__sprintf("%s (%s)", prices->device, prices->source);
    out->world_size = s->options.world_size;
    out->machines = s->options.machines;
    out->copies = plan->e->replicas;
    out->step = s->best.step;
    out->exposed = s->best.exposed;
    out->peak_bytes = (int64_t)s->best.bytes;
    s->out->rows[s->out->row_count++] =
        (fsdp__schedule_row){"plan", out->unit_count + 1, s->best.bytes, s->best.step, s->best.exposed};
    return out->model && out->strategy && out->prices ? FSDP_OK : FSDP_NO_MEMORY;
}

static fsdp_status open_drafts(search *s)
{
    size_t bytes = (size_t)s->atoms.count;
    candidate *const others[] = {&s->best, &s->here, &s->trial};

    if (bytes == 0)
        return FSDP_FAIL(FSDP_INVALID, "the model has no modules to schedule: nothing but its root has parameters");
    s->places = fsdp__calloc(FSDP__SCHEDULE_TRIES + 3, bytes);
    FSDP__TRY_NEW(s->places);
    for (int i = 0; i < FSDP__SCHEDULE_TRIES; i++)
        s->priced[i].draft.places = s->places + (size_t)i * bytes;
    for (int i = 0; i < 3; i++)
        others[i]->draft = (fsdp__draft){s->places + (FSDP__SCHEDULE_TRIES + i) * bytes, .reductions = 1};
    return FSDP_OK;
}

static fsdp_status find(search *s)
{
    FSDP_TRY(fsdp__train_set_policy(s->config, "blocks")); /* so that a config that allows no schedule is refused */
    FSDP_TRY(plan_with(s, "blocks", NULL, &s->blocks));
    FSDP_TRY(plan_with(s, "always", NULL, &s->always));
    FSDP_TRY(fsdp__atoms_make(s->always, s->blocks, s->coarse, &s->atoms));
    FSDP_TRY(open_drafts(s));
    FSDP_TRY(try_policies(s));
    FSDP_TRY(try_guesses(s));
    FSDP_TRY(improve_all(s));
    if (!s->best.possible || !fits(s, &s->best))
        return fail_to_fit(s);
    prefer_leaner(s);
    return describe(s);
}

fsdp_status fsdp__schedule_find(const fsdp_train_config *config, const fsdp__plan_options *options, double room,
                                int tries, fsdp__scheduled *out)
{
    FSDP__FREED search *s = fsdp__calloc(1, sizeof *s);
    fsdp_status status;

    *out = (fsdp__scheduled){.room = room > 0 ? room : INFINITY};
    if (!options->prices)
        return FSDP_FAIL(FSDP_INVALID, "a schedule is planned by prices: leave out --no-time");
    FSDP__TRY_NEW(s);
    *s = (search){.options = *options, .tries = FSDP__MIN(tries, FSDP__SCHEDULE_TRIES), .out = out};
    s->options.rank_alone = true;
    FSDP_TRY(fsdp__train_config_copy(config, &s->config));
    FSDP_TRY_GOTO(status, fsdp_train_config_set(s->config, "parallelism.schedule", "plan"), out);
    FSDP_TRY_GOTO(status, fsdp__train_config_check_step(s->config, options->world_size), out);
    FSDP_TRY_GOTO(status, fsdp_train_config_set(s->config, "parallelism.schedule", ""), out);
    FSDP_TRY_GOTO(status, fsdp_train_config_set(s->config, "parallelism.schedule_prices", ""), out);
    s->config->parallelism.schedule_memory = 0;
    FSDP_TRY_GOTO(status, fsdp_train_config_set(s->config, "training.device", options->prices->gpu ? "cuda" : "cpu"),
                  out);
    s->chooses_stays = fsdp__train_chooses_stays(config);
    s->coarse = config->training.mixed_precision_param != FSDP_F32;
    status = find(s);
out:
    fsdp__free(s->places);
    fsdp__atoms_release(&s->atoms);
    fsdp__plan_free(s->always);
    fsdp__plan_free(s->blocks);
    fsdp_train_config_free(s->config);
    if (status != FSDP_OK)
        fsdp__scheduled_release(out);
    return status;
}

void fsdp__scheduled_release(fsdp__scheduled *scheduled)
{
    fsdp__comm_schedule_free(fsdp__take(&scheduled->plan));
}
