/* places.h - who is where: ranks are numbered by machine, whatever order the launcher has put them in.
 *
 * Machines stand in the order of their lowest carrier rank, the ranks of one in the order of their carrier ranks:
 * rank = machine * machine_ranks + local rank. */
#ifndef COMM_MACHINES_PLACES_H
#define COMM_MACHINES_PLACES_H

#include <stdbool.h>

#include "comm/machines/network.h"
#include "fsdp/status.h"

typedef struct fsdp__places {
    int ranks, machines, machine_ranks;
    int rank;                                /* this one */
    int *carriers;                           /* of each rank, its number at the carrier */
    int *of_carrier;                         /* and the other way */
    char (*hosts)[FSDP__NETWORK_HOST_BYTES]; /* of each machine */
} fsdp__places;

/* `all`: what each carrier rank has said of itself; `mine`: this one. Machines with unequal numbers of ranks are
 * refused. */
fsdp_status fsdp__places_make(const fsdp__network_world *all, int ranks, int mine, fsdp__places *out);
void fsdp__places_release(fsdp__places *places);

static inline int fsdp__machine_of(const fsdp__places *places, int rank)
{
    return rank / places->machine_ranks;
}

/* What its machine is called. */
static inline const char *fsdp__host_of(const fsdp__places *places, int rank)
{
    return places->hosts[fsdp__machine_of(places, rank)];
}

/* On another machine than this rank. */
static inline bool fsdp__is_elsewhere(const fsdp__places *places, int rank)
{
    return fsdp__machine_of(places, rank) != fsdp__machine_of(places, places->rank);
}

static inline int fsdp__local_of(const fsdp__places *places, int rank)
{
    return rank % places->machine_ranks;
}

/* Whether they are the same local rank of two machines. */
static inline bool fsdp__are_counterparts(const fsdp__places *places, int one, int other)
{
    return one != other && fsdp__local_of(places, one) == fsdp__local_of(places, other);
}

/* Who hears of `rank` on this machine: its counterpart, or itself. */
static inline int fsdp__listener_of(const fsdp__places *places, int rank)
{
    return fsdp__machine_of(places, places->rank) * places->machine_ranks + fsdp__local_of(places, rank);
}

#endif
