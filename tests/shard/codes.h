/* shard/codes.h - what values become on their way through a gather in one byte an element, as plainly as possible. */
#pragma once

#include "fsdp/shard.h"

typedef enum coded {
    CODED_NOT,
    CODED_FLOAT8,
    CODED_INT8
} coded;

/* NULL: none. */
const fsdp_gather_extension *coded_extension(coded how);
/* The whole parameter (outer, rows, inner), of which `ranks` ranks have rows each. Still to be rounded to the dtype
 * that is computed in. */
void coded_round(coded how, float *values, int64_t outer, int64_t rows, int64_t inner, int ranks);
