/* traced_step.c - chooses a step of a trace, and keeps what a report shows of it. */
#include "report/traced_step.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "base/text.h"
#include "report/step_parts.h"

enum {
    LOOKS = 16,     /* steps that are looked at for a slow rank */
    MOMENTS = 2000, /* of the memory that are kept */
    UNITS = 4096    /* times that something is so of a unit */
};

/* ---- which step ---- */

/* A step as all ranks together took it. */
typedef struct taken {
    int64_t number, ns; /* of the rank that took longest */
    int ranks;
} taken;

static int by_rank(const void *a, const void *b)
{
    const fsdp__traced_span *x = a, *y = b;

    FSDP__ORDER_BY(x->rank, y->rank);
    FSDP__ORDER_BY(x->begin, y->begin);
    return (x->end < y->end) - (x->end > y->end);
}

/* Returns the number of the step that a span is; 0: it is none. */
static int64_t step_number(const fsdp__trace *t, const fsdp__traced_span *span)
{
    const char *number = fsdp__behind(t->names[span->name], "step ");

    return span->sort == FSDP__TRACED_STAGE && span->lane == 0 && number ? FSDP__MAX(strtoll(number, NULL, 10), 0) : 0;
}

FSDP__ORDER_BY_ONE(by_number, taken, number)

FSDP__ORDER_BY_TWO(by_ns, taken, ns, number)

/* Lists the steps that all ranks have, and returns how many. `steps` has room for each span that is one. */
static int64_t whole_steps(const fsdp__trace *t, taken *steps)
{
    int64_t count = 0, kept = 0, whole = 0;

    for (int64_t i = 0; i < t->span_count; i++)
        if (step_number(t, &t->spans[i]) > 0)
            steps[count++] = (taken){step_number(t, &t->spans[i]), t->spans[i].end - t->spans[i].begin, 1};
    if (count > 0)
        qsort(steps, (size_t)count, sizeof *steps, by_number);
    for (int64_t i = 0; i < count; i++) {
        if (kept > 0 && steps[kept - 1].number == steps[i].number) {
            steps[kept - 1].ranks++;
            steps[kept - 1].ns = FSDP__MAX(steps[kept - 1].ns, steps[i].ns);
        } else {
            steps[kept++] = steps[i];
        }
    }
    for (int64_t i = 0; i < kept; i++)
        if (steps[i].ranks == t->rank_count)
            steps[whole++] = steps[i];
    return whole;
}

/* Chooses the step whose time is the median of all. `*out` has all of them, by length; the caller frees it. */
static fsdp_status choose(fsdp__traced_step *step, taken **out)
{
    const fsdp__trace *t = &step->trace;
    int64_t count = 0;
    taken *steps;

    for (int64_t i = 0; i < t->span_count; i++)
        count += step_number(t, &t->spans[i]) > 0;
    *out = steps = fsdp__malloc((size_t)FSDP__MAX(count, 1) * sizeof *steps);
    FSDP__TRY_NEW(steps);
    step->traced = whole_steps(t, steps);
    if (step->traced > 0) {
        qsort(steps, (size_t)step->traced, sizeof *steps, by_ns);
        step->number = steps[(step->traced - 1) / 2].number;
    }
    return FSDP_OK;
}

/* Finds the step on each rank, or all of the trace where it has no steps. */
static fsdp_status place_ranks(fsdp__step_parts *p)
{
    const fsdp__trace *t = &p->step->trace;

    for (int r = 0; r < t->rank_count; r++)
        p->places[r] = (fsdp__step_place){.begin = INT64_MAX};
    for (int64_t i = 0; i < t->span_count; i++) {
        const fsdp__traced_span *span = &t->spans[i];
        fsdp__step_place *place = &p->places[span->rank];

        if (i == 0 || t->spans[i - 1].rank != span->rank)
            place->first = i;
        place->last = i + 1;
        if (p->step->number > 0 && step_number(t, span) != p->step->number)
            continue;
        place->begin = FSDP__MIN(place->begin, span->begin);
        place->end = FSDP__MAX(place->end, span->end);
    }
    for (int r = 0; r < t->rank_count; r++)
        if (p->places[r].begin >= p->places[r].end)
            return FSDP_FAIL(FSDP_FORMAT, "rank %d has done nothing in it", r);
    return FSDP_OK;
}

/* ---- memory ---- */

/* Adds what is live after a moment. Of those that lie close the highest is kept. */
static fsdp_status add_moment(fsdp__step_device *of, int64_t every, const fsdp__step_memory *moment)
{
    fsdp__step_memory *last = of->count > 0 ? &of->moments[of->count - 1] : NULL;

    if (last && (moment->at == 0 || moment->at / every == last->at / every)) {
        if (moment->at == 0 || moment->all >= last->all)
            *last = *moment;
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__grow(&of->moments, of->count, &of->capacity, sizeof *of->moments));
    of->moments[of->count++] = *moment;
    return FSDP_OK;
}

