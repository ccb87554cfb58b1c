/* dry.h - the device that stands for a GPU in a dry run, and the device that holds offloaded memory. fsdp__dry
 * (device.h) stands for the CPU. */
#pragma once

#include "device/backend.h"

extern const fsdp__backend fsdp__backend_dry_gpu;

/* Returns the context's device that is as dry as fsdp__dry, but has memory of its own, whose segments grow as a GPU's
 * do, so that it reserves as much, and streams that run behind the host. NULL and a last error on failure. */
fsdp_device *fsdp__dry_gpu(fsdp_context *context);
/* Returns the device with the host's memory, which holds offloaded shards: the CPU, or, if the device has no bytes, the
 * dry device. NULL and a last error on failure. */
fsdp_device *fsdp__device_host(fsdp_device *device);
