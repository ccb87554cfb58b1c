/* allocator.c - best fit over the free blocks of large segments, with splitting and coalescing.
 *
 * Small requests have segments of their own: they come and go at a different rate and would fragment the large ones. */
#include "device/allocator.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/text.h"
#include "device/blocks.h"
#include "device/device.h"

#if FSDP__ASAN
#include <sanitizer/asan_interface.h>
#endif

#define SMALL_REQUEST ((size_t)256 << 10) /* below: from small segments */
#define SMALL_SEGMENT ((size_t)2 << 20)
#define LARGE_SEGMENT ((size_t)32 << 20)
#define SEGMENT_STEP ((size_t)2 << 20) /* a huge page */

typedef fsdp__block block;
typedef fsdp__segment segment;

struct fsdp__allocator {
    pthread_mutex_t mutex;
    fsdp__segment_source source;
    segment *segments;
    uint64_t segments_made;
    fsdp__blocks blocks;
    fsdp_memory_stats stats;
    fsdp__accounts accounts; /* of memory from elsewhere */
    bool behind;             /* work that was queued earlier may still use what was given back */
    bool settled;            /* but not now: what is unused may be returned */
    bool waits;              /* a request has failed that what is unused may serve, once this is settled */
};

/* What a request of zero bytes gets. */
static _Alignas(64) unsigned char nothing[64];

size_t fsdp__device_rounded(size_t bytes)
{
    return bytes > SIZE_MAX - FSDP__BLOCK_ALIGNMENT
               ? SIZE_MAX & ~(FSDP__BLOCK_ALIGNMENT - 1)
               : (bytes + FSDP__BLOCK_ALIGNMENT - 1) & ~(FSDP__BLOCK_ALIGNMENT - 1);
}

/* ---- bytes nobody may touch ---- */

static void poison(const fsdp__allocator *a, void *data, size_t bytes)
{
#if FSDP__ASAN
    if (a->source.has_bytes && !a->behind)
        ASAN_POISON_MEMORY_REGION(data, bytes);
#else
    (void)a, (void)data, (void)bytes;
#endif
}

static void unpoison(const fsdp__allocator *a, void *data, size_t bytes)
{
#if FSDP__ASAN
    if (a->source.has_bytes)
        ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#else
    (void)a, (void)data, (void)bytes;
#endif
}

/* ---- the ledger ---- */

static size_t without_workspace(const fsdp_memory_stats *s)
{
    return s->live_total_bytes - s->live_bytes[FSDP_MEMORY_WORKSPACE];
}

static void count(fsdp__allocator *a, fsdp_memory_kind kind, int64_t delta)
{
    fsdp_memory_stats *s = &a->stats;

    s->live_bytes[kind] += (size_t)delta;
    s->live_total_bytes += (size_t)delta;
    s->peak_bytes[kind] = FSDP__MAX(s->peak_bytes[kind], s->live_bytes[kind]);
    s->peak_total_bytes = FSDP__MAX(s->peak_total_bytes, s->live_total_bytes);
    s->peak_without_workspace_bytes = FSDP__MAX(s->peak_without_workspace_bytes, without_workspace(s));
}

/* ---- segments ---- */

static void segment_release(fsdp__allocator *a, segment *s)
{
    unpoison(a, s->data, s->bytes); /* the address range may come back as someone else's */
    a->source.free(a->source.arg, s->data, s->bytes);
    a->stats.reserved_bytes -= s->bytes;
    fsdp__free(s);
}

static bool is_free(const block *b)
{
    return !b->live && !b->gone;
}

/* Returns the number up to which all work has been done. */
static uint64_t done_until(const fsdp__allocator *a)
{
    return a->source.done ? a->source.done(a->source.arg) : UINT64_MAX;
}

/* Returns the segments without a live block to the backend, if all work up to `done` is all that has used them. */
static void trim(fsdp__allocator *a, uint64_t done)
{
    for (segment **link = &a->segments; *link;) {
        segment *s = *link;
        if (!is_free(s->first) || s->first->after || s->first->used_until > done) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        fsdp__blocks_free_remove(&a->blocks, s->first);
        fsdp__block_give(&a->blocks, s->first);
        segment_release(a, s);
    }
}

/* Cuts `b`, which has been taken out of the free array, to `bytes`; the rest stays free. */
static void split(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest;

    if (b->bytes == bytes)
        return;
    rest = fsdp__block_take(&a->blocks);
    rest->segment = b->segment;
    rest->offset = b->offset + bytes;
    rest->bytes = b->bytes - bytes;
    rest->before = b;
    rest->after = b->after;
    rest->used_until = b->used_until;
    if (b->after)
        b->after->before = rest;
    b->after = rest;
    b->bytes = bytes;
    fsdp__blocks_free_insert(&a->blocks, rest);
}

