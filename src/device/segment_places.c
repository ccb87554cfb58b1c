/* segment_places.c - chooses the places of a step, and returns what lies unused above them. */
#include "base/alloc.h"
#include "base/compiler.h"
#include "device/segments.h"

enum {
    MOST_LOWERINGS = 2 /* when places were chosen, and once more when the front has moved to its own */
};

typedef fsdp__block block;
typedef fsdp__memory_segment segment;

/* ---- what lies above them ---- */

/* Finds the part of a free block above `top` that can be returned. Where no memory that can be returned alone begins at
 * `top`, the part begins below it, and the next step maps again what it needs there. */
static bool can_lower(const fsdp__allocator *a, const block *b, size_t top, size_t *from, size_t *end)
{
    size_t first = FSDP__MAX(b->offset, top);

    *from = first;
    *end = b->offset + b->bytes;
    a->source.fit(a->source.arg, b->segment->data, from, end);
    if (*from > first) {
        *from = FSDP__MAX(b->offset, top - FSDP__MIN(top, FSDP__LARGE_SEGMENT));
        *end = b->offset + b->bytes;
        a->source.fit(a->source.arg, b->segment->data, from, end);
    }
    return *from < *end && *end == b->offset + b->bytes;
}

/* Takes addresses from the end of a segment, whose last block is not in the free array. */
static void shorten(fsdp__allocator *a, segment *s, size_t bytes)
{
    block *last = s->last;

    s->bytes -= bytes;
    last->bytes -= bytes;
    if (last->bytes > 0)
        return;
    s->last = last->before;
    s->last->after = NULL;
    fsdp__block_give(&a->blocks, last);
}

/* Takes the addresses of what is gone from the end of a segment, but for those below `top`. */
static void drop_end(fsdp__allocator *a, segment *s, size_t top)
{
    while (s->bytes > top && s->last->gone && !s->last->leaving && s->last->before) {
        size_t bytes = s->bytes - FSDP__MAX(top, s->last->offset);

        a->blocks.gone_count -= bytes == s->last->bytes;
        shorten(a, s, bytes);
    }
}

/* Takes what is unused above the places out of use, so that it is returned when no work uses it any more. */
static void return_end(fsdp__allocator *a)
{
    segment *s = fsdp__segments_newest(a, FSDP__POOL_LARGE);
    size_t top = FSDP__ROUND_UP(a->top, FSDP__SEGMENT_STEP), from, end;

    for (block *b = s ? s->last : NULL; b && !b->live && b->offset + b->bytes > top; b = b->before)
        if (!b->gone && can_lower(a, b, top, &from, &end) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK)
            b = fsdp__block_leave(a, b, from, end);
    fsdp__segments_let_go(a);
    if (s)
        drop_end(a, s, top);
}

/* Returns what is unused above the places, and waits for nothing. Where the front of this step lies in the way of other
 * places, a later step does it once more. A front that never gets its place would have it done in every step, and what
 * steps need above the places mapped again in each: so few steps do it. */
static void lower(fsdp__allocator *a)
{
    size_t before = a->stats.reserved_bytes - a->leaving;

    return_end(a);
    a->lowerings -= a->stats.reserved_bytes - a->leaving < before;
    if (a->lowerings == 0 || !a->places.missed)
        a->top = 0;
}

/* ---- places ---- */

static fsdp__stay *make_stays(const fsdp__allocator *a)
{
    return fsdp__malloc((a->blocks.live_count + (size_t)fsdp__step_places_most(&a->places) + 1) * sizeof(fsdp__stay));
}

static fsdp_status choose(fsdp__allocator *a, int64_t first, double scale, size_t *top)
{
    FSDP__FREED fsdp__stay *stays = make_stays(a);
    const segment *s = fsdp__segments_newest(a, FSDP__POOL_LARGE);
    int64_t fixed = 0;

    FSDP__TRY_NEW(stays);
    for (const block *b = s ? s->first : NULL; b; b = b->after)
        if (b->live)
            fixed += fsdp__step_places_fix(&a->places, b, &stays[fixed]);
    return fsdp__step_places_choose(&a->places, first, scale, stays, fixed, top);
}

fsdp_status fsdp__segments_make_places_for(fsdp__allocator *a, const fsdp__request *expected, size_t bytes)
{
    if (!fsdp__step_places_are_small(&a->places, expected, bytes))
        return FSDP_OK;
    a->places.disturbed = true; /* what lives is in the way now */
    /* A little more, because sizes are rounded. */
    return choose(a, expected - a->places.expected.items,
                  FSDP__MAX(1, 1.0005 * (double)bytes / (double)expected->bytes), &a->top);
}

fsdp_status fsdp__segments_renew(fsdp__allocator *a, const void *owner, fsdp_memory_kind kind)
{
    if (!fsdp__step_places_renew(&a->places, owner, kind))
        return FSDP_OK;
    FSDP_TRY(choose(a, a->places.next, 1, &a->top));
    FSDP_TRY(fsdp__blocks_reserve(&a->blocks));
    a->lowerings = MOST_LOWERINGS;
    lower(a);
    return FSDP_OK;
}

fsdp_status fsdp__segments_place_beside(const fsdp__allocator *a, size_t bytes, size_t *place)
{
    FSDP__FREED fsdp__stay *stays = make_stays(a);
    const segment *s = fsdp__segments_newest(a, FSDP__POOL_LARGE);
    int64_t count = 0;

    FSDP__TRY_NEW(stays);
    for (const block *b = s ? s->first : NULL; b; b = b->after)
        if (b->live)
            stays[count++] = (fsdp__stay){.place = b->offset, .end = b->offset + b->bytes};
    *place = fsdp__step_places_beside(&a->places, bytes, stays, count);
    return FSDP_OK;
}

fsdp_status fsdp__segments_note_forward(fsdp__allocator *a)
{
    size_t top = 0;

    a->places.forwards++;
    if (!a->places.ended)
        return FSDP_OK;
    if (a->places.choosing) {
        FSDP_TRY(choose(a, 0, 1, &a->top));
        a->top = FSDP__MAX(a->top, a->places.carries ? a->highest : 0);
        a->highest = 0;
        a->lowerings = MOST_LOWERINGS;
    }
    FSDP_TRY(fsdp__blocks_reserve(&a->blocks));
    fsdp__step_places_go_on(&a->places);
    if (a->top > 0)
        lower(a);
    if (a->places.carries)
        FSDP_TRY(choose(a, 0, 1, &top));
    a->highest = FSDP__MAX(a->highest, top);
    return FSDP_OK;
}
