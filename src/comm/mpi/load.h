/* load.h - the plug-in of an MPI: a library of its own, so that the one program runs where there is none. */
#ifndef COMM_MPI_LOAD_H
#define COMM_MPI_LOAD_H

#include "comm/machines/network.h"
#include "comm/mpi/start.h"

/* libfsdp-NAME.so, from the first of these folders that has it: those of FSDP_PLUGIN_PATH (with colons between them),
 * that of this library, or of the program that holds it, and the two that lie from there as where it is installed, the
 * folder that it is installed in. It stays loaded until the process ends. */
fsdp_status fsdp__mpi_load(const fsdp__mpi_kind *kind, const fsdp__network_ops **out);

#endif
