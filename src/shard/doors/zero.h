/* zero.h - ZeRO's stages: what the number zero_stage stands for. */
#ifndef SHARD_DOORS_ZERO_H
#define SHARD_DOORS_ZERO_H

#include "fsdp/shard.h"

/* Checks that options.zero_stage and the options on resharding go together. */
fsdp_status fsdp__zero_check(const fsdp_shard_options *options);

#endif
