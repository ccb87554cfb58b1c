/* replica.h - what the forwards of a replicated module begin and end with: its buckets divided anew, rank 0's buffers.
 */
#ifndef SHARD_REPLICA_H
#define SHARD_REPLICA_H

#include "shard/buckets.h"
#include "shard/root.h"

/* The group of a replicated module's state; NULL: it is not one, or has no parameters. */
fsdp__param_group *fsdp__replica_of(const fsdp__module_state *state);
/* Parameters that have values on rank `root` of the replicas, and buffers below the state's modules, become that one's.
 * [collective] */
fsdp_status fsdp__replica_broadcast(const fsdp__module_state *state, int root);
/* Whether this rank's next forward may be. */
fsdp_status fsdp__replica_check(const fsdp__module_state *state, bool recording);
/* What an iteration begins with, whether this rank has a forward in it or not; with that ends. [collective] */
fsdp_status fsdp__replica_prepare(fsdp__module_state *state, bool recording);
void fsdp__replica_settle(fsdp__module_state *state, bool syncs);
#endif
