/* stream.c - streams and events of any device: checks arguments here, and leaves the rest to the backend. */
#include "base/alloc.h"
#include "base/clock.h"
#include "base/probe.h"
#include "base/status.h"
#include "device/impl.h"

fsdp_status fsdp_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    fsdp_stream *stream = NULL;
    fsdp_status status;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a stream: there is no place for it");
    if (!device)
        return FSDP__FAIL_NULL("cannot create a stream: the device is NULL");
    if (mode != FSDP_STREAM_INLINE && mode != FSDP_STREAM_WORKER)
        return FSDP_FAIL(FSDP_INVALID, "cannot create a stream: unknown mode %d", (int)mode);
    FSDP_TRY(device->backend->stream_create(device, mode, &stream));
    status = FSDP__ASK(STREAM_OPENED, .context = stream->device->context, .stream = stream);
    if (status != FSDP_OK) {
        device->backend->stream_free(stream);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    *out = stream;
    return FSDP_OK;
}

void fsdp__stream_close(fsdp_stream *stream)
{
    fsdp_device *device = stream ? stream->device : NULL;
    const void *watcher = stream ? stream->watcher : NULL;

    if (!stream)
        return;
    device->backend->stream_free(stream);
    FSDP__TELL(STREAM_CLOSED, .context = device->context, .object = watcher);
}

void fsdp_stream_free(fsdp_stream *stream)
{
    if (stream && stream != stream->device->stream)
        fsdp__stream_close(stream);
}

static fsdp_status synchronize(fsdp_stream *stream)
{
    int64_t since = fsdp__is_probed(FSDP__POINT_STREAM_REACHED) ? fsdp__clock_ns() : 0;
    fsdp_status status = stream->device->backend->stream_synchronize(stream);

    FSDP__TELL(STREAM_REACHED, .context = stream->device->context, .stream = stream, .ns = since);
    return status;
}

static fsdp_status check_caller(bool awaited, const char *what)
{
    return awaited
               ? FSDP_FAIL(FSDP_STATE, "cannot %s: called from the stream's own work, which it would wait for", what)
               : FSDP_OK;
}

fsdp_status fsdp__stream_check_caller(fsdp_stream *stream, const char *what)
{
    return check_caller(stream->worker && fsdp__worker_is_this_thread(stream->worker), what);
}

