/* trace_spans.c - pairs beginnings with ends.
 *
 * Each lane has a list of what is going on in it, the innermost first. What ends is mostly the innermost; it is looked
 * for further down where ends come in another order. Items of a stream are numbered, so what was issued to it is found
 * where it runs, even if the recording began in between. */
#include "watch/trace_spans.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/pointer_table.h"
#include "base/sort.h"

/* One end of an arrow. */
typedef struct flow_end {
    uint64_t item;
    int64_t span;
    uint16_t lane;
    bool runs;
} flow_end;

typedef struct lane_state {
    int64_t open;             /* the innermost span that goes on; -1: none */
    int64_t issue;            /* span of what this thread is issuing; -1 */
    const fsdp__note *issued; /* the last that was issued to this stream */
    uint64_t item;            /* of the stream, that nothing has run in yet; 0 */
} lane_state;

typedef struct maker {
    const fsdp__recorder *recorder;
    fsdp__trace_spans *out;
    lane_state lanes[FSDP__LANES];
    flow_end *ends;
    int64_t end_count, end_capacity;
    fsdp__pointer_table whole;   /* from units to their spans, + 1; 0: not whole */
    fsdp__pointer_table issuers; /* from notes of work to spans, + 1: where it was issued, or ran */
    fsdp__pointer_table events;  /* to the index of the note, + 1, that was issued last when they were recorded */
    int64_t activations;         /* by which these have grown */
    const fsdp__note *notes;
} maker;

static uint16_t lane_of(const fsdp__note *n)
{
    return n->lane ? n->lane : n->thread;
}

static fsdp_status add_span(maker *m, const fsdp__note *n, fsdp__span_kind kind, uint16_t lane, int64_t *index)
{
    fsdp__trace_spans *s = m->out;

    if (fsdp__grow(&s->spans, s->count, &s->capacity, sizeof *s->spans))
        return FSDP_NO_MEMORY;
    s->spans[s->count] = (fsdp__trace_span){
        .begin = n->ns, .end = n->ns, .note = n, .below = -1, .kind = kind, .lane = lane, .unfinished = true};
    *index = s->count++;
    return FSDP_OK;
}

static fsdp_status add_end(maker *m, uint64_t item, int64_t span, uint16_t lane, bool runs)
{
    if (fsdp__grow(&m->ends, m->end_count, &m->end_capacity, sizeof *m->ends))
        return FSDP_NO_MEMORY;
    m->ends[m->end_count++] = (flow_end){item, span, lane, runs};
    return FSDP_OK;
}

/* ---- what begins and ends ---- */

static fsdp_status begin(maker *m, const fsdp__note *n, fsdp__span_kind kind)
{
    uint16_t at = lane_of(n);
    lane_state *lane = &m->lanes[at];
    int64_t index;

    FSDP_TRY(add_span(m, n, kind, at, &index));
    m->out->spans[index].kept = m->activations;
    m->out->spans[index].below = lane->open;
    lane->open = index;
    if (n->lane == 0 || lane->item == 0)
        return FSDP_OK;
    FSDP_TRY(add_end(m, lane->item, index, at, true));
    lane->item = 0;
    return FSDP_OK;
}

/* Returns whether the note is the end of the span. */
static bool ends(const fsdp__trace_span *s, const fsdp__note *n, fsdp__span_kind kind, uint8_t begun)
{
    const fsdp__note *b = s->note;

    if (s->kind != kind)
        return false;
    if (kind != FSDP__SPAN_WORK)
        return b->number == n->number;
    return b->point == begun && b->kind == n->kind && b->name == n->name &&
           (begun == FSDP__POINT_KERNEL_BEGUN || b->number == n->number);
}

static void end(maker *m, const fsdp__note *n, fsdp__span_kind kind, uint8_t begun)
{
    int64_t *link = &m->lanes[lane_of(n)].open;

    while (*link >= 0 && !ends(&m->out->spans[*link], n, kind, begun))
        link = &m->out->spans[*link].below;
    if (*link >= 0) {
        fsdp__trace_span *s = &m->out->spans[*link];

        s->end = FSDP__MAX(n->ns, s->begin);
        s->unfinished = false;
        s->kept = m->activations - s->kept;
        *link = s->below;
    }
}

