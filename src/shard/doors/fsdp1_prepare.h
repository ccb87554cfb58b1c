/* fsdp1_prepare.h - what FSDP1 checks in a unit's modules, and does to them, before they are sharded. */
#pragma once

#include "fsdp/fsdp1.h"
#include "shard/group/mesh_info.h"

/* Checks that the unit's parameters may lie together in one vector, as original parameters or as one parameter. */
fsdp_status fsdp__fsdp1_check_unit(const fsdp_wrap_unit *unit, bool use_orig_params);
/* Calls options->param_init_fn, if there is one, for each module of the unit that is on the meta device. */
fsdp_status fsdp__fsdp1_init_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit,
                                  const fsdp_fsdp1_options *options);
/* Broadcasts the parameters and buffers of the unit from the first rank of the mesh. With a NULL mesh it checks only
 * whether that is possible. [collective] with a mesh */
fsdp_status fsdp__fsdp1_sync_unit(const fsdp_wrap_units *units, const fsdp_wrap_unit *unit,
                                  const fsdp__mesh_info *mesh);
