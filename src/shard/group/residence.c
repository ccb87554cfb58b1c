/* residence.c - makes the regions of a group, and counts who reads in them. */
#include "shard/group/residence.h"

#include "comm/group_calls.h"
#include "device/dry.h"

/* Makes the regions, still without bytes. */
static fsdp_status make_regions(fsdp__residence *r, fsdp__residence_kind kind)
{
    if (kind == FSDP__RESIDENCE_IN_PLACE) {
        if (r->mesh.ranks == 1)
            return fsdp__region_of_device(r->device, r->unsharded_bytes, FSDP_MEMORY_PARAMETER_SHARD, &r->unsharded);
        return fsdp__region_of_ranks(r->device, &r->mesh, FSDP_MEMORY_SHARED, r->unsharded_bytes,
                                     FSDP_MEMORY_PARAMETER_SHARD, r->shard_bytes, &r->unsharded);
    }
    if (kind == FSDP__RESIDENCE_CAST && r->mesh.ranks == 1)
        FSDP_TRY(fsdp__region_of_device(r->device, r->unsharded_bytes, FSDP_MEMORY_PARAMETER_SHARD, &r->unsharded));
    else if (kind == FSDP__RESIDENCE_CAST)
        FSDP_TRY(fsdp__region_of_ranks(r->device, &r->mesh, FSDP_MEMORY_SHARED, r->unsharded_bytes,
                                       FSDP_MEMORY_PARAMETER_SHARD, r->cast_bytes, &r->unsharded));
    else if (r->casts && !fsdp__residence_is_offloaded(r)) /* offloaded shards are cast on their way */
        FSDP_TRY(fsdp__region_of_device(r->device, r->cast_bytes, FSDP_MEMORY_PARAMETER_SHARD, &r->cast));
    FSDP_TRY(fsdp__region_of_device(r->shard_device, r->shard_bytes, FSDP_MEMORY_PARAMETER_SHARD, &r->shards));
    r->shards->pinned_for = fsdp__residence_is_offloaded(r) && r->pin ? r->device : NULL;
    if (r->splits)
        return fsdp__region_of_device(r->device, r->cast_bytes, FSDP_MEMORY_PARAMETER_SHARD, &r->low);
    return FSDP_OK;
}

bool fsdp__residence_is_whole(const fsdp__residence *residence)
{
    return residence->whole || (residence->kind != FSDP__RESIDENCE_COPY && residence->mesh.ranks == 1);
}

bool fsdp__residence_can_share(const fsdp__residence *residence, const fsdp_device *device)
{
    return residence->mesh.ranks > 1 && residence->share && fsdp__device_shared_memory(device);
}

fsdp_status fsdp__residence_find_common(fsdp__residence *residence, fsdp_device *device)
{
    residence->common = false;
    if (residence->mesh.ranks == 1 || !fsdp__device_carries(device))
        return FSDP_OK;
    /* A rank that may not share asks too: the call is collective, and all ranks are told later that it differs. */
    FSDP_TRY(fsdp__process_group_find_common(residence->mesh.shard_pg, device, &residence->common));
    residence->common = residence->common && residence->share;
    return FSDP_OK;
}

bool fsdp__residence_is_split(const fsdp__residence *residence)
{
    return residence->low && residence->low->data;
}

bool fsdp__residence_would_offload(const fsdp__residence *residence, const fsdp_device *device)
{
    return residence->offload && !fsdp__device_host_access(device);
}

bool fsdp__residence_is_offloaded(const fsdp__residence *residence)
{
    return residence->shard_device != residence->device;
}

fsdp_status fsdp__residence_open(fsdp__residence *residence, fsdp__residence_kind kind, fsdp_device *device)
{
    residence->device = residence->shard_device = device;
    if (fsdp__residence_would_offload(residence, device))
        residence->shard_device = fsdp__device_host(device);
    FSDP__TRY_MADE(residence->shard_device);
    FSDP_TRY(make_regions(residence, kind));
    if (residence->shards)
        FSDP_TRY(fsdp__region_fill(residence->shards));
    if (residence->cast)
        FSDP_TRY(fsdp__region_fill(residence->cast));
    residence->has_cast = false;
    residence->kind = kind;
    return FSDP_OK;
}

fsdp_status fsdp__residence_fill(fsdp__residence *residence)
{
    return residence->unsharded ? fsdp__region_fill(residence->unsharded) : FSDP_OK;
}

void fsdp__residence_close(fsdp__residence *residence)
{
    fsdp__residence_set_writer(residence, NULL, NULL);
    fsdp__region_unref(residence->shards);
    fsdp__region_unref(residence->unsharded);
    fsdp__region_unref(residence->cast);
    fsdp__region_unref(residence->low);
    residence->shards = residence->unsharded = residence->cast = residence->low = NULL;
    residence->device = residence->shard_device = NULL;
    residence->kind = FSDP__RESIDENCE_NONE;
}

