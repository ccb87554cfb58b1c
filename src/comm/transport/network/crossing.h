/* crossing.h - one run of a collective over machines: what goes to and comes from which rank, and the meeting of its
 * ranks. */
#pragma once

#include "comm/transport/arena/arena_coalesced.h"
#include "comm/transport/network/meeting.h"
#include "device/kernels.h"

typedef struct fsdp__crossing {
    fsdp__network_group *group;
    const fsdp__call *call;
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
    fsdp__segment *segments;
    fsdp__leg *legs;              /* one for each rank of the group, in both directions: to, then from */
    int sends, receives;          /* number of legs of the next exchange */
    fsdp_sharded_buffer *buffers; /* one for each rank of the column */
    void *memory;
} fsdp__crossing;

/* Begin a run, with room for so many segments of its legs, and end it, also after a failure to begin. The end returns
 * `status`. */
fsdp_status fsdp__crossing_begin(fsdp__crossing *r, void *group, const fsdp__call *call, fsdp__traffic *traffic,
                                 size_t segments);
fsdp_status fsdp__crossing_end(fsdp__crossing *r, fsdp_status status);
/* Runs a collective: the slot `local` if the whole group is on one machine, otherwise `over`, through host memory where
 * the host may not follow the device's pointers. `self` is the calling slot; `sent` and `received` are the elements
 * that a rank gives and gets. */
fsdp_status fsdp__crossing_over(fsdp__collective self, fsdp__collective local, fsdp_status (*over)(fsdp__crossing *),
                                void *group, const fsdp__call *call, fsdp__traffic *traffic, int64_t sent,
                                int64_t received);

static inline char *fsdp__crossing_at(const fsdp__crossing *r, const void *base, int64_t index)
{
    return (char *)(uintptr_t)base + (size_t)index * r->element;
}

/* Returns host memory of `count` elements that lasts until the end of the run; call it once. NULL and a last error when
 * out of memory. */
char *fsdp__crossing_scratch(fsdp__crossing *r, int64_t count);
fsdp_status fsdp__crossing_copy(fsdp__crossing *r, void *dst, const void *src, int64_t count);
/* Exchanges the rows of `count` of the run's buffers among the ranks of this machine, of which there are none on paper.
 * What is reduced is not divided. */
fsdp_status fsdp__crossing_local(fsdp__crossing *r, fsdp__pattern pattern, int count);

/* Says that messages use memory of the caller's. */
fsdp_status fsdp__crossing_uses(fsdp__crossing *r, const void *data, size_t bytes, fsdp__access access);
/* Add a leg to or from a global rank to the next exchange. */
fsdp_status fsdp__crossing_send(fsdp__crossing *r, int rank, const void *data, int64_t count);
fsdp_status fsdp__crossing_receive(fsdp__crossing *r, int rank, void *data, int64_t count);

/* Return how many segments the legs of a gather have; and add these legs: the rows of the call's buffers go to and come
 * from the counterparts. This rank's own lie in their places; or, of one buffer, one after the other at `own`. */
size_t fsdp__crossing_segments(const fsdp__network_group *group, const fsdp__call *rows);
fsdp_status fsdp__crossing_gather(fsdp__crossing *r, const fsdp__call *rows, const void *own);

/* Makes the next exchange send this rank's header too. What is received before the headers are compared is used only
 * afterwards. */
void fsdp__crossing_meet(fsdp__crossing *r, bool complete);
/* Compares the headers, if they are on their way. */
fsdp_status fsdp__crossing_end_meeting(fsdp__crossing *r);

/* Puts the legs on their way, and empties their list. After a failure none of them is begun; a meeting ends with the
 * run. */
fsdp_status fsdp__crossing_begin_exchange(fsdp__crossing *r, fsdp__exchange *x);
/* Ends the meeting, then the exchange. `status` is the result of what was done meanwhile. */
fsdp_status fsdp__crossing_end_exchange(fsdp__crossing *r, fsdp__exchange *x, fsdp_status status);
/* Begins an exchange and ends it. */
fsdp_status fsdp__crossing_exchange(fsdp__crossing *r);
/* Does the same, with a meeting. */
fsdp_status fsdp__crossing_meet_and_exchange(fsdp__crossing *r);
