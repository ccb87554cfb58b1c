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

/* Makes the newest segment of a pool longer, so that its last block, but for what is leaving, is free and has room for
 * the request. `reserve` must have been called. FSDP_NOT_FOUND, without a message, where none can. */
static fsdp_status segment_grow(fsdp__allocator *a, fsdp__pool in, size_t request)
{
    segment *s = a->source.grow ? fsdp__segments_newest(a, in) : NULL;
    block *leaving = s && s->last->leaving ? s->last : NULL;
    const block *end = leaving ? leaving->before : s ? s->last : NULL;
    size_t lacks = whole_steps(request - (end && fsdp__block_is_free(end) ? end->bytes : 0));
    size_t back = leaving ? FSDP__MIN(lacks, leaving->bytes) : 0;

    if (!s)
        return FSDP_NOT_FOUND;
    if (back > 0)
        FSDP_TRY(fill(a, leaving, leaving->offset, leaving->offset + back));
    return back < lacks ? lengthen(a, s, lacks - back) : FSDP_OK;
}

/* Returns the smallest block of a pool that is leaving and has room for a request; NULL: none has. */
static block *leaving_fit(const fsdp__allocator *a, fsdp__pool in, size_t request)
{
    block *best = NULL;

    for (const segment *s = a->leaving > 0 ? a->segments : NULL; s; s = s->next)
        for (block *b = s->pool == in ? s->first : NULL; b; b = b->after)
            if (b->leaving && b->bytes >= request && (!best || b->bytes < best->bytes))
                best = b;
    return best;
}

/* Returns whether far more would be mapped with so many bytes, for a request, than has ever lived at once. */
static bool is_far_above(const fsdp__allocator *a, size_t lacking, size_t request)
{
    size_t most = FSDP__MAX(a->most, a->live + request);

    return a->stats.reserved_bytes + lacking > most + most / FAR + LARGE_SEGMENT;
}

/* Takes back all that is leaving of a pool. It is free then, with what is free beside it. */
static void take_back(fsdp__allocator *a, fsdp__pool in)
{
    for (segment *s = a->segments; s; s = s->next)
        for (block *b = s->pool == in ? s->first : NULL; b; b = b->after)
            if (b->leaving && fill(a, b, b->offset, b->offset + b->bytes) == FSDP_OK)
                b = s->first; /* it may have become one with others */
}

fsdp_status fsdp__segments_make_room(fsdp__allocator *a, fsdp__pool in, size_t request)
{
    block *leaving = leaving_fit(a, in, request);
    fsdp_status status;

    if (leaving)
        return fill(a, leaving, leaving->offset, leaving->offset + request);
    if (a->leaving > 0 && is_far_above(a, request, request)) {
        take_back(a, in);
        if (fsdp__blocks_best_fit(&a->blocks, in, request))
            return FSDP_OK;
    }
    if (request > SIZE_MAX - SEGMENT_STEP)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%zu bytes are more than there are addresses", request);
    status = segment_grow(a, in, request);
    if (status == FSDP_NO_MEMORY && fsdp__segments_return_unused(a))
        status = segment_grow(a, in, request);
    return status == FSDP_NOT_FOUND ? fsdp__segment_add(a, in, request) : status;
}

/* ---- places of a step ---- */

/* Returns whether a live block reaches into [place, end) of a segment; gives what was cut out there, or NULL. */
static bool is_taken(const segment *s, size_t place, size_t end, block **hole)
{
    *hole = NULL;
    for (block *b = s->first; b && b->offset < end; b = b->after) {
        if (b->offset + b->bytes <= place)
            continue;
        if (b->live)
            return true;
        *hole = b->gone ? b : *hole;
    }
    return false;
}

/* Returns whether far more memory would be mapped at a place than has ever lived at once, as in steps that differ at
 * random. Then a free block elsewhere is better. Nothing is given back instead, because work may still use it, which
 * may wait for another rank. */
static bool is_far(const fsdp__allocator *a, const segment *s, size_t place, size_t bytes)
{
    size_t end = place + bytes;
    size_t lacking = end - FSDP__MIN(s ? s->bytes : 0, end);

    for (const block *b = s ? s->first : NULL; b && b->offset < end; b = b->after)
        if (b->gone && !b->leaving && b->offset + b->bytes > place)
            lacking += FSDP__MIN(b->offset + b->bytes, end) - FSDP__MAX(b->offset, place);
    return is_far_above(a, lacking, bytes);
}

/* Maps the memory that a place lacks, unless a live block is in the place. */
static fsdp_status map_place(fsdp__allocator *a, segment *s, size_t place, size_t bytes)
{
    size_t end = place + bytes;
    block *hole;
    bool taken;

    if (!s)
        return fsdp__segment_add(a, FSDP__POOL_LARGE, end);
    while (!(taken = is_taken(s, place, end, &hole)) && hole)
        FSDP_TRY(fill(a, hole, place, end));
    return taken || end <= s->bytes ? FSDP_OK : lengthen(a, s, whole_steps(end - s->bytes));
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
