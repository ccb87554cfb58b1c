/* join.h - a context of a process that an MPI has started. */
#ifndef COMM_MPI_JOIN_H
#define COMM_MPI_JOIN_H

#include <stdbool.h>

#include "fsdp/context.h"

typedef struct fsdp__mpi_join_options {
    const char *starter; /* who has started this process, for messages */
    int ranks;           /* as that says it; 0: it does not */
    int local_ranks;     /* of this machine; the same */
    int local_rank;      /* below 0: it does not */
    int join_seconds;    /* the time that all have to join */
    int threads;         /* see fsdp_context_options */
    bool one_level;      /* see comm/machines/machines.h */
} fsdp__mpi_join_options;

/* Waits for all ranks. [collective] [blocks] */
fsdp_status fsdp__mpi_join(const fsdp__mpi_join_options *options, fsdp_context **out);

#endif
