/* lazy_init.h - with the first forward the sharded modules below the outermost one get one root. */
#ifndef SHARD_LAZY_INIT_H
#define SHARD_LAZY_INIT_H

#include "shard/root.h"

/* At the first forward of the outermost state. Once; a failure changes nothing that counts. */
fsdp_status fsdp__lazy_init(fsdp__module_state *outermost);

#endif
