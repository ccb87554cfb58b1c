/* shard/residences.h - where and how a random test runs the same calls: residences of memory, streams. */
#ifndef TESTS_SHARD_RESIDENCES_H
#define TESTS_SHARD_RESIDENCES_H

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

#endif
