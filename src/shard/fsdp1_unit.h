/* fsdp1_unit.h - what FSDP1 does to a unit's modules before it is sharded, and asks of them. */
#ifndef SHARD_FSDP1_UNIT_H
#define SHARD_FSDP1_UNIT_H

#include "fsdp/fsdp1.h"
#include "shard/mesh_info.h"

/* The unit's parameters may lie together, as original parameters or as one. */
fsdp_status fsdp__fsdp1_check_unit(const fsdp_wrap_unit *unit, bool use_orig_params);
/* options->param_init_fn, where there is one, for each module of the unit that is on the meta device. */
fsdp_status fsdp__fsdp1_init_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit,
                                  const fsdp_fsdp1_options *options);
/* Parameters and buffers of the unit get the values of the first rank of the mesh. NULL: only whether they can.
 * [collective] with a mesh */
fsdp_status fsdp__fsdp1_sync_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit,
                                  const fsdp__mesh_info *mesh);

#endif
