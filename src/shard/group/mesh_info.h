/* mesh_info.h - the process groups of one group of parameters (FSDP2's FSDPMeshInfo). */
#pragma once

#include "fsdp/shard.h"

typedef struct fsdp__mesh_info {
    fsdp_mesh *mesh;                  /* holds the two process groups */
    fsdp_process_group *shard_pg;     /* ranks that hold one part each; may be a single rank */
    fsdp_process_group *replicate_pg; /* ranks that hold the same part; NULL: the mesh has no such dimension */
    int ranks, rank;                  /* of shard_pg */
    int replicas;                     /* ranks of replicate_pg, else 1 */
    /* Ranks that have other parts of what this one takes for whole parameters (tensor parallel), or the same, and that
     * make the same calls: one group for each dimension of the meshes that cut them before. */
    fsdp_process_group *parallel_pgs[FSDP_MAX_MESH_DIMS];
    int parallel_count;
} fsdp__mesh_info;

/* Returns the process groups of a mesh: with one dimension, that one shards; with two, the first replicates and the
 * second shards. Takes a reference to the mesh. */
fsdp__mesh_info fsdp__mesh_info_of(fsdp_mesh *mesh);
void fsdp__mesh_info_release(fsdp__mesh_info *info);
/* Returns whether some of the replicas of this rank's part are on other machines. */
bool fsdp__mesh_info_replicas_span_machines(const fsdp__mesh_info *info);
/* Adds the groups of a mesh over which a parameter was cut before; those of one rank, and those that it has, stay out.
 * FSDP_UNSUPPORTED: there are more than FSDP_MAX_MESH_DIMS. */
fsdp_status fsdp__mesh_info_add_parallel(fsdp__mesh_info *info, const fsdp_mesh *mesh);
/* Gives the placements, one for each mesh dimension, of a parameter that has `placement` over the shard group. */
void fsdp__mesh_info_place(const fsdp__mesh_info *info, fsdp_placement placement, fsdp_distribution *out);
/* Agrees with all ranks of the mesh, and of the meshes added to it, on the status of something that all of them were
 * asked for; the failure of the lowest rank wins. [collective] */
fsdp_status fsdp__mesh_info_agree(const fsdp__mesh_info *info, fsdp_status mine);
/* Does the same for one mesh after another, but asks nobody if `*last` (NULL at first) has the same ranks. Sets
 * `*last`. `shares` (may be NULL) says whether this rank is about to take memory that the shard group shares:
 * FSDP_MISMATCH if not all ranks are, or none. [collective] */
fsdp_status fsdp__mesh_info_agree_after(const fsdp__mesh_info **last, const fsdp__mesh_info *info, fsdp_status mine,
                                        const bool *shares);

/* Gives the mesh of one or two dimensions that a front door was asked for: `mesh`, or those of its dimensions that
 * `dims` names, which may name none. `*out` is a reference. [collective] where a group has to be made */
fsdp_status fsdp__data_parallel_mesh(fsdp_mesh *mesh, const fsdp_dp_mesh_dims *dims, fsdp_mesh **out);
