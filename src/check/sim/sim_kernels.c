/* sim_kernels.c - runs the CPU's kernels on memory that only they reach: each call's buffers are moved to the second
 * mapping (device/kernel_buffers.c says which they are), then the CPU's kernel runs. */
#include "check/kernel_copy.h"
#include "check/sim/sim_device.h"

/* ---- when it is queued: what the host holds now ---- */

/* A walk over a call's buffers; keeps the first one that cannot be used. */
typedef struct walk {
    const fsdp_stream *stream;
    bool failed;
    fsdp__buffer bad;
} walk;

/* Checks more strictly than a kernel that runs: by then the host may have given the block to somebody else. */
static void *check_buffer(void *arg, const fsdp__buffer *buffer)
{
    walk *w = arg;
    const fsdp_device *device = w->stream->device;
    void *mapped = fsdp__sim_translate(device, buffer->pointer, buffer->bytes);

    if (!w->failed && (!mapped || (mapped != buffer->pointer &&
                                   !fsdp__allocator_covers(device->allocator, buffer->pointer, buffer->bytes)))) {
        w->failed = true;
        w->bad = *buffer;
    }
    return (void *)(uintptr_t)buffer->pointer;
}

fsdp_status fsdp__sim_check_launch(fsdp_stream *stream, fsdp__kernel kernel, void *args)
{
    walk w = {.stream = stream};

    fsdp__kernel_buffers(kernel, args, check_buffer, &w);
    return w.failed ? fsdp__kernel_unreached(stream, kernel, &w.bad) : FSDP_OK;
}

/* ---- when it runs ---- */

#define MOVED(NAME, name, class)                                                          \
    static fsdp_status moved_##name(fsdp_stream *stream, const void *args)                \
    {                                                                                     \
        return fsdp__kernel_run_moved(stream, FSDP__KERNEL_##NAME, args, fsdp__sim_reach, \
                                      fsdp__cpu_kernels[FSDP__KERNEL_##NAME]);            \
    }
FSDP__KERNEL_MAP(MOVED)
#undef MOVED

#define ENTRY(NAME, name, class) [FSDP__KERNEL_##NAME] = moved_##name,
const fsdp__kernel_function fsdp__sim_kernels[FSDP__KERNELS] = {FSDP__KERNEL_MAP(ENTRY)};
