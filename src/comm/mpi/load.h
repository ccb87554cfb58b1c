/* load.h - loads the plug-in of an MPI, which is a library of its own, so that the program also runs where there is no
 * MPI. */
#ifndef COMM_MPI_LOAD_H
#define COMM_MPI_LOAD_H

#include "comm/mpi/start.h"
#include "comm/transport/network/network.h"

/* Loads libfsdp-NAME.so from the first folder that has it, of these: those of FSDP_PLUGIN_PATH (separated by colons);
 * that of this library, or of the program that contains it; and the two folders that lie relative to that one as in an
 * installation, and the folder of the installation itself. The plug-in stays loaded until the process ends. */
fsdp_status fsdp__mpi_load(const fsdp__mpi_kind *kind, const fsdp__network_ops **out);

#endif