/* Takes what is counted into what is live. Returns whether that is within the step, or before it. */
static bool take_count(const fsdp__step_parts *p, const fsdp__traced_bytes *b, fsdp__step_memory *live)
{
    if (b->kind >= FSDP_MEMORY_KINDS || b->at >= p->places[b->rank].end)
        return false;
    live->all += b->bytes - live->bytes[b->kind];
    live->bytes[b->kind] = b->bytes;
    live->at = FSDP__MAX(b->at - p->places[b->rank].begin, 0);
    return true;
}

/* Finds the device that holds most within the step, of the first `ranks` ranks: that of this count. */
static fsdp_status find_highest(const fsdp__step_parts *p, int ranks, int64_t *peak, const fsdp__traced_bytes **out)
{
    const fsdp__trace *t = &p->step->trace;
    FSDP__FREED fsdp__step_memory *live = fsdp__calloc((size_t)t->rank_count * FSDP__TRACED_DEVICES, sizeof *live);

    FSDP__TRY_NEW(live);
    for (int64_t i = 0; i < t->bytes_count; i++) {
        const fsdp__traced_bytes *b = &t->bytes[i];
        fsdp__step_memory *of = &live[(int64_t)b->rank * FSDP__TRACED_DEVICES + b->device];

        if (take_count(p, b, of) && b->at >= p->places[b->rank].begin && b->rank < ranks && of->all > *peak) {
            *peak = of->all;
            *out = b;
        }
    }
    return FSDP_OK;
}

/* Keeps the memory of that device. */
static fsdp_status add_memory(fsdp__step_parts *p, int ranks, fsdp__step_device *of)
{
    const fsdp__trace *t = &p->step->trace;
    const fsdp__traced_bytes *highest = NULL;
    fsdp__step_memory live = {.at = 0};

    of->rank = -1;
    FSDP_TRY(find_highest(p, ranks, &of->peak, &highest));
    if (!highest)
        return FSDP_OK;
    of->rank = highest->rank;
    for (int64_t i = 0; i < t->bytes_count; i++)
        if (t->bytes[i].rank == highest->rank && t->bytes[i].device == highest->device &&
            take_count(p, &t->bytes[i], &live))
            FSDP_TRY(add_moment(of, FSDP__MAX(p->step->ranks[highest->rank].ns / MOMENTS, 1), &live));
    return FSDP_OK;
}

/* ---- units ---- */

/* Returns the unit that a span of rank 0 is about; NULL: it is about none. The root is called by what it is to each. */
static const char *unit_of(const fsdp__trace *t, const fsdp__traced_span *span, fsdp__unit_state *state)
{
    static const char *const begins[] = {"whole: ", "forward ", "backward "};
    static const char root[] = "(root)";
    const char *name = t->names[span->name], *unit;

    if (span->sort == FSDP__TRACED_COLLECTIVE && (span->kind == FSDP_REDUCE_SCATTER || span->kind == FSDP_ALL_REDUCE)) {
        *state = FSDP__UNIT_REDUCED;
        name = strchr(name, ' ');
        return !name ? NULL : strcmp(name + 1, "the root") == 0 ? root : name + 1;
    }
    if (span->sort != FSDP__TRACED_WHOLE && span->sort != FSDP__TRACED_UNIT)
        return NULL;
    for (int s = 0; s < FSDP__UNIT_REDUCED; s++)
        if ((unit = fsdp__behind(name, begins[s]))) {
            *state = (fsdp__unit_state)s;
            return strcmp(unit, "the model") == 0 ? root : unit;
        }
    return NULL;
}

static fsdp_status add_units(fsdp__step_parts *p)
{
    const fsdp__step_place *place = &p->places[0];
    fsdp__traced_step *step = p->step;

    for (int64_t i = place->first; i < place->last; i++) {
        const fsdp__traced_span *span = &step->trace.spans[i];
        int64_t begin = FSDP__MAX(span->begin, place->begin), end = FSDP__MIN(span->end, place->end);
        fsdp__unit_state state;
        const char *name = begin < end ? unit_of(&step->trace, span, &state) : NULL;

        if (!name || step->unit_count == UNITS)
            continue;
        FSDP_TRY(fsdp__grow(&step->units, step->unit_count, &step->unit_capacity, sizeof *step->units));
        step->units[step->unit_count++] = (fsdp__step_unit){name, begin - place->begin, end - place->begin, state};
    }
    return FSDP_OK;
}

/* ---- steps in which one rank was slow ---- */

static void free_ranks(fsdp__step_rank *ranks, int count)
{
    for (int r = 0; ranks && r < count; r++) {
        fsdp__free(ranks[r].does.items);
        fsdp__free(ranks[r].calls.items);
    }
    fsdp__free(ranks);
}

