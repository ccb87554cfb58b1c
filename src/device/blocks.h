/* blocks.h - the blocks of an allocator's segments, and where they are found: those that are free by their size, those
 * that live by their address. For allocator.c, under its mutex. */
#pragma once

#include "base/context.h"
#include "fsdp/device.h"

#define FSDP__BLOCK_ALIGNMENT ((size_t)64)
/* Blocks that one request can add: those beside its own, before and behind it, and those beside what is mapped. */
#define FSDP__BLOCKS_A_REQUEST 5

typedef enum fsdp__pool {
    FSDP__POOL_SMALL,
    FSDP__POOL_LARGE,
    FSDP__POOL_KEPT, /* large blocks that outlive steps, where segments grow */
    FSDP__POOLS
} fsdp__pool;

typedef struct fsdp__memory_segment fsdp__memory_segment;

typedef struct fsdp__block {
    fsdp__memory_segment *segment;
    struct fsdp__block *before, *after; /* neighbours in the segment; `after` links unused block records */
    size_t offset, bytes;
    fsdp_memory_kind kind; /* of a live block */
    fsdp__taker taker;     /* the same: who has taken it */
    bool live;
    bool gone;           /* its memory was given back: nobody may use its addresses any more, */
    bool leaving;        /* or it is when no work uses it any more */
    uint64_t used_until; /* of a free block: the last work that may still use it (fsdp__segment_source), */
    uint64_t given;      /* and its number among all that were given back; 0: it was not */
    int64_t request;     /* of a live block: its number in the step that runs (step_places.h); 0: none */
} fsdp__block;

/* Holds a chain of blocks in the order of their addresses. */
struct fsdp__memory_segment {
    fsdp__memory_segment *next;
    unsigned char *data;
    size_t bytes;
    uint64_t index; /* order of creation */
    fsdp__pool pool;
    fsdp__block *first, *last;
};

typedef struct fsdp__blocks {
    struct fsdp__block_chunk *chunks; /* all block records */
    fsdp__block *unused;              /* those that describe no block now */
    int64_t unused_count;

    fsdp__block **free_blocks; /* sorted: see blocks.c */
    int64_t free_count, free_capacity;
    int64_t gone_count; /* that may become free ones again */

    fsdp__block **live; /* open addressing; capacity is a power of two */
    size_t live_count, live_capacity;
} fsdp__blocks;

static inline void *fsdp__block_address(const fsdp__block *block)
{
    return block->segment->data + block->offset;
}

/* Makes room for what one request can add: records, as many free blocks, one live block. So nothing after it can fail,
 * and giving a block back cannot. */
fsdp_status fsdp__blocks_reserve(fsdp__blocks *all);
void fsdp__blocks_release(fsdp__blocks *all);

/* Take a record of zeros, and give one back. */
fsdp__block *fsdp__block_take(fsdp__blocks *all);
void fsdp__block_give(fsdp__blocks *all, fsdp__block *block);

void fsdp__blocks_free_insert(fsdp__blocks *all, fsdp__block *block);
void fsdp__blocks_free_remove(fsdp__blocks *all, const fsdp__block *block);
/* Returns the smallest free block of the pool that has so many bytes, the oldest of these; NULL: none has. */
fsdp__block *fsdp__blocks_best_fit(const fsdp__blocks *all, fsdp__pool pool, size_t bytes);
/* Returns the free block that has these bytes of a segment, or NULL. */
fsdp__block *fsdp__blocks_free_at(const fsdp__blocks *all, const fsdp__memory_segment *segment, size_t offset,
                                  size_t bytes);

void fsdp__blocks_live_insert(fsdp__blocks *all, fsdp__block *block);
/* Return the live block that begins at the pointer, or NULL; and take it out. */
fsdp__block *fsdp__blocks_live_at(const fsdp__blocks *all, const void *pointer);
fsdp__block *fsdp__blocks_live_remove(fsdp__blocks *all, const void *pointer);
