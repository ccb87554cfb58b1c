/* cuda_event.c - marks in streams, and waits for the marks of streams of any device.
 *
 * Each mark has a CUDA event of its own, which goes back to the device's spare ones when nobody refers to the mark any
 * more: so a later record cannot move what somebody waits for, and a step makes no events. The same is true of stamps
 * (cuda_stamp.c), whose events take the time, which costs more. */
#include "backend/cuda/cuda.h"

#include "base/alloc.h"

/* ---- moments ---- */

/* Holds the moments of a device. An event of another device may hold one for longer than the device is there, even in
 * another context; so this lives as long as the last of them. */
typedef struct fsdp__cuda_moments {
    pthread_mutex_t mutex;       /* guards what follows */
    fsdp_device *device;         /* NULL: it has been closed, and has done all its work */
    int ordinal;                 /* never changed */
    int refs;                    /* the device, and all moments that were made and are not destroyed */
    fsdp__cuda_moment *spare[2]; /* [timed] */
} moments;

static void unref(moments *home)
{
    bool last;

    pthread_mutex_lock(&home->mutex);
    last = --home->refs == 0;
    pthread_mutex_unlock(&home->mutex);
    if (!last)
        return;
    pthread_mutex_destroy(&home->mutex);
    fsdp__free(home);
}

/* Turns what a call has returned into a status, as FSDP__CUDA_CALL does, if the device is still there. */
static fsdp_status check(moments *home, cudaError_t error, const char *call, int line)
{
    fsdp_status status = FSDP_OK;

    pthread_mutex_lock(&home->mutex);
    if (home->device)
        status = fsdp__cuda_alive(home->device);
    if (home->device && status == FSDP_OK)
        status = fsdp__cuda_check(home->device, error, call, __FILE__, line);
    pthread_mutex_unlock(&home->mutex);
    return status;
}

static fsdp_status moment_wait(fsdp__device_moment *base)
{
    fsdp__cuda_moment *moment = (fsdp__cuda_moment *)base;

    FSDP_TRY(check(moment->home, cudaSuccess, "", __LINE__));
    FSDP_TRY(check(moment->home, cudaSetDevice(moment->home->ordinal), "cudaSetDevice", __LINE__));
    FSDP_TRY(check(moment->home, cudaEventSynchronize(moment->event), "cudaEventSynchronize", __LINE__));
    FSDP_TRY(check(moment->home, cudaSuccess, "", __LINE__)); /* it may have been condemned meanwhile */
    return FSDP_OK;
}

/* Returns whether the device has got there; one that is lost never does. */
static bool moment_reached(fsdp__device_moment *base)
{
    const fsdp__cuda_moment *moment = (fsdp__cuda_moment *)base;
    bool held = fsdp_hold_error(true);
    bool reached = check(moment->home, cudaSetDevice(moment->home->ordinal), "cudaSetDevice", __LINE__) == FSDP_OK &&
                   cudaEventQuery(moment->event) == cudaSuccess;

    (void)cudaGetLastError(); /* it is no failure not to be there */
    fsdp_release_error(held);
    return reached;
}

static void moment_free(fsdp__device_moment *base)
{
    fsdp__cuda_moment *moment = (fsdp__cuda_moment *)base;
    moments *home = moment->home;
    bool closed;

    if (moment->origin)
        fsdp__cuda_moment_drop(moment->origin);
    moment->origin = NULL;
    pthread_mutex_lock(&home->mutex);
    closed = !home->device;
    if (!closed) {
        moment->next = home->spare[moment->timed];
        home->spare[moment->timed] = moment;
    }
    pthread_mutex_unlock(&home->mutex);
    if (!closed)
        return;
    (void)cudaSetDevice(home->ordinal);
    (void)cudaEventDestroy(moment->event);
    (void)cudaGetLastError(); /* nobody is there to hear of it */
    fsdp__free(moment);
    unref(home);
}

