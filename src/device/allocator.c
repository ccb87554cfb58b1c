/* allocator.c - best fit over the free blocks of large segments, with splitting and coalescing.
 *
 * A segment is a chain of blocks in address order. Free blocks are in one array sorted by (pool, bytes, segment,
 * offset): best fit is a binary search, and ties are broken by creation order, never by address. Live blocks are found
 * by a hash of their address. Both tables are grown before a request is served, so giving a block back cannot fail.
 *
 * Small requests have segments of their own: they come and go at a different rate and would fragment the large ones. */
#include "device/allocator.h"

#include <pthread.h>
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"

#if FSDP__ASAN
#include <sanitizer/asan_interface.h>
#endif

#define ALIGNMENT ((size_t)64)
#define SMALL_REQUEST ((size_t)256 << 10) /* below: from small segments */
#define SMALL_SEGMENT ((size_t)2 << 20)
#define LARGE_SEGMENT ((size_t)32 << 20)
#define SEGMENT_STEP ((size_t)2 << 20) /* a huge page */
#define BLOCKS_A_CHUNK 64

typedef struct segment segment;
typedef struct block block;

typedef enum pool {
    POOL_SMALL,
    POOL_LARGE
} pool;

struct block {
    segment *segment;
    block *before, *after; /* neighbours in the segment; `after` links unused block records */
    size_t offset, bytes;
    fsdp_memory_kind kind; /* of a live block */
    bool live;
};

struct segment {
    segment *next;
    unsigned char *data;
    size_t bytes;
    uint64_t index; /* order of creation */
    pool pool;
    block *first;
};

typedef struct block_chunk {
    struct block_chunk *next;
    block blocks[BLOCKS_A_CHUNK];
} block_chunk;

struct fsdp__allocator {
    pthread_mutex_t mutex;
    fsdp__segment_source source;
    segment *segments;
    uint64_t segments_made;

    block_chunk *chunks; /* all block records */
    block *unused;       /* those that describe no block now */
    int64_t unused_count;

    block **free_blocks; /* sorted, see above */
    int64_t free_count, free_capacity;

    block **live; /* open addressing; capacity is a power of two */
    size_t live_count, live_capacity;

    fsdp_memory_stats stats;
    bool behind; /* work that was queued earlier may still use what was given back */
};

/* What a request of zero bytes gets. */
static _Alignas(64) unsigned char nothing[64];

size_t fsdp__device_rounded(size_t bytes)
{
    return bytes > SIZE_MAX - ALIGNMENT ? SIZE_MAX & ~(ALIGNMENT - 1) : (bytes + ALIGNMENT - 1) & ~(ALIGNMENT - 1);
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

/* ---- block records ---- */

static block *record_take(fsdp__allocator *a)
{
    block *b = a->unused;

    a->unused = b->after;
    a->unused_count--;
    memset(b, 0, sizeof *b);
    return b;
}

static void record_give(fsdp__allocator *a, block *b)
{
    b->after = a->unused;
    a->unused = b;
    a->unused_count++;
}

/* ---- live blocks by address ---- */

static void *address(const block *b)
{
    return b->segment->data + b->offset;
}

static size_t live_home(const fsdp__allocator *a, const void *pointer)
{
    uint64_t key = (uint64_t)(uintptr_t)pointer / ALIGNMENT;

    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (a->live_capacity - 1);
}

static void live_insert(fsdp__allocator *a, block *b)
{
    size_t i = live_home(a, address(b));

    while (a->live[i])
        i = (i + 1) & (a->live_capacity - 1);
    a->live[i] = b;
    a->live_count++;
}

/* Returns the place of the block that begins at `pointer`, or an empty one. The table must not be empty. */
static size_t live_place(const fsdp__allocator *a, const void *pointer)
{
    size_t at = live_home(a, pointer);

    while (a->live[at] && address(a->live[at]) != pointer)
        at = (at + 1) & (a->live_capacity - 1);
    return at;
}

static block *live_remove(fsdp__allocator *a, const void *pointer)
{
    size_t mask = a->live_capacity - 1, hole, i;
    block *found;

    if (a->live_count == 0)
        return NULL;
    hole = live_place(a, pointer);
    found = a->live[hole];
    if (!found)
        return NULL;
    /* Close the gap: move up what a search from its home would no longer reach. */
    for (i = (hole + 1) & mask; a->live[i]; i = (i + 1) & mask) {
        size_t home = live_home(a, address(a->live[i]));
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            a->live[hole] = a->live[i];
            hole = i;
        }
    }
    a->live[hole] = NULL;
    a->live_count--;
    return found;
}

