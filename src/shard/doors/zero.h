/* zero.h - ZeRO's stages: what the number zero_stage stands for. */
#pragma once

#include "shard/state/module_state.h"

/* Checks that options.zero_stage and the options on resharding go together. */
fsdp_status fsdp__zero_check(const fsdp_shard_options *options);
/* Makes the state follow the stage: with 1 and 2 parameters stay whole from the forward to the backward. */
void fsdp__zero_set(fsdp__module_state *state, int stage);
