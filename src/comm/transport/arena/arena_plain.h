/* arena_plain.h - the collectives over contiguous buffers, as slots of a transport's table. */
#pragma once

#include "comm/transport/arena/arena_group.h"

fsdp_status fsdp__arena_all_gather(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_reduce_scatter(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_all_reduce(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_broadcast(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_all_to_all(void *group, const fsdp__call *, fsdp__traffic *);
fsdp_status fsdp__arena_barrier(void *group, const fsdp__call *, fsdp__traffic *);

/* Exchanges an all_reduce's flags, after the exchange whose entries say which ranks have flags that are not set: other
 * ranks may have set them. */
fsdp_status fsdp__arena_join_flags(fsdp__arena_group *group, const fsdp__call *call, fsdp__traffic *traffic);
