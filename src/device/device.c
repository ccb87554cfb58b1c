/* device.c - what a device is, and its memory calls. */
#include "device/impl.h"

#include "base/probe.h"
#include "base/text.h"

/* ---- what it is ---- */

const char *fsdp__device_elsewhere(const fsdp_device *device, const fsdp_device *other)
{
    return device->context == other->context ? "" : " of another context";
}

const char *fsdp_device_name(const fsdp_device *device)
{
    return device->name;
}

int fsdp_device_ordinal(const fsdp_device *device)
{
    return device->ordinal;
}

bool fsdp_device_is_meta(const fsdp_device *device)
{
    return device->backend->is_meta;
}

bool fsdp__device_has_bytes(const fsdp_device *device)
{
    return device->backend->has_bytes;
}

fsdp_context *fsdp_device_context(const fsdp_device *device)
{
    return device->context;
}

bool fsdp__device_host_access(const fsdp_device *device)
{
    return device->backend->host_access;
}

bool fsdp__device_shared_memory(const fsdp_device *device)
{
    return device->backend->shared_memory;
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

/* Tells that the ledger of a kind has changed. */
static void tell_counted(const fsdp_device *device, fsdp_memory_kind kind, int64_t delta_bytes)
{
    if (delta_bytes != 0)
        FSDP__TELL(MEMORY_COUNTED, .context = device->context, .stream = device->stream, .kind = (int)kind,
                   .number = (uint64_t)delta_bytes);
}

fsdp_status fsdp__device_alloc(fsdp_device *device, size_t bytes, fsdp_memory_kind kind, void **out)
{
    fsdp_status status = FSDP__ASK(ALLOCATION, .bytes = bytes);
    char size[24];

    if (status != FSDP_OK)
        return fsdp_fail_prefix(status, "cannot allocate %s of %s on device '%s'",
                                fsdp__size_text((double)bytes, size, sizeof size), fsdp_memory_kind_name(kind),
                                device->name);
    FSDP_TRY(fsdp__allocator_take(device->allocator, bytes, kind, out));
    if (bytes > 0)
        FSDP__TELL(MEMORY_TAKEN, .context = device->context, .stream = device->stream, .memory = *out, .bytes = bytes,
                   .kind = (int)kind);
    tell_counted(device, kind, (int64_t)fsdp__device_rounded(bytes));
    return FSDP_OK;
}

void fsdp__device_free(fsdp_device *device, void *pointer, size_t bytes, fsdp_memory_kind kind)
{
    if (!pointer || bytes == 0)
        return;
    FSDP__TELL(MEMORY_GIVEN_BACK, .context = device->context, .stream = device->stream, .memory = pointer,
               .bytes = bytes, .kind = (int)kind);
    if (!fsdp__allocator_give(device->allocator, pointer))
        fsdp_log(device->context, FSDP_LOG_ERROR, "device '%s': freed %zu bytes of %s that were not live", device->name,
                 bytes, fsdp_memory_kind_name(kind));
    else
        tell_counted(device, kind, -(int64_t)fsdp__device_rounded(bytes));
}

fsdp_status fsdp__workspace_take(fsdp_device *device, size_t bytes, fsdp__workspace *out)
{
    FSDP_TRY(fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, &out->data));
    out->device = device;
    out->bytes = bytes;
    return FSDP_OK;
}

void fsdp__workspace_release(const fsdp__workspace *workspace)
{
    if (workspace->device)
        fsdp__device_free(workspace->device, workspace->data, workspace->bytes, FSDP_MEMORY_WORKSPACE);
}

void fsdp__device_recount(fsdp_device *device, const void *pointer, fsdp_memory_kind kind)
{
    fsdp_memory_kind before = kind;
    int64_t bytes = (int64_t)fsdp__allocator_recount(device->allocator, pointer, kind, &before);

    tell_counted(device, before, -bytes);
    tell_counted(device, kind, bytes);
}

void fsdp__device_account(fsdp_device *device, fsdp_memory_kind kind, int64_t delta_bytes, bool shared)
{
    tell_counted(device, kind, fsdp__allocator_account(device->allocator, kind, delta_bytes, shared));
}
