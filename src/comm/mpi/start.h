/* start.h - which MPI has started this process, as the environment shows it. */
#ifndef COMM_MPI_START_H
#define COMM_MPI_START_H

#include "fsdp/status.h"

/* One of the MPIs whose types and functions fit one plug-in. */
typedef struct fsdp__mpi_kind {
    const char *name;    /* as FSDP_MPI has it */
    const char *title;   /* for messages */
    const char *runtime; /* package that has what the plug-in is linked to */
    const char *build;   /* package that it is compiled with */
} fsdp__mpi_kind;

typedef struct fsdp__mpi_start {
    const fsdp__mpi_kind *kind; /* NULL: no MPI has started this process */
    const char *variable;       /* of the environment, that says so */
} fsdp__mpi_start;

/* FSDP_MPI is "openmpi", "mpich" or "none" where it is set, and decides. */
fsdp_status fsdp__mpi_started(fsdp__mpi_start *out);
/* Has the starter end all processes that it has started, where it can be asked without MPI: by a process that cannot
 * join the others, who wait for it in MPI_Init. Mpiexec of MPICH can; mpirun of Open MPI does so by itself where a
 * process does not end well. */
void fsdp__mpi_end_all(void);

#endif
