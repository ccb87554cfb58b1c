/* origin.c - tracks where the values of a tensor come from, while a function that is recomputed runs. */
#include "base/alloc.h"
#include "base/context.h"
#include "base/hash.h"
#include "device/device.h"
#include "tensor/tensor.h"

static fsdp__origins *origins_of(const fsdp__storage *storage)
{
    fsdp__origins *origins = fsdp__context_get(fsdp_device_context(storage->device), FSDP__SLOT_ORIGINS);

    return origins && origins->run ? origins : NULL;
}

fsdp__origins *fsdp__origins_make(fsdp_context *context)
{
    return fsdp__context_get_or_make(context, FSDP__SLOT_ORIGINS, sizeof(fsdp__origins), fsdp__free);
}

bool fsdp__origin_runs(const fsdp__storage *storage)
{
    return origins_of(storage) != NULL;
}

uint64_t fsdp__origins_begin(fsdp__origins *origins)
{
    uint64_t before = origins->run;

    origins->run = ++origins->runs;
    return before;
}

bool fsdp__origin_is_known(const fsdp_tensor *tensor)
{
    const fsdp__origins *origins = origins_of(tensor->storage);

    return origins && tensor->storage->run == origins->run;
}

static uint64_t origin_of(const fsdp_tensor *tensor)
{
    fsdp__storage *storage = tensor->storage;
    fsdp__origins *origins = origins_of(storage);

    if (!origins || (storage->made_in_function && storage->run != origins->run))
        return storage->version;
    if (storage->run != origins->run) {
        if (storage->number == 0)
            storage->number = ++origins->numbers;
        return fsdp__mix(storage->number, storage->version);
    }
    return fsdp__mix(fsdp__mix(storage->origin, storage->version - storage->inside), storage->version - storage->since);
}

uint64_t fsdp__origin_of(fsdp_tensor *const *tensors, int count)
{
    uint64_t hash = 1;

    for (int i = 0; i < count; i++)
        if (tensors[i])
            hash = fsdp__mix(hash, origin_of(tensors[i]));
    return hash;
}

void fsdp__origin_made(const fsdp_tensor *result, uint64_t from)
{
    fsdp__storage *storage = result->storage;
    const fsdp__origins *origins = origins_of(storage);

    if (!origins)
        return;
    storage->origin = from;
    storage->run = origins->run;
    storage->since = 0; /* count all writes: it may be a result that was kept, and written to since */
}

void fsdp__origin_write(fsdp_tensor *tensor, uint64_t from, bool replaces)
{
    fsdp__storage *storage = tensor->storage;
    const fsdp__origins *origins = origins_of(storage);
    size_t bytes = (size_t)fsdp__shape_numel(tensor->ndim, tensor->shape) * fsdp_dtype_size(tensor->dtype);

    if (!origins)
        return;
    if (!replaces || bytes != storage->bytes || !fsdp_tensor_is_contiguous(tensor))
        from = fsdp__mix(origin_of(tensor), from);
    storage->origin = from;
    storage->run = origins->run;
    storage->since = storage->version;
}

void fsdp__origin_count_write(fsdp__storage *storage)
{
    storage->version++;
    if (fsdp__origin_runs(storage))
        storage->inside++;
}
