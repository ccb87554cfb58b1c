/* step_ranks.c - what each rank does at each moment of a step, and for whom it waits. */
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"
#include "device/kernel_args.h"
#include "report/step_parts.h"

enum {
    LANES = 1 << 10
};

/* Says what is going on at a moment; of each there may be several. */
typedef enum going {
    PRODUCTS,
    ATTENTION,
    OPTIMIZER_KERNEL,
    KERNEL,
    COPY,
    OPTIMIZER,
    WAIT,       /* of the host */
    HELD,       /* a collective on the host, or on the stream that computes: nothing runs beside it */
    BESIDE,     /* a collective on another stream */
    DATA,       /* a batch is made */
    CHECKPOINT, /* on the host */
    UNITS,      /* the stages forward and backward */
    GOINGS
} going;

typedef struct edge {
    int64_t at;
    const fsdp__traced_span *span;
    int going;
    bool begins;
} edge;

/* Holds a walk over a rank's step, from moment to moment. */
typedef struct sweep {
    fsdp__step_parts *parts;
    fsdp__step_rank *rank;
    int number, compute; /* of the rank; the lane that computes */
    int active[GOINGS];
    const fsdp__traced_span *wait, *call; /* those that have begun last */
    int64_t *late;                        /* by rank: how long this one has waited for it */
} sweep;

/* ---- activities ---- */

const char *fsdp__activity_name(fsdp__activity activity)
{
    static const char *const names[] = {
        [FSDP__DOES_PRODUCTS] = "products",
        [FSDP__DOES_ATTENTION] = "attention",
        [FSDP__DOES_OTHER] = "other kernels",
        [FSDP__DOES_OPTIMIZER] = "optimizer",
        [FSDP__DOES_COPIES] = "copies",
        [FSDP__WAITS_FOR_GATHERS] = "waits for gathers",
        [FSDP__WAITS_FOR_REDUCTIONS] = "waits for reductions",
        [FSDP__WAITS_FOR_CALLS] = "waits for other calls",
        [FSDP__WAITS_FOR_DATA] = "waits for data",
        [FSDP__DOES_CHECKPOINT] = "checkpoint",
        [FSDP__DOES_HOST] = "host",
    };

    return names[activity];
}

bool fsdp__activity_is_wait(fsdp__activity activity)
{
    return activity >= FSDP__WAITS_FOR_GATHERS && activity <= FSDP__WAITS_FOR_CALLS;
}

static fsdp__activity wait_for(int kind)
{
    return kind == FSDP_ALL_GATHER                                  ? FSDP__WAITS_FOR_GATHERS
           : kind == FSDP_REDUCE_SCATTER || kind == FSDP_ALL_REDUCE ? FSDP__WAITS_FOR_REDUCTIONS
                                                                    : FSDP__WAITS_FOR_CALLS;
}

/* Returns what the rank does now. A GPU that computes nothing waits for the call that runs on another of its streams;
 * on a processor such a call is somebody else's work, and only the host's own wait counts. */
static fsdp__activity activity_of(const sweep *s)
{
    const int *a = s->active;

    if (a[PRODUCTS] || a[ATTENTION])
        return a[PRODUCTS] ? FSDP__DOES_PRODUCTS : FSDP__DOES_ATTENTION;
    if (a[HELD] && s->call)
        return wait_for(s->call->kind);
    if (a[OPTIMIZER_KERNEL] || (a[KERNEL] && a[OPTIMIZER]))
        return FSDP__DOES_OPTIMIZER;
    if (a[KERNEL] || a[COPY])
        return a[KERNEL] ? FSDP__DOES_OTHER : FSDP__DOES_COPIES;
    if (a[WAIT] && s->wait && s->wait->kind < FSDP_COLLECTIVES)
        return wait_for(s->wait->kind);
    if (a[BESIDE] && s->call && (a[WAIT] || s->compute > 0))
        return wait_for(s->call->kind);
    if (a[CHECKPOINT])
        return FSDP__DOES_CHECKPOINT;
    if (a[DATA] && !a[UNITS] && !a[OPTIMIZER])
        return FSDP__WAITS_FOR_DATA;
    return a[OPTIMIZER] ? FSDP__DOES_OPTIMIZER : FSDP__DOES_HOST;
}

/* ---- what is going on ---- */

