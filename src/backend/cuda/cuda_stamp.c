/* cuda_stamp.c - tells when the device gets to a place in a stream, for whoever asks.
 *
 * [Note: the device's clock]
 * CUDA tells how much time lies between two events, as a float of milliseconds. So a stamp is measured from an origin:
 * a stamp whose time is known, in a stream in which nothing else happens. The first origin gets its time from the
 * host's clock when the host has waited for it. Later ones are measured from the one before, and take its place before
 * the float loses what the device can tell apart, which is half a microsecond. */
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"

#define ORIGIN_NS_MOST INT64_C(4000000000)

typedef struct stamp {
    fsdp__device_moment base;
    fsdp_device *device;
    cudaEvent_t event;
    struct stamp *origin; /* from which it is measured; NULL: it is one */
    int64_t ns;           /* of an origin: its time */
    struct stamp *next;   /* of those that nobody uses */
} stamp;

typedef struct fsdp__cuda_clock {
    pthread_mutex_t mutex; /* guards the stream and the origin */
    cudaStream_t stream;
    stamp *origin; /* of the stamps that are taken now */
    pthread_mutex_t spare_mutex;
    stamp *spare; /* guarded by the mutex before it */
} fsdp__cuda_clock;

/* Returns the device's clock, which is made when it is first asked for; NULL: out of memory. */
static fsdp__cuda_clock *clock_of(const fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    fsdp__cuda_clock *clock;

    pthread_mutex_lock(&state->mutex);
    if (!state->clock) {
        state->clock = fsdp__calloc(1, sizeof *state->clock);
        if (state->clock) {
            pthread_mutex_init(&state->clock->mutex, NULL);
            pthread_mutex_init(&state->clock->spare_mutex, NULL);
        }
    }
    clock = state->clock;
    pthread_mutex_unlock(&state->mutex);
    return clock;
}

/* ---- one stamp ---- */

static void drop(stamp *s)
{
    fsdp__mark_unref((fsdp__mark){.moment = &s->base});
}

static fsdp_status stamp_wait(fsdp__device_moment *base)
{
    const stamp *s = (const stamp *)base;

    FSDP_TRY(fsdp__cuda_use(s->device));
    FSDP__CUDA_TRY(s->device, cudaEventSynchronize(s->event));
    return FSDP_OK;
}

/* Gives the time of a stamp that lies behind an origin, both of which the device has reached. */
static fsdp_status measure(const stamp *s, const stamp *origin, int64_t *ns)
{
    float ms = 0;

    FSDP_TRY(fsdp__cuda_use(s->device));
    FSDP__CUDA_TRY(s->device, cudaEventElapsedTime(&ms, origin->event, s->event));
    *ns = origin->ns + (int64_t)((double)ms * 1e6);
    return FSDP_OK;
}

static fsdp_status stamp_time(fsdp__device_moment *base, int64_t *ns)
{
    const stamp *s = (const stamp *)base;

    return measure(s, s->origin, ns);
}

static void stamp_free(fsdp__device_moment *base)
{
    stamp *s = (stamp *)base, *origin = s->origin;
    fsdp__cuda_clock *clock = clock_of(s->device);

    s->origin = NULL;
    pthread_mutex_lock(&clock->spare_mutex);
    s->next = clock->spare;
    clock->spare = s;
    pthread_mutex_unlock(&clock->spare_mutex);
    if (origin)
        drop(origin);
}

static fsdp_status stamp_make(fsdp_device *device, stamp **out)
{
    stamp *s = fsdp__calloc(1, sizeof *s);
    fsdp_status status;

    if (!s)
        return FSDP_NO_MEMORY;
    s->base.wait = stamp_wait;
    s->base.time = stamp_time;
    s->base.free = stamp_free;
    s->device = device;
    status = FSDP__CUDA_CALL(device, cudaEventCreateWithFlags(&s->event, cudaEventDefault));
    if (status == FSDP_OK)
        *out = s;
    else
        fsdp__free(s);
    return status;
}

