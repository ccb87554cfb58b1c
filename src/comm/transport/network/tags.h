/* tags.h - the tags that tell messages of the network apart. */
#pragma once

#include <stdint.h>

#include "comm/transport/network/network.h"

enum {
    FSDP__TAG_HEADER, /* what a rank says of a call */
    FSDP__TAG_DATA,
    FSDP__TAG_NEWS, /* of no group: see watch.h */
    FSDP__TAG_KINDS = 4
};

/* Returns the first tag of a group. `ticket` is that of its creation, 0 for the world. Two groups may have the same
 * tags: see network_group.c. */
static inline int fsdp__tag_base(uint64_t ticket)
{
    uint64_t groups = FSDP__NETWORK_TAGS / FSDP__TAG_KINDS;

    return ticket == 0 ? 0 : (int)((1 + ticket % (groups - 1)) * FSDP__TAG_KINDS);
}
