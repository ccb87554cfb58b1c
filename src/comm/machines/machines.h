/* machines.h - ranks of several machines: shared memory on each, a network between them. */
#ifndef COMM_MACHINES_MACHINES_H
#define COMM_MACHINES_MACHINES_H

#include "comm/machines/deadline.h"
#include "comm/symmetric/arena.h"

typedef struct fsdp__machines_options {
    int threads;           /* of a rank: see fsdp_context_options */
    bool all_readable;     /* the ranks of a machine are threads of one process */
    bool one_level;        /* ranks of one machine share nothing, either: for comparison (FSDP_ONE_LEVEL=1) */
    fsdp__joining joining; /* then comm.timeout holds */
    /* The memory of this machine's ranks, of which this is number places->rank % places->machine_ranks; a reference.
     * `network`: nothing but `exchange` has been called. [collective] */
    fsdp_status (*share)(void *arg, const fsdp__network_ops *ops, void *network, const fsdp__places *places,
                         fsdp__arena **out);
    void *arg;
} fsdp__machines_options;

/* Joins the world of the carrier as one of its ranks, with a context of its own. Waits for all. [collective] */
fsdp_status fsdp__machines_join(const fsdp__network_ops *ops, const fsdp__machines_options *options,
                                fsdp_context **out);
/* The same with what is known already, without waiting for anybody: `network` is open, and closed when the context is
 * freed, or this fails; so are the places. */
fsdp_status fsdp__machines_attach(const fsdp__network_ops *ops, void *network, fsdp__places places, fsdp__arena *arena,
                                  const fsdp__machines_options *options, bool wait, fsdp_context **out);

#endif
