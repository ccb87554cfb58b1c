/* join.h - uneven inputs of a replicated module: a rank that has none left does what the others' iterations need of it,
 * until all are through (DDP's Join). */
#ifndef SHARD_JOIN_H
#define SHARD_JOIN_H

#include "shard/replica.h"

/* This rank takes part in a forward: the others are told, and counted. Nothing outside of a scope. [collective] */
fsdp_status fsdp__join_announce(fsdp__module_state *state, bool recording);

#endif