/* ---- units ---- */

static fsdp_status follow_whole(maker *m, const fsdp__note *n, bool begins)
{
    int64_t *place = fsdp__pointer_table_at(&m->whole, (const void *)(uintptr_t)n->number), index;

    FSDP__TRY_NEW(place);
    if (begins == (*place > 0))
        return FSDP_OK;
    if (begins) {
        FSDP_TRY(add_span(m, n, FSDP__SPAN_WHOLE, n->thread, &index));
        m->out->spans[index].apart = true;
        *place = index + 1;
        return FSDP_OK;
    }
    m->out->spans[*place - 1].end = n->ns;
    m->out->spans[*place - 1].unfinished = false;
    *place = 0;
    return FSDP_OK;
}

static fsdp_status follow_unit(maker *m, const fsdp__note *n)
{
    const char *event = fsdp__recorder_name(m->recorder, n->label);

    if (strcmp(event, "unshard") == 0 || strcmp(event, "reshard") == 0)
        return follow_whole(m, n, event[0] == 'u');
    if (strcmp(event, "pre_forward") == 0 || strcmp(event, "pre_backward") == 0)
        return begin(m, n, event[4] == 'f' ? FSDP__SPAN_FORWARD : FSDP__SPAN_BACKWARD);
    if (strcmp(event, "post_forward") == 0)
        end(m, n, FSDP__SPAN_FORWARD, 0);
    else if (strcmp(event, "post_backward") == 0)
        end(m, n, FSDP__SPAN_BACKWARD, 0);
    return FSDP_OK;
}

/* ---- streams ---- */

static fsdp_status issue(maker *m, const fsdp__note *n)
{
    FSDP_TRY(add_span(m, n, FSDP__SPAN_ISSUE, n->thread, &m->lanes[n->thread].issue));
    m->lanes[n->lane].issued = n;
    return FSDP_OK;
}

/* Ends the issue that the thread was about, with the next item that it queues. */
static fsdp_status queue(maker *m, const fsdp__note *n)
{
    int64_t index = m->lanes[n->thread].issue;

    m->lanes[n->thread].issue = -1;
    if (index < 0 || m->out->spans[index].note->lane != n->lane)
        return FSDP_OK;
    m->out->spans[index].end = n->ns;
    m->out->spans[index].unfinished = false;
    return add_end(m, n->number, index, n->lane, false);
}

static fsdp_status record_event(maker *m, const fsdp__note *n)
{
    int64_t *place = fsdp__pointer_table_at(&m->events, (const void *)(uintptr_t)n->number);
    const fsdp__note *issued = m->lanes[n->lane].issued;

    FSDP__TRY_NEW(place);
    *place = issued ? issued - m->notes + 1 : 0;
    return FSDP_OK;
}

static fsdp_status wait(maker *m, const fsdp__note *n)
{
    const void *event = (const void *)(uintptr_t)n->bytes;
    int64_t index, found = event ? fsdp__pointer_table_find(&m->events, event) : 0;
    fsdp__trace_span *s;

    FSDP_TRY(add_span(m, n, FSDP__SPAN_WAIT, n->thread, &index));
    s = &m->out->spans[index];
    s->begin = (int64_t)n->number;
    s->unfinished = false;
    s->other = found ? &m->notes[found - 1] : n->lane ? m->lanes[n->lane].issued : NULL;
    return FSDP_OK;
}

/* ---- a GPU's own record ---- */

static fsdp_status add_activity(maker *m, const fsdp__note *n)
{
    int64_t index;

    FSDP_TRY(add_span(m, n, FSDP__SPAN_ACTIVITY, n->lane, &index));
    m->out->spans[index].end = (int64_t)n->number;
    m->out->spans[index].unfinished = false;
    return FSDP_OK;
}

