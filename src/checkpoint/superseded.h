/* superseded.h - checkpoints of steps that a run has gone back behind: they get another name, so that nobody takes one
 * of them for the newest. */
#pragma once

#include "checkpoint/folder.h"

/* Describes a folder step-N.superseded-K: K tells those of one step apart, and is larger for later ones. */
typedef struct fsdp__superseded {
    int64_t step, turn;
} fsdp__superseded;

/* Gives step-N of a folder such a name; `*out` is its path, fsdp__free it. */
fsdp_status fsdp__supersede(const fsdp__directory *folder, int64_t step, char **out);
/* Writes its name into `name`; returns it. */
const char *fsdp__superseded_text(const fsdp__superseded *of, char name[FSDP__STEP_NAME]);
/* Lists them, the latest first; fsdp__free `*out`. */
fsdp_status fsdp__superseded_list(const fsdp__directory *folder, fsdp__superseded **out, int64_t *out_count);
