/* step_places.c - [Note: places of a step] in step_places.h. */
#include "device/step_places.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"

enum {
    MOST = 1 << 14,  /* requests of a step that are noted: choosing takes time with their square */
    AGAIN = 1 << 12, /* the same, if they are chosen in steps: 16 times less */
    LEFT_OUT = 64    /* requests that a step may leave out at once */
};

typedef fsdp__request request;
typedef fsdp__stay stay;

void fsdp__step_places_begin(fsdp__step_places *p)
{
    p->on = p->ended = true;
}

/* ---- what was expected ---- */

static bool is_asked_by(const request *r, fsdp__taker taker, fsdp_memory_kind kind)
{
    return r->kind == kind && r->taker.owner == taker.owner && r->taker.op == taker.op &&
           r->taker.backward == taker.backward;
}

const fsdp__request *fsdp__step_places_find(const fsdp__step_places *p, fsdp__taker taker, fsdp_memory_kind kind)
{
    int64_t next = p->ended ? p->live_ahead : p->next;
    int64_t end = FSDP__MIN(p->expected.count, next + (p->ended ? 1 : LEFT_OUT));

    while (next < end && !is_asked_by(&p->expected.items[next], taker, kind))
        next++;
    return next < end ? &p->expected.items[next] : NULL;
}

bool fsdp__step_places_lies_apart(const fsdp__step_places *p, const request *expected)
{
    return expected->until == INT64_MAX && (p->ended || p->expected.count > AGAIN);
}

/* Returns the room that a request needs if this step asks for `bytes` there. Sizes of activations and workspace vary
 * with the batch, so the most counts; otherwise the newest counts, as when buckets of gradients are made anew. */
static size_t most_of(const request *r, size_t bytes)
{
    bool varies = r->kind == FSDP_MEMORY_ACTIVATION || r->kind == FSDP_MEMORY_WORKSPACE;

    return varies ? FSDP__MAX(r->bytes, bytes) : bytes;
}

/* Notes how a request differs from the one that was expected. */
static void compare(fsdp__step_places *p, request *r, const request *expected)
{
    request *e = expected ? &p->expected.items[expected - p->expected.items] : NULL;

    r->match = e ? e - p->expected.items : -1;
    p->strange = p->strange || !e;
    if (!e)
        return;
    e->bytes = most_of(e, r->bytes);
    if (!fsdp__step_places_lies_apart(p, e))
        p->missed = p->missed || r->bytes > e->room || r->block->offset != e->place;
}

/* ---- the step that runs ---- */

/* Returns where requests are noted now. */
static fsdp__requests *notes(fsdp__step_places *p)
{
    return p->ended ? &p->ahead : &p->seen;
}

/* Forgets what was asked for ahead and has been given back; what is left is the front of the next step. */
static void forget(fsdp__step_places *p)
{
    p->live_ahead = 0;
    p->strange = p->missed = false;
    for (int64_t i = 0; i < p->ahead.count; i++) {
        request *r = &p->ahead.items[p->live_ahead];

        if (!p->ahead.items[i].block)
            continue;
        *r = p->ahead.items[i];
        compare(p, r, fsdp__step_places_find(p, r->taker, r->kind));
        r->block->request = -++p->live_ahead;
    }
    p->ahead.count = p->live_ahead;
}

fsdp_status fsdp__step_places_reserve(fsdp__step_places *p)
{
    fsdp__requests *to = notes(p);

    if (!p->on)
        return FSDP_OK;
    if (p->ended && to->count == MOST && p->live_ahead <= MOST / 2) /* less is not worth looking at all notes */
        forget(p);
    return to->count < MOST ? fsdp__grow(&to->items, to->count, &to->capacity, sizeof *to->items) : FSDP_OK;
}

void fsdp__step_places_note(fsdp__step_places *p, fsdp__block *b, const fsdp__request *expected)
{
    fsdp__requests *to = notes(p);
    request *r = &to->items[to->count];

    b->request = 0;
    p->missed = p->missed || to->count == MOST;
    if (!p->on || to->count == MOST)
        return;
    *r = (request){.taker = b->taker,
                   .kind = b->kind,
                   .bytes = b->bytes,
                   .from = p->moment++,
                   .until = INT64_MAX,
                   .forward = p->ended ? 0 : p->forwards,
                   .block = b};
    to->count++;
    b->request = p->ended ? -to->count : to->count;
    p->live_ahead += p->ended;
    if (p->ended)
        return;
    compare(p, r, expected);
    p->next = expected ? r->match + 1 : p->next;
}

