/* merge.h - makes one manifest of those of the ranks. */
#ifndef CHECKPOINT_MERGE_H
#define CHECKPOINT_MERGE_H

#include "checkpoint/manifest.h"

/* Moves files and tensors of `from` behind those of `into`. */
fsdp_status fsdp__manifest_append(fsdp__manifest *into, fsdp__manifest *from);
/* Joins tensors of the same name into one, with the parts of all of them, by rank. Fails with FSDP_MISMATCH, naming the
 * tensor, where their shapes or dtypes differ. */
fsdp_status fsdp__manifest_join(fsdp__manifest *m);

#endif
