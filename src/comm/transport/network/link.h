/* link.h - the network as one rank uses it: it addresses peers by their ranks, and can be silenced.
 *
 * [Note: messages that are given up]
 * A call that fails leaves messages on their way into memory that is its caller's again. So when the world is broken
 * the ranks are told of it, and then nothing calls the network any more (`silent`): a carrier that is not called moves
 * nothing. A call that gives up messages waits for that (fsdp__link_give_up) before it returns. (An MPI whose network
 * card writes by itself, or that is called by the program or a thread of its own, may still move what was promised to
 * it by then: after such a failure a process best ends.) */
#pragma once

#include <stdatomic.h>

#include "comm/health/board.h"
#include "comm/health/places.h"
#include "comm/transport/network/network.h"

typedef struct fsdp__link {
    const fsdp__network_ops *ops;
    void *network;
    fsdp__places places;
    /* of this machine: the reason why the world is broken is written there; NULL: nobody waits for this rank */
    fsdp__board *board;
    _Atomic int inside;  /* number of threads that are in the network */
    _Atomic bool silent; /* the network is not called any more */
    _Atomic bool told;   /* the other machines know that the world is broken, as far as they can be told */
} fsdp__link;

/* Call the network's functions. They fail, and break the world, with the carrier's text; the first two also fail where
 * the world is broken, with its reason. In a broken world messages that have arrived can still be received. */
fsdp_status fsdp__link_send(fsdp__link *link, int to, int tag, const fsdp__segment *segments, int count,
                            fsdp__network_request *out);
fsdp_status fsdp__link_receive(fsdp__link *link, int from, int tag, const fsdp__segment *segments, int count,
                               bool shorter, fsdp__network_request *out);
fsdp_status fsdp__link_test(fsdp__link *link, fsdp__network_request *requests, int count);

/* Serve the thread that watches (watch.c), also in a broken world. Return false when the network cannot be called. */
bool fsdp__link_tell(fsdp__link *link, int to, void *data, size_t bytes, fsdp__network_request *out);
bool fsdp__link_settle(fsdp__link *link, fsdp__network_request *request);
bool fsdp__link_poll(fsdp__link *link, void *data, size_t bytes, int *from, size_t *got);

/* Breaks the world with the last error, which is this rank's own. */
void fsdp__link_fail(fsdp__link *link);
/* Makes sure that nothing calls the network from here on: waits for the calls that are in it (deadline.h). */
void fsdp__link_silence(fsdp__link *link);
/* Gives messages up in a broken world: see the note. Does not wait for long. */
void fsdp__link_give_up(fsdp__link *link);
