/* describe.h - describes a state in words. */
#ifndef SHARD_STATE_DESCRIBE_H
#define SHARD_STATE_DESCRIBE_H

#include "fsdp/shard_map.h"
#include "shard/state/module_state.h"

fsdp_front_door fsdp__door_of(const fsdp__module_state *state);
const char *fsdp__fsdp1_strategy_name(fsdp_sharding_strategy strategy);
/* Returns the name of the call that made the state, for messages. */
const char *fsdp__door_call(const fsdp__module_state *state);
/* The `describe` hook of a module. */
void fsdp__describe_state(void *state, char *text, size_t bytes);

#endif
