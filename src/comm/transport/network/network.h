/* network.h - messages between ranks that share no memory, as a table of functions. One carrier of messages is MPI, in
 * a library of its own that is loaded at run time (comm/mpi/); another one, of threads, is used by the tests. So this
 * header is the interface of a plug-in: a carrier includes it and nothing else of the project, calls nothing of it, and
 * says in FSDP__NETWORK_VERSION which version of the interface it was compiled for.
 *
 * Numbers of ranks are the carrier's own here (MPI_COMM_WORLD); comm/transport/network/ numbers them by machine.
 *
 * A function that fails returns false and has written the reason into `text`, FSDP__NETWORK_TEXT bytes. A failure is
 * final: nothing but `close` is called afterwards. All functions but `open` and `close` may be called from any thread,
 * several at a time. Only `open`, `exchange`, and `close` of the whole world block. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    FSDP__NETWORK_VERSION = 4,
    FSDP__NETWORK_TEXT = 512,
    FSDP__NETWORK_HOST_BYTES = 256,
    FSDP__NETWORK_TAGS = 1 << 22 /* all tags are below this */
};

/* Describes one piece of a message. A message of several pieces lies in all of them, one after the other, and travels
 * as one. */
typedef struct fsdp__segment {
    void *data;
    size_t bytes;
} fsdp__segment;

/* Holds what is known once the network is open. */
typedef struct fsdp__network_world {
    int rank, size;
    int machine;                         /* the lowest rank that shares this rank's memory: the same for all of them */
    char host[FSDP__NETWORK_HOST_BYTES]; /* name of the machine, for messages */
} fsdp__network_world;

/* A message on its way; 0: none. */
typedef uintptr_t fsdp__network_request;

typedef struct fsdp__network_ops {
    int version; /* FSDP__NETWORK_VERSION */

    /* Joins the world; called once in a process. [collective] */
    bool (*open)(void **network, fsdp__network_world *out, char *text);
    /* Leaves the world and frees `network`. `whole`: every rank comes here, and they take leave of each other
     * [collective]; otherwise the world is broken, nobody is waited for and the process is about to end. */
    void (*close)(void *network, bool whole);
    /* Gets the `bytes` of every rank, by rank. Called only while ranks join; messages may already be on their way.
     * `all` NULL: this rank has no memory and cannot go on; then the call fails on every rank. [collective] */
    bool (*exchange)(void *network, const void *mine, size_t bytes, void *all, char *text);

    /* Begin to send and receive. Messages between two ranks with one tag arrive in the order in which they were sent. A
     * receive is for as many bytes as were sent, or more where the message may be `shorter`; any other number is a
     * failure. The segments' memory must stay, and must not be touched, until the request is done; the list of them is
     * copied. */
    bool (*send)(void *network, int to, int tag, const fsdp__segment *segments, int count, fsdp__network_request *out,
                 char *text);
    bool (*receive)(void *network, int from, int tag, const fsdp__segment *segments, int count, bool shorter,
                    fsdp__network_request *out, char *text);
    /* Makes progress. Requests that are done become 0. */
    bool (*test)(void *network, fsdp__network_request *requests, int count, char *text);
    /* Receives a message with `tag` from any rank, if one has come: `*from` is its sender, otherwise -1. The message
     * has at most `bytes` bytes, and `*got` is how many. */
    bool (*poll)(void *network, int tag, void *data, size_t bytes, int *from, size_t *got, char *text);
} fsdp__network_ops;

/* The function that a plug-in exports under this name. */
#define FSDP__NETWORK_SYMBOL "fsdp_network_plugin"
typedef const fsdp__network_ops *(*fsdp__network_plugin)(void);
