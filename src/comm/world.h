/* world.h - the world of a context. */
#pragma once

#include "comm/comm.h"
#include "comm/health/calls.h" /* FSDP__TIMEOUT_MS */

/* Gives the context its world. Owns `transport` from the call on, even when it fails. `world_group` is the transport's
 * group of all ranks (freed by ops->group_free); NULL: ops->group_open makes it. For the fake transport both may be
 * NULL. */
fsdp_status fsdp__comm_attach(fsdp_context *context, const fsdp__comm_ops *ops, void *transport, void *world_group,
                              int rank, int size);
/* Returns the context's comm; a context without one gets a world of one rank. NULL and a last error when out of
 * memory. */
fsdp__comm *fsdp__comm_get(fsdp_context *context);
