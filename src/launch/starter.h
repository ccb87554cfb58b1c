/* starter.h - who started this process as one rank of several, as the variables of its environment say. */
#pragma once

#include "fsdp/status.h"

typedef enum fsdp__starter_kind {
    FSDP__BY_NOBODY, /* it is the only rank */
    FSDP__BY_LAUNCH, /* fsdp_launch: the memory is inherited */
    FSDP__BY_NAME,   /* torchrun, or variables set by hand: the ranks of one machine find each other by a name */
    FSDP__BY_MPI     /* mpirun, srun */
} fsdp__starter_kind;

typedef struct fsdp__starter {
    fsdp__starter_kind kind;
    const char *name;                          /* for messages: "mpirun" */
    int rank, size;                            /* size 0: known only after joining */
    int local_rank;                            /* -1: not given */
    int local_size;                            /* 0: not given */
    int machine;                               /* -1: not given */
    const char *rank_variable, *size_variable; /* the variables that were read */
} fsdp__starter;

/* Finds the innermost starter that has left its variables. A variable that is wrong, or contradicts another one, is
 * FSDP_INVALID with its name; ranks on several machines without MPI are FSDP_UNSUPPORTED. */
fsdp_status fsdp__starter_read(fsdp__starter *out);
