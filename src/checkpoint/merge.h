/* merge.h - the manifests of the ranks become one. */
#ifndef CHECKPOINT_MERGE_H
#define CHECKPOINT_MERGE_H

#include "checkpoint/manifest.h"

/* Moves files and tensors of `from` behind those of `into`. */
fsdp_status fsdp__manifest_append(fsdp__manifest *into, fsdp__manifest *from);
/* One tensor where there are several of one name, with the parts of all of them, by rank. FSDP_MISMATCH, naming the
 * tensor, where their shapes or dtypes differ. */
fsdp_status fsdp__manifest_join(fsdp__manifest *m);

#endif
