/* mesh_info.c - which ranks hold which part. */
#include "shard/mesh_info.h"

fsdp__mesh_info fsdp__mesh_info_of(fsdp_mesh *mesh)
{
    fsdp_process_group *pg = fsdp_mesh_process_group(mesh, 0);

    return (fsdp__mesh_info){.mesh = fsdp_mesh_ref(mesh),
                             .shard_pg = pg,
                             .ranks = fsdp_process_group_size(pg),
                             .rank = fsdp_process_group_rank(pg)};
}

void fsdp__mesh_info_release(fsdp__mesh_info *info)
{
    fsdp_mesh_unref(info->mesh);
    *info = (fsdp__mesh_info){0};
}
