/* folder.h - a folder of checkpoints: names of steps. */
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H

#include "fsdp/checkpoint.h"

/* What follows a step's name while it is made, and while it is removed. */
#define FSDP__SAVING ".saving"
#define FSDP__REMOVING ".removing"

/* Whether `name` is step-N followed by `suffix` ("" for a checkpoint). */
bool fsdp__step_name(const char *name, const char *suffix, int64_t *out_step);
/* <folder>/step-N with `suffix`; fsdp__free it; NULL when out of memory. */
char *fsdp__step_path(const char *folder, int64_t step, const char *suffix);
/* Steps of folders with that suffix, ascending; fsdp__free `*out`. A name of a step that cannot be looked at, a link to
 * nowhere too, is an error. */
fsdp_status fsdp__step_list(const char *folder, const char *suffix, int64_t **out, int64_t *out_count);

#endif
