/* fsdp1_mesh.h - who holds what under a strategy of FSDP1's. */
#ifndef SHARD_FSDP1_MESH_H
#define SHARD_FSDP1_MESH_H

#include "fsdp/fsdp1.h"

/* The mesh of one or two dimensions that the options ask for: `*out` is a reference. `*strategy` is theirs, or NO_SHARD
 * where a shard group has one rank. [collective] of the world */
fsdp_status fsdp__fsdp1_mesh(fsdp_context *context, const fsdp_fsdp1_options *options, fsdp_mesh **out,
                             fsdp_sharding_strategy *strategy);

#endif
