/* default_groups.h - what the sharding engine keeps per context. */
#pragma once

#include "shard/group/mesh_info.h"

/* Gives the mesh over all ranks that every call shares that names no mesh. Borrowed. [collective], the first time */
fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out);
/* Gives a process group of k consecutive ranks of the mesh's shard group, this rank among them. It is made once for a
 * mesh and k, and freed with the context. Borrowed. [collective] of the world, the first time */
fsdp_status fsdp__default_subgroup(const fsdp__mesh_info *mesh, int k, fsdp_process_group **out);
/* Gives a process group of this rank alone. It is made once, and freed with the context. Borrowed. [collective] of the
 * world, the first time */
fsdp_status fsdp__default_alone(fsdp_context *context, fsdp_process_group **out);
/* Returns 1, 2, ...: numbers that tell which of two settings of one context is the later one. Returns 0 when out of
 * memory. */
int64_t fsdp__next_setting(fsdp_context *context);
