/* flat.c - the buffers of a group: its parameters, or the vector of a flat one. layout.c says where parameters lie. */
#include "shard/group/flat.h"

#include "device/kernels.h"
#include "shard/group/param_group.h"

static void lay_out_by_parameter(fsdp__param_group *group, const fsdp__layout *layout)
{
    for (int64_t i = 0; i < layout->count; i++) {
        fsdp__param *p = &group->params[i];

        p->part.in_shard = 0;
        p->placement = (fsdp_placement){.kind = FSDP_SHARD, .dim = p->dim};
    }
    group->buffers = group->params;
    group->buffer_count = group->param_count;
}

static void lay_out_flat(fsdp__param_group *group, const fsdp__layout *layout)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp__param *first = &group->params[0];
    int64_t numel = layout->shard_numel;

    group->vector = (fsdp__param){.group = group,
                                  .extent = {1, numel * mesh->ranks, 1},
                                  .part = {.at = numel * mesh->rank, .outer = 1, .inner = numel},
                                  .chunk_numel = numel,
                                  .orig_dtype = first->orig_dtype,
                                  .param_dtype = first->param_dtype,
                                  .reduce_dtype = first->reduce_dtype,
                                  .sharded = group->vector.sharded};
    for (int64_t i = 0; i < layout->count; i++) {
        fsdp__param *p = &group->params[i];

        p->placement = (fsdp_placement){.kind = FSDP_FLAT, .first = layout->entries[i].in_unsharded, .chunk = numel};
        p->shard_offset = (size_t)p->part.in_shard * fsdp_dtype_size(p->orig_dtype);
        p->unsharded_offset = (size_t)p->placement.first * fsdp_dtype_size(p->param_dtype);
        p->cast_offset = (size_t)p->part.in_shard * fsdp_dtype_size(p->param_dtype);
    }
    group->buffers = &group->vector;
    group->buffer_count = 1;
}

const fsdp__cut fsdp__cut_by_parameter = {.kind = FSDP__LAYOUT_PER_PARAMETER, .lay_out = lay_out_by_parameter};
const fsdp__cut fsdp__cut_flat = {
    .kind = FSDP__LAYOUT_FLAT,
    .lay_out = lay_out_flat,
    .no_retype = "it lies in a flat parameter, whose places are of its dtype; change it before it is wrapped",
    .no_slices = "a flat parameter keeps no slices"};

fsdp_status fsdp__flat_clear(const fsdp__param_group *group, fsdp_stream *stream, void *part, fsdp_dtype dtype)
{
    if (group->cut != &fsdp__cut_flat)
        return FSDP_OK;
    return fsdp__launch_fill_run(stream, part, dtype, group->vector.chunk_numel, 0.0);
}
