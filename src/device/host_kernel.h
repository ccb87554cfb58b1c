/* host_kernel.h - a function of the caller's that computes on host memory, as work of any device's stream. */
#ifndef DEVICE_HOST_KERNEL_H
#define DEVICE_HOST_KERNEL_H

#include "device/device.h"
#include "device/kernels.h"

/* data[i]: where the host reads or writes buffer i; buffers of equal address and size are one. Others
 * may share bytes where nobody writes them: each has what lies there. */
typedef fsdp_status (*fsdp__host_function)(const void *arg, void *const *data);

typedef struct fsdp__host_kernel {
    const char *name; /* must stay */
    fsdp__host_function function;
    const void *arg; /* copied */
    size_t arg_bytes;
    const fsdp__buffer *buffers; /* copied; without names */
    int count;
} fsdp__host_kernel;

/* As fsdp__launch. Nothing happens on a device without bytes. [stream] */
fsdp_status fsdp__launch_host_kernel(fsdp_stream *stream, const fsdp__host_kernel *kernel);

#endif
