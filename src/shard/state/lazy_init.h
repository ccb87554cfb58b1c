/* lazy_init.h - gives the sharded modules below the outermost one a common root, at the first forward. */
#ifndef SHARD_STATE_LAZY_INIT_H
#define SHARD_STATE_LAZY_INIT_H

#include "shard/state/root.h"

/* Initializes the tree at the first forward of the outermost state; later calls do nothing. A failure changes nothing
 * that counts. */
fsdp_status fsdp__lazy_init(fsdp__module_state *outermost);
/* Does the same before the first forward of `module`, which belongs to `outermost`, on all ranks or on none. An error
 * on one rank (`mine`, if something has failed before) becomes an error on all, on each mesh that groups of modules
 * below lie on. [collective] */
fsdp_status fsdp__begin_together(void *outermost, fsdp_module *module, fsdp_status mine);

#endif
