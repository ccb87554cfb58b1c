/* devices.h - devices whose kernels do not reach all host memory: they must know that through which their collectives
 * travel. */
#ifndef COMM_SYMMETRIC_DEVICES_H
#define COMM_SYMMETRIC_DEVICES_H

#include "comm/symmetric/group.h"

/* Before a call on `stream` touches payloads or staging: registers them with its device, once. */
fsdp_status fsdp__symmetric_open_device(fsdp__symmetric *symmetric, fsdp_stream *stream);
void fsdp__symmetric_close_devices(fsdp__symmetric *symmetric);

#endif
