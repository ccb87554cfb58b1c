/* copy.c - copies between the host and a device, and host memory that a device reaches. */
#include "base/alloc.h"
#include "device/impl.h"
#include "device/races.h"

/* ---- host memory ---- */

fsdp_status fsdp__device_alloc_host(fsdp_device *device, size_t bytes, void **out)
{
    if (device->backend->host_alloc)
        FSDP_TRY(device->backend->host_alloc(device, bytes, out));
    else
        *out = fsdp__malloc(bytes);
    if (!*out)
        return FSDP_NO_MEMORY;
    if (device->races)
        fsdp__races_watch(device->context, *out, bytes);
    return FSDP_OK;
}

void fsdp__device_free_host(fsdp_device *device, void *memory, size_t bytes)
{
    if (memory && device->races)
        fsdp__races_unwatch(device->context, memory);
    if (memory && device->backend->host_free)
        device->backend->host_free(device, memory, bytes);
    else
        fsdp__free(memory);
}

fsdp_status fsdp__device_register_host(fsdp_device *device, void *memory, size_t bytes)
{
    if (device->backend->host_register)
        FSDP_TRY(device->backend->host_register(device, memory, bytes));
    return FSDP_OK;
}

void fsdp__device_unregister_host(fsdp_device *device, void *memory, size_t bytes)
{
    if (device->backend->host_unregister)
        device->backend->host_unregister(device, memory, bytes);
}

/* ---- copies ---- */

/* Announces what the next item of the stream will use, on the host's side too, if that memory is watched. */
static void expect(fsdp_stream *stream, const void *dst, const void *src, size_t bytes, const char *what)
{
    if (!stream->actor)
        return;
    fsdp__races_expect(stream, src, bytes, FSDP__READS, what);
    fsdp__races_expect(stream, dst, bytes, FSDP__WRITES, what);
}

/* Withdraws the announcement if the item was not queued, so that the item after it does not carry it. */
static fsdp_status expected(fsdp_stream *stream, fsdp_status status)
{
    if (status != FSDP_OK && stream->actor)
        fsdp__races_expect_no_use(stream);
    return status;
}

static fsdp_status use(fsdp_stream *stream, const void *dst, const void *src, size_t bytes, const char *what)
{
    FSDP_TRY(fsdp__races_use(stream, src, bytes, FSDP__READS, what));
    FSDP_TRY(fsdp__races_use(stream, dst, bytes, FSDP__WRITES, what));
    return FSDP_OK;
}

fsdp_status fsdp__copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    if (bytes == 0 || !stream->device->backend->copy_to_device)
        return FSDP_OK;
    expect(stream, device, host, bytes, "copy from the host");
    return expected(stream, stream->device->backend->copy_to_device(stream, device, host, bytes));
}

fsdp_status fsdp__copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    if (bytes == 0 || !stream->device->backend->copy_to_host)
        return FSDP_OK;
    expect(stream, host, device, bytes, "copy to the host");
    return expected(stream, stream->device->backend->copy_to_host(stream, host, device, bytes));
}

fsdp_status fsdp__run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    if (bytes == 0 || !stream->device->backend->run_copy_to_device)
        return FSDP_OK;
    FSDP_TRY(use(stream, device, host, bytes, "copy from the host"));
    FSDP_TRY(stream->device->backend->run_copy_to_device(stream, device, host, bytes));
    return FSDP_OK;
}

fsdp_status fsdp__run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    if (bytes == 0 || !stream->device->backend->run_copy_to_host)
        return FSDP_OK;
    FSDP_TRY(use(stream, host, device, bytes, "copy to the host"));
    FSDP_TRY(stream->device->backend->run_copy_to_host(stream, host, device, bytes));
    return FSDP_OK;
}

fsdp_status fsdp__copy_on_device(fsdp_stream *stream, void *dst, const void *src, size_t bytes)
{
    const fsdp__span span = {src, dst, (int64_t)bytes};

    if (bytes > 0)
        FSDP_TRY(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){&span, 1, FSDP_U8, FSDP_U8}));
    return FSDP_OK;
}
