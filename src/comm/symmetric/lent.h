/* lent.h - callers' buffers that peers read where they lie, as threads do: they are the caller's again when its call is
 * over, however it ended, and may be freed then. */
#ifndef COMM_SYMMETRIC_LENT_H
#define COMM_SYMMETRIC_LENT_H

#include "comm/symmetric/group.h"

/* Before the entry of a call that shows such buffers: from here on this rank may read those of its peers. */
void fsdp__lent_begin(fsdp__symmetric_group *group);
/* It has read all that it will. */
void fsdp__lent_end(fsdp__symmetric_group *group);
/* The call is over, or what it has lent is to go before that. Of one that failed in between, in a broken world: waits
 * for the peers that still read. */
void fsdp__lent_settle(fsdp__symmetric_group *group);

#endif