void fsdp__step_places_note_return(fsdp__step_places *p, const fsdp__block *b)
{
    request *r;

    if (b->request == 0)
        return;
    r = b->request > 0 ? &p->seen.items[b->request - 1] : &p->ahead.items[-b->request - 1];
    p->live_ahead -= b->request < 0;
    r->until = p->moment++;
    r->block = NULL;
}

bool fsdp__step_places_may_return(fsdp__step_places *p)
{
    bool may = p->on && !p->ended && p->expected.count == 0 && !p->returned;

    p->returned = p->returned || may;
    return may;
}

void fsdp__step_places_end(fsdp__step_places *p)
{
    bool other = p->strange || p->missed, once = other && p->repeats && p->seen.count < p->expected.count;

    if (!p->on || p->ended || p->seen.count == 0)
        return;
    p->steps++;
    p->repeats = !other;
    p->disturbed = p->disturbed || (other && !once);
    p->choosing = !once && p->disturbed && p->steps >= p->again && p->seen.count < MOST;
    if (p->choosing) {
        p->disturbed = false;
        p->again = p->steps + p->steps / 2 + 1;
    }
    p->ended = true;
    p->ahead.count = p->live_ahead = 0;
}

void fsdp__step_places_go_on(fsdp__step_places *p)
{
    fsdp__requests done = p->seen;

    forget(p);
    for (int64_t i = 0; i < done.count; i++)
        if (done.items[i].block)
            done.items[i].block->request = 0;
    for (int64_t i = 0; i < p->ahead.count; i++)
        p->ahead.items[i].block->request = i + 1;
    p->seen = p->ahead;
    p->ahead = done;
    p->next = p->seen.count;
    p->forwards = 0;
    p->ended = p->renewed = false;
}

/* ---- choosing ---- */

/* Puts first what outlives the step, so that it lies together; then the largest, and the first of these. */
static int by_size(const void *left, const void *right)
{
    const request *a = *(request *const *)left, *b = *(request *const *)right;

    FSDP__ORDER_BY(b->until == INT64_MAX, a->until == INT64_MAX);
    FSDP__ORDER_BY(b->room, a->room);
    return FSDP__COMPARE(a->from, b->from);
}

/* Gives a request the lowest place where nothing lies while it lives, and puts it among those that have one, which are
 * in the order of their places. */
static void settle(stay *all, int64_t count, request *r, int64_t from, int64_t until)
{
    size_t place = 0;
    int64_t at = 0;

    for (int64_t i = 0; i < count; i++) {
        if (all[i].until <= from || until <= all[i].from)
            continue;
        if (all[i].place >= place + r->room)
            break;
        place = FSDP__MAX(place, all[i].end);
    }
    r->place = place;
    while (at < count && all[at].place < place)
        at++;
    memmove(all + at + 1, all + at, (size_t)(count - at) * sizeof *all);
    all[at] = (stay){place, place + r->room, from, until};
}

/* Expects what the step that has ended has asked for, with room for what others needed there. */
static void adopt(fsdp__step_places *p)
{
    fsdp__requests before = p->expected;

    for (int64_t i = 0; i < p->seen.count; i++) {
        request *r = &p->seen.items[i];

        if (r->match >= 0 && !p->strange)
            r->bytes = most_of(r, before.items[r->match].bytes);
        r->room = 0;
        if (r->block)
            r->block->request = 0;
        r->block = NULL;
    }
    p->expected = p->seen;
    p->seen = before;
    p->seen.count = 0;
}

/* Returns whether the microbatch of a forward is as long as that of a request, because both have asked for as much at
 * the same place. Then it is expected to grow with that one. */
static bool is_as_long(const fsdp__step_places *p, int64_t forward, const request *other)
{
    for (int64_t i = 0; forward != other->forward && i < p->expected.count; i++) {
        const request *e = &p->expected.items[i];

        if (e->forward == forward && e->bytes == other->bytes && is_asked_by(e, other->taker, other->kind))
            return true;
    }
    return forward == other->forward;
}

/* Says how much room all that is expected from the request `first` on needs, and lists what gets a place. */
static int64_t list_moving(fsdp__step_places *p, int64_t first, double scale, request **out)
{
    int64_t moving = 0, forward = -1;
    bool longer = false;

    p->carries = false;
    for (int64_t i = 0; i < p->expected.count; i++) {
        request *e = &p->expected.items[i];

        if (e->forward != forward)
            longer = scale > 1 && is_as_long(p, e->forward, &p->expected.items[first]);
        forward = e->forward;
        p->carries = p->carries || (e->until == INT64_MAX && p->expected.count <= AGAIN);
        if (i < first || (e->until == INT64_MAX && p->expected.count > AGAIN))
            continue;
        e->room = longer && e->kind == FSDP_MEMORY_ACTIVATION ? (size_t)((double)e->bytes * scale) : e->bytes;
        e->room = FSDP__ROUND_UP(e->room, FSDP__BLOCK_ALIGNMENT);
        out[moving++] = e;
    }
    return moving;
}

