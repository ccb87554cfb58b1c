/* same_device.h - the device that the ranks of a run compute on: a GPU for each, or the CPU for all. */
#pragma once

#include "fsdp/device.h"

/* Opens the device that a user has named (fsdp__device_name_check); NULL: the context's usual one. "auto" is a GPU if
 * all ranks have one, otherwise the CPU on all, and the log says which rank has none, and why. `option` is where the
 * name was given.
 *
 * Fails on all ranks with the same error if one cannot open what it was told to, or if some would compute on GPUs and
 * others not. [collective] */
fsdp_status fsdp__same_device(fsdp_context *context, const char *option, const char *name, fsdp_device **out);
