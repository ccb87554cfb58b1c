/* write.h - what happens before a write to a shard, whoever writes: the guard of the shards' storages calls it. */
#pragma once

#include "shard/state/module_state.h"

/* Prepares a group for a write to its shards by the device's stream: see [Note: readers and writers] in residence.h. */
fsdp_status fsdp__begin_write(void *group, const fsdp__storage *storage);
