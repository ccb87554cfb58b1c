/* flat_runs.c - tensors whose parts are runs of a flat vector: gathers them, and cuts them again. */
#include <string.h>

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"
#include "dist/dist.h"

static fsdp_status copy_run(const fsdp_tensor *from, int64_t from_start, const fsdp_tensor *to, int64_t to_start,
                            int64_t numel)
{
    size_t element = fsdp_dtype_size(from->dtype);

    if (numel == 0 || fsdp_device_is_meta(from->storage->device))
        return FSDP_OK;
    return fsdp__copy_on_device(
        fsdp_device_stream(from->storage->device), (char *)fsdp_tensor_data(to) + (size_t)to_start * element,
        (const char *)fsdp_tensor_data(from) + (size_t)from_start * element, (size_t)numel * element);
}

/* Gathers every rank's run, each at a multiple of `longest`. */
static fsdp_status gather_runs(const fsdp_tensor *tensor, int flat, int64_t longest, fsdp_tensor **out)
{
    const fsdp_mesh *mesh = fsdp_tensor_distribution(tensor)->mesh;
    fsdp_device *device = tensor->storage->device;
    int64_t ranks = mesh->shape[flat], numel = longest * ranks, own = longest * mesh->coordinate[flat];
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *runs = NULL;

    FSDP_TRY(fsdp_tensor_create(device, tensor->dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, &runs));
    FSDP_TRY(copy_run(tensor, 0, runs, own, fsdp_tensor_numel(tensor)));
    if (ranks > 1 && numel > 0 && !fsdp_device_is_meta(device)) {
        char *data = fsdp_tensor_data(runs);

        FSDP_TRY(fsdp_all_gather(mesh->groups[flat], data + (size_t)own * fsdp_dtype_size(tensor->dtype), data, longest,
                                 tensor->dtype, fsdp_device_stream(device)));
    }
    *out = fsdp__take(&runs);
    return FSDP_OK;
}

fsdp_status fsdp__flat_gather(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    int flat = fsdp__flat_dim(d->placements, d->placement_count);
    int64_t numel = fsdp__shape_numel(d->ndim, d->global_shape);
    int64_t longest = FSDP__MIN(d->placements[flat].chunk, numel);
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *whole = NULL, *runs = NULL;

    FSDP_TRY(gather_runs(tensor, flat, longest, &runs));
    FSDP_TRY(fsdp_tensor_create(tensor->storage->device, tensor->dtype, d->ndim, d->global_shape, tensor->storage->kind,
                                &whole));
    for (int r = 0; r < d->mesh->shape[flat]; r++) {
        int coordinate[FSDP_MAX_MESH_DIMS];
        int64_t start, length;

        memcpy(coordinate, d->mesh->coordinate, sizeof coordinate);
        coordinate[flat] = r;
        fsdp_distribution_box(d, coordinate, &start, &length);
        FSDP_TRY(copy_run(runs, r * longest, whole, start, length));
    }
    *out = fsdp__take(&whole);
    return FSDP_OK;
}

fsdp_status fsdp__flat_cut(const fsdp_tensor *whole, const fsdp_distribution *distribution, fsdp_tensor **out)
{
    FSDP__SCOPED(fsdp_tensor_unref_at) fsdp_tensor *own = NULL;
    int64_t start, length;

    fsdp_distribution_box(distribution, distribution->mesh->coordinate, &start, &length);
    FSDP_TRY(fsdp_tensor_create(whole->storage->device, whole->dtype, 1, &length, whole->storage->kind, &own));
    FSDP_TRY(copy_run(whole, start, own, 0, length));
    FSDP_TRY(fsdp_tensor_set_distribution(own, distribution));
    *out = fsdp__take(&own);
    return FSDP_OK;
}
