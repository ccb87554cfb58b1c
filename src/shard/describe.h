/* describe.h - what a state is, in words. */
#ifndef SHARD_DESCRIBE_H
#define SHARD_DESCRIBE_H

#include "fsdp/shard_map.h"
#include "shard/state.h"

fsdp_front_door fsdp__door_of(const fsdp__module_state *state);
const char *fsdp__fsdp1_strategy_name(fsdp_sharding_strategy strategy);
/* The call that made it, for messages. */
const char *fsdp__door_call(const fsdp__module_state *state);
/* A module's `describe` hook. */
void fsdp__describe_state(void *state, char *text, size_t bytes);

#endif
