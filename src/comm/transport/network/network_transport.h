/* network_transport.h - ranks of several machines, with shared memory on each and a network between them. */
#pragma once

#include "comm/transport/arena/arena.h"
#include "comm/transport/network/deadline.h"

typedef struct fsdp__network_options {
    int threads;           /* threads of a rank: see fsdp_context_options */
    bool all_readable;     /* the ranks of a machine are threads of one process */
    bool one_level;        /* ranks of one machine share nothing either: for comparison (FSDP_ONE_LEVEL=1) */
    fsdp__joining joining; /* holds while ranks join; later comm.timeout does */
    /* Returns a reference to the memory of this machine's ranks, among which this rank has the number places->rank %
     * places->machine_ranks. Only `exchange` of the network has been called before. [collective] */
    fsdp_status (*share)(void *arg, const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                         fsdp__arena **out);
    void *arg;
} fsdp__network_options;

/* Joins the carrier's world as one of its ranks, with a context of its own. Waits for all ranks. [collective] */
fsdp_status fsdp__network_join(const fsdp__network_ops *ops, const fsdp__network_options *options, fsdp_context **out);
/* Does the same with what is known already; waits for nobody unless `wait` says so. `network` is open; it is closed,
 * and the places are released, when the context is freed or this fails. */
fsdp_status fsdp__network_attach(const fsdp__network_ops *ops, void *network, fsdp__places places, fsdp__arena *arena,
                                 const fsdp__network_options *options, bool wait, fsdp_context **out);
