/* mesh_info.h - the process groups of one group of parameters (FSDP2's FSDPMeshInfo). */
#ifndef SHARD_MESH_INFO_H
#define SHARD_MESH_INFO_H

#include "fsdp/shard.h"

typedef struct fsdp__mesh_info {
    fsdp_mesh *mesh;                  /* holds the two process groups */
    fsdp_process_group *shard_pg;     /* ranks that hold one part each; may be of one rank */
    fsdp_process_group *replicate_pg; /* ranks that hold the same part; NULL: the mesh has no such dimension */
    int ranks, rank;                  /* of shard_pg */
    int replicas;                     /* ranks of replicate_pg, else 1 */
} fsdp__mesh_info;

/* Of a mesh of one dimension, which shards, or of two: the first replicates, the second shards. Takes a reference of
 * it. */
fsdp__mesh_info fsdp__mesh_info_of(fsdp_mesh *mesh);
void fsdp__mesh_info_release(fsdp__mesh_info *info);
/* How a parameter that is sharded in dimension `dim` lies on the mesh: a placement for each of its dimensions. */
void fsdp__mesh_info_place(const fsdp__mesh_info *info, int dim, fsdp_distribution *out);
/* What the caller asked all its ranks for, agreed with all of them; the lowest failure wins. [collective] */
fsdp_status fsdp__mesh_info_agree(const fsdp__mesh_info *info, fsdp_status mine);
/* The same for one mesh after another: asks nobody where `*last` (NULL at first) has the same ranks. Sets `*last`.
 * [collective] */
fsdp_status fsdp__mesh_info_agree_after(const fsdp__mesh_info **last, const fsdp__mesh_info *info, fsdp_status mine);

/* The mesh of one or two dimensions that a front door was asked for: `mesh`, or its dimensions that `dims` names, which
 * may name none. `*out` is a reference. [collective] where a group has to be made */
fsdp_status fsdp__data_parallel_mesh(fsdp_mesh *mesh, const fsdp_dp_mesh_dims *dims, fsdp_mesh **out);

#endif
