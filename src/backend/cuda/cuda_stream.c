/* cuda_stream.c - streams: see [Note: issued by whom] in cuda.h. */
#include "backend/cuda/cuda.h"

#include "base/alloc.h"
#include "base/lock.h"

static fsdp__cuda_stream *cuda(fsdp_stream *stream)
{
    return (fsdp__cuda_stream *)stream;
}

static void prepare(const fsdp_device *device)
{
    (void)fsdp__cuda_use(device); /* a failure has lost the device, which the first item says */
}

/* ---- all of a device ----
 *
 * The program's thread alone makes and frees streams. It holds the mutex while it changes their list, and may follow it
 * without; any other thread holds the mutex while it does so. Nobody holds it in a call of CUDA that may wait: where a
 * driver has no room left in a queue, a record waits until the device goes on, and that may wait for a thread which
 * asks whether the device has ended. */

static void list(fsdp__cuda_stream *stream)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(stream->base.device);

    FSDP__HELD(&state->mutex);
    stream->next = state->streams;
    state->streams = stream;
}

/* Takes a stream off the list, if it is there. */
static void unlist(fsdp__cuda_stream *stream)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(stream->base.device);
    fsdp__cuda_stream **link = &state->streams;

    pthread_mutex_lock(&state->mutex);
    while (*link && *link != stream)
        link = &(*link)->next;
    if (*link)
        *link = stream->next;
    pthread_mutex_unlock(&state->mutex);
    if (stream->given)
        fsdp__cuda_moment_drop(stream->given);
}

/* Lists moments behind what was issued to each stream so far. Where none can be had, as on a lost device, it waits. On
 * the program's thread. */
static fsdp__cuda_moment *mark_all(const fsdp_device *device)
{
    fsdp__cuda_moment *first = NULL;

    for (const fsdp__cuda_stream *stream = fsdp__cuda_state_of(device)->streams; stream; stream = stream->next) {
        fsdp__cuda_moment *moment = NULL;

        if (fsdp__cuda_moment_take(stream->base.device, false, &moment) != FSDP_OK) {
            FSDP__CUDA_GIVE_BACK(device, cudaStreamSynchronize(stream->native));
            continue;
        }
        FSDP__CUDA_GIVE_BACK(device, cudaEventRecord(moment->event, stream->native));
        moment->next = first;
        first = moment;
    }
    return first;
}

void fsdp__cuda_await_streams(const fsdp_device *device)
{
    bool held = fsdp_hold_error(true);
    fsdp__cuda_moment *first = mark_all(device);

    fsdp_release_error(held);
    while (first) {
        fsdp__cuda_moment *moment = first;

        first = moment->next;
        FSDP__CUDA_GIVE_BACK(device, cudaEventSynchronize(moment->event));
        fsdp__cuda_moment_drop(moment);
    }
}

/* Holds a mark of each stream that had something to do. */
typedef struct all_marks {
    fsdp__device_moment base;
    int count;
    fsdp__mark marks[];
} all_marks;

static fsdp_status all_wait(fsdp__device_moment *base)
{
    const all_marks *all = (all_marks *)base;
    fsdp_status status = FSDP_OK;

    for (int i = 0; i < all->count; i++)
        FSDP_KEEP_FIRST(status, fsdp__mark_wait(all->marks[i]));
    return status;
}

static bool all_reached(fsdp__device_moment *base)
{
    const all_marks *all = (all_marks *)base;
    bool reached = true;

    for (int i = 0; i < all->count && reached; i++)
        reached = fsdp__mark_is_passed(all->marks[i]) && all->marks[i].moment->reached(all->marks[i].moment);
    return reached;
}

static void all_free(fsdp__device_moment *base)
{
    const all_marks *all = (all_marks *)base;

    for (int i = 0; i < all->count; i++)
        fsdp__mark_unref(all->marks[i]);
    fsdp__free(base);
}

static bool is_idle(const fsdp__cuda_stream *stream)
{
    bool idle = fsdp__worker_done(&stream->worker) == fsdp__worker_queued(&stream->worker) &&
                cudaStreamQuery(stream->native) == cudaSuccess;

    (void)cudaGetLastError(); /* it is no failure to have something to do */
    return idle;
}

/* Any thread may ask, so it does not look at queues, which the program's thread opens and closes. */
bool fsdp__cuda_has_ended(fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    bool over = true, lost = atomic_load(&state->lost.is);

    (void)cudaSetDevice(device->ordinal);
    FSDP__HELD(&state->mutex);
    for (const fsdp__cuda_stream *stream = state->streams; stream && over; stream = stream->next) {
        cudaError_t error = cudaStreamQuery(stream->native);

        (void)cudaGetLastError();
        over = error != cudaErrorNotReady;
        lost = lost || (over && error != cudaSuccess);
    }
    return over && lost;
}

/* Gives how many streams there are, and returns whether all of them are idle. */
static bool are_idle(const fsdp__cuda_state *state, size_t *count)
{
    bool idle = true;

    *count = 0;
    for (const fsdp__cuda_stream *stream = state->streams; stream; stream = stream->next) {
        ++*count;
        idle = idle && is_idle(stream);
    }
    return idle;
}

