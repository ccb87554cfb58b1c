/* flat.c - the arithmetic of flat groups, and the one buffer of their gathers. */
#include "shard/group/flat.h"

#include "base/compiler.h"
#include "device/kernels.h"

int64_t fsdp__flat_align(const fsdp__flat *flat, fsdp_dtype param_dtype)
{
    return (int64_t)FSDP__MAX(flat->align / fsdp_dtype_size(param_dtype), (size_t)1);
}

size_t fsdp__flat_shard_bytes(const fsdp__flat *flat, fsdp_dtype dtype)
{
    return fsdp__device_rounded((size_t)flat->shard_numel * fsdp_dtype_size(dtype));
}

size_t fsdp__flat_unsharded_bytes(const fsdp__flat *flat, int ranks, fsdp_dtype dtype)
{
    return fsdp__device_rounded((size_t)(flat->shard_numel * ranks) * fsdp_dtype_size(dtype));
}

void fsdp__flat_lay_out(fsdp__flat *flat, int64_t shard_numel, fsdp__residence *residence, fsdp__param *params,
                        int64_t count)
{
    fsdp_dtype orig_dtype = params[0].orig_dtype, param_dtype = params[0].param_dtype;

    flat->shard_numel = shard_numel;
    for (int64_t i = 0; i < count; i++) {
        fsdp__param *p = &params[i];

        p->shard_offset = (size_t)p->piece.in_shard * fsdp_dtype_size(orig_dtype);
        p->unsharded_offset = (size_t)p->flat_first * fsdp_dtype_size(param_dtype);
        p->cast_offset = (size_t)p->piece.in_shard * fsdp_dtype_size(param_dtype);
    }
    residence->shard_bytes = fsdp__flat_shard_bytes(flat, orig_dtype);
    residence->unsharded_bytes = fsdp__flat_unsharded_bytes(flat, residence->mesh.ranks, param_dtype);
    residence->casts = param_dtype != orig_dtype;
    residence->cast_bytes = residence->casts ? fsdp__flat_shard_bytes(flat, param_dtype) : 0;
}

/* Returns this rank's part of the vector, as it lies in the unsharded parameters. */
static char *part_of(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype dtype)
{
    size_t at = (size_t)(flat->shard_numel * residence->mesh.rank) * fsdp_dtype_size(dtype);

    return (char *)residence->unsharded->data + at;
}

void *fsdp__flat_shard(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype)
{
    return residence->shards ? residence->shards->data : part_of(flat, residence, orig_dtype);
}

void fsdp__flat_lend(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype,
                     fsdp__storage *storage)
{
    size_t at = (size_t)(flat->shard_numel * residence->mesh.rank) * fsdp_dtype_size(orig_dtype);

    if (residence->shards)
        fsdp__region_lend_guarded(residence->shards, 0, storage);
    else
        fsdp__region_lend_guarded(residence->unsharded, at, storage);
}

fsdp_status fsdp__flat_clear(const fsdp__flat *flat, const fsdp__residence *residence, fsdp_dtype orig_dtype)
{
    return fsdp__launch_fill_run(fsdp_device_stream(residence->shard_device),
                                 fsdp__flat_shard(flat, residence, orig_dtype), orig_dtype, flat->shard_numel, 0.0);
}

fsdp_sharded_buffer fsdp__flat_buffer(const fsdp__flat *flat, int ranks)
{
    return (fsdp_sharded_buffer){.numel = flat->shard_numel * ranks, .chunk = flat->shard_numel, .outer = 1};
}

fsdp_sharded_buffer fsdp__flat_gather_buffer(const fsdp__flat *flat, const fsdp__residence *residence,
                                             const fsdp__param *params, const fsdp__region *staging)
{
    fsdp_dtype orig_dtype = params[0].orig_dtype, param_dtype = params[0].param_dtype;
    bool offloaded = fsdp__residence_is_offloaded(residence), cast = param_dtype != orig_dtype && !offloaded;
    fsdp_sharded_buffer buffer = fsdp__flat_buffer(flat, residence->mesh.ranks);

    buffer.unsharded = residence->unsharded->data;
    buffer.unsharded_dtype = param_dtype;
    buffer.shard_dtype = cast ? param_dtype : orig_dtype;
    if (staging)
        buffer.shard = staging->data;
    else if (offloaded || residence->kind == FSDP__RESIDENCE_IN_PLACE || /* it lies there, or is copied or cast there */
             (cast && residence->kind == FSDP__RESIDENCE_CAST))
        buffer.shard = part_of(flat, residence, param_dtype);
    else
        buffer.shard = cast ? residence->cast->data : residence->shards->data;
    return buffer;
}
