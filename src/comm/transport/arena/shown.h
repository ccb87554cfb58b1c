/* shown.h - what ranks show each other of a call by rows: where its buffers lie, and which of them get nothing
 * added. */
#pragma once

#include "comm/transport/arena/arena_group.h"

/* The paths that a call may take, depending on the memory of all ranks. */
typedef enum fsdp__shown_path {
    FSDP__SHOWN_STAGING,  /* some rank has memory that the others cannot see */
    FSDP__SHOWN_IN_PLACE, /* each rank has its own memory, where the others read it */
    FSDP__SHOWN_SHARED    /* a gather's: all ranks have the same memory */
} fsdp__shown_path;

/* Returns whether peers can read all `unsharded` memory of this rank; `follows` tells whether the host may follow
 * pointers to memory of the call's device. */
bool fsdp__shown_is_readable(const fsdp__arena_group *group, const fsdp__call *call, bool follows);
/* Returns whether this rank contributes to all buffers of a reduction, or all its flags are set. */
bool fsdp__shown_is_complete(const fsdp__call *call);
/* Returns whether the call can take a path for memory that is each rank's own: it was not told otherwise, and has not
 * too many buffers. */
bool fsdp__shown_is_direct(const fsdp__call *call);
/* Shows the entry of the call and meets the others. What was shown can be read until the next entry but one. */
fsdp_status fsdp__shown_meet(fsdp__arena_group *group, const fsdp__call *call, bool readable, fsdp__traffic *traffic,
                             fsdp__shown_path *out);
/* Return the `unsharded` of a rank, where the path is IN_PLACE; and whether the rank adds to the buffer of a
 * reduction. */
void *fsdp__shown_place(const fsdp__arena_group *group, int rank, int64_t buffer);
bool fsdp__shown_adds(const fsdp__arena_group *group, const fsdp__call *call, int rank, int64_t buffer);
