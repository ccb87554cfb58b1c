/* network.h - messages between ranks that share no memory, as a table of functions. One carrier of them is MPI, in a
 * library of its own that is loaded at run time (comm/mpi/); another one, of threads, is that of the tests. So this
 * header is the interface of a plug-in: a carrier includes it and nothing else of the project, calls nothing of it, and
 * says in FSDP__NETWORK_VERSION which of its forms it was compiled for.
 *
 * Numbers of ranks are the carrier's own here (MPI_COMM_WORLD); comm/machines/ numbers them by machine.
 *
 * A function that fails returns false and has written why into `text`, FSDP__NETWORK_TEXT bytes. A failure is final:
 * nothing but `close` is called afterwards. All but `open` and `close` are called from any thread, several at a time.
 * None of them blocks but `open`, `exchange`, and `close` of the whole world. */
#ifndef COMM_MACHINES_NETWORK_H
#define COMM_MACHINES_NETWORK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__NETWORK_VERSION = 4,
    FSDP__NETWORK_TEXT = 512,
    FSDP__NETWORK_HOST_BYTES = 256,
    FSDP__NETWORK_TAGS = 1 << 22 /* tags are below it */
};

/* One piece of a message: a message of several lies in all of them, one after the other, and is one on the way. */
typedef struct fsdp__segment {
    void *data;
    size_t bytes;
} fsdp__segment;

/* What is known once it is open. */
typedef struct fsdp__network_world {
    int rank, size;
    int machine;                         /* the lowest rank that shares this rank's memory: the same for all of them */
    char host[FSDP__NETWORK_HOST_BYTES]; /* name of the machine, for messages */
} fsdp__network_world;

/* A message on its way; 0: none. */
typedef uintptr_t fsdp__network_request;

typedef struct fsdp__network_ops {
    int version; /* FSDP__NETWORK_VERSION */

    /* Joins the world: once in a process. [collective] */
    bool (*open)(void **network, fsdp__network_world *out, char *text);
    /* `whole`: every rank comes here, and they take leave of each other [collective]; else the world is broken, nobody
     * is waited for and the process is about to end. Frees `network`. */
    void (*close)(void *network, bool whole);
    /* The `bytes` of every rank, by rank. Only while ranks join: messages may be on their way by then. `all` NULL: this
     * rank cannot go on, for it has no memory; then it fails on every rank. [collective] */
    bool (*exchange)(void *network, const void *mine, size_t bytes, void *all, char *text);

    /* Messages between two ranks with one tag arrive in the order in which they were sent, and a receive is for as many
     * bytes as were sent, or more where it may be `shorter`: another number is a failure. The segments' memory stays
     * and is not touched until the request is done; the list of them is copied. */
    bool (*send)(void *network, int to, int tag, const fsdp__segment *segments, int count, fsdp__network_request *out,
                 char *text);
    bool (*receive)(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                    fsdp__network_request *out, char *text);
    /* Moves things on. Requests that are done become 0. */
    bool (*test)(void *network, fsdp__network_request *requests, int count, char *text);
    /* A message with `tag` from anybody, if one has come: `*from` is its sender, else -1. Of at most `bytes` bytes;
     * `*got` of them. */
    bool (*poll)(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text);
} fsdp__network_ops;

/* What a plug-in exports, under this name. */
#define FSDP__NETWORK_SYMBOL "fsdp_network_plugin"
typedef const fsdp__network_ops *(*fsdp__network_plugin)(void);

#endif