static fsdp_status add_arrow(maker *m, int64_t from, int64_t to)
{
    fsdp__trace_spans *s = m->out;

    if (fsdp__grow(&s->arrows, s->arrow_count, &s->arrow_capacity, sizeof *s->arrows))
        return FSDP_NO_MEMORY;
    s->arrows[s->arrow_count++] = (fsdp__trace_arrow){from, to};
    return FSDP_OK;
}

/* Adds the arrows to a GPU's activities: from the slice of the host that issued them, where there is one, or from what
 * ran in the stream. */
static fsdp_status join_activities(maker *m)
{
    fsdp__trace_spans *s = m->out;
    int64_t joined = s->arrow_count, *place;

    for (int64_t i = 0; i < s->count; i++)
        if (s->spans[i].kind == FSDP__SPAN_WORK) {
            FSDP__TRY_NEW(place = fsdp__pointer_table_at(&m->issuers, s->spans[i].note));
            *place = i + 1;
        }
    for (int64_t i = 0; i < joined; i++) {
        FSDP__TRY_NEW(place = fsdp__pointer_table_at(&m->issuers, s->spans[s->arrows[i].to].note));
        *place = s->arrows[i].from + 1;
    }
    for (int64_t i = 0; i < s->count; i++) {
        uint32_t issuer = s->spans[i].kind == FSDP__SPAN_ACTIVITY ? s->spans[i].note->label : 0;
        int64_t from = issuer > 0 ? fsdp__pointer_table_find(&m->issuers, &m->notes[issuer - 1]) : 0;

        if (from > 0)
            FSDP_TRY(add_arrow(m, from - 1, i));
    }
    return FSDP_OK;
}

/* ---- notes ---- */

static fsdp_status read_note(maker *m, const fsdp__note *n)
{
    switch (n->point) {
    case FSDP__POINT_KERNEL_ISSUED:
    case FSDP__POINT_COPY_ISSUED:
    case FSDP__POINT_COLLECTIVE_ISSUED:
        return issue(m, n);
    case FSDP__POINT_ITEM_QUEUED:
        return queue(m, n);
    case FSDP__POINT_ITEM_BEGUN:
        m->lanes[n->lane].item = n->number;
        return FSDP_OK;
    case FSDP__POINT_ITEM_DONE:
        m->lanes[n->lane].item = 0;
        return FSDP_OK;
    case FSDP__POINT_EVENT_RECORDED:
        return record_event(m, n);
    case FSDP__POINT_EVENT_AWAITED:
    case FSDP__POINT_EVENT_REACHED:
    case FSDP__POINT_STREAM_REACHED:
        return wait(m, n);
    case FSDP__POINT_SHARD_CHANGED:
        return follow_unit(m, n);
    case FSDP__POINT_MEMORY_COUNTED:
        m->activations += n->kind == FSDP_MEMORY_ACTIVATION ? (int64_t)n->number : 0;
        return FSDP_OK;
    case FSDP__POINT_KERNEL_BEGUN:
    case FSDP__POINT_COPY_BEGUN:
    case FSDP__POINT_COLLECTIVE_BEGUN:
    case FSDP__POINT_STAGE_BEGUN:
    case FSDP__POINT_STEP_BEGUN:
    case FSDP__POINT_BATCH_BEGUN:
    case FSDP__POINT_PART_BEGUN:
        return begin(m, n, FSDP__SPAN_WORK);
    case FSDP__NOTE_ACTIVITY:
        return add_activity(m, n);
    case FSDP__NOTE_LEDGER:
    case FSDP__NOTE_OWNED:
        return FSDP_OK;
    default: /* each DONE stands behind its BEGUN */
        end(m, n, FSDP__SPAN_WORK, (uint8_t)(n->point - 1));
        return FSDP_OK;
    }
}

/* ---- order ---- */

static int compare_spans(const void *a, const void *b)
{
    const fsdp__trace_span *x = a, *y = b;

    FSDP__ORDER_BY(x->lane, y->lane);
    FSDP__ORDER_BY(x->begin, y->begin);
    FSDP__ORDER_BY(y->end, x->end);
    return FSDP__COMPARE(x->note, y->note);
}