void fsdp__residence_set_writer(fsdp__residence *residence, fsdp_status (*before_write)(void *, const fsdp__storage *),
                                void *writer)
{
    fsdp__region *place = residence->shards ? residence->shards : residence->unsharded;

    if (!place)
        return;
    place->before_write = before_write;
    place->writer = writer;
}

fsdp_status fsdp__residence_gradients(const fsdp__residence *residence, fsdp_process_group *pg, bool shared,
                                      size_t bytes, fsdp__region **out)
{
    fsdp__mesh_info mesh = residence->mesh;

    if (!shared)
        return fsdp__region_make(residence->device, bytes, FSDP_MEMORY_GRADIENT, out);
    mesh.shard_pg = pg;
    FSDP_TRY(fsdp__region_of_ranks(residence->device, &mesh, FSDP_MEMORY_SYMMETRIC, bytes, FSDP_MEMORY_GRADIENT, bytes,
                                   out));
    return fsdp__region_fill_new(out);
}

fsdp_status fsdp__residence_shard_storage(const fsdp__residence *residence, size_t bytes, fsdp__storage **out)
{
    FSDP__SCOPED(fsdp__region_unref_at) fsdp__region *region = NULL; /* the storage holds it in the end */

    if (!fsdp__residence_is_offloaded(residence) || !residence->pin)
        return fsdp__storage_create(residence->shard_device, bytes, FSDP_MEMORY_GRADIENT, true, out);
    FSDP_TRY(fsdp__region_of_device(residence->shard_device, bytes, FSDP_MEMORY_GRADIENT, &region));
    region->pinned_for = residence->device;
    FSDP_TRY(fsdp__region_fill(region));
    FSDP_TRY(fsdp__storage_create(residence->shard_device, bytes, FSDP_MEMORY_GRADIENT, false, out));
    fsdp__region_lend(region, 0, *out);
    return FSDP_OK;
}

fsdp_status fsdp__residence_shard_gradient(const fsdp__residence *residence, fsdp_dtype dtype, int ndim,
                                           const int64_t *shape, fsdp_tensor **out)
{
    size_t bytes = (size_t)fsdp__shape_numel(ndim, shape) * fsdp_dtype_size(dtype);
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    FSDP_TRY(fsdp__residence_shard_storage(residence, bytes, &storage));
    return fsdp__tensor_create_view(storage, dtype, ndim, shape, NULL, 0, out);
}

static fsdp__region *region_of_shard(const fsdp__residence *r, const fsdp__param *param, size_t *offset)
{
    size_t at = (size_t)param->part.at * fsdp_dtype_size(param->orig_dtype);

    *offset = r->shards ? param->shard_offset : param->unsharded_offset + at;
    return r->shards ? r->shards : r->unsharded;
}

void *fsdp__residence_shard(const fsdp__residence *residence, const fsdp__param *param)
{
    size_t offset;
    const fsdp__region *region = region_of_shard(residence, param, &offset);

    return (char *)region->data + offset;
}

void fsdp__residence_lend_shard(const fsdp__residence *residence, const fsdp__param *param, fsdp__storage *storage)
{
    size_t offset;
    fsdp__region *region = region_of_shard(residence, param, &offset);

    fsdp__region_lend_guarded(region, offset, storage);
}

bool fsdp__residence_is_shared(const fsdp__residence *residence)
{
    return residence->mesh.ranks > 1 &&
           (residence->kind == FSDP__RESIDENCE_IN_PLACE || residence->kind == FSDP__RESIDENCE_CAST);
}

/* ---- readers and writers ---- */

void fsdp__residence_begin_read(fsdp__residence *residence)
{
    if (residence->reading || !fsdp__residence_is_shared(residence))
        return;
    fsdp__process_group_begin_read(residence->mesh.shard_pg, residence->unsharded->data);
    residence->reading = true;
}

void fsdp__residence_end_read(fsdp__residence *residence)
{
    fsdp_process_group *pg = residence->mesh.shard_pg;

    if (!residence->reading)
        return;
    residence->reading = false;
    if (fsdp__process_group_end_read(pg, residence->unsharded->data, fsdp_device_stream(residence->device)) != FSDP_OK)
        fsdp_abort(fsdp_process_group_context(pg), fsdp_last_error()); /* otherwise writers wait for ever */
}

fsdp_status fsdp__residence_await_readers(fsdp__residence *residence, fsdp_stream *stream)
{
    if (!fsdp__residence_is_shared(residence))
        return FSDP_OK;
    return fsdp__process_group_await_readers(residence->mesh.shard_pg, residence->unsharded->data, stream);
}
