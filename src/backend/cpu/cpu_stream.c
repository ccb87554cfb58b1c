/* cpu_stream.c - streams of the CPU, run by the caller or by a thread of the stream's own (device/worker.h). */
#include "backend/cpu/cpu_device.h"
#include "base/alloc.h"
#include "device/worker.h"

typedef struct cpu_stream {
    fsdp_stream base;
    fsdp__worker worker; /* of streams with a thread only */
} cpu_stream;

static bool is_inline(const fsdp_stream *stream)
{
    return stream->mode == FSDP_STREAM_INLINE;
}

static fsdp__worker *worker_of(fsdp_stream *stream)
{
    return &((cpu_stream *)stream)->worker;
}

fsdp_status fsdp__cpu_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    cpu_stream *stream = fsdp__calloc(1, sizeof *stream);
    fsdp_status status = FSDP_OK;

    FSDP__TRY_NEW(stream);
    stream->base.device = device;
    stream->base.mode = mode;
    if (!is_inline(&stream->base))
        status = fsdp__worker_open(&stream->worker, &stream->base, fsdp__cpu_prepare_thread);
    if (status == FSDP_OK && !is_inline(&stream->base)) {
        stream->base.worker = &stream->worker;
        status = fsdp__worker_start(&stream->worker);
    }
    if (status != FSDP_OK) {
        fsdp__cpu_stream_free(&stream->base);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = &stream->base;
    return FSDP_OK;
}

void fsdp__cpu_stream_free(fsdp_stream *base)
{
    fsdp__worker_close(worker_of(base));
    fsdp__stream_drop_workspace(base);
    fsdp__free(base);
}

fsdp_status fsdp__cpu_stream_enqueue(fsdp_stream *base, fsdp_status (*work)(fsdp_stream *, const void *),
                                     const void *argument, size_t bytes)
{
    if (is_inline(base))
        return work(base, argument);
    return fsdp__worker_push(worker_of(base), true, work, argument, bytes);
}

fsdp_status fsdp__cpu_stream_check(fsdp_stream *base)
{
    return is_inline(base) ? FSDP_OK : fsdp__worker_check(worker_of(base));
}

fsdp_status fsdp__cpu_stream_synchronize(fsdp_stream *base)
{
    if (is_inline(base))
        return FSDP_OK;
    (void)fsdp__mark_pass(fsdp__worker_mark(worker_of(base)));
    return fsdp__cpu_stream_check(base);
}

/* ---- marks ---- */

fsdp_status fsdp__cpu_stream_mark(fsdp_stream *base, fsdp__mark *out)
{
    if (!is_inline(base))
        *out = fsdp__mark_ref(fsdp__worker_mark(worker_of(base)));
    return FSDP_OK;
}

fsdp_status fsdp__cpu_stream_await(fsdp_stream *base, fsdp__mark mark)
{
    if (mark.line == worker_of(base)->line && mark.line) /* in order anyway */
        return FSDP_OK;
    if (!is_inline(base))
        return fsdp__worker_await(worker_of(base), mark);
    (void)fsdp__mark_wait(mark); /* the host has waited, and asks the stream that it waited for: fsdp__stream_check */
    return FSDP_OK;
}
