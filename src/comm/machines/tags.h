/* tags.h - what messages of the network are told apart by. */
#ifndef COMM_MACHINES_TAGS_H
#define COMM_MACHINES_TAGS_H

#include <stdint.h>

#include "comm/machines/network.h"

enum {
    FSDP__TAG_HEADER, /* what a rank says of a call */
    FSDP__TAG_DATA,
    FSDP__TAG_NEWS, /* of no group: see watch.h */
    FSDP__TAG_KINDS = 4
};

/* The first tag of a group; `ticket`: of its making, 0 of the world. Two of them may have the same: see group.c. */
static inline int fsdp__tag_base(uint64_t ticket)
{
    uint64_t groups = FSDP__NETWORK_TAGS / FSDP__TAG_KINDS;

    return ticket == 0 ? 0 : (int)((1 + ticket % (groups - 1)) * FSDP__TAG_KINDS);
}

#endif
