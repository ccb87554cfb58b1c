/* delays.h - for tests: work that is held up at random, which changes nothing but time. */
#ifndef DEVICE_DELAYS_H
#define DEVICE_DELAYS_H

#include "device/device.h"

typedef struct fsdp__delays {
    uint64_t seed;             /* draws which, and how long; 0: none */
    int most_us;               /* of one delay */
    const fsdp_stream *stream; /* all kernels of which are held up too; NULL: of none */
} fsdp__delays;

/* From now on copies, fills and collectives of the device are held up in front, one in four, on whatever stream: the
 * stream stands still meanwhile, and so does the host in front of what runs inline. While nothing is queued. */
void fsdp__device_delay(fsdp_device *device, const fsdp__delays *delays);

/* In front of a collective, from inside the stream's work. */
void fsdp__delay_collective(fsdp_stream *stream);
/* For kernels.c: in front of a kernel, where the device has delays. */
void fsdp__delay_kernel(fsdp_stream *stream, bool copies);

#endif
