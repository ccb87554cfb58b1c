/* allocator.c - best fit over the free blocks of large segments, with splitting and coalescing.
 *
 * Small requests have segments of their own: they come and go at a different rate and would fragment the large ones. */
#include "device/allocator.h"

#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "base/lock.h"
#include "base/text.h"
#include "device/device.h"
#include "device/segments.h"

#define SMALL_REQUEST ((size_t)256 << 10) /* below: from small segments */

typedef fsdp__block block;
typedef fsdp__memory_segment segment;

/* The address that a request of zero bytes gets. */
static _Alignas(64) unsigned char nothing[64];

size_t fsdp__device_rounded(size_t bytes)
{
    return bytes > SIZE_MAX - FSDP__BLOCK_ALIGNMENT
               ? SIZE_MAX & ~(FSDP__BLOCK_ALIGNMENT - 1)
               : (bytes + FSDP__BLOCK_ALIGNMENT - 1) & ~(FSDP__BLOCK_ALIGNMENT - 1);
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

/* ---- the interface ---- */

fsdp_status fsdp__allocator_create(const fsdp__segment_source *source, fsdp__allocator **out)
{
    fsdp__allocator *a = fsdp__calloc(1, sizeof *a);

    FSDP__TRY_NEW(a);
    a->source = *source;
    if (source->grow)
        fsdp__step_places_begin(&a->places);
    pthread_mutex_init(&a->mutex, NULL);
    *out = a;
    return FSDP_OK;
}

void fsdp__allocator_runs_behind(fsdp__allocator *allocator)
{
    FSDP__HELD(&allocator->mutex);
    allocator->behind = true;
    for (segment *s = allocator->segments; s; s = s->next)
        fsdp__unpoison(allocator, s->data, s->bytes);
}

void fsdp__allocator_free(fsdp__allocator *a)
{
    if (!a)
        return;
    fsdp__segments_release(a);
    fsdp__blocks_release(&a->blocks);
    fsdp__step_places_release(&a->places);
    pthread_mutex_destroy(&a->mutex);
    fsdp__free(a);
}

/* Returns the pool of a request. Where segments grow, what outlives steps has one of its own: it would lie in the way
 * of what comes and goes. */
static fsdp__pool pool_of(const fsdp__allocator *a, size_t bytes, fsdp_memory_kind kind)
{
    bool kept = kind == FSDP_MEMORY_PARAMETER_SHARD || kind == FSDP_MEMORY_OPTIMIZER_STATE;

    return bytes < SMALL_REQUEST ? FSDP__POOL_SMALL : kept && a->source.grow ? FSDP__POOL_KEPT : FSDP__POOL_LARGE;
}

/* Takes a block of the pool out of the free ones, by best fit. */
static fsdp_status find_room(fsdp__allocator *a, fsdp__pool from, size_t bytes, block **out)
{
    *out = fsdp__blocks_best_fit(&a->blocks, from, bytes);
    if (!*out) {
        if (from == FSDP__POOL_KEPT && fsdp__step_places_may_return(&a->places))
            FSDP_TRY(fsdp__segments_return_all(a));
        FSDP_TRY(fsdp__segments_make_room(a, &from, bytes)); /* so the second search cannot fail */
        *out = fsdp__blocks_best_fit(&a->blocks, from, bytes);
    }
    fsdp__blocks_free_remove(&a->blocks, *out);
    return FSDP_OK;
}

/* Finds the same at the place of the request that was expected, or beside all places if it is asked for otherwise than
 * was expected. NULL: there is no such place, or it is not free. */
static fsdp_status find_place(fsdp__allocator *a, const fsdp__request *expected, fsdp__taker taker,
                              fsdp_memory_kind kind, size_t bytes, block **out)
{
    size_t place = FSDP__NO_PLACE;

    if (expected)
        FSDP_TRY(fsdp__segments_make_places_for(a, expected, bytes));
    if (expected && bytes <= expected->room)
        place = expected->place;
    else if (fsdp__step_places_are_renewed(&a->places, taker.owner, kind))
        FSDP_TRY(fsdp__segments_place_beside(a, bytes, &place));
    if (place != FSDP__NO_PLACE)
        FSDP_TRY(fsdp__segments_room_at(a, place, bytes, out));
    if (*out)
        *out = fsdp__block_split_at(a, *out, place);
    return FSDP_OK;
}

static fsdp_status take_locked(fsdp__allocator *a, size_t request, fsdp_memory_kind kind, block **out)
{
    fsdp__taker taker = a->source.taker ? a->source.taker(a->source.arg) : (fsdp__taker){.owner = NULL};
    size_t bytes = fsdp__device_rounded(request);
    fsdp__pool from = pool_of(a, bytes, kind);
    bool noted = from == FSDP__POOL_LARGE;
    const fsdp__request *expected;
    block *b = NULL;

    fsdp__segments_go_on(a);
    /* Reserve before anything changes: from here on only the memory itself can be missing. */
    FSDP_TRY(fsdp__segments_reserve(a));
    FSDP_TRY(fsdp__step_places_reserve(&a->places));
    expected = noted ? fsdp__step_places_find(&a->places, taker, kind) : NULL;
    if (expected && fsdp__step_places_lies_apart(&a->places, expected))
        from = FSDP__POOL_KEPT;
    else if (noted)
        FSDP_TRY(find_place(a, expected, taker, kind, bytes, &b));
    if (!b)
        FSDP_TRY(find_room(a, from, bytes, &b));
    fsdp__block_split(a, b, bytes);
    b->kind = kind;
    b->taker = taker;
    b->live = true;
    if (noted)
        fsdp__step_places_note(&a->places, b, expected);
    fsdp__blocks_live_insert(&a->blocks, b);
    count(a, kind, (int64_t)bytes);
    a->live += bytes;
    a->most = FSDP__MAX(a->most, a->live);
    *out = b;
    return FSDP_OK;
}

/* ---- how far the device is ----
 *
 * The lock is kept neither while the device is asked, whose queue may be full, nor while it is waited for: another
 * thread may need memory for what it waits for. */

/* Waits for all that uses what was given back before. */
static void settle(fsdp__allocator *a)
{
    fsdp__past past;

    pthread_mutex_lock(&a->mutex);
    past = (fsdp__past){a->given, a->source.queued ? a->source.queued(a->source.arg) : UINT64_MAX};
    pthread_mutex_unlock(&a->mutex);
    a->source.settle(a->source.arg);
    FSDP__HELD(&a->mutex);
    fsdp__segments_learn(a, past);
}

/* Asks when what is given back now is used no more, or waits until it is. Where that fails nothing is learned. */
static void ask(fsdp__allocator *a, bool waits)
{
    bool held = fsdp_hold_error(true), answered;
    fsdp__device_moment *moment = NULL;
    fsdp__past past;

    pthread_mutex_lock(&a->mutex);
    past = fsdp__segments_issued(a);
    pthread_mutex_unlock(&a->mutex);
    answered = a->source.issued(a->source.arg, &moment) == FSDP_OK && (!waits || moment->wait(moment) == FSDP_OK);
    pthread_mutex_lock(&a->mutex);
    if (answered && waits) {
        fsdp__segments_learn(a, past);
    } else if (answered && fsdp__segments_may_ask(a)) {
        a->ahead = past;
        a->moment = fsdp__take(&moment);
    }
    pthread_mutex_unlock(&a->mutex);
    fsdp__moment_unref(moment);
    fsdp_release_error(held);
}

/* ---- requests ---- */

fsdp_status fsdp__allocator_take(fsdp__allocator *a, size_t bytes, fsdp_memory_kind kind, void **out)
{
    block *b = NULL;
    fsdp_status status;
    bool asks;

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
        settle(a);
        pthread_mutex_lock(&a->mutex);
        a->settled = true;
        status = take_locked(a, bytes, kind, &b);
        a->settled = false;
    }
    if (status == FSDP_OK) {
        *out = fsdp__block_address(b);
        fsdp__unpoison(a, *out, bytes); /* the slack up to 64 bytes stays poisoned */
    }
    asks = fsdp__segments_may_ask(a);
    pthread_mutex_unlock(&a->mutex);
    if (asks)
        ask(a, false);
    return status == FSDP_OK ? FSDP_OK : fsdp__allocator_refuse(a, status, bytes, kind);
}

