/* blocks.c - tables of an allocator's blocks.
 *
 * Free blocks are in one array sorted by (pool, bytes, segment, offset): best fit is a binary search, and ties are
 * broken by creation order, never by address. Live blocks are found by a hash of their address. */
#include "device/blocks.h"

#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"

#define BLOCKS_A_CHUNK 64

typedef fsdp__block block;

typedef struct fsdp__block_chunk {
    struct fsdp__block_chunk *next;
    block blocks[BLOCKS_A_CHUNK];
} block_chunk;

/* ---- block records ---- */

fsdp__block *fsdp__block_take(fsdp__blocks *all)
{
    block *b = all->unused;

    all->unused = b->after;
    all->unused_count--;
    memset(b, 0, sizeof *b);
    return b;
}

void fsdp__block_give(fsdp__blocks *all, block *b)
{
    b->after = all->unused;
    all->unused = b;
    all->unused_count++;
}

/* ---- live blocks by address ---- */

static size_t live_home(const fsdp__blocks *all, const void *pointer)
{
    uint64_t key = (uint64_t)(uintptr_t)pointer / FSDP__BLOCK_ALIGNMENT;

    return (size_t)((key * 0x9e3779b97f4a7c15u) >> 32) & (all->live_capacity - 1);
}

void fsdp__blocks_live_insert(fsdp__blocks *all, block *b)
{
    size_t i = live_home(all, fsdp__block_address(b));

    while (all->live[i])
        i = (i + 1) & (all->live_capacity - 1);
    all->live[i] = b;
    all->live_count++;
}

/* Returns the place of the block that begins at `pointer`, or an empty one. The table must not be empty. */
static size_t live_place(const fsdp__blocks *all, const void *pointer)
{
    size_t at = live_home(all, pointer);

    while (all->live[at] && fsdp__block_address(all->live[at]) != pointer)
        at = (at + 1) & (all->live_capacity - 1);
    return at;
}

fsdp__block *fsdp__blocks_live_remove(fsdp__blocks *all, const void *pointer)
{
    size_t mask = all->live_capacity - 1, hole, i;
    block *found;

    if (all->live_count == 0)
        return NULL;
    hole = live_place(all, pointer);
    found = all->live[hole];
    if (!found)
        return NULL;
    /* Close the gap: move up what a search from its home would no longer reach. */
    for (i = (hole + 1) & mask; all->live[i]; i = (i + 1) & mask) {
        size_t home = live_home(all, fsdp__block_address(all->live[i]));
        if (((i - home) & mask) >= ((i - hole) & mask)) {
            all->live[hole] = all->live[i];
            hole = i;
        }
    }
    all->live[hole] = NULL;
    all->live_count--;
    return found;
}

static fsdp_status live_grow(fsdp__blocks *all)
{
    size_t old_capacity = all->live_capacity, capacity = old_capacity ? 2 * old_capacity : 256;
    block **old = all->live, **grown = fsdp__calloc(capacity, sizeof *grown);

    FSDP__TRY_NEW(grown);
    all->live = grown;
    all->live_capacity = capacity;
    all->live_count = 0;
    for (size_t i = 0; i < old_capacity; i++)
        if (old[i])
            fsdp__blocks_live_insert(all, old[i]);
    fsdp__free(old);
    return FSDP_OK;
}

/* ---- free blocks by size ---- */

static int compare_uint(uint64_t x, uint64_t y)
{
    return FSDP__COMPARE(x, y);
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
static int64_t free_lower_bound(const fsdp__blocks *all, const block *key)
{
    int64_t low = 0, high = all->free_count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (compare(all->free_blocks[middle], key) < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

void fsdp__blocks_free_insert(fsdp__blocks *all, block *b)
{
    int64_t at = free_lower_bound(all, b);

    memmove(all->free_blocks + at + 1, all->free_blocks + at, (size_t)(all->free_count - at) * sizeof(block *));
    all->free_blocks[at] = b;
    all->free_count++;
}

void fsdp__blocks_free_remove(fsdp__blocks *all, const block *b)
{
    int64_t at = free_lower_bound(all, b);

    all->free_count--;
    memmove(all->free_blocks + at, all->free_blocks + at + 1, (size_t)(all->free_count - at) * sizeof(block *));
}

fsdp__block *fsdp__blocks_best_fit(const fsdp__blocks *all, fsdp__pool from, size_t bytes)
{
    /* Index and offset are 0, below all blocks of that size, so that the first one found is the oldest. */
    fsdp__memory_segment oldest = {.pool = from};
    block key = {.segment = &oldest, .bytes = bytes};
    int64_t at = free_lower_bound(all, &key);

    return at < all->free_count && all->free_blocks[at]->segment->pool == from ? all->free_blocks[at] : NULL;
}

fsdp__block *fsdp__blocks_free_at(const fsdp__blocks *all, const fsdp__memory_segment *in, size_t offset, size_t bytes)
{
    fsdp__memory_segment oldest = {.pool = in->pool};
    block key = {.segment = &oldest, .bytes = bytes};

    for (int64_t at = free_lower_bound(all, &key); at < all->free_count; at++) {
        block *b = all->free_blocks[at];
        if (b->segment == in && b->offset <= offset && offset + bytes <= b->offset + b->bytes)
            return b;
    }
    return NULL;
}

fsdp_status fsdp__blocks_reserve(fsdp__blocks *all)
{
    if (all->unused_count < FSDP__BLOCKS_A_REQUEST) {
        block_chunk *chunk = fsdp__malloc(sizeof *chunk);
        FSDP__TRY_NEW(chunk);
        chunk->next = all->chunks;
        all->chunks = chunk;
        for (int i = BLOCKS_A_CHUNK - 1; i >= 0; i--)
            fsdp__block_give(all, &chunk->blocks[i]);
    }
    /* Giving blocks back may make every live block a free one. */
    FSDP_TRY(fsdp__grow(&all->free_blocks,
                        all->free_count + (int64_t)all->live_count + all->gone_count + FSDP__BLOCKS_A_REQUEST,
                        &all->free_capacity, sizeof *all->free_blocks));
    if (2 * (all->live_count + 1) > all->live_capacity)
        FSDP_TRY(live_grow(all));
    return FSDP_OK;
}

fsdp__block *fsdp__blocks_live_at(const fsdp__blocks *all, const void *pointer)
{
    return all->live_count ? all->live[live_place(all, pointer)] : NULL;
}

void fsdp__blocks_release(fsdp__blocks *all)
{
    while (all->chunks) {
        block_chunk *chunk = all->chunks;
        all->chunks = chunk->next;
        fsdp__free(chunk);
    }
    FSDP__FREE_ALL(all->free_blocks, all->live);
}
