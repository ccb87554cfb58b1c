/* exposed.c - the host's clock, and stamps around what a GPU waits for. */
#include "shard/group/exposed.h"

#include "base/alloc.h"
#include "base/clock.h"
#include "device/device.h"

enum {
    MOST_WAITS = 4096 /* that are kept while nobody asks again */
};

struct fsdp__gpu_wait {
    fsdp__gpu_wait *next; /* the one before */
    fsdp_stream *stream;
    fsdp__stamp stamps[2];
    int taken; /* by the stream's work */
    bool open; /* its stretch has not ended */
};

/* ---- one wait of a GPU ---- */

static fsdp_status take_stamp(fsdp_stream *stream, const void *argument)
{
    fsdp__gpu_wait *wait = *(fsdp__gpu_wait *const *)argument;

    FSDP_TRY(fsdp__stream_stamp(stream, &wait->stamps[wait->taken]));
    wait->taken++;
    return FSDP_OK;
}

/* Takes the wait's next stamp, now or in the stream's work. */
static fsdp_status stamp(fsdp__gpu_wait *wait)
{
    fsdp_status status;

    if (!fsdp__stream_enter(wait->stream))
        return fsdp__stream_enqueue(wait->stream, take_stamp, &wait, sizeof(fsdp__gpu_wait *));
    status = take_stamp(wait->stream, &wait);
    fsdp__stream_leave(wait->stream);
    return status;
}

/* Reads all stamps that were taken. A wait without an end counts nothing. */
static fsdp_status read_stamps(fsdp__gpu_wait *wait, int64_t *ns)
{
    fsdp_status status = FSDP_OK;
    int64_t at[2] = {0};

    for (int i = 0; i < wait->taken; i++)
        FSDP_KEEP_FIRST(status, fsdp__stamp_read(&wait->stamps[i], &at[i]));
    if (status == FSDP_OK && wait->taken == 2 && at[1] > at[0])
        *ns += at[1] - at[0];
    return status;
}

/* ---- stretches ---- */

fsdp_status fsdp__exposed_begin(fsdp__exposed *exposed, fsdp_stream *stream, const fsdp_stream *other, bool issues,
                                fsdp__stretch *out)
{
    bool gpu = fsdp__device_carries(fsdp__stream_device(stream));
    fsdp_status status;

    *out = (fsdp__stretch){.stream = stream};
    if (!gpu)
        out->began_ns = fsdp__clock_ns();
    if (!gpu || !exposed->asked || issues != (stream == other))
        return FSDP_OK;
    if (exposed->count == MOST_WAITS)
        FSDP_TRY(fsdp__exposed_sum(exposed));
    FSDP__TRY_NEW(out->wait = fsdp__calloc(1, sizeof *out->wait));
    *out->wait = (fsdp__gpu_wait){.next = exposed->newest, .stream = stream};
    exposed->newest = out->wait;
    exposed->count++;
    status = stamp(out->wait);
    out->wait->open = status == FSDP_OK;
    return status;
}

fsdp_status fsdp__exposed_end(fsdp__exposed *exposed, const fsdp__stretch *stretch, bool ended)
{
    if (stretch->began_ns)
        exposed->ns += fsdp__clock_ns() - stretch->began_ns;
    if (!stretch->wait)
        return FSDP_OK;
    stretch->wait->open = false;
    return ended ? stamp(stretch->wait) : FSDP_OK;
}

fsdp_status fsdp__exposed_sum(fsdp__exposed *exposed)
{
    fsdp__gpu_wait **at = &exposed->newest;
    fsdp_status status = FSDP_OK;

    if (exposed->newest)
        status = fsdp_stream_synchronize(exposed->newest->stream); /* what it has queued takes stamps */
    while (*at) {
        fsdp__gpu_wait *wait = *at;

        if (wait->open) { /* a function of the caller's asks, from within the stretch */
            at = &wait->next;
            continue;
        }
        *at = wait->next;
        FSDP_KEEP_FIRST(status, read_stamps(wait, &exposed->ns));
        fsdp__free(wait);
        exposed->count--;
    }
    return status;
}

void fsdp__exposed_drop(fsdp__exposed *exposed)
{
    bool held = fsdp_hold_error(true);

    (void)fsdp__exposed_sum(exposed);
    fsdp_release_error(held);
}