static fsdp_status live_grow(fsdp__allocator *a)
{
    size_t old_capacity = a->live_capacity, capacity = old_capacity ? 2 * old_capacity : 256;
    block **old = a->live, **grown = fsdp__calloc(capacity, sizeof *grown);

    if (!grown)
        return FSDP_NO_MEMORY;
    a->live = grown;
    a->live_capacity = capacity;
    a->live_count = 0;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i])
            live_insert(a, old[i]);
    fsdp__free(old);
    return FSDP_OK;
}

/* ---- free blocks by size ---- */

static int compare_uint(uint64_t x, uint64_t y)
{
    return (x > y) - (x < y);
}

static int compare(const block *x, const block *y)
{
    int order = (int)x->segment->pool - (int)y->segment->pool;

    if (order == 0)
        order = compare_uint(x->bytes, y->bytes);
    if (order == 0)
        order = compare_uint(x->segment->index, y->segment->index);
    return order ? order : compare_uint(x->offset, y->offset);
}

/* Returns the first place whose block is not below `key`. */
static int64_t free_lower_bound(const fsdp__allocator *a, const block *key)
{
    int64_t low = 0, high = a->free_count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (compare(a->free_blocks[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

static void free_insert(fsdp__allocator *a, block *b)
{
    int64_t at = free_lower_bound(a, b);

    memmove(a->free_blocks + at + 1, a->free_blocks + at, (size_t)(a->free_count - at) * sizeof(block *));
    a->free_blocks[at] = b;
    a->free_count++;
}

static void free_remove(fsdp__allocator *a, const block *b)
{
    int64_t at = free_lower_bound(a, b);

    a->free_count--;
    memmove(a->free_blocks + at, a->free_blocks + at + 1, (size_t)(a->free_count - at) * sizeof(block *));
}

static block *free_best_fit(const fsdp__allocator *a, pool from, size_t bytes)
{
    /* Index and offset are 0, below all blocks of that size, so that the first one found is the oldest. */
    segment oldest = {.pool = from};
    block key = {.segment = &oldest, .bytes = bytes};
    int64_t at = free_lower_bound(a, &key);

    return at < a->free_count && a->free_blocks[at]->segment->pool == from ? a->free_blocks[at] : NULL;
}

/* Makes room for what one request can add: two records, two free blocks, one live block. */
static fsdp_status reserve(fsdp__allocator *a)
{
    if (a->unused_count < 2) {
        block_chunk *chunk = fsdp__malloc(sizeof *chunk);
        if (!chunk)
            return FSDP_NO_MEMORY;
        chunk->next = a->chunks;
        a->chunks = chunk;
        for (int i = BLOCKS_A_CHUNK - 1; i >= 0; i--)
            record_give(a, &chunk->blocks[i]);
    }
    /* Giving blocks back may make every live block a free one. */
    if (fsdp__grow(&a->free_blocks, a->free_count + (int64_t)a->live_count + 1, &a->free_capacity,
                   sizeof *a->free_blocks) != 0)
        return FSDP_NO_MEMORY;
    if (2 * (a->live_count + 1) > a->live_capacity)
        FSDP_TRY(live_grow(a));
    return FSDP_OK;
}

/* ---- segments ---- */

static void segment_release(fsdp__allocator *a, segment *s)
{
    unpoison(a, s->data, s->bytes); /* the address range may come back as someone else's */
    a->source.free(a->source.arg, s->data, s->bytes);
    a->stats.reserved_bytes -= s->bytes;
    fsdp__free(s);
}

/* Returns the segments without a live block to the backend; returns whether there were any. */
static bool trim(fsdp__allocator *a)
{
    bool any = false;

    for (segment **link = &a->segments; *link;) {
        segment *s = *link;
        if (s->first->live || s->first->after) {
            link = &s->next;
            continue;
        }
        *link = s->next;
        free_remove(a, s->first);
        record_give(a, s->first);
        segment_release(a, s);
        any = true;
    }
    return any;
}

/* Adds a segment as one free block. `reserve` must have been called. */
static fsdp_status segment_add(fsdp__allocator *a, pool to, size_t request)
{
    size_t bytes = to == POOL_SMALL ? SMALL_SEGMENT : FSDP__MAX(LARGE_SEGMENT, request);
    segment *s;
    void *data = NULL;
    fsdp_status status;

    if (bytes > SIZE_MAX - SEGMENT_STEP)
        return FSDP_FAIL(FSDP_NO_MEMORY, "%zu bytes are more than there are addresses", request);
    bytes = (bytes + SEGMENT_STEP - 1) / SEGMENT_STEP * SEGMENT_STEP;
    s = fsdp__calloc(1, sizeof *s);
    if (!s)
        return FSDP_NO_MEMORY;
    a->stats.system_allocations++;
    status = a->source.alloc(a->source.arg, bytes, &data);
    if (status != FSDP_OK && trim(a)) {
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
    s->first = record_take(a);
    s->first->segment = s;
    s->first->bytes = bytes;
    s->next = a->segments;
    a->segments = s;
    a->stats.reserved_bytes += bytes;
    poison(a, data, bytes);
    free_insert(a, s->first);
    return FSDP_OK;
}

/* ---- the interface ---- */

fsdp_status fsdp__allocator_create(const fsdp__segment_source *source, fsdp__allocator **out)
{
    fsdp__allocator *a = fsdp__calloc(1, sizeof *a);

    if (!a)
        return FSDP_NO_MEMORY;
    a->source = *source;
    pthread_mutex_init(&a->mutex, NULL);
    *out = a;
    return FSDP_OK;
}

void fsdp__allocator_runs_behind(fsdp__allocator *allocator)
{
    pthread_mutex_lock(&allocator->mutex);
    allocator->behind = true;
    for (segment *s = allocator->segments; s; s = s->next)
        unpoison(allocator, s->data, s->bytes);
    pthread_mutex_unlock(&allocator->mutex);
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
    while (a->chunks) {
        block_chunk *chunk = a->chunks;
        a->chunks = chunk->next;
        fsdp__free(chunk);
    }
    fsdp__free(a->free_blocks);
    fsdp__free(a->live);
    pthread_mutex_destroy(&a->mutex);
    fsdp__free(a);
}

/* Cuts `b`, which has been taken out of the free array, to `bytes`; the rest stays free. */
static void split(fsdp__allocator *a, block *b, size_t bytes)
{
    block *rest;

    if (b->bytes == bytes)
        return;
    rest = record_take(a);
    rest->segment = b->segment;
    rest->offset = b->offset + bytes;
    rest->bytes = b->bytes - bytes;
    rest->before = b;
    rest->after = b->after;
    if (b->after)
        b->after->before = rest;
    b->after = rest;
    b->bytes = bytes;
    free_insert(a, rest);
}

static fsdp_status take_locked(fsdp__allocator *a, size_t request, fsdp_memory_kind kind, block **out)
{
    size_t bytes = fsdp__device_rounded(request);
    pool from = bytes < SMALL_REQUEST ? POOL_SMALL : POOL_LARGE;
    block *b;

    /* Reserve before anything changes: from here on only the memory itself can be missing. */
    FSDP_TRY(reserve(a));
    b = free_best_fit(a, from, bytes);
    if (!b) {
        /* The new segment fits the request, so the second search cannot fail. */
        FSDP_TRY(segment_add(a, from, bytes));
        b = free_best_fit(a, from, bytes);
    }
    free_remove(a, b);
    split(a, b, bytes);
    b->kind = kind;
    b->live = true;
    live_insert(a, b);
    count(a, kind, (int64_t)bytes);
    *out = b;
    return FSDP_OK;
}

fsdp_status fsdp__allocator_take(fsdp__allocator *a, size_t bytes, fsdp_memory_kind kind, void **out)
{
    block *b = NULL;
    fsdp_status status;
    size_t live_bytes, reserved_bytes;

    if ((unsigned)kind >= FSDP_MEMORY_KINDS)
        return FSDP_FAIL(FSDP_INVALID, "cannot allocate %zu bytes: unknown memory kind %d", bytes, (int)kind);
    if (bytes == 0) {
        *out = nothing;
        return FSDP_OK;
    }
    pthread_mutex_lock(&a->mutex);
    status = take_locked(a, bytes, kind, &b);
    if (status == FSDP_OK) {
        *out = address(b);
        unpoison(a, *out, bytes); /* the slack up to 64 bytes stays poisoned */
    }
    live_bytes = a->stats.live_total_bytes;
    reserved_bytes = a->stats.reserved_bytes;
    pthread_mutex_unlock(&a->mutex);
    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot allocate %zu bytes of %s on device '%s' (%zu bytes live, %zu reserved)",
                                bytes, fsdp_memory_kind_name(kind), a->source.name, live_bytes, reserved_bytes);
    return FSDP_OK;
}

/* Merges `left` with its free right neighbour; neither is in the free array. */
static void merge(fsdp__allocator *a, block *left, block *right)
{
    left->bytes += right->bytes;
    left->after = right->after;
    if (right->after)
        right->after->before = left;
    record_give(a, right);
}

bool fsdp__allocator_give(fsdp__allocator *a, void *pointer)
{
    block *b;

    pthread_mutex_lock(&a->mutex);
    b = live_remove(a, pointer);
    if (b) {
        count(a, b->kind, -(int64_t)b->bytes);
        poison(a, pointer, b->bytes);
        b->live = false;
        /* Take neighbours out of the array before they grow: it is sorted by size. */
        if (b->after && !b->after->live) {
            free_remove(a, b->after);
            merge(a, b, b->after);
        }
        if (b->before && !b->before->live) {
            free_remove(a, b->before);
            b = b->before;
            merge(a, b, b->after);
        }
        free_insert(a, b);
    }
    pthread_mutex_unlock(&a->mutex);
    return b != NULL;
}

/* Returns the block that contains the byte at `pointer`, live or free; NULL outside all segments. Mostly the block
 * begins there. */
static const block *block_around(const fsdp__allocator *a, const void *pointer)
{
    const block *b = a->live_count ? a->live[live_place(a, pointer)] : NULL;
    uintptr_t at = (uintptr_t)pointer;
    const segment *s = a->segments;

    if (b)
        return b;
    while (s && !(at >= (uintptr_t)s->data && at - (uintptr_t)s->data < s->bytes))
        s = s->next;
    for (b = s ? s->first : NULL; b && at >= (uintptr_t)address(b) + b->bytes; b = b->after)
        continue;
    return b;
}

bool fsdp__allocator_covers(fsdp__allocator *a, const void *pointer, size_t bytes)
{
    const block *b;
    bool covers;

    pthread_mutex_lock(&a->mutex);
    b = block_around(a, pointer);
    covers = b && b->live && bytes <= (uintptr_t)address(b) + b->bytes - (uintptr_t)pointer;
    pthread_mutex_unlock(&a->mutex);
    return covers;
}

void fsdp__allocator_recount(fsdp__allocator *a, const void *pointer, fsdp_memory_kind kind)
{
    block *b;

    pthread_mutex_lock(&a->mutex);
    b = a->live_count ? a->live[live_place(a, pointer)] : NULL;
    if (b) {
        count(a, b->kind, -(int64_t)b->bytes);
        count(a, kind, (int64_t)b->bytes);
        b->kind = kind;
    }
    pthread_mutex_unlock(&a->mutex);
}

void fsdp__allocator_account(fsdp__allocator *a, fsdp_memory_kind kind, int64_t delta_bytes, bool shared)
{
    size_t magnitude = delta_bytes < 0 ? (size_t)-delta_bytes : (size_t)delta_bytes;
    int64_t delta = (int64_t)fsdp__device_rounded(magnitude);

    delta = delta_bytes < 0 ? -delta : delta;
    pthread_mutex_lock(&a->mutex);
    count(a, kind, delta);
    if (shared)
        a->stats.shared_bytes += (size_t)delta;
    pthread_mutex_unlock(&a->mutex);
}

void fsdp__allocator_stats(fsdp__allocator *a, fsdp_memory_stats *out)
{
    pthread_mutex_lock(&a->mutex);
    *out = a->stats;
    pthread_mutex_unlock(&a->mutex);
}

void fsdp__allocator_reset_peak(fsdp__allocator *a)
{
    pthread_mutex_lock(&a->mutex);
    memcpy(a->stats.peak_bytes, a->stats.live_bytes, sizeof a->stats.peak_bytes);
    a->stats.peak_total_bytes = a->stats.live_total_bytes;
    a->stats.peak_without_workspace_bytes = without_workspace(&a->stats);
    pthread_mutex_unlock(&a->mutex);
}
