/* exports.c - memory that devices of other ranks read, for devices that have it. */
#include "base/alloc.h"
#include "base/probe.h"
#include "device/impl.h"

fsdp_status fsdp__device_export(fsdp_device *device, size_t bytes, fsdp__export *out)
{
    FSDP_TRY(device->backend->export_alloc(device, bytes, out));
    fsdp__device_account(device, NULL, FSDP_MEMORY_WORKSPACE, (int64_t)bytes, false);
    FSDP__TELL(MEMORY_MAPPED, .context = device->context, .memory = out->memory, .bytes = bytes);
    return FSDP_OK;
}

void fsdp__device_unexport(fsdp_device *device, const fsdp__export *memory)
{
    FSDP__TELL(MEMORY_UNMAPPED, .context = device->context, .memory = memory->memory);
    fsdp__device_account(device, NULL, FSDP_MEMORY_WORKSPACE, -(int64_t)memory->bytes, false);
    device->backend->export_free(device, memory);
}

fsdp_status fsdp__device_import(fsdp_device *device, const fsdp__export *theirs, void **out)
{
    FSDP_TRY(device->backend->import_open(device, theirs, out));
    return FSDP_OK;
}

void fsdp__device_unimport(fsdp_device *device, const fsdp__export *theirs, void *memory)
{
    device->backend->import_close(device, theirs, memory);
}

fsdp_status fsdp__device_try_words(fsdp_device *device, uint32_t *word)
{
    FSDP_TRY(device->backend->try_words(device, word));
    return FSDP_OK;
}

fsdp_status fsdp__stream_write_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    FSDP_TRY(stream->device->backend->write_word(stream, word, value));
    return FSDP_OK;
}

fsdp_status fsdp__stream_await_word(fsdp_stream *stream, uint32_t *word, uint32_t value)
{
    FSDP_TRY(stream->device->backend->await_word(stream, word, value));
    return FSDP_OK;
}
