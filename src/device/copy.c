/* copy.c - copies between the host and a device, and host memory that a device reaches. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/probe.h"
#include "device/impl.h"

/* ---- host memory ---- */

fsdp_status fsdp__device_alloc_host(fsdp_device *device, size_t bytes, void **out)
{
    if (device->backend->host_alloc)
        FSDP_TRY(device->backend->host_alloc(device, bytes, out));
    else
        *out = fsdp__malloc(bytes);
    FSDP__TRY_NEW(*out);
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

/* A copy on its way through a stream. */
typedef struct transfer {
    /* The table's function that copies. NULL: nothing is copied. */
    fsdp_status (*function)(fsdp_stream *stream, void *dst, const void *src, size_t bytes);
    void *dst;
    const void *src;
    size_t bytes;
    fsdp__access access; /* what it does with the device's memory */
    bool settles;        /* it is done on return, and not only issued */
    bool taken;          /* the host's memory is read in the caller's thread: the stream does not use it */
} transfer;

#define COPY_EVENT                                                                                            \
    .context = stream->device->context, .stream = stream, .memory = t->dst, .from = t->taken ? NULL : t->src, \
    .bytes = t->bytes, .kind = (int)t->access,                                                                \
    .name = t->access == FSDP__WRITES ? "copy from the host" : "copy to the host"

/* Copies inside the stream's work. */
static fsdp_status run(fsdp_stream *stream, const void *argument)
{
    const transfer *t = argument;
    fsdp_status status;

    if (t->bytes == 0 || !t->function)
        return FSDP_OK;
    status = FSDP__ASK(COPY_BEGUN, COPY_EVENT, .ns = fsdp__clock_ns());
    if (status == FSDP_OK)
        status = t->function(stream, t->dst, t->src, t->bytes);
    if (status == FSDP_OK && t->settles)
        status = fsdp__stream_settle(stream);
    FSDP__TELL(COPY_DONE, COPY_EVENT, .ns = fsdp__clock_ns());
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

/* Copies now, if the stream can be entered, and otherwise when its turn comes. */
static fsdp_status queue(fsdp_stream *stream, const transfer *t)
{
    fsdp_status status;

    if (t->bytes == 0 || !t->function)
        return FSDP_OK;
    FSDP_TRY(FSDP__ASK(COPY_ISSUED, COPY_EVENT));
    if (!fsdp__stream_enter(stream))
        return fsdp__stream_enqueue(stream, run, t, sizeof *t);
    status = run(stream, t);
    fsdp__stream_leave(stream);
    return status;
}

static transfer to_device(const fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return (transfer){.function = stream->device->backend->copy_to_device,
                      .dst = device,
                      .src = host,
                      .bytes = bytes,
                      .access = FSDP__WRITES};
}

static transfer to_host(const fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return (transfer){.function = stream->device->backend->copy_to_host,
                      .dst = host,
                      .src = device,
                      .bytes = bytes,
                      .access = FSDP__READS};
}

fsdp_status fsdp__copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    const transfer t = to_device(stream, device, host, bytes);

    return queue(stream, &t);
}

fsdp_status fsdp__copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    const transfer t = to_host(stream, host, device, bytes);

    return queue(stream, &t);
}

enum {
    MOST_CARRIED = 1 << 20 /* bytes; more are better waited for than copied once more */
};

static fsdp_status run_carried(fsdp_stream *stream, const void *argument)
{
    transfer t = *(const transfer *)argument;

    t.src = (const char *)argument + sizeof t;
    return run(stream, &t);
}

/* Queues a copy whose bytes go along, for a stream that cannot be entered: it has something to wait for first. */
static fsdp_status carry(fsdp_stream *stream, const transfer *t)
{
    FSDP__FREED char *carried = fsdp__malloc(sizeof *t + t->bytes);

    FSDP__TRY_NEW(carried);
    memcpy(carried, t, sizeof *t);
    memcpy(carried + sizeof *t, t->src, t->bytes);
    FSDP_TRY(FSDP__ASK(COPY_ISSUED, COPY_EVENT));
    return fsdp__stream_enqueue(stream, run_carried, carried, sizeof *t + t->bytes);
}

fsdp_status fsdp__hand_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    transfer t = to_device(stream, device, host, bytes);
    fsdp_status status;

    t.function = stream->device->backend->hand_to_device;
    t.taken = true;
    if (t.function && fsdp__stream_enter(stream)) {
        status = run(stream, &t);
        fsdp__stream_leave(stream);
        return status;
    }
    if (t.function && bytes > 0 && bytes <= MOST_CARRIED)
        return carry(stream, &t);
    status = fsdp__copy_to_device(stream, device, host, bytes);
    FSDP_KEEP_FIRST(status, fsdp_stream_synchronize(stream)); /* also for what was queued before a failure */
    return status;
}

fsdp_status fsdp__run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    transfer t = to_device(stream, device, host, bytes);

    t.settles = true;
    return run(stream, &t);
}

fsdp_status fsdp__run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    transfer t = to_host(stream, host, device, bytes);

    t.settles = true;
    return run(stream, &t);
}

fsdp_status fsdp__copy_on_device(fsdp_stream *stream, void *dst, const void *src, size_t bytes)
{
    const fsdp__span span = {src, dst, (int64_t)bytes};

    if (bytes > 0)
        FSDP_TRY(fsdp__launch_cast_spans(stream, &(fsdp__cast_spans_args){&span, 1, FSDP_U8, FSDP_U8}));
    return FSDP_OK;
}
