/* messages.h - messages on their way: MPI's requests, and what was expected of them. */
#pragma once

#include <mpi.h>
#include <pthread.h>

#include "comm/transport/network/network.h"

typedef struct fsdp__mpi_message fsdp__mpi_message;
typedef struct fsdp__mpi_slab fsdp__mpi_slab;

typedef struct fsdp__mpi {
    MPI_Comm comm;    /* this library's own: what the program sends never meets what is sent here */
    bool initialised; /* the plug-in has initialised MPI, so it has to finalise it */
    pthread_mutex_t lock;
    fsdp__mpi_message *unused;
    fsdp__mpi_slab *slabs; /* hold all the messages */
} fsdp__mpi;

/* Slots of the table; the network of each is an fsdp__mpi. */
bool fsdp__mpi_send(void *network, int to, int tag, const fsdp__segment *segments, int count,
                    fsdp__network_request *out, char *text);
bool fsdp__mpi_receive(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                       fsdp__network_request *out, char *text);
bool fsdp__mpi_test(void *network, fsdp__network_request *requests, int count, char *text);
bool fsdp__mpi_poll(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text);

/* Frees all messages, including those still on their way. */
void fsdp__mpi_free_messages(fsdp__mpi *mpi);
