/* shard/net_bytes.h - what the groups of the small network take, in closed form. */
#pragma once

#include "shard/net.h"

typedef struct group_bytes {
    size_t whole, shard;
    size_t slice;            /* with reshard_after_forward_ranks 2 */
    size_t whole_bf16, cast; /* where parameters are gathered in bf16 */
    size_t partial;          /* before it is rounded up */
} group_bytes;

/* As the allocator hands it out. */
size_t rounded(size_t bytes);
/* Sharded over `world` ranks. */
group_bytes block_bytes(int64_t world);
group_bytes root_bytes(int64_t world);
