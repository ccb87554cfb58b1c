/* delays.c - draws a delay before each copy and collective. */
#include "device/delays.h"

#include <sched.h>
#include <time.h>

#include "base/rng.h"
#include "device/impl.h"

void fsdp__device_delay(fsdp_device *device, const fsdp__delays *delays)
{
    device->delays = delays ? *delays : (fsdp__delays){0};
}

static void delay(fsdp_device *device)
{
    uint32_t draw[4];
    int64_t ns;

    fsdp__philox(device->delays.seed, atomic_fetch_add_explicit(&device->delay_draws, 1, memory_order_relaxed), draw);
    if (draw[0] % 4 != 0)
        return;
    ns = (int64_t)(draw[1] % 1000) * device->delays.most_us;
    if (draw[2] % 2 == 0)
        (void)sched_yield();
    else
        (void)nanosleep(&(struct timespec){ns / 1000000000, ns % 1000000000}, NULL);
}

void fsdp__delay_collective(fsdp_stream *stream)
{
    if (stream->device->delays.seed)
        delay(stream->device);
}

void fsdp__delay_kernel(fsdp_stream *stream, bool copies)
{
    if (copies || stream == stream->device->delays.stream)
        delay(stream->device);
}
