/* timeline.c - runs the clocks. */
#include "plan/timeline.h"

#include "base/alloc.h"
#include "base/compiler.h"
#include "device/device.h"

/* Returns the clock of a stream. There are a few in a run; should there be more than there is room for, they share the
 * last one. */
static fsdp__timeline_stream *clock_of(fsdp__timeline *t, const fsdp_stream *stream)
{
    int i = 0;

    while (i < t->stream_count && t->streams[i].stream != stream)
        i++;
    if (i == FSDP__TIMELINE_STREAMS)
        return &t->streams[i - 1];
    if (i == t->stream_count)
        t->streams[t->stream_count++] = (fsdp__timeline_stream){.stream = stream, .last = FSDP__PLAN_HOST};
    return &t->streams[i];
}

static bool is_host(const fsdp_stream *stream)
{
    return !stream || fsdp__stream_is_inline(stream);
}

static double now(fsdp__timeline *t, const fsdp_stream *stream)
{
    return is_host(stream) ? t->host : clock_of(t, stream)->at;
}

static void set(fsdp__timeline *t, const fsdp_stream *stream, double at)
{
    if (is_host(stream))
        t->host = at;
    else
        clock_of(t, stream)->at = at;
}

/* Counts time in which the computing stream goes on, for whatever reason. A host that computes itself is that stream.
 */
static void count(fsdp__timeline *t, const fsdp_stream *stream, fsdp__plan_part part, double seconds)
{
    if (stream == t->compute || (is_host(stream) && is_host(t->compute)))
        t->seen[part] += seconds;
}

/* Makes a clock wait. What it waits for is why it does. */
static void wait_until(fsdp__timeline *t, const fsdp_stream *stream, double at, fsdp__plan_part why)
{
    double from = now(t, stream);

    if (at <= from)
        return;
    count(t, stream, why, at - from);
    set(t, stream, at);
}

/* Notes what a stream's work was last. Kernels beside the computing belong to an exchange, such as the division after a
 * sum: who waits for them waits for that. */
static void note_last(fsdp__timeline *t, const fsdp_stream *stream, fsdp__plan_part part)
{
    fsdp__timeline_stream *clock = clock_of(t, stream);
    bool exchanged = clock->last == FSDP__PLAN_GATHERS || clock->last == FSDP__PLAN_REDUCTIONS;

    if (stream == t->compute || part != FSDP__PLAN_MEMORY_BOUND || !exchanged)
        clock->last = part;
}

void fsdp__timeline_work(fsdp__timeline *t, const fsdp_stream *stream, fsdp__plan_part part, double seconds)
{
    t->host += t->launch;
    count(t, NULL, FSDP__PLAN_HOST, t->launch);
    if (!is_host(stream)) {
        wait_until(t, stream, t->host, FSDP__PLAN_HOST);
        note_last(t, stream, part);
    }
    t->all[part] += seconds;
    count(t, stream, part, seconds);
    set(t, stream, now(t, stream) + seconds);
}

fsdp_status fsdp__timeline_mark_event(fsdp__timeline *t, const struct fsdp_event *event, const fsdp_stream *stream)
{
    int64_t *number = fsdp__pointer_table_at(&t->events, event);

    FSDP__TRY_NEW(number);
    if (*number == 0) {
        if (fsdp__grow(&t->marks, t->mark_count, &t->mark_capacity, sizeof *t->marks))
            return FSDP_NO_MEMORY;
        *number = ++t->mark_count;
    }
    t->marks[*number - 1] =
        (fsdp__timeline_mark){now(t, stream), is_host(stream) ? FSDP__PLAN_HOST : clock_of(t, stream)->last};
    return FSDP_OK;
}

void fsdp__timeline_await(fsdp__timeline *t, const struct fsdp_event *event, const fsdp_stream *stream)
{
    int64_t number = fsdp__pointer_table_find(&t->events, event);

    if (number > 0)
        wait_until(t, stream, t->marks[number - 1].at, t->marks[number - 1].last);
}

void fsdp__timeline_join(fsdp__timeline *t, const fsdp_stream *stream)
{
    if (!is_host(stream))
        wait_until(t, NULL, clock_of(t, stream)->at, clock_of(t, stream)->last);
}

void fsdp__timeline_end(fsdp__timeline *t, fsdp__plan_time *out)
{
    double hidden[FSDP__PLAN_PARTS];

    fsdp__timeline_join(t, t->compute);
    out->step = 0;
    for (int part = 0; part < FSDP__PLAN_PARTS; part++) {
        out->parts[part] = t->seen[part];
        out->step += t->seen[part];
        hidden[part] = FSDP__MAX(t->all[part] - t->seen[part], 0);
    }
    out->hidden_gathers = hidden[FSDP__PLAN_GATHERS];
    out->hidden_reductions = hidden[FSDP__PLAN_REDUCTIONS];
    out->hidden_copies = hidden[FSDP__PLAN_COPIES];
}

void fsdp__timeline_release(fsdp__timeline *t)
{
    fsdp__pointer_table_release(&t->events);
    fsdp__free(t->marks);
}