static fsdp_status moment_make(fsdp_device *device, bool timed, fsdp__cuda_moment **out)
{
    fsdp__cuda_moment *moment = fsdp__calloc(1, sizeof *moment);
    fsdp_status status;

    if (!moment)
        return FSDP_NO_MEMORY;
    moment->base.wait = moment_wait;
    moment->base.reached = moment_reached;
    moment->base.free = moment_free;
    moment->home = fsdp__cuda_state_of(device)->moments;
    moment->timed = timed;
    status = FSDP__CUDA_CALL(
        device, cudaEventCreateWithFlags(&moment->event, timed ? cudaEventDefault : cudaEventDisableTiming));
    if (status != FSDP_OK) {
        fsdp__free(moment);
        return status;
    }
    pthread_mutex_lock(&moment->home->mutex);
    moment->home->refs++;
    pthread_mutex_unlock(&moment->home->mutex);
    *out = moment;
    return FSDP_OK;
}

fsdp_status fsdp__cuda_moment_take(fsdp_device *device, bool timed, fsdp__cuda_moment **out)
{
    moments *home = fsdp__cuda_state_of(device)->moments;
    fsdp__cuda_moment *moment;

    pthread_mutex_lock(&home->mutex);
    moment = home->spare[timed];
    if (moment)
        home->spare[timed] = moment->next;
    pthread_mutex_unlock(&home->mutex);
    if (!moment)
        FSDP_TRY(moment_make(device, timed, &moment));
    moment->base.refs = 1;
    *out = moment;
    return FSDP_OK;
}

fsdp_status fsdp__cuda_moment_behind(fsdp_stream *stream, fsdp__cuda_moment **out)
{
    fsdp__cuda_moment *moment = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__cuda_use(stream->device));
    FSDP_TRY(fsdp__cuda_moment_take(stream->device, false, &moment));
    status = FSDP__CUDA_CALL(stream->device, cudaEventRecord(moment->event, fsdp__cuda_native(stream)));
    if (status == FSDP_OK)
        *out = moment;
    else
        fsdp__cuda_moment_drop(moment);
    return status;
}

void fsdp__cuda_moment_drop(fsdp__cuda_moment *moment)
{
    fsdp__moment_unref(&moment->base);
}

fsdp_status fsdp__cuda_moment_elapsed(const fsdp__cuda_moment *from, const fsdp__cuda_moment *to, int64_t *ns)
{
    float ms = 0;

    FSDP_TRY(check(to->home, cudaSetDevice(to->home->ordinal), "cudaSetDevice", __LINE__));
    FSDP_TRY(check(to->home, cudaEventElapsedTime(&ms, from->event, to->event), "cudaEventElapsedTime", __LINE__));
    *ns = (int64_t)((double)ms * 1e6);
    return FSDP_OK;
}

fsdp_status fsdp__cuda_moments_open(fsdp_device *device)
{
    moments *home = fsdp__calloc(1, sizeof *home);

    if (!home)
        return FSDP_NO_MEMORY;
    pthread_mutex_init(&home->mutex, NULL);
    home->device = device;
    home->ordinal = device->ordinal;
    home->refs = 1;
    fsdp__cuda_state_of(device)->moments = home;
    return FSDP_OK;
}

static void destroy_all(const fsdp_device *device, fsdp__cuda_moment *spare)
{
    while (spare) {
        fsdp__cuda_moment *moment = spare;

        spare = moment->next;
        FSDP__CUDA_GIVE_BACK(device, cudaEventDestroy(moment->event));
        unref(moment->home);
        fsdp__free(moment);
    }
}

void fsdp__cuda_moments_close(fsdp_device *device)
{
    moments *home = fsdp__cuda_state_of(device)->moments;

    if (!home)
        return;
    pthread_mutex_lock(&home->mutex);
    home->device = NULL; /* nobody gives one back any more */
    pthread_mutex_unlock(&home->mutex);
    destroy_all(device, home->spare[false]);
    destroy_all(device, home->spare[true]);
    unref(home);
}

/* ---- marks ---- */

static fsdp_status record(fsdp_stream *stream, const fsdp__cuda_moment *moment)
{
    FSDP_TRY(fsdp__cuda_use(stream->device));
    FSDP__CUDA_TRY(stream->device, cudaEventRecord(moment->event, fsdp__cuda_native(stream)));
    return FSDP_OK;
}

