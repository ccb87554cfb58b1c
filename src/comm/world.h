/* world.h - the world of a context. */
#ifndef COMM_WORLD_H
#define COMM_WORLD_H

#include "comm/comm.h"

enum {
    FSDP__TICK_MS = 200,      /* how often who waits for a rank looks around */
    FSDP__TIMEOUT_MS = 300000 /* unless the user says otherwise */
};

/* Gives the context its world. Owns `transport` from the call on, also when it fails. `world_group` is the transport's
 * group of all ranks (freed by ops->group_free); both are NULL for the fake transport. */
fsdp_status fsdp__comm_attach(fsdp_context *context, const fsdp__comm_ops *ops, void *transport, void *world_group,
                              int rank, int size);
/* Of a context without one: a world of one rank is attached. NULL and a last error when out of memory. */
fsdp__comm *fsdp__comm_get(fsdp_context *context);

#endif
