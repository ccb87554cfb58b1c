/* region.c - memory that several tensors of a group lie in. */
#include "base/alloc.h"
#include "shard/shard.h"

void fsdp__region_unref(fsdp__region *region)
{
    if (!region || --region->refs > 0)
        return;
    if (region->weak)
        *region->weak = NULL;
    if (region->comm && region->data) {
        if (region->sharing == FSDP_MEMORY_COMMON) /* work of the stream may still count readers in it */
            (void)fsdp_stream_synchronize(fsdp_device_stream(region->device));
        fsdp_group_free_memory(region->comm, region->sharing, region->data, region->bytes);
        fsdp__device_account(region->device, region->kind, -(int64_t)region->counted_bytes, false);
    } else if (region->data) {
        fsdp__device_free(region->device, region->data, region->bytes, region->kind);
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

fsdp_status fsdp__region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out)
{
    fsdp__region *region = fsdp__calloc(1, sizeof *region);

    if (!region)
        return FSDP_NO_MEMORY;
    *region = (fsdp__region){.refs = 1, .bytes = bytes, .device = device, .kind = kind};
    *out = region;
    return FSDP_OK;
}

fsdp_status fsdp__region_of_ranks(const fsdp__shard_group *group, fsdp_memory_sharing sharing, size_t bytes,
                                  fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out)
{
    FSDP_TRY(fsdp__region_of_device(group->device, bytes, kind, out));
    (*out)->counted_bytes = counted_bytes;
    (*out)->mesh = fsdp_mesh_ref(group->mesh);
    (*out)->comm = group->comm;
    (*out)->sharing = sharing;
    return FSDP_OK;
}

fsdp_status fsdp__region_fill(fsdp__region *region)
{
    if (!region->comm)
        return fsdp__device_alloc(region->device, region->bytes, region->kind, &region->data);
    FSDP_TRY(fsdp_group_alloc(region->comm, region->sharing, region->bytes, &region->data));
    fsdp__device_account(region->device, region->kind, (int64_t)region->counted_bytes, false);
    return FSDP_OK;
}
