/* flat.c - the vector of a flat group, as a buffer with bytes. layout.c says where its parameters lie in it. */
#include "shard/group/flat.h"

#include "base/compiler.h"
#include "shard/group/param_group.h"

int64_t fsdp__flat_align(const fsdp__flat *flat, fsdp_dtype param_dtype)
{
    return (int64_t)FSDP__MAX(flat->align / fsdp_dtype_size(param_dtype), (size_t)1);
}

void fsdp__flat_lay_out(fsdp__param_group *group, int64_t shard_numel)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp__param *first = &group->params[0];

    group->vector = (fsdp__param){.group = group,
                                  .extent = {1, shard_numel * mesh->ranks, 1},
                                  .piece = {.at = shard_numel * mesh->rank, .outer = 1, .inner = shard_numel},
                                  .chunk_numel = shard_numel,
                                  .orig_dtype = first->orig_dtype,
                                  .param_dtype = first->param_dtype,
                                  .reduce_dtype = first->reduce_dtype,
                                  .sharded = group->vector.sharded};
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        p->shard_offset = (size_t)p->piece.in_shard * fsdp_dtype_size(p->orig_dtype);
        p->unsharded_offset = (size_t)p->flat_first * fsdp_dtype_size(p->param_dtype);
        p->cast_offset = (size_t)p->piece.in_shard * fsdp_dtype_size(p->param_dtype);
    }
}
