/* support/growing.h - a system whose segments can become longer, as long as it has memory, for tests of the ledger. */
#ifndef TESTS_SUPPORT_GROWING_H
#define TESTS_SUPPORT_GROWING_H

#include "device/allocator.h"
#include "support/test.h"

#define MIB ((size_t)1 << 20)

enum {
    GROWING_SEGMENTS = 8
};

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
} growing;

/* Makes an allocator on it; NULL where the host has no memory. What it cuts out it gives back in steps of 4 MiB, so
 * that some of a hole may stay at both ends, or to a segment's end. */
fsdp__allocator *growing_allocator(growing *g);

#endif
