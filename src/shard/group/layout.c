/* layout.c - chooses where the parameters of a group lie, what its buffers are (its parameters, or one vector), how it
 * is gathered, and where its bytes live. */
#include "shard/group/layout.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "comm/group_calls.h"
#include "device/kernels.h"
#include "shard/group/cast.h"
#include "shard/group/param_group.h"

/* Cuts each parameter by itself: a rank has ceil(rows / ranks) rows, trailing ranks fewer or none. */
static void lay_out_by_parameter(fsdp__param_group *group)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;

    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__param *p = &group->params[i];
        const fsdp__extent *e = &p->extent;
        int64_t first, rows = fsdp_shard_range(e->rows, mesh->ranks, mesh->rank, &first);

        p->part = (fsdp__part){
            .at = first * e->inner, .outer = e->outer, .stride = e->rows * e->inner, .inner = rows * e->inner};
        p->chunk_numel = e->outer * ((e->rows + mesh->ranks - 1) / mesh->ranks) * e->inner;
        p->placement = (fsdp_placement){.kind = FSDP_SHARD, .dim = p->dim};
    }
    group->buffers = group->params;
    group->buffer_count = group->param_count;
}

static fsdp_status clear_nothing(const fsdp__param_group *group, fsdp_stream *stream, void *part, fsdp_dtype dtype)
{
    (void)group, (void)stream, (void)part, (void)dtype;
    return FSDP_OK;
}

/* ---- flat ---- */

/* Places the parameters one after the other; returns the length of each rank's part of the vector. */
static int64_t line_up(fsdp__param_group *group)
{
    int64_t align = (int64_t)FSDP__MAX(group->flat.align / fsdp_dtype_size(group->params[0].param_dtype), (size_t)1);
    int64_t end = 0, ranks = group->residence.mesh.ranks;

    for (int64_t i = 0; i < group->param_count; i++) {
        int64_t first = FSDP__ROUND_UP(end, align);

        group->params[i].placement = (fsdp_placement){.kind = FSDP_FLAT, .first = first};
        end = first + fsdp__param_numel(&group->params[i]);
    }
    return (end + ranks - 1) / ranks;
}

/* Finds what of a parameter lies in elements [begin, begin + numel) of the vector: all, a part, or nothing. */
static void cut_run(fsdp__param *p, int64_t begin, int64_t numel)
{
    int64_t all = fsdp__param_numel(p), first = p->placement.first;
    int64_t from = FSDP__MIN(FSDP__MAX(begin - first, 0), all);
    int64_t to = FSDP__MIN(FSDP__MAX(begin + numel - first, 0), all);

    p->part =
        (fsdp__part){.at = from, .in_shard = to > from ? first + from - begin : 0, .outer = 1, .inner = to - from};
    p->chunk_numel = to - from;
    p->placement.chunk = numel;
    p->shard_offset = (size_t)p->part.in_shard * fsdp_dtype_size(p->orig_dtype);
    p->unsharded_offset = (size_t)first * fsdp_dtype_size(p->param_dtype);
    p->cast_offset = (size_t)p->part.in_shard * fsdp_dtype_size(p->param_dtype);
}

static void lay_out_flat(fsdp__param_group *group)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    const fsdp__param *first = &group->params[0];
    int64_t numel = line_up(group);

    group->vector = (fsdp__param){.group = group,
                                  .extent = {1, numel * mesh->ranks, 1},
                                  .part = {.at = numel * mesh->rank, .outer = 1, .inner = numel},
                                  .chunk_numel = numel,
                                  .orig_dtype = first->orig_dtype,
                                  .param_dtype = first->param_dtype,
                                  .reduce_dtype = first->reduce_dtype,
                                  .sharded = group->vector.sharded};
    for (int64_t i = 0; i < group->param_count; i++)
        cut_run(&group->params[i], numel * mesh->rank, numel);
    group->buffers = &group->vector;
    group->buffer_count = 1;
}

fsdp_status fsdp__flat_tensor(const fsdp__param_group *group, fsdp_device *device, int64_t global, fsdp_tensor **out)
{
    const fsdp__mesh_info *mesh = &group->residence.mesh;
    fsdp_dtype dtype = group->params[0].orig_dtype;
    fsdp_distribution distribution = {.ndim = 1, .global_shape = {global}};
    int64_t start, numel = fsdp_shard_range(global, mesh->ranks, mesh->rank, &start);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *part = NULL;
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    FSDP_TRY(fsdp__storage_create(device, (size_t)numel * fsdp_dtype_size(dtype), FSDP_MEMORY_PARAMETER_SHARD, false,
                                  &storage));
    FSDP_TRY(fsdp__tensor_create_view(storage, dtype, 1, &numel, NULL, 0, &part));
    fsdp__mesh_info_place(mesh, (fsdp_placement){.kind = FSDP_SHARD}, &distribution);
    FSDP_TRY(fsdp_tensor_set_distribution(part, &distribution));
    *out = fsdp__take(&part);
    return FSDP_OK;
}

static fsdp_status clear_part(const fsdp__param_group *group, fsdp_stream *stream, void *part, fsdp_dtype dtype)
{
    return fsdp__launch_fill_run(stream, part, dtype, group->vector.chunk_numel, 0.0);
}

const fsdp__cut fsdp__cut_by_parameter = {.lay_out = lay_out_by_parameter, .clear = clear_nothing};
const fsdp__cut fsdp__cut_flat = {
    .lay_out = lay_out_flat,
    .clear = clear_part,
    .no_retype = "it lies in a flat parameter, whose places are of its dtype; change it before it is wrapped",
    .no_slices = "a flat parameter keeps no slices"};

/* ---- all of it ---- */

bool fsdp__param_lies_last(const fsdp__param *param)
{
    return param->extent.outer == 1 && param->extent.inner == 1;
}

/* Parts are counted in elements, but parameters have dtypes of their own. So the buffers' places are added up in
 * bytes, each rounded up as the allocator does, to make the ledger's counts add up. */
static void lay_out_buffers(fsdp__param_group *group)
{
    fsdp__residence *r = &group->residence;

    r->shard_bytes = r->unsharded_bytes = 0;
    for (int64_t i = 0; i < group->buffer_count; i++) {
        fsdp__param *p = &group->buffers[i];

        p->shard_offset = r->shard_bytes;
        r->shard_bytes += fsdp__param_padded_bytes(p, 1, p->orig_dtype);
    }
    for (int last = 0; last < 2; last++)
        for (int64_t i = 0; i < group->buffer_count; i++) {
            fsdp__param *p = &group->buffers[i];

            if (fsdp__param_lies_last(p) != last)
                continue;
            p->unsharded_offset = r->unsharded_bytes;
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
    bool apart = ranks > 1 && fsdp__process_group_machines(group->residence.mesh.shard_pg) > 1, all_cast = true;

    if (group->encoded.bytes > 0 || (group->all_gather.run && ranks > 1) ||
        fsdp__residence_would_offload(&group->residence, device))
        return FSDP__RESIDENCE_COPY;
    for (int64_t i = 0; i < group->param_count; i++) {
        const fsdp__param *p = &group->params[i];
        bool cast = p->param_dtype != p->orig_dtype;

        apart = apart || cast || !fsdp__param_is_one_run(p);
        all_cast = all_cast && cast && fsdp__param_keeps_cast(p);
    }
    if (!apart && (ranks == 1 || share || group->residence.common))
        return FSDP__RESIDENCE_IN_PLACE;
    return share || (ranks == 1 && all_cast) ? FSDP__RESIDENCE_CAST : FSDP__RESIDENCE_COPY;
}