/* Records a mark when its turn in the queue comes, and gives its references back. */
static fsdp_status record_item(fsdp_stream *stream, const void *argument)
{
    const fsdp__mark *mark = argument;
    fsdp_status status = record(stream, (const fsdp__cuda_moment *)mark->moment);

    fsdp__mark_unref(*mark);
    return status;
}

/* Marks what has been issued; the caller has entered the stream. */
static fsdp_status mark_now(fsdp__cuda_stream *stream, fsdp__mark *mark)
{
    mark->number = stream->worker.queued;
    return record(&stream->base, (const fsdp__cuda_moment *)mark->moment);
}

static fsdp_status mark_later(fsdp__cuda_stream *stream, fsdp__mark *mark)
{
    fsdp__mark held;
    fsdp_status status;

    held = fsdp__mark_ref(*mark);
    status = fsdp__worker_push(&stream->worker, false, record_item, &held, sizeof held);
    if (status != FSDP_OK)
        fsdp__mark_unref(held);
    else
        mark->number = fsdp__worker_mark(&stream->worker).number; /* of the item, or of one behind it */
    return status;
}

fsdp_status fsdp__cuda_stream_mark(fsdp_stream *base, fsdp__mark *out)
{
    fsdp__cuda_stream *stream = (fsdp__cuda_stream *)base;
    fsdp__mark mark = {.line = stream->worker.line};
    fsdp__cuda_moment *moment = NULL;
    fsdp_status status;

    FSDP_TRY(fsdp__cuda_use(base->device));
    FSDP_TRY(fsdp__cuda_moment_take(base->device, false, &moment));
    mark.moment = &moment->base;
    if (fsdp__worker_enter(&stream->worker)) {
        status = mark_now(stream, &mark);
        fsdp__worker_leave(&stream->worker);
    } else {
        status = mark_later(stream, &mark);
    }
    if (status == FSDP_OK)
        *out = fsdp__mark_ref(mark);
    fsdp__cuda_moment_drop(moment); /* the mark has its own; the line is borrowed */
    return status;
}

/* ---- waits ---- */

/* Lets the stream wait for what has been issued. What is no moment of CUDA is waited for by the host. */
static fsdp_status await(fsdp_stream *stream, fsdp__mark mark)
{
    fsdp_status status = fsdp__mark_pass(mark);

    FSDP_TRY(fsdp__cuda_use(stream->device));
    if (mark.moment && mark.moment->wait == moment_wait)
        FSDP_KEEP_FIRST(
            status, FSDP__CUDA_CALL(stream->device, cudaStreamWaitEvent(fsdp__cuda_native(stream),
                                                                        ((fsdp__cuda_moment *)mark.moment)->event, 0)));
    else if (mark.moment)
        FSDP_KEEP_FIRST(status, mark.moment->wait(mark.moment));
    return status;
}

static fsdp_status await_item(fsdp_stream *stream, const void *argument)
{
    const fsdp__mark *mark = argument;
    fsdp_status status = await(stream, *mark);

    fsdp__mark_unref(*mark);
    return status;
}

fsdp_status fsdp__cuda_stream_await(fsdp_stream *base, fsdp__mark mark)
{
    fsdp__cuda_stream *stream = (fsdp__cuda_stream *)base;
    fsdp_status status;

    if (mark.line == stream->worker.line) /* in order anyway */
        return FSDP_OK;
    if (fsdp__mark_is_passed(mark) && fsdp__worker_enter(&stream->worker)) {
        bool held = fsdp_hold_error(true); /* a failure is the stream's, and not the caller's */

        status = await(base, mark);
        fsdp_release_error(held);
        fsdp__worker_leave(&stream->worker);
        if (status == FSDP_OK)
            return FSDP_OK;
    } /* what has failed is tried again in the queue, from where it reaches whoever synchronizes with this stream */
    mark = fsdp__mark_ref(mark);
    status = fsdp__worker_push(&stream->worker, false, await_item, &mark, sizeof mark);
    if (status != FSDP_OK)
        fsdp__mark_unref(mark);
    return status;
}
