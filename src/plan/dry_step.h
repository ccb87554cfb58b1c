/* dry_step.h - records what a dry step holds and how long it would take. */
#ifndef PLAN_DRY_STEP_H
#define PLAN_DRY_STEP_H

#include "plan/planned.h"

/* Takes the next step of a dry run whose steps are all alike by now, and fills in the plan's peak, time and
 * explanation. */
fsdp_status fsdp__plan_record(fsdp__plan *plan, fsdp_train_run *run, const fsdp__plan_options *options);

#endif
