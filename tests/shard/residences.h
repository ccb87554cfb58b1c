/* shard/residences.h - where and how a random test runs the same calls: residences of memory, streams. */
#pragma once

#include "fsdp/shard.h"

typedef struct residence {
    const char *name;
    bool copy;
    fsdp_overlap overlap;
    bool behind; /* the device runs behind the host */
} residence;

enum {
    RESIDENCES = 6 /* the first half in shared memory, which is CAST with a param_dtype */
};
extern const residence residences[RESIDENCES];

/* Inline; for most numbers as it is by default, which is the same on one machine. */
fsdp_overlap residence_overlap(const residence *where, uint64_t number);
/* A device of its own copies without being told: there, where the CPU would, shards come from the host instead, for
 * most numbers. */
fsdp_offload_policy residence_offload(const residence *where, uint64_t number);
/* Whether shards that may rest in halves do: in memory of their own, and not on the host. (Ranks of
 * other processes would not say what they have seen of ties.) */
bool residence_splits(const residence *where, uint64_t number);
