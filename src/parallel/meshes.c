/* meshes.c - makes the meshes of a world in which ranks share layers and sequences. */
#include "parallel/meshes.h"

#include "base/alloc.h"
#include "dist/dist.h"

fsdp_status fsdp__parallel_meshes_create(fsdp_context *context, const fsdp__parallel_degrees *degrees,
                                         fsdp__parallel_meshes *out)
{
    static const char *const names[] = {"dp_replicate", "dp_shard", "cp", "tp"};
    static const char *const without[] = {"dp_replicate", "dp_shard", "tp"}; /* where no sequence is cut */
    static const char *const sharded[] = {"dp_replicate", "dp_shard_cp"};
    const fsdp__mesh_names dims[] = {{1, names}, {2, names + 1}};
    int64_t team = degrees->cp * degrees->tp, rest = fsdp_context_world_size(context) / team;
    const int64_t shape[] = {degrees->replicas, rest / degrees->replicas, degrees->cp, degrees->tp};
    const int64_t flat[] = {shape[0], shape[1], shape[3]};
    int first = degrees->replicas == 1; /* of the dimensions */
    FSDP__SCOPED(fsdp_mesh_unref_at) fsdp_mesh *whole = NULL;

    *out = (fsdp__parallel_meshes){0};
    if (team == 1 && first)
        return FSDP_OK;
    if (team == 1)
        return fsdp_mesh_create(context, 2, shape, names, &out->sharded);
    if (degrees->cp == 1)
        FSDP_TRY(fsdp_mesh_create(context, 3 - first, flat + first, without + first, &whole));
    else
        FSDP_TRY(fsdp_mesh_create(context, 4 - first, shape + first, names + first, &whole));
    if (degrees->cp == 1)
        FSDP_TRY(fsdp_mesh_slice(whole, 2 - first, names + first, &out->sharded));
    else if (degrees->tp > 1 || !first)
        FSDP_TRY(fsdp__mesh_part(whole, "flatten a mesh", 2 - first, dims + first, sharded + first, &out->sharded));
    if (degrees->cp > 1)
        FSDP_TRY(fsdp_mesh_slice(whole, 1, &names[2], &out->cp));
    return degrees->tp > 1 ? fsdp_mesh_slice(whole, 1, &names[3], &out->tp) : FSDP_OK;
}

void fsdp__parallel_meshes_release(fsdp__parallel_meshes *meshes)
{
    fsdp_mesh_unref(meshes->sharded);
    fsdp_mesh_unref(meshes->cp);
    fsdp_mesh_unref(meshes->tp);
    *meshes = (fsdp__parallel_meshes){0};
}
