/* meeting.h - the beginning of a call of a group over machines: a rank and its counterparts say what they call, and
 * compare. That the ranks of a machine do is a matter of their group in the arena. */
#ifndef COMM_MACHINES_MEETING_H
#define COMM_MACHINES_MEETING_H

#include "comm/machines/exchange.h"
#include "comm/symmetric/signature.h"

/* What a rank says. */
typedef struct fsdp__header {
    fsdp__signature signature; /* compared, and filled in by fsdp__meeting_begin */
    int32_t own_status;        /* of process_group_alloc */
    uint8_t complete; /* all contributions, or flags, of the rank's machine (of the rank, in a flat group) are there */
    uint8_t shared;   /* compared: the buffers lie in memory that the machine's ranks share */
    uint8_t visible;  /* of a reduction: contributions are read where they are */
} fsdp__header;

typedef struct fsdp__meeting {
    fsdp__machines_group *group;
    fsdp__exchange exchange;
    fsdp__header *headers; /* by place */
    fsdp__segment *segments;
    fsdp__leg *legs;
} fsdp__meeting;

/* Sends `own`. What goes with it may be sent at once; what comes is to be used only after fsdp__meeting_end. */
fsdp_status fsdp__meeting_begin(fsdp__meeting *meeting, fsdp__machines_group *group, const fsdp__call *call,
                                const fsdp__header *own);
/* The headers of all are there, and equal as far as they are compared. `headers` stay until the release, which follows
 * in any case. */
fsdp_status fsdp__meeting_end(fsdp__meeting *meeting, fsdp__traffic *traffic);
void fsdp__meeting_release(fsdp__meeting *meeting);
/* All in one, of a call whose ranks say nothing else. */
fsdp_status fsdp__meet(fsdp__machines_group *group, const fsdp__call *call, fsdp__traffic *traffic);

#endif
