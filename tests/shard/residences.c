/* residences.c - the table. */
#include "shard/residences.h"

#include "support/test.h"

const residence residences[RESIDENCES] = {
    {"shared memory, inline", false, FSDP_OVERLAP_INLINE, false},
    {"shared memory, worker streams", false, FSDP_OVERLAP_WORKER, false},
    {"shared memory, behind the host", false, FSDP_OVERLAP_WORKER, true},
    {"copy, inline", true, FSDP_OVERLAP_INLINE, false},
    {"copy, worker streams", true, FSDP_OVERLAP_WORKER, false},
    {"copy, behind the host", true, FSDP_OVERLAP_WORKER, true},
};

fsdp_overlap residence_overlap(const residence *where, uint64_t number)
{
    return where->overlap == FSDP_OVERLAP_INLINE && number % 3 > 0 ? FSDP_OVERLAP_AUTO : where->overlap;
}

fsdp_offload_policy residence_offload(const residence *where, uint64_t number)
{
    bool cpu = where->copy && !test_on_cpu() && number % 4 > 0;

    return (fsdp_offload_policy){.cpu = cpu, .pageable = number % 2};
}

bool residence_splits(const residence *where, uint64_t number)
{
    return where->copy && !residence_offload(where, number).cpu && !getenv("FSDP_TEST_JOINED");
}
