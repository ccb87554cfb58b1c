/* kernels.c - the table of kernels and the one way to start one. */
#include <string.h>

#include "base/clock.h"
#include "device/impl.h"

const fsdp__kernel_info fsdp__kernel_infos[FSDP__KERNELS] = {
#define KERNEL_INFO(NAME, name, class) {#name, sizeof(fsdp__##name##_args), FSDP__KERNEL_CLASS_##class},
    FSDP__KERNEL_MAP(KERNEL_INFO)
#undef KERNEL_INFO
};

/* What travels through the queue of a worker stream: which kernel, then its arguments. */
typedef struct kernel_call {
    fsdp__kernel kernel;
    union {
#define KERNEL_ARGS(NAME, name, class) fsdp__##name##_args name;
        FSDP__KERNEL_MAP(KERNEL_ARGS)
#undef KERNEL_ARGS
    } args;
} kernel_call;

/* One pair of clock reads a launch: 50 ns against kernels of microseconds. */
fsdp_status fsdp__run_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    fsdp_device *device = stream->device;
    int64_t start = fsdp__clock_ns();
    fsdp_status st;

    if (!device->backend->kernels)
        return FSDP_OK;
    st = device->backend->kernels[kernel](stream, args);
    atomic_fetch_add_explicit(&device->kernel_ns[fsdp__kernel_infos[kernel].class], fsdp__clock_ns() - start,
                              memory_order_relaxed);
    return st;
}

static fsdp_status run_call(fsdp_stream *stream, const void *argument)
{
    const kernel_call *call = argument;

    return fsdp__run_kernel(stream, call->kernel, &call->args);
}

fsdp_status fsdp__launch(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    kernel_call call;
    size_t bytes;

    if (!stream->device->backend->kernels)
        return FSDP_OK;
    if (stream->mode == FSDP_STREAM_INLINE) {
        FSDP_TRY(fsdp__run_kernel(stream, kernel, args));
        return FSDP_OK;
    }
    bytes = fsdp__kernel_infos[kernel].args_bytes;
    call.kernel = kernel;
    memcpy(&call.args, args, bytes);
    FSDP_TRY(fsdp__stream_enqueue(stream, run_call, &call, offsetof(kernel_call, args) + bytes));
    return FSDP_OK;
}

void fsdp__device_kernel_time(const fsdp_device *device, int64_t out_ns[FSDP__KERNEL_CLASSES])
{
    for (int i = 0; i < FSDP__KERNEL_CLASSES; i++)
        out_ns[i] = atomic_load_explicit(&device->kernel_ns[i], memory_order_relaxed);
}

void fsdp__device_kernel_time_reset(fsdp_device *device)
{
    for (int i = 0; i < FSDP__KERNEL_CLASSES; i++)
        atomic_store_explicit(&device->kernel_ns[i], 0, memory_order_relaxed);
}
