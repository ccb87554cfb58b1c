/* delays.h - for tests: holds up work at random, which changes nothing but time. */
#pragma once

#include "device/device.h"

typedef struct fsdp__delays {
    uint64_t seed;             /* decides which work is held up, and how long; 0: none */
    int most_us;               /* longest delay */
    const fsdp_stream *stream; /* also hold up every kernel of this stream; NULL: of none */
} fsdp__delays;

/* Holds up the device's copies, fills and collectives from now on, one in four, on whatever stream, before they run:
 * meanwhile the stream stands still, and for what runs inline so does the host. Call it while nothing is queued. */
void fsdp__device_delay(const fsdp_device *device, const fsdp__delays *delays);
/* Returns how often it was drawn whether to hold up work of the device. */
uint64_t fsdp__device_delay_draws(const fsdp_device *device);
