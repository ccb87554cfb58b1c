/* places.c - lays out groups. */
#include "shard/group/places.h"

#include "comm/internal.h"
#include "shard/group/cast.h"

/* Parts are counted in elements, but parameters have dtypes of their own. So the buffers' places are added up in
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

void fsdp__param_group_lay_out(fsdp__param_group *group)
{
    group->cut->lay_out(group);
    lay_out_buffers(group);
    fsdp__encoded_lay_out(group);
    group->way = group->encoded.bytes > 0 ? &fsdp__gather_encoded : &fsdp__gather_shards;
    if (group->encoded.bytes == 0)
        fsdp__cast_lay_out(&group->residence, group->buffers, group->buffer_count);
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
