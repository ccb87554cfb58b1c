/* segments.h - the segments of an allocator, which is made here: where they come from, grow and go, and how their
 * blocks are cut. For allocator.c, under its mutex. */
#pragma once

#include <pthread.h>

#include "base/compiler.h"
#include "device/blocks.h"
#include "device/segment_source.h"
#include "device/step_places.h"

#if FSDP__ASAN
#include <sanitizer/asan_interface.h>
#endif

#define FSDP__SEGMENT_STEP ((size_t)2 << 20) /* a huge page */
#define FSDP__LARGE_SEGMENT ((size_t)32 << 20)

/* Says which blocks no work uses any more: the first `given` of those that were given back, except those that work
 * behind the item `queued` uses. */
typedef struct fsdp__past {
    uint64_t given, queued;
} fsdp__past;

typedef struct fsdp__allocator {
    pthread_mutex_t mutex;
    fsdp__segment_source source;
    fsdp__memory_segment *segments;
    fsdp__memory_segment *spare; /* the record of the next one; NULL: fsdp__segments_reserve makes one */
    uint64_t segments_made;
    fsdp__blocks blocks;
    fsdp_memory_stats stats;
    fsdp__accounts accounts;     /* of memory from elsewhere */
    bool behind;                 /* work that was queued earlier may still use what was given back */
    bool settled;                /* no such work is left just now: what is unused may be returned */
    uint64_t given;              /* blocks that were given back so far */
    fsdp__past known;            /* what is known to be past, where work is issued to a device */
    fsdp__past ahead;            /* what is past when the device has got to `moment` */
    fsdp__device_moment *moment; /* NULL: nobody has asked */
    size_t leaving;              /* bytes that are returned when they are past ([Note: what is leaving]) */
    size_t live, most;           /* of segments, not of memory from elsewhere: now, and the most at once */
    bool waits;                  /* a request has failed: unused memory may serve it when no work uses that any more */
    fsdp__step_places places;    /* in the newest segment of the large pool */
    size_t top;     /* where the last place ends: what is unused above it is to be returned. 0: nothing is */
    size_t highest; /* the same of places that forwards have chosen around what lives, since then */
    int lowerings;  /* how many more forwards may return some of it, before places are chosen again */
} fsdp__allocator;

/* ---- bytes nobody may touch ---- */

static inline void fsdp__poison(const fsdp__allocator *a, void *data, size_t bytes)
{
#if FSDP__ASAN
    if (a->source.has_bytes && !a->behind)
        ASAN_POISON_MEMORY_REGION(data, bytes);
#else
    (void)a, (void)data, (void)bytes;
#endif
}

static inline void fsdp__unpoison(const fsdp__allocator *a, void *data, size_t bytes)
{
#if FSDP__ASAN
    if (a->source.has_bytes)
        ASAN_UNPOISON_MEMORY_REGION(data, bytes);
#else
    (void)a, (void)data, (void)bytes;
#endif
}

/* ---- blocks ---- */

static inline bool fsdp__block_is_free(const fsdp__block *block)
{
    return !block->live && !block->gone;
}

/* Cuts `block`, which has been taken out of the free ones, to `bytes`; the rest is free. */
void fsdp__block_split(fsdp__allocator *a, fsdp__block *block, size_t bytes);
/* Cuts `block` to `bytes`, and returns a block of the rest, of which nobody knows yet; NULL: there is none. */
fsdp__block *fsdp__block_divide(fsdp__allocator *a, fsdp__block *block, size_t bytes);
/* Takes a free block from the others, and cuts off what lies before `offset`; returns the rest. */
fsdp__block *fsdp__block_split_at(fsdp__allocator *a, fsdp__block *block, size_t offset);
/* Makes a block that is none of them a free one, with its free neighbours. */
void fsdp__block_set_free(fsdp__allocator *a, fsdp__block *block);

/* Takes [from, end) of a free block out of use, so that it can be returned; gives the block that has it. */
fsdp__block *fsdp__block_leave(fsdp__allocator *a, fsdp__block *block, size_t from, size_t end);

/* ---- segments ---- */

/* Makes room for what one request can add: a segment's record, and what fsdp__blocks_reserve has. */
fsdp_status fsdp__segments_reserve(fsdp__allocator *a);
/* Returns the newest segment of a pool; NULL: it has none. */
fsdp__memory_segment *fsdp__segments_newest(const fsdp__allocator *a, fsdp__pool pool);
/* Adds a segment as one free block. fsdp__segments_reserve must have been called. */
fsdp_status fsdp__segment_add(fsdp__allocator *a, fsdp__pool to, size_t request);
/* Returns unused memory to the backend; returns whether there was any, and room for a request was made again. */
bool fsdp__segments_return_unused(fsdp__allocator *a);
/* Returns what is leaving, where it is known that no work uses it. */
void fsdp__segments_let_go(fsdp__allocator *a);
/* Makes a free block of the pool that fits the request, or of another one if the backend has no more memory. Gives the
 * pool. fsdp__segments_reserve must have been called. */
fsdp_status fsdp__segments_make_room(fsdp__allocator *a, fsdp__pool *in, size_t request);
/* Returns what has been issued by now: what it will be past when the device gets there. */
fsdp__past fsdp__segments_issued(const fsdp__allocator *a);
/* Notes what is past. */
void fsdp__segments_learn(fsdp__allocator *a, fsdp__past past);
/* Returns whether something is to be returned when the device has got further, and nobody has asked when that is. */
bool fsdp__segments_may_ask(const fsdp__allocator *a);
/* Returns all that is unused, or does so when the device has got there. */
fsdp_status fsdp__segments_return_all(fsdp__allocator *a);
/* Goes on to return it where the device has got there. It waits for nothing. */
void fsdp__segments_go_on(fsdp__allocator *a);
/* Returns whether `fsdp__segments_shrink` may return anything, now or later. */
bool fsdp__segments_have_unused(const fsdp__allocator *a);
/* Returns what is unused and known to be no longer used by work to the backend; returns whether there was any. */
bool fsdp__segments_shrink(fsdp__allocator *a);
/* Returns whether `settle` of the source may bring memory. */
bool fsdp__segments_may_settle(const fsdp__allocator *a);
/* Gives the free block where a request has its place; NULL where that is not free, or nothing can be mapped there. */
fsdp_status fsdp__segments_room_at(fsdp__allocator *a, size_t place, size_t bytes, fsdp__block **out);
/* Chooses places anew if a request needs more than it has room for. */
fsdp_status fsdp__segments_make_places_for(fsdp__allocator *a, const fsdp__request *expected, size_t bytes);
/* Chooses places anew for the rest of a step in which an owner asks for memory of a kind otherwise than before. */
fsdp_status fsdp__segments_renew(fsdp__allocator *a, const void *owner, fsdp_memory_kind kind);
/* Gives a place that is free and in nobody's way for the rest of the step. */
fsdp_status fsdp__segments_place_beside(const fsdp__allocator *a, size_t bytes, size_t *place);
/* Notes the forward of a step: chooses places for the requests of the one before, if that is to be. */
fsdp_status fsdp__segments_note_forward(fsdp__allocator *a);
/* Returns all segments. */
void fsdp__segments_release(fsdp__allocator *a);
