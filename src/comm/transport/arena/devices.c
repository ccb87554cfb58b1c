/* devices.c - registers the arena's memory with devices that need it. */
#include "comm/transport/arena/devices.h"

#include "base/alloc.h"
#include "base/probe.h"
#include "device/device.h"

fsdp_status fsdp__symmetric_open_device(fsdp__symmetric *symmetric, fsdp_stream *stream)
{
    fsdp_device *device = fsdp__stream_device(stream);
    fsdp_status status = FSDP_OK;
    size_t bytes;
    void *passage;

    passage = fsdp__arena_passage(symmetric->arena, &bytes);
    FSDP__TELL(MEMORY_MAPPED, .context = symmetric->context, .memory = passage, .bytes = bytes);
    if (fsdp__device_host_access(device))
        return FSDP_OK;
    pthread_mutex_lock(&symmetric->mutex);
    for (int64_t i = 0; i < symmetric->device_count; i++)
        if (symmetric->devices[i] == device)
            goto out;
    /* Make room first: a device that knows the arena must be in the list, to be told when the arena ends. */
    if (fsdp__grow(&symmetric->devices, symmetric->device_count, &symmetric->device_capacity,
                   sizeof *symmetric->devices) != 0) {
        status = FSDP_NO_MEMORY;
        goto out;
    }
    FSDP_TRY_GOTO(status, fsdp__device_register_host(device, passage, bytes), out);
    symmetric->devices[symmetric->device_count++] = device;
out:
    pthread_mutex_unlock(&symmetric->mutex);
    return status;
}

void fsdp__symmetric_close_devices(fsdp__symmetric *symmetric)
{
    size_t bytes;
    void *passage = fsdp__arena_passage(symmetric->arena, &bytes);

    for (int64_t i = 0; i < symmetric->device_count; i++)
        fsdp__device_unregister_host(symmetric->devices[i], passage, bytes);
    fsdp__free(symmetric->devices);
    pthread_mutex_destroy(&symmetric->mutex);
}