/* Notes another step if the others waited for one rank in it, and that explains a part of why it took longer. */
static void note_odd(fsdp__traced_step *step, const fsdp__traced_step *other)
{
    int others = step->trace.rank_count - 1, slow = other->slowest;
    int64_t waited = slow < 0 ? 0 : other->ranks[slow].caused / others,
            more = slow < 0 ? 0 : waited - step->ranks[slow].caused / others;

    if (more > (other->ns - step->ns) / 4 && more > step->ns / 10)
        step->odd[step->odd_count++] = (fsdp__odd_step){.number = other->number,
                                                        .ns = other->ns,
                                                        .rank = slow,
                                                        .waited = waited,
                                                        .why = other->why,
                                                        .its = other->its,
                                                        .usual = other->usual,
                                                        .at = other->wait_count > 0 ? other->waits[0].name : NULL};
}

/* Looks at another step of the same trace. */
static fsdp_status look_at(const fsdp__step_parts *p, int64_t number, fsdp__traced_step *other)
{
    size_t ranks = (size_t)p->step->trace.rank_count;
    fsdp__step_parts parts = {.step = other, .comers = p->comers};
    fsdp_status status = FSDP_NO_MEMORY;

    *other = (fsdp__traced_step){.trace = p->step->trace, .number = number};
    other->ranks = fsdp__calloc(ranks, sizeof *other->ranks);
    parts.places = fsdp__calloc(ranks, sizeof *parts.places);
    if (other->ranks && parts.places)
        status = place_ranks(&parts);
    if (status == FSDP_OK)
        status = fsdp__step_find_activities(&parts);
    if (status == FSDP_OK)
        status = fsdp__step_find_slowest(&parts);
    if (status == FSDP_OK)
        note_odd(p->step, other);
    fsdp__free(parts.places);
    free_ranks(other->ranks, p->step->trace.rank_count);
    return status;
}

/* Finds the longest steps for which one rank is to blame, among those that are much longer than the one that is shown.
 */
static fsdp_status find_odd(const fsdp__step_parts *p, const taken *steps)
{
    fsdp__traced_step *step = p->step;
    FSDP__FREED fsdp__traced_step *other = NULL;
    int64_t usual = step->traced > 0 ? steps[(step->traced - 1) / 2].ns : 0, last = step->traced - 1;

    if (step->traced == 0 || step->trace.rank_count < 2)
        return FSDP_OK;
    FSDP__TRY_NEW(other = fsdp__malloc(sizeof *other));
    for (int64_t i = last;
         i > FSDP__MAX(last - LOOKS, -1) && steps[i].ns > usual + usual / 5 && step->odd_count < FSDP__ODD_STEPS; i--)
        FSDP_TRY(look_at(p, steps[i].number, other));
    return FSDP_OK;
}

/* ---- all ---- */

static fsdp_status make(fsdp__step_parts *p)
{
    FSDP__FREED taken *steps = NULL;

    FSDP_TRY(choose(p->step, &steps));
    FSDP_TRY(place_ranks(p));
    FSDP_TRY(fsdp__step_match_calls(p));
    FSDP_TRY(fsdp__step_find_activities(p));
    FSDP_TRY(fsdp__step_find_slowest(p));
    FSDP_TRY(find_odd(p, steps));
    fsdp__step_find_kernels(p);
    FSDP_TRY(fsdp__step_add_traffic(p));
    FSDP_TRY(add_units(p));
    FSDP_TRY(add_memory(p, p->step->trace.rank_count, &p->step->highest));
    return add_memory(p, 1, &p->step->first);
}

static fsdp_status view(fsdp__traced_step *step)
{
    fsdp__trace *t = &step->trace;
    fsdp__step_parts parts = {.step = step};
    fsdp_status status = FSDP_NO_MEMORY;

    if (t->span_count == 0)
        return FSDP_FAIL(FSDP_FORMAT, "nothing was done while it was recorded");
    if (t->span_count > 0)
        qsort(t->spans, (size_t)t->span_count, sizeof *t->spans, by_rank);
    step->ranks = fsdp__calloc((size_t)t->rank_count, sizeof *step->ranks);
    parts.places = fsdp__calloc((size_t)t->rank_count, sizeof *parts.places);
    parts.comers = fsdp__malloc((size_t)t->span_count * sizeof *parts.comers);
    for (int64_t i = 0; parts.comers && i < t->span_count; i++)
        parts.comers[i].rank = -1;
    if (step->ranks && parts.places && parts.comers)
        status = make(&parts);
    FSDP__FREE_ALL(parts.places, parts.comers, t->spans, t->bytes);
    t->spans = NULL;
    t->bytes = NULL;
    t->span_count = t->bytes_count = 0;
    return status;
}

fsdp_status fsdp__traced_step_read(const char *path, fsdp__traced_step *out)
{
    fsdp_status status;

    memset(out, 0, sizeof *out);
    FSDP_TRY(fsdp__trace_read(path, &out->trace));
    status = view(out);
    if (status != FSDP_OK && status != FSDP_NO_MEMORY)
        fsdp_fail_prefix(status, "cannot show the trace '%s'", path);
    return status;
}

void fsdp__traced_step_release(fsdp__traced_step *step)
{
    free_ranks(step->ranks, step->trace.rank_count);
    FSDP__FREE_ALL(step->units, step->traffic, step->highest.moments, step->first.moments);
    fsdp__trace_release(&step->trace);
}
