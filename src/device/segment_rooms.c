/* segment_rooms.c - finds and maps room for requests in segments that grow: where the least is to be mapped for one, or
 * where it has a place. */
#include "base/compiler.h"
#include "device/segments.h"

#define LARGE_SEGMENT FSDP__LARGE_SEGMENT
#define SEGMENT_STEP FSDP__SEGMENT_STEP

enum {
    FAR = 4 /* far above what has lived at once is more than a quarter of it */
};

typedef fsdp__block block;
typedef fsdp__memory_segment segment;

static size_t whole_steps(size_t bytes)
{
    return FSDP__ROUND_UP(bytes, SEGMENT_STEP);
}

/* ---- more memory ---- */

/* Cuts a block that is gone to `bytes`; returns the rest, or NULL. */
static block *divide_hole(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest = fsdp__block_divide(a, b, bytes);

    if (rest) {
        rest->gone = true;
        a->blocks.gone_count++;
    }
    return rest;
}

/* Widens a part of a block that is leaving, so that what lies beside it can still be returned alone. */
static void widen(const fsdp__allocator *a, const block *b, size_t *from, size_t *end)
{
    size_t low = b->offset, below = *from, above = *end, high = b->offset + b->bytes;

    a->source.fit(a->source.arg, b->segment->data, &low, &below);
    *from = low < below ? below : b->offset;
    a->source.fit(a->source.arg, b->segment->data, &above, &high);
    *end = above < high ? above : b->offset + b->bytes;
}

/* Maps again what was cut out of a place, in whole steps; what is leaving is mapped still. */
static fsdp_status fill(fsdp__allocator *a, block *b, size_t from, size_t end)
{
    from = FSDP__MAX(b->offset, from / SEGMENT_STEP * SEGMENT_STEP);
    end = FSDP__MIN(b->offset + b->bytes, whole_steps(end));
    if (b->leaving) {
        widen(a, b, &from, &end);
    } else {
        a->stats.system_allocations++;
        FSDP_TRY(a->source.grow(a->source.arg, b->segment->data, from, end - from));
    }
    if (from > b->offset)
        b = divide_hole(a, b, from - b->offset);
    (void)divide_hole(a, b, end - from);
    fsdp__poison(a, fsdp__block_address(b), b->bytes);
    a->leaving -= b->leaving ? b->bytes : 0;
    a->stats.reserved_bytes += b->leaving ? 0 : b->bytes;
    b->gone = b->leaving = false;
    a->blocks.gone_count--;
    fsdp__block_set_free(a, b);
    return FSDP_OK;
}

/* Makes a segment longer; the last block is free then. `reserve` must have been called. */
static fsdp_status lengthen(fsdp__allocator *a, segment *s, size_t more)
{
    block *end;

    a->stats.system_allocations++;
    FSDP_TRY(a->source.grow(a->source.arg, s->data, s->bytes, more));
    fsdp__poison(a, s->data + s->bytes, more);
    end = s->last->after = fsdp__block_take(&a->blocks);
    end->segment = s;
    end->offset = s->bytes;
    end->bytes = more;
    end->before = s->last;
    s->last = end;
    s->bytes += more;
    a->stats.reserved_bytes += more;
    fsdp__block_set_free(a, end);
    return FSDP_OK;
}

/* ---- where the least is to be mapped ---- */

/* Describes a part of a segment in which nothing lives. It may reach beyond the segment's end. */
typedef struct gap {
    segment *segment; /* NULL: there is none */
    size_t from, end;
    size_t lacks; /* bytes that are to be mapped there */
} gap;

/* Counts what is to be mapped in [from, end) of a segment, of which `b` is the first block that may reach into it. */
static size_t lacking_in(const segment *s, const block *b, size_t from, size_t end)
{
    size_t lacks = end - FSDP__MIN(s ? s->bytes : 0, end);

    for (; b && b->offset < end; b = b->after)
        if (b->gone && !b->leaving && b->offset + b->bytes > from)
            lacks += FSDP__MIN(b->offset + b->bytes, end) - FSDP__MAX(b->offset, from);
    return lacks;
}

/* Returns whether a live block reaches into [from, end) of a segment, of which `b` is the first that may. */
static bool is_taken(const block *b, size_t from, size_t end)
{
    while (b && b->offset < end && !(b->live && b->offset + b->bytes > from))
        b = b->after;
    return b && b->offset < end;
}

/* Compares a gap with the best one so far: that from a block on, or from the segment's end on (NULL). */
static void try_gap(segment *s, const block *b, size_t request, bool grows, gap *best)
{
    gap g = {.segment = s, .from = b ? b->offset : s->bytes};

    g.end = g.from + request;
    if (is_taken(b, g.from, g.end) || (!grows && g.end > s->bytes))
        return;
    g.lacks = lacking_in(s, b, g.from, g.end);
    if (!best->segment || g.lacks < best->lacks)
        *best = g;
}

/* Finds the gap of a pool where the least is to be mapped for a request. The newest segment can become longer. */
static gap find_gap(const fsdp__allocator *a, fsdp__pool in, size_t request)
{
    const segment *newest = fsdp__segments_newest(a, in);
    gap best = {.segment = NULL};

    for (segment *s = a->source.grow ? a->segments : NULL; s; s = s->next)
        for (const block *b = s->pool == in ? s->first : NULL; b; b = b->after)
            try_gap(s, b->live ? b->after : b, request, s == newest, &best);
    return best;
}

