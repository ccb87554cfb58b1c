/* segments.c - segments come, lose what lies unused in them, and go. */
#include "device/segments.h"

#include "base/alloc.h"

#define SMALL_SEGMENT ((size_t)2 << 20)
#define LARGE_SEGMENT FSDP__LARGE_SEGMENT
#define SEGMENT_STEP FSDP__SEGMENT_STEP

typedef fsdp__block block;
typedef fsdp__memory_segment segment;

/* ---- segments ---- */

fsdp_status fsdp__segments_reserve(fsdp__allocator *a)
{
    if (!a->spare)
        FSDP__TRY_NEW(a->spare = fsdp__calloc(1, sizeof *a->spare));
    return fsdp__blocks_reserve(&a->blocks);
}

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

fsdp__block *fsdp__block_divide(fsdp__allocator *a, block *b, size_t bytes)
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
    block *rest = fsdp__block_divide(a, b, bytes);

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
    (void)hear(a);
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

bool fsdp__segments_return_unused(fsdp__allocator *a)
{
    a->waits = !a->settled && fsdp__segments_may_settle(a);
    return !a->waits && fsdp__segments_shrink(a) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK;
}

fsdp_status fsdp__segment_add(fsdp__allocator *a, fsdp__pool to, size_t request)
{
    size_t least = to == FSDP__POOL_SMALL ? SMALL_SEGMENT : a->source.grow ? 0 : LARGE_SEGMENT;
    size_t bytes = FSDP__ROUND_UP(FSDP__MAX(least, request), SEGMENT_STEP);
    segment *s = a->spare;
    void *data = NULL;

    a->stats.system_allocations++;
    FSDP_TRY(a->source.alloc(a->source.arg, bytes, &data));
    a->spare = NULL;
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

segment *fsdp__segments_newest(const fsdp__allocator *a, fsdp__pool in)
{
    segment *s = a->segments;

    while (s && s->pool != in)
        s = s->next;
    return s;
}

/* ---- all ---- */

void fsdp__segments_release(fsdp__allocator *a)
{
    fsdp__moment_unref(a->moment);
    fsdp__free(a->spare);
    while (a->segments) {
        segment *s = a->segments;
        a->segments = s->next;
        segment_release(a, s);
    }
}
