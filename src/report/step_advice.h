/* step_advice.h - finds what stands out in a traced step. */
#pragma once

#include "report/advice_list.h"
#include "report/sources.h"

/* Say which rank the others wait for, and what is waited for longest, if that is over a fiftieth of the step. `run`:
 * whose step it is, or NULL. `source` is a trace. */
fsdp_status fsdp__advise_of_slow_rank(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source);
/* Says which rank others waited for in some steps only. */
fsdp_status fsdp__advise_of_odd_steps(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source);
fsdp_status fsdp__advise_of_wait(fsdp__advices *all, const fsdp__recorded_run *run, const fsdp__source *source);
