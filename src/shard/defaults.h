/* defaults.h - what the sharding engine keeps per context. */
#ifndef SHARD_DEFAULTS_H
#define SHARD_DEFAULTS_H

#include "fsdp/dist.h"

/* One mesh over all ranks, shared by every call that names none. Borrowed. [collective], the first time */
fsdp_status fsdp__default_mesh(fsdp_context *context, fsdp_mesh **out);
/* 1, 2, ...: tells which of two settings of one context is the later one. 0 when out of memory. */
int64_t fsdp__next_setting(fsdp_context *context);

#endif
