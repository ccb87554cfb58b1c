/* shard/parts.h - a front door of the tests' own: the state of a call gets several groups. */
#pragma once

#include "fsdp/shard.h"

/* fsdp_fully_shard_modules, but the parameters go in turn to `parts` groups. [collective] */
fsdp_status shard_in_parts(fsdp_module *const *modules, int count, const fsdp_shard_options *options, int parts);