/* Finds those that overlap others without lying in them: a row cannot show both. */
static void set_apart(fsdp__trace_spans *s)
{
    int64_t top = -1; /* the innermost that contains what comes next; `below` has those around it */

    for (int64_t i = 0; i < s->count; i++) {
        fsdp__trace_span *span = &s->spans[i];

        if (span->apart)
            continue;
        while (top >= 0 && (s->spans[top].lane != span->lane || s->spans[top].end <= span->begin))
            top = s->spans[top].below;
        if (top >= 0 && s->spans[top].end < span->end) {
            span->apart = true;
            continue;
        }
        span->below = top;
        top = i;
    }
}

FSDP__ORDER_BY_THREE(compare_ends, flow_end, lane, item, runs)

/* Sorts the spans, and sets the ends of arrows to where they have gone. */
static fsdp_status sort(maker *m)
{
    fsdp__trace_spans *s = m->out;
    FSDP__FREED int64_t *moved = fsdp__malloc((size_t)s->count * sizeof *moved);

    FSDP__TRY_NEW(moved);
    for (int64_t i = 0; i < s->count; i++)
        s->spans[i].below = i;
    if (s->count > 0)
        qsort(s->spans, (size_t)s->count, sizeof *s->spans, compare_spans);
    for (int64_t i = 0; i < s->count; i++)
        moved[s->spans[i].below] = i;
    for (int64_t i = 0; i < m->end_count; i++)
        m->ends[i].span = moved[m->ends[i].span];
    set_apart(s);
    return FSDP_OK;
}

static fsdp_status join_ends(maker *m)
{
    if (m->end_count > 0)
        qsort(m->ends, (size_t)m->end_count, sizeof *m->ends, compare_ends);
    for (int64_t i = 0; i + 1 < m->end_count; i++) {
        const flow_end *from = &m->ends[i], *to = from + 1;

        if (from->runs || !to->runs || from->lane != to->lane || from->item != to->item)
            continue;
        FSDP_TRY(add_arrow(m, from->span, to->span));
    }
    return FSDP_OK;
}

/* Lets what still goes on end where the recording did. */
static void end_all(fsdp__trace_spans *s)
{
    for (int64_t i = 0; i < s->count; i++)
        if (s->spans[i].unfinished)
            s->spans[i].end = s->spans[i].kind == FSDP__SPAN_ISSUE ? s->spans[i].begin : s->last_ns;
}

static fsdp_status make(maker *m)
{
    int64_t count = 0;

    m->notes = fsdp__recorder_notes(m->recorder, &count);
    for (int i = 0; i < FSDP__LANES; i++)
        m->lanes[i] = (lane_state){.open = -1, .issue = -1};
    for (int64_t i = 0; i < count; i++)
        m->out->last_ns = FSDP__MAX(m->out->last_ns, m->notes[i].ns);
    for (int64_t i = 0; i < count; i++)
        FSDP_TRY(read_note(m, &m->notes[i]));
    end_all(m->out);
    FSDP_TRY(sort(m));
    FSDP_TRY(join_ends(m));
    return join_activities(m);
}

fsdp_status fsdp__trace_spans_create(const fsdp__recorder *recorder, fsdp__trace_spans *out)
{
    FSDP__FREED maker *m = fsdp__calloc(1, sizeof *m);
    fsdp_status status;

    *out = (fsdp__trace_spans){.spans = NULL};
    FSDP__TRY_NEW(m);
    m->recorder = recorder;
    m->out = out;
    status = make(m);
    fsdp__pointer_table_release(&m->whole);
    fsdp__pointer_table_release(&m->events);
    fsdp__pointer_table_release(&m->issuers);
    fsdp__free(m->ends);
    return status;
}

void fsdp__trace_spans_release(fsdp__trace_spans *s)
{
    FSDP__FREE_ALL(s->spans, s->arrows);
    *s = (fsdp__trace_spans){.spans = NULL};
}