static fsdp_status stamp_take(fsdp_device *device, fsdp__cuda_clock *clock, stamp **out)
{
    stamp *s;

    pthread_mutex_lock(&clock->spare_mutex);
    s = clock->spare;
    if (s)
        clock->spare = s->next;
    pthread_mutex_unlock(&clock->spare_mutex);
    if (!s)
        FSDP_TRY(stamp_make(device, &s));
    s->base.refs = 1;
    *out = s;
    return FSDP_OK;
}

/* ---- the origin ---- */

/* Lets the device reach `s` now, and finds its time. */
static fsdp_status set_time(fsdp__cuda_clock *clock, stamp *s)
{
    const fsdp_device *device = s->device;

    if (!clock->stream)
        FSDP__CUDA_TRY(device, cudaStreamCreateWithPriority(&clock->stream, cudaStreamNonBlocking, 0));
    FSDP__CUDA_TRY(device, cudaEventRecord(s->event, clock->stream));
    FSDP__CUDA_TRY(device, cudaEventSynchronize(s->event));
    s->ns = fsdp__clock_ns();
    if (clock->origin)
        FSDP_TRY(measure(s, clock->origin, &s->ns));
    return FSDP_OK;
}

static fsdp_status renew(fsdp_device *device, fsdp__cuda_clock *clock)
{
    stamp *s = NULL, *before = clock->origin;
    fsdp_status status;

    FSDP_TRY(stamp_take(device, clock, &s));
    status = set_time(clock, s);
    if (status == FSDP_OK)
        clock->origin = s;
    else
        before = s;
    if (before)
        drop(before);
    return status;
}

/* Gives the origin of what is measured now; the caller owns a reference. */
static fsdp_status origin_take(fsdp_device *device, fsdp__cuda_clock *clock, stamp **out)
{
    fsdp_status status = FSDP_OK;

    pthread_mutex_lock(&clock->mutex);
    if (!clock->origin || fsdp__clock_ns() - clock->origin->ns > ORIGIN_NS_MOST)
        status = renew(device, clock);
    if (status == FSDP_OK) {
        *out = clock->origin;
        atomic_fetch_add(&clock->origin->base.refs, 1);
    }
    pthread_mutex_unlock(&clock->mutex);
    return status;
}

/* ---- for the table ---- */

fsdp_status fsdp__cuda_stream_stamp(fsdp_stream *stream, fsdp__device_moment **out)
{
    fsdp_device *device = stream->device;
    fsdp__cuda_clock *clock = clock_of(device);
    stamp *s = NULL;
    fsdp_status status;

    if (!clock)
        return FSDP_NO_MEMORY;
    FSDP_TRY(fsdp__cuda_use(device));
    FSDP_TRY(stamp_take(device, clock, &s));
    status = origin_take(device, clock, &s->origin);
    if (status == FSDP_OK)
        status = FSDP__CUDA_CALL(device, cudaEventRecord(s->event, fsdp__cuda_native(stream)));
    if (status == FSDP_OK)
        *out = &s->base;
    else
        drop(s);
    return status;
}

void fsdp__cuda_clock_close(fsdp_device *device)
{
    fsdp__cuda_clock *clock = fsdp__cuda_state_of(device)->clock;

    if (!clock)
        return;
    if (clock->origin)
        drop(clock->origin);
    while (clock->spare) {
        stamp *s = clock->spare;

        clock->spare = s->next;
        FSDP__CUDA_GIVE_BACK(device, cudaEventDestroy(s->event));
        fsdp__free(s);
    }
    if (clock->stream)
        FSDP__CUDA_GIVE_BACK(device, cudaStreamDestroy(clock->stream));
    pthread_mutex_destroy(&clock->spare_mutex);
    pthread_mutex_destroy(&clock->mutex);
    fsdp__free(clock);
}