static int going_of_kernel(int kind)
{
    switch (kind) {
    case FSDP__KERNEL_CLASS_GEMM:
        return PRODUCTS;
    case FSDP__KERNEL_CLASS_ATTENTION:
        return ATTENTION;
    case FSDP__KERNEL_CLASS_OPTIMIZER:
        return OPTIMIZER_KERNEL;
    case FSDP__KERNEL_CLASS_COMMUNICATION:
        return GOINGS; /* it is a part of its collective */
    default:
        return KERNEL;
    }
}

/* Returns what a span is; GOINGS: nothing that matters here. */
static int going_of(const sweep *s, const fsdp__traced_span *span)
{
    bool computes = span->lane == s->compute, host = span->lane == 0;

    switch ((fsdp__traced_sort)span->sort) {
    case FSDP__TRACED_KERNEL:
        return computes ? going_of_kernel(span->kind) : GOINGS;
    case FSDP__TRACED_COPY:
        return computes ? COPY : GOINGS;
    case FSDP__TRACED_COLLECTIVE:
        return computes || host ? HELD : BESIDE;
    case FSDP__TRACED_OPTIMIZER:
        return OPTIMIZER;
    case FSDP__TRACED_WAIT:
        return host ? WAIT : GOINGS;
    case FSDP__TRACED_DATA:
        return DATA;
    case FSDP__TRACED_CHECKPOINT:
        return host ? CHECKPOINT : GOINGS;
    case FSDP__TRACED_STAGE: {
        const char *name = s->parts->step->trace.names[span->name];

        return strcmp(name, "forward") == 0 || strcmp(name, "backward") == 0 ? UNITS : GOINGS;
    }
    default:
        return GOINGS;
    }
}

int fsdp__step_computing_lane(const fsdp__step_parts *p, int rank)
{
    const fsdp__step_place *place = &p->places[rank];
    double busy[LANES] = {0};
    int most = 0;

    for (int64_t i = place->first; i < place->last; i++) {
        const fsdp__traced_span *span = &p->step->trace.spans[i];

        if (span->sort == FSDP__TRACED_KERNEL && span->kind != FSDP__KERNEL_CLASS_COMMUNICATION)
            busy[span->lane] += (double)(span->end - span->begin);
    }
    for (int lane = 1; lane < LANES; lane++)
        if (busy[lane] > busy[most])
            most = lane;
    return most;
}

/* ---- stretches ---- */

static fsdp_status add_stretch(fsdp__stretches *all, int64_t begin, int64_t end, int activity)
{
    fsdp__stretch *last = all->count > 0 ? &all->items[all->count - 1] : NULL;

    if (last && last->activity == activity && last->end == begin) {
        last->end = end;
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__grow(&all->items, all->count, &all->capacity, sizeof *all->items));
    all->items[all->count++] = (fsdp__stretch){begin, end, activity};
    return FSDP_OK;
}

/* ---- waits ---- */

/* Returns the row of a name and group; NULL: there is no more room, and the wait is not listed. */
static fsdp__step_wait *wait_row(fsdp__traced_step *step, char *name, const fsdp__traced_span *of)
{
    const fsdp__trace *t = &step->trace;
    const char *group = of->group >= 0 ? t->names[t->groups[of->group].name] : NULL;

    for (int i = 0; i < step->wait_count; i++)
        if (strcmp(step->waits[i].name, name) == 0 && step->waits[i].group == group)
            return &step->waits[i];
    if (step->wait_count == FSDP__STEP_WAITS)
        return NULL;
    step->waits[step->wait_count] = (fsdp__step_wait){.name = name, .group = group, .kind = of->kind};
    return &step->waits[step->wait_count++];
}

/* Notes that the rank has waited from `begin` to `end`, and how much of that for the rank that came last. */
static void add_wait(sweep *s, int64_t begin, int64_t end)
{
    static const char wait[] = "wait for ";
    fsdp__traced_step *step = s->parts->step;
    const fsdp__traced_span *of = s->active[WAIT] && s->wait && s->wait->kind < FSDP_COLLECTIVES ? s->wait : s->call;
    const fsdp__last_comer *comer = s->call ? &s->parts->comers[s->call - step->trace.spans] : NULL;
    char *name = of ? step->trace.names[of->name] : NULL;
    fsdp__step_wait *row;
    int64_t late = 0;

    if (comer && comer->rank >= 0 && comer->rank != s->number && comer->at > begin) {
        late = FSDP__MIN(comer->at, end) - begin;
        s->late[comer->rank] += late;
        s->rank->for_others += late;
    }
    if (name && strncmp(name, wait, strlen(wait)) == 0)
        name += strlen(wait);
    row = name ? wait_row(step, name, of) : NULL;
    if (row) {
        row->ns += end - begin;
        row->for_others += late;
    }
}

