/* suite_blocks.h - the vectored collectives: uneven and empty shards, casts, every kind of memory, the same bits. */
#ifndef TESTS_COMM_SUITE_BLOCKS_H
#define TESTS_COMM_SUITE_BLOCKS_H

#include "comm/suite.h"

typedef enum suite_memory {
    SUITE_PRIVATE,
    SUITE_VISIBLE,
    SUITE_MIXED, /* visible on all ranks but the last */
    SUITE_COMMON
} suite_memory;

/* Rows of the block that a rank has. */
int64_t suite_rows(const fsdp_block *b, int rank);
void suite_gather_blocks(const suite *s, suite_memory memory, fsdp_dtype shard_dtype, fsdp_dtype whole_dtype,
                         bool in_place);
void suite_blocks(const suite *s);

#endif
