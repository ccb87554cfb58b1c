/* lent.h - callers' buffers that peers read in place, as threads do. A buffer is the caller's again when its call is
 * over, however the call ended, and may be freed then. */
#pragma once

#include "comm/transport/arena/arena_group.h"

/* Says that from here on this rank may read its peers' buffers. Call it before the rank shows the entry of a call that
 * lends buffers. */
void fsdp__lent_begin(fsdp__arena_group *group);
/* Says that this rank has read all that it will. */
void fsdp__lent_end(fsdp__arena_group *group);
/* Settles what this rank has lent, when its call is over or the buffers must go earlier. After a call that failed in
 * between, in a broken world, it waits for the peers that still read. */
void fsdp__lent_settle(fsdp__arena_group *group);
