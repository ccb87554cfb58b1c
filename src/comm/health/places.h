/* places.h - which rank is on which machine: ranks are numbered by machine, whatever order the launcher has put them
 * in.
 *
 * Machines are in the order of their lowest carrier rank, the ranks of one machine in the order of their carrier ranks:
 * rank = machine * machine_ranks + local rank. */
#pragma once

#include <stdbool.h>

enum {
    FSDP__PLACES_HOST_BYTES = 256
};

typedef struct fsdp__places {
    int ranks, machines, machine_ranks;
    int rank;                               /* this one */
    int *carriers;                          /* the carrier's number of each rank */
    int *of_carrier;                        /* the rank of each carrier number */
    char (*hosts)[FSDP__PLACES_HOST_BYTES]; /* the name of each machine */
} fsdp__places;

static inline int fsdp__machine_of(const fsdp__places *places, int rank)
{
    return rank / places->machine_ranks;
}

/* Returns the name of the rank's machine. */
static inline const char *fsdp__host_of(const fsdp__places *places, int rank)
{
    return places->hosts[fsdp__machine_of(places, rank)];
}

/* Returns whether the rank is on another machine than this rank. */
static inline bool fsdp__is_elsewhere(const fsdp__places *places, int rank)
{
    return fsdp__machine_of(places, rank) != fsdp__machine_of(places, places->rank);
}

static inline int fsdp__local_of(const fsdp__places *places, int rank)
{
    return rank % places->machine_ranks;
}

/* Returns whether the two are the same local rank of two machines. */
static inline bool fsdp__are_counterparts(const fsdp__places *places, int one, int other)
{
    return one != other && fsdp__local_of(places, one) == fsdp__local_of(places, other);
}

/* Returns the rank of this machine that hears of `rank`: its counterpart, or `rank` itself. */
static inline int fsdp__listener_of(const fsdp__places *places, int rank)
{
    return fsdp__machine_of(places, places->rank) * places->machine_ranks + fsdp__local_of(places, rank);
}
