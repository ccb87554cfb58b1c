/* join.h - makes the context of a process that MPI has started. */
#pragma once

#include <stdbool.h>

#include "fsdp/context.h"

typedef struct fsdp__mpi_join_options {
    const char *starter; /* what has started this process, for messages */
    int ranks;           /* by the starter's account; 0: it does not say */
    int local_ranks;     /* on this machine, by the same account; 0: it does not say */
    int local_rank;      /* by the same account; below 0: it does not say */
    int join_seconds;    /* the time that all ranks have to join */
    int threads;         /* see fsdp_context_options */
    bool one_level;      /* see comm/transport/network/network_transport.h */
} fsdp__mpi_join_options;

/* Joins the world and waits for all ranks. [collective] [blocks] */
fsdp_status fsdp__mpi_join(const fsdp__mpi_join_options *options, fsdp_context **out);
