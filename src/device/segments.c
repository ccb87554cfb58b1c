/* segments.c - segments come, grow, lose what lies unused in them, and go; where a request has a place, memory is
 * mapped there. */
#include "device/segments.h"

#include "base/alloc.h"

#define SMALL_SEGMENT ((size_t)2 << 20)
#define LARGE_SEGMENT FSDP__LARGE_SEGMENT
#define SEGMENT_STEP FSDP__SEGMENT_STEP

enum {
    FAR = 4 /* far above what has lived at once is more than a quarter of it */
};

typedef fsdp__block block;
typedef fsdp__memory_segment segment;

/* ---- segments ---- */

static void segment_release(fsdp__allocator *a, segment *s)
{
    fsdp__unpoison(a, s->data, s->bytes); /* the address range may come back as someone else's */
    a->source.free(a->source.arg, s->data, s->bytes);
    a->stats.reserved_bytes -= s->bytes;
    fsdp__free(s);
}

/* ---- what work no longer uses ---- */

fsdp__past fsdp__segments_issued(const fsdp__allocator *a)
{
    return (fsdp__past){a->given, a->source.done ? a->source.done(a->source.arg) : UINT64_MAX};
}

void fsdp__segments_learn(fsdp__allocator *a, fsdp__past past)
{
    if (past.given >= a->known.given)
        a->known = past;
}

/* Learns what was asked about; returns whether the device has got there now. */
static bool hear(fsdp__allocator *a)
{
    if (!a->moment || !a->moment->reached(a->moment))
        return false;
    fsdp__segments_learn(a, a->ahead);
    fsdp__moment_unref(a->moment);
    a->moment = NULL;
    return true;
}

/* Where work is done when it is issued, nothing else needs to be known. */
static fsdp__past known(const fsdp__allocator *a)
{
    return a->source.issued ? a->known : fsdp__segments_issued(a);
}

static bool is_past(fsdp__past past, const block *b)
{
    return b->given <= past.given && b->used_until <= past.queued;
}

/* ---- what is unused ---- */

/* Returns whether nothing in a segment lives. */
static bool is_unused(const segment *s)
{
    const block *b = s->first;

    while (b && !b->live)
        b = b->after;
    return !b;
}

/* Returns whether all work that has used a segment is past. */
static bool is_done(const segment *s, fsdp__past past)
{
    const block *b = s->first;

    while (b && is_past(past, b))
        b = b->after;
    return !b;
}

/* Gives up the blocks of a segment in which none is live, gone ones included, and returns it to the backend. */
static void segment_drop(fsdp__allocator *a, segment *s)
{
    for (block *b = s->first, *after; b; b = after) {
        after = b->after;
        if (b->gone) {
            a->blocks.gone_count--;
            a->leaving -= b->leaving ? b->bytes : 0;
            a->stats.reserved_bytes += b->leaving ? 0 : b->bytes; /* which the segment's bytes have */
        } else {
            fsdp__blocks_free_remove(&a->blocks, b);
        }
        fsdp__block_give(&a->blocks, b);
    }
    segment_release(a, s);
}

/* Returns the segments without a live block to the backend, if all work that has used them is past. Only then are the
 * addresses free of what was cut out of them, and a process has only so many addresses. */
static void trim(fsdp__allocator *a, fsdp__past past)
{
    for (segment **link = &a->segments; *link;) {
        segment *s = *link;

        if (!is_unused(s) || !is_done(s, past)) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        segment_drop(a, s);
    }
}

/* Cuts `b` to `bytes`, and returns a block of the rest, of which nobody knows yet; NULL: there is none. */
static block *divide(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest;

    if (b->bytes == bytes)
        return NULL;
    rest = fsdp__block_take(&a->blocks);
    rest->segment = b->segment;
    rest->offset = b->offset + bytes;
    rest->bytes = b->bytes - bytes;
    rest->before = b;
    rest->after = b->after;
    rest->used_until = b->used_until;
    rest->given = b->given;
    rest->leaving = b->leaving;
    if (b->after)
        b->after->before = rest;
    else
        b->segment->last = rest;
    b->after = rest;
    b->bytes = bytes;
    return rest;
}

