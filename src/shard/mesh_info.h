/* mesh_info.h - the process groups of one group of parameters (FSDP2's FSDPMeshInfo). */
#ifndef SHARD_MESH_INFO_H
#define SHARD_MESH_INFO_H

#include "fsdp/dist.h"

typedef struct fsdp__mesh_info {
    fsdp_mesh *mesh;                  /* holds the two process groups */
    fsdp_process_group *shard_pg;     /* ranks that hold one part each; may be of one rank */
    fsdp_process_group *replicate_pg; /* ranks that hold the same part; NULL: this one alone */
    int ranks, rank;                  /* of shard_pg */
} fsdp__mesh_info;

/* Of a mesh of one dimension, which shards. Takes a reference of it. */
fsdp__mesh_info fsdp__mesh_info_of(fsdp_mesh *mesh);
void fsdp__mesh_info_release(fsdp__mesh_info *info);

#endif
