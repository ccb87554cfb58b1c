/* residences.c - the table. */
#include "shard/residences.h"

const residence residences[RESIDENCES] = {
    {"shared memory, inline", false, FSDP_OVERLAP_INLINE, false},
    {"shared memory, worker streams", false, FSDP_OVERLAP_WORKER, false},
    {"shared memory, behind the host", false, FSDP_OVERLAP_WORKER, true},
    {"copy, inline", true, FSDP_OVERLAP_INLINE, false},
    {"copy, worker streams", true, FSDP_OVERLAP_WORKER, false},
    {"copy, behind the host", true, FSDP_OVERLAP_WORKER, true},
};