/* Marks the streams that have something to do. */
static fsdp_status mark_busy(const fsdp__cuda_state *state, all_marks *all)
{
    for (fsdp__cuda_stream *stream = state->streams; stream; stream = stream->next)
        if (!is_idle(stream)) {
            FSDP_TRY(fsdp__cuda_stream_mark(&stream->base, &all->marks[all->count]));
            all->count++;
        }
    return FSDP_OK;
}

/* An idle device needs no memory of the host. */
fsdp_status fsdp__cuda_mark_all(fsdp_device *device, fsdp__device_moment **out)
{
    const fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    all_marks *all;
    fsdp_status status;
    size_t most;

    *out = NULL;
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(fsdp__cuda_alive(device));
    if (are_idle(state, &most))
        return FSDP_OK;
    FSDP__TRY_NEW(all = fsdp__calloc(1, sizeof *all + most * sizeof *all->marks));
    all->base = (fsdp__device_moment){.refs = 1, .wait = all_wait, .reached = all_reached, .free = all_free};
    status = mark_busy(state, all);
    if (status == FSDP_OK && all->count > 0)
        *out = &all->base;
    else
        all_free(&all->base);
    return status;
}

/* ---- one ---- */

/* Creates a stream that does not wait for the default one. The device's own, which computes, comes first and has the
 * lowest priority, so that what others wait for (collectives, copies) is not held up by it. */
fsdp_status fsdp__cuda_stream_create(fsdp_device *device, fsdp_stream_mode mode, fsdp_stream **out)
{
    fsdp__cuda_stream *stream;
    fsdp_status status;
    int least = 0, greatest = 0;

    (void)mode;
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP__CUDA_TRY(device, cudaDeviceGetStreamPriorityRange(&least, &greatest));
    stream = fsdp__calloc(1, sizeof *stream);
    if (!stream)
        return FSDP_NO_MEMORY;
    stream->base.device = device;
    stream->base.mode = FSDP_STREAM_WORKER;
    stream->base.worker = &stream->worker;
    status = FSDP__CUDA_CALL(device, cudaStreamCreateWithPriority(&stream->native, cudaStreamNonBlocking,
                                                                  device->stream ? greatest : least));
    if (status == FSDP_OK)
        status = fsdp__worker_open(&stream->worker, &stream->base, prepare);
    if (status != FSDP_OK) {
        fsdp__cuda_stream_free(&stream->base);
        return fsdp_fail_hop(status, __FILE__, __LINE__);
    }
    list(stream);
    *out = &stream->base;
    return FSDP_OK;
}

void fsdp__cuda_stream_free(fsdp_stream *base)
{
    fsdp__cuda_stream *stream = cuda(base);
    const fsdp_device *device = base->device;

    fsdp__worker_close(&stream->worker);
    fsdp__stream_drop_workspace(base);
    if (stream->native) {
        (void)fsdp__cuda_use(device);
        FSDP__CUDA_GIVE_BACK(device, cudaStreamSynchronize(stream->native));
        fsdp__cuda_pieces_free(stream);
        unlist(stream);
        FSDP__CUDA_GIVE_BACK(device, cudaStreamDestroy(stream->native));
    }
    fsdp__free(stream);
}

fsdp_status fsdp__cuda_stream_enqueue(fsdp_stream *base, fsdp_status (*work)(fsdp_stream *, const void *),
                                      const void *argument, size_t bytes)
{
    return fsdp__worker_push(&cuda(base)->worker, true, work, argument, bytes);
}

/* Waits until the device has done what was issued. It may have been condemned meanwhile, as after every such wait. */
fsdp_status fsdp__cuda_stream_settle(fsdp_stream *base)
{
    FSDP_TRY(fsdp__cuda_use(base->device));
    FSDP__CUDA_TRY(base->device, cudaStreamSynchronize(fsdp__cuda_native(base)));
    return fsdp__cuda_alive(base->device);
}

fsdp_status fsdp__cuda_stream_synchronize(fsdp_stream *base)
{
    fsdp_status status, settled;

    (void)fsdp__mark_pass(fsdp__worker_mark(&cuda(base)->worker));
    settled = fsdp__cuda_stream_settle(base);
    status = fsdp__worker_check(&cuda(base)->worker);
    return status == FSDP_OK ? settled : status;
}

fsdp_status fsdp__cuda_stream_check(fsdp_stream *base)
{
    FSDP_TRY(fsdp__worker_check(&cuda(base)->worker));
    return fsdp__cuda_alive(base->device);
}

bool fsdp__cuda_stream_enter(fsdp_stream *base)
{
    return fsdp__worker_enter(&cuda(base)->worker);
}

void fsdp__cuda_stream_leave(fsdp_stream *base)
{
    fsdp__worker_leave(&cuda(base)->worker);
}

void *fsdp__cuda_stream_native(fsdp_stream *base)
{
    fsdp__worker *worker = &cuda(base)->worker;

    /* The stream's own work does not wait for itself. */
    if (!fsdp__worker_is_this_thread(worker))
        (void)fsdp__mark_pass(fsdp__worker_mark(worker));
    return fsdp__cuda_alive(base->device) == FSDP_OK && fsdp__cuda_use(base->device) == FSDP_OK ? cuda(base)->native
                                                                                                : NULL;
}
