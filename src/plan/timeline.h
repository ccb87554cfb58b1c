/* timeline.h - the clocks of a step that does not run: of the host, and of each stream. The streams wait for each other
 * as the engine makes them wait, by its events, so what is hidden behind what is not guessed. */
#pragma once

#include "base/pointer_table.h"
#include "plan/planned.h"

enum {
    FSDP__TIMELINE_STREAMS = 16
};

typedef struct fsdp__timeline_stream {
    const fsdp_stream *stream;
    double at;            /* its work so far is done */
    fsdp__plan_part last; /* what its work was last */
} fsdp__timeline_stream;

typedef struct fsdp__timeline_mark {
    double at;
    fsdp__plan_part last;
} fsdp__timeline_mark;

typedef struct fsdp__timeline {
    double host;                /* the host's clock; an inline stream's is the same */
    double launch;              /* what a launch costs the host */
    const fsdp_stream *compute; /* whose time the parts are of */
    fsdp__timeline_stream streams[FSDP__TIMELINE_STREAMS];
    int stream_count;
    fsdp__pointer_table events; /* numbers of their marks */
    fsdp__timeline_mark *marks;
    int64_t mark_count, mark_capacity;
    double all[FSDP__PLAN_PARTS];  /* seconds of work, on any stream */
    double seen[FSDP__PLAN_PARTS]; /* of these, those in which the computing stream ran or waited */
} fsdp__timeline;

/* Gives a stream work that takes `seconds`. Host work (NULL) is done by the host itself. */
void fsdp__timeline_work(fsdp__timeline *t, const fsdp_stream *stream, fsdp__plan_part part, double seconds);
/* The stream's work so far is marked by an event; a stream, or the host (NULL), waits for such a mark. */
fsdp_status fsdp__timeline_mark_event(fsdp__timeline *t, const struct fsdp_event *event, const fsdp_stream *stream);
void fsdp__timeline_await(fsdp__timeline *t, const struct fsdp_event *event, const fsdp_stream *stream);
/* The host waits for all work of a stream. */
void fsdp__timeline_join(fsdp__timeline *t, const fsdp_stream *stream);
/* Ends the step: returns its seconds, and splits them. */
void fsdp__timeline_end(fsdp__timeline *t, fsdp__plan_time *out);
void fsdp__timeline_release(fsdp__timeline *t);
