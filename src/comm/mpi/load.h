/* load.h - loads the plug-in of an MPI, which is a library of its own, so that the program also runs where there is no
 * MPI. */
#pragma once

#include "comm/mpi/start.h"
#include "comm/transport/network/network.h"

/* Loads libfsdp-NAME.so (base/find_plugin.h says from where); it stays loaded until the process ends. */
fsdp_status fsdp__mpi_load(const fsdp__mpi_kind *kind, const fsdp__network_ops **out);