void fsdp__block_split(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest = divide(a, b, bytes);

    if (rest)
        fsdp__blocks_free_insert(&a->blocks, rest);
}

fsdp__block *fsdp__block_split_at(fsdp__allocator *a, block *b, size_t offset)
{
    fsdp__blocks_free_remove(&a->blocks, b);
    if (offset > b->offset) {
        fsdp__block_split(a, b, offset - b->offset);
        fsdp__blocks_free_insert(&a->blocks, b);
        b = b->after;
        fsdp__blocks_free_remove(&a->blocks, b);
    }
    return b;
}

/* Merges `left` with its right neighbour; neither is in the free array. */
static void merge(fsdp__allocator *a, block *left, block *right)
{
    left->bytes += right->bytes;
    left->after = right->after;
    left->used_until = FSDP__MAX(left->used_until, right->used_until);
    left->given = FSDP__MAX(left->given, right->given);
    if (right->after)
        right->after->before = left;
    else
        left->segment->last = left;
    fsdp__block_give(&a->blocks, right);
}

void fsdp__block_set_free(fsdp__allocator *a, block *b)
{
    /* Take neighbours out of the array before they grow: it is sorted by size. */
    if (b->after && fsdp__block_is_free(b->after)) {
        fsdp__blocks_free_remove(&a->blocks, b->after);
        merge(a, b, b->after);
    }
    if (b->before && fsdp__block_is_free(b->before)) {
        fsdp__blocks_free_remove(&a->blocks, b->before);
        b = b->before;
        merge(a, b, b->after);
    }
    fsdp__blocks_free_insert(&a->blocks, b);
}

/* Returns whether memory of a free block can be given back alone: that of [*from, *end) in its segment. */
static bool can_cut(const fsdp__allocator *a, const block *b, size_t *from, size_t *end)
{
    *from = b->offset;
    *end = b->offset + b->bytes;
    if (!a->source.cut || !fsdp__block_is_free(b) || b->bytes < SEGMENT_STEP)
        return false;
    a->source.fit(a->source.arg, b->segment->data, from, end);
    return *from < *end;
}

static bool are_alike(const block *b, const block *other)
{
    return other && other->gone && other->leaving == b->leaving;
}

/* Makes one of a block that is gone and its neighbours that are as well; returns it. */
static block *join_gone(fsdp__allocator *a, block *b)
{
    block *first = are_alike(b, b->before) ? b->before : b;

    while (are_alike(first, first->after)) {
        merge(a, first, first->after);
        a->blocks.gone_count--;
    }
    return first;
}

block *fsdp__block_leave(fsdp__allocator *a, block *b, size_t from, size_t end)
{
    b = fsdp__block_split_at(a, b, from);
    fsdp__block_split(a, b, end - from);
    b->gone = b->leaving = true;
    a->blocks.gone_count++;
    a->leaving += end - from;
    return join_gone(a, b);
}

/* Returns a block that is leaving; gives the one that is there then. */
static block *unmap(fsdp__allocator *a, block *b)
{
    a->source.cut(a->source.arg, b->segment->data, b->offset, b->offset + b->bytes);
    a->leaving -= b->bytes;
    a->stats.reserved_bytes -= b->bytes;
    b->leaving = false;
    return join_gone(a, b);
}

void fsdp__segments_let_go(fsdp__allocator *a)
{
    fsdp__past past = known(a);

    for (segment *s = a->leaving > 0 ? a->segments : NULL; s; s = s->next)
        for (block *b = s->first; b; b = b->after)
            if (b->leaving && is_past(past, b))
                b = unmap(a, b);
}

/* Takes out of use what lies unused between blocks of segments that grow: a request that does not fit there can have it
 * elsewhere. */
static void cut_holes(fsdp__allocator *a, fsdp__past past)
{
    size_t from, end;

    for (segment *s = a->source.cut ? a->segments : NULL; s; s = s->next)
        for (block *b = s->first; b; b = b->after)
            if (is_past(past, b) && can_cut(a, b, &from, &end) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK)
                b = fsdp__block_leave(a, b, from, end);
}

