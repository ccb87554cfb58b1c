/* host_kernel.c - runs a caller's function in the order of a stream. Where the host cannot follow the device's pointers
 * the function gets copies of what it reads, and what it wrote is copied back, all inside the stream's work. */
#include "device/host_kernel.h"

#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"
#include "base/context.h"
#include "base/probe.h"
#include "device/impl.h"

enum {
    ALIGNMENT = 16
};

/* Begins what travels through the queue: this struct, the buffers, the places of the buffers, the argument. */
typedef struct call {
    const char *name;
    fsdp__host_function function;
    fsdp__device_function device_function;
    int count;
    size_t buffers_at, data_at, arg_at;
} call;

static size_t aligned(size_t bytes)
{
    return FSDP__ROUND_UP(bytes, ALIGNMENT);
}

/* Returns the index of an identical buffer before `i`, or -1. A buffer that only begins at the same address has a copy
 * of its own. */
static int same_buffer(const fsdp__buffer *buffers, int i)
{
    for (int j = 0; j < i; j++)
        if (buffers[j].pointer == buffers[i].pointer && buffers[j].bytes == buffers[i].bytes)
            return j;
    return -1;
}

/* ---- the function follows the device's pointers ---- */

static fsdp_status run_in_place(fsdp_stream *stream, const call *c, const fsdp__buffer *buffers, void **data,
                                const void *arg)
{
    for (int i = 0; i < c->count; i++) {
        data[i] = (void *)(uintptr_t)buffers[i].pointer;
        if (buffers[i].bytes > 0)
            FSDP_TRY(fsdp__stream_uses(stream, data[i], buffers[i].bytes, buffers[i].access, c->name));
    }
    return c->function ? c->function(arg, data) : c->device_function(stream, arg, data);
}

/* ---- it does not ---- */

/* Copies all buffers, including those that are written: what the function does not write must keep its value. */
static fsdp_status stage(fsdp_stream *stream, const call *c, const fsdp__buffer *buffers, void **data)
{
    for (int i = 0; i < c->count; i++) {
        int before = same_buffer(buffers, i);

        if (buffers[i].bytes == 0)
            continue;
        if (before >= 0) {
            data[i] = data[before];
            continue;
        }
        FSDP__TRY_NEW(data[i] = fsdp__malloc(buffers[i].bytes));
        FSDP_TRY(fsdp__run_copy_to_host(stream, data[i], buffers[i].pointer, buffers[i].bytes));
    }
    return FSDP_OK;
}

static fsdp_status run_staged(fsdp_stream *stream, const call *c, const fsdp__buffer *buffers, void **data,
                              const void *arg)
{
    fsdp_status status;

    FSDP_TRY_GOTO(status, stage(stream, c, buffers, data), out);
    FSDP_TRY_GOTO(status, c->function(arg, data), out);
    for (int i = 0; i < c->count; i++)
        if (buffers[i].access & FSDP__WRITES)
            FSDP_TRY_GOTO(
                status,
                fsdp__run_copy_to_device(stream, (void *)(uintptr_t)buffers[i].pointer, data[i], buffers[i].bytes),
                out);
out:
    for (int i = 0; i < c->count; i++)
        if (same_buffer(buffers, i) < 0)
            fsdp__free(data[i]);
    return status;
}

/* ---- both ---- */

static fsdp_status compute(fsdp_stream *stream, const call *c, const fsdp__buffer *buffers, void **data,
                           const void *arg)
{
    FSDP_TRY(fsdp__device_alive(stream->device)); /* of a lost one the function would compute from nothing */
    return stream->device->backend->host_access || !c->function ? run_in_place(stream, c, buffers, data, arg)
                                                                : run_staged(stream, c, buffers, data, arg);
}

static fsdp_status run_call(fsdp_stream *stream, const void *argument)
{
    const call *c = argument;
    const char *memory = argument;
    const fsdp__buffer *buffers = (const fsdp__buffer *)(const void *)(memory + c->buffers_at);
    void **data = (void **)(uintptr_t)(memory + c->data_at); /* in the queue's own copy */
    const void *arg = memory + c->arg_at;
    fsdp_device *device = stream->device;
    fsdp_status refused = FSDP__ASK(KERNEL_BEGUN, .context = stream->device->context, .stream = stream,
                                    .kind = FSDP__KERNELS, .name = c->name, .ns = fsdp__clock_ns()),
                status = refused;

    if (refused == FSDP_OK) {
        fsdp_clear_error(); /* an earlier message must not pass for the function's own */
        status = compute(stream, c, buffers, data, arg);
    }
    fsdp__context_beat(device->context);
    FSDP__TELL(KERNEL_DONE, .context = stream->device->context, .stream = stream, .kind = FSDP__KERNELS,
               .name = c->name, .ns = fsdp__clock_ns());
    if (status == FSDP_OK)
        return FSDP_OK;
    if (refused != FSDP_OK)
        return fsdp_fail_hop(refused, __FILE__, __LINE__);
    if (fsdp_last_status() != status)
        return FSDP_FAIL(status, "kernel '%s': %s", c->name, fsdp_status_text(status));
    return fsdp_fail_prefix(status, "kernel '%s'", c->name);
}

/* Checks that each buffer that is written is identical to another one, or does not overlap it. */
static fsdp_status check_apart(const fsdp__host_kernel *kernel)
{
    for (int i = 0; i < kernel->count; i++)
        for (int j = 0; j < kernel->count; j++) {
            const fsdp__buffer *written = &kernel->buffers[i], *other = &kernel->buffers[j];
            uintptr_t a = (uintptr_t)written->pointer, b = (uintptr_t)other->pointer;

            if (!(written->access & FSDP__WRITES) || (a == b && written->bytes == other->bytes))
                continue;
            if (written->bytes > 0 && other->bytes > 0 && a < b + other->bytes && b < a + written->bytes)
                return FSDP_FAIL(FSDP_INVALID,
                                 "kernel '%s': tensor %d of the %d it is given is written, and shares some of its "
                                 "elements with tensor %d",
                                 kernel->name, i, kernel->count, j);
        }
    return FSDP_OK;
}

fsdp_status fsdp__launch_host_kernel(fsdp_stream *stream, const fsdp__host_kernel *kernel)
{
    size_t count = (size_t)kernel->count, bytes;
    call c = {.name = kernel->name,
              .function = kernel->function,
              .device_function = kernel->device_function,
              .count = kernel->count};
    FSDP__FREED char *memory = NULL;

    if (!stream->device->backend->has_bytes)
        return FSDP_OK;
    FSDP_TRY(check_apart(kernel));
    FSDP_TRY(fsdp__device_alive(stream->device));
    c.buffers_at = aligned(sizeof c);
    c.data_at = c.buffers_at + aligned(count * sizeof *kernel->buffers);
    c.arg_at = c.data_at + aligned(count * sizeof(void *));
    bytes = c.arg_at + kernel->arg_bytes;
    FSDP__TRY_NEW(memory = fsdp__calloc(1, bytes));
    memcpy(memory, &c, sizeof c);
    if (count > 0)
        memcpy(memory + c.buffers_at, kernel->buffers, count * sizeof *kernel->buffers);
    if (kernel->arg_bytes > 0)
        memcpy(memory + c.arg_at, kernel->arg, kernel->arg_bytes);
    FSDP__TELL(KERNEL_ISSUED, .context = stream->device->context, .stream = stream, .kind = FSDP__KERNELS,
               .name = kernel->name);
    return fsdp__stream_enqueue(stream, run_call, memory, bytes);
}
