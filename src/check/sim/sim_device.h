/* sim_device.h - between sim_device.c and sim_kernels.c. */
#ifndef CHECK_SIM_SIM_DEVICE_H
#define CHECK_SIM_SIM_DEVICE_H

#include "device/impl.h"

/* Returns where a kernel finds all of [pointer, pointer + bytes): in the second mapping for device memory, at the
 * address itself for host memory that was registered. NULL: it is neither. [thread-safe] */
void *fsdp__sim_translate(const fsdp_device *device, const void *pointer, size_t bytes);
/* Does the same for work of the stream that runs now, which may also use the stream's scratch. */
void *fsdp__sim_reach(const fsdp_stream *stream, const void *pointer, size_t bytes);

extern const fsdp__backend fsdp__backend_sim;
/* The device's kernel table, and the function that refuses a launch with memory that is not the device's. */
extern const fsdp__kernel_function fsdp__sim_kernels[FSDP__KERNELS];
fsdp_status fsdp__sim_check_launch(fsdp_stream *stream, fsdp__kernel kernel, void *args);

#endif
