/* slice.c - keeps 1/k of a gathered group between a forward and its backward. */
#include "shard/group/slice.h"

#include "base/compiler.h"
#include "shard/group/default_groups.h"

fsdp_status fsdp__slice_open(fsdp__slice *slice, const fsdp__residence *residence, int k)
{
    FSDP_TRY(fsdp__default_subgroup(&residence->mesh, k, &slice->pg));
    slice->ranks = k;
    slice->rank = fsdp_process_group_rank(slice->pg);
    return FSDP_OK;
}

void fsdp__slice_close(fsdp__slice *slice)
{
    fsdp_event_free(slice->made);
    *slice = (fsdp__slice){0};
}

/* ---- places ---- */

/* Returns the padded elements of one rank's slice of a parameter; k of them are the padded parameter. */
static int64_t chunk_of(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *param)
{
    return param->chunk_numel * residence->mesh.ranks / slice->ranks;
}

/* Returns the bytes in the slice's own region, where every parameter is rounded up. */
static size_t bytes_of(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *param)
{
    return fsdp__device_rounded((size_t)chunk_of(slice, residence, param) * fsdp_dtype_size(param->param_dtype));
}

static size_t all_bytes(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                        int64_t count)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < count; i++)
        bytes += bytes_of(slice, residence, &params[i]);
    return bytes;
}

/* Gives where this rank's part of an unsharded parameter begins. Returns its bytes without padding. */
static size_t part_of(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *param, char **out)
{
    int64_t chunk = chunk_of(slice, residence, param), start = slice->rank * chunk;
    int64_t numel = FSDP__MAX(FSDP__MIN(fsdp__param_numel(param) - start, chunk), 0);
    size_t size = fsdp_dtype_size(param->param_dtype);

    *out = (char *)residence->unsharded->data + param->unsharded_offset + (size_t)start * size;
    return (size_t)numel * size;
}

/* ---- life cycle ---- */

static fsdp_status copy_parts(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                              int64_t count)
{
    fsdp_stream *compute = fsdp_device_stream(residence->device);
    char *to = slice->region->data, *part;

    for (int64_t i = 0; i < count; i++) {
        size_t bytes = part_of(slice, residence, &params[i], &part);

        if (bytes > 0)
            FSDP_TRY(fsdp__copy_on_device(compute, to, part, bytes));
        to += bytes_of(slice, residence, &params[i]);
    }
    return fsdp_event_record(slice->made, compute);
}

fsdp_status fsdp__slice_keep(fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                             int64_t count)
{
    size_t bytes = all_bytes(slice, residence, params, count);
    fsdp_status status;

    if (residence->kind != FSDP__RESIDENCE_COPY) {
        fsdp__device_account(residence->device, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)bytes, true);
        slice->kept = true;
        return FSDP_OK;
    }
    if (!slice->made)
        FSDP_TRY(fsdp_event_create(residence->device, &slice->made));
    FSDP_TRY(fsdp__region_of_device(residence->device, bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, &slice->region));
    status = fsdp__region_fill(slice->region);
    if (status == FSDP_OK)
        status = copy_parts(slice, residence, params, count);
    slice->kept = status == FSDP_OK;
    if (status != FSDP_OK) {
        fsdp__region_unref(slice->region);
        slice->region = NULL;
    }
    return status;
}

void fsdp__slice_drop(fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params, int64_t count)
{
    if (!slice->kept)
        return;
    slice->kept = false;
    if (residence->kind != FSDP__RESIDENCE_COPY) {
        fsdp__device_account(residence->device, FSDP_MEMORY_UNSHARDED_PARAMETER,
                             -(int64_t)all_bytes(slice, residence, params, count), true);
        return;
    }
    fsdp__region_unref(slice->region);
    slice->region = NULL;
}

fsdp_status fsdp__slice_buffers(const fsdp__slice *slice, const fsdp__residence *residence, const fsdp__param *params,
                                int64_t count, fsdp_stream *stream, fsdp_sharded_buffer *buffers)
{
    bool moves = residence->kind == FSDP__RESIDENCE_COPY; /* otherwise all of it lies where this rank reads it */
    size_t offset = 0;

    for (int64_t i = 0; i < count; i++) {
        char *part;

        (void)part_of(slice, residence, &params[i], &part);
        if (slice->region)
            part = (char *)slice->region->data + offset;
        offset += bytes_of(slice, residence, &params[i]);
        buffers[i] = (fsdp_sharded_buffer){.unsharded = params[i].unsharded->storage->data,
                                           .shard = part,
                                           .numel = moves ? fsdp__param_numel(&params[i]) : 0,
                                           .chunk = chunk_of(slice, residence, &params[i]),
                                           .unsharded_dtype = params[i].param_dtype,
                                           .shard_dtype = params[i].param_dtype};
    }
    return slice->region ? fsdp_stream_wait_event(stream, slice->made) : FSDP_OK;
}
