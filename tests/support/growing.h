/* support/growing.h - a system whose segments can become longer, as long as it has memory, for tests of the ledger. */
#pragma once

#include "device/allocator.h"
#include "support/test.h"

#define MIB ((size_t)1 << 20)

enum {
    GROWING_SEGMENTS = 8,
    GROWING_PIECES = 1024
};

/* What was mapped at once. */
typedef struct growing_piece {
    int segment; /* in `ends` */
    size_t offset, bytes;
} growing_piece;

typedef struct growing {
    size_t limit, used; /* bytes that it has, and that are mapped */
    size_t range;       /* addresses of a segment; 0: plenty */
    fsdp__allocator *allocator;
    int settled;
    struct {
        const void *segment; /* NULL: none */
        size_t end, mapped;
    } ends[GROWING_SEGMENTS];
    uint64_t queued, done; /* work; where `behind`, it is behind */
    bool behind;
    bool dry; /* nobody follows its addresses */
    /* Of at most so many bytes; 0: it is asked for none, and gives back steps of 4 MiB. */
    size_t piece_most;
    growing_piece pieces[GROWING_PIECES];
    int piece_count;
    /* Optional: is told what is given back. */
    void (*leaves)(void *arg, const void *memory, size_t bytes);
    void *leaves_arg;
} growing;

/* Makes an allocator on it; NULL where the host has no memory. What it cuts out it gives back in steps of 4 MiB, so
 * that some of a hole may stay at both ends, or to a segment's end; or in pieces, as they were mapped, like a driver.
 */
fsdp__allocator *growing_allocator(growing *g);