/* ---- the sweep ---- */

/* Ends come before beginnings, so that spans that touch do not overlap. */
FSDP__ORDER_BY_TWO(by_time, edge, at, begins)

static fsdp_status list_edges(const sweep *s, edge **out, int64_t *out_count)
{
    const fsdp__step_place *place = &s->parts->places[s->number];
    edge *edges = fsdp__malloc((size_t)FSDP__MAX(2 * (place->last - place->first), 1) * sizeof *edges);
    int64_t count = 0;

    FSDP__TRY_NEW(edges);
    for (int64_t i = place->first; i < place->last; i++) {
        const fsdp__traced_span *span = &s->parts->step->trace.spans[i];
        int64_t begin = FSDP__MAX(span->begin, place->begin), end = FSDP__MIN(span->end, place->end);
        int what = going_of(s, span);

        if (what == GOINGS || begin >= end)
            continue;
        edges[count++] = (edge){begin, span, what, true};
        edges[count++] = (edge){end, span, what, false};
    }
    if (count > 0)
        qsort(edges, (size_t)count, sizeof *edges, by_time);
    *out = edges;
    *out_count = count;
    return FSDP_OK;
}

/* Takes what is true from `begin` to `end`, which are times of the trace. */
static fsdp_status pass(sweep *s, int64_t begin, int64_t end)
{
    int64_t zero = s->parts->places[s->number].begin;
    fsdp__activity activity = activity_of(s);

    if (begin >= end)
        return FSDP_OK;
    s->rank->parts[activity] += end - begin;
    if (fsdp__activity_is_wait(activity))
        add_wait(s, begin, end);
    if ((s->active[HELD] || s->active[BESIDE]) && s->call)
        FSDP_TRY(add_stretch(&s->rank->calls, begin - zero, end - zero, s->call->kind));
    return add_stretch(&s->rank->does, begin - zero, end - zero, activity);
}

static void turn(sweep *s, const edge *e)
{
    bool call = e->going == HELD || e->going == BESIDE;

    s->active[e->going] += e->begins ? 1 : -1;
    if (e->going == WAIT)
        s->wait = e->begins ? e->span : s->wait == e->span ? NULL : s->wait;
    if (call)
        s->call = e->begins ? e->span : s->call == e->span ? NULL : s->call;
}

static int64_t first_begin(const fsdp__step_parts *p)
{
    int64_t first = INT64_MAX;

    for (int r = 0; r < p->step->trace.rank_count; r++)
        first = FSDP__MIN(first, p->places[r].begin);
    return first;
}

static fsdp_status sweep_rank(sweep *s)
{
    const fsdp__step_place *place = &s->parts->places[s->number];
    int64_t count = 0, at = place->begin;
    FSDP__FREED edge *edges = NULL;

    s->rank->ns = place->end - place->begin;
    s->rank->after = place->begin - first_begin(s->parts);
    s->compute = fsdp__step_computing_lane(s->parts, s->number);
    FSDP_TRY(list_edges(s, &edges, &count));
    for (int64_t i = 0; i < count; i++) {
        FSDP_TRY(pass(s, at, edges[i].at));
        turn(s, &edges[i]);
        at = edges[i].at;
    }
    return pass(s, at, place->end);
}

/* Adds what the rank waited for others to what they have caused. */
static void charge(fsdp__traced_step *step, const sweep *s)
{
    int64_t most = 0;

    s->rank->awaited = -1;
    for (int r = 0; r < step->trace.rank_count; r++) {
        step->ranks[r].caused += s->late[r];
        if (s->late[r] > most) {
            most = s->late[r];
            s->rank->awaited = r;
        }
    }
}

static void add_checkpoint(const fsdp__step_parts *p, int rank)
{
    const fsdp__step_place *place = &p->places[rank];

    for (int64_t i = place->first; i < place->last; i++) {
        const fsdp__traced_span *span = &p->step->trace.spans[i];
        int64_t begin = FSDP__MAX(span->begin, place->begin), end = FSDP__MIN(span->end, place->end);

        if (span->sort == FSDP__TRACED_CHECKPOINT && span->lane > 0 && begin < end)
            p->step->ranks[rank].checkpoint += end - begin;
    }
}

