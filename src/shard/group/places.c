/* places.c - lays out groups. */
#include "shard/group/places.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/internal.h"
#include "shard/group/cast.h"

static fsdp_status lay_out_parts(fsdp__param_group *group)
{
    const fsdp__residence *r = &group->residence;
    const fsdp__layout_options options = {
        .kind = group->cut->kind,
        .ranks = r->mesh.ranks,
        .rank = r->mesh.rank,
        .unsharded_align =
            (int64_t)FSDP__MAX(group->flat.align / fsdp_dtype_size(group->params[0].param_dtype), (size_t)1)};
    fsdp__extent *extents = fsdp__calloc((size_t)group->param_count, sizeof *extents);
    fsdp__layout layout = {0};
    fsdp_status status;

    if (!extents)
        return FSDP_NO_MEMORY;
    for (int64_t i = 0; i < group->param_count; i++)
        extents[i] = group->params[i].extent;
    FSDP_TRY_GOTO(status, fsdp__layout_make(extents, group->param_count, &options, &layout), out);
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];

        p->part = layout.entries[i].part;
        p->chunk_numel = layout.entries[i].chunk_numel;
    }
    group->cut->lay_out(group, &layout);
out:
    fsdp__layout_release(&layout);
    fsdp__free(extents);
    return status;
}

/* The table of parts counts elements, but parameters have dtypes of their own. So the buffers' places are added up in
 * bytes, each rounded up as the allocator does, to make the ledger's counts add up. */
static void lay_out_buffers(fsdp__param_group *group)
{
    fsdp__residence *r = &group->residence;

    r->shard_bytes = r->unsharded_bytes = 0;
    for (int64_t i = 0; i < group->buffer_count; i++) {
        fsdp__param *p = &group->buffers[i];

        p->shard_offset = r->shard_bytes;
        p->unsharded_offset = r->unsharded_bytes;
        r->shard_bytes += fsdp__param_padded_bytes(p, 1, p->orig_dtype);
        r->unsharded_bytes += fsdp__param_padded_bytes(p, r->mesh.ranks, p->param_dtype);
    }
}

fsdp_status fsdp__param_group_lay_out(fsdp__param_group *group)
{
    FSDP_TRY(lay_out_parts(group));
    lay_out_buffers(group);
    fsdp__encoded_lay_out(group);
    group->way = group->encoded.bytes > 0 ? &fsdp__gather_encoded : &fsdp__gather_shards;
    if (group->encoded.bytes == 0)
        fsdp__cast_lay_out(&group->residence, group->buffers, group->buffer_count);
    return FSDP_OK;
}

fsdp__residence_kind fsdp__choose_residence(const fsdp__param_group *group, const fsdp_device *device)
{
    int ranks = group->residence.mesh.ranks;
    bool share = fsdp__residence_can_share(&group->residence, device);
    /* With several machines, every gather brings the rows of the others into memory that this machine's ranks read. */
    bool apart = ranks > 1 && fsdp__process_group_machines(group->residence.mesh.shard_pg) > 1;

    if (group->encoded.bytes > 0 || (group->all_gather.run && ranks > 1) ||
        fsdp__residence_would_offload(&group->residence, device))
        return FSDP__RESIDENCE_COPY;
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];

        apart = apart || p->param_dtype != p->orig_dtype || !fsdp__param_is_one_run(p);
    }
    if (!apart && (ranks == 1 || share))
        return FSDP__RESIDENCE_IN_PLACE;
    return share ? FSDP__RESIDENCE_CAST : FSDP__RESIDENCE_COPY;
}
