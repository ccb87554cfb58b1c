/* buffers.h - casts the buffers below a root (FSDP1's buffer_dtype). */
#ifndef SHARD_STATE_BUFFERS_H
#define SHARD_STATE_BUFFERS_H

#include "shard/state/root.h"

/* Casts the buffers of each state whose policy has a buffer_dtype to that dtype, unless they have it already. A buffer
 * that several modules name stays one buffer. */
fsdp_status fsdp__root_cast_buffers(const fsdp__root *root);

#endif
