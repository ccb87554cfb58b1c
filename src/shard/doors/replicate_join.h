/* replicate_join.h - uneven inputs of a replicated module: a rank that has no inputs left does what the others'
 * iterations need of it, until all ranks are through (DDP's Join). */
#pragma once

#include "shard/doors/replicate_forward.h"

/* Begins an iteration, before the parameters of the outermost module are used. Announces to the other ranks that this
 * one takes part, or that it cannot, and counts those that do. In a join an error is the same on all ranks and ends the
 * join. [collective] */
fsdp_status fsdp__replica_begin_forward(fsdp__module_state *state, bool recording);
/* Ends the join that the module may be in, after an error that is the same on all ranks. */
void fsdp__replica_not_begun(fsdp__module_state *state);
