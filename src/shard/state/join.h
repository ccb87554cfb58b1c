/* join.h - uneven inputs of a replicated module: a rank that has no inputs left does what the others' iterations need
 * of it, until all ranks are through (DDP's Join). */
#ifndef SHARD_STATE_JOIN_H
#define SHARD_STATE_JOIN_H

#include "shard/state/replica.h"

/* Announces to the other ranks that this one takes part in a forward, or that it cannot (`mine`), and counts those that
 * do. In a join an error is the same on all ranks and ends the join; outside of one `mine` is returned. [collective] in
 * a join */
fsdp_status fsdp__join_announce(fsdp__module_state *state, bool recording, fsdp_status mine);

/* Does what fsdp__begin_together does. An error, which is the same on all ranks, ends the join that the module may be
 * in. [collective] */
fsdp_status fsdp__join_begin_together(void *outermost, fsdp_module *module, fsdp_status mine);

#endif
