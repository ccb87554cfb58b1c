/* devices.h - devices whose kernels do not reach all host memory. The memory through which their collectives travel
 * must be registered with them. */
#pragma once

#include "comm/transport/arena/arena_group.h"

/* Registers payloads and staging with the stream's device, once. Must be called before a call on `stream` touches
 * them. */
fsdp_status fsdp__arena_open_device(fsdp__arena_view *view, fsdp_stream *stream);
void fsdp__arena_close_devices(fsdp__arena_view *view);
