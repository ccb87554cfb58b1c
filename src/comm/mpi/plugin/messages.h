/* messages.h - messages on their way: MPI's requests, and what was expected of them. */
#ifndef COMM_MPI_PLUGIN_MESSAGES_H
#define COMM_MPI_PLUGIN_MESSAGES_H

#include <mpi.h>
#include <pthread.h>

#include "comm/machines/network.h"

typedef struct fsdp__mpi_message fsdp__mpi_message;
typedef struct fsdp__mpi_slab fsdp__mpi_slab;

typedef struct fsdp__mpi {
    MPI_Comm comm;    /* of this library's own: what the program sends never meets what is sent here */
    bool initialised; /* MPI, by us: so it is ours to finalise */
    pthread_mutex_t lock;
    fsdp__mpi_message *unused;
    fsdp__mpi_slab *slabs; /* in which all of them lie */
} fsdp__mpi;

/* Slots of the table, each with an fsdp__mpi as its network. */
bool fsdp__mpi_send(void *network, int to, int tag, const fsdp__segment *segments, int count,
                    fsdp__network_request *out, char *text);
bool fsdp__mpi_receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                       fsdp__network_request *out, char *text);
bool fsdp__mpi_test(void *network, fsdp__network_request *requests, int count, char *text);
bool fsdp__mpi_poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text);

/* Those still on their way are forgotten. */
void fsdp__mpi_free_messages(fsdp__mpi *mpi);

#endif
