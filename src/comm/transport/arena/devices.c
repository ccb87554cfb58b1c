/* devices.c - registers the arena's memory with devices that need it. */
#include "comm/transport/arena/devices.h"

#include "base/alloc.h"
#include "base/probe.h"
#include "device/device.h"

fsdp_status fsdp__arena_open_device(fsdp__arena_view *view, fsdp_stream *stream)
{
    fsdp_device *device = fsdp__stream_device(stream);
    fsdp_status status = FSDP_OK;
    size_t bytes;
    void *passage;

    passage = fsdp__arena_passage(view->arena, &bytes);
    FSDP__TELL(MEMORY_MAPPED, .context = view->context, .memory = passage, .bytes = bytes);
    if (fsdp__device_host_access(device))
        return FSDP_OK;
    pthread_mutex_lock(&view->mutex);
    for (int64_t i = 0; i < view->device_count; i++)
        if (view->devices[i] == device)
            goto out;
    /* Make room first: a device that knows the arena must be in the list, to be told when the arena ends. */
    FSDP_TRY_GOTO(status, fsdp__grow(&view->devices, view->device_count, &view->device_capacity, sizeof *view->devices),
                  out);
    FSDP_TRY_GOTO(status, fsdp__device_register_host(device, passage, bytes), out);
    view->devices[view->device_count++] = device;
out:
    pthread_mutex_unlock(&view->mutex);
    return status;
}

void fsdp__arena_close_devices(fsdp__arena_view *view)
{
    size_t bytes;
    void *passage = fsdp__arena_passage(view->arena, &bytes);

    for (int64_t i = 0; i < view->device_count; i++)
        fsdp__device_unregister_host(view->devices[i], passage, bytes);
    fsdp__free(view->devices);
    pthread_mutex_destroy(&view->mutex);
}
