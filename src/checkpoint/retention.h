/* retention.h - removes checkpoints that are not kept, and what dead processes have left. */
#pragma once

#include "base/directory.h"
#include "fsdp/checkpoint.h"

typedef struct fsdp__retention {
    int64_t keep_latest_k, keep_every;
    const int64_t *pinned;
    int pinned_count;
} fsdp__retention;

/* Removes what the rule does not keep, superseded checkpoints first, but never `saved`. What cannot be removed stays,
 * with a warning. */
void fsdp__retention_apply(fsdp_context *context, const fsdp__directory *folder, const fsdp__retention *rule,
                           int64_t saved);
/* Removes what a process has left in the folder that died in a save, or while it removed a checkpoint. */
void fsdp__remove_leftovers(fsdp_context *context, const fsdp__directory *folder);
/* Refuses what has the name under which a checkpoint of a step after this one would be made, and is nobody's save: it
 * would make that save fail. */
fsdp_status fsdp__check_saving_names(const fsdp__directory *folder, int64_t after);