int64_t fsdp__step_places_most(const fsdp__step_places *p)
{
    return FSDP__MAX(p->seen.count, p->expected.count);
}

bool fsdp__step_places_are_small(const fsdp__step_places *p, const request *expected, size_t bytes)
{
    return !p->ended && expected->kind == FSDP_MEMORY_ACTIVATION && bytes > expected->room &&
           p->expected.count <= AGAIN;
}

bool fsdp__step_places_fix(fsdp__step_places *p, const fsdp__block *b, stay *out)
{
    int64_t match = p->ended || b->request == 0 ? -1 : p->seen.items[b->request - 1].match;
    request *e = match >= 0 ? &p->expected.items[match] : NULL;

    *out = (stay){b->offset, b->offset + b->bytes, INT64_MIN, e ? e->until : INT64_MAX};
    if (e && (b->offset != e->place || b->bytes > e->room)) {
        e->place = b->offset;
        e->room = b->bytes;
    }
    if (e)
        out->end = e->place + e->room;
    return b->request >= 0;
}

fsdp_status fsdp__step_places_choose(fsdp__step_places *p, int64_t first, double scale, stay *stays, int64_t count,
                                     size_t *top)
{
    FSDP__FREED request **order = fsdp__malloc((size_t)(fsdp__step_places_most(p) + 1) * sizeof *order);
    int64_t moving, front;

    FSDP__TRY_NEW(order);
    if (p->ended && (!p->repeats || p->seen.count < p->expected.count))
        adopt(p);
    /* At a forward, the front of the next step comes last: what lives then is all that is in its way. */
    front = first > 0 || p->ended ? 0 : p->next;
    moving = list_moving(p, first, scale, order);
    qsort(order, (size_t)moving, sizeof(request *), by_size);
    for (int64_t i = 0; i < moving; i++) {
        bool in_front = order[i] - p->expected.items < front;
        settle(stays, count++, order[i], in_front ? INT64_MAX - 1 : order[i]->from,
               in_front ? INT64_MAX : order[i]->until);
    }
    *top = 0;
    for (int64_t i = 0; i < count; i++)
        *top = FSDP__MAX(*top, stays[i].end);
    p->choosing = false;
    return FSDP_OK;
}

/* ---- what is asked for otherwise ---- */

static bool is_of(const request *r, const void *owner, fsdp_memory_kind kind)
{
    return r->taker.owner == owner && r->kind == kind;
}

bool fsdp__step_places_renew(fsdp__step_places *p, const void *owner, fsdp_memory_kind kind)
{
    bool any = false;

    for (int64_t i = p->ended ? p->expected.count : p->next; i < p->expected.count; i++)
        if (is_of(&p->expected.items[i], owner, kind)) {
            p->expected.items[i].bytes = 0;
            any = true;
        }
    p->renewed = p->renewed || any;
    p->disturbed = p->disturbed || any;
    return any;
}

bool fsdp__step_places_are_renewed(const fsdp__step_places *p, const void *owner, fsdp_memory_kind kind)
{
    int64_t i = p->renewed && !p->ended ? 0 : p->expected.count;

    while (i < p->expected.count && (p->expected.items[i].room > 0 || !is_of(&p->expected.items[i], owner, kind)))
        i++;
    return i < p->expected.count;
}

FSDP__ORDER_BY_ONE(by_place, stay, place)

size_t fsdp__step_places_beside(const fsdp__step_places *p, size_t bytes, stay *stays, int64_t count)
{
    size_t place = 0;

    for (int64_t i = p->next; i < p->expected.count; i++) {
        const request *e = &p->expected.items[i];

        if (e->room > 0)
            stays[count++] = (stay){e->place, e->place + e->room, e->from, e->until};
    }
    qsort(stays, (size_t)count, sizeof *stays, by_place);
    for (int64_t i = 0; i < count && stays[i].place < place + bytes; i++)
        place = FSDP__MAX(place, stays[i].end);
    return place;
}

void fsdp__step_places_release(fsdp__step_places *p)
{
    FSDP__FREE_ALL(p->seen.items, p->ahead.items, p->expected.items);
}
