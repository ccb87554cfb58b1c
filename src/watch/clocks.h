/* clocks.h - by how much the clocks of machines differ.
 *
 * [Note: what a barrier tells of clocks]
 * No rank leaves a barrier before every rank has entered it. If one entered at a by its own clock, and another left at
 * b by its own, then the second clock is ahead of the first by at most b - a; and the other way round. Each barrier so
 * bounds the difference from both sides, with no assumption about how long messages take, and of several barriers the
 * narrowest bounds hold. Ranks of a machine have one clock, so the bounds of all of them hold for it. */
#pragma once

#include "fsdp/comm.h"

enum {
    FSDP__CLOCK_ROUNDS = 24
};

/* One barrier, as a rank saw it. */
typedef struct fsdp__clock_round {
    int64_t entered, left;
} fsdp__clock_round;

/* The rounds of a rank. */
typedef struct fsdp__clock_rounds {
    int32_t machine, count;
    fsdp__clock_round rounds[FSDP__CLOCK_ROUNDS];
} fsdp__clock_rounds;

typedef struct fsdp__clock_offset {
    int64_t ns;        /* the machine's clock is ahead of that of the first rank's machine by this */
    int64_t uncertain; /* more or less this */
} fsdp__clock_offset;

/* Finds the offset of a machine from what all ranks have seen. */
fsdp__clock_offset fsdp__clock_offset_of(const fsdp__clock_rounds *const *ranks, int count, int machine);
/* Measures the offset of each rank's clock; out[rank]. On one machine there is none, and nothing is sent.
 * [collective] [blocks] */
fsdp_status fsdp__clocks_compare(fsdp_context *context, fsdp__clock_offset *out);
