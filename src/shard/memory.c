/* memory.c - where a group's bytes lie: see [Note: three layouts of a group]. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "shard/shard.h"

/* ---- regions ---- */

/* Lives as long as the group or a tensor on it: an optimizer may outlast the model. */
struct fsdp__region {
    int64_t refs;
    void *data;
    size_t bytes, counted_bytes;
    fsdp_device *device;
    fsdp_memory_kind kind;
    fsdp_mesh *mesh; /* memory of the mesh's process group; NULL: the device's own */
    fsdp_group *comm;
    fsdp_memory_sharing sharing;
};

static void region_unref(fsdp__region *region)
{
    if (!region || --region->refs > 0)
        return;
    if (region->comm && region->data) {
        fsdp_group_free_memory(region->comm, region->sharing, region->data, region->bytes);
        fsdp__device_account(region->device, region->kind, -(int64_t)region->counted_bytes, false);
    } else if (region->data) {
        fsdp__device_free(region->device, region->data, region->bytes, region->kind);
    }
    fsdp_mesh_unref(region->mesh);
    fsdp__free(region);
}

/* For storages: one reference per adopted storage. */
static void release_region(void *arg, void *data)
{
    (void)data;
    region_unref(arg);
}

static fsdp_status region_of_device(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, fsdp__region **out)
{
    fsdp__region *region = fsdp__calloc(1, sizeof *region);
    fsdp_status st;

    if (!region)
        return FSDP_NO_MEMORY;
    *region = (fsdp__region){.refs = 1, .bytes = bytes, .device = device, .kind = kind};
    st = fsdp__device_alloc(device, bytes, kind, &region->data);
    if (st != FSDP_OK) {
        region_unref(region);
        return st;
    }
    *out = region;
    return FSDP_OK;
}

/* Memory of the group's ranks, counted here as `counted_bytes` of `kind`. */
static fsdp_status region_of_ranks(const fsdp__shard_group *group, fsdp_memory_sharing sharing, size_t bytes,
                                   fsdp_memory_kind kind, size_t counted_bytes, fsdp__region **out)
{
    fsdp__region *region = fsdp__calloc(1, sizeof *region);
    fsdp_status st;

    if (!region)
        return FSDP_NO_MEMORY;
    *region = (fsdp__region){.refs = 1,
                             .bytes = bytes,
                             .counted_bytes = counted_bytes,
                             .device = group->device,
                             .kind = kind,
                             .mesh = fsdp_mesh_ref(group->mesh),
                             .comm = group->comm,
                             .sharing = sharing};
    st = fsdp_group_alloc(group->comm, sharing, bytes, &region->data);
    if (st != FSDP_OK) {
        region_unref(region);
        return st;
    }
    fsdp__device_account(group->device, kind, (int64_t)counted_bytes, false);
    *out = region;
    return FSDP_OK;
}

/* ---- layout ---- */

static size_t padded_bytes(const fsdp__shard_group *group, const fsdp__shard_param *param, fsdp_dtype dtype)
{
    return fsdp__device_rounded((size_t)(fsdp__param_chunk_numel(param) * group->ranks) * fsdp_dtype_size(dtype));
}

static void plan(fsdp__shard_group *group)
{
    group->shard_bytes = group->whole_bytes = 0;
    for (int64_t i = 0; i < group->param_count; i++) {
        fsdp__shard_param *p = &group->params[i];

        p->shard_offset = group->shard_bytes;
        p->whole_offset = group->whole_bytes;
        group->shard_bytes +=
            fsdp__device_rounded((size_t)fsdp__param_chunk_numel(p) * fsdp_dtype_size(group->orig_dtype));
        group->whole_bytes += padded_bytes(group, p, group->param_dtype);
    }
    if (group->param_dtype == group->orig_dtype && (group->ranks == 1 || group->share))
        group->layout = FSDP__LAYOUT_IN_PLACE;
    else if (group->ranks > 1 && group->share)
        group->layout = FSDP__LAYOUT_CAST;
    else
        group->layout = FSDP__LAYOUT_COPY;
}