FSDP__ORDER_DOWN_BY(by_length, fsdp__step_wait, ns)

fsdp_status fsdp__step_find_activities(fsdp__step_parts *p)
{
    fsdp__traced_step *step = p->step;
    FSDP__FREED int64_t *late = fsdp__malloc((size_t)step->trace.rank_count * sizeof *late);

    FSDP__TRY_NEW(late);
    for (int r = 0; r < step->trace.rank_count; r++) {
        sweep s = {.parts = p, .rank = &step->ranks[r], .number = r, .late = late};

        memset(late, 0, (size_t)step->trace.rank_count * sizeof *late);
        FSDP_TRY(sweep_rank(&s));
        charge(step, &s);
        add_checkpoint(p, r);
        step->ns = FSDP__MAX(step->ns, step->ranks[r].after + step->ranks[r].ns);
    }
    if (step->wait_count > 0)
        qsort(step->waits, (size_t)step->wait_count, sizeof *step->waits, by_length);
    return FSDP_OK;
}

/* ---- who is slow, and in what ---- */

static int64_t time_of(const fsdp__step_parts *p, int rank, fsdp__step_reason reason)
{
    const int64_t *parts = p->step->ranks[rank].parts;

    switch (reason) {
    case FSDP__SLOW_IN_COMPUTING:
        return parts[FSDP__DOES_PRODUCTS] + parts[FSDP__DOES_ATTENTION] + parts[FSDP__DOES_OTHER] +
               parts[FSDP__DOES_OPTIMIZER] + parts[FSDP__DOES_COPIES];
    case FSDP__SLOW_IN_DATA:
        return parts[FSDP__WAITS_FOR_DATA];
    case FSDP__SLOW_IN_CHECKPOINT:
        return parts[FSDP__DOES_CHECKPOINT];
    case FSDP__SLOW_IN_HOST:
        return parts[FSDP__DOES_HOST];
    case FSDP__SLOW_IN_CALLS:
        return parts[FSDP__WAITS_FOR_GATHERS] + parts[FSDP__WAITS_FOR_REDUCTIONS] + parts[FSDP__WAITS_FOR_CALLS] -
               p->step->ranks[rank].for_others;
    case FSDP__SLOW_BETWEEN_STEPS:
        return p->step->ranks[rank].after;
    default:
        return 0;
    }
}

/* Returns the median over all ranks but one. */
static int64_t usual_time(const fsdp__step_parts *p, int64_t *room, int but, fsdp__step_reason reason)
{
    int count = 0;

    for (int r = 0; r < p->step->trace.rank_count; r++)
        if (r != but)
            room[count++] = time_of(p, r, reason);
    if (count > 0)
        qsort(room, (size_t)count, sizeof *room, fsdp__by_integer);
    return room[(count - 1) / 2];
}

fsdp_status fsdp__step_find_slowest(fsdp__step_parts *p)
{
    fsdp__traced_step *step = p->step;
    int count = step->trace.rank_count, most = 0;
    int64_t all = 0, least, *room;

    step->slowest = -1;
    for (int r = 0; r < count; r++) {
        all += step->ranks[r].caused;
        most = step->ranks[r].caused > step->ranks[most].caused ? r : most;
    }
    /* Most of the waiting is for this one, and it is worth a word: over a fiftieth of the others' time. */
    if (count < 2 || step->ranks[most].caused < 0.6 * (double)all || all < 0.02 * (double)step->ns * (count - 1))
        return FSDP_OK;
    room = fsdp__malloc((size_t)count * sizeof *room);
    FSDP__TRY_NEW(room);
    step->slowest = most;
    least = step->ranks[most].caused / (count - 1) / 4; /* what is less does not explain it */
    for (int reason = FSDP__SLOW_IN_COMPUTING; reason <= FSDP__SLOW_BETWEEN_STEPS; reason++) {
        int64_t its = time_of(p, most, (fsdp__step_reason)reason);
        int64_t usual = usual_time(p, room, most, (fsdp__step_reason)reason);

        if (its - usual > FSDP__MAX(least, step->its - step->usual)) {
            step->why = (fsdp__step_reason)reason;
            step->its = its;
            step->usual = usual;
        }
    }
    fsdp__free(room);
    return FSDP_OK;
}
