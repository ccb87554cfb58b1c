/* meeting.h - the beginning of a call of a group over machines: a rank and its counterparts tell each other what they
 * call, and compare. The ranks of one machine compare in their group of the arena.
 *
 * Small data goes along with what is said, in one message. It is put in place only when all have been compared.
 *
 * [Note: meetings in rounds]
 * Each rank tells each, except in a flat group with several ranks on each machine, where both numbers are powers of
 * two. There, in round i, the ranks whose places differ in bit i tell each other all that they have heard so far. A
 * message to another machine takes along what was said on this one, and there are log2(machines) such messages instead
 * of one to each rank elsewhere (more where headers of half the ranks fill several). What goes along is passed on as
 * well: of a gather all that has been heard, so that only little can go along where there are many ranks; of a scatter,
 * whose parts are all equally long, half of the parts in each round. The parts for the ranks whose places have the
 * other value of the bit change sides, and so lie, after the last round, at the place of the rank that sent them. */
#pragma once

#include "comm/health/signature.h"
#include "comm/transport/network/exchange.h"

/* Holds what a rank says. */
typedef struct fsdp__header {
    fsdp__signature signature; /* compared; fsdp__meeting_begin fills it in */
    int32_t own_status;        /* of process_group_alloc */
    uint8_t complete; /* all contributions, or flags, of the rank's machine (in a flat group: of the rank) are there */
    uint8_t visible;  /* of a reduction: contributions are read in place */
    uint16_t along;   /* in a meeting in rounds: bytes of the rank that go to all */
} fsdp__header;

/* Says what goes to the other ranks of a column. */
typedef enum fsdp__parts {
    FSDP__ANY_PARTS,
    FSDP__EQUAL_PARTS, /* the same number of bytes to each, and from each */
    FSDP__SAME_PARTS   /* the same bytes to all, and the same number from each */
} fsdp__parts;

/* Holds what goes to and comes from the ranks of the column, in the order of their places. */
typedef struct fsdp__legs {
    fsdp__leg *sends, *receives;
    int send_count, receive_count;
    fsdp__parts parts;
} fsdp__legs;

typedef struct fsdp__meeting {
    fsdp__network_group *group;
    fsdp__exchange exchange;
    fsdp__segment *segments;
    fsdp__leg *legs;
    fsdp__leg *along;     /* by place: what is put in place from there, then what is sent */
    size_t message_bytes; /* most bytes of a message */
    int round;
    size_t part; /* in rounds: bytes of one of the equal parts */
} fsdp__meeting;

/* Begins a meeting: sends `own`. Those of `legs` (NULL: there are none) that are small enough go along: they have no
 * segments afterwards, and their data belongs to the call until the end. The other legs may be sent at once; what they
 * bring may be used only after fsdp__meeting_end. */
fsdp_status fsdp__meeting_begin(fsdp__meeting *meeting, fsdp__network_group *group, const fsdp__call *call,
                                const fsdp__header *own, const fsdp__legs *legs);
/* Waits until the headers of all have come, compares them and puts what came along in its place. Call
 * fsdp__meeting_release afterwards in any case. */
fsdp_status fsdp__meeting_end(fsdp__meeting *meeting, fsdp__traffic *traffic);
/* Returns what the rank at a place has said; valid until the release. */
const fsdp__header *fsdp__meeting_header(const fsdp__meeting *meeting, int place);
void fsdp__meeting_release(fsdp__meeting *meeting);
/* Fails if the headers disagree: what a world that is not on paper does. */
fsdp_status fsdp__meeting_compare(const fsdp__meeting *meeting);
/* Runs a whole meeting, for a call whose ranks say nothing else. */
fsdp_status fsdp__meet(fsdp__network_group *group, const fsdp__call *call, fsdp__traffic *traffic);