static fsdp_status allocate_regions(fsdp__shard_group *group)
{
    if (group->layout == FSDP__LAYOUT_IN_PLACE) {
        if (group->ranks == 1)
            return region_of_device(group->device, group->whole_bytes, FSDP_MEMORY_PARAMETER_SHARD, &group->whole);
        return region_of_ranks(group, FSDP_MEMORY_COMMON, group->whole_bytes, FSDP_MEMORY_PARAMETER_SHARD,
                               group->shard_bytes, &group->whole);
    }
    if (group->layout == FSDP__LAYOUT_CAST)
        FSDP_TRY(region_of_ranks(group, FSDP_MEMORY_COMMON, group->whole_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, 0,
                                 &group->whole));
    return region_of_device(group->device, group->shard_bytes, FSDP_MEMORY_PARAMETER_SHARD, &group->shards);
}

/* Gives `storage` this rank's rows of the parameter. */
static void adopt_shard(const fsdp__shard_group *group, const fsdp__shard_param *param, fsdp__storage *storage)
{
    fsdp__region *region = group->shards;
    size_t offset = param->shard_offset;

    if (group->layout == FSDP__LAYOUT_IN_PLACE) {
        region = group->whole;
        offset =
            param->whole_offset + (size_t)(param->first_row * param->row_numel) * fsdp_dtype_size(group->orig_dtype);
    }
    region->refs++;
    fsdp__storage_adopt(storage, (char *)region->data + offset, release_region, region);
}

/* ---- gradients ---- */

fsdp_status fsdp__group_gradient_storage(fsdp__shard_group *group, fsdp_dtype dtype, fsdp__storage **out)
{
    size_t bytes = 0;
    fsdp__region *region;

    for (int64_t i = 0; i < group->param_count; i++)
        bytes += padded_bytes(group, &group->params[i], dtype);
    if (group->ranks == 1 || !group->share)
        return fsdp__storage_create(group->device, bytes, FSDP_MEMORY_GRADIENT, true, out);

    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_GRADIENT, false, out));
    if (region_of_ranks(group, FSDP_MEMORY_VISIBLE, bytes, FSDP_MEMORY_GRADIENT, bytes, &region) != FSDP_OK) {
        fsdp__storage_unref(*out);
        *out = NULL;
        return fsdp_last_status();
    }
    fsdp__storage_adopt(*out, region->data, release_region, region);
    return FSDP_OK;
}

fsdp_status fsdp__group_gradient_view(const fsdp__shard_group *group, const fsdp__shard_param *param,
                                      fsdp__storage *storage, fsdp_dtype dtype, fsdp_tensor **out)
{
    const fsdp_tensor *whole = param->unsharded;
    size_t offset = 0;

    for (const fsdp__shard_param *p = group->params; p != param; p++)
        offset += padded_bytes(group, p, dtype);
    return fsdp__tensor_create_view(storage, dtype, whole->ndim, whole->shape, NULL,
                                    (int64_t)(offset / fsdp_dtype_size(dtype)), out);
}

/* The first gradient of a whole parameter in a backward goes straight to where the reduction reads it. */
static fsdp_status gradient_source(void *arg, fsdp_tensor *leaf, fsdp_tensor **out)
{
    fsdp__shard_group *group = arg;
    fsdp__shard_param *param = group->params;

    while (param->unsharded != leaf)
        param++;
    if (!group->gradients)
        FSDP_TRY(fsdp__group_gradient_storage(group, leaf->dtype, &group->gradients));
    return fsdp__group_gradient_view(group, param, group->gradients, leaf->dtype, out);
}

/* ---- building and releasing ---- */

