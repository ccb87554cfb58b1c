/* folder.h - a folder of checkpoints: names of steps. */
#ifndef CHECKPOINT_FOLDER_H
#define CHECKPOINT_FOLDER_H

#include "base/directory.h"
#include "fsdp/checkpoint.h"

/* What follows a step's name while it is made, and while it is removed. */
#define FSDP__SAVING ".saving"
#define FSDP__REMOVING ".removing"

/* What stands for the best of a folder, in place of its step-N. */
#define FSDP__STEP_BEST "step-best"

/* Whether the last name of a path is that. */
bool fsdp__is_step_best(const char *path);
/* What fsdp_checkpoint_open takes for a path: of one checkpoint; fsdp__free it. */
fsdp_status fsdp__checkpoint_resolve(const char *path, char **out);
/* Whether `name` is step-N followed by `suffix` ("" for a checkpoint). */
bool fsdp__step_name(const char *name, const char *suffix, int64_t *out_step);
/* step-N with `suffix` into `name`; returns it. */
#define FSDP__STEP_NAME 80
const char *fsdp__step_text(int64_t step, const char *suffix, char name[FSDP__STEP_NAME]);
/* The same in a folder; fsdp__free it; NULL when out of memory. */
char *fsdp__step_path(const char *folder, int64_t step, const char *suffix);
/* Steps of folders with that suffix, ascending; fsdp__free `*out`. A name of a step that cannot be looked at, a link to
 * nowhere too, is an error. */
fsdp_status fsdp__step_list(const char *folder, const char *suffix, int64_t **out, int64_t *out_count);
/* The same of one that is held. */
fsdp_status fsdp__step_list_in(const fsdp__directory *folder, const char *suffix, int64_t **out, int64_t *out_count);

#endif