fsdp_status fsdp_stream_synchronize(fsdp_stream *stream)
{
    if (!stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot synchronize: the stream is NULL");
    FSDP_TRY(fsdp__stream_check_caller(stream, "synchronize"));
    return synchronize(stream);
}

fsdp_status fsdp__stream_settle(fsdp_stream *stream)
{
    const fsdp__backend *backend = stream->device->backend;

    if (backend->stream_settle)
        FSDP_TRY(backend->stream_settle(stream));
    return FSDP_OK;
}

fsdp_status fsdp__stream_check(fsdp_stream *stream)
{
    return stream->device->backend->stream_check(stream);
}

static fsdp_status announce_item(fsdp_stream *stream)
{
    uint64_t number = ++stream->items_queued;
    fsdp_status status = FSDP__ASK(ITEM_QUEUED, .context = stream->device->context, .stream = stream, .number = number);

    if (status != FSDP_OK)
        stream->items_queued--;
    return status;
}

fsdp_status fsdp__stream_enqueue(fsdp_stream *stream, fsdp__stream_work work, const void *argument, size_t bytes)
{
    fsdp_status status;

    if (!stream || !work)
        return FSDP_FAIL(FSDP_INVALID, "cannot queue work: stream and work are required");
    if (!fsdp__stream_is_inline(stream))
        FSDP_TRY(announce_item(stream));
    status = stream->device->backend->stream_enqueue(stream, work, argument, bytes);
    if (status != FSDP_OK && !fsdp__stream_is_inline(stream)) {
        FSDP__TELL(ITEM_REFUSED, .context = stream->device->context, .stream = stream, .number = stream->items_queued);
        stream->items_queued--;
    }
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

bool fsdp__stream_enter(fsdp_stream *stream)
{
    const fsdp__backend *backend = stream->device->backend;

    if (!backend->stream_enter || !backend->stream_enter(stream))
        return false;
    if (announce_item(stream) != FSDP_OK) {
        backend->stream_leave(stream); /* it is refused once more when it is queued */
        return false;
    }
    fsdp__stream_begin_item(stream);
    return true;
}

void fsdp__stream_leave(fsdp_stream *stream)
{
    FSDP__TELL(ITEM_DONE, .context = stream->device->context, .stream = stream, .number = stream->items_begun);
    stream->device->backend->stream_leave(stream);
}

void *fsdp_stream_native(fsdp_stream *stream)
{
    if (!stream) {
        (void)FSDP_FAIL(FSDP_INVALID, "cannot get a stream's handle: the stream is NULL");
        return NULL;
    }
    return stream->device->backend->stream_native ? stream->device->backend->stream_native(stream) : NULL;
}

/* ---- stamps ---- */

fsdp_status fsdp__stream_stamp(fsdp_stream *stream, fsdp__stamp *out)
{
    const fsdp__backend *backend = stream->device->backend;

    *out = (fsdp__stamp){.moment = NULL};
    if (!backend->has_bytes)
        return FSDP_FAIL(FSDP_UNSUPPORTED, "device '%s' has no clock: nothing takes time there", stream->device->name);
    if (backend->stream_stamp)
        FSDP_TRY(backend->stream_stamp(stream, &out->moment));
    else
        out->ns = fsdp__clock_ns();
    return FSDP_OK;
}

fsdp_status fsdp__stamp_read(fsdp__stamp *stamp, int64_t *ns)
{
    fsdp__device_moment *moment = stamp->moment;
    fsdp_status status = FSDP_OK;

    if (moment) {
        status = moment->wait(moment);
        if (status == FSDP_OK)
            status = moment->time(moment, &stamp->ns);
        fsdp__mark_unref((fsdp__mark){.moment = moment});
        stamp->moment = NULL;
    }
    *ns = stamp->ns;
    return status == FSDP_OK ? FSDP_OK : fsdp_fail_hop(status, __FILE__, __LINE__);
}

fsdp_device *fsdp__stream_device(const fsdp_stream *stream)
{
    return stream->device;
}

bool fsdp__stream_is_inline(const fsdp_stream *stream)
{
    return stream->mode == FSDP_STREAM_INLINE;
}

static fsdp_status take_own_memory(fsdp_stream *stream, size_t bytes)
{
    fsdp_device *device = stream->device;

    return device->backend->scratch_alloc ? device->backend->scratch_alloc(stream, bytes, &stream->workspace)
                                          : device->backend->segment_alloc(device, bytes, &stream->workspace);
}

/* [Note: scratch of worker streams]
 * Work asks for scratch when it runs. On a stream that runs behind the host the allocator must not be asked then: a
 * block that the host has already given back may still be in use by work that was queued earlier. Such streams have
 * memory of their own. Where there is none left, the allocator gives back what no work uses any more; the stream's own
 * work cannot wait for more. */
static fsdp_status take_workspace(fsdp_stream *stream, size_t bytes)
{
    fsdp_device *device = stream->device;
    fsdp_status status;

    if (fsdp__stream_is_inline(stream))
        return fsdp__device_alloc(device, bytes, FSDP_MEMORY_WORKSPACE, &stream->workspace);
    status = FSDP__ASK(ALLOCATION, .bytes = bytes);
    if (status == FSDP_OK) {
        status = take_own_memory(stream, bytes);
        if (status == FSDP_NO_MEMORY && fsdp__allocator_shrink(device->allocator))
            status = take_own_memory(stream, bytes);
    }
    if (status == FSDP_NO_MEMORY)
        fsdp__device_note_refusal(device);
    if (status != FSDP_OK)
        return fsdp__allocator_refuse(device->allocator, status, bytes, FSDP_MEMORY_WORKSPACE);
    fsdp__device_account(device, NULL, FSDP_MEMORY_WORKSPACE, (int64_t)bytes, false);
    return FSDP_OK;
}

void *fsdp__stream_workspace(fsdp_stream *stream, size_t bytes)
{
    if (stream->workspace && bytes <= stream->workspace_bytes)
        return stream->workspace;
    /* Scratch has nothing to keep, so the old block is freed before the new one is taken. */
    fsdp__stream_drop_workspace(stream);
    if (take_workspace(stream, bytes) != FSDP_OK)
        return NULL;
    stream->workspace_bytes = bytes;
    return stream->workspace;
}

void fsdp__stream_drop_workspace(fsdp_stream *stream)
{
    fsdp_device *device = stream->device;

    if (!stream->workspace)
        return;
    if (fsdp__stream_is_inline(stream)) {
        fsdp__device_free(device, stream->workspace, stream->workspace_bytes, FSDP_MEMORY_WORKSPACE);
    } else {
        if (device->backend->scratch_free)
            device->backend->scratch_free(stream, stream->workspace, stream->workspace_bytes);
        else
            device->backend->segment_free(device, stream->workspace, stream->workspace_bytes);
        fsdp__device_account(device, NULL, FSDP_MEMORY_WORKSPACE, -(int64_t)stream->workspace_bytes, false);
    }
    stream->workspace = NULL;
    stream->workspace_bytes = 0;
}

fsdp_status fsdp_event_create(fsdp_device *device, fsdp_event **out)
{
    fsdp_event *event;

    if (!out)
        return FSDP_FAIL(FSDP_INVALID, "cannot create an event: there is no place for it");
    if (!device)
        return FSDP__FAIL_NULL("cannot create an event: the device is NULL");
    FSDP__TRY_NEW(event = fsdp__calloc(1, sizeof *event));
    event->device = device;
    *out = event;
    return FSDP_OK;
}

void fsdp_event_free(fsdp_event *event)
{
    if (!event)
        return;
    FSDP__TELL(EVENT_CLOSED, .context = event->device->context, .event = event);
    fsdp__mark_unref(event->mark);
    fsdp__free(event);
}

/* Returns whether one device may wait for the other: those that have bytes may, and those that have none. */
static bool may_wait(const fsdp__backend *waits, const fsdp__backend *records)
{
    return waits->has_bytes == records->has_bytes;
}

static fsdp_status check_pair(const fsdp_event *event, const fsdp_stream *stream, const char *what)
{
    if (!event || !stream)
        return FSDP_FAIL(FSDP_INVALID, "cannot %s: event and stream are required", what);
    if (!may_wait(stream->device->backend, event->device->backend))
        return FSDP_FAIL(FSDP_INVALID, "cannot %s: the event belongs to device '%s', the stream to '%s'", what,
                         event->device->name, stream->device->name);
    return FSDP_OK;
}

fsdp_status fsdp_event_record(fsdp_event *event, fsdp_stream *stream)
{
    fsdp__mark mark = {0};

    FSDP_TRY(check_pair(event, stream, "record an event"));
    if (stream->device->backend->stream_mark)
        FSDP_TRY(stream->device->backend->stream_mark(stream, &mark));
    fsdp__mark_unref(event->mark);
    event->mark = mark;
    FSDP__TELL(EVENT_RECORDED, .context = stream->device->context, .stream = stream, .event = event);
    return FSDP_OK;
}

fsdp_status fsdp_stream_wait_event(fsdp_stream *stream, fsdp_event *event)
{
    int64_t since = fsdp__is_probed(FSDP__POINT_EVENT_AWAITED) ? fsdp__clock_ns() : 0;

    FSDP_TRY(check_pair(event, stream, "wait for an event"));
    if (event->mark.line)
        FSDP_TRY(stream->device->backend->stream_await(stream, event->mark));
    FSDP__TELL(EVENT_AWAITED, .context = stream->device->context, .stream = stream, .event = event, .ns = since);
    return FSDP_OK;
}

fsdp_status fsdp_event_synchronize(fsdp_event *event)
{
    int64_t since = fsdp__is_probed(FSDP__POINT_EVENT_REACHED) ? fsdp__clock_ns() : 0;

    if (!event)
        return FSDP_FAIL(FSDP_INVALID, "cannot synchronize: the event is NULL");
    FSDP_TRY(check_caller(fsdp__mark_awaits_caller(event->mark), "wait for an event"));
    (void)fsdp__mark_wait(event->mark); /* whoever waits asks the stream for failures: fsdp__stream_check */
    FSDP__TELL(EVENT_REACHED, .context = event->device->context, .event = event, .ns = since);
    return FSDP_OK;
}