static fsdp_status make_unsharded(fsdp__shard_group *group, fsdp__shard_param *param)
{
    size_t bytes = (size_t)fsdp__param_numel(param) * fsdp_dtype_size(group->param_dtype);
    const fsdp_distribution *distribution = fsdp_tensor_distribution(param->sharded);
    fsdp__storage *storage;
    fsdp_status st;

    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, false, &storage));
    st = fsdp__tensor_create_view(storage, group->param_dtype, distribution->ndim, distribution->global_shape, NULL, 0,
                                  &param->unsharded);
    fsdp__storage_unref(storage);
    FSDP_TRY(st);
    return fsdp__set_grad_source(param->unsharded, gradient_source, group);
}

/* Moves the sharded tensor onto the group's memory, with the values it had if it had any. */
static fsdp_status move_shard(fsdp__shard_group *group, fsdp__shard_param *param)
{
    fsdp_tensor *t = param->sharded;
    size_t bytes = (size_t)fsdp__param_shard_numel(param) * fsdp_dtype_size(group->orig_dtype);
    const void *old = fsdp_tensor_data(t);
    fsdp__storage *storage;

    FSDP_TRY(fsdp__storage_create(group->device, bytes, FSDP_MEMORY_PARAMETER_SHARD, false, &storage));
    adopt_shard(group, param, storage);
    if (old && bytes > 0)
        memcpy(storage->data, old, bytes);
    fsdp__storage_unref(t->storage);
    t->storage = storage;
    t->offset = 0;
    return FSDP_OK;
}

fsdp_status fsdp__group_allocate(fsdp__shard_group *group, fsdp_device *device)
{
    if (group->layout != FSDP__LAYOUT_NONE || group->param_count == 0)
        return FSDP_OK;
    if (fsdp_device_is_meta(device))
        return FSDP_FAIL(FSDP_UNSUPPORTED, "cannot materialize sharded parameters on the meta device");
    group->device = device;
    plan(group);
    FSDP_TRY(fsdp_event_create(device, &group->gathered));
    FSDP_TRY(allocate_regions(group));
    for (int64_t i = 0; i < group->param_count; i++)
        FSDP_TRY(make_unsharded(group, &group->params[i]));
    FSDP_TRY(fsdp_stream_synchronize(fsdp_device_stream(device)));
    for (int64_t i = 0; i < group->param_count; i++)
        FSDP_TRY(move_shard(group, &group->params[i]));
    return FSDP_OK;
}

void fsdp__group_release(fsdp__shard_group *group)
{
    if (group->gathered)
        (void)fsdp_event_synchronize(group->gathered);
    if (group->state != FSDP_SHARDED)
        fsdp__group_whole_end(group);
    fsdp__group_drop_gradients(group);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__param_release(&group->params[i]);
    fsdp__free(group->params);
    region_unref(group->shards);
    region_unref(group->whole);
    fsdp_event_free(group->gathered);
    fsdp_mesh_unref(group->mesh);
    *group = (fsdp__shard_group){0};
}

/* ---- the whole parameters come and go ---- */

fsdp_status fsdp__group_whole_begin(fsdp__shard_group *group)
{
    if (group->layout == FSDP__LAYOUT_COPY)
        FSDP_TRY(region_of_device(group->device, group->whole_bytes, FSDP_MEMORY_UNSHARDED_PARAMETER, &group->whole));
    else
        fsdp__device_account(group->device, FSDP_MEMORY_UNSHARDED_PARAMETER, (int64_t)group->whole_bytes, true);
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_adopt(group->params[i].unsharded->storage,
                            (char *)group->whole->data + group->params[i].whole_offset, NULL, NULL);
    return FSDP_OK;
}

void fsdp__group_whole_end(fsdp__shard_group *group)
{
    for (int64_t i = 0; i < group->param_count; i++)
        fsdp__storage_drop(group->params[i].unsharded->storage);
    if (group->layout == FSDP__LAYOUT_COPY) {
        region_unref(group->whole);
        group->whole = NULL;
    } else {
        fsdp__device_account(group->device, FSDP_MEMORY_UNSHARDED_PARAMETER, -(int64_t)group->whole_bytes, true);
    }
}
