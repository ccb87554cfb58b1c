/* zero.h - ZeRO's stages: what the options of one number mean. */
#ifndef SHARD_ZERO_H
#define SHARD_ZERO_H

#include "fsdp/shard.h"

/* Whether options.zero_stage and what they say about resharding go together. */
fsdp_status fsdp__zero_check(const fsdp_shard_options *options);

#endif