fsdp_status fsdp__allocator_note_forward(fsdp__allocator *a)
{
    fsdp_status status;
    bool asks;

    pthread_mutex_lock(&a->mutex);
    status = fsdp__segments_note_forward(a);
    asks = fsdp__segments_may_ask(a);
    pthread_mutex_unlock(&a->mutex);
    if (asks)
        ask(a, false);
    return status;
}

fsdp_status fsdp__allocator_renew(fsdp__allocator *a, const void *owner, fsdp_memory_kind kind)
{
    fsdp_status status;
    bool asks;

    pthread_mutex_lock(&a->mutex);
    status = fsdp__segments_renew(a, owner, kind);
    asks = fsdp__segments_may_ask(a);
    pthread_mutex_unlock(&a->mutex);
    if (asks)
        ask(a, false);
    return status;
}

void fsdp__allocator_end_step(fsdp__allocator *a)
{
    FSDP__HELD(&a->mutex);
    fsdp__step_places_end(&a->places);
}

static bool has_unused(fsdp__allocator *a)
{
    FSDP__HELD(&a->mutex);
    return fsdp__segments_have_unused(a);
}

static bool shrink(fsdp__allocator *a)
{
    FSDP__HELD(&a->mutex);
    return fsdp__segments_shrink(a);
}

bool fsdp__allocator_shrink(fsdp__allocator *a)
{
    if (a->source.issued && has_unused(a))
        ask(a, true);
    return shrink(a);
}

bool fsdp__allocator_settle(fsdp__allocator *a)
{
    bool may;

    pthread_mutex_lock(&a->mutex);
    may = fsdp__segments_may_settle(a);
    pthread_mutex_unlock(&a->mutex);
    if (!may)
        return false;
    settle(a);
    (void)shrink(a);
    return true;
}

fsdp_status fsdp__allocator_refuse(fsdp__allocator *a, fsdp_status status, size_t bytes, fsdp_memory_kind kind)
{
    fsdp_memory_stats stats;

    fsdp__allocator_stats(a, &stats);
    return fsdp_fail_prefix(status, "cannot allocate %s of %s on device '%s' (%s live, %s reserved)", FSDP__SIZE(bytes),
                            fsdp_memory_kind_name(kind), a->source.name, FSDP__SIZE(stats.live_total_bytes),
                            FSDP__SIZE(stats.reserved_bytes));
}

bool fsdp__allocator_give(fsdp__allocator *a, void *pointer)
{
    uint64_t used_until = a->source.queued ? a->source.queued(a->source.arg) : 0;
    block *b;

    FSDP__HELD(&a->mutex);
    b = fsdp__blocks_live_remove(&a->blocks, pointer);
    if (b) {
        count(a, b->kind, -(int64_t)b->bytes);
        a->live -= b->bytes;
        fsdp__poison(a, pointer, b->bytes);
        b->live = false;
        b->used_until = used_until;
        b->given = ++a->given;
        fsdp__step_places_note_return(&a->places, b);
        b->request = 0;
        fsdp__block_set_free(a, b);
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
