/* cuda_stamp.c - tells when the device gets to a place in a stream, for whoever asks.
 *
 * [Note: the device's clock]
 * CUDA tells how much time lies between two events, as a float of milliseconds. So a stamp is measured from an origin:
 * a stamp whose time is known, in a stream in which nothing else happens. The first origin gets its time from the
 * host's clock: the host lets the device pass some places and waits for each. It sees each of them late, and the one
 * that it sees least late says best what the host's clock was. So nothing seems to run before it was issued, however
 * late that is. Later ones are measured from the one before, and take its place before the float loses what the device
 * can tell apart, which is half a microsecond. Where nobody has taken a stamp for longer than that, the float has lost
 * it, and the clocks have gone apart: then the origin gets its time from the host again. */
#include "backend/cuda/cuda.h"
#include "base/alloc.h"
#include "base/clock.h"
#include "base/compiler.h"

/* Says how old an origin gets before a new one is made, and up to when that is measured from the old one. */
#define ORIGIN_NS_MOST INT64_C(4000000000)
#define ORIGIN_NS_KNOWN INT64_C(5000000000)

enum {
    ROUNDS = 8 /* of waits for the device's clock */
};

typedef fsdp__cuda_moment stamp;

typedef struct fsdp__cuda_clock {
    pthread_mutex_t mutex; /* guards what follows */
    cudaStream_t stream;
    stamp *origin; /* of the stamps that are taken now */
} fsdp__cuda_clock;

/* Returns the device's clock, which is made when it is first asked for; NULL: out of memory. */
static fsdp__cuda_clock *clock_of(const fsdp_device *device)
{
    fsdp__cuda_state *state = fsdp__cuda_state_of(device);
    fsdp__cuda_clock *clock;

    pthread_mutex_lock(&state->mutex);
    if (!state->clock) {
        state->clock = fsdp__calloc(1, sizeof *state->clock);
        if (state->clock)
            pthread_mutex_init(&state->clock->mutex, NULL);
    }
    clock = state->clock;
    pthread_mutex_unlock(&state->mutex);
    return clock;
}

static fsdp_status stamp_time(fsdp__device_moment *base, int64_t *ns)
{
    const stamp *s = (const stamp *)base;

    FSDP_TRY(fsdp__cuda_moment_elapsed(s->origin, s, ns));
    *ns += s->origin->ns;
    return FSDP_OK;
}

/* ---- the origin ---- */

/* Lets the device reach `s` now. */
static fsdp_status reach(fsdp_device *device, const fsdp__cuda_clock *clock, const stamp *s)
{
    FSDP__CUDA_TRY(device, cudaEventRecord(s->event, clock->stream));
    FSDP__CUDA_TRY(device, cudaEventSynchronize(s->event));
    return FSDP_OK;
}

/* Finds the host's time of `s`, which the device has reached, by what `other` lets the host wait for. */
static fsdp_status ask_host(fsdp_device *device, const fsdp__cuda_clock *clock, const stamp *other, stamp *s)
{
    s->ns = INT64_MAX;
    for (int i = 0; i < ROUNDS; i++) {
        int64_t seen, behind;

        FSDP_TRY(reach(device, clock, other));
        seen = fsdp__clock_ns();
        FSDP_TRY(fsdp__cuda_moment_elapsed(s, other, &behind));
        s->ns = FSDP__MIN(s->ns, seen - behind);
    }
    return FSDP_OK;
}

/* Lets the device reach `s` now, and finds its time. */
static fsdp_status set_time(fsdp_device *device, fsdp__cuda_clock *clock, stamp *s)
{
    stamp *other = NULL;
    fsdp_status status;

    if (!clock->stream)
        FSDP__CUDA_TRY(device, cudaStreamCreateWithPriority(&clock->stream, cudaStreamNonBlocking, 0));
    FSDP_TRY(reach(device, clock, s));
    if (clock->origin && fsdp__clock_ns() - clock->origin->ns < ORIGIN_NS_KNOWN) {
        FSDP_TRY(fsdp__cuda_moment_elapsed(clock->origin, s, &s->ns));
        s->ns += clock->origin->ns;
        return FSDP_OK;
    }
    FSDP_TRY(fsdp__cuda_moment_take(device, true, &other));
    status = ask_host(device, clock, other, s);
    fsdp__cuda_moment_drop(other);
    return status;
}

static fsdp_status renew(fsdp_device *device, fsdp__cuda_clock *clock)
{
    stamp *s = NULL, *before = clock->origin;
    fsdp_status status;

    FSDP_TRY(fsdp__cuda_moment_take(device, true, &s));
    status = set_time(device, clock, s);
    if (status == FSDP_OK)
        clock->origin = s;
    else
        before = s;
    if (before)
        fsdp__cuda_moment_drop(before);
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
    FSDP_TRY(fsdp__cuda_moment_take(device, true, &s));
    s->base.time = stamp_time;
    status = origin_take(device, clock, &s->origin);
    if (status == FSDP_OK)
        status = FSDP__CUDA_CALL(device, cudaEventRecord(s->event, fsdp__cuda_native(stream)));
    if (status == FSDP_OK)
        *out = &s->base;
    else
        fsdp__cuda_moment_drop(s);
    return status;
}

void fsdp__cuda_clock_close(fsdp_device *device)
{
    fsdp__cuda_clock *clock = fsdp__cuda_state_of(device)->clock;

    if (!clock)
        return;
    if (clock->origin)
        fsdp__cuda_moment_drop(clock->origin);
    if (clock->stream)
        FSDP__CUDA_GIVE_BACK(device, cudaStreamDestroy(clock->stream));
    pthread_mutex_destroy(&clock->mutex);
    fsdp__free(clock);
}
