/* step_places.c - [Note: places of a step] in step_places.h. */
#include "device/step_places.h"

#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/sort.h"

enum {
    MOST = 1 << 14 /* requests of a step that are noted: choosing takes time with their square */
};

typedef fsdp__request request;

/* ---- the step that runs ---- */

void fsdp__step_places_begin(fsdp__step_places *p)
{
    p->seen.count = 0;
    p->moment = 0;
    p->running = true;
    p->ended = p->differs = p->missed = false;
}

/* Returns where requests are noted now. */
static fsdp__requests *notes(fsdp__step_places *p)
{
    return p->ended ? &p->ahead : &p->seen;
}

fsdp_status fsdp__step_places_reserve(fsdp__step_places *p)
{
    fsdp__requests *to = notes(p);

    return p->running && to->count < MOST ? fsdp__grow(&to->items, to->count, &to->capacity, sizeof *to->items)
                                          : FSDP_OK;
}

/* Returns whether the request of that index, from 0, is another one than the step before had. */
static bool is_other(const fsdp__step_places *p, int64_t index, size_t bytes)
{
    return index >= p->expected.count || p->expected.items[index].bytes != bytes;
}

size_t fsdp__step_places_next(fsdp__step_places *p, size_t bytes)
{
    int64_t next = p->ended ? p->live_ahead : p->seen.count;
    bool other = is_other(p, next, bytes);

    if (!p->running || p->differs)
        return FSDP__NO_PLACE;
    p->differs = other && !p->ended;
    return other ? FSDP__NO_PLACE : p->expected.items[next].place;
}

int64_t fsdp__step_places_note(fsdp__step_places *p, size_t bytes)
{
    fsdp__requests *to = notes(p);

    if (!p->running)
        return 0;
    if (to->count == MOST) {
        p->missed = true;
        return 0;
    }
    p->live_ahead += p->ended;
    to->items[to->count++] =
        (request){.bytes = bytes, .place = FSDP__NO_PLACE, .from = p->moment++, .until = INT64_MAX};
    return p->ended ? -to->count : to->count;
}

void fsdp__step_places_note_return(fsdp__step_places *p, int64_t number)
{
    p->live_ahead -= number < 0;
    if (p->running && number != 0)
        (number > 0 ? &p->seen.items[number - 1] : &p->ahead.items[-number - 1])->until = p->moment++;
}

bool fsdp__step_places_may_return(fsdp__step_places *p)
{
    bool may = p->running && p->expected.count == 0 && !p->returned;

    p->returned = p->returned || may;
    return may;
}

void fsdp__step_places_end(fsdp__step_places *p)
{
    bool other = p->differs || p->seen.count != p->expected.count, first = other && p->repeats;

    if (!p->running || p->ended || p->seen.count == 0)
        return;
    p->steps++;
    p->repeats = !other;
    p->disturbed = p->disturbed || other || p->missed;
    p->choosing = !first && p->disturbed && p->steps >= p->again && p->seen.count < MOST;
    if (p->choosing) {
        p->disturbed = false;
        p->again = 2 * p->steps;
    }
    p->ended = true;
    p->differs = p->missed = false;
    p->ahead.count = p->live_ahead = 0;
}

/* ---- ahead of a step ---- */

bool fsdp__step_places_should_forget(const fsdp__step_places *p)
{
    return p->running && p->ended && p->ahead.count == MOST && p->live_ahead <= MOST / 2;
}

void fsdp__step_places_count_ahead(fsdp__step_places *p)
{
    int64_t live = 0;

    for (int64_t i = 0; i < p->ahead.count; i++) {
        p->ahead.items[i].live_before = live;
        live += p->ahead.items[i].until == INT64_MAX;
    }
}

int64_t fsdp__step_places_renumber(fsdp__step_places *p, int64_t number, size_t offset)
{
    int64_t index = p->ahead.items[-number - 1].live_before;

    p->missed = p->missed || index >= p->expected.count || p->expected.items[index].place != offset;
    return -index - 1;
}

void fsdp__step_places_forget(fsdp__step_places *p)
{
    int64_t count = 0;

    p->differs = false;
    for (int64_t i = 0; i < p->ahead.count; i++) {
        if (p->ahead.items[i].until != INT64_MAX)
            continue;
        p->differs = p->differs || is_other(p, count, p->ahead.items[i].bytes);
        p->ahead.items[count++] = p->ahead.items[i];
    }
    p->ahead.count = count;
}

void fsdp__step_places_go_on(fsdp__step_places *p)
{
    fsdp__requests done = p->seen;

    p->seen = p->ahead;
    p->ahead = done;
    p->ended = false;
}

/* ---- choosing ---- */

/* The largest first, and the first of these. */
static int by_size(const void *left, const void *right)
{
    const request *a = *(request *const *)left, *b = *(request *const *)right;

    FSDP__ORDER_BY(b->bytes, a->bytes);
    return FSDP__COMPARE(a->from, b->from);
}

/* Gives a request the lowest place where nothing lies while it lives, and puts it among those that have one, which are
 * in the order of their places. */
static void settle(request *all, int64_t count, request *r)
{
    size_t place = 0;
    int64_t at = 0;

    for (int64_t i = 0; i < count; i++) {
        if (all[i].until <= r->from || r->until <= all[i].from)
            continue;
        if (all[i].place >= place + r->bytes)
            break;
        place = FSDP__MAX(place, all[i].place + all[i].bytes);
    }
    r->place = place;
    while (at < count && all[at].place < place)
        at++;
    memmove(all + at + 1, all + at, (size_t)(count - at) * sizeof *all);
    all[at] = *r;
}

fsdp_status fsdp__step_places_choose(fsdp__step_places *p, const fsdp__requests *fixed, size_t *top)
{
    fsdp__requests seen = p->seen;
    int64_t count = fixed->count, moving = 0;
    FSDP__FREED request *all = fsdp__malloc((size_t)(count + seen.count + 1) * sizeof *all);
    FSDP__FREED request **order = fsdp__malloc((size_t)(seen.count + 1) * sizeof *order);

    FSDP__TRY_NEW(all && order);
    if (count > 0)
        memcpy(all, fixed->items, (size_t)count * sizeof *all);
    for (int64_t i = 0; i < seen.count; i++)
        if (seen.items[i].until != INT64_MAX)
            order[moving++] = &seen.items[i];
    qsort(order, (size_t)moving, sizeof(request *), by_size);
    for (int64_t i = 0; i < moving; i++)
        settle(all, count++, order[i]);
    *top = 0;
    for (int64_t i = 0; i < count; i++)
        *top = FSDP__MAX(*top, all[i].place + all[i].bytes);
    p->seen = p->expected;
    p->expected = seen;
    p->choosing = false;
    return FSDP_OK;
}

void fsdp__step_places_release(fsdp__step_places *p)
{
    FSDP__FREE_ALL(p->seen.items, p->ahead.items, p->expected.items);
}