bool fsdp__segments_have_unused(const fsdp__allocator *a)
{
    size_t from, end;

    for (const segment *s = a->segments; s; s = s->next)
        for (const block *b = s->first; b; b = b->after)
            if (b->leaving || (fsdp__block_is_free(b) && (b->bytes == s->bytes || can_cut(a, b, &from, &end))))
                return true;
    return false;
}

bool fsdp__segments_shrink(fsdp__allocator *a)
{
    size_t before = a->stats.reserved_bytes;
    fsdp__past past = known(a);

    trim(a, past);
    cut_holes(a, past);
    fsdp__segments_let_go(a);
    return a->stats.reserved_bytes < before;
}

fsdp_status fsdp__segments_return_all(fsdp__allocator *a)
{
    trim(a, known(a));
    cut_holes(a, (fsdp__past){UINT64_MAX, UINT64_MAX});
    fsdp__segments_let_go(a);
    return fsdp__blocks_reserve(&a->blocks);
}

bool fsdp__segments_may_ask(const fsdp__allocator *a)
{
    return a->source.issued && a->leaving > 0 && !a->moment;
}

void fsdp__segments_go_on(fsdp__allocator *a)
{
    if (a->leaving > 0 && (!a->source.issued || hear(a)))
        fsdp__segments_let_go(a);
}

static bool is_owed(const fsdp__allocator *a)
{
    return a->source.owed && a->source.owed(a->source.arg);
}

bool fsdp__segments_may_settle(const fsdp__allocator *a)
{
    return a->behind && a->source.settle && (fsdp__segments_have_unused(a) || is_owed(a));
}

/* Returns unused memory to the backend; returns whether there was any, and room for a request was made again. */
static bool return_unused(fsdp__allocator *a)
{
    a->waits = !a->settled && fsdp__segments_may_settle(a);
    return !a->waits && fsdp__segments_shrink(a) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK;
}

static size_t whole_steps(size_t bytes)
{
    return FSDP__ROUND_UP(bytes, SEGMENT_STEP);
}

/* Adds a segment as one free block. `reserve` must have been called. */
static fsdp_status segment_add(fsdp__allocator *a, fsdp__pool to, size_t request)
{
    size_t least = to == FSDP__POOL_SMALL ? SMALL_SEGMENT : a->source.grow ? 0 : LARGE_SEGMENT;
    size_t bytes = whole_steps(FSDP__MAX(least, request));
    segment *s;
    void *data = NULL;
    fsdp_status status;

    FSDP__TRY_NEW(s = fsdp__calloc(1, sizeof *s));
    a->stats.system_allocations++;
    status = a->source.alloc(a->source.arg, bytes, &data);
    if (status != FSDP_OK && return_unused(a)) {
        a->stats.system_allocations++;
        status = a->source.alloc(a->source.arg, bytes, &data);
    }
    if (status != FSDP_OK) {
        fsdp__free(s);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    s->data = data;
    s->bytes = bytes;
    s->index = a->segments_made++;
    s->pool = to;
    s->first = s->last = fsdp__block_take(&a->blocks);
    s->first->segment = s;
    s->first->bytes = bytes;
    s->next = a->segments;
    a->segments = s;
    a->stats.reserved_bytes += bytes;
    fsdp__poison(a, data, bytes);
    fsdp__blocks_free_insert(&a->blocks, s->first);
    return FSDP_OK;
}

/* ---- segments that grow ---- */

segment *fsdp__segments_newest(const fsdp__allocator *a, fsdp__pool in)
{
    segment *s = a->segments;

    while (s && s->pool != in)
        s = s->next;
    return s;
}

/* Cuts a block that is gone to `bytes`; returns the rest, or NULL. */
static block *divide_hole(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest = divide(a, b, bytes);

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
    if (status == FSDP_NO_MEMORY && return_unused(a))
        status = segment_grow(a, in, request);
    return status == FSDP_NOT_FOUND ? segment_add(a, in, request) : status;
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
        return segment_add(a, FSDP__POOL_LARGE, end);
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

/* ---- all ---- */

void fsdp__segments_release(fsdp__allocator *a)
{
    fsdp__moment_unref(a->moment);
    while (a->segments) {
        segment *s = a->segments;
        a->segments = s->next;
        segment_release(a, s);
    }
}
