/* stamps.h - checks the times that a stream's device gives to what subscribers are told of it. */
#pragma once

#include "fsdp/device.h"

/* Runs kernels and copies on a stream of a device with bytes while a subscriber takes stamps, and checks that what
 * begins is done no earlier, that what comes later in the stream is no earlier, and that copies are told with both. */
void stamps_check(fsdp_stream *stream);
