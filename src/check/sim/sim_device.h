/* sim_device.h - the table of the simulated device and of its kernels. */
#pragma once

#include "check/sim/sim_memory.h"

extern const fsdp__backend fsdp__backend_sim;
/* The device's kernel table, and the function that refuses a launch with memory that is not the device's. */
extern const fsdp__kernel_function fsdp__sim_kernels[FSDP__KERNELS];
fsdp_status fsdp__sim_check_launch(fsdp_stream *stream, fsdp__kernel kernel, void *args);
