/* meeting.h - the beginning of a call of a group over machines: a rank and its counterparts say what they call, and
 * compare. That the ranks of a machine do is a matter of their group in the arena.
 *
 * What is small goes along with what is said, in one message. It is in its place only when all have been compared.
 *
 * [Note: meetings in rounds]
 * Each tells each, but in a flat group with several ranks on each machine, where both numbers are powers of two. There
 * in round i the ranks whose places differ in bit i tell each other all that they have heard by then. A message to
 * another machine takes along what is said on this one, and there are log2(machines) of them in place of one to each
 * rank elsewhere (more where headers of half the ranks fill several). What goes along is passed on as well: of a gather
 * all that has been heard, and little where there are many; of a scatter, whose parts are all as long, half of the
 * parts in each round. Those for the ranks whose places have the other one's bit change sides, and so lie, after the
 * last round, at the place of whoever has sent them. */
#ifndef COMM_MACHINES_MEETING_H
#define COMM_MACHINES_MEETING_H

#include "comm/machines/exchange.h"
#include "comm/symmetric/signature.h"

/* What a rank says. */
typedef struct fsdp__header {
    fsdp__signature signature; /* compared, and filled in by fsdp__meeting_begin */
    int32_t own_status;        /* of process_group_alloc */
    uint8_t complete; /* all contributions, or flags, of the rank's machine (of the rank, in a flat group) are there */
    uint8_t visible;  /* of a reduction: contributions are read where they are */
    uint16_t along;   /* bytes of the rank that go to all, in a meeting in rounds */
} fsdp__header;

/* What goes to the others of a column. */
typedef enum fsdp__parts {
    FSDP__ANY_PARTS,
    FSDP__EQUAL_PARTS, /* as many bytes to each, and from each */
    FSDP__SAME_PARTS   /* the same bytes to all, and as many from each */
} fsdp__parts;

/* What goes to and comes from ranks of the column, in the order of their places. */
typedef struct fsdp__legs {
    fsdp__leg *sends, *receives;
    int send_count, receive_count;
    fsdp__parts parts;
} fsdp__legs;

typedef struct fsdp__meeting {
    fsdp__machines_group *group;
    fsdp__exchange exchange;
    fsdp__segment *segments;
    fsdp__leg *legs;
    fsdp__leg *along; /* by place: what is put in place from there, then what is sent */
    int round;
    size_t part; /* bytes, in rounds: of equal parts */
} fsdp__meeting;

/* Sends `own`. Of `legs` (NULL: there are none) those go along that are small enough (fsdp__goes_along): they have no
 * segments afterwards, and their data is the call's until the end. What is left may be sent at once; what comes is to
 * be used only after fsdp__meeting_end. */
fsdp_status fsdp__meeting_begin(fsdp__meeting *meeting, fsdp__machines_group *group, const fsdp__call *call,
                                const fsdp__header *own, const fsdp__legs *legs);
/* The headers of all are there, and equal as far as they are compared, and what came along is in its place. The release
 * follows in any case. */
fsdp_status fsdp__meeting_end(fsdp__meeting *meeting, fsdp__traffic *traffic);
/* What the rank at a place has said: until the release. */
const fsdp__header *fsdp__meeting_header(const fsdp__meeting *meeting, int place);
void fsdp__meeting_release(fsdp__meeting *meeting);
/* Messages to other machines that a rank sends for a meeting. */
int64_t fsdp__meeting_messages(const fsdp__group_shape *shape);
/* Whether so many bytes to a rank, or from it, need no message of their own, in a column of `columns` that meets in so
 * many rounds. */
bool fsdp__goes_along(int columns, int rounds, fsdp__parts parts, int64_t bytes);
/* Bytes that a rank sends to other machines, and gets, where equal parts of so many go along. */
int64_t fsdp__meeting_scatters(const fsdp__group_shape *shape, int64_t bytes);
/* All in one, of a call whose ranks say nothing else. */
fsdp_status fsdp__meet(fsdp__machines_group *group, const fsdp__call *call, fsdp__traffic *traffic);

#endif
