/* region.c - memory that several tensors lie in. */
#include "shard/group/region.h"

#include "base/alloc.h"
#include "base/context.h"
#include "comm/group_calls.h"
#include "device/kernels.h"

fsdp_status fsdp__region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out)
{
    fsdp__region *region = fsdp__calloc(1, sizeof *region);

    FSDP__TRY_NEW(region);
    *region = (fsdp__region){.refs = 1,
                             .bytes = bytes,
                             .device = device,
                             .kind = kind,
                             .owner = fsdp__context_taker(fsdp_device_context(device)).owner};
    *out = region;
    return FSDP_OK;
}

fsdp_status fsdp__region_of_ranks(fsdp_device *device, const fsdp__mesh_info *info, fsdp_memory_sharing sharing,
                                  size_t bytes, fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out)
{
    FSDP_TRY(fsdp__region_of_device(device, bytes, kind, out));
    (*out)->counted_bytes = counted_bytes;
    (*out)->mesh = fsdp_mesh_ref(info->mesh);
    (*out)->pg = info->shard_pg;
    (*out)->sharing = sharing;
    return FSDP_OK;
}

/* Registers the bytes, unless the system refuses: copies work without it, only more slowly, and the device has warned
 * of that. */
static fsdp_status pin(fsdp__region *region)
{
    fsdp_status status = fsdp__device_register_host(region->pinned_for, region->data, region->bytes);

    if (status != FSDP_OK)
        region->pinned_for = NULL;
    if (status != FSDP_UNSUPPORTED)
        return status;
    fsdp_clear_error();
    return FSDP_OK;
}

static fsdp_status take_bytes(fsdp__region *region)
{
    fsdp_context *context = fsdp_device_context(region->device);
    fsdp__taker before = fsdp__context_enter(context, region->owner);
    fsdp_status status = fsdp__device_alloc(region->device, region->bytes, region->kind, &region->data);

    fsdp__context_set_taker(context, before);
    FSDP_TRY(status);
    if (region->pinned_for)
        status = pin(region);
    if (status != FSDP_OK) {
        fsdp__device_free(region->device, region->data, region->bytes, region->kind);
        region->data = NULL;
    }
    return status;
}

fsdp_status fsdp__region_fill(fsdp__region *region)
{
    if (!region->pg)
        return take_bytes(region);
    if (region->sharing == FSDP_MEMORY_SHARED && !fsdp__device_shared_memory(region->device))
        FSDP_TRY(fsdp__process_group_alloc_common(region->pg, region->device, region->bytes, &region->data));
    else
        FSDP_TRY(fsdp_process_group_alloc(region->pg, region->sharing, region->bytes, &region->data));
    fsdp__device_account(region->device, region->owner, region->kind, (int64_t)region->counted_bytes, false);
    return FSDP_OK;
}

fsdp_status fsdp__region_fill_new(fsdp__region **region)
{
    fsdp_status status = fsdp__region_fill(*region);

    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp__region_unref(fsdp__take(region));
    return status;
}

fsdp_status fsdp__region_make(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out)
{
    FSDP_TRY(fsdp__region_of_device(device, bytes, kind, out));
    return fsdp__region_fill_new(out);
}

void fsdp__region_empty(fsdp__region *region)
{
    if (!region->data)
        return;
    if (region->pinned_for)
        fsdp__device_unregister_host(region->pinned_for, region->data, region->bytes);
    fsdp__device_free(region->device, region->data, region->bytes, region->kind);
    region->data = NULL;
}

void fsdp__region_unref(fsdp__region *region)
{
    if (!region || --region->refs > 0)
        return;
    if (region->weak)
        *region->weak = NULL;
    if (region->pg && region->data) {
        if (region->sharing == FSDP_MEMORY_SHARED) /* work of the stream may still count readers in it */
            (void)fsdp_stream_synchronize(fsdp_device_stream(region->device));
        fsdp_process_group_free_memory(region->pg, region->sharing, region->data, region->bytes);
        fsdp__device_account(region->device, region->owner, region->kind, -(int64_t)region->counted_bytes, false);
    } else if (region->release && region->data) {
        region->release(region->release_arg, region->device, region->data, region->bytes);
    } else {
        fsdp__region_empty(region);
    }
    fsdp_mesh_unref(region->mesh);
    fsdp__free(region);
}

static void release(void *arg, void *data)
{
    (void)data;
    fsdp__region_unref(arg);
}

void fsdp__region_lend(fsdp__region *region, size_t offset, fsdp__storage *storage)
{
    region->refs++;
    fsdp__storage_adopt(storage, (char *)region->data + offset, release, region);
}

fsdp_status fsdp__region_tensor(fsdp__region *region, size_t offset, fsdp_dtype dtype, int ndim, const int64_t *shape,
                                fsdp_tensor **out)
{
    size_t bytes = (size_t)fsdp__shape_numel(ndim, shape) * fsdp_dtype_size(dtype);
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = NULL;

    FSDP_TRY(fsdp__storage_create(region->device, bytes, region->kind, false, &storage));
    fsdp__region_lend(region, offset, storage);
    return fsdp__tensor_create_view(storage, dtype, ndim, shape, NULL, 0, out);
}

fsdp_status fsdp__divide_run(fsdp_stream *stream, const void *src, fsdp_dtype src_dtype, void *dst,
                             fsdp_dtype dst_dtype, int64_t numel, float divisor, bool add)
{
    const fsdp__reduce_ranks_args args = {.srcs = &src,
                                          .count = 1,
                                          .dst = dst,
                                          .numel = numel,
                                          .src_dtype = src_dtype,
                                          .dst_dtype = dst_dtype,
                                          .op = FSDP__RANK_SUM,
                                          .divisor = divisor,
                                          .accumulate = add};

    return numel > 0 ? fsdp__launch_reduce_ranks(stream, &args) : FSDP_OK;
}

static fsdp_status before_write(void *arg, fsdp__storage *storage)
{
    fsdp__region *region = arg;

    if (region->before_write)
        return region->before_write(region->writer, storage);
    if (!region->pg)
        return FSDP_OK;
    /* The model is gone on this rank, but peers may be in their last use of it. */
    return fsdp__process_group_await_readers(region->pg, region->data, fsdp_device_stream(region->device));
}

static void *copy_place(void *arg, const fsdp__storage *storage, fsdp_dtype *dtype)
{
    const fsdp__region *region = arg;

    return region->writer && region->copy_place ? region->copy_place(region->writer, storage, dtype) : NULL;
}

static void copied(void *arg, const fsdp__storage *storage)
{
    const fsdp__region *region = arg;

    if (region->writer && region->copied)
        region->copied(region->writer, storage);
}

static fsdp_status bring(void *arg, fsdp__storage *storage)
{
    const fsdp__region *region = arg;

    return region->writer && region->bring ? region->bring(region->writer, storage) : FSDP_OK;
}

static void *low_place(void *arg, const fsdp__storage *storage)
{
    const fsdp__region *region = arg;

    return region->writer && region->low_place ? region->low_place(region->writer, storage) : NULL;
}

void fsdp__region_lend_guarded(fsdp__region *region, size_t offset, fsdp__storage *storage)
{
    fsdp__region_lend(region, offset, storage);
    storage->guard = (fsdp__storage_guard){before_write, region, copy_place, copied, bring, low_place};
}
