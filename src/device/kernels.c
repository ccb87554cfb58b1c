/* kernels.c - the only way to start a kernel. */
#include <string.h>

#include "base/alloc.h"
#include "base/clock.h"
#include "base/context.h"
#include "base/probe.h"
#include "device/impl.h"

/* Holds what travels through the queue of a worker stream: the kernel, its arguments, and behind them its table. */
typedef struct kernel_call {
    fsdp__kernel kernel;
    size_t table_bytes;
    fsdp__kernel_args args;
} kernel_call;

fsdp_status fsdp__run_kernel(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    fsdp_device *device = stream->device;
    const fsdp__kernel_info *info = &fsdp__kernel_infos[kernel];
    fsdp_status status;

    if (!device->backend->kernels)
        return FSDP_OK;
    status = FSDP__ASK(KERNEL_BEGUN, .context = stream->device->context, .stream = stream, .kind = (int)kernel,
                       .name = info->name, .object = args, .ns = fsdp__clock_ns());
    if (status == FSDP_OK && device->backend->prepare_kernel)
        status = device->backend->prepare_kernel(device);
    if (status == FSDP_OK)
        status = device->backend->kernels[kernel](stream, args);
    fsdp__context_beat(device->context);
    FSDP__TELL(KERNEL_DONE, .context = stream->device->context, .stream = stream, .kind = (int)kernel,
               .name = info->name, .ns = fsdp__clock_ns());
    return status;
}

static fsdp_status run_call(fsdp_stream *stream, const void *argument)
{
    const kernel_call *call = argument;
    fsdp__kernel_args args;

    if (call->table_bytes == 0)
        return fsdp__run_kernel(stream, call->kernel, &call->args);
    /* The queue has moved the table. */
    memcpy(&args, &call->args, fsdp__kernel_infos[call->kernel].args_bytes);
    fsdp__kernel_set_table(call->kernel, &args, call + 1);
    return fsdp__run_kernel(stream, call->kernel, &args);
}

static fsdp_status queue_call(fsdp_stream *stream, kernel_call *call, size_t bytes)
{
    const fsdp__backend *backend = stream->device->backend;

    if (backend->check_launch)
        FSDP_TRY(backend->check_launch(stream, call->kernel, &call->args));
    return fsdp__stream_enqueue(stream, run_call, call, bytes);
}

/* Queues a copy of the arguments, with the table behind them. */
static fsdp_status launch_later(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    kernel_call call = {.kernel = kernel};
    FSDP__FREED kernel_call *with_table = NULL;
    size_t args_bytes = fsdp__kernel_infos[kernel].args_bytes;
    const void *table;

    memcpy(&call.args, args, args_bytes);
    call.table_bytes = fsdp__kernel_table(kernel, args, &table);
    if (call.table_bytes == 0)
        return queue_call(stream, &call, offsetof(kernel_call, args) + args_bytes);
    FSDP__TRY_NEW(with_table = fsdp__malloc(sizeof call + call.table_bytes));
    *with_table = call;
    memcpy(with_table + 1, table, call.table_bytes);
    /* check_launch walks this table; the queue moves it once more (run_call). */
    fsdp__kernel_set_table(kernel, &with_table->args, with_table + 1);
    return queue_call(stream, with_table, sizeof call + call.table_bytes);
}

/* Issues the kernel, for one who has entered the stream. */
static fsdp_status launch_now(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    fsdp_status status = fsdp__run_kernel(stream, kernel, args);

    fsdp__stream_leave(stream);
    return status;
}

fsdp_status fsdp__launch(fsdp_stream *stream, fsdp__kernel kernel, const void *args)
{
    FSDP__TELL(KERNEL_ISSUED, .context = stream->device->context, .stream = stream, .kind = (int)kernel,
               .name = fsdp__kernel_infos[kernel].name, .object = args);
    if (!stream->device->backend->kernels)
        return FSDP_OK;
    return stream->mode == FSDP_STREAM_INLINE ? fsdp__run_kernel(stream, kernel, args)
           : fsdp__stream_enter(stream)       ? launch_now(stream, kernel, args)
                                              : launch_later(stream, kernel, args);
}

fsdp_status fsdp__launch_fill_run(fsdp_stream *stream, void *dst, fsdp_dtype dtype, int64_t numel, double value)
{
    const fsdp__fill_args args = {.dst = dst, .dtype = dtype, .numel = numel, .value = value};

    return numel > 0 ? fsdp__launch_fill(stream, &args) : FSDP_OK;
}
