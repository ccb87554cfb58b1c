/* defaults.h - what the sharding engine keeps per context. */
#ifndef SHARD_DEFAULTS_H
#define SHARD_DEFAULTS_H

#include "shard/mesh_info.h"

/* One mesh over all ranks, shared by every call that names none. Borrowed. [collective], the first time */
fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out);
/* The k consecutive ranks of the mesh's shard group that this one is among, as a process group: made once for a mesh
 * and k, and freed with the context. Borrowed. [collective] of the world, the first time */
fsdp_status fsdp__default_subgroup(const fsdp__mesh_info *mesh, int k, fsdp_process_group **out);
/* This rank alone, as a process group: made once, and freed with the context. Borrowed. [collective] of the world, the
 * first time */
fsdp_status fsdp__default_alone(fsdp_context *context, fsdp_process_group **out);
/* 1, 2, ...: tells which of two settings of one context is the later one. 0 when out of memory. */
int64_t fsdp__next_setting(fsdp_context *context);

#endif
