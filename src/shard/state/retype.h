/* retype.h - changes the dtype of parameters (FSDP2's module.to(dtype)).
 *
 * All groups below a module get new residences and memory beside those they have. The old ones are freed when
 * everything has succeeded on all ranks, and come back otherwise. */
#pragma once

#include "shard/state/root.h"

/* Implements the hook `retype` of nn/module.h. [collective] */
fsdp_status fsdp__retype(fsdp_module *root, fsdp_dtype dtype, fsdp_status so_far);