/* Makes one free block of a gap. `reserve` must have been called. FSDP_NOT_FOUND, without a message, where the
 * segment's addresses end before. */
static fsdp_status fill_gap(fsdp__allocator *a, const gap *g)
{
    for (block *b = g->segment->first; b && b->offset < g->end;) {
        size_t from = FSDP__MAX(b->offset, g->from), end = FSDP__MIN(b->offset + b->bytes, g->end);
        bool fills = b->gone && from < end;

        if (fills)
            FSDP_TRY(fill(a, b, from, end));
        b = fills ? g->segment->first : b->after; /* it has become one with its neighbours */
    }
    return g->end > g->segment->bytes ? lengthen(a, g->segment, whole_steps(g->end - g->segment->bytes)) : FSDP_OK;
}

/* Returns whether far more would be mapped with so many bytes, for a request, than has ever lived at once. */
static bool is_far_above(const fsdp__allocator *a, size_t lacking, size_t request)
{
    size_t most = FSDP__MAX(a->most, a->live + request);

    return a->stats.reserved_bytes + lacking > most + most / FAR + LARGE_SEGMENT;
}

/* Makes a free block of the pool that fits the request in a gap, or in a new segment where there is none. */
static fsdp_status map_gap(fsdp__allocator *a, fsdp__pool in, size_t request, const gap *g)
{
    fsdp_status status = g->segment ? fill_gap(a, g) : FSDP_NOT_FOUND;

    return status == FSDP_NOT_FOUND ? fsdp__segment_add(a, in, request) : status;
}

/* Makes such a block of another pool, in which memory lies free that cannot go back alone; gives the pool. */
static bool borrow(fsdp__allocator *a, size_t request, fsdp__pool *from)
{
    const fsdp__pool own = *from;
    bool held = fsdp_hold_error(true), found = false;

    for (int p = 0; p < FSDP__POOLS && !found; p++) {
        gap g = {.segment = NULL};

        if (p == (int)own || fsdp__blocks_reserve(&a->blocks) != FSDP_OK)
            continue;
        *from = (fsdp__pool)p;
        found = fsdp__blocks_best_fit(&a->blocks, *from, request) != NULL;
        if (!found)
            g = find_gap(a, *from, request);
        found = found || (g.segment && fill_gap(a, &g) == FSDP_OK);
    }
    fsdp_release_error(held);
    return found;
}

fsdp_status fsdp__segments_make_room(fsdp__allocator *a, fsdp__pool *in, size_t request)
{
    fsdp_status status;
    gap g;

    if (request > SIZE_MAX / 2)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%zu bytes are more than there are addresses", request);
    g = find_gap(a, *in, request);
    if (a->source.grow && is_far_above(a, g.segment ? g.lacks : request, request)) {
        FSDP_TRY(fsdp__segments_return_all(a)); /* or it is leaving: the request takes back what it needs of that */
        g = find_gap(a, *in, request);
    }
    status = map_gap(a, *in, request, &g);
    if (status == FSDP_NO_MEMORY && fsdp__segments_return_unused(a)) {
        g = find_gap(a, *in, request);
        status = map_gap(a, *in, request, &g);
    }
    return status == FSDP_NO_MEMORY && !a->waits && borrow(a, request, in) ? FSDP_OK : status;
}

/* ---- places of a step ---- */

/* Returns whether far more memory would be mapped at a place than has ever lived at once, as in steps that differ at
 * random. Then a free block elsewhere is better. Nothing is given back instead, since such steps would map five times
 * as often. */
static bool is_far(const fsdp__allocator *a, const segment *s, size_t place, size_t bytes)
{
    return is_far_above(a, lacking_in(s, s ? s->first : NULL, place, place + bytes), bytes);
}

/* Maps the memory that a place lacks, unless a live block is in the place. */
static fsdp_status map_place(fsdp__allocator *a, segment *s, size_t place, size_t bytes)
{
    const gap g = {.segment = s, .from = place, .end = place + bytes};

    if (!s)
        return fsdp__segment_add(a, FSDP__POOL_LARGE, g.end);
    return is_taken(s->first, g.from, g.end) ? FSDP_OK : fill_gap(a, &g);
}

fsdp_status fsdp__segments_room_at(fsdp__allocator *a, size_t place, size_t bytes, block **out)
{
    segment *s = fsdp__segments_newest(a, FSDP__POOL_LARGE);
    fsdp_status status;

    *out = s ? fsdp__blocks_free_at(&a->blocks, s, place, bytes) : NULL;
    if (*out || is_far(a, s, place, bytes))
        return FSDP_OK;
    status = map_place(a, s, place, bytes);
    s = fsdp__segments_newest(a, FSDP__POOL_LARGE);
    *out = status == FSDP_OK ? fsdp__blocks_free_at(&a->blocks, s, place, bytes) : NULL;
    return status == FSDP_NO_MEMORY || status == FSDP_NOT_FOUND ? FSDP_OK : status;
}
