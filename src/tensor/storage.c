/* storage.c - bytes with an identity: see [Note: storage identity] in tensor.h. */
#include "base/alloc.h"
#include "base/context.h"
#include "device/device.h"
#include "tensor/tensor.h"

fsdp_status fsdp__storage_create(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, bool allocate,
                                 fsdp__storage **out)
{
    FSDP__SCOPED(fsdp__storage_unref_at) fsdp__storage *storage = fsdp__calloc(1, sizeof *storage);

    FSDP__TRY_NEW(storage);
    storage->refs = 1;
    storage->device = device;
    storage->bytes = bytes;
    storage->kind = kind;
    storage->owner = fsdp__context_taker(fsdp_device_context(device)).owner;
    storage->made_in_function = fsdp__origin_runs(storage);
    if (allocate)
        FSDP_TRY(fsdp__storage_restore(storage));
    *out = fsdp__take(&storage);
    return FSDP_OK;
}

void fsdp__storage_unref(fsdp__storage *storage)
{
    if (!storage || --storage->refs > 0)
        return;
    fsdp__storage_drop(storage);
    fsdp__free(storage);
}

fsdp_status fsdp__storage_restore(fsdp__storage *storage)
{
    fsdp_context *context = fsdp_device_context(storage->device);
    fsdp__taker before = fsdp__context_taker(context);
    fsdp_status status;

    if (storage->data)
        return FSDP_OK;
    if (storage->owner != before.owner) /* as that of who has made it */
        fsdp__context_set_taker(context, (fsdp__taker){storage->owner, before.op, before.backward});
    status = fsdp__device_alloc(storage->device, storage->bytes, storage->kind, &storage->data);
    if (storage->owner != before.owner)
        fsdp__context_set_taker(context, before);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

static void borrowed(void *arg, void *data)
{
    (void)arg, (void)data;
}

void fsdp__storage_adopt(fsdp__storage *storage, void *data, void (*release)(void *arg, void *data), void *arg)
{
    storage->data = data;
    storage->release = release ? release : borrowed;
    storage->release_arg = arg;
}

void fsdp__storage_drop(fsdp__storage *storage)
{
    void (*release)(void *, void *) = storage->release;
    void *data = storage->data;

    if (!data)
        return;
    storage->data = NULL;
    storage->range.count = 0;
    storage->release = NULL;
    if (release)
        release(storage->release_arg, data);
    else
        fsdp__device_free(storage->device, data, storage->bytes, storage->kind);
}

fsdp_status fsdp_tensor_begin_write(fsdp_tensor *tensor)
{
    const fsdp__storage_guard *guard = tensor ? &tensor->storage->guard : NULL;

    if (!guard)
        return FSDP_FAIL(FSDP_INVALID, "cannot write to a tensor: it is NULL");
    if (guard->before_write)
        FSDP_TRY(guard->before_write(guard->arg, tensor->storage));
    tensor->storage->unwritten = false;
    fsdp__origin_count_write(tensor->storage);
    return FSDP_OK;
}

fsdp_status fsdp__storage_bring(fsdp__storage *storage)
{
    if (storage->data || !storage->guard.bring)
        return FSDP_OK;
    return storage->guard.bring(storage->guard.arg, storage);
}

/* Returns whether the tensor is all of its storage. */
static bool is_all(const fsdp_tensor *tensor)
{
    return fsdp_tensor_is_contiguous(tensor) &&
           (size_t)fsdp__shape_numel(tensor->ndim, tensor->shape) * fsdp_dtype_size(tensor->dtype) ==
               tensor->storage->bytes;
}

void *fsdp__tensor_copy_place(const fsdp_tensor *tensor, fsdp_dtype *dtype)
{
    const fsdp__storage *storage = tensor->storage;

    if (!storage->guard.copy_place || !is_all(tensor))
        return NULL;
    return storage->guard.copy_place(storage->guard.arg, storage, dtype);
}

void *fsdp__tensor_low_place(const fsdp_tensor *tensor)
{
    const fsdp__storage *storage = tensor->storage;

    if (storage->data || !storage->guard.low_place || !is_all(tensor))
        return NULL;
    return storage->guard.low_place(storage->guard.arg, storage);
}

void fsdp__tensor_copied(const fsdp_tensor *tensor)
{
    const fsdp__storage *storage = tensor->storage;

    if (storage->guard.copied)
        storage->guard.copied(storage->guard.arg, storage);
}

void fsdp__storage_await(fsdp__storage *storage)
{
    if (fsdp_stream_wait_event(fsdp_device_stream(storage->device), storage->written) != FSDP_OK)
        (void)fsdp_event_synchronize(storage->written); /* no memory to queue the wait: the host waits */
    storage->written = NULL;
}
