/* device.c - life cycle of a device and its memory calls. */
#include "device/impl.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/context.h"
#include "base/fault.h"

static fsdp_status backend_segment_alloc(void *backend, size_t bytes, void **out)
{
    return ((const fsdp__backend *)backend)->segment_alloc(bytes, out);
}

static void backend_segment_free(void *backend, void *segment, size_t bytes)
{
    ((const fsdp__backend *)backend)->segment_free(segment, bytes);
}

fsdp_status fsdp__device_create(fsdp_context *context, const fsdp__backend *backend, fsdp_device **out)
{
    fsdp_status st = FSDP_OK;
    fsdp__segment_source source = {backend->name, backend->has_bytes, backend_segment_alloc, backend_segment_free,
                                   (void *)(uintptr_t)backend};
    fsdp_device *device = fsdp__calloc(1, sizeof *device);

    if (!device)
        return FSDP_NO_MEMORY;
    device->backend = backend;
    device->context = context;
    FSDP_TRY_GOTO(st, fsdp__allocator_create(&source, &device->allocator), out);
    FSDP_TRY_GOTO(st, fsdp_stream_create(device, FSDP_STREAM_INLINE, &device->stream), out);
    if (backend->prepare_thread)
        backend->prepare_thread(device);
    *out = device;
    device = NULL;
out:
    fsdp__device_destroy(device);
    return st;
}

/* Live bytes at the end are a leak of the layers above: say of what kind. */
static void report_leaks(const fsdp_device *device)
{
    fsdp_memory_stats stats;
    char text[256] = "";
    size_t used = 0;

    fsdp_device_memory(device, &stats);
    if (stats.live_total_bytes == 0)
        return;
    for (int kind = 0; kind < FSDP_MEMORY_KINDS && used < sizeof text; kind++)
        if (stats.live_bytes[kind])
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s %zu", used ? ", " : "",
                                     fsdp_memory_kind_name((fsdp_memory_kind)kind), stats.live_bytes[kind]);
    fsdp_log(device->context, FSDP_LOG_ERROR, "device '%s' freed with %zu live bytes: %s", device->backend->name,
             stats.live_total_bytes, text);
}

void fsdp__device_destroy(fsdp_device *device)
{
    if (!device)
        return;
    fsdp_stream_free(device->stream);
    if (device->allocator)
        report_leaks(device);
    fsdp__allocator_free(device->allocator);
    fsdp__free(device);
}

static void destroy_slot(void *state)
{
    fsdp__device_destroy(state);
}

static fsdp_device *get_or_create(fsdp_context *context, fsdp__slot slot, const char *name)
{
    fsdp_device *device;
    const fsdp__backend *backend;

    if (!context) {
        (void)FSDP_FAIL(FSDP_INVALID, "cannot open device '%s': the context is NULL", name);
        return NULL;
    }
    device = fsdp__context_get(context, slot);
    if (device)
        return device;
    backend = fsdp__backend_find(name);
    if (!backend) {
        (void)FSDP_FAIL(FSDP_UNSUPPORTED, "cannot open device '%s': not compiled in", name);
        return NULL;
    }
    if (fsdp__device_create(context, backend, &device) != FSDP_OK)
        return NULL;
    fsdp__context_attach(context, slot, device, destroy_slot);
    return device;
}

fsdp_device *fsdp_cpu(fsdp_context *context)
{
    return get_or_create(context, FSDP__SLOT_CPU, "cpu");
}

fsdp_device *fsdp_meta(fsdp_context *context)
{
    return get_or_create(context, FSDP__SLOT_META, "meta");
}

const char *fsdp_device_name(const fsdp_device *device)
{
    return device->backend->name;
}

bool fsdp_device_is_meta(const fsdp_device *device)
{
    return !device->backend->has_bytes;
}

fsdp_context *fsdp_device_context(const fsdp_device *device)
{
    return device->context;
}

fsdp_status fsdp__device_run_on_worker(fsdp_device *device)
{
    fsdp_stream *stream = NULL;

    FSDP_TRY(fsdp_stream_synchronize(device->stream));
    FSDP_TRY(fsdp_stream_create(device, FSDP_STREAM_WORKER, &stream));
    fsdp_stream_free(device->stream);
    device->stream = stream;
    fsdp__allocator_runs_behind(device->allocator);
    return FSDP_OK;
}

fsdp_stream *fsdp_device_stream(fsdp_device *device)
{
    return device->stream;
}

void fsdp_device_memory(const fsdp_device *device, fsdp_memory_stats *out)
{
    fsdp__allocator_stats(device->allocator, out);
}

void fsdp_device_reset_peak(fsdp_device *device)
{
    fsdp__allocator_reset_peak(device->allocator);
}

fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out)
{
    if (fsdp__fault(FSDP__FAULT_ALLOCATION))
        return FSDP_FAIL(FSDP_NO_MEMORY, "cannot allocate %zu bytes of %s on device '%s': fault injected", bytes,
                         fsdp_memory_kind_name(kind), device->backend->name);
    FSDP_TRY(fsdp__allocator_take(device->allocator, bytes, kind, out));
    return FSDP_OK;
}

void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind)
{
    if (!pointer || bytes == 0)
        return;
    if (!fsdp__allocator_give(device->allocator, pointer))
        fsdp_log(device->context, FSDP_LOG_ERROR, "device '%s': freed %zu bytes of %s that were not live",
                 device->backend->name, bytes, fsdp_memory_kind_name(kind));
}

void fsdp__device_account(fsdp_device *device, fsdp_memory_kind kind, int64_t delta_bytes, bool shared)
{
    fsdp__allocator_account(device->allocator, kind, delta_bytes, shared);
}