/* Returns whether memory of a free block can be given back alone: that of [*from, *end) in its segment. */
static bool can_cut(const fsdp__allocator *a, const block *b, size_t *from, size_t *end)
{
    *from = b->offset;
    *end = b->offset + b->bytes;
    if (!a->source.cut || !is_free(b) || b->bytes < SEGMENT_STEP)
        return false;
    a->source.fit(a->source.arg, b->segment->data, from, end);
    return *from < *end;
}

static void cut(fsdp__allocator *a, block *b, size_t from, size_t end)
{
    a->source.cut(a->source.arg, b->segment->data, from, end);
    fsdp__blocks_free_remove(&a->blocks, b);
    if (from > b->offset) {
        split(a, b, from - b->offset);
        fsdp__blocks_free_insert(&a->blocks, b);
        b = b->after;
        fsdp__blocks_free_remove(&a->blocks, b);
    }
    split(a, b, end - from);
    b->gone = true;
    a->stats.reserved_bytes -= end - from;
}

/* Returns what lies unused between blocks of segments that grow: a request that does not fit there can have it
 * elsewhere. */
static void cut_holes(fsdp__allocator *a, uint64_t done)
{
    size_t from, end;

    for (segment *s = a->source.cut ? a->segments : NULL; s; s = s->next)
        for (block *b = s->first; b; b = b->after)
            if (b->used_until <= done && can_cut(a, b, &from, &end) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK)
                cut(a, b, from, end);
}

static bool has_unused(const fsdp__allocator *a)
{
    size_t from, end;

    for (const segment *s = a->segments; s; s = s->next)
        for (const block *b = s->first; b; b = b->after)
            if (is_free(b) && (b->bytes == s->bytes || can_cut(a, b, &from, &end)))
                return true;
    return false;
}

/* Returns what is unused and no longer used by work to the backend; returns whether there was any. */
static bool shrink(fsdp__allocator *a)
{
    size_t before = a->stats.reserved_bytes;
    uint64_t done = done_until(a);

    trim(a, done);
    cut_holes(a, done);
    return a->stats.reserved_bytes < before;
}

/* Returns unused memory to the backend; returns whether there was any, and room for a request was made again. */
static bool return_unused(fsdp__allocator *a)
{
    a->waits = a->behind && a->source.settle && !a->settled && has_unused(a);
    return !a->waits && shrink(a) && fsdp__blocks_reserve(&a->blocks) == FSDP_OK;
}

