/* shard/rank_sum.h - sums over ranks, in the order that [Note: order of addition] in comm/transport/order.h promises.
 */
#pragma once

#include "fsdp/dtype.h"

/* total + more, which is taken over; NULL: nothing. */
float *rank_sum_joined(float *total, float *more, int64_t numel);
/* What `count` ranks bring (taken over; NULL: nothing), `block` of them at a time (test_rank_block): where that is more
 * than one their sums are rounded to the dtype. NULL: nobody brings anything. */
float *rank_sum(float **brought, int count, int block, fsdp_dtype dtype, int64_t numel);
