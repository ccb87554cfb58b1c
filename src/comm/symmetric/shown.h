/* shown.h - what ranks show each other of a coalesced call: where its buffers lie, and which have nothing to add. */
#ifndef COMM_SYMMETRIC_SHOWN_H
#define COMM_SYMMETRIC_SHOWN_H

#include "comm/symmetric/group.h"

/* What can be done, as the memory of all ranks is. */
typedef enum fsdp__shown_path {
    FSDP__SHOWN_STAGING,   /* somebody's is not seen by the others */
    FSDP__SHOWN_SYMMETRIC, /* each has its own, which the others read */
    FSDP__SHOWN_SHARED     /* of a gather: all have the same */
} fsdp__shown_path;

/* Whether peers can read all `unsharded` memory of this rank. */
bool fsdp__shown_is_readable(const fsdp__symmetric_group *group, const fsdp__call *call);
/* Whether there is a way for memory that is each rank's own: that was not refused, and the buffers are not too many. */
bool fsdp__shown_is_direct(const fsdp__call *call);
/* The entry of the call. What was shown can be read until the next but one. */
fsdp_status fsdp__shown_meet(fsdp__symmetric_group *group, const fsdp__call *call, bool readable,
                             fsdp__traffic *traffic, fsdp__shown_path *out);
/* The `unsharded` of a rank, where the path is SYMMETRIC; whether the rank adds to the buffer of a reduction. */
void *fsdp__shown_place(const fsdp__symmetric_group *group, int rank, int64_t buffer);
bool fsdp__shown_adds(const fsdp__symmetric_group *group, const fsdp__call *call, int rank, int64_t buffer);

#endif
