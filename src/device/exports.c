/* exports.c - memory that devices of other ranks read, for devices that have it. */
#include "base/probe.h"
#include "device/impl.h"

static void count(fsdp_device *device, const fsdp__export *memory, int64_t bytes)
{
    if (memory->counted)
        fsdp__device_account(device, NULL, FSDP_MEMORY_WORKSPACE, bytes, false);
}

fsdp_status fsdp__device_export(fsdp_device *device, size_t bytes, bool counted, fsdp__export *out)
{
    fsdp_status status = FSDP__ASK(ALLOCATION, .bytes = bytes);

    FSDP_TRY(status);
    status = device->backend->export_alloc(device, bytes, out);
    if (status == FSDP_NO_MEMORY && fsdp__allocator_shrink(device->allocator))
        status = device->backend->export_alloc(device, bytes, out);
    if (status == FSDP_NO_MEMORY && fsdp__allocator_settle(device->allocator))
        status = device->backend->export_alloc(device, bytes, out);
    FSDP_TRY(status);
    out->counted = counted;
    count(device, out, (int64_t)out->bytes);
    FSDP__TELL(MEMORY_MAPPED, .context = device->context, .memory = out->memory, .bytes = bytes);
    return FSDP_OK;
}

void fsdp__device_leave_export(fsdp_device *device, const fsdp__export *memory)
{
    FSDP__TELL(MEMORY_UNMAPPED, .context = device->context, .memory = memory->memory);
    count(device, memory, -(int64_t)memory->bytes);
}

void fsdp__device_unexport(fsdp_device *device, const fsdp__export *memory)
{
    fsdp__device_leave_export(device, memory);
    device->backend->export_free(device, memory);
}

fsdp_status fsdp__device_import(fsdp_device *device, const fsdp__export *theirs, void **out)
{
    return device->backend->import_open(device, theirs, out);
}

void fsdp__device_unimport(fsdp_device *device, const fsdp__export *theirs, void *memory)
{
    device->backend->import_close(device, theirs, memory);
}

fsdp_status fsdp__device_mark_all(fsdp_device *device, fsdp__device_moment **out)
{
    return device->backend->mark_all(device, out);
}

bool fsdp__device_has_ended(fsdp_device *device)
{
    return device->backend->has_ended(device);
}

fsdp_status fsdp__device_try_words(fsdp_device *device, uint32_t *word)
{
    return device->backend->try_words(device, word);
}

fsdp_status fsdp__stream_write_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    return stream->device->backend->write_word(stream, word, value);
}

fsdp_status fsdp__stream_await_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    return stream->device->backend->await_word(stream, word, value);
}
