/* plan.h - will it fit, and how long will it take? A plan is a dry run of the rank that has the most (explain/),
 * with what its third step holds at its peak and how long each of its parts takes at given prices. */
#pragma once

#include "plan/planned.h"

/* Plans a run of the config's model. The caller frees the plan. */
fsdp_status fsdp__plan_make(const fsdp_train_config *config, const fsdp__plan_options *options, fsdp__plan **out);
/* Plans a run of a config that was set with status `set`. What the engine refuses is no plan: *out is NULL. */
fsdp_status fsdp__plan_try(fsdp_status set, const fsdp_train_config *config, const fsdp__plan_options *options,
                           fsdp__plan **out);
void fsdp__plan_free(fsdp__plan *plan); /* NULL is allowed */

FSDP__SCOPED_POINTER(fsdp__plan, fsdp__plan_free)

/* Adds up a number of each kind of collective. */
int64_t fsdp__sum_of_calls(const int64_t numbers[FSDP_COLLECTIVES]);
