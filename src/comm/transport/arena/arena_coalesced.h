/* arena_coalesced.h - the collectives of sharded buffers, as slots of a transport's table, and what the plain ones are
 * made of. */
#pragma once

#include "comm/transport/arena/arena_group.h"
#include "comm/transport/packed.h"

fsdp_status fsdp__arena_all_gather_coalesced(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_reduce_scatter_coalesced(void *group, const fsdp__call *, fsdp__traffic *);

/* An exchange of rows, on one rank. */
typedef struct fsdp__rows {
    fsdp__arena_group *group;
    const fsdp__call *call;
    fsdp__traffic *traffic;
    fsdp__pattern pattern;
    int first; /* the group's rank that counts as the first; the others follow it */
    int self;  /* as which rank this one counts */
    /* The same call has another exchange, to which all ranks come when they have read their peers' rows. */
    bool goes_on;
    bool staged; /* it went on through staging, and goes the same way from here */
    int half;    /* of staging: the one that the next piece uses */
} fsdp__rows;

/* Returns an exchange in which each rank counts as itself. */
fsdp__rows fsdp__rows_of(void *group, const fsdp__call *call, fsdp__pattern pattern, fsdp__traffic *traffic);
fsdp_status fsdp__rows_exchange(fsdp__rows *rows);
