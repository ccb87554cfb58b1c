/* machine_memory.h - the memory that the ranks of one machine share, where MPI has started them. */
#ifndef COMM_MPI_MACHINE_MEMORY_H
#define COMM_MPI_MACHINE_MEMORY_H

#include "comm/health/places.h"
#include "comm/transport/arena/arena.h"
#include "comm/transport/network/network.h"

/* Makes the memory on the first rank of each machine, which hands it to the others there under a name that the network
 * has carried. All ranks succeed, or all fail with the reason of the first that fails. `seconds` is the time for all of
 * joining; the ranks of a machine wait for each other for half of it. [collective] */
fsdp_status fsdp__mpi_machine_memory(const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                                     int seconds, fsdp__arena **out);

#endif
