/* spread.c - how a parameter is spread over ranks. */
#include "fsdp/dist.h"
#include "optim/optim.h"
#include "tensor/tensor.h"

int fsdp__optimizer_whole_shape(const fsdp_tensor *tensor, const int64_t **shape)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    *shape = distribution ? distribution->global_shape : tensor->shape;
    return distribution ? distribution->ndim : tensor->ndim;
}

bool fsdp__spread_equal(const fsdp__spread *a, const fsdp__spread *b)
{
    return a->device == b->device && a->sharded == b->sharded &&
           (a->mesh == b->mesh || fsdp_mesh_equal(a->mesh, b->mesh));
}

fsdp_status fsdp__spread_of(const char *name, const fsdp_tensor *tensor, const char *what, fsdp__spread *out)
{
    const fsdp_distribution *distribution = fsdp_tensor_distribution(tensor);

    *out = (fsdp__spread){.device = fsdp_tensor_device(tensor)};
    for (int i = 0; distribution && i < distribution->placement_count; i++) {
        if (distribution->placements[i].kind == FSDP_PARTIAL)
            return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot %s '%s': it is partial over mesh dimension '%s'", what, name,
                             fsdp_mesh_dim_name(distribution->mesh, i));
        if (distribution->placements[i].kind != FSDP_REPLICATE)
            out->sharded |= 1u << i;
    }
    if (out->sharded)
        out->mesh = distribution->mesh;
    return FSDP_OK;
}
