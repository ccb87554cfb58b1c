/* lazy_init.h - gives the sharded modules below the outermost one a common root, at the first forward. */
#pragma once

#include "shard/state/root.h"

/* Initializes the tree at the first forward of the outermost state; later calls do nothing. A failure changes nothing
 * that counts. */
fsdp_status fsdp__lazy_init(fsdp__module_state *outermost);
/* Does the same before the first forward of `module`, which belongs to `outermost`, on all ranks or on none. An error
 * on one rank (`mine`, if something has failed before) becomes an error on all, on each mesh that groups of modules
 * below lie on. [collective] */
fsdp_status fsdp__begin_together(void *outermost, fsdp_module *module, fsdp_status mine);

/* ---- check_tree.c ---- */

/* Checks whether root->states, of these names, can have one root, and are ready to run. */
fsdp_status fsdp__check_tree(const fsdp__root *root, char *const *names);

/* ---- buffers.c ---- */

/* Casts the buffers of each state whose policy has a buffer_dtype to that dtype, unless they have it already. A buffer
 * that several modules name stays one buffer. */
fsdp_status fsdp__root_cast_buffers(const fsdp__root *root);
