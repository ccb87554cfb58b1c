/* fsdp1_mesh.h - makes the mesh that a strategy of FSDP1's asks for. */
#pragma once

#include "fsdp/fsdp1.h"

const char *fsdp__fsdp1_strategy_name(fsdp_sharding_strategy strategy);
/* Checks that the strategy fits what it shards over, as far as one rank can tell. */
fsdp_status fsdp__fsdp1_check(fsdp_context *context, const fsdp_fsdp1_options *options);
/* Makes the mesh of one or two dimensions that the options ask for; they must have been checked. `*out` is a reference.
 * `*strategy` is the options' strategy, or NO_SHARD if a shard group has one rank. [collective] of the world */
fsdp_status fsdp__fsdp1_mesh(fsdp_context *context, const fsdp_fsdp1_options *options, fsdp_mesh **out,
                             fsdp_sharding_strategy *strategy);
