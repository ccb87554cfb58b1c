/* describe.h - describes a state in words. */
#ifndef SHARD_STATE_DESCRIBE_H
#define SHARD_STATE_DESCRIBE_H

#include "shard/state/module_state.h"

/* The `describe` hook of a module. */
void fsdp__describe_state(void *state, char *text, size_t bytes);

#endif
