/* start.h - finds out from the environment which MPI has started this process. */
#pragma once

#include "fsdp/status.h"

/* Describes a family of MPIs whose types and functions fit one plug-in. */
typedef struct fsdp__mpi_kind {
    const char *name;    /* as FSDP_MPI spells it */
    const char *title;   /* for messages */
    const char *runtime; /* package that contains what the plug-in is linked to */
    const char *build;   /* package with which the plug-in is compiled */
} fsdp__mpi_kind;

typedef struct fsdp__mpi_start {
    const fsdp__mpi_kind *kind; /* NULL: no MPI has started this process */
    const char *variable;       /* the environment variable that shows this */
} fsdp__mpi_start;

/* Finds out which MPI has started this process. FSDP_MPI ("openmpi", "mpich" or "none") decides where it is set. */
fsdp_status fsdp__mpi_started(fsdp__mpi_start *out);
/* Makes the starter end all processes that it has started, where it can be asked to without MPI. A process calls this
 * if it cannot join the others, who wait for it in MPI_Init. MPICH's mpiexec can be asked; Open MPI's mpirun ends them
 * by itself when a process ends with a failure. */
void fsdp__mpi_end_all(void);