static size_t whole_steps(size_t bytes)
{
    return (bytes + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
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
    s->first = fsdp__block_take(&a->blocks);
    s->first->segment = s;
    s->first->bytes = bytes;
    s->next = a->segments;
    a->segments = s;
    a->stats.reserved_bytes += bytes;
    poison(a, data, bytes);
    fsdp__blocks_free_insert(&a->blocks, s->first);
    return FSDP_OK;
}

/* ---- segments that grow ---- */

/* Makes the newest segment of a pool longer, so that its last block is free and has room for the request. `reserve`
 * must have been called. FSDP_NOT_FOUND, without a message, where none can. */
static fsdp_status segment_grow(fsdp__allocator *a, fsdp__pool in, size_t request)
{
    segment *s = a->source.grow ? a->segments : NULL;
    block *last, *end;
    size_t more;

    while (s && s->pool != in)
        s = s->next;
    if (!s)
        return FSDP_NOT_FOUND;
    for (last = s->first; last->after; last = last->after)
        continue;
    more = whole_steps(request - (is_free(last) ? last->bytes : 0));
    a->stats.system_allocations++;
    FSDP_TRY(a->source.grow(a->source.arg, s->data, s->bytes, more));
    poison(a, s->data + s->bytes, more);
    end = last;
    if (is_free(last)) {
        fsdp__blocks_free_remove(&a->blocks, last);
    } else {
        end = last->after = fsdp__block_take(&a->blocks);
        end->segment = s;
        end->offset = s->bytes;
        end->before = last;
    }
    end->bytes += more;
    s->bytes += more;
    a->stats.reserved_bytes += more;
    fsdp__blocks_free_insert(&a->blocks, end);
    return FSDP_OK;
}

/* Makes a free block that fits the request. */
static fsdp_status make_room(fsdp__allocator *a, fsdp__pool in, size_t request)
{
    fsdp_status status;

    if (request > SIZE_MAX - SEGMENT_STEP)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%zu bytes are more than there are addresses", request);
    status = segment_grow(a, in, request);
    if (status == FSDP_NO_MEMORY && return_unused(a))
        status = segment_grow(a, in, request);
    return status == FSDP_NOT_FOUND ? segment_add(a, in, request) : status;
}

/* ---- the interface ---- */

fsdp_status fsdp__allocator_create(const fsdp__segment_source *source, fsdp__allocator **out)
{
    fsdp__allocator *a = fsdp__calloc(1, sizeof *a);

    FSDP__TRY_NEW(a);
    a->source = *source;
    pthread_mutex_init(&a->mutex, NULL);
    *out = a;
    return FSDP_OK;
}

void fsdp__allocator_runs_behind(fsdp__allocator *allocator)
{
    FSDP__HELD(&allocator->mutex);
    allocator->behind = true;
    for (segment *s = allocator->segments; s; s = s->next)
        unpoison(allocator, s->data, s->bytes);
}

void fsdp__allocator_free(fsdp__allocator *a)
{
    if (!a)
        return;
    while (a->segments) {
        segment *s = a->segments;
        a->segments = s->next;
        segment_release(a, s);
    }
    fsdp__blocks_release(&a->blocks);
    pthread_mutex_destroy(&a->mutex);
    fsdp__free(a);
}

static fsdp_status take_locked(fsdp__allocator *a, size_t request, fsdp_memory_kind kind, block **out)
{
    size_t bytes = fsdp__device_rounded(request);
    fsdp__pool from = bytes < SMALL_REQUEST ? FSDP__POOL_SMALL : FSDP__POOL_LARGE;
    block *b;

    /* Reserve before anything changes: from here on only the memory itself can be missing. */
    FSDP_TRY(fsdp__blocks_reserve(&a->blocks));
    b = fsdp__blocks_best_fit(&a->blocks, from, bytes);
    if (!b) {
        FSDP_TRY(make_room(a, from, bytes)); /* so the second search cannot fail */
        b = fsdp__blocks_best_fit(&a->blocks, from, bytes);
    }
    fsdp__blocks_free_remove(&a->blocks, b);
    split(a, b, bytes);
    b->kind = kind;
    b->taker = a->source.taker ? a->source.taker(a->source.arg) : (fsdp__taker){.owner = NULL};
    b->live = true;
    fsdp__blocks_live_insert(&a->blocks, b);
    count(a, kind, (int64_t)bytes);
    *out = b;
    return FSDP_OK;
}

fsdp_status fsdp__allocator_take(fsdp__allocator *a, size_t bytes, fsdp_memory_kind kind, void **out)
{
    block *b = NULL;
    fsdp_status status;

    if ((unsigned)kind >= FSDP_MEMORY_KINDS)
        return FSDP_FAIL(FSDP_INVALID, "cannot allocate %zu bytes: unknown memory kind %d", bytes, (int)kind);
    if (bytes == 0) {
        *out = nothing;
        return FSDP_OK;
    }
    pthread_mutex_lock(&a->mutex);
    a->waits = false;
    status = take_locked(a, bytes, kind, &b);
    if (status == FSDP_NO_MEMORY && a->waits) {
        pthread_mutex_unlock(&a->mutex);
        a->source.settle(a->source.arg);
        pthread_mutex_lock(&a->mutex);
        a->settled = true;
        status = take_locked(a, bytes, kind, &b);
        a->settled = false;
    }
    if (status == FSDP_OK) {
        *out = fsdp__block_address(b);
        unpoison(a, *out, bytes); /* the slack up to 64 bytes stays poisoned */
    }
    pthread_mutex_unlock(&a->mutex);
    return status == FSDP_OK ? FSDP_OK : fsdp__allocator_refuse(a, status, bytes, kind);
}

bool fsdp__allocator_shrink(fsdp__allocator *a)
{
    FSDP__HELD(&a->mutex);
    return shrink(a);
}

fsdp_status fsdp__allocator_refuse(fsdp__allocator *a, fsdp_status status, size_t bytes, fsdp_memory_kind kind)
{
    fsdp_memory_stats stats;

    fsdp__allocator_stats(a, &stats);
    return fsdp_fail_prefix(status, "cannot allocate %s of %s on device '%s' (%s live, %s reserved)",
                            fsdp__size_text((double)bytes, FSDP__ROOM(24)), fsdp_memory_kind_name(kind), a->source.name,
                            fsdp__size_text((double)stats.live_total_bytes, FSDP__ROOM(24)),
                            fsdp__size_text((double)stats.reserved_bytes, FSDP__ROOM(24)));
}

/* Merges `left` with its free right neighbour; neither is in the free array. */
static void merge(fsdp__allocator *a, block *left, block *right)
{
    left->bytes += right->bytes;
    left->after = right->after;
    left->used_until = FSDP__MAX(left->used_until, right->used_until);
    if (right->after)
        right->after->before = left;
    fsdp__block_give(&a->blocks, right);
}

bool fsdp__allocator_give(fsdp__allocator *a, void *pointer)
{
    uint64_t used_until = a->source.queued ? a->source.queued(a->source.arg) : 0;
    block *b;

    FSDP__HELD(&a->mutex);
    b = fsdp__blocks_live_remove(&a->blocks, pointer);
    if (b) {
        count(a, b->kind, -(int64_t)b->bytes);
        poison(a, pointer, b->bytes);
        b->live = false;
        b->used_until = used_until;
        /* Take neighbours out of the array before they grow: it is sorted by size. */
        if (b->after && is_free(b->after)) {
            fsdp__blocks_free_remove(&a->blocks, b->after);
            merge(a, b, b->after);
        }
        if (b->before && is_free(b->before)) {
            fsdp__blocks_free_remove(&a->blocks, b->before);
            b = b->before;
            merge(a, b, b->after);
        }
        fsdp__blocks_free_insert(&a->blocks, b);
    }
    return b != NULL;
}

/* Returns the block that contains the byte at `pointer`, live or free; NULL outside all segments. Mostly the block
 * begins there. */
static const block *block_around(const fsdp__allocator *a, const void *pointer)
{
    const block *b = fsdp__blocks_live_at(&a->blocks, pointer);
    uintptr_t at = (uintptr_t)pointer;
    const segment *s = a->segments;

    if (b)
        return b;
    while (s && !(at >= (uintptr_t)s->data && at - (uintptr_t)s->data < s->bytes))
        s = s->next;
    for (b = s ? s->first : NULL; b && at >= (uintptr_t)fsdp__block_address(b) + b->bytes; b = b->after)
        continue;
    return b;
}

bool fsdp__allocator_covers(fsdp__allocator *a, const void *pointer, size_t bytes)
{
    const block *b;

    FSDP__HELD(&a->mutex);
    b = block_around(a, pointer);
    return b && b->live && bytes <= (uintptr_t)fsdp__block_address(b) + b->bytes - (uintptr_t)pointer;
}

size_t fsdp__allocator_recount(fsdp__allocator *a, const void *pointer, fsdp_memory_kind kind, fsdp_memory_kind *before)
{
    size_t bytes = 0;
    block *b;

    FSDP__HELD(&a->mutex);
    b = fsdp__blocks_live_at(&a->blocks, pointer);
    if (b) {
        count(a, b->kind, -(int64_t)b->bytes);
        count(a, kind, (int64_t)b->bytes);
        bytes = b->bytes;
        *before = b->kind;
        b->kind = kind;
    }
    return bytes;
}

int64_t fsdp__allocator_account(fsdp__allocator *a, const void *owner, fsdp_memory_kind kind, int64_t delta_bytes,
                                bool shared)
{
    size_t magnitude = delta_bytes < 0 ? (size_t)-delta_bytes : (size_t)delta_bytes;
    int64_t delta = (int64_t)fsdp__device_rounded(magnitude);

    delta = delta_bytes < 0 ? -delta : delta;
    FSDP__HELD(&a->mutex);
    count(a, kind, delta);
    fsdp__accounts_add(&a->accounts, owner, kind, delta);
    if (shared)
        a->stats.shared_bytes += (size_t)delta;
    return delta;
}

void fsdp__allocator_stats(fsdp__allocator *a, fsdp_memory_stats *out)
{
    FSDP__HELD(&a->mutex);
    *out = a->stats;
}

void fsdp__allocator_reset_peak(fsdp__allocator *a)
{
    FSDP__HELD(&a->mutex);
    memcpy(a->stats.peak_bytes, a->stats.live_bytes, sizeof a->stats.peak_bytes);
    a->stats.peak_total_bytes = a->stats.live_total_bytes;
    a->stats.peak_without_workspace_bytes = without_workspace(&a->stats);
}

/* ---- who owns what ---- */

void fsdp__allocator_each(fsdp__allocator *a, void (*visit)(void *arg, const fsdp__owned *owned), void *arg)
{
    FSDP__HELD(&a->mutex);
    for (const segment *s = a->segments; s; s = s->next)
        for (const block *b = s->first; b; b = b->after)
            if (b->live)
                visit(arg, &(fsdp__owned){.kind = b->kind, .taker = b->taker, .bytes = b->bytes, .count = 1});
    for (int64_t i = 0; i < a->accounts.count; i++)
        visit(arg, &a->accounts.items[i]);
}

const void *fsdp__allocator_owner(fsdp__allocator *a, const void *pointer)
{
    const block *b;
    const void *owner;

    FSDP__HELD(&a->mutex);
    b = fsdp__blocks_live_at(&a->blocks, pointer);
    owner = b ? b->taker.owner : NULL;
    return owner;
}

void fsdp__allocator_set_owner(fsdp__allocator *a, const void *pointer, const void *owner)
{
    block *b;

    FSDP__HELD(&a->mutex);
    b = fsdp__blocks_live_at(&a->blocks, pointer);
    if (b)
        b->taker.owner = owner;
}
