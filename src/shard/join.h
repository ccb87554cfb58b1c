/* join.h - uneven inputs of a replicated module: a rank that has none left does what the others' iterations need of it,
 * until all are through (DDP's Join). */
#ifndef SHARD_JOIN_H
#define SHARD_JOIN_H

#include "shard/replica.h"

/* This rank takes part in a forward, unless it cannot (`mine`): the others are told, and counted. An error is one of
 * all ranks, and ends the join; it is `mine` outside of one. [collective] in a join */
fsdp_status fsdp__join_announce(fsdp__module_state *state, bool recording, fsdp_status mine);

/* fsdp__begin_together, whose error ends the join that the module may be in: it is one of all ranks. [collective] */
fsdp_status fsdp__join_begin_together(void *outermost, fsdp_module *module, fsdp_status mine);

#endif
