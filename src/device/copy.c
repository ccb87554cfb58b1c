/* copy.c - copies between the host and a device, and host memory that a device reaches. */
#include "base/alloc.h"
#include "base/probe.h"
#include "device/impl.h"

/* ---- host memory ---- */

fsdp_status fsdp__device_alloc_host(fsdp_device *device, size_t bytes, void **out)
{
    if (device->backend->host_alloc)
        FSDP_TRY(device->backend->host_alloc(device, bytes, out));
    else
        *out = fsdp__malloc(bytes);
    if (!*out)
        return FSDP_NO_MEMORY;
    FSDP__TELL(MEMORY_MAPPED, .context = device->context, .memory = *out, .bytes = bytes);
    return FSDP_OK;
}

void fsdp__device_free_host(fsdp_device *device, void *memory, size_t bytes)
{
    if (memory)
        FSDP__TELL(MEMORY_UNMAPPED, .context = device->context, .memory = memory);
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

/* The table's functions that copy. NULL: nothing is copied. */
typedef fsdp_status (*copy)(fsdp_stream *stream, void *dst, const void *src, size_t bytes);

#define COPY_EVENT \
    .context = stream->device->context, .stream = stream, .memory = dst, .from = src, .bytes = bytes, .name = name

static fsdp_status queue(fsdp_stream *stream, copy function, void *dst, const void *src, size_t bytes, const char *name)
{
    fsdp_status status;

    if (bytes == 0 || !function)
        return FSDP_OK;
    FSDP__TELL(COPY_ISSUED, COPY_EVENT);
    status = function(stream, dst, src, bytes);
    if (status != FSDP_OK)
        FSDP__TELL(COPY_REFUSED, COPY_EVENT);
    return status;
}

static fsdp_status run(fsdp_stream *stream, copy function, void *dst, const void *src, size_t bytes, const char *name)
{
    fsdp_status status;

    if (bytes == 0 || !function)
        return FSDP_OK;
    status = FSDP__ASK(COPY_BEGUN, COPY_EVENT);
    if (status == FSDP_OK)
        status = function(stream, dst, src, bytes);
    FSDP__TELL(COPY_DONE, COPY_EVENT);
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

fsdp_status fsdp__copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return queue(stream, stream->device->backend->copy_to_device, device, host, bytes, "copy from the host");
}

fsdp_status fsdp__copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return queue(stream, stream->device->backend->copy_to_host, host, device, bytes, "copy to the host");
}

/* Hands bytes to a stream that was entered. Their memory is read in this thread, so the stream is not told to use it.
 */
static fsdp_status hand_now(fsdp_stream *stream, void *dst, const void *host, size_t bytes)
{
    static const char name[] = "copy from the host";
    const void *const src = NULL;
    fsdp_status status = FSDP__ASK(COPY_BEGUN, COPY_EVENT);

    if (status == FSDP_OK)
        status = stream->device->backend->hand_to_device(stream, dst, host, bytes);
    FSDP__TELL(COPY_DONE, COPY_EVENT);
    return status;
}

fsdp_status fsdp__hand_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    fsdp_status status;

    if (bytes > 0 && stream->device->backend->hand_to_device && fsdp__stream_enter(stream)) {
        status = hand_now(stream, device, host, bytes);
        fsdp__stream_leave(stream);
        return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    status = fsdp__copy_to_device(stream, device, host, bytes);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream)); /* also for what was queued before a failure */
    return status;
}

fsdp_status fsdp__run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return run(stream, stream->device->backend->run_copy_to_device, device, host, bytes, "copy from the host");
}

fsdp_status fsdp__run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return run(stream, stream->device->backend->run_copy_to_host, host, device, bytes, "copy to the host");
}

fsdp_status fsdp__copy_on_device(fsdp_stream *stream, void *dst, const void *src, size_t bytes)
{
    const fsdp__span span = {src, dst, (int64_t)bytes};

    if (bytes > 0)
        FSDP_TRY(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){&span, 1, FSDP_U8, FSDP_U8}));
    return FSDP_OK;
}
