/* buffers.h - the dtype of the buffers below a root (FSDP1's buffer_dtype). */
#ifndef SHARD_BUFFERS_H
#define SHARD_BUFFERS_H

#include "shard/root.h"

/* Those of each state whose policy has a dtype for them are cast to it, where they are not of it. One that several
 * modules name stays one. */
fsdp_status fsdp__root_cast_buffers(const fsdp__root *root);

#endif
