/* folder.h - a folder of checkpoints: names of steps. */
#pragma once

#include "base/compiler.h"
#include "base/directory.h"
#include "fsdp/checkpoint.h"

/* Follows a step's name while the step is being made, and while it is being removed. */
#define FSDP__SAVING ".saving"
#define FSDP__REMOVING ".removing"

/* Stands for the best checkpoint of a folder, in place of its step-N. */
#define FSDP__STEP_BEST "step-best"

/* Returns whether the last name of a path is FSDP__STEP_BEST. */
bool fsdp__is_step_best(const char *path);
/* Resolves what fsdp_checkpoint_open takes as a path to the path of one checkpoint; fsdp__free it. */
fsdp_status fsdp__checkpoint_resolve(const char *path, char **out);
/* Returns whether `name` is step-N followed by `suffix` ("" for a checkpoint). */
bool fsdp__step_name(const char *name, const char *suffix, int64_t *out_step);
/* Writes step-N with `suffix` into `name`; returns it. */
#define FSDP__STEP_NAME 80
const char *fsdp__step_text(int64_t step, const char *suffix, char name[FSDP__STEP_NAME]);
/* Returns the path of step-N in a folder; fsdp__free it. NULL when out of memory. */
char *fsdp__step_path(const char *folder, int64_t step);
/* Lists the steps of checkpoints, ascending; fsdp__free `*out`. A name of a step that cannot be looked at, even a
 * dangling link, is an error. */
fsdp_status fsdp__step_list(const char *folder, int64_t **out, int64_t *out_count);
/* Does the same in a folder that is held open, for folders with a suffix. */
fsdp_status fsdp__step_list_in(const fsdp__directory *folder, const char *suffix, int64_t **out, int64_t *out_count);

FSDP__SCOPED_POINTER(fsdp_checkpoint_reader, fsdp_checkpoint_close)
FSDP__SCOPED_POINTER(fsdp_checkpoint_saver, fsdp_checkpoint_saver_free)
