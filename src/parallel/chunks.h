/* chunks.h - how a sequence is cut over ranks: in 2 W equal chunks, of which rank r has chunk r and then the one that
 * is as far from the end. */
#pragma once

#include <stdint.h>

/* Returns the place in the sequence of a rank's first (0) or second (1) chunk. */
static inline int64_t fsdp__chunk_number(int64_t ranks, int64_t rank, int64_t half)
{
    return half == 0 ? rank : 2 * ranks - 1 - rank;
}

/* Returns where a chunk of the sequence lies among those of all ranks, each with its two. */
static inline int64_t fsdp__chunk_place(int64_t ranks, int64_t number)
{
    return number < ranks ? 2 * number : 2 * (2 * ranks - 1 - number) + 1;
}
