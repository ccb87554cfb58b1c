/* retype.h - parameters in another dtype (FSDP2's module.to(dtype)).
 *
 * All groups below a module get residences and memory anew, beside those they have, which go when all of it has
 * succeeded on all ranks, or come back. */
#ifndef SHARD_RETYPE_H
#define SHARD_RETYPE_H

#include "shard/root.h"

/* The hook `retype` of nn/module.h. [collective] */
fsdp_status fsdp__retype(fsdp_module *root, fsdp_dtype dtype, fsdp_status so_far);

#endif
