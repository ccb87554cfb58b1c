/* recompute.h - a forward that runs again for a backward (fsdp_recompute), through sharded modules. */
#ifndef SHARD_STATE_RECOMPUTE_H
#define SHARD_STATE_RECOMPUTE_H

#include "shard/state/root.h"

/* Returns whether the forward runs again for a backward, inside it. */
bool fsdp__is_recomputed(const fsdp__module_state *state);
/* Ends a second run. What is gathered stays until the backward has come through the modules, if it will. */
void fsdp__leave_recomputation(fsdp__module_state *state, bool will_come);

#endif
