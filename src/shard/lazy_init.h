/* lazy_init.h - with the first forward the sharded modules below the outermost one get one root. */
#ifndef SHARD_LAZY_INIT_H
#define SHARD_LAZY_INIT_H

#include "shard/root.h"

/* At the first forward of the outermost state. Once; a failure changes nothing that counts. */
fsdp_status fsdp__lazy_init(fsdp__module_state *outermost);
/* The same before the first forward of `module`, which is `outermost`'s, on all ranks or on none: what is wrong on one
 * (`mine`, if something was before) is everybody's error, on each mesh that groups of modules below lie on.
 * [collective] */
fsdp_status fsdp__begin_together(void *outermost, fsdp_module *module, fsdp_status mine);

#endif
