/* host_kernel.h - runs a caller's function that computes on host memory, or on the device's, as work of any device's
 * stream. */
#pragma once

#include "device/device.h"
#include "device/kernels.h"

/* Computes. data[i] is where the host reads or writes buffer i; buffers of equal address and size are one. Other
 * buffers may share bytes where nobody writes them: each has a copy of these bytes. */
typedef fsdp_status (*fsdp__host_function)(const void *arg, void *const *data);

/* Does the same on the device's memory. */
typedef fsdp_status (*fsdp__device_function)(fsdp_stream *stream, const void *arg, void *const *data);

typedef struct fsdp__host_kernel {
    const char *name; /* must outlive the work */
    fsdp__host_function function;
    fsdp__device_function device_function; /* or this one */
    const void *arg;                       /* copied */
    size_t arg_bytes;
    const fsdp__buffer *buffers; /* copied; they need no names */
    int count;
} fsdp__host_kernel;

/* Launches the function as fsdp__launch does a kernel. Nothing happens on a device without bytes. [stream] */
fsdp_status fsdp__launch_host_kernel(fsdp_stream *stream, const fsdp__host_kernel *kernel);
