/* cuda_copy.c - copies between the host and the device.
 *
 * Host memory may be pageable: then a copy to the device returns when the bytes have been read, and a copy from it when
 * it has been done, both after what the stream has been given before. Memory that the device reaches (host_alloc,
 * host_register) is copied behind the host. */
#include "backend/cuda/cuda.h"

typedef struct transfer {
    char *dst;
    const char *src;
    size_t bytes;
    enum cudaMemcpyKind kind;
} transfer;

static fsdp_status issue(fsdp_stream *stream, const void *argument)
{
    const transfer *t = argument;
    const fsdp_device *device = stream->device;

    FSDP_TRY(fsdp__cuda_use(device));
    for (size_t at = 0, run; at < t->bytes; at += run) {
        run = fsdp__cuda_host_run((t->kind == cudaMemcpyHostToDevice ? t->src : t->dst) + at, t->bytes - at);
        FSDP__CUDA_TRY(device, cudaMemcpyAsync(t->dst + at, t->src + at, run, t->kind, fsdp__cuda_native(stream)));
    }
    return FSDP_OK;
}

static fsdp_status queue(fsdp_stream *stream, const transfer *t)
{
    fsdp_status status;

    if (!fsdp__stream_enter(stream))
        return fsdp__stream_enqueue(stream, issue, t, sizeof *t);
    status = issue(stream, t);
    fsdp__stream_leave(stream);
    return status;
}

fsdp_status fsdp__cuda_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return queue(stream, &(transfer){device, host, bytes, cudaMemcpyHostToDevice});
}

fsdp_status fsdp__cuda_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return queue(stream, &(transfer){host, device, bytes, cudaMemcpyDeviceToHost});
}

/* ---- inside the stream's work ---- */

static fsdp_status run(fsdp_stream *stream, const transfer *t)
{
    FSDP_TRY(issue(stream, t));
    FSDP_TRY(fsdp__cuda_stream_settle(stream));
    return FSDP_OK;
}

fsdp_status fsdp__cuda_run_copy_to_device(fsdp_stream *stream, void *device, const void *host, size_t bytes)
{
    return run(stream, &(transfer){device, host, bytes, cudaMemcpyHostToDevice});
}

fsdp_status fsdp__cuda_run_copy_to_host(fsdp_stream *stream, void *host, const void *device, size_t bytes)
{
    return run(stream, &(transfer){host, device, bytes, cudaMemcpyDeviceToHost});
}
