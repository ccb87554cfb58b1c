/* fsdp1_mesh.h - who holds what under a strategy of FSDP1's. */
#ifndef SHARD_FSDP1_MESH_H
#define SHARD_FSDP1_MESH_H

#include "fsdp/fsdp1.h"

/* Whether a strategy and what it shards over fit, as far as one rank can tell. */
fsdp_status fsdp__fsdp1_check(fsdp_context *context, const fsdp_fsdp1_options *options);
/* The mesh of one or two dimensions that the options, which were checked, ask for: `*out` is a reference. `*strategy`
 * is theirs, or NO_SHARD where a shard group has one rank. [collective] of the world */
fsdp_status fsdp__fsdp1_mesh(fsdp_context *context, const fsdp_fsdp1_options *options, fsdp_mesh **out,
                             fsdp_sharding_strategy *strategy);

#endif
