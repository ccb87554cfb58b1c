/* replicate_forward.h - what the forwards of a replicated module begin and end with: new buckets if they are due, and
 * the buffers of the rank that speaks for all (rank 0, except in a join). */
#pragma once

#include "shard/reduce/buckets.h"
#include "shard/state/root.h"

/* Returns the group of a replicated module's state; NULL if the module is not replicated, or has no parameters. */
fsdp__param_group *fsdp__replica_of(const fsdp__module_state *state);
/* Broadcasts from rank `root` of the replicas the parameters that have values there, and the buffers below the state's
 * modules. [collective] */
fsdp_status fsdp__replica_broadcast(const fsdp__module_state *state, int root);
/* Checks whether this rank's next forward may run. */
fsdp_status fsdp__replica_check(const fsdp__module_state *state, bool recording);
/* Begins an iteration, which fsdp__replica_settle ends. Every rank calls both, whether it has a forward in the
 * iteration or not. [collective] */
fsdp_status fsdp__replica_prepare(fsdp__module_state *state, bool recording);
void fsdp__replica_settle(fsdp__module_state *state, bool syncs);
/* Does the latter after a forward of this rank's. */
void fsdp__replica_end_forward(fsdp__module_state *state, bool recording);
