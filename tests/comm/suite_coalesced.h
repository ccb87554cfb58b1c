/* suite_coalesced.h - the coalesced collectives: uneven and empty shards, casts, every kind of memory, the same bits.
 */
#pragma once

#include "comm/suite.h"

typedef enum suite_memory {
    SUITE_PRIVATE,
    SUITE_SYMMETRIC,
    SUITE_MIXED, /* symmetric on all ranks but the last */
    SUITE_SHARED
} suite_memory;

/* Rows of the block that a rank has. */
int64_t suite_rows(const fsdp_sharded_buffer *b, int rank);
void suite_gather_blocks(const suite *s, suite_memory memory, fsdp_dtype shard_dtype, fsdp_dtype unsharded_dtype,
                         bool in_place);
void suite_blocks(const suite *s);
