/* plain_run.h - a plain collective over machines that is being run: what goes to and comes from whom, and the meeting
 * of its ranks. */
#ifndef COMM_MACHINES_PLAIN_RUN_H
#define COMM_MACHINES_PLAIN_RUN_H

#include "comm/machines/meeting.h"

typedef struct fsdp__plain_run {
    fsdp__machines_group *group;
    const fsdp__call *call;
    fsdp_stream *stream;
    fsdp__traffic *traffic;
    size_t element;
    fsdp__meeting meeting;
    enum {
        FSDP__NO_MEETING,
        FSDP__MEETING_DUE, /* with the next exchange */
        FSDP__MEETING_BEGUN
    } meets;
    bool complete;     /* what this rank says in it */
    fsdp__parts parts; /* of the exchange that goes with it */
    /* A segment and a leg for each rank of the group, in both directions; segments for two exchanges. */
    fsdp__segment *segments;
    fsdp__leg *legs;
    int half; /* 0, 1: of the segments, the next exchange's */
    int sends, receives;
    void *memory;
} fsdp__plain_run;

/* A collective: wholly of one machine (`local`), or `over` machines, through the host where it may not follow the
 * device's pointers. `self` is this one; `sent` and `received`: elements that a rank gives and gets. */
fsdp_status fsdp__plain_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(fsdp__plain_run *),
                             void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic,
                             int64_t sent, int64_t received);

static inline char *fsdp__plain_at(const fsdp__plain_run *r, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + (size_t)index * r->element;
}

/* Host memory of `count` elements until the end of the run, once; NULL and a last error. */
char *fsdp__plain_scratch(fsdp__plain_run *r, int64_t count);
fsdp_status fsdp__plain_copy(fsdp__plain_run *r, void *dst, const void *src, int64_t count);
/* The same call among the ranks of this machine. */
fsdp_status fsdp__plain_local(fsdp__plain_run *r, fsdp__collective local, const void *send, void *recv, int64_t count);

/* Legs of the next exchange, to or from a global rank. */
fsdp_status fsdp__plain_send(fsdp__plain_run *r, int rank, const void *data, int64_t count);
fsdp_status fsdp__plain_receive(fsdp__plain_run *r, int rank, void *data, int64_t count);

/* The next exchange sends this rank's header, too. What is begun before the headers are compared is used only then. */
void fsdp__plain_meet(fsdp__plain_run *r, bool complete);
/* Compares them, where they are on their way. */
fsdp_status fsdp__plain_end_meeting(fsdp__plain_run *r);

/* Puts the legs on their way: they are none afterwards. A failure leaves nothing of them begun; a meeting ends with the
 * run. */
fsdp_status fsdp__plain_begin_exchange(fsdp__plain_run *r, fsdp__exchange *x);
/* The end of the meeting, then of the exchange. `status`: of what there was to do meanwhile. */
fsdp_status fsdp__plain_end_exchange(fsdp__plain_run *r, fsdp__exchange *x, fsdp_status status);
/* Begins an exchange and ends it. */
fsdp_status fsdp__plain_exchange(fsdp__plain_run *r);
/* The same, with a meeting. */
fsdp_status fsdp__plain_meet_and_exchange(fsdp__plain_run *r);

#endif
