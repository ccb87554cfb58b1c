/* plain_run.h - one run of a plain collective over machines: what goes to and comes from which rank, and the meeting of
 * its ranks. */
#ifndef COMM_NETWORK_PLAIN_RUN_H
#define COMM_NETWORK_PLAIN_RUN_H

#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/network/meeting.h"

typedef struct fsdp__plain_run {
    fsdp__network_group *group;
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
    bool complete;     /* what this rank says in the meeting */
    fsdp__parts parts; /* of the exchange that goes with the meeting */
    /* There is a segment and a leg for each rank of the group, in both directions, and segments for two exchanges. */
    fsdp__segment *segments;
    fsdp__leg *legs;
    fsdp_sharded_buffer *buffers; /* one for each rank of the column */
    int half;                     /* 0 or 1: the half of the segments that the next exchange uses */
    int sends, receives;
    void *memory;
} fsdp__plain_run;

/* Runs a collective: the slot `local` if the whole group is on one machine, otherwise `over`, through host memory where
 * the host may not follow the device's pointers. `self` is the calling slot; `sent` and `received` are the elements
 * that a rank gives and gets. */
fsdp_status fsdp__plain_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(fsdp__plain_run *),
                             void *group, const fsdp__call *call, fsdp_stream *stream, fsdp__traffic *traffic,
                             int64_t sent, int64_t received);

static inline char *fsdp__plain_at(const fsdp__plain_run *r, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + (size_t)index * r->element;
}

/* Returns host memory of `count` elements that lasts until the end of the run; call it once. NULL and a last error when
 * out of memory. */
char *fsdp__plain_scratch(fsdp__plain_run *r, int64_t count);
fsdp_status fsdp__plain_copy(fsdp__plain_run *r, void *dst, const void *src, int64_t count);
/* Exchanges the rows of `count` of the run's buffers among the ranks of this machine, of which there are none on paper.
 * What is reduced is not divided. */
fsdp_status fsdp__plain_local(fsdp__plain_run *r, fsdp__pattern pattern, int count);

/* Add a leg to or from a global rank to the next exchange. */
fsdp_status fsdp__plain_send(fsdp__plain_run *r, int rank, const void *data, int64_t count);
fsdp_status fsdp__plain_receive(fsdp__plain_run *r, int rank, void *data, int64_t count);

/* Makes the next exchange send this rank's header too. What is received before the headers are compared is used only
 * afterwards. */
void fsdp__plain_meet(fsdp__plain_run *r, bool complete);
/* Compares the headers, if they are on their way. */
fsdp_status fsdp__plain_end_meeting(fsdp__plain_run *r);

/* Puts the legs on their way, and empties their list. After a failure none of them is begun; a meeting ends with the
 * run. */
fsdp_status fsdp__plain_begin_exchange(fsdp__plain_run *r, fsdp__exchange *x);
/* Ends the meeting, then the exchange. `status` is the result of what was done meanwhile. */
fsdp_status fsdp__plain_end_exchange(fsdp__plain_run *r, fsdp__exchange *x, fsdp_status status);
/* Begins an exchange and ends it. */
fsdp_status fsdp__plain_exchange(fsdp__plain_run *r);
/* Does the same, with a meeting. */
fsdp_status fsdp__plain_meet_and_exchange(fsdp__plain_run *r);

#endif
