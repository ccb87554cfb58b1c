/* flat_runs.c - tensors whose parts are runs of a flat vector: gathers them, and cuts them again. */
#include <string.h>

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
    fsdp_status status;

    FSDP_TRY(fsdp_tensor_create(device, tensor->dtype, 1, &numel, FSDP_MEMORY_WORKSPACE, out));
    status = copy_run(tensor, 0, *out, own, fsdp_tensor_numel(tensor));
    if (status == FSDP_OK && ranks > 1 && numel > 0 && !fsdp_device_is_meta(device)) {
        char *data = fsdp_tensor_data(*out);

        status = fsdp_all_gather(mesh->groups[flat], data + (size_t)own * fsdp_dtype_size(tensor->dtype), data, longest,
                                 tensor->dtype, fsdp_device_stream(device));
    }
    if (status == FSDP_OK)
        return FSDP_OK;
    fsdp_tensor_unref(*out);
    *out = NULL;
    return status;
}

fsdp_status fsdp__flat_gather(const fsdp_tensor *tensor, fsdp_tensor **out)
{
    const fsdp_distribution *d = fsdp_tensor_distribution(tensor);
    int flat = fsdp__flat_dim(d->placements, d->placement_count);
    int64_t numel = fsdp__shape_numel(d->ndim, d->global_shape);
    int64_t longest = FSDP__MIN(d->placements[flat].chunk, numel);
    fsdp_tensor *runs = NULL, *whole = NULL;
    fsdp_status status;

    FSDP_TRY_GOTO(status, gather_runs(tensor, flat, longest, &runs), out);
    FSDP_TRY_GOTO(status,
                  fsdp_tensor_create(tensor->storage->device, tensor->dtype, d->ndim, d->global_shape,
                                     tensor->storage->kind, &whole),
                  out);
    for (int r = 0; r < d->mesh->shape[flat]; r++) {
        int coordinate[FSDP_MAX_MESH_DIMS];
        int64_t start, length;

        memcpy(coordinate, d->mesh->coordinate, sizeof coordinate);
        coordinate[flat] = r;
        fsdp_distribution_box(d, coordinate, &start, &length);
        FSDP_TRY_GOTO(status, copy_run(runs, r * longest, whole, start, length), out);
    }
    *out = whole;
    whole = NULL;
out:
    fsdp_tensor_unref(whole);
    fsdp_tensor_unref(runs);
    return status;
}

fsdp_status fsdp__flat_cut(const fsdp_tensor *whole, const fsdp_distribution *distribution, fsdp_tensor **out)
{
    fsdp_tensor *own = NULL;
    int64_t start, length;
    fsdp_status status;

    fsdp_distribution_box(distribution, distribution->mesh->coordinate, &start, &length);
    FSDP_TRY_GOTO(
        status, fsdp_tensor_create(whole->storage->device, whole->dtype, 1, &length, whole->storage->kind, &own), out);
    FSDP_TRY_GOTO(status, copy_run(whole, start, own, 0, length), out);
    FSDP_TRY_GOTO(status, fsdp_tensor_set_distribution(own, distribution), out);
    *out = own;
    own = NULL;
out:
    fsdp_tensor_unref(own);
    return status;
}
