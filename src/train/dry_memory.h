/* dry_memory.h - what memory a rank of a run should take, by a dry run of the same rank. */
#pragma once

#include "fsdp/train.h"
#include "watch/memory_course.h"

/* Makes a dry run, in a world of its own, of the rank that `run` is. */
fsdp_status fsdp__train_dry_twin(const fsdp_train_run *run, fsdp_train_run **out);
void fsdp__train_dry_twin_free(fsdp_train_run *dry); /* NULL is allowed */
typedef fsdp_status fsdp__train_step_taker(fsdp_train_run *run, fsdp_train_report *report);
/* Takes steps of a dry run until they are alike, and gives the course of the next one. Release it, also after a
 * failure. `step` is fsdp_train_step, which this file does not know: a step may ask for the course of its like. */
fsdp_status fsdp__train_dry_course(fsdp_train_run *dry, fsdp__train_step_taker *step, fsdp__memory_course *out);
